"""Real traces of other people's trainings, beside the checkout on the machines that build this project."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.account import cpu, gpu
from diag.model.steps import Kind, RankStep
from diag.traces.kineto import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FILES = sorted(str(path.relative_to(TRACES)) for path in TRACES.glob("*/*.json.gz"))

pytestmark = pytest.mark.skipif(not FILES, reason="no ../shared/traces beside this checkout")


def account(name: str) -> list[RankStep]:
    trace = read_trace(TRACES / name)
    if trace.has_gpu:
        return gpu.partition(trace, gpu.step_windows(trace), trace.rank or 0)
    return cpu.partition(trace, cpu.step_windows(trace), trace.rank or 0)


def ms(steps: list[RankStep], kind: Kind) -> float:
    return sum(step.segments.total(kind) for step in steps) / 1e6


@pytest.mark.parametrize("name", FILES)
def test_every_trace_opens_and_its_parts_sum_exactly(name: str) -> None:
    steps = account(name)
    assert steps
    for step in steps:
        edges = step.segments
        assert sum(edges.total(kind) for kind in Kind) == step.dur_ns
        assert (edges.start_ns[0], edges.end_ns[-1]) == (step.begin_ns, step.end_ns)
        assert (edges.start_ns[1:] == edges.end_ns[:-1]).all()


def test_the_last_step_and_its_nccl_count() -> None:
    steps = account("ddp_a100_1rank/nccl_data.json.gz")
    hidden = sum(step.overlapped_comm_ns for step in steps) / 1e6
    assert [step.step for step in steps] == [4, 5, 6]
    assert ms(steps, Kind.COMM) + hidden == pytest.approx(46.9, abs=0.05)
    assert all(call.op in ("all_reduce", "broadcast") and call.bytes for step in steps for call in step.collectives)


def test_thousands_of_all_reduces() -> None:
    steps = account("ddp_v100_rank1of2/df_index_resolver.json.gz")
    assert sum(len(step.collectives) for step in steps) == 2020
    assert ms(steps, Kind.COMM) > 300


def test_rccl_behind_the_host() -> None:
    """The host is three steps ahead here; every step still gets its own four collectives."""
    steps = account("ddp_mi300_rank0of8/rank0.json.gz")
    assert [len(step.collectives) for step in steps] == [4, 4, 4]
    assert ms(steps, Kind.IDLE) < 1


def test_a_loader_without_workers_is_the_largest_wait() -> None:
    slow, fast = (account(f"resnet50_v100_dataloader{n}/worker0.pt.trace.json.gz") for n in (0, 4))
    assert ms(slow, Kind.DATA) > ms(slow, Kind.IDLE) + ms(slow, Kind.COPY) + ms(slow, Kind.COMM)
    assert ms(fast, Kind.DATA) < ms(slow, Kind.DATA) / 20


def test_a_trace_without_a_gpu() -> None:
    steps = account("odd/cpu_only_rank-34.pt.trace.json.gz")
    assert [step.rank for step in steps] == [34] * 5
    assert all(len(step.collectives) == 2 for step in steps)
    assert ms(steps, Kind.COMM) > ms(steps, Kind.COMPUTE) > 0

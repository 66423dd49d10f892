"""CPU traces with known truth: the main thread is the device."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.account import intervals as iv
from diag.account.cpu import partition, step_windows
from diag.account.trace_collectives import CALLS_A_STEP
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep
from diag.traces.kineto import read_trace
from tests.account.kineto_builder import AUTOGRAD, BASE_NS, WIRE, KinetoBuilder
from tests.examples import examples


def account(build: KinetoBuilder, folder: Path, **recorded: Any) -> list[RankStep]:
    trace = read_trace(build.write(folder))
    steps = partition(trace, step_windows(trace), 0, **recorded)
    for step in steps:
        parts = step.segments
        assert sum(parts.total(kind) for kind in Kind) == step.dur_ns
        assert (parts.start_ns[1:] == parts.end_ns[:-1]).all()
        if step.dur_ns:
            assert (parts.start_ns[0], parts.end_ns[-1]) == (step.begin_ns, step.end_ns)
        assert 0 <= step.optimizer_ns <= parts.total(Kind.COMPUTE) + parts.total(Kind.IDLE)
    return steps


def one(build: KinetoBuilder, folder: Path, **recorded: Any) -> RankStep:
    (step,) = account(build, folder, **recorded)
    return step


def labels(step: RankStep) -> dict[tuple[Kind, Detail], int]:
    pairs = ((kind, detail) for kind in Kind for detail in Detail)
    return {pair: step.segments.total(*pair) for pair in pairs if step.segments.total(*pair)}


def cpu() -> KinetoBuilder:
    return KinetoBuilder(backend="gloo")


def test_operators_of_the_training_threads_compute(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100).op("aten::mm", 0, 50).op("aten::resolve_conj", 5, 6).op("aten::resolve_conj", 7, 7)
    build.op("autograd::engine::evaluate_function: X", 60, 90, AUTOGRAD).op("XBackward0", 62, 88, AUTOGRAD)
    build.op("aten::mm", 65, 85, AUTOGRAD)
    build.op("aten::mm", 50, 60, tid=55)  # another thread is not the device
    build.op("autograd::engine::evaluate_function: Hook", 92, 98)  # a wrapper alone is no work
    assert labels(one(build, tmp_path)) == {
        (Kind.COMPUTE, Detail.NONE): 50, (Kind.COMPUTE, Detail.BACKWARD): 20,
        (Kind.IDLE, Detail.OTHER): 14, (Kind.IDLE, Detail.BACKWARD): 10 + 6,
    }  # fmt: skip


def test_waiting_inside_an_operator_is_not_compute(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100).op("aten::linear", 0, 100).op("_c10d_functional::wait_tensor", 20, 60)
    build.gloo("all_gather", 10, 55)
    step = one(build, tmp_path)
    assert labels(step) == {(Kind.COMPUTE, Detail.NONE): 60, (Kind.COMM, Detail.NONE): 35, (Kind.IDLE, Detail.OTHER): 5}
    assert step.overlapped_comm_ns == 10


def test_communication_is_exposed_where_no_operator_runs(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100).range("FSDP::all_gather (blocks.0)", 10, 60).op("c10d::_allgather_base_", 12, 40)
    build.op("fsdp::all_gather_copy_in", 10, 12).gloo("all_gather", 20, 50).op("aten::mm", 45, 80)
    step = one(build, tmp_path)
    assert labels(step) == {
        (Kind.COMPUTE, Detail.NONE): 2 + 35,
        (Kind.COMM, Detail.NONE): 25,
        (Kind.IDLE, Detail.OTHER): 38,
    }
    assert step.overlapped_comm_ns == 5
    (call,) = step.collectives
    assert (call.key, call.bytes, call.group_ranks, call.inferred) == (
        ("0", 1 * CALLS_A_STEP, "all_gather"),
        8000,
        (0, 1),
        True,
    )


def test_waiting_operators_are_not_compute(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100).op("_c10d_functional::wait_tensor", 0, 60).gloo("all_reduce", 0, 60)
    assert labels(one(build, tmp_path)) == {(Kind.COMM, Detail.NONE): 60, (Kind.IDLE, Detail.OTHER): 40}


def test_copies_inside_a_call_are_work(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100).op("c10d::_reduce_scatter_base_", 0, 60).op("aten::copy_", 10, 30)
    assert labels(one(build, tmp_path)) == {(Kind.COMPUTE, Detail.NONE): 20, (Kind.IDLE, Detail.OTHER): 80}


def test_recorded_collectives_and_waits_join_the_trace(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100).gloo("all_reduce", 30, 50).op("aten::mm", 60, 100)
    call = CollectiveCall(("dp", 3, "all_reduce"), "all_reduce", "dp", (0, 1), 64, BASE_NS + 20, BASE_NS + 40)
    late = CollectiveCall(("dp", 4, "all_reduce"), "all_reduce", "dp", (0, 1), 64, BASE_NS + 100, BASE_NS + 140)
    waits = iv.make([(BASE_NS + 45, BASE_NS + 70)])
    step = one(build, tmp_path, comm=[call, late], waits=waits)
    assert labels(step) == {
        (Kind.COMPUTE, Detail.NONE): 40,
        (Kind.COMM, Detail.NONE): 40,
        (Kind.IDLE, Detail.OTHER): 20,
    }
    assert step.overlapped_comm_ns == 10
    assert step.collectives == (call,)


@pytest.mark.parametrize("recorded", [False, True])
def test_phases_from_ranges_or_from_records(tmp_path: Path, recorded: bool) -> None:
    phases = [
        ("data", 0, 10), ("h2d", 10, 15), ("forward", 15, 40), ("backward", 40, 70), ("optimizer", 70, 85),
        ("checkpoint", 85, 95), ("gc", 30, 35),
    ]  # fmt: skip
    build = cpu().step(1, 0, 100).op("aten::stack", 2, 8).op("aten::copy_", 11, 13).op("aten::mm", 15, 30)
    build.op("aten::mm", 40, 60).op("aten::add_", 70, 80)
    if not recorded:
        for name, start, end in phases:
            build.range(f"diag.{name}", start, end)
    given = [(name, BASE_NS + start, BASE_NS + end) for name, start, end in phases] if recorded else []
    step = one(build, tmp_path, phases=given)
    assert labels(step) == {
        (Kind.DATA, Detail.NONE): 10, (Kind.COPY, Detail.NONE): 5, (Kind.CHECKPOINT, Detail.NONE): 10,
        (Kind.COMPUTE, Detail.FORWARD): 15, (Kind.COMPUTE, Detail.BACKWARD): 20, (Kind.COMPUTE, Detail.OPTIMIZER): 10,
        (Kind.IDLE, Detail.GC): 5, (Kind.IDLE, Detail.FORWARD): 5, (Kind.IDLE, Detail.BACKWARD): 10,
        (Kind.IDLE, Detail.OPTIMIZER): 5, (Kind.IDLE, Detail.OTHER): 5,
    }  # fmt: skip
    assert step.optimizer_ns == 15


def test_the_data_loader_of_pytorch_is_seen(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 100, "ProfilerStep#").op("aten::mm", 50, 60)
    build.op(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 40
    )  # filed as an operator before torch 1.11
    step = one(build, tmp_path)
    assert labels(step) == {
        (Kind.COMPUTE, Detail.NONE): 10,
        (Kind.DATA, Detail.NONE): 40,
        (Kind.IDLE, Detail.OTHER): 50,
    }


def test_collectives_are_counted_from_zero_in_each_step(tmp_path: Path) -> None:
    build = cpu().step(1, 0, 50).step(2, 50, 100)
    for start in (5, 20, 60):
        build.gloo("all_reduce", start, start + 5)
    build.gloo("broadcast", 80, 85)
    keys = [
        [(*divmod(call.key[1], CALLS_A_STEP), call.op) for call in step.collectives]
        for step in account(build, tmp_path)
    ]
    assert keys == [[(1, 0, "all_reduce"), (1, 1, "all_reduce")], [(2, 0, "all_reduce"), (2, 0, "broadcast")]]


def test_without_steps_or_operators(tmp_path: Path) -> None:
    step = one(cpu().gloo("all_reduce", 10, 30), tmp_path)
    assert labels(step) == {(Kind.COMM, Detail.NONE): 20}


NAMES = ["op", "autograd", "gloo", "data", "h2d", "checkpoint", "optimizer", "gc", "wait"]
EVENTS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 180), st.integers(1, 20)), max_size=25)


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(EVENTS)
def test_parts_sum_to_the_step_and_match_a_bitmap(events: list[tuple[str, int, int]]) -> None:
    build = cpu().step(1, 0, 100).step(2, 100, 200)
    build.op("autograd::engine::evaluate_function: X", 200, 201, AUTOGRAD)
    bits = {name: np.zeros(200, dtype=np.bool_) for name in ("data", "checkpoint", "h2d", "op", "gloo")}
    waits = []
    free = {"op": 0, "autograd": 0}
    for name, start, length in events:
        end = start + length
        if name in free:  # operators of one thread one after the other, so that each is a leaf
            start, end = max(start, free[name]), max(start, free[name]) + length
            free[name] = end
            build.op("aten::mm", start, end, AUTOGRAD if name == "autograd" else 1)
        elif name == "gloo":
            build.range("gloo:all_reduce", start, end, WIRE)
        elif name == "wait":
            waits.append((BASE_NS + start, BASE_NS + end))
        else:
            build.range(f"diag.{name}", start, end)
        target = {"autograd": "op", "wait": "gloo"}.get(name, name)
        if target in bits:
            bits[target][start:end] = True
    with TemporaryDirectory() as folder:
        steps = account(build, Path(folder), waits=iv.make(waits))
    shown = np.zeros(200, dtype=np.bool_)
    order = {"data": Kind.DATA, "checkpoint": Kind.CHECKPOINT, "h2d": Kind.COPY, "op": Kind.COMPUTE, "gloo": Kind.COMM}
    for name, kind in order.items():
        mine = bits[name] & ~shown
        shown |= bits[name]
        assert [step.segments.total(kind) for step in steps] == [mine[:100].sum(), mine[100:].sum()]
        if kind == Kind.COMPUTE:
            hidden = mine & bits["gloo"]
            assert [step.overlapped_comm_ns for step in steps] == [hidden[:100].sum(), hidden[100:].sum()]

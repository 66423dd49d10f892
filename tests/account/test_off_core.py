"""A sleep on a CPU is idle time, and Python is compute, whether or not a profiler records the step."""

from __future__ import annotations

import numpy as np
import pytest

from diag.account.off_core import by_cpu_time
from diag.account.rank_steps import RankSteps
from diag.api import Result, analyze
from diag.collectors.records import BACKWARD, FORWARD
from diag.model.steps import Detail, Kind, Parts, RankStep, Segments
from diag.show.page import page_of
from tests.samples import opened_sample
from tests.simulate import MS, Plan, simulate


def a_step(*pieces: tuple[Kind, Detail, int], source: str) -> RankStep:
    """``pieces``: kind, detail and milliseconds."""
    ends = np.cumsum([ms * MS for _, _, ms in pieces], dtype=np.int64)
    kinds, details = (np.array([piece[at] for piece in pieces], dtype=np.int8) for at in (0, 1))
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    return RankStep(0, 5, 0, int(ends[-1]), source, Segments(starts, ends, kinds, details), 0, 0)


RECORDED = a_step(
    (Kind.DATA, Detail.NONE, 5), (Kind.COMPUTE, Detail.FORWARD, 100), (Kind.COMM, Detail.NONE, 10),
    (Kind.COMPUTE, Detail.FORWARD, 20), (Kind.IDLE, Detail.OTHER, 3), source="records",
)  # fmt: skip
TRACED = a_step(
    (Kind.DATA, Detail.NONE, 5), (Kind.COMPUTE, Detail.FORWARD, 15), (Kind.IDLE, Detail.FORWARD, 70),
    (Kind.COMPUTE, Detail.FORWARD, 15), (Kind.COMM, Detail.NONE, 10), (Kind.IDLE, Detail.FORWARD, 20),
    (Kind.IDLE, Detail.OTHER, 3), source="trace",
)  # fmt: skip


@pytest.mark.parametrize("blocked_ms", [0, 60, 90])
def test_a_phase_has_the_same_kinds_of_time_with_and_without_a_profiler(blocked_ms: int) -> None:
    blocked = {5: {FORWARD: blocked_ms * MS}} if blocked_ms else {}
    recorded, traced = by_cpu_time(RankSteps.of([RECORDED, TRACED]), blocked)
    for step in (recorded, traced):
        by_kind = {kind: step.segments.total(kind) // MS for kind in Kind if step.segments.total(kind)}
        assert by_kind == {
            Kind.COMPUTE: 120 - blocked_ms, Kind.COMM: 10, Kind.DATA: 5, Kind.IDLE: 3 + blocked_ms,
        }  # fmt: skip
        assert step.segments.total(Kind.IDLE, Detail.FORWARD) == blocked_ms * MS
        assert (step.segments.start_ns[1:] == step.segments.end_ns[:-1]).all()
        assert (step.segments.end_ns > step.segments.start_ns).all()
        assert (step.segments.start_ns[0], step.segments.end_ns[-1]) == (step.begin_ns, step.end_ns)
    assert traced.outside_operators_ns == {Detail.FORWARD: 90 * MS}


def test_what_is_blocked_is_first_where_no_operator_runs() -> None:
    (traced,) = by_cpu_time(RankSteps.of([TRACED]), {5: {FORWARD: 75 * MS}})
    idle = (traced.segments.kind == Kind.IDLE) & (traced.segments.detail == Detail.FORWARD)
    lengths = (traced.segments.end_ns - traced.segments.start_ns)[idle] // MS
    assert lengths.tolist() == [70, 5]


def sleeping(phase: str) -> Result:
    plan = Plan(
        ranks=3,
        extra=lambda step, rank: {phase: 80 * MS} if rank == 1 else {},
        scheduled=lambda step, rank: {phase: (0, 80 * MS)} if rank == 1 else {FORWARD: (0, 0)},
    )
    return analyze(simulate(plan))


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
def test_a_recorded_sleep_is_idle_time_of_its_rank(phase: str) -> None:
    means = {row["rank"]: row for row in sleeping(phase).ranks.to_dicts()}
    assert means[1]["idle_ns"] - means[0]["idle_ns"] == pytest.approx(80 * MS, abs=3 * MS)
    assert means[1]["compute_ns"] == pytest.approx(means[0]["compute_ns"], rel=0.1)


@pytest.mark.parametrize("name", ["ddp-straggler-rank0", "fsdp2-straggler-rank0"])
def test_a_sleep_whose_cpu_time_was_not_recorded_is_the_same_in_every_step(name: str) -> None:
    """These runs have no CPU time: a phase is compute, also in the steps of profiler windows."""

    def means(of: list[Parts]) -> tuple[float, float]:
        return (
            float(np.mean([parts.compute_ns for parts in of])) / MS,
            float(np.mean([parts.idle_ns for parts in of])) / MS,
        )

    result = opened_sample(name)
    own = [parts for step in result.attribution.steps[2:] for parts in step.parts if parts.rank == 0]
    traced = means([parts for parts in own if parts.source == "trace"])
    recorded = means([parts for parts in own if parts.source == "records"])
    assert min(traced[0], recorded[0]) > 140
    assert max(traced[1], recorded[1]) < 10
    assert "outside of operators" in result.examination.findings[0].action
    assert result.verdict.headline.startswith("Straggler (")
    assert page_of(result).verdict.bottleneck == "straggler"

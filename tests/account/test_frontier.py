"""Phase frontiers of simulated runs whose truth is known: partition, lateness, and what waiting must not do to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from diag.account.frontier import Frontier, frontier, head_starts
from diag.account.policy import CRITICAL_PATH
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    OPTIMIZER,
    PHASES_AND_REST,
    REST,
    PhaseRow,
    StepRecord,
)
from diag.rundir.tables import RankTables
from tests.copies import replace
from tests.simulate import MS, Plan, simulate, without_collectives

COUNTED = range(2, 20)


def frontier_of(plan: Plan, collectives: bool = True) -> Frontier:
    tables = simulate(plan)
    found = frontier((tables if collectives else without_collectives(tables)).ranks, COUNTED, on_device=False)
    assert found is not None
    whole = sum(found.increment(phase) for phase in PHASES_AND_REST) + found.communication_ns
    assert (whole == found.dur_ns).all(), "the phases and the communication are the step"
    return found


def late_ms(found: Frontier, phase: str) -> list[int]:
    """Of each rank, a step."""
    return [round(value) for value in found.late(phase).mean(axis=0) / MS]


def on(rank: int, phase: str, every: int = 1) -> Plan:
    return Plan(ranks=3, extra=lambda step, r: {phase: 60 * MS} if r == rank and step % every == 0 else {})


@pytest.mark.parametrize("collectives", [True, False])
def test_a_late_rank_is_late_where_it_falls_behind_and_nowhere_else(collectives: bool) -> None:
    found = frontier_of(on(1, DATA), collectives)
    assert found.communication_known == collectives
    assert late_ms(found, DATA) == [0, 60, 0]
    assert all(late_ms(found, phase) == [0, 0, 0] for phase in PHASES_AND_REST if phase != DATA), (
        "the others wait, later"
    )
    assert found.share(DATA) == pytest.approx(61 / 160, abs=0.01)
    assert set(found.leader[PHASES_AND_REST.index(DATA)]) == {1}


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD, OPTIMIZER])
def test_recorded_waits_tell_who_is_late_inside_a_stage(phase: str) -> None:
    assert late_ms(frontier_of(on(2, phase)), phase) == [0, 0, 60]


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
def test_without_them_ranks_that_meet_in_every_unit_look_alike(phase: str) -> None:
    found = frontier_of(on(2, phase), collectives=False)
    assert max(late_ms(found, phase)) == 0
    assert found.share(phase) > frontier_of(Plan(ranks=3), collectives=False).share(phase) + 0.1


@pytest.mark.parametrize("collectives", [True, False])
def test_a_rank_that_begins_a_step_late_is_not_late_again(collectives: bool) -> None:
    """What rank 1 saves at the end of a step the others wait for in the next one."""
    found = frontier_of(on(1, CHECKPOINT, every=4), collectives)
    assert late_ms(found, CHECKPOINT) == [0, 13, 0]
    assert all(late_ms(found, phase) == [0, 0, 0] for phase in PHASES_AND_REST if phase != CHECKPOINT)
    assert found.increment(REST).max() < 4 * MS


def test_communication_is_what_even_the_last_rank_stands_still_for() -> None:
    found = frontier_of(Plan(ranks=3, transfer_ns=20 * MS, units=3))
    assert found.communication_ns / MS == pytest.approx(7 * 20, abs=2), "three gathers, three reductions, one loss"
    both = frontier_of(replace(on(1, DATA), transfer_ns=20 * MS))
    assert both.communication_ns / MS == pytest.approx(7 * 20, abs=2), "waiting for rank 1 is none"


@pytest.mark.parametrize(
    "clock",
    [
        lambda rank, now: now + 50 * MS * rank,
        lambda rank, now: now + now * 40 * rank // 1_000_000,
        lambda rank, now: now + rank * 10**18,  # hosts that started decades apart
    ],
)
def test_clocks_do_not_matter(clock: Callable[[int, int], int]) -> None:
    true = frontier_of(on(1, DATA))
    seen = frontier_of(replace(on(1, DATA), clock=clock))
    assert seen.late_ns / MS == pytest.approx(true.late_ns / MS, abs=0.1)
    assert seen.increment_ns / MS == pytest.approx(true.increment_ns / MS, abs=0.1)


def test_the_numbers_of_ranks_do_not_matter() -> None:
    one, other = frontier_of(on(0, DATA)), frontier_of(on(2, DATA))
    assert late_ms(one, DATA) == late_ms(other, DATA)[::-1]


def records(*of_ranks: list[tuple[str, int]]) -> dict[int, RankTables]:
    """A rank each, one step of these phases, ms."""
    found = {}
    for rank, phases in enumerate(of_ranks):
        steps = []
        for step in range(3):
            now = begin = 1000 * MS * step + 7 * rank
            rows = []
            for phase, ms in phases:
                rows.append(PhaseRow(phase, now, now + ms * MS))
                now += ms * MS
            steps.append(StepRecord(step, begin, now, rows))
        found[rank] = RankTables(rank, steps=tuple(steps))
    return found


def test_micro_batches_keep_their_order() -> None:
    """One rank is late in the first micro-batch, the other in the second; each time the other waits in its backward."""
    found = frontier(
        records(
            [(DATA, 51), (FORWARD, 10), (BACKWARD, 20), (DATA, 1), (FORWARD, 10), (BACKWARD, 70)],
            [(DATA, 1), (FORWARD, 10), (BACKWARD, 70), (DATA, 51), (FORWARD, 10), (BACKWARD, 20)],
        ),
        [1, 2],
        on_device=False,
    )
    assert found is not None
    assert (found.increment(DATA) / MS).tolist() == [102, 102]
    assert (found.late(DATA) / MS).tolist() == [[50, 50], [50, 50]]
    assert (found.late(BACKWARD) / MS).tolist() == [[0, 0], [0, 0]]


def test_a_phase_that_one_rank_has_alone() -> None:
    found = frontier(
        records([(DATA, 1), (FORWARD, 10), ("eval", 5), (CHECKPOINT, 30)], [(DATA, 1), (FORWARD, 10), ("eval", 5)]),
        [1, 2],
        on_device=False,
    )
    assert found is not None
    assert (found.late(CHECKPOINT) / MS).tolist() == [[30, 0], [30, 0]]
    assert (found.increment(REST) / MS).tolist() == [5, 5], "a phase of a person's own is between ours"


def test_there_is_nothing_to_compare_in_one_rank_or_no_common_step() -> None:
    two = records([(DATA, 1)], [(DATA, 1)])
    assert frontier({0: two[0]}, [1], on_device=False) is None
    assert frontier(two, [99], on_device=False) is None
    assert frontier({0: two[0], 1: RankTables(1)}, [1], on_device=False) is None


def test_the_median_of_the_others() -> None:
    from diag.account.frontier import behind

    edges = np.random.default_rng(3).integers(0, 1000, (6, 40))
    for count in range(2, 7):
        some = edges[:count]
        for rank in range(count):
            others = np.median(np.delete(some, rank, axis=0), axis=0).astype(np.int64)
            assert (behind(some)[rank] == np.maximum(some[rank] - others, 0)).all()


@pytest.mark.parametrize("apart", [10, 10**6, 10**12])  # clocks of hosts may be days apart
@pytest.mark.parametrize("steps", [1, 3, 60])
def test_a_head_start_is_against_the_median_of_the_steps_around(apart: int, steps: int) -> None:
    begin = np.random.default_rng(steps).integers(-apart, apart, (7, steps))
    ahead = head_starts(begin)
    wide = min(CRITICAL_PATH.reference_steps, steps - 1) // 2
    offset = begin - begin[0]
    for step in range(steps):
        around = offset[:, np.clip(np.arange(step - wide, step + wide + 1), 0, steps - 1)]
        unusual = offset[:, step] - np.median(around, axis=1).astype(np.int64)
        assert ahead[:, step].tolist() == (unusual - unusual.min()).tolist()

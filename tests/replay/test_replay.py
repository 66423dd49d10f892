"""The unmodified replay gives the measured steps; what cannot be replayed is refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.account.attribute import attribute
from diag.account.intervals import Times
from diag.model.steps import Kind
from diag.replay.costs import Level, fit
from diag.replay.mutations import hybrid_shard, more_bandwidth, without_straggler
from diag.replay.policy import REPLAY
from diag.replay.predict import Baseline, Pieces, Prediction, Stops, baseline, build, gain, operations, predict
from diag.replay.program import (
    ISSUE,
    WAIT,
    Collective,
    Events,
    Line,
    Mutated,
    Program,
    Refusal,
    Role,
    StuckError,
    measured_durations,
    replay,
    replay_error,
)
from diag.rundir.tables import Tables
from tests import simulate as plain
from tests.copies import replace
from tests.replay.fsdp import MS, Fsdp, simulate
from tests.samples import NAMES, opened_sample

PLANS = {
    "synchronous": Fsdp(),
    "four ranks": Fsdp(ranks=4, jitter=0.2),
    "prefetch": Fsdp(prefetch=1, ns_per_byte=4.0),
    "many ranks": Fsdp(ranks=7, steps=5, prefetch=1, jitter=0.2),
    "deep prefetch": Fsdp(prefetch=3, ns_per_byte=4.0, jitter=0.1),
    "kept": Fsdp(keep_gathered=True),
    "micro-batches": Fsdp(micro_batches=3, sync_every=True),
    "waits for data": Fsdp(batch_ns=300 * MS, workers=2),
    "straggler": Fsdp(slow=lambda step, rank: 40 * MS * (rank == 1)),
}


def program_of(tables: Tables) -> Program:
    found = build(attribute(tables), tables)
    assert isinstance(found, Program)
    return found


def base_of(tables: Tables) -> Baseline:
    found = baseline(attribute(tables), tables)
    assert isinstance(found, Baseline)
    return found


@pytest.mark.parametrize("name", PLANS)
def test_a_simulated_run_is_replayed_exactly(name: str) -> None:
    program = program_of(simulate(PLANS[name]))
    replayed = replay(program)
    for stretch in program.stretches:
        assert {rank: own.tolist() for rank, own in replayed.end_ns.items()} == {
            rank: list(own) for rank, own in stretch.end_ns.items()
        }
    assert replay_error(program, replayed) == 0.0


def test_the_other_simulation_is_replayed_exactly() -> None:
    """Its collectives end late on one rank, and its steps hold garbage collections and checkpoints."""
    plan = plain.Plan(
        ranks=3,
        tail=lambda step, rank: 3 * MS * (rank == 2),
        extra=lambda step, rank: {"gc": 5 * MS * (rank == 0), "checkpoint": 20 * MS * (step % 4 == 3)},
    )
    program = program_of(plain.simulate(plan))
    assert replay_error(program, replay(program)) == 0.0


@pytest.mark.parametrize("sample", NAMES)
def test_a_recorded_run_is_replayed(sample: str) -> None:
    result = opened_sample(sample)
    found = baseline(result.attribution, result.tables)
    assert isinstance(found, Baseline)
    print(f"{sample}: {found.error:.4%} of a mean step of {found.step_ns / 1e6:.1f} ms")
    assert found.error < 0.01
    accounts = np.array([step.dur_ns for step in result.attribution.usable])
    assert measured_durations(found.program).mean() == pytest.approx(accounts.mean(), rel=0.02)


def test_the_kinds_of_a_replay_are_those_of_the_account() -> None:
    tables = simulate(PLANS["four ranks"])
    attribution = attribute(tables)
    totals = replay(program_of(tables)).total_ns
    parts = [part for step in attribution.usable for part in step.parts]
    assert totals[Kind.COMM] == sum(part.exposed_comm_ns for part in parts)
    assert totals[Kind.COMPUTE] == sum(part.compute_ns for part in parts)
    assert totals[Kind.DATA] == sum(part.data_wait_ns for part in parts)


def test_units_are_told_by_order_and_size() -> None:
    sizes = ((200_000, 0), (1_000_000, 5 * MS), (3_000_000, 5 * MS), (1_000_000, 5 * MS))
    program = program_of(simulate(Fsdp(units=sizes, micro_batches=2, sync_every=True)))
    step = [c for c in program.collectives() if c.step == program.stretches[0].steps[0]]
    for micro_batch in (0, 1):
        found = {
            role: [c.unit for c in step if c.role == role and c.micro_batch == micro_batch]
            for role in (Role.GATHER_FORWARD, Role.GATHER_BACKWARD, Role.SCATTER)
        }
        assert found == {
            Role.GATHER_FORWARD: [0, 1, 2, 3],
            Role.GATHER_BACKWARD: [3, 2, 1],
            Role.SCATTER: [3, 2, 1, 0],
        }
    assert {c.op for c in step if c.role == Role.OTHER} == {"all_reduce"}


def test_queueing_is_no_transfer() -> None:
    """Three gathers at once: the last ends after the bytes of all, and still took only its own."""
    program = program_of(simulate(Fsdp(prefetch=3, jitter=0.0)))
    transfers = [c.transfer_ns for c in program.collectives() if c.bytes == 4_000_000]
    assert max(transfers) - min(transfers) < 1000
    assert min(transfers) == pytest.approx(3 * MS + 8 * MS, abs=1000)


def test_clocks_that_are_not_tied_are_refused() -> None:
    tables = plain.simulate(plain.Plan(units=0, transfer_ns=400 * MS, hosts=lambda rank: f"host-{rank}"))
    refused = predict(attribute(tables), tables, without_straggler([0]))
    assert refused.refused is not None
    assert "clocks" in refused.refused
    assert refused.gain_ns_per_step == (0, 0, 0)


def test_clocks_that_the_collectives_tie_are_enough() -> None:
    """What was recorded of waits moves to the common clock with the rest."""
    plan = plain.Plan(
        hosts=lambda rank: f"host-{rank}", clock=lambda rank, now: now + 50 * MS * rank + round(20e-6 * rank * now)
    )
    base = base_of(plain.simulate(plan))
    assert base.error < 0.001
    assert base.step_ns == pytest.approx(base_of(plain.simulate(plain.Plan())).step_ns, rel=0.01)


def test_a_missing_rank_is_refused() -> None:
    tables = plain.without_rank(plain.simulate(plain.Plan(ranks=3)), 1)
    assert build(attribute(tables), tables) == Refusal("rank 1 was not recorded, so the waiting for it is unknown")


def test_an_impossible_program_says_who_is_stuck() -> None:
    program = program_of(simulate(Fsdp(steps=3)))
    stretch = program.stretches[0]
    line = stretch.lines[1]
    absent = line.take((line.code != ISSUE) | (line.call != 0))
    broken = replace(program, stretches=(replace(stretch, lines={**stretch.lines, 1: absent}),))
    with pytest.raises(StuckError, match=r"ranks \[1\] never enter"):
        replay(broken)


@pytest.mark.parametrize("shards", [1, 3])
def test_ranks_in_another_order_take_the_same_time(shards: int) -> None:
    """A rank that also enters a collective of its own does not go in lockstep with the others."""
    base = base_of(simulate(Fsdp(ranks=6, steps=5, jitter=0.2)))
    program = base.program
    if shards > 1:  # ranks meet those of their shard, then those that hold the same part of the others
        changed = hybrid_shard(len(program.ranks) // shards)(program, base.costs, Level.SLOW)
        assert isinstance(changed, Mutated)
        program = changed.program
    stretch, line = program.stretches[0], program.stretches[0].lines[3]
    own = Collective(("own", 0, "barrier"), "barrier", "own", 0, "", 0, 0, {3: 0})
    alone = line.with_rows(np.array([0, 0]), np.array([ISSUE, WAIT]), np.full(2, len(stretch.collectives)))
    other = replace(stretch, lines={**stretch.lines, 3: alone}, collectives={**stretch.collectives, own.key: own})
    assert Events.of(stretch, *stretch.laid).alike(stretch)
    assert not Events.of(other, *other.laid).alike(other)
    one, another = replay(program), replay(replace(program, stretches=(other,)))
    assert one.dur_ns.tolist() == another.dur_ns.tolist()
    assert {rank: ends.tolist() for rank, ends in one.end_ns.items()} == {
        rank: ends.tolist() for rank, ends in another.end_ns.items()
    }
    assert one.total_ns == another.total_ns


def test_stretches_that_are_replayed_together_take_as_long_as_each_alone() -> None:
    """All ranks do the same in some of them; in others they meet in groups, or in another order."""
    programs = [base_of(simulate(Fsdp(ranks=6, steps=steps, jitter=0.2))).program for steps in (5, 4, 4)]
    base = base_of(simulate(Fsdp(ranks=6, steps=5, jitter=0.4)))
    for level in (Level.FAST, Level.SLOW):
        changed = hybrid_shard(2)(base.program, base.costs, level)
        assert isinstance(changed, Mutated)
        programs.append(changed.program)
    stretch = programs[1].stretches[0]
    first = {rank: replace(line, ns=line.ns + 7 * line.is_work()) for rank, line in stretch.lines.items()}
    programs.append(replace(programs[1], stretches=(replace(stretch, lines=first),)))
    alone = [replay(program) for program in programs]
    together = replay(replace(base.program, stretches=tuple(p.stretches[0] for p in programs)))
    assert together.dur_ns.tolist() == [ns for each in alone for ns in each.dur_ns.tolist()]
    for rank, ends in together.end_ns.items():
        assert ends.tolist() == [ns for each in alone for ns in each.end_ns[rank].tolist()]
    assert together.total_ns == {kind: sum(each.total_ns.get(kind, 0) for each in alone) for kind in together.total_ns}


@pytest.mark.parametrize("longer_ns", [0, 1 << 61])
def test_the_lines_of_all_ranks_together_are_those_of_each_alone(
    longer_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every: list[tuple[Sequence[Pieces], Sequence[Stops], Sequence[Times]]] = []

    def kept(*of_ranks: Any) -> list[Line]:
        every.append(of_ranks)
        return operations(*of_ranks)

    with monkeypatch.context() as patch:
        patch.setitem(vars(sys.modules[operations.__module__]), "operations", kept)
        program_of(simulate(PLANS["many ranks"]))
    (pieces, waited, ends), *_ = every
    assert len(pieces) == 7
    # Times that do not fit on one line: each rank is laid on its own.
    pieces = [of._replace(end_ns=of.end_ns + longer_ns * (of.end_ns == of.end_ns[-1])) for of in pieces]
    ends = [of + longer_ns * (of == of[-1]) for of in ends]
    for line, *of_rank in zip(operations(pieces, waited, ends), pieces, waited, ends, strict=True):
        (alone,) = operations(*([each] for each in of_rank))
        assert line.rows() == alone.rows()


def test_of_a_long_run_stretches_over_all_of_it_are_replayed() -> None:
    """A rank is slow in the last quarter: so it is in a quarter of the replayed steps."""
    steps = 2 * REPLAY.most_replayed_steps
    plan = Fsdp(
        steps=steps,
        units=((1_000_000, 0), (1_000_000, 10 * MS)),
        slow=lambda step, rank: 40 * MS * (rank == 1 and step >= 0.75 * steps),
    )
    base = base_of(simulate(plan))
    replayed = [step for stretch in base.program.stretches for step in stretch.steps]
    assert 0 <= REPLAY.most_replayed_steps - len(replayed) < REPLAY.steps_of_stretch
    assert min(replayed) < 0.1 * steps
    assert max(replayed) > 0.9 * steps
    assert sum(step >= 0.75 * steps for step in replayed) == pytest.approx(len(replayed) / 4, rel=0.1)
    assert base.error == 0.0
    low, likely, high = gain(base, without_straggler([1])).gain_ns_per_step
    assert likely == pytest.approx(10 * MS, rel=0.1)
    assert low < 10 * MS < high


def test_no_gain_is_larger_than_the_work_that_is_left_allows() -> None:
    """A fault that takes nearly all of the step: without it, the other ranks' work remains, whatever is uncertain."""
    plan = Fsdp(units=((1_000_000, 0), (1_000_000, 10 * MS)), slow=lambda step, rank: 400 * MS * (rank == 1))
    base = base_of(simulate(plan))
    mutation = without_straggler([1])
    found = gain(base, mutation)
    left = replay(mutation(base.program, base.costs, Level.LIKELY).program).least_ns.mean()
    assert 10 * MS <= left < base.step_ns / 10
    for low, likely, high in (found.gain_ns_per_step, found.expected_ns_per_step):
        assert low < likely <= high <= base.step_ns - 0.9 * left


def test_a_replay_that_misses_the_steps_is_refused() -> None:
    base = base_of(simulate(Fsdp()))
    assert gain(replace(base, error=0.051), more_bandwidth(2)).refused is not None
    assert gain(replace(base, error=0.049), more_bandwidth(2)).refused is None


def test_removing_nothing_gains_nothing() -> None:
    base = base_of(simulate(PLANS["four ranks"]))
    same = gain(base, lambda program, costs, level: Mutated(program, ("nothing changes",)))
    assert same == Prediction((0, 0, 0), base.step_ns, 0.0, ("nothing changes",))


def test_a_program_without_a_wait_may_run_ahead() -> None:
    """Nobody needs the last result: the step ends without it, not with it."""
    program = program_of(simulate(Fsdp(steps=3)))
    stretch = program.stretches[0]
    free = stretch.with_lines({rank: line.take(line.code != WAIT) for rank, line in stretch.lines.items()})
    replayed = replay(replace(program, stretches=(free,)))
    assert replayed.total_ns[Kind.COMM] == 0
    assert replayed.mean_ns < measured_durations(program).mean()


some = settings(max_examples=12, deadline=None, derandomize=True, database=None)
plans = st.builds(
    Fsdp,
    ranks=st.integers(2, 4),
    steps=st.just(6),
    prefetch=st.integers(0, 3),
    latency_ns=st.integers(0, 10 * MS),
    ns_per_byte=st.floats(0.1, 10),
    keep_gathered=st.booleans(),
    micro_batches=st.integers(1, 2),
    jitter=st.floats(0, 0.3),
    seed=st.integers(0, 100),
)


@some
@given(plans)
def test_any_run_is_replayed_exactly(plan: Fsdp) -> None:
    program = program_of(simulate(plan))
    assert replay_error(program, replay(program)) < 1e-6


@some
@given(plans, st.floats(1, 20), st.floats(1, 4), st.sampled_from(Level))
def test_more_bandwidth_never_makes_a_run_longer(plan: Fsdp, factor: float, more: float, level: Level) -> None:
    program = program_of(simulate(plan))
    costs = fit(program)
    before = replay(program).dur_ns.sum()
    for times in (factor, factor * more):
        changed = more_bandwidth(times)(program, costs, level)
        assert isinstance(changed, Mutated)
        after = replay(changed.program).dur_ns.sum()
        assert after <= before + len(program.collectives())  # a nanosecond of rounding each
        before = after


@some
@given(plans, st.permutations(range(4)))
def test_the_numbers_of_the_ranks_do_not_matter(plan: Fsdp, order: list[int]) -> None:
    tables = simulate(plan)
    names = {rank: place for place, rank in enumerate(sorted(tables.ranks, key=lambda rank: order[rank]))}
    ranks = {new: replace(tables.ranks[old], rank=new) for old, new in names.items()}
    renamed = replace(tables, ranks=dict(sorted(ranks.items())))
    first, second = base_of(tables), base_of(renamed)
    assert first.replayed.dur_ns.tolist() == second.replayed.dur_ns.tolist()
    assert gain(first, more_bandwidth(3)) == gain(second, more_bandwidth(3))

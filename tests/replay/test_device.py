"""A GPU's compute stream as the main line: nothing records the waits there, exposed communication shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diag.api import open_run
from diag.model.accounts import Attribution, StepAccount
from diag.model.steps import CollectiveCall, CriticalPath, Detail, Kind, RankStep, Segments
from diag.replay.costs import Level, fit
from diag.replay.mutations import more_bandwidth
from diag.replay.predict import Baseline, baseline, build
from diag.replay.program import Collective, Mutated, Program, replay, replay_error, with_collectives
from diag.rundir.tables import RankTables, Tables
from tests.copies import replace
from tests.diagnoses.test_invariance import Plan, write

MS = 1_000_000
FORWARD = (Kind.COMPUTE, Detail.FORWARD)
COMM = (Kind.COMM, Detail.NONE)

# One step in ms: what the compute stream does, and the collectives beside it. The second gather is hidden behind the
# first unit; the third is not quite, and the reduction was queued behind it.
PIECES = [(0, 4, *COMM), (4, 14, *FORWARD), (14, 24, *FORWARD), (24, 27, *COMM), (27, 40, *FORWARD)]
CALLS = [("all_gather", 0, 4), ("all_gather", 4.1, 10), ("all_gather", 14, 27), ("reduce_scatter", 27.005, 35)]


def account(late_ms: float) -> tuple[Attribution, Tables]:
    """Two ranks, two steps; the second rank enters every collective later, and then has less to wait."""
    steps, rank_steps = [], []
    for step in range(2):
        for rank in range(2):
            rank_steps.append(_rank_step(step, rank, late_ms * rank))
        nothing = np.zeros(0, dtype=np.int64)
        path = CriticalPath(*(nothing,) * 6, ())
        steps.append(StepAccount(step, 40 * MS, (), path, ()))
    attribution = Attribution(
        steps=tuple(steps),
        ranks=(0, 1),
        clock_uncertainty_ns=0,
        aligned=True,
        comm_known=True,
        collectives=(),
        rank_steps=tuple(rank_steps),
    )
    return attribution, _device_tables()


def _device_tables() -> Tables:
    from diag.collectors.records import RankRecord

    ranks = {
        rank: RankTables(rank, RankRecord(rank, rank, 2, "host", 1, "boot", 0, 0, "NVIDIA H100")) for rank in (0, 1)
    }
    return Tables(Path("made"), None, None, ranks, ())


def _rank_step(step: int, rank: int, late_ms: float) -> RankStep:
    base = 100 * MS + step * 40 * MS
    start, end = (np.array([base + round(p[i] * MS) for p in PIECES], dtype=np.int64) for i in (0, 1))
    kind, detail = (np.array([p[i] for p in PIECES], dtype=np.int8) for i in (2, 3))
    calls = tuple(
        CollectiveCall(
            ("0", 10 * step + number, op),
            op,
            "0",
            (0, 1),
            1_000_000 * (number + 1),
            base + round((begin + late_ms * (number in (0, 2))) * MS),
            base + round(done * MS),
            dtype="Float",
            group_size=2,
        )
        for number, (op, begin, done) in enumerate(CALLS)
    )
    return RankStep(
        rank, step, base, base + 40 * MS, "trace", Segments(start, end, kind, detail), 0, 0, calls, comm_known=True
    )


def program() -> Program:
    found = build(*account(late_ms=0.5))
    assert isinstance(found, Program)
    return found


def test_exposed_and_hidden_collectives_are_replayed_exactly() -> None:
    replayed = replay(program())
    assert replayed.dur_ns.tolist() == [40 * MS, 40 * MS]
    assert replayed.total_ns[Kind.COMM] == 2 * 2 * 7 * MS


def test_a_kernel_queued_behind_another_took_only_its_own_time() -> None:
    transfers = {c.key[1]: c.transfer_ns for c in program().collectives()}
    assert transfers[3] == 8 * MS  # from the gather's end, when the wire was free
    assert transfers[2] == pytest.approx(12.5 * MS)  # from the later rank's arrival


def test_a_faster_wire_takes_off_what_is_exposed() -> None:
    base = program()
    changed = more_bandwidth(1e9)(base, fit(base), Level.FAST)
    assert isinstance(changed, Mutated)
    replayed = replay(changed.program)
    assert replayed.total_ns[Kind.COMM] < 2 * 2 * MS
    assert (replayed.dur_ns < 35 * MS).all()


def test_a_slower_wire_holds_up_who_needs_a_hidden_gather() -> None:
    """The second unit's parameters come 24 ms later than they did, 20 after they are needed."""

    def slower(collective: Collective) -> Collective:
        if collective.key[1] % 10 != 1:
            return collective
        return replace(collective, transfer_ns=collective.transfer_ns + 24 * MS)

    replayed = replay(with_collectives(program(), slower))
    assert replayed.dur_ns.tolist() == pytest.approx([60 * MS, 60 * MS], abs=MS)


def test_traces_of_gpus_are_replayed(tmp_path: Path) -> None:
    plan = Plan(
        compute=tuple((20 * MS, 50 * MS, 20 * MS + step * MS) for step in range(5)),
        data=(MS, MS, 2 * MS),
        transfer=10 * MS,
        hosts=("node-a",) * 3,
    )
    write(plan, tmp_path)
    result = open_run(tmp_path)
    found = baseline(result.attribution, result.tables)
    assert isinstance(found, Baseline)
    assert len(found.program.collectives()) >= 2 * 3
    assert replay_error(found.program, found.replayed) < 0.001

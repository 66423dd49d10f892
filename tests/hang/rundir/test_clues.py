"""Run directories of hung and crashed trainings, written by hand, and the class and rank that they must be read as."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import (
    CHECKPOINT,
    CRASH,
    EVALUATION,
    FAILED,
    HANG,
    Asked,
    CollectiveLine,
    CollectiveRow,
    Heartbeat,
    RankExit,
    RankRecord,
)
from diag.ended.model import Clue
from diag.ended.rundir import clues_of, read_runs

# A step of FSDP2 on two units: (operation, bytes).
STEP = (("all_gather", 400), ("all_gather", 900), ("reduce_scatter", 900), ("reduce_scatter", 400), ("all_reduce", 4))
LOGGED = (("all_gather", 8), ("all_gather", 8))  # before a step, by a trainer that logs every few steps
DONE = 3  # whole steps before the one that goes wrong
Calls = Sequence[tuple[str, int]]


def clues_of_runs(paths: Sequence[str]) -> list[Clue]:
    return [clue for run in read_runs(paths) for clue in clues_of(run)]


@dataclass
class Told:
    """A rank's end. ``calls`` of the last step: None where it left no record of them."""

    calls: Calls | None = None
    phase: str = "backward"
    answered: int = 1
    waits: bool = True
    exit_code: int | None = None
    first: bool = False
    error: str = ""
    log: str = ""
    failed_in: str = ""
    done: bool = False
    written: int = DONE  # of the whole steps: later ones are lost with its process
    logs_in: frozenset[int] = frozenset()  # steps in which it first gathers two numbers


def rows(step: int, calls: Calls, waits: bool) -> list[CollectiveRow]:
    """The calls of a step; the last one waits, or all have ended."""
    found = []
    for place, (op, size) in enumerate(calls):
        end_ns = None if waits and place == len(calls) - 1 else 1
        found.append(CollectiveRow("0", step * len(STEP) + place, op, size, "float32", 0, end_ns, 0, 0))
    return found


def clues(folder: Path, told: Mapping[int, Told], why: str | None = HANG, before: int = DONE) -> list[Clue]:
    layout = RunLayout(folder / "run")
    update_manifest(layout, world_size=len(told))
    if why is not None:
        layout.asked.write_bytes(encode(Asked(1, why, 1)))
    exits = [RankExit(rank, one.exit_code, one.first) for rank, one in told.items() if one.exit_code is not None]
    if exits:
        layout.exits.write_bytes(encode(exits))
    for rank, one in told.items():
        files = layout.rank(rank)
        files.folder.mkdir(parents=True)
        files.identity.write_bytes(
            encode(RankRecord(rank, rank, len(told), "node1.cluster", 100 + rank, "", 0, 0, "cpu"))
        )
        lines = [
            CollectiveLine(
                step,
                rows(step, (*LOGGED, *STEP) if step in one.logs_in else STEP, False),
                {"0": [*told]} if not step else {},
            )
            for step in range(min(before, one.written))
        ]
        files.collectives.write_bytes(b"".join(map(encode, lines)))
        files.log.write_text(one.log)
        if one.error:
            files.error.write_text(json.dumps({"message": {"message": one.error}}))
        called = rows(before, one.calls or (), one.waits)
        last = called[-1].seq if called else before * len(STEP) - 1
        beat = Heartbeat(
            unix_ns=0,
            monotonic_ns=9_000_000_000,
            step=before,
            phase=one.phase,
            steps=before,
            phase_since_ns=1_000_000_000,
            last_started={"0": last},
            last_finished={"0": last - 1 if one.waits and called else last},
            done=one.done,
            answered=one.answered,
            groups={"0": [*told]},
            calls=called,
            failed_in=one.failed_in,
        )
        files.heartbeat.write_bytes(encode(beat))
    return clues_of_runs([str(layout.root)])


def answer(found: list[Clue]) -> tuple[str, list[int | None], tuple[int, ...]]:
    (clue,) = found
    assert all(culprit.host == "node1" for culprit in clue.culprits)
    assert clue.evidence
    return clue.fault_class, [culprit.rank for culprit in clue.culprits], clue.victims


@pytest.mark.parametrize(
    ("phase", "fault_class"),
    [("data", "missing_rank"), (CHECKPOINT, "slow_rank_checkpoint"), (EVALUATION, "slow_rank_eval")],
)
def test_the_rank_that_is_elsewhere(tmp_path: Path, phase: str, fault_class: str) -> None:
    waiting = Told(STEP[:1], "forward")
    found = clues(tmp_path, {0: waiting, 1: Told((), phase), 2: waiting})
    assert answer(found) == (fault_class, [1], (0, 2))
    assert (
        found[0].note
        == f"Rank 1 is in its {phase} phase, for 8 s, and in no collective; ranks 0, 2 wait in collective #15"
    )


def test_a_process_that_does_not_answer(tmp_path: Path) -> None:
    found = clues(tmp_path, {0: Told(STEP[:2]), 1: Told(STEP[:1], answered=0)})
    assert answer(found) == ("missing_rank", [1], (0,))
    assert "did not answer" in found[0].note


def test_a_rank_that_left_early(tmp_path: Path) -> None:
    assert answer(clues(tmp_path, {0: Told(STEP[:1]), 1: Told((), "done", answered=0, done=True)}))[:2] == (
        "missing_rank",
        [1],
    )


def test_ranks_whose_collective_timed_out_had_waited(tmp_path: Path) -> None:
    victim = Told(
        STEP[:3],
        f"{FAILED}RuntimeError",
        error="RuntimeError: Timed out waiting 8000ms",
        failed_in="backward",
        exit_code=1,
        first=True,
    )
    found = clues(tmp_path, {0: victim, 1: Told(STEP[:2], "backward", waits=False, exit_code=-15)})
    assert answer(found) == ("missing_rank", [1], (0,))


def test_everybody_in_the_same_collective_says_nothing(tmp_path: Path) -> None:
    assert clues(tmp_path, {0: Told(STEP[:3]), 1: Told(STEP[:3])}) == []


def test_without_a_request_heartbeats_are_too_old_to_compare(tmp_path: Path) -> None:
    assert clues(tmp_path, {0: Told(STEP[:1]), 1: Told((), "data")}, why=None) == []


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("calls", "fault_class"),
    [
        (STEP[:2] + STEP[3:], "desync"),  # left out one
        ((*STEP[:2], ("reduce_scatter", 450)), "mismatch_shape"),
        ((*STEP[:2], ("broadcast", 900)), "mismatch_op"),
    ],
)
def test_calls_that_differ(tmp_path: Path, calls: Calls, fault_class: str, ranks: int) -> None:
    """Also of two: the one that called something else in its step before."""
    told = {rank: Told(STEP[:3]) for rank in range(ranks)} | {1: Told(calls)}
    found = clues(tmp_path, told)
    assert answer(found) == (fault_class, [1], tuple(rank for rank in told if rank != 1))
    assert found[0].note.startswith("Rank 1 ")


@pytest.mark.parametrize("logs_in", [{0}, {1}, {2}, {0, 2}], ids=str)
def test_steps_that_log_accuse_nobody(tmp_path: Path, logs_in: set[int]) -> None:
    """Of two ranks one was stopped, and what it had not written is lost. The other one's steps are not all alike."""
    told = {0: Told(STEP[:3], logs_in=frozenset(logs_in)), 1: Told(None, answered=0, written=1)}
    found = clues(tmp_path, told)
    assert answer(found) == ("missing_rank", [1], (0,))


def test_of_two_a_process_that_is_there_and_silent_is_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first step that logs, no step before shows that it is usual."""
    told = {0: Told((*LOGGED, *STEP[:3])), 1: Told(None, answered=0, written=1)}
    of_another_host = clues(tmp_path / "elsewhere", told)
    assert {clue.fault_class for clue in of_another_host} == {"mismatch_shape", "missing_rank"}
    monkeypatch.setattr("diag.ended.read.process_runs", lambda identity, unix_ns: True)
    assert answer(clues(tmp_path / "here", told)) == ("missing_rank", [1], (0,))


def test_of_two_without_a_step_before_both_are_named(tmp_path: Path) -> None:
    found = clues(tmp_path, {0: Told(STEP[:1]), 1: Told((("all_gather", 200),))}, before=0)
    assert answer(found) == ("mismatch_shape", [0, 1], ())
    assert "it is unknown which" in found[0].note


@pytest.mark.parametrize(("expected", "fault_class"), [(100, "desync"), (4, "desync"), (112, "mismatch_shape")])
def test_gloo_aborted_the_one_that_expected_less(tmp_path: Path, expected: int, fault_class: str) -> None:
    """It left no record of its step. 900 bytes arrive in segments of 225; what it expected is of another call, or of
    none."""
    log = f"terminate called ... op.preamble.length <= op.nbytes. 225 vs {expected}. Received data size doesn't match"
    told = {0: Told(STEP[:3]), 1: Told(None, log=log, exit_code=-6, first=True), 2: Told(STEP[:3], exit_code=-15)}
    assert answer(clues(tmp_path, told, CRASH)) == (fault_class, [1], (0, 2))


def test_gloo_aborted_a_victim(tmp_path: Path) -> None:
    """Rank 2's tensor is too long; rank 1, which receives it, is in the right call."""
    log = "op.preamble.length <= op.nbytes. 450 vs 225."
    told = {
        0: Told(STEP[:3]),
        1: Told(None, log=log, exit_code=-6, first=True),
        2: Told((*STEP[:2], ("reduce_scatter", 1800))),
    }
    fault_class, culprits, _ = answer(clues(tmp_path, told, CRASH))
    assert (fault_class, culprits) == ("mismatch_shape", [2])


@pytest.mark.parametrize(
    ("code", "fault_class"),
    [
        (-9, "rank_killed_sigkill"),
        (-7, "rank_killed_sigbus"),
        (-11, "rank_killed_sigsegv"),
        (-6, "rank_killed_exception"),
    ],
)
def test_a_rank_that_a_signal_ended(tmp_path: Path, code: int, fault_class: str) -> None:
    told = {0: Told(exit_code=1, error="RuntimeError: Connection closed by peer"), 1: Told(exit_code=code, first=True)}
    assert answer(clues(tmp_path, told, CRASH)) == (fault_class, [1], (0,))


def test_a_rank_that_raised_and_one_that_lost_it(tmp_path: Path) -> None:
    told = {
        0: Told(exit_code=1, first=True, error="RuntimeError: Connection closed by peer [127.0.0.1]:4711"),
        1: Told(exit_code=3, first=True, error="ValueError: no such file"),
    }
    found = clues(tmp_path, told, CRASH)
    assert answer(found)[:2] == ("rank_killed_exception", [1])
    assert "It raised ValueError: no such file" in found[0].note


def test_ranks_that_torchrun_ended_are_no_causes(tmp_path: Path) -> None:
    (clue,) = clues(tmp_path, {0: Told(exit_code=-15), 1: Told(exit_code=-15, first=True)}, CRASH)
    assert (clue.fault_class, clue.culprits, clue.victims) == ("job_cancelled", (), ())


@pytest.mark.parametrize("name", ["heartbeat.json", "rank.json", "error.json", "collectives.jsonl", "log.txt"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b"[]", b"{}", b'{"calls": [1, [2]], "step": "x"}', b"[" * 5000])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, name: str, content: bytes) -> None:
    layout = RunLayout(tmp_path / "run")
    assert clues(tmp_path, {0: Told(STEP[:1]), 1: Told((), "data"), 2: Told(STEP[:1])})
    (layout.rank(2).folder / name).write_bytes(content)
    found = clues_of_runs([str(layout.root)])
    assert [culprit.rank for clue in found for culprit in clue.culprits][:1] == [1]


def test_damaged_files_of_the_run(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    clues(tmp_path, {0: Told(exit_code=-9, first=True), 1: Told(exit_code=-15)}, CRASH)
    for content in (b"", b"{", b'[{"rank": "x"}, 3]', b'{"a": 1}'):
        layout.exits.write_bytes(content)
        layout.asked.write_bytes(content)
        assert clues_of_runs([str(layout.root), "-", str(tmp_path / "none")]) == []

"""However a run ends, ``diag run``, ``diag analyze`` and ``diag triage`` give one account of it, and what they point to
exists."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import open_run
from diag.cli.run import say_end
from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.records import CRASH, FAILED, HANG, Asked, Heartbeat, RankExit, RankRecord
from diag.hang.api import triage
from diag.hang.classes import CLASSES
from diag.show.text import print_report
from diag.show.triage import print_triage, to_json
from diag.watch.launch import Outcome
from tests.app.runs import write_run
from tests.command import diag

OLD_S = 100  # of the last heartbeats
NEVER_A_PROCESS = 1 << 22
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5862"
WORKER = "RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed. "


@dataclass
class Ended:
    """How a rank ended. ``code``: in exits.json; ``error``: in error.json; ``raised``: the type in its last heartbeat.
    ``calls``: whether it called collectives."""

    code: int | None = None
    first: bool = False
    error: str = ""
    raised: str = ""
    done: bool = False
    waits: bool = False
    age_s: float = OLD_S
    phase: str = "backward"
    answered: int = 1
    logged: bool = False  # the exception


@dataclass
class Case:
    """``exit_code`` and ``signal``: of the launcher; ``says`` and ``not_said``: texts of the headline. ``hung``: the
    ranks that diag ended as hung."""

    ranks: tuple[Ended, ...]
    exit_code: int | None
    fault_class: str
    blamed: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    signal: str = ""
    asked: str = ""
    backend: str | None = "gloo"
    victims: tuple[int, ...] = ()
    not_said: tuple[str, ...] = field(default=())
    hung: tuple[int, ...] = ()


DONE = Ended(done=True)
TOLD = Ended(-15)  # by the launcher
BUG = Ended(1, True, "ValueError: boom", "ValueError")
ALONE = ("others", "waited", "while")
VICTIM = Ended(1, False, LOST, "RuntimeError")
KILLED_WITH_IT = Ended(1, False, WORKER.replace("Killed", "Terminated"), "RuntimeError", age_s=0.2 * OLD_S, logged=True)

CASES = {
    "finished": Case((DONE, DONE), 0, "healthy", says=("all 2 ranks reached the end",)),
    "one raised": Case(
        (TOLD, BUG), 1, "rank_killed_exception", (1,), ("ValueError: boom", "while rank 0 was still running"),
        victims=(0,),
    ),
    "one of four raised": Case(
        (TOLD, TOLD, BUG, VICTIM), 1, "rank_killed_exception", (2,), ("while the others were still",), victims=(0, 1, 3)
    ),
    "both raised": Case((BUG, BUG), 1, "rank_killed_exception", (0, 1), ("raised ValueError: boom",), not_said=ALONE),
    "the only rank raised": Case((BUG,), 1, "rank_killed_exception", (0,), ("ValueError: boom",), not_said=ALONE),
    "the only rank left": Case(
        (Ended(3, True),), 3, "rank_killed_exception", (0,), ("exit code 3", "recorded no exception"), not_said=ALONE
    ),
    "the only rank was killed": Case(
        (Ended(-9, True),), 137, "rank_killed_sigkill", (0,), ("SIGKILL",), not_said=ALONE
    ),
    "an exception that the log does not show": Case(
        (TOLD, replace(BUG, error="")), 1, "rank_killed_exception", (1,), ("raised ValueError",), victims=(0,)
    ),
    "one was killed": Case((TOLD, Ended(-9, True)), 137, "rank_killed_sigkill", (1,), ("SIGKILL",), victims=(0,)),
    "all were killed at once": Case(
        (Ended(-9, True), Ended(-9, True)), 137, "rank_killed_sigkill", (0, 1), ("Ranks 0, 1", "ended by SIGKILL"),
        not_said=ALONE,
    ),
    "all were killed and none is known to be first": Case(
        (Ended(-9), Ended(-9)), 137, "undetermined", (), ("Ranks 0, 1: ended by SIGKILL",)
    ),
    "one was killed and its parent ignores it": Case(
        (VICTIM, Ended(-9, True)), 0, "rank_killed_sigkill", (1,), ("SIGKILL",), victims=(0,)
    ),
    "one is gone and its parent ignores it": Case(
        (DONE, Ended()), 0, "rank_killed_sigkill", (1,), ("disappeared", "the launcher ignored it"), not_said=ALONE
    ),
    "one is gone and nobody recorded the end": Case(
        (replace(VICTIM, code=None), Ended(age_s=2 * OLD_S)), None, "rank_killed_sigkill", (1,), ("disappeared",),
        victims=(0,),
    ),
    "all are gone": Case((Ended(), Ended()), None, "rank_killed_sigkill", (), ("All 2 ranks disappeared",)),
    "the launcher was asked to stop": Case(
        (Ended(), Ended()), 143, "job_cancelled", (), ("asked to stop (SIGTERM)", "no rank is at fault"), "SIGTERM"
    ),
    "all were asked to stop": Case(
        (Ended(-15, True), Ended(-15)), 143, "job_cancelled", (), ("asked to stop (SIGTERM)", "rank 0 ended first")
    ),
    "the only rank was asked to stop": Case(
        (Ended(-15, True),), 143, "job_cancelled", (), ("SIGTERM",), not_said=ALONE
    ),
    "handlers of SIGTERM": Case((Ended(143, True), Ended(143)), 143, "job_cancelled", (), ("SIGTERM",)),
    "the time limit": Case(
        (Ended(-10, True), Ended(-10, True)), 138, "job_cancelled", (), ("ended by SIGUSR1 after step 11. Schedulers",)
    ),
    "one was asked to stop": Case(
        (VICTIM, Ended(-15, True)), 143, "job_cancelled", (1,), ("Rank 1 was asked to stop (SIGTERM)",), victims=(0,)
    ),
    "Ctrl-C": Case(
        (Ended(raised="KeyboardInterrupt", error="KeyboardInterrupt: "),) * 2, 130, "job_cancelled", (),
        ("interrupted (SIGINT",), "SIGINT",
    ),
    "one was interrupted": Case(
        (TOLD, Ended(-2, True, "KeyboardInterrupt: ", "KeyboardInterrupt")), 130, "job_cancelled", (1,),
        ("Rank 1 was interrupted (SIGINT",), victims=(0,),
    ),
    "one was interrupted and exits by itself": Case(
        (TOLD, Ended(1, True, "KeyboardInterrupt: ", "KeyboardInterrupt")), 1, "job_cancelled", (1,),
        ("Rank 1 was interrupted (SIGINT",), victims=(0,),
    ),
    "a failure before Ctrl-C": Case(
        (Ended(), replace(BUG, code=None)), 130, "rank_killed_exception", (1,), ("ValueError: boom",), "SIGINT",
        victims=(0,),
    ),
    "out of memory": Case(
        (TOLD, Ended(1, True, OOM, "OutOfMemoryError")), 1, "cuda_oom", (1,), ("memory",),
        victims=(0,),
    ),
    "a worker of the loader was killed": Case(
        (TOLD, Ended(1, True, WORKER, "RuntimeError")), 1, "rank_killed_sigkill", (1,),
        ("lost a DataLoader worker (pid 41)", "memory"), victims=(0,), not_said=(".,",),
    ),
    "hung and ended": Case(
        (Ended(-15, waits=True), Ended(-15, phase="data")), 5, "missing_rank", (1,), ("in its data phase",), asked=HANG,
        victims=(0,),
    ),
    "hung and ended under a launcher that tells no exit codes": Case(
        (Ended(waits=True), Ended(phase="data")), 5, "missing_rank", (1,), ("in its data phase",), asked=HANG,
        victims=(0,), hung=(0, 1),
    ),
    "hung and ended while both waited": Case(
        (Ended(-15, waits=True), Ended(-15, waits=True)), 5, "undetermined", (), ("ended by diag",), asked=HANG,
        hung=(0, 1),
    ),
    "hung, and a worker of the loader was killed with its rank": Case(
        (replace(KILLED_WITH_IT, waits=True), Ended(-15, phase="data")), 5, "missing_rank", (1,),
        ("in its data phase",), asked=HANG, victims=(0,), hung=(0, 1), not_said=("DataLoader",),
    ),
    "hung without a worker of the loader, which was killed with its rank": Case(
        (Ended(waits=True), replace(KILLED_WITH_IT, phase="data")), 5, "missing_rank", (1,), ("in its data phase",),
        asked=HANG, victims=(0,), hung=(0, 1), not_said=("DataLoader worker",),
    ),
    "hung because one had raised and stayed": Case(
        (Ended(waits=True), replace(BUG, code=-9, first=False, age_s=2 * OLD_S)), 5, "rank_killed_exception", (1,),
        ("raised ValueError: boom",), asked=HANG, victims=(0,), hung=(0, 1),
    ),
    "hung because one was gone": Case(
        (Ended(waits=True), Ended(answered=0, age_s=2 * OLD_S)), 5, "rank_killed_sigkill", (1,), ("disappeared",),
        asked=HANG, victims=(0,), hung=(0,),
    ),
    "one aborted, and a launcher that tells no exit code ended the other": Case(
        (Ended(), Ended(-6, True)), 134, "rank_killed_exception", (1,), ("SIGABRT", "while rank 0 was still running"),
        victims=(0,),
    ),
    "one left early": Case(
        (replace(VICTIM, first=True), DONE), 1, "missing_rank", (1,), ("Rank 1 ended its training without an error",),
        victims=(0,),
    ),
    "one left with exit code 0": Case(
        (VICTIM, Ended(0, True)), 1, "missing_rank", (1,), ("Rank 1 ended its training without an error",), victims=(0,)
    ),
    "the launcher ended all others of one that is done": Case((TOLD, DONE), 1, "undetermined"),
    "only victims": Case((VICTIM, VICTIM), 1, "undetermined", (), ("Connection closed by peer",)),
}  # fmt: skip


def made(folder: Path, case: Case) -> RunLayout:
    run = write_run(folder / "run", ranks=len(case.ranks))
    layout, now_ns = RunLayout(run), time.time_ns()
    manifest = json.loads(layout.manifest.read_text())
    ended_by = {"signal": case.signal, "unix_ns": now_ns - 10**9} if case.signal else {}
    changed = {"exit_code": case.exit_code, "ended_by": ended_by, "backend": case.backend}
    if case.hung:
        ended_ns = now_ns - int(1.5 * OLD_S * 1e9)
        changed["hang"] = {"ended_by_diag": True, "ended": list(case.hung), "unix_ns": ended_ns}
    layout.manifest.write_text(json.dumps({**manifest, **changed}))
    if case.asked:
        layout.asked.write_bytes(encode(Asked(1, case.asked, 1)))
    ends = [RankExit(rank, one.code, one.first) for rank, one in enumerate(case.ranks) if one.code is not None]
    if ends:
        layout.exits.write_bytes(encode(ends))
    for rank, one in enumerate(case.ranks):
        write_rank(layout, rank, one, now_ns, len(case.ranks))
    for path in [run, *run.rglob("*")]:
        os.utime(path, (1_000_000, 1_000_000))  # nothing is written any more
    return layout


def write_rank(layout: RunLayout, rank: int, one: Ended, now_ns: int, ranks: int) -> None:
    files, beat_ns = layout.rank(rank), now_ns - int(one.age_s * 1e9)
    identity = RankRecord(rank, rank, ranks, socket.gethostname(), NEVER_A_PROCESS + rank, "boot", 1, 1, "cpu")
    files.identity.write_bytes(encode(identity))
    phase = "done" if one.done else f"{FAILED}{one.raised}" if one.raised else one.phase
    called = {"0": 12} if ranks > 1 else {}
    finished = {"0": 11 if one.waits else 12} if ranks > 1 else {}
    last = Heartbeat(
        beat_ns, beat_ns, 11, phase, called, finished, done=one.done, steps=12, phase_since_ns=beat_ns - 10**9,
        answered=one.answered, failed_in=one.phase if one.raised else "", groups={"0": list(range(ranks))},
    )  # fmt: skip
    files.heartbeat.write_bytes(encode(last))
    if one.error:
        text = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{one.error}\n'
        extra = {"py_callstack": text, "timestamp": "1000"}
        files.error.write_text(json.dumps({"message": {"message": one.error, "extraInfo": extra}}))
        if one.logged:
            files.log.write_text(text)


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_account_is_one(tmp_path: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    layout = made(tmp_path, case)
    answer = triage([str(layout.root)])
    assert answer.fault_class == case.fault_class
    assert [culprit.rank for culprit in answer.culprits] == list(case.blamed)
    assert answer.victims == case.victims or answer.fault_class == "undetermined"
    assert [text for text in case.says if text not in answer.headline] == []
    steps = " ".join(answer.next_steps)
    assert [text for text in case.not_said if text in f"{answer.headline} {steps}"] == []
    assert not re.search("NCCL_|TORCH_FR", steps), "the backend is gloo"

    screen = StringIO()
    print_triage(answer, Console(width=400, file=screen))
    assert plain(answer.headline) in plain(screen.getvalue())
    assert json.loads(to_json(answer))["verdict"]["headline"] == plain(answer.headline)

    by_records = open_run(layout.root).outcome
    say_end(layout, Outcome(case.exit_code or 0, "reason"), collect=True)
    ending = plain(capsys.readouterr().err)
    result = open_run(layout.root)
    report = StringIO()
    print_report(result, Console(width=400, file=report))
    if case.fault_class == "healthy":
        assert by_records is result.outcome is None
        assert answer.headline not in ending
        return
    assert result.outcome is not None
    assert by_records is not None
    assert (by_records.cause, by_records.ranks) == (result.outcome.cause, result.outcome.ranks)
    assert abs(by_records.confidence - result.outcome.confidence) <= 0.05
    assert answer.headline.rstrip(".") in result.outcome.headline
    assert result.outcome.ranks == case.blamed
    assert (result.outcome.cause == "") != CLASSES[answer.fault_class].names_a_cause
    assert plain(answer.headline).rstrip(".") in plain(report.getvalue())
    assert plain(answer.headline) in ending
    assert [line.path for line in answer.evidence if not Path(line.path).exists()] == []
    pointers = re.findall(r"diag (analyze|triage|dashboard) (\S+)", f"{report.getvalue()} {ending} {steps}")
    assert pointers
    assert [path for _, path in pointers if not Path(path.strip("`.")).exists()] == []


def test_what_is_pointed_to_ends_well(tmp_path: Path) -> None:
    layout = made(tmp_path, CASES["the launcher was asked to stop"])
    report = diag("analyze", layout.root)
    assert "asked to stop (SIGTERM)" in plain(report.stdout)
    command = re.search(r"diag (triage) (\S+)", plain(report.stdout))
    assert command is not None
    ended = diag(*command.groups())
    assert ended.returncode == 0, ended.stderr
    assert "asked to stop (SIGTERM)" in plain(ended.stdout)


def test_a_run_without_a_step_says_how_it_ended(tmp_path: Path) -> None:
    layout = made(tmp_path, CASES["one raised"])
    for rank in (0, 1):
        layout.rank(rank).steps.unlink()
        layout.rank(rank).collectives.unlink()
    ended = diag("analyze", layout.root)
    assert ended.returncode == 1
    text = plain(ended.stderr)
    assert "The training failed (exit code 1). Rank 1" in text
    assert "raised ValueError: boom" in text
    assert text.count("recorded no step") == 1
    assert f"diag triage {layout.root}" in plain(ended.stderr).replace(" ", "") or "diag triage" in ended.stderr


def test_a_run_without_a_step_names_its_newest_restart(tmp_path: Path) -> None:
    layout = made(tmp_path, CASES["one raised"])
    for rank in (0, 1):
        layout.rank(rank).steps.unlink()
        layout.rank(rank).collectives.unlink()
    for number in (1, 2):
        layout.restart(number).root.mkdir()
    for command in ("analyze", "history"):
        ended = diag(command, layout.root)
        assert ended.returncode == 1
        text = " ".join(plain(ended.stderr).split())
        assert f"{layout.restart(2).root} is the newest restart, a run of its own; diag triage" in text
        assert "not analysed here" not in text, "the hint says it"


def test_a_run_of_which_nothing_but_the_manifest_is_left(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.manifest.write_text('{"exit_code": 1, "world_size": 2}')
    answer = triage([str(layout.root)])
    assert answer.headline == "No rank left a record; the launcher ended with exit code 1."


def test_a_run_whose_ranks_have_not_joined_may_still_wait(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.manifest.write_text('{"world_size": 2}')
    assert any("While it hangs" in step for step in triage([str(layout.root)]).next_steps)
    layout.manifest.write_text('{"exit_code": 1, "world_size": 2}')
    assert not any("While it hangs" in step for step in triage([str(layout.root)]).next_steps)


@pytest.mark.parametrize(("recorder", "number"), [({}, 12), ({"0": (25, 24)}, 25)], ids=["host", "recorder"])
def test_a_live_run_that_hangs_is_answered_by_its_heartbeats(
    tmp_path: Path, recorder: dict[str, tuple[int, int]], number: int
) -> None:
    """Its evidence has the number that the answer names: the host's, or that of PyTorch's recorder."""
    layout = made(tmp_path, replace(CASES["all are gone"], asked=""))
    now_ns = time.time_ns()
    for rank, (phase, finished) in enumerate((("backward", 11), ("data", 12))):
        files = layout.rank(rank)
        identity = RankRecord(
            rank, rank, 2, socket.gethostname(), (os.getpid(), os.getppid())[rank], "boot", now_ns, now_ns, "cpu"
        )
        files.identity.write_bytes(encode(identity))
        beat = Heartbeat(now_ns, now_ns, 11, phase, {"0": 12}, {"0": finished}, phase_since_ns=now_ns - 300 * 10**9)
        beat.recorder = recorder if rank == 0 else {}
        files.heartbeat.write_bytes(encode(beat))
    answer = triage([str(layout.root)])
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("missing_rank", [1])
    assert f"rank 0 waits in collective #{number}" in answer.headline.replace("\u00a0", " ")
    assert any(f"#{number} of group 0 called" in line.text for line in answer.evidence)


@pytest.mark.parametrize("why", [CRASH, ""])
def test_an_interrupted_rank_left_out_no_collective(tmp_path: Path, why: str) -> None:
    """It was interrupted within a step, and its own hook printed no traceback."""
    layout = made(tmp_path, replace(CASES["one was interrupted"], asked=why))
    for rank, calls in ((0, 2), (1, 1)):
        file = layout.rank(rank).heartbeat
        row = ["0", 0, "all_reduce", 4, "float32", 1, 2, 1, 2]
        rows = (
            [row, ["0", 1, "broadcast", 9, "float32", 1, None, 1, None]][:calls]
            if rank == 0
            else [["0", 0, "broadcast", 9, "float32", 1, 2, 1, 2]]
        )
        beat = {**json.loads(file.read_bytes()), "calls": rows, "step": 12}
        file.write_text(json.dumps(beat))
    answer = triage([str(layout.root)])
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("job_cancelled", [1])
    assert not {"desync", "mismatch_op", "mismatch_shape"} & {guess.fault_class for guess in answer.guesses}

"""Several ranks failed: who raised an exception of its own is to blame, who lost a peer is not, whoever ended first."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import FAILED, Heartbeat, RankExit
from diag.ended.codes import Signal, fault_of_signal, signal_name
from diag.ended.read import read_run
from diag.hang.api import triage
from diag.hang.classes.launchers import ended_as
from diag.hang.model import Triage
from tests.hang.flight.boards import dump

GLOO = "/pytorch/third_party/gloo/gloo/transport/tcp"
FRAME = '  File "train.py", line 4, in <module>\n    step()\n'
AT = "(train.py:4 in <module>)"
LOST = (
    f"RuntimeError: [{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:5862. This is typically caused by a "
    "remote worker crashing. Check the logs of the remote worker before reporting an error.",
    f"RuntimeError: [{GLOO}/pair.cc:538] Read error [127.0.0.1]:4421: Connection reset by peer",
    f"RuntimeError: [{GLOO}/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete",
    "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
    "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
    "rank 0. Please check rank 0 logs for faulty rank.",
    "torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?",
    "torch.distributed.DistStoreError: wait timeout after 4000ms, keys: /never",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "RuntimeError: Broken pipe",
)
BUG = "ValueError: bad sample 17"


@dataclass
class Ended:
    """How a rank ended. ``log``: what it printed; ``error``: message and traceback in torchrun's error file."""

    code: int
    first: bool = False
    log: str = ""
    error: tuple[str, str] | None = None
    time: int = 0


def traceback(*errors: str, join: str = "The above exception was the direct cause of the following exception:") -> str:
    return f"\n{join}\n\n".join(f"Traceback (most recent call last):\n{FRAME}{error}\n" for error in errors)


def record(*errors: str) -> tuple[str, str]:
    """As torchrun's ``record`` leaves it."""
    return errors[-1], traceback(*errors)


def written(run: RunLayout, ends: dict[int, Ended], exit_code: int = 1) -> RunLayout:
    update_manifest(run, world_size=len(ends), exit_code=exit_code)
    run.exits.write_bytes(encode([RankExit(rank, one.code, one.first) for rank, one in ends.items() if one.code]))
    for rank, one in ends.items():
        files = run.rank(rank)
        files.folder.mkdir(parents=True)
        files.log.write_text("".join(f"[rank{rank}]: {line}\n" for line in one.log.splitlines()))
        if one.error is not None:
            extra = {"py_callstack": one.error[1], "timestamp": str(one.time)}
            files.error.write_text(json.dumps({"message": {"message": one.error[0], "extraInfo": extra}}))
    return run


def answer(folder: Path, ends: dict[int, Ended]) -> Triage:
    return triage([str(written(RunLayout(folder / "run"), ends).root)])


def blamed(found: Triage) -> list[int | None]:
    return [culprit.rank for culprit in found.culprits]


CODES = ((1, 1), (-6, 1), (1, -6), (1, -15), (3, 2))


@pytest.mark.parametrize("kept", ["error file", "log"])
@pytest.mark.parametrize(
    ("lost", "victim", "culprit"), [(lost, *CODES[number % len(CODES)]) for number, lost in enumerate(LOST)]
)
def test_who_lost_a_peer_is_a_victim(tmp_path: Path, lost: str, kept: str, victim: int, culprit: int) -> None:
    """Also where the launcher saw it end first."""
    if kept == "error file":
        ends = {0: Ended(victim, first=True, error=record(lost)), 1: Ended(culprit, error=record(BUG))}
    else:
        ends = {0: Ended(victim, first=True, log=traceback(lost)), 1: Ended(abs(culprit) % 15 or 1, log=traceback(BUG))}
    found = answer(tmp_path, ends)
    assert (found.fault_class, blamed(found), found.victims) == ("rank_killed_exception", [1], (0,))
    assert BUG in found.headline


@pytest.mark.parametrize("lost", LOST[:8])
def test_of_victims_alone_nobody_is_accused(tmp_path: Path, lost: str) -> None:
    found = answer(tmp_path, {0: Ended(1, True, traceback(lost)), 1: Ended(-15), 2: Ended(-15)})
    assert "rank_killed_exception" not in {found.fault_class, *(guess.fault_class for guess in found.guesses)}


def test_of_victims_alone_it_is_said_who_raised_nothing(tmp_path: Path) -> None:
    found = answer(
        tmp_path, {0: Ended(1, True, traceback(LOST[0])), 1: Ended(1, True, traceback(LOST[2])), 2: Ended(-15)}
    )
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert "a failure elsewhere can cause were found, on ranks 0, 1" in found.headline
    assert "No exception was found for rank 2: look there first" in found.headline


def test_victims_that_abort_before_the_culprit_has_ended(tmp_path: Path) -> None:
    ends = {0: Ended(-6, True), 1: Ended(-6, True), 2: Ended(1, log=traceback(BUG))}
    found = answer(tmp_path, ends)
    assert (blamed(found), found.victims) == ([2], (0, 1))
    assert f"raised {BUG} {AT}; ranks 0, 1 ended before it" in found.headline


def test_a_victim_that_wraps_what_it_met(tmp_path: Path) -> None:
    """And one that fails while it handles it; and a culprit that loses its peers while it cleans up."""
    ends = {
        0: Ended(1, True, error=record(LOST[0], "RuntimeError: training step failed")),
        1: Ended(1, True, log=traceback(LOST[0], "KeyError: 'step'", join="During handling of the above exception, "
                                        "another exception occurred:")),
        2: Ended(1, error=record(BUG, LOST[0])),
    }  # fmt: skip
    found = answer(tmp_path, ends)
    assert (blamed(found), found.victims) == ([2], (0, 1))


@pytest.mark.parametrize("code", [-9, -11])
def test_a_kill_comes_before_what_others_raise_later(tmp_path: Path, code: int) -> None:
    found = answer(tmp_path, {0: Ended(1, log=traceback("EOFError: short batch")), 1: Ended(code, True)})
    assert blamed(found) == [1]
    assert found.fault_class in ("rank_killed_sigkill", "rank_killed_sigsegv")


@pytest.mark.parametrize("number", [4, 6, 7, 8, 9, 11])
def test_a_signal_means_the_same_in_records_and_in_a_launcher_s_words(tmp_path: Path, number: int) -> None:
    recorded = answer(tmp_path, {0: Ended(-15), 1: Ended(-number, first=True)})
    assert recorded.fault_class == ended_as(-number) == ended_as(128 + number)
    assert blamed(recorded) == [1]


def test_two_bugs(tmp_path: Path) -> None:
    """Both are named, unless their times tell them apart."""
    other = "TypeError: bad on 1"
    found = answer(tmp_path / "both", {0: Ended(1, True, traceback(BUG)), 1: Ended(1, True, traceback(other))})
    assert (blamed(found), found.victims) == ([0, 1], ())
    assert f"Rank 0 raised {BUG} {AT}; rank 1 raised {other} {AT}; it is unknown which was first" in found.headline
    ends = {0: Ended(1, True, error=record(BUG), time=110), 1: Ended(1, True, error=record(other), time=100)}
    found = answer(tmp_path / "timed", ends)
    assert (blamed(found), found.victims) == ([1], ())
    assert f"raised {other}" in found.headline
    assert f"later rank 0 raised {BUG}" in found.headline
    # A process may take long to end after what it raised: the launcher sees another one end before it.
    ends = {0: Ended(1, error=record(BUG), time=100), 1: Ended(1, True, error=record(other), time=110)}
    assert blamed(answer(tmp_path / "slow", ends)) == [0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (record("ValueError: shape mismatch\nexpected (4, 5)\n  got: (5, 4)"), f"ValueError: shape mismatch {AT},"),
        (("ValueError: shape mismatch\nexpected (4, 5)", ""), "ValueError: shape mismatch,"),
        (("something failed\nin C++", ""), "something failed,"),
        (record("KeyError: 'lr'\nin config.yaml"), f"KeyError: 'lr' {AT},"),
        (
            record("KeyError: 'tokenizer'", "RuntimeError: cannot build the model\nsee the config"),
            f"KeyError: 'tokenizer' {AT}, which led to RuntimeError: cannot build the model,",
        ),
        (
            record(
                "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.\nOriginal Traceback (most "
                f"recent call last):\n{FRAME}FileNotFoundError: [Errno 2] No such file or directory: '/x'\n"
            ),
            "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0: [Errno 2] No such file or "
            f"directory: '/x' {AT},",
        ),
        (record("__main__.NoSuchKey: lr"), f"__main__.NoSuchKey: lr {AT},"),
        (record("MemoryError"), f"MemoryError {AT},"),
        (
            record("torch._dynamo.exc.Unsupported: \n  Call to a builtin\n  Hint: do not"),
            f"torch._dynamo.exc.Unsupported: Call to a builtin {AT},",
        ),
    ],
)
@pytest.mark.parametrize("kept", ["error file", "log"])
def test_the_first_line_of_a_message_is_quoted(tmp_path: Path, error: tuple[str, str], words: str, kept: str) -> None:
    one = Ended(1, True, error=error) if kept == "error file" or not error[1] else Ended(1, True, error[1])
    found = answer(tmp_path, {0: Ended(-15), 1: one})
    assert f"raised {words} and ended with exit code 1 while rank 0 was still running" in found.headline
    assert blamed(found) == [1]


TORCH = "/env/lib/python3.11/site-packages/torch"
LOADED = "/env/lib/python3.11/site-packages/datasets/load.py"


def frames(*places: tuple[str, int, str]) -> str:
    return "".join(f'  File "{file}", line {line}, in {name}\n    call()\n' for file, line, name in places)


@pytest.mark.parametrize(
    ("places", "place"),
    [
        ((("/w/train.py", 46, "<module>"), ("/w/data.py", 34, "clean")), " (data.py:34 in clean)"),
        (
            (("/w/train.py", 46, "<module>"), (LOADED, 9, "load"), (f"{TORCH}/nn/linear.py", 7, "forward")),
            " (train.py:46 in <module>)",
        ),
        (
            ((LOADED, 9, "load"), (f"{TORCH}/nn/linear.py", 7, "forward"), ("/lib/python3.11/json/x.py", 1, "f")),
            " (load.py:9 in load)",
        ),
        ((("<frozen runpy>", 198, "_run"), (f"{TORCH}/distributed/run.py", 7, "main")), ""),
    ],
)
@pytest.mark.parametrize("kept", ["error file", "log"])
def test_the_line_of_the_program_that_raised_is_named(
    tmp_path: Path, places: tuple[tuple[str, int, str], ...], place: str, kept: str
) -> None:
    """And its traceback is its stack, not what it did at its last collective."""
    text = f"Traceback (most recent call last):\n{frames(*places)}{BUG}\n"
    one = Ended(1, True, text, error=(BUG, text) if kept == "error file" else None)
    run = written(RunLayout(tmp_path / "run"), {0: Ended(-15), 1: one})
    for rank, calls in {0: "0:all_reduce 0:all_reduce?", 1: "0:all_reduce"}.items():
        run.rank(rank).flight_recorder_asked(rank).write_text(json.dumps(dump(rank, {"0": (0, 1)}, calls)))
    found = triage([str(run.root)])
    assert f"Rank 1 raised {BUG}{place}, and ended with exit code 1" in found.headline
    culprit, victim = found.stacks
    assert (culprit.rank, victim.rank, victim.frames) == (1, 0, ("called_all_reduce (train.py:1)",))
    assert culprit.frames == tuple(f"{name} ({file}:{line})" for file, line, name in reversed(places))
    assert culprit.what == "culprit, where it raised its exception"
    files = run.rank(1)
    file = str(files.error if kept == "error file" else files.log)
    raised_in = [line.text for line in found.evidence if line.path == file and "raised in" in line.text]
    assert len(raised_in) == bool(place)
    assert culprit.evidence.path == file


def test_the_line_of_a_loader_s_worker_is_named_not_that_of_the_rank(tmp_path: Path) -> None:
    inner = f"Original Traceback (most recent call last):\n{frames(('/w/data.py', 12, '__getitem__'))}KeyError: 7\n"
    text = (
        f"Traceback (most recent call last):\n{FRAME}KeyError: Caught KeyError in DataLoader worker process 0.\n{inner}"
    )
    found = answer(tmp_path, {0: Ended(-15), 1: Ended(1, True, error=("KeyError: Caught KeyError", text))})
    assert "(data.py:12 in __getitem__), and ended" in found.headline


def test_ranks_that_raised_in_two_places_are_told_apart(tmp_path: Path) -> None:
    at = [
        f"Traceback (most recent call last):\n{frames(('/w/data.py', 12 + rank, 'clean'))}{BUG}\n" for rank in range(2)
    ]
    same = answer(tmp_path / "same", {rank: Ended(1, True, error=(BUG, at[0])) for rank in range(2)})
    assert f"raised {BUG} (data.py:12 in clean)" in same.headline
    apart = answer(tmp_path / "apart", {rank: Ended(1, True, error=(BUG, at[rank])) for rank in range(2)})
    assert f"raised {BUG}" in apart.headline
    assert "data.py" not in apart.headline
    assert [stack.frames for stack in apart.stacks] == [("clean (/w/data.py:12)",), ("clean (/w/data.py:13)",)]


def test_a_traceback_that_was_caught_or_comes_too_late_is_not_what_ended_it(tmp_path: Path) -> None:
    ignored = "Exception ignored in: <function Pool.__del__>\n" + traceback("OSError: [Errno 9] Bad file descriptor")
    ends = {0: Ended(-15, log=traceback("OSError: no cache, goes on")), 1: Ended(1, True, traceback(BUG) + ignored)}
    found = answer(tmp_path, ends)
    assert blamed(found) == [1]
    assert BUG in found.headline


def test_a_lost_connection_of_its_own(tmp_path: Path) -> None:
    """No rank of the group was gone: the launcher ended all the others."""
    refused = "RuntimeError: data server: Connection refused while reading shard 3"
    found = answer(tmp_path, {0: Ended(-15), 1: Ended(1, True, traceback(refused))})
    assert (found.fault_class, blamed(found)) == ("rank_killed_exception", [1])
    assert refused in found.headline
    assert found.confidence <= 0.6


IO_ERROR = "OSError: [Errno 5] Input/output error: 'data/00.bin'"


def test_a_failing_disk_in_an_error_file(tmp_path: Path) -> None:
    """torchrun's error file is JSON: its message is in quotation marks, and no quotation."""
    found = answer(tmp_path, {0: Ended(-15), 1: Ended(1, True, error=record(IO_ERROR))})
    assert (found.fault_class, blamed(found)) == ("storage", [1])
    assert "data/00.bin" in found.headline


def test_an_error_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": IO_ERROR, "extraInfo": {"py_callstack": traceback(IO_ERROR)}}}))
    assert triage([str(file)]).fault_class == "storage"


@pytest.mark.parametrize(
    ("number", "name", "fault"),
    [
        (7, "SIGBUS", "rank_killed_sigbus"),  # 10 on a Mac
        (9, "SIGKILL", "rank_killed_sigkill"),
        (10, "SIGUSR1", ""),  # 30 on a Mac
        (12, "SIGUSR2", ""),
        (34, "", ""),  # of real time: no name
        (0, "", ""),
    ],
)
def test_numbers_of_signals_are_those_of_linux(number: int, name: str, fault: str) -> None:
    assert (signal_name(number), fault_of_signal(number)) == (name, fault)


@pytest.mark.skipif(sys.platform != "linux", reason="compares with this system's signals")
def test_every_signal_of_linux_has_its_number() -> None:
    assert {one.name: one.value for one in Signal} == {one.name: one.value for one in signal.Signals if one < 32}


def test_a_rank_that_failed_since_its_files_were_listed_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the others, no folder is listed a second time."""
    run = written(RunLayout(tmp_path), {0: Ended(0), 1: Ended(0), 2: Ended(1, True)})
    for rank, phase in ((0, "forward"), (1, FAILED + "ValueError")):
        run.rank(rank).heartbeat.write_bytes(encode(Heartbeat(1, 1, 7, phase)))
    before = {rank: frozenset({"heartbeat.json"}) for rank in range(3)}
    for rank in (1, 2):
        run.rank(rank).error.write_text(json.dumps({"message": {"message": BUG}}))
    looked_at: list[str] = []
    names = RankLayout.names
    monkeypatch.setattr(RankLayout, "names", lambda files: looked_at.append(files.folder.name) or names(files))
    read = read_run(run, listed=before)
    assert looked_at == ["00001", "00002"]
    assert [read.ranks[rank].error for rank in range(3)] == ["", BUG, BUG]

"""Runs in which others have put pipes, devices and links, and runs that somebody else may not read: each command ends,
says what it left out, and shows nothing of what lies outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bounded_user import diag_bounded, permissions_bind
from tests.command import diag_process
from tests.patience import PATIENCE_S

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp-healthy"
SECRET = "key that lies outside of the run"
COMMANDS = {
    "analyze": "analyze RUN -v",
    "triage": "triage RUN -v",
    "report": "report RUN -o -",
    "compare": "compare RUN RUN -v",
    "check": "check RUN --max-exposed-comm 99%",
    "export": "export RUN --format prometheus",
    "curves": "export RUN --format tensorboard -o OUT",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))


def written(command: str, run: Path, out: Path) -> list[str]:
    return [str(run) if part == "RUN" else str(out) if part == "OUT" else part for part in command.split()]


def flat(*texts: str) -> str:
    """What was said, as if lines had no end and errors no frames."""
    return " ".join("".join(texts).replace("│", " ").split())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(SAMPLE, copy)
    (copy / "verdict.json").unlink(missing_ok=True)
    return copy


@pytest.fixture
def planted(run: Path, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(f"[rank0]: RuntimeError: {SECRET}\n")
    rank = run / "ranks" / "00000"
    for name in ("steps.jsonl", "collectives.jsonl", "heartbeat.json", "log.txt"):
        (rank / name).unlink(missing_ok=True)
    os.mkfifo(rank / "steps.jsonl")
    (rank / "heartbeat.json").symlink_to("/dev/zero")
    for name in ("collectives.jsonl", "log.txt"):
        (rank / name).symlink_to(tmp_path / "secret")
    return run


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_pipes_devices_and_links_out_are_stated(planted: Path, tmp_path: Path, command: str) -> None:
    ended = diag_process(*written(command, planted, tmp_path / "out"), timeout=PATIENCE_S)
    said = flat(ended.stdout, ended.stderr)
    assert ended.returncode in (0, 4), said[-2000:]
    assert "Traceback" not in said
    assert SECRET not in said
    if command.startswith("triage"):
        assert "log.txt" in said
        assert "a link that leads out of the run directory" in said
        assert "heartbeat.json: cannot be read: a device" in said
    else:
        assert "a named pipe, not a regular file" in said


def test_a_pipe_that_the_user_names_is_read(tmp_path: Path) -> None:
    log = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    (tmp_path / "real.txt").write_text(log)
    (tmp_path / "named").symlink_to("real.txt")
    os.mkfifo(tmp_path / "pipe")
    if (writer := os.fork()) == 0:
        (tmp_path / "pipe").write_text(log)
        os._exit(0)
    ended = diag_process("triage", tmp_path / "pipe", tmp_path / "named", timeout=PATIENCE_S)
    os.waitpid(writer, 0)
    assert "2 logs" in ended.stdout
    assert "not a regular file" not in ended.stdout


@pytest.mark.parametrize("line", [b'{"step": 1, "loss": "\xff"}', b"[" * 100_000], ids=["no UTF-8", "nested"])
def test_a_line_that_is_no_json_costs_that_line(run: Path, line: bytes) -> None:
    steps = run / "ranks" / "00000" / "steps.jsonl"
    steps.write_bytes(steps.read_bytes() + line + b"\n")
    ended = diag_process("analyze", run, timeout=PATIENCE_S)
    assert ended.returncode == 4
    assert "invalid collector records on 1 of 17 lines" in flat(ended.stdout)


@pytest.mark.parametrize("command", [COMMANDS["analyze"], COMMANDS["triage"], COMMANDS["report"]])
def test_names_that_are_no_text(run: Path, tmp_path: Path, command: str) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/traces/\xff"))
    folder.mkdir(parents=True)
    (trace,) = (run / "ranks" / "00000").glob("trace-*")
    shutil.copy(trace, folder / os.fsdecode(b"rank0-\xe9.json.gz"))
    for name in (b"\xe9.json", b"n" * 250 + b".json", b"\xe9\x1b[31m.log"):
        (folder / os.fsdecode(name)).write_bytes(b"\0\1" * 100)
    (folder / os.fsdecode(b"\xe8.log")).write_text("training\n")
    ended = diag_process(*written(command, folder.parent, tmp_path / "out"), timeout=PATIENCE_S)
    said = flat(ended.stdout, ended.stderr)
    assert ended.returncode == 4, said[-2000:]
    assert "Traceback" not in said
    assert r"\udc" in said
    assert "\x1b" not in said


# -- without permission ------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(run: Path) -> Iterator[Path]:
    if not permissions_bind():
        pytest.skip("permissions do not bind this user")
    yield run
    for folder, mode in (("", 0o755), ("ranks", 0o755), ("ranks/00001", 0o755)):
        (run / folder).chmod(mode)


@pytest.mark.parametrize(
    "command", [*COMMANDS.values(), "trace RUN", "open RUN --rank 0 --step 3 -o OUT", "plan --measured RUN"]
)
@pytest.mark.parametrize("folder", ["", "ranks"])
def test_a_run_that_may_not_be_read_is_one_line(locked: Path, tmp_path: Path, command: str, folder: str) -> None:
    (locked / folder).chmod(0)
    ended = diag_bounded(*written(command, locked, tmp_path / "out"))
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr
    assert "ermission denied" in flat(ended.stderr) or "is not readable" in flat(ended.stderr)
    assert len(ended.stderr.splitlines()) <= 8


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_rank_that_may_not_be_read_is_a_gap(locked: Path, tmp_path: Path, command: str) -> None:
    (locked / "ranks" / "00001").chmod(0)
    ended = diag_bounded(*written(command, locked, tmp_path / "out"))
    said = flat(ended.stdout, ended.stderr)
    assert ended.returncode == (0 if command.startswith("export") else 4), said[-2000:]
    assert "Traceback" not in said
    assert "ermission denied" in said
    if command.startswith("analyze"):
        assert "rank 1: permission denied" in said
        assert "not started" not in said

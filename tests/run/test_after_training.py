"""What ``diag run`` does when the training has ended never changes how the training ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.cli.run import say_end
from diag.collectors.layout import RunLayout
from diag.errors import DiagError
from diag.hang import api
from diag.watch.launch import Launch, Outcome, close
from tests.command import diag_process
from tests.patience import PATIENCE_S

FAILED = Outcome(7, failed_rank=0, reason="exit code 7")
# Each of these lines made a parser of prefixes recurse without end, or search for minutes.
HOSTILE_LINES = ("[0] " * 500 + "Error", "[rank0]:" * 500, "0: " * 1000, "\r" * 2000 + "x", "[" * 5000, "\x1b[" * 2000)


def test_lines_of_a_log_do_not_change_the_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import sys\nfor line in {HOSTILE_LINES!r}:\n    print(line, file=sys.stderr)\nsys.exit(7)\n")
    ended = diag_process("run", "--out", tmp_path / "run", script)
    assert ended.returncode == 7
    assert "Traceback" not in ended.stderr
    assert RunLayout(tmp_path / "run").hang.exists()


@pytest.mark.parametrize("error", [RecursionError, MemoryError, KeyboardInterrupt, DiagError, OSError])
def test_a_triage_that_fails_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    def fail(_paths: Any) -> Any:
        raise error("no log")

    monkeypatch.setattr(api, "triage", fail)
    steps = RunLayout(tmp_path).rank(0).steps
    steps.parent.mkdir(parents=True)
    steps.write_text('{"step":1,"begin_ns":0,"end_ns":1}\n')
    assert say_end(RunLayout(tmp_path), FAILED, collect=True) == 7
    printed = capsys.readouterr().err
    assert "no log" in printed
    assert "what was recorded until then" in printed  # what follows is still done


@pytest.mark.parametrize("manifest", [b"", b"[]", b'{"exit_code": "none"}', b'{"exit_code": []}', b"\xff", None])
def test_a_damaged_manifest_does_not(tmp_path: Path, manifest: bytes | None) -> None:
    layout = RunLayout(tmp_path)
    if manifest is None:
        layout.manifest.mkdir()
    else:
        layout.manifest.write_bytes(manifest)
    assert close(layout, Launch(nproc=1, say=lambda _: None), FAILED) is FAILED


@pytest.mark.parametrize("code", [0, 7])
def test_a_full_disk_behind_the_output_does_not(tmp_path: Path, code: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os\nos._exit({code})\n")
    command = [sys.executable, "-m", "diag", "run", "--out", tmp_path / "run", script]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=full, check=False, timeout=PATIENCE_S)
    assert ended.returncode == code


@pytest.mark.matrix
def test_nor_behind_that_of_the_bundled_trainer(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "diag",
        "run",
        "--steps",
        "2",
        "--nproc",
        "1",
        "--no-trace",
        "--out",
        tmp_path / "run",
    ]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr

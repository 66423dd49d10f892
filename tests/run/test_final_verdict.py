"""``diag run`` ends with the verdict, as a test runner ends with its result."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from diag.cli.run import RunOptions, say_end
from diag.collectors.layout import RunLayout
from diag.watch.launch import Outcome
from diag.watch.policy import WATCHING
from tests.app.runs import write_run


def ended(run: Path, capsys: pytest.CaptureFixture[str], options: RunOptions, code: int = 0, host: str = "") -> str:
    layout = RunLayout(write_run(run, slow_data_ms={1: 40}))
    for files in layout.ranks().values():
        identity = json.loads(files.identity.read_text())
        files.identity.write_text(json.dumps(identity | {"host": host or socket.gethostname()}))
    assert say_end(layout, Outcome(code), options.collect, True, options.quiet) == code
    out, err = capsys.readouterr()
    assert not out  # standard output is left to the training
    return err


def test_the_verdict_is_the_last_thing_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ended(tmp_path / "run", capsys, RunOptions())
    assert "Step time" in text.partition("Next: diag analyze")[2]
    assert (tmp_path / "run" / "verdict.json").is_file()


@pytest.mark.parametrize("options", [RunOptions(quiet=True), RunOptions(collect=False)])
def test_it_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: RunOptions) -> None:
    assert "Step time" not in ended(tmp_path / "run", capsys, options)


def test_of_several_nodes_one_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Step time" not in ended(tmp_path / "run", capsys, RunOptions(), host="another")


def test_a_huge_run_is_left_to_diag_analyze(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diag.rundir.runs.record_bytes", lambda _run: WATCHING.most_bytes_of_verdict + 1)
    text = ended(tmp_path / "run", capsys, RunOptions())
    assert "Next: diag analyze" in text
    assert "Step time" not in text

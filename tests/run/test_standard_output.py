"""``-`` is standard output, or refused: no command makes a file or a folder of this name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.command import diag

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp-healthy"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(SAMPLE, tmp_path / "RUN")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("step", ["10", "3"])  # of a trace, and of records
def test_an_excerpt_goes_to_standard_output(folder: Path, step: str) -> None:
    ended = diag("open", "RUN", "--rank", "0", "--step", step, "-o", "-")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["traceEvents"]
    assert [path.name for path in folder.iterdir()] == ["RUN"]


@pytest.mark.parametrize("form", ["prometheus", "jsonl"])
def test_an_export_goes_to_standard_output(folder: Path, form: str) -> None:
    assert "diag_ranks" in diag("export", "RUN", "--format", form, "-o", "-").stdout
    assert [path.name for path in folder.iterdir()] == ["RUN"]


@pytest.mark.parametrize(
    "words",
    [
        ["export", "RUN", "--format", "tensorboard", "-o", "-"],
        ["export", "RUN", "--format", "prometheus", "--follow", "-o", "-"],
        ["check", "RUN", "--max-step", "1s", "--junit", "-"],
        ["attach", "--out", "-"],
        ["run", "--out", "-"],
        ["tune", "--out", "-"],
        ["demo", "--out", "-"],
    ],
)
def test_what_needs_a_file_or_a_folder_refuses_it(folder: Path, words: list[str]) -> None:
    ended = diag(*words)
    assert ended.returncode == 2
    assert ended.stderr.startswith("diag: ")
    assert [path.name for path in folder.iterdir()] == ["RUN"]

"""A run in a schema that only newer versions know is refused by every command that reads runs, never read silently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diag.api import open_run, state_of
from diag.collectors.layout import RUN_SCHEMA, SCHEMA_VERSION, RunLayout
from diag.collectors.manifest import make_manifest
from diag.errors import DiagError
from diag.rundir.summaries import read_summaries
from diag.show.json import save
from diag.tune.history import load
from tests.command import diag_process

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp-healthy"
READERS = [
    ["analyze", "RUN"], ["analyze", "RUN", "--summary"], ["triage", "RUN"], ["compare", "RUN", str(SAMPLE)],
    ["check", "RUN", "--max-data-wait", "5%"], ["report", "RUN", "-o", "-"], ["metrics", "RUN"],
    ["export", "RUN", "--format", "jsonl"], ["export", "RUN", "--format", "prometheus"], ["trace", "RUN"],
    ["attach", "--out", "RUN"], ["open", "RUN", "--rank", "0", "-o", "-"],
    ["open", "RUN", "--rank", "0", "--step", "3", "-o", "-"],
]  # fmt: skip


def newer(folder: Path, file: str) -> Path:
    """The sample with a newer schema in one of its files."""
    run = shutil.copytree(SAMPLE, folder / "run")
    content = json.loads((run / file).read_text())
    versions = {"versions": {**content["versions"], "diag": "99.1"}} if "versions" in content else {}
    (run / file).write_text(json.dumps({**content, **versions, "schema_version": RUN_SCHEMA + 1}))
    return run


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_every_reader_refuses_a_newer_run(arguments: list[str], tmp_path: Path) -> None:
    run = newer(tmp_path, "manifest.json")
    ended = diag_process(*(str(run) if word == "RUN" else word for word in arguments), timeout=60)
    said = f"manifest.json: was written by diag 99.1 in schema {RUN_SCHEMA + 1}; this version reads schemas up to"
    assert said in ended.stderr
    assert ended.returncode == 1


@pytest.mark.parametrize("read", [open_run, lambda run: read_summaries(RunLayout(run))], ids=["records", "summaries"])
def test_a_newer_rank_is_refused(read: object, tmp_path: Path) -> None:
    run = newer(tmp_path, "ranks/00000/rank.json")
    with pytest.raises(DiagError, match="in schema"):
        read(run)  # type: ignore[operator]


def test_a_newer_answer_and_the_state_of_a_newer_run_are_not_shown(tmp_path: Path) -> None:
    run = shutil.copytree(SAMPLE, tmp_path / "answered")
    save(open_run(run))
    assert state_of(run).answer is not None
    answer = RunLayout(run).verdict
    answer.write_text(json.dumps({**json.loads(answer.read_text()), "schema_version": 1000}))
    assert state_of(run).answer is None
    assert state_of(newer(tmp_path, "manifest.json")).strategy == ""


def test_a_newer_tuning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(json.dumps({"arguments": [], "schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(DiagError, match="in schema"):
        load(tmp_path)


def test_a_run_says_which_version_wrote_it(tmp_path: Path) -> None:
    from diag import __version__

    layout = RunLayout(tmp_path / "run")
    make_manifest(layout, argv=["x"])
    written = json.loads(layout.manifest.read_text())
    assert (written["schema_version"], written["versions"]) == (RUN_SCHEMA, {"diag": __version__})

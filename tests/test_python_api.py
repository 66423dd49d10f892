"""``import diag``: what it offers, how it prints, what a notebook shows, and the data frames of a run."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path

import msgspec
import polars as pl
import pytest
from rich.console import Console

import diag
import diag.api
from diag.api import Result
from diag.errors import DiagError
from diag.model.steps import Bottleneck, Kind
from diag.tables.frames import COLUMNS
from diag.words.table import schema_of
from tests import reference

SAMPLES = Path(__file__).parents[1] / "sample_traces"
CAPTURED = Path(__file__).parent / "hang" / "captured"
SLOW_LOADER = SAMPLES / "fsdp2-slow-loader-rank1"
NOT_RECORDED = {
    "changes",
    "incidents",
    "modules",
    "all_to_alls",
    "stalls",
    "checkpoints",
    "scheduling",
    "summaries",
    "numbers",
}  # in it


@pytest.fixture(scope="module")
def run() -> Result:
    return diag.open_run(SLOW_LOADER)


def test_completion_lists_what_there_is() -> None:
    code = (
        "import diag, sys; print(dir(diag)); print(sorted(set(sys.modules) & {'torch', 'polars', 'msgspec', 'rich'}))"
    )
    names, loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    offered = {name for name in json.loads(names.replace("'", '"')) if not name.startswith("__")}
    assert offered == {"open_run", "triage", "compare", "plan", "lint", "DiagError"}
    assert loaded == "[]", "importing diag costs nothing"
    assert all(callable(getattr(diag, name)) for name in ("open_run", "triage", "compare", "plan", "lint"))


def three_lines(shown: object) -> list[str]:
    lines = repr(shown).splitlines()
    assert len(lines) == 3
    assert all(lines)
    html = shown._repr_html_()  # type: ignore[attr-defined]
    assert "<script" not in html
    assert len(html) > 200
    return lines


def test_a_run_prints_as_three_lines(run: Result) -> None:
    first, second, third = three_lines(run)
    assert first.startswith("Run: 2 of 2 ranks")
    assert second == run.verdict.headline.replace("\u00a0", " ")
    assert run.verdict.cause in third


def test_a_notebook_shows_a_result_once(run: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, rich would show each line that is rendered as an output of the cell."""
    displayed: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *shown: displayed.append(shown))
    Console(file=io.StringIO()).print("as rich does")
    assert displayed
    displayed.clear()
    results = (diag.compare(run, run), diag.triage(SLOW_LOADER), diag.plan("7B", gpus=8))
    assert all(result._repr_html_().startswith("<pre") for result in results)
    assert not displayed


def test_an_error_says_in_which_file_and_what_to_do(tmp_path: Path) -> None:
    """As a traceback ends, which is all that a notebook shows."""
    with pytest.raises(DiagError) as raised:
        diag.open_run(tmp_path / "none")
    shown = traceback.format_exception_only(raised.value)
    assert shown[0] == "diag.errors.DiagError: no such file or folder\n"
    assert "".join(shown[1:]) == f"{tmp_path / 'none'}\npass a run directory or a folder of traces\n"


def test_a_verdict_and_advice_print_as_sentences(run: Result) -> None:
    headline, below = repr(run.verdict).splitlines()
    assert headline == run.verdict.headline.replace("\u00a0", " ")
    assert below == "At fault: rank 1 on sample; confidence 99%."
    advised = diag.open_run(SAMPLES / "ddp-slow-loader-all")
    assert repr(advised.verdict).splitlines()[1] == "Confidence 99%."
    (change,) = advised.advice
    assert re.fullmatch(r"2 DataLoader workers per rank instead of 1: saves [\d.]+ ms, \d+%; safe", repr(change))
    assert "\x1b" not in repr(msgspec.structs.replace(run.verdict, headline="\x1b[2J", culprit_hosts=("\x1b]0;",)))


def test_two_runs_side_by_side(run: Result) -> None:
    found = diag.compare(SAMPLES / "fsdp2-slow-wire", run)
    first, second, third = three_lines(found)
    assert first.startswith("Comparison: ")
    assert "step" in second
    assert "data" in third
    assert found.after is run
    assert found.parts


def test_triage() -> None:
    found = diag.triage(CAPTURED / "sigkill-2-ranks")
    first, _, third = three_lines(found)
    assert first == "Triage: rank_killed_sigkill, confidence 94%; at fault: rank 1"
    assert third.startswith("Next: ")
    assert found.fault_class == "rank_killed_sigkill"
    with pytest.raises(diag.DiagError):
        diag.triage(SAMPLES / "nothing-is-here")


def test_plan_takes_the_options_of_the_command() -> None:
    found = diag.plan("7B", gpus=64, gpu="H100", topology="dp=16,tp=4")
    first, _, _ = three_lines(found)
    assert first.startswith("Plan: 7.0B parameters on 64 GPUs: ")
    assert found.chosen is not None
    with pytest.raises(diag.DiagError, match="--recipe"):
        diag.plan("7B", recipe="nonsense")


def test_lint(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 7}, "train_batch_size": 8}')
    found = diag.lint(path)
    _, second, third = three_lines(found)
    assert second.startswith("1 error")
    assert "7" in third
    assert found[0].notices


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_frames_have_the_documented_columns(run: Result, name: str) -> None:
    frame = getattr(run, name)
    assert frame.schema == schema_of(COLUMNS[name].values())
    if name not in NOT_RECORDED:
        assert len(frame)
        assert set(frame.columns) - {c for c in frame.columns if frame[c].null_count() == len(frame)}


def test_frames_hold_the_numbers_of_the_analysis(run: Result) -> None:
    steps, six = (
        run.steps,
        ["compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns", "checkpoint_ns", "idle_ns"],
    )
    assert (steps.select(pl.sum_horizontal(six)).to_series() == steps["dur_ns"]).all()
    counted = steps.filter("counted")
    assert counted["step"].unique().len() == len(run.attribution.usable)
    means = counted.group_by("rank").agg(pl.col("data_wait_ns").mean()).sort("rank")["data_wait_ns"]
    assert run.ranks["data_wait_ns"].to_list() == [round(mean) for mean in means]
    assert run.ranks.filter("culprit")["rank"].to_list() == list(run.verdict.culprit_ranks) == [1]
    assert run.findings["id"].to_list() == [f.id for f in run.examination.findings]
    assert run.collectives["exposed_ns"].is_sorted(descending=True)


def test_the_account_as_frames_adds_up(run: Result) -> None:
    piece = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    own = run.spans.group_by("rank", "step").agg(piece).join(run.steps, on=["rank", "step"])
    assert len(own) == len(run.steps)
    assert (own["ns"] == own["dur_ns"]).all()
    loading = run.spans.filter(pl.col("kind") == "data").group_by("rank", "step").agg(piece)
    assert (
        loading.join(run.steps, on=["rank", "step"]).select(pl.col("ns") == pl.col("data_wait_ns")).to_series()
    ).all()
    assert set(run.spans["kind"]) <= {kind.name.lower() for kind in Kind}


def test_waits_are_those_of_the_account(run: Result) -> None:
    cause = run.cause
    assert cause is not None
    slow = run.waits.filter((pl.col("kind") == "data") & (pl.col("rank") == cause.ranks[0]))
    assert slow["wait_ns"].sum() > 0.9 * run.waits["wait_ns"].sum()


def test_samples_and_facts_are_what_was_recorded(run: Result) -> None:
    memory = run.samples.filter(pl.col("source") == "allocator")
    steps = run.tables.ranks[0].steps
    assert len(memory.filter((pl.col("rank") == 0) & (pl.col("field") == "rss"))) == len(steps)
    facts = dict(run.facts.select("key", "value").iter_rows())
    manifest = run.tables.manifest
    assert manifest is not None
    assert facts["versions.torch"] == manifest.versions["torch"]
    assert (facts["ranks.1.rank"], facts["analysis.steps_from"]) == ("1", "recorded")
    assert set(run.facts["source"]) == {"manifest.json", "rank.json", "analysis"}


def test_evidence_is_the_rows_that_a_finding_rests_on(run: Result) -> None:
    rows = run.evidence("slow-data-one-rank")
    assert rows["rank"].unique().to_list() == [1]
    assert rows["counted"].all()
    assert rows.equals(run.evidence(run.examination.findings[0]))
    slow_wire = diag.open_run(SAMPLES / "fsdp2-slow-wire")
    communication = slow_wire.cause
    assert communication is not None
    assert communication.bottleneck == Bottleneck.COMMUNICATION
    assert "busbw_gb_s" in slow_wire.evidence(communication).columns
    with pytest.raises(diag.DiagError, match="no finding"):
        run.evidence("nothing")


def test_the_page_lists_every_column() -> None:
    assert reference.page() == reference.PAGE.read_text("utf-8"), "python -m tests.reference writes it"


# Signatures that say Any, each with the reason; a new one needs a real type.
_HANDED_ON = "its type is in diag.tables.memory_curves or snapshots, which diag analyze does not reach"
SAYS_ANY = {
    "memory_curves": _HANDED_ON,
    "memory_snapshots": _HANDED_ON,
    "open_memory_snapshots": _HANDED_ON,
    "describe_run": "the values of a JSON object",
}


def test_no_public_signature_of_the_api_says_any_without_a_reason() -> None:
    tree = ast.parse(Path(diag.api.__file__).read_text("utf-8"))
    says = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        for annotation in (node.returns, *(argument.annotation for argument in node.args.args))
        if annotation is not None and any(getattr(name, "id", "") == "Any" for name in ast.walk(annotation))
    }
    assert says == SAYS_ANY.keys()

"""What ``diag analyze`` prints by default, and what stands behind it."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result, analyze
from diag.model import Gap
from diag.serve.server import SAMPLES
from diag.show.answer import Part
from diag.show.fitting import sentences_of
from diag.show.page import page_of
from diag.show.policy import PAGE
from diag.show.text import print_report
from diag.words.formatting import spaced
from diag.words.terminal import report_console
from tests.command import diag
from tests.copies import replace
from tests.samples import opened_sample
from tests.simulate import FORWARD, MS, Plan, simulate


def printed(result: Result, *parts: Part, width: int = 110) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False)
    print_report(result, console, parts, ["RUN"])
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.fixture(scope="module")
def loader() -> Result:
    return opened_sample("fsdp2-slow-loader-rank1")


def test_the_answer_names_the_rank_what_to_do_and_how_to_go_on(loader: Result) -> None:
    lines = printed(loader, width=400)
    assert lines[1] == loader.verdict.headline
    assert lines[2].startswith("At fault: rank 1 on sample; confidence")
    assert "Step time 298 ms" in lines[2]
    assert lines[3].startswith("What to do: Look at the input of rank 1")
    assert lines[-1].endswith("More: --evidence --checked --tables, or -v for all. In the browser: diag dashboard RUN")


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir()))
def test_an_answer_has_ten_lines(sample: str) -> None:
    result = opened_sample(sample)
    page = page_of(result)
    for width in (80, 110, 200):
        lines = printed(result, width=width)
        text = " ".join(lines)
        assert len(lines) <= PAGE.rows_of_answer, "\n".join(lines)
        assert max(map(len, lines)) <= width
        assert "…" not in text
        assert spaced(page.verdict.headline) in re.sub(" +", " ", text)
        assert f"What to do: {spaced(sentences_of(page.verdict.action)[0])}" in re.sub(" +", " ", text)
        for rank in result.verdict.culprit_ranks:
            assert f"At fault: rank {rank}" in text
            assert any(line.startswith(f"rank {rank} ") for line in lines)
        assert "ruled out" in text
        assert "! " in text or not (result.coverage.notes or result.coverage.skipped)
        assert "diag dashboard" in lines[-1]


def test_data_that_is_missing_is_named_before_notes() -> None:
    result = opened_sample("gpu-hf-trainer")
    assert result.coverage.notes
    gaps = tuple(Gap(f"ranks/{rank}/steps.jsonl", "cut off") for rank in range(3))
    lacking = replace(result, coverage=replace(result.coverage, skipped=gaps))
    for width in (80, 200):
        lines = [line for line in printed(lacking, width=width) if line.startswith("! ")]
        assert lines[0] == "! ranks/0/steps.jsonl: cut off"
        assert lines[1] == "! 3 notes on the data: --checked"
        assert len(printed(lacking, width=width)) <= PAGE.rows_of_answer


def test_where_there_is_no_room_whole_sentences_go(loader: Result) -> None:
    action = loader.cause.action if loader.cause is not None else ""
    first, *others = sentences_of(action)
    assert len(others) > 1
    wide, narrow = (" ".join(printed(loader, width=width)) for width in (200, 80))
    assert action in wide
    assert first in narrow
    assert others[-1] not in narrow
    assert action in " ".join(printed(loader, Part.EVIDENCE, width=400))


def test_a_gain_that_is_not_sure_is_not_promised() -> None:
    lines = " ".join(printed(opened_sample("fsdp2-root-only"), width=80))
    assert "and prefetch the next unit: may save 32.7 ms, 8%" in lines


def test_what_lowers_the_confidence_most_is_named() -> None:
    result = opened_sample("ddp-healthy")
    assert "Confidence 89% (the steps vary); 9 of 16 steps counted." in printed(result, width=80)
    assert "one late rank and differences between all ranks" in " ".join(printed(result, Part.CHECKED))


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = {"": 110, "80": 80, "200": 200, "9999": 200, "3": 110, "x": 110, "-5": 110, "99999999": 110}
    for columns, width in widths.items():
        monkeypatch.setenv("COLUMNS", columns)
        assert report_console(Console(file=io.StringIO())).width == width


@pytest.mark.parametrize(
    ("part", "says"), [(Part.EVIDENCE, "data wait (rank 1), share of step"), (Part.CHECKED, "Looked for, not found"),
                       (Part.TABLES, "Critical path: ")]
)  # fmt: skip
def test_each_part_is_printed_where_it_is_asked_for(loader: Result, part: Part, says: str) -> None:
    assert says not in "\n".join(printed(loader))
    shown = printed(loader, part)
    assert says in "\n".join(shown)
    assert f"--{part}" not in shown[-1]


def test_a_finding_that_the_headline_does_not_name_has_a_line() -> None:
    lines = printed(opened_sample("ddp-straggler-rank0"), width=400)
    assert [line for line in lines if line.startswith("Also found: Exposed communication takes 9.2 ms a step")]


def test_of_many_ranks_those_at_fault_have_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = PAGE.ranks_that_matter + 5
    late = ranks - 1
    tables = simulate(Plan(ranks=ranks, extra=lambda _, rank: {FORWARD: 60 * MS * (rank == late)}))
    result = analyze(tables)
    monkeypatch.setattr(Result, "outcome", None)  # nothing says how it ended
    lines = printed(result, width=200)
    rows = [line.split()[1] for line in lines if line.startswith("rank ")]
    assert len(rows) == PAGE.ranks_that_matter
    assert str(late) in rows
    assert lines[0].startswith(f"{ranks} of {ranks} ranks")
    assert f"… and {ranks - PAGE.ranks_that_matter} more ranks." not in printed(result, Part.TABLES)


def test_a_column_of_zeros_is_left_out(loader: Result) -> None:
    heading = next(line for line in printed(loader) if line.startswith("ms a step "))
    assert "data wait" in heading
    assert "copies" not in heading


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_wider_than_the_terminal(loader: Result, columns: int) -> None:
    lines = printed(loader, *Part, width=columns)
    assert max(map(len, lines[:-1])) <= columns
    assert not any("…" in line for line in printed(loader, width=columns))


def test_the_options_of_the_command(tmp_path: Path) -> None:
    sample = str(shutil.copytree(SAMPLES / "ddp-healthy", tmp_path / "run"))
    assert "Looked for, not found" not in diag("analyze", sample).stdout
    assert "Looked for, not found" in diag("analyze", sample, "--checked").stdout
    everything = diag("analyze", sample, "-v").stdout
    assert "Looked for, not found" in everything
    assert "Critical path" in everything
    assert "More: " not in everything

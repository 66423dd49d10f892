"""What ``diag analyze`` prints by default, and what stands behind it."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result, analyze, open_run
from diag.serve.server import SAMPLES
from diag.show.policy import PAGE
from diag.show.text import Part, print_report
from tests.command import diag
from tests.simulate import FORWARD, MS, Plan, simulate


def printed(result: Result, *parts: Part, width: int = 110) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False)
    print_report(result, console, parts, ["RUN"])
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


@pytest.fixture(scope="module")
def loader() -> Result:
    return open_run(SAMPLES / "fsdp2-slow-loader-rank1")


def test_the_answer_names_the_rank_what_to_do_and_how_to_go_on(loader: Result) -> None:
    lines = printed(loader, width=400)
    assert len(lines) <= 11
    assert lines[1] == loader.verdict.headline
    assert lines[2].startswith("At fault: rank 1 on sample; confidence")
    assert lines[4].startswith("What to do: Look at the input of rank 1")
    assert lines[-1] == "More: --evidence --checked --tables, or -v for all. In the browser: diag dashboard RUN"


@pytest.mark.parametrize(
    ("part", "says"), [(Part.EVIDENCE, "costs: data wait"), (Part.CHECKED, "Looked for, not found"),
                       (Part.TABLES, "Critical path: ")]
)  # fmt: skip
def test_each_part_is_printed_where_it_is_asked_for(loader: Result, part: Part, says: str) -> None:
    assert says not in "\n".join(printed(loader))
    shown = printed(loader, part)
    assert says in "\n".join(shown)
    assert f"--{part}" not in shown[-1]


def test_a_finding_that_the_headline_does_not_name_has_a_line() -> None:
    lines = printed(open_run(SAMPLES / "ddp-straggler-rank0"), width=400)
    assert [line for line in lines if line.startswith("Also found: Exposed communication takes 9.2 ms a step")]


def test_of_many_ranks_those_at_fault_have_a_line() -> None:
    ranks = PAGE.most_ranks_in_full + 4
    late = ranks - 1
    result = analyze(simulate(Plan(ranks=ranks, extra=lambda _, rank: {FORWARD: 60 * MS * (rank == late)})))
    lines = printed(result)
    rows = [line.split()[0] for line in lines[lines.index(next(row for row in lines if row.startswith("rank"))) + 1 :]]
    assert str(late) in rows[: PAGE.ranks_that_matter]
    assert f"… and {ranks - PAGE.ranks_that_matter} more ranks." in lines
    assert f"… and {ranks - PAGE.ranks_that_matter} more ranks." not in printed(result, Part.TABLES)


def test_a_column_of_zeros_is_left_out(loader: Result) -> None:
    heading = next(line for line in printed(loader) if line.startswith("rank "))
    assert "data wait" in heading
    assert "copies" not in heading


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_wider_than_the_terminal(loader: Result, columns: int) -> None:
    lines = printed(loader, *Part, width=columns)
    assert max(map(len, lines[:-1])) <= columns
    assert not any("…" in line for line in printed(loader, width=columns))


@pytest.mark.slow
def test_the_options_of_the_command(tmp_path: Path) -> None:
    sample = str(shutil.copytree(SAMPLES / "ddp-healthy", tmp_path / "run"))
    assert "Looked for, not found" not in diag("analyze", sample).stdout
    assert "Looked for, not found" in diag("analyze", sample, "--checked").stdout
    everything = diag("analyze", sample, "-v").stdout
    assert "Looked for, not found" in everything
    assert "Critical path" in everything
    assert "More: " not in everything

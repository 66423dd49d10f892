"""The benchmark of tools on failures: its protocol, its table of classes, its page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diag.hang.classes import CLASSES
from tests.bench.failures.cases import SETS
from tests.bench.failures.score import ToolError, answers_of, judged, table, tool_of, tools_of
from tests.hang.real import Case
from tests.hang.real.first_runs import FirstRun, first_runs, total

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmarks/failures.md"


def _tool(tmp_path: Path, program: str) -> str:
    path = tmp_path / "tool.py"
    path.write_text(program)
    return f"mine={sys.executable} {path}"


def _case(**truth: object) -> Case:
    given = {"fault_class": "cuda_oom", "also": (), "culprits": ({"rank": 1},), "innocent": ()} | truth
    return Case(id="one", thread="", names=(), decided_by="", logs=(), file="", **given)  # type: ignore[arg-type]


def test_a_tool_answers_a_folder_with_a_line(tmp_path: Path) -> None:
    program = (
        'import sys\nfor line in sys.stdin: print(\'{"class": "cuda_oom", "why": "%s"}\' % line.strip(), flush=True)'
    )
    tool = tool_of(_tool(tmp_path, program))
    answers, cpu_s = answers_of(tool, [tmp_path / "a", tmp_path / "b"])
    assert [answer["why"] for answer in answers] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert cpu_s > 0


@pytest.mark.parametrize("program", ["", "print('Error: no', flush=True)", "print('[1]', flush=True)"])
def test_a_tool_that_breaks_the_protocol_is_refused(tmp_path: Path, program: str) -> None:
    with pytest.raises(ToolError, match="mine"):
        answers_of(tool_of(_tool(tmp_path, program)), [tmp_path] * 2)


def test_a_tool_needs_a_name_and_a_command() -> None:
    with pytest.raises(ToolError, match="NAME=COMMAND"):
        tool_of("/usr/bin/tool")


def test_what_a_tool_cannot_read_is_not_held_against_it() -> None:
    tool = tool_of("mine=true")
    cases = [_case(), _case(), _case(fault_class="healthy", culprits=())]
    answers = [{"class": "cuda_oom", "culprits": [{"rank": 2}]}, {"not_applicable": "no dumps"}, {"class": "healthy"}]
    row = judged(tool, cases, answers, 0.5)
    assert (row.right_class, row.not_applicable, row.culprits_right, row.culprits_asked) == (2, 1, 0, 1)
    assert (row.accused, row.called_healthy, row.causes) == (1, 0, 1)
    assert "| mine | 2 of 2 | 1 of 1 | 0 of 1 | 1 | 0 | 0 | 1 | 1.0 | 0.5 |" in table([row])


def test_a_failure_that_is_called_healthy_is_counted() -> None:
    row = judged(tool_of("mine=true"), [_case()], [{"class": "healthy"}], 0.0)
    assert (row.right_class, row.called_healthy) == (0, 1)


def test_a_word_of_several_classes_is_right_for_each_and_says_how_many() -> None:
    tool = tools_of(environment={"NVRX_PYTHON": "python"})["torch_flight_recorder"]
    row = judged(tool, [_case(fault_class="desync")], [{"class": "not all ranks joined", "culprits": [{"rank": 1}]}], 0)
    assert (row.right_class, row.culprits_right, row.classes_meant) == (1, 1, 2.0)


def test_a_word_without_a_class_is_an_error() -> None:
    tool = tools_of(environment={})["torch_flight_recorder"]
    with pytest.raises(ToolError, match="does not map"):
        judged(tool, [_case()], [{"class": "sunspots"}], 0)


def test_each_word_stands_for_classes_that_there_are() -> None:
    for tool in tools_of(environment={}).values():
        assert {meant for classes in tool.classes.values() for meant in classes} <= set(CLASSES), tool.name


def test_a_tool_that_is_not_installed_has_no_command() -> None:
    tools = tools_of(environment={})
    assert tools["nvrx_restart_agent"].command == ()
    assert tools["diag"].command


def test_the_page_has_each_tool_and_each_set() -> None:
    page = PAGE.read_text()
    assert [tool.title for tool in tools_of(environment={}).values() if tool.title not in page] == []
    assert [name for name in SETS if f"`{name}`" not in page] == []


def test_the_plain_search_reads_the_rank_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n[rank3]: RuntimeError: CUDA out of memory\n[rank1]: Timeout\n")
    tools = tools_of(environment={})
    first = answers_of(tools["search_first"], [tmp_path])[0][0]
    last = answers_of(tools["search_last"], [tmp_path])[0][0]
    assert (first["class"], first["culprits"]) == ("out of memory", [{"rank": 3}])
    assert (last["class"], last["culprits"]) == ("timeout", [{"rank": 1}])


def _figures(run: FirstRun) -> tuple[str, str]:
    return f"{run.right_class[0]} of {run.right_class[1]}", f"{run.culprit[0]} of {run.culprit[1]}"


def test_pages_have_the_first_runs_that_are_kept() -> None:
    """README and the pages sum up one file; sets with a kind truth, or by somebody who knew the rules, are left out."""
    runs = first_runs()
    strict = total([run for run in runs if not run.note])
    right, culprit = _figures(strict)
    assert f"class in {right}, culprit in {culprit}" in (ROOT / "README.md").read_text()
    page = (ROOT / "docs/benchmarks/public-failures.md").read_text()
    for run in (strict, *runs[3:]):
        assert "| {} | {} |".format(*_figures(run)) in page, run.name
    logs = (ROOT / "tests/bench/REAL_LOGS.md").read_text()
    for run in runs:
        assert any(run.name in line and _figures(run)[0] in line for line in logs.splitlines()), run.name
    assert "| {} |  | {} |".format(*_figures(total(runs))) in PAGE.read_text()

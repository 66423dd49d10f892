"""`diag attach --check` says whether the recorder would start where a launcher starts the training."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from diag.collectors.layout import RUN_DIR_VARIABLE
from diag.collectors.settings import ATTACH_VARIABLE, SITE
from diag.watch.probing import Answer, check
from tests.command import diag, diag_process

WELL = Answer(
    "node1", "3.11.7", "/usr/bin/python", True, True, False, True, True, "2.13.0", True, seen=True, free=10**9
)


def problem_of(**changed: object) -> str:
    """The one problem of an answer that is well but for these fields."""
    fields = {name: getattr(WELL, name) for name in WELL.__struct_fields__} | changed
    (problem,) = Answer(**fields).problems("/opt/site", "/shared/run", 10**6)
    return problem


def test_what_each_answer_means() -> None:
    assert WELL.problems("/opt/site", "/shared/run", 10**6) == []
    assert "hand on" in problem_of(on_path=False, loaded=False)
    assert "/opt/site" in problem_of(site=False, loaded=False)
    assert "torch" in problem_of(torch=None)
    assert "do not share" in problem_of(seen=False)
    assert "/shared/run cannot be written" in problem_of(unwritable="Permission denied", free=None)
    assert "free" in problem_of(free=1)
    assert "packer" in problem_of(packer=False)


def test_a_python_that_would_record(tmp_path: Path) -> None:
    """Two nodes, by a stand-in for their launcher; nothing is left behind."""
    nodes = ["sh", "-c", 'for node in 0 1; do "$@" | sed "s/^/$node: /"; done', "sh", sys.executable]
    said = diag_process("attach", "--check", "--out", tmp_path / "run", "--", *nodes)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.split()[:2] == ["2", "processes"]
    assert "The recorder would start." in said.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["env", "-u", ATTACH_VARIABLE, sys.executable], "hand on"),
        ([sys.executable, "-I"], "ignores PYTHONPATH"),
        (["true"], "no Python answered"),
        (["no-such-program"], "cannot start"),
    ],
)
def test_what_would_not_record(tmp_path: Path, command: list[str], expected: str) -> None:
    said = diag("attach", "--check", "--out", tmp_path, "--", *command)
    assert said.returncode != 0
    assert expected in said.stdout + said.stderr


def test_a_container_without_the_recorder(tmp_path: Path) -> None:
    site = str(SITE / "of another machine")
    variables = {ATTACH_VARIABLE: "join", RUN_DIR_VARIABLE: str(tmp_path), "PYTHONPATH": site}
    checked = check([sys.executable, "-S"], variables, site, str(tmp_path), "", 1)
    ((_, problem),) = checked.problems
    assert site in problem


def test_a_recorder_that_this_python_cannot_load(tmp_path: Path) -> None:
    """One of its modules, which a training loads when its first step begins."""
    recorder = Path(shutil.copytree(SITE.parents[1], tmp_path / "collectors", ignore=shutil.ignore_patterns("*.pyc")))
    site = str(recorder / SITE.relative_to(SITE.parents[1]))
    variables = {ATTACH_VARIABLE: "join", RUN_DIR_VARIABLE: str(tmp_path / "run"), "PYTHONPATH": site}
    assert check([sys.executable], variables, site, str(tmp_path / "run"), "", 1).problems == []
    with (recorder / "masking.py").open("a") as file:
        file.write("import of_a_later_python\n")
    checked = check([sys.executable], variables, site, str(tmp_path / "run"), "", 1)
    ((_, problem),) = checked.problems
    assert "the recorder: ModuleNotFoundError" in problem


def test_a_run_that_is_there_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    said = diag("attach", "--check", "--out", tmp_path)
    assert (said.returncode, "already holds a run" in said.stderr) == (1, True)


def test_a_command_belongs_to_the_check(tmp_path: Path) -> None:
    assert diag("attach", "--out", tmp_path / "run", "--", "srun").returncode == 2
    assert not (tmp_path / "run").exists()

"""examples/: the scripts train as they say, nothing in them is diag's, and the workflow's commands run."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.errors import ExitCode
from tests.command import analyze_json, diag_process

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = ("ddp.py", "fsdp2.py", "hf_trainer.py", "lightning_ddp.py")


def recorded_by(script: Path) -> list[str]:
    """The arguments of the ``diag run`` that the script's docstring shows, with this Python and the script's path."""
    docstring = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""
    (line,) = re.findall(r"^\s+diag (run .+)$", docstring, re.M)
    here = {f"examples/{script.name}": str(script), "python": sys.executable}
    return [here.get(word, word) for word in shlex.split(line)]


def test_there_are_four_and_they_are_short() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [script.name for script in scripts] == sorted(SCRIPTS)
    for script in scripts:
        text = script.read_text("utf-8")
        assert len(text.splitlines()) <= 60
        assert "diag" not in text.replace(ast.get_docstring(ast.parse(text), clean=False) or "", "")


@pytest.mark.parametrize("name", [SCRIPTS[0], *(pytest.param(name, marks=pytest.mark.matrix) for name in SCRIPTS[1:])])
def test_an_example_trains_and_is_analysed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = recorded_by(EXAMPLES / name)
    run = tmp_path / arguments[arguments.index("--out") + 1]
    ended = diag_process(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = analyze_json(run)
    assert result["run"]["world_size"] == 2
    assert len(result["steps"]) == 30
    assert result["verdict"]["headline"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]  # it leaves nothing of its own


WORKFLOW = EXAMPLES / "diag-check.yml"


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"].values()
    return list(job["steps"])


def test_the_workflow_is_one_of_github_s() -> None:
    """By the schema that check-jsonschema brings."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", WORKFLOW]
    ended = subprocess.run(check, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_the_workflow_installs_torch_for_cpus_and_an_extra_that_there_is() -> None:
    (install,) = (step["run"] for step in steps() if step.get("name") == "Install")
    torch, package = install.splitlines()
    assert torch.partition(" # ")[0] == "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    extra = re.fullmatch(r'pip install "diag\[(\w+)\] @ \$DIAG"', package)
    assert extra is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert extra[1] in project["optional-dependencies"]


@pytest.mark.matrix
def test_the_workflow_s_commands_train_check_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "ddp.py", "train.py")
    codes = {}
    for step in steps():
        program, *arguments = shlex.split(step.get("run", "pip"))
        if program == "diag":
            codes[arguments[0]] = diag_process(*arguments).returncode
    assert codes.pop("check") in (ExitCode.OK, ExitCode.GATE_EXCEEDED)  # as busy as this machine is
    assert codes == {"run": 0, "report": 0}
    (upload,) = (step["with"]["path"].split() for step in steps() if "upload" in step.get("uses", ""))
    assert all(Path(file).is_file() for file in upload)

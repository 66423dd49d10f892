"""No code of the current folder runs as ours: every process starts in one place, and imports skip the folder."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag import processes
from tests.patience import PATIENCE_S
from tests.test_who_opens_files import TOP, sources

ONE_PLACE = "diag/processes.py"
# Calls that start a process, or choose the program of one, by the module that they belong to. A fork runs our code.
STARTS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "posix_spawn", "posix_spawnp", "startfile"},
    "sys": {"executable"},
    "shutil": {"which"},
    "pty": {"spawn", "fork"},
    "runpy": {"run_path", "run_module"},
    "webbrowser": {"open", "open_new", "open_new_tab", "get"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "multiprocessing": {"Process", "Pool", "Manager", "get_context", "set_start_method"},
    "concurrent.futures": {"ProcessPoolExecutor"},
    "torch.multiprocessing": {"Process", "spawn", "start_processes", "get_context"},
}
OF_SYSTEM = re.compile(r"\b(os\.(system|popen|exec|spawn|posix_spawn|startfile)|sys\.executable)|from (os|sys) import")
_FOLDER = tempfile.TemporaryDirectory()  # analysing a run writes its verdict there
SAMPLE = shutil.copytree(TOP / "sample_traces" / "ddp-healthy", Path(_FOLDER.name, "sample"))


def starts(path: Path) -> Iterator[str]:
    """Each use of a name that starts a process, but for annotations."""
    text = path.read_text("utf-8")
    if not any(module in text for module in STARTS if module not in ("os", "sys")) and not OF_SYSTEM.search(text):
        return  # parsing takes most of the time
    tree = ast.parse(text)
    aliases = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    annotations = {
        id(part)
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if annotation is not None
        for part in ast.walk(annotation)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in STARTS:
            yield from (f"from {node.module} import {a.name}" for a in node.names if a.name in STARTS[node.module])
        if isinstance(node, ast.Attribute) and id(node) not in annotations:
            module = aliases.get(ast.unparse(node.value), "")
            if node.attr in STARTS.get(module, ()) or (module == "os" and node.attr.startswith(("exec", "spawn"))):
                yield ast.unparse(node)
        if isinstance(node, ast.Subscript) and "subprocess.Popen" in ast.unparse(node):
            annotations.update(map(id, ast.walk(node)))


def test_every_process_starts_in_one_place() -> None:
    found = {str(path.relative_to(TOP)): sorted(set(starts(path))) for path in sources()}
    assert len(found.pop(ONE_PLACE)) >= 4, "the test sees no start at all"
    assert {path: names for path, names in found.items() if names} == {}


POISON = (
    "import pathlib, os\npathlib.Path(os.environ['OWNED']).open('a').write(__name__ + chr(10))\nraise SystemExit(7)\n"
)
MODULES = (
    "__future__",
    "msgspec",
    "polars",
    "numpy",
    "json",
    "typing",
    "torch",
    "streamlit",
    "typer",
    "rich",
    "plotly",
    "isal",
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules, a package, programs and settings that all report when they run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in (*MODULES, "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(POISON)
    (folder / "diag").mkdir()
    for name in ("py-spy", "nvidia-smi", "xdg-open", "git"):
        (folder / name).write_text('#!/bin/sh\necho "$0" >> "$OWNED"\n')
        (folder / name).chmod(0o755)
    (folder / "matplotlibrc").write_text("backend: module://json\n")
    for rank in range(2):
        (folder / f"rank{rank}.json").write_text('{"traceEvents":[]}')
    return folder


def ended(command: list[str], folder: Path, **variables: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """The process, and what ran that should not have."""
    owned = folder.parent / "owned"
    owned.write_text("")
    environment = {**os.environ, "OWNED": str(owned), "DIAG_CACHE": str(folder.parent / "cache"), **variables}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    return ran, owned.read_text()


def test_reader_processes_do_not_import_from_the_folder(hostile: Path) -> None:
    command = [sys.executable, "-P", "-m", "diag", "analyze", ".", "--jobs", "2"]
    ran, owned = ended(command, hostile, PATH=f".:{os.environ['PATH']}")
    assert owned == ""
    assert "rank0.json" in ran.stdout + ran.stderr
    assert "killed" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("path", [None, ".", "/nowhere:"])
def test_commands_do_not_import_from_the_folder(hostile: Path, path: str | None) -> None:
    variables = {"PYTHONPATH": path} if path is not None else {}
    for name in ("sitecustomize", "usercustomize", "__future__") if path is not None else ():
        (hostile / f"{name}.py").unlink()  # what Python itself imports before any code of ours
    ran, owned = ended([sys.executable, "-m", "diag", "analyze", str(SAMPLE)], hostile, **variables)
    assert (owned, ran.returncode) == ("", 0), ran.stderr


def test_relative_entries_reach_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, ":.:/usr/bin:sub/folder:")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "cache")
    environment = processes.environment()
    assert [environment[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")] == ["/usr/bin"] * 3
    assert (environment["PYTHONPYCACHEPREFIX"], environment["PYTHONSAFEPATH"]) == ("", "1")


def test_programs_are_not_found_in_the_current_folder(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PATH", f".::{hostile.name}/..")
    assert processes.find_program("py-spy") is None


def test_a_browser_is_not_found_in_the_current_folder(hostile: Path) -> None:
    code = "from diag.processes import open_in_browser; print(open_in_browser('http://127.0.0.1:1'))"
    variables = {"PATH": "", "DISPLAY": ":9", "BROWSER": "git"}
    _, owned = ended([sys.executable, "-P", "-c", code], hostile, **variables)
    assert owned == ""


def test_the_users_training_keeps_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper.py").write_text("word = 'mine'")
    (tmp_path / "train.py").write_text("import helper, os; open('said', 'w').write(os.environ['PYTHONPATH'])")
    monkeypatch.chdir(tmp_path)
    command = processes.users_python("train.py")
    assert processes.start_training(command, {"PYTHONPATH": ".:lib"}).wait() == 0
    assert (tmp_path / "said").read_text() == ".:lib"

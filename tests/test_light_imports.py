"""What a command or a launcher imports before it does anything: importing torch or polars takes seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "polars", "numpy", "rich", "msgspec", "streamlit", "plotly", "pandas"}


@pytest.mark.parametrize(
    "module",
    [
        "diag",
        "diag.cli.main",
        "diag.watch.launch",
        "diag.words.terminal",
        "diag.hang.api",
        "diag.gate.budgets",
        "diag.serve.server",
    ],
)
def test_nothing_heavy_is_imported(module: str) -> None:
    code = f"import {module}, sys; print(sorted(set(sys.modules) & {HEAVY!r}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_commands_import_nothing_heavy_to_be_listed() -> None:
    code = f"""
import importlib, pkgutil, sys, diag.cli
for module in pkgutil.iter_modules(diag.cli.__path__):
    importlib.import_module(f"diag.cli.{{module.name}}")
print(sorted(set(sys.modules) & {HEAVY!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("traces_alone", [True, False])
def test_an_analysis_loads_nothing_that_it_does_not_use(traces_alone: bool, tmp_path: Path) -> None:
    """For traces, neither the records of how a run ended; for a run that ended well, no triage of logs."""
    sample = Path(__file__).parents[1] / "sample_traces" / "ddp-healthy"
    copy = tmp_path / "copy"
    if traces_alone:
        copy.mkdir()
        for rank in (0, 1):
            (trace,) = (sample / "ranks" / f"{rank:05}").glob("trace-*")
            shutil.copy(trace, copy / f"rank{rank}.json.gz")
    else:
        shutil.copytree(sample, copy)
    unused = ["app", "collectors.attach", "collectors.trainer", "export", "gate", "hang", "linting", "perfetto",
              "planning", "reports", "serve", "tune", "watch", *(["ended"] if traces_alone else [])]  # fmt: skip
    code = f"""
import sys, typer
from diag.cli.analyze import analyze
try:
    analyze([{str(copy)!r}], as_json=True)
except typer.Exit as ended:
    assert ended.exit_code in (0, 4), ended.exit_code
else:
    raise AssertionError
rooms = tuple("diag." + room for room in {unused!r})
print([name for name in sys.modules if name.startswith(rooms)], file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "[]\n"


@pytest.mark.parametrize(("traced", "read_with_polars"), [(False, False), (True, True)])
def test_polars_is_loaded_where_a_trace_is_read(traced: bool, read_with_polars: bool, tmp_path: Path) -> None:
    """Modules take it from ``diag.deferred`` and do not use it while they are loaded."""
    run = shutil.copytree(Path(__file__).parents[1] / "sample_traces" / "ddp-healthy", tmp_path / "run")
    if not traced:
        for trace in run.glob("ranks/*/trace-*"):
            trace.unlink()
    code = f"""
import sys, typer
from diag.cli.analyze import analyze
try:
    analyze([{str(run)!r}])
except typer.Exit as ended:
    assert ended.exit_code in (0, 4), ended.exit_code
print("polars" in sys.modules, file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == f"{read_with_polars}\n"


def test_what_masks_secrets_is_imported_by_what_is_recorded() -> None:
    """It takes longer than the rest that each process under ``diag run`` imports."""
    code = "import sys, diag.collectors.attach.life; print('diag.collectors.masking' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_dashboard_listens_before_it_imports_what_pages_need() -> None:
    """They are imported while the browser loads Streamlit's page, which takes it as long."""
    later = {"diag.api", "diag.app.pages", "numpy", "pandas", "polars", "starlette", "streamlit", "torch"}
    code = f"import diag.app.server, sys; print(sorted(set(sys.modules) & {later!r}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_server_is_started_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """A command that looks at its path first leaves the server to start as much later."""
    code = f"""
import sys
from diag import processes
from diag.cli.dashboard import dashboard
class Started(BaseException):
    pass
def start(*arguments, **named):
    raise Started
processes.start = start
try:
    dashboard({str(tmp_path)!r}, port=0, browser=False)
except Started:
    print(sorted(set(sys.modules) & {HEAVY - {"msgspec"}!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_only_what_runs_in_a_training_or_starts_one_imports_torch() -> None:
    """All else can be imported where torch is not installed; what it imports later, tests/packaging calls."""
    code = """
import importlib, json, pkgutil, sys, diag
sys.modules["torch"] = None
need = []
for module in pkgutil.walk_packages(diag.__path__, "diag.", onerror=lambda name: None):
    try:
        if not module.name.endswith(("__main__", "app.main")):  # which run what they hold
            importlib.import_module(module.name)
    except ImportError as error:
        assert "torch" in str(error), error
        need.append(module.name)
print(json.dumps(need))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    need = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert [name for name in need if not name.startswith("diag.collectors.")] == ["diag.watch.logs"]
    for name in ("layout", "records", "settings", "files", "reading", "trainer.faults", "trainer.strategies"):
        assert f"diag.collectors.{name}" not in need  # which the analyser and the command line read


@pytest.mark.matrix
def test_every_page_of_the_dashboard_is_shown_without_torch() -> None:
    pages = Path(__file__).with_name("app") / "test_every_page.py"
    code = f"import sys, pytest; sys.modules['torch'] = None; sys.exit(pytest.main(['-q', {str(pages)!r}]))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout

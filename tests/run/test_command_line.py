"""What every command keeps to: quick help, no heavy imports, documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diag.cli.main import COMMANDS
from diag.collectors.trainer.faults import FAULTS
from tests.command import diag

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "polars", "streamlit", "plotly", "numpy", "pandas", "msgspec", "jinja2", "prometheus_client")


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded once the code has run in a fresh interpreter."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "command", ["", "run", "analyze", "report", "compare", "check", "export", "metrics", "dashboard"]
)
def test_help_imports_nothing_heavy(command: str) -> None:
    arguments = [*filter(None, [command]), "--help"]
    code = (
        "from diag.cli.main import app\n"
        f"try:\n    app({arguments!r}, prog_name='diag')\nexcept SystemExit as end:\n    assert end.code == 0"
    )
    assert modules_after(code).isdisjoint(HEAVY)


def test_a_training_process_imports_torch_and_nothing_of_ours_but_the_collectors() -> None:
    loaded = modules_after("import diag.collectors.session, diag.collectors.trainer.loop")
    assert "torch" in loaded
    # Whether torch itself brings numpy is torch's business.
    assert loaded.isdisjoint({"polars", "streamlit", "plotly", "msgspec", "isal", "typer", "rich", "jinja2", "psutil"})


def test_a_report_needs_no_server() -> None:
    loaded = modules_after("import diag.app.html_report.render, diag.show.redact")
    assert "plotly" in loaded
    assert loaded.isdisjoint({"streamlit", "torch"})


def test_the_launcher_s_own_modules_need_no_torch() -> None:
    assert "torch" not in modules_after("import diag.watch.launch, diag.cli.run, diag.collectors.manifest")


def test_the_faults_are_listed() -> None:
    ended = diag("run", "--inject", "list")
    assert ended.returncode == 0
    assert all(name in ended.stdout for name in FAULTS)


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [command for command in COMMANDS if f"diag {command}" not in readme] == []


def test_the_version() -> None:
    assert re.match(r"diag \d+\.\d+", diag("--version").stdout)

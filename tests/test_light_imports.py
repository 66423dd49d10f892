"""What a command or a launcher imports before it does anything: importing torch or polars takes seconds."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_dashboard_listens_before_it_imports_what_pages_need() -> None:
    """They are imported while the browser loads Streamlit's page, which takes it as long."""
    later = {"diag.api", "diag.app.pages", "numpy", "pandas", "polars", "starlette", "streamlit", "torch"}
    code = f"import diag.app.server, sys; print(sorted(set(sys.modules) & {later!r}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

"""Calls ``diag`` as a user does, but for what Python and its libraries take to start.

Where that is what is tested, and where a signal is sent or an output read meanwhile, tests start ``python -m diag``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.forked import run_forked
from tests.patience import PATIENCE_S


def diag(*arguments: str | Path, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Runs ``diag`` with the arguments in a process of its own; output as text, exit code not checked."""
    command = ["-m", "diag", *map(str, arguments)]
    ended = run_forked(command, [os.environ], timeout)
    return subprocess.CompletedProcess(command, ended.exit_code, ended.stdout, ended.stderr)


def analyze_json(*paths: Path, expect: int = 0) -> dict[str, Any]:
    """``diag analyze --json``, which must end with the exit code ``expect`` and print nothing but JSON."""
    ended = diag("analyze", *paths, "--json")
    assert ended.returncode == expect, ended.stderr or ended.stdout
    assert "Traceback" not in ended.stderr
    content: dict[str, Any] = json.loads(ended.stdout)
    return content

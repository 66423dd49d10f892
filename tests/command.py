"""Calls the installed ``diag`` as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def diag(*arguments: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs ``diag`` with the arguments; output as text, exit code not checked."""
    command = [sys.executable, "-m", "diag", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def analyze_json(*paths: Path, expect: int = 0) -> dict[str, Any]:
    """``diag analyze --json``, which must end with the exit code ``expect`` and print nothing but JSON."""
    ended = diag("analyze", *paths, "--json")
    assert ended.returncode == expect, ended.stderr or ended.stdout
    assert "Traceback" not in ended.stderr
    content: dict[str, Any] = json.loads(ended.stdout)
    return content

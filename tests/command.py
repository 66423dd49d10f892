"""Calls ``diag`` as a user does, but for what Python and its libraries take to start.

Where that is what is tested, and where a signal is sent or an output read meanwhile, tests start ``python -m diag``.
"""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from diag import policy
from diag.cli.main import main
from tests.forked import forking, run_forked
from tests.patience import PATIENCE_S


def diag(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that reads and prints, in this process: a fork of one that has imported PyTorch takes longer than
    most of them do. Output as text, exit code not checked."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    words = ["diag", *map(str, arguments)]
    code = 0
    threshold = gc.get_threshold()
    # What diag freezes before it ends would stay for ever here.
    with (
        policy.changed(),
        patch.dict(os.environ),
        patch.multiple(sys, argv=words, stdout=out, stderr=err),
        patch.object(gc, "freeze"),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            gc.set_threshold(*threshold)
    text, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(words, code, text, errors)


def diag_process(*arguments: str | Path, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Runs a command that trains, serves, waits or may not end, in a process of its own. `diag run` leaves out the
    verdict, whose analysis takes seconds, unless the arguments begin with it and another option. The ranks of the
    bundled trainer are forked like the command; those of a script are not, as ``diag`` has to find its way into these.
    """
    words = list(map(str, arguments))
    command = ["-m", "diag", *words]
    if words[0] == "run" and "--help" not in words:
        command[3:3] = ["--quiet"]
    ended = run_forked(command, [forking()], timeout)
    return subprocess.CompletedProcess(command, ended.exit_code, ended.stdout, ended.stderr)


def analyze_json(*paths: Path, expect: int = 0) -> dict[str, Any]:
    """``diag analyze --json``, which must end with the exit code ``expect`` and print nothing but JSON."""
    ended = diag("analyze", *paths, "--json")
    assert ended.returncode == expect, ended.stderr or ended.stdout
    assert "Traceback" not in ended.stderr
    content: dict[str, Any] = json.loads(ended.stdout)
    return content

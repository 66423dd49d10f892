"""One training of a tuning: ``diag run`` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from diag.collectors.files import open_private
from diag.collectors.reading import LOG_TAIL_BYTES, read_tail

_LINES = 3


def train(arguments: Sequence[str], folder: Path) -> str:
    """``diag run`` with these arguments into this run directory; what it printed is kept beside it. Returns why it
    failed, "" where it did not."""
    command = [sys.executable, "-m", "diag", "run", *arguments, "--out", str(folder)]
    printed = folder.with_suffix(".log")
    with open_private(printed) as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code == 0:
        return ""
    tail, _ = read_tail(printed, LOG_TAIL_BYTES)
    said = [line for line in tail.decode(errors="replace").splitlines() if line.startswith("diag: ")]
    return f"exit code {code}" + (f", {said[-1].removeprefix('diag: ')}" if said else f"; see {printed}")

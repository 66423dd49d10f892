"""A dashboard as a user starts it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def dashboard(path: Path, *options: str, stderr: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Started as a user would; its port. ``stderr``: what it prints there is kept."""
    code = "import sys; from diag.cli.main import main; sys.argv[0] = 'diag'; main()"
    command = [sys.executable, "-c", code, "dashboard", str(path), "--port", "0", "--no-browser", *options]
    errors = subprocess.PIPE if stderr else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://[\d.]+:(\d+)", line)
            assert found, line
            yield process, int(found[1])
        finally:
            process.terminate()  # not killed: its server would stay
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

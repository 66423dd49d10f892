"""A dashboard as a user starts it."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port


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


@contextlib.contextmanager
def streamlit(script: Path) -> Iterator[int]:
    """Any script, served as the dashboard is; the port."""
    port = free_port()
    settings = {"headless": "true", "address": "127.0.0.1", "port": port, "fileWatcherType": "none"}
    options = [f"--server.{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "streamlit", "run", str(script), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while not _answers(port):
                assert process.poll() is None
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

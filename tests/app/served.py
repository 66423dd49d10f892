"""A dashboard as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.forked import forked_python, forking
from tests.patience import PATIENCE_S
from tests.ports import free_port

# Ports of dashboards that have ended, for the next: a browser keeps code by the address that it came from.
_FREED: list[str] = []


@dataclass(frozen=True)
class Served:
    """A dashboard that runs. ``printed``: the address as its user gets it; ``token``: empty where there is none."""

    process: subprocess.Popen[str]
    printed: str

    @property
    def port(self) -> int:
        return urlsplit(self.printed).port or 80

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.printed).query).get("token", [""])[0]

    def at(self, path: str = "") -> str:
        """A deep link as one gives it to a browser that has not been there before."""
        separator = "&" if "?" in path else "?"
        token = f"{separator}token={self.token}" if self.token else ""
        return f"http://127.0.0.1:{self.port}/{path}{token}"

    def ask(
        self, path: str = "/_stcore/health", *, method: str = "GET", authorized: bool = True, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. ``headers``: with underscores for hyphens, as ``sec_fetch_site``."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if authorized and self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@contextlib.contextmanager
def dashboard(path: Path, *options: str, stderr: bool = False, forked: bool = True, **started: Any) -> Iterator[Served]:
    """Started as a user would. ``stderr``: what it prints there is kept; ``forked``: from a process that has imported
    what it needs, as importing takes longer than what most tests look at; ``started``: further arguments of Popen."""
    code = "import sys; from diag.cli.main import main; sys.argv[0] = 'diag'; main()"
    browser = () if "--browser" in options else ("--no-browser",)
    python = forked_python("dashboards") if forked else [sys.executable]
    command = [*python, "-c", code, "dashboard", str(path), *browser, *options]
    if forked:
        started["env"] = forking("dashboards")
    port = "" if "--port" in options else _FREED.pop() if _FREED else str(free_port())
    if port:
        command += ["--port", port]
    errors = subprocess.PIPE if stderr else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, **started) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            yield Served(process, found[0])
        finally:
            process.terminate()  # not killed: its server would stay
            try:
                process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            else:
                if port:
                    _FREED.append(port)


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

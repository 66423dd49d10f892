"""Starts the dashboard: Streamlit in a process of its own, reachable from this machine only."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from pathlib import Path

from diag.errors import DiagError
from diag.signals import ended_by_signals

ADDRESS = "127.0.0.1"
_PACKAGE = Path(__file__).parent
# A path and not an import: only the command line may depend on the app, and Streamlit wants a script.
SCRIPT = _PACKAGE / "app" / "main.py"
SAMPLES = _PACKAGE / "sample_traces"

_STDERR = 2  # what the server prints is not our answer
_START_S = 60.0  # a cold start on a slow disk takes about ten
_STOP_S = 5.0
# Blue, not Streamlit's red: red means critical. Both are given, so that the browser's preference decides.
_ACCENT = {"light": "#0072b2", "dark": "#4ba3e3"}


def serve_dashboard(path: Path | None, *, port: int, open_browser: bool) -> None:
    """Serves until Ctrl-C. ``path``: a run or a folder of runs, None for the samples; ``port`` 0 takes a free one.
    DiagError where there is nothing to show, the port is taken or the server does not start."""
    path = _existing(path)
    port = _free_port(port)
    with ended_by_signals():
        server = subprocess.Popen(_command(path, port, open_browser), stdin=subprocess.DEVNULL, stdout=_STDERR)
        try:
            _wait_until_ready(server, port)
            print(f"Dashboard of {path}: http://{ADDRESS}:{port} (Ctrl-C ends it)", flush=True)
            code = server.wait()
        except KeyboardInterrupt:
            return
        finally:
            _end(server)
    if code:
        raise DiagError(f"the dashboard's server ended with exit code {code}", hint="what it printed is above")


def _existing(path: Path | None) -> Path:
    if path is None:
        if not SAMPLES.is_dir():
            raise DiagError("this installation has no sample runs", hint="give a run: diag dashboard RUN")
        return SAMPLES
    if not path.exists():
        raise DiagError("no such file or folder", path=path, hint="give a run directory or a folder of runs")
    return path


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        # As the server will: a port that was closed a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise DiagError(
                f"port {port} on {ADDRESS} cannot be used: {error.strerror}",
                hint="another dashboard may be running; `--port 0` takes a free port",
            ) from error
        return int(probe.getsockname()[1])


def _command(path: Path, port: int, open_browser: bool) -> list[str]:
    """``-P``: the folder that it is called in may hold a ``streamlit.py`` or a ``diag`` folder."""
    options = {
        "server.address": ADDRESS,
        "server.port": port,
        "server.headless": not open_browser,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": False,
        "logger.level": "warning",
        "logger.hideWelcomeMessage": True,
        "browser.serverAddress": ADDRESS,
        "browser.serverPort": port,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorLinks": False,
        **{f"theme.{mode}.primaryColor": colour for mode, colour in _ACCENT.items()},
    }
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    return [sys.executable, "-P", "-m", "streamlit", "run", str(SCRIPT), *flags, "--", str(path)]


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DiagError(
                f"the dashboard's server ended with exit code {server.returncode} before it was ready",
                hint="what it printed is above; try another --port",
            )
        if _healthy(port):
            return
        time.sleep(0.1)
    raise DiagError(
        f"the dashboard's server did not answer within {_START_S:.0f} s", hint="try again, or `diag report`"
    )


def _healthy(port: int) -> bool:
    # Not urllib: it would ask a proxy from the environment.
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=1)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(server: subprocess.Popen[bytes]) -> None:
    """Streamlit stops at SIGTERM; one that waits for a browser that does not hang up is killed."""
    if server.poll() is None:
        server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()

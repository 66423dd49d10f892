"""Starts the dashboard: Streamlit in a process of its own, reachable from this machine only unless told otherwise."""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from diag.errors import DiagError, readable
from diag.signals import ended_by_signals

ADDRESS = "127.0.0.1"
_LOCAL = {"0.0.0.0": ADDRESS, "::": "::1"}  # how a server that listens everywhere is reached from here
_PACKAGE = Path(__file__).parent
# A path and not an import: only the command line may depend on the app, and Streamlit wants a script.
SCRIPT = _PACKAGE / "app" / "main.py"
SAMPLES = _PACKAGE / "sample_traces"

_MOST_UPLOAD_MB = 200  # of each file, which is held in memory
_SERVER = "diag.app.server"  # by name, as the script is by its path
_STDERR = 2  # what the server prints is not our answer
_START_S = 60.0  # a cold start on a slow disk takes about ten
_STOP_S = 5.0
# Blue, not Streamlit's red: red means critical. Both are given, so that the browser's preference decides.
_ACCENT = {"light": "#0072b2", "dark": "#4ba3e3"}


def serve_dashboard(path: Path | None, *, port: int, open_browser: bool, host: str = ADDRESS) -> None:
    """Serves until Ctrl-C. ``path``: a run or a folder of runs, None for the samples; ``port`` 0 takes a free one;
    ``host``: the address that is listened on. DiagError where there is nothing to show, the port is taken or the server
    does not start."""
    path = _existing(path)
    port = _free_port(host, port)
    with ended_by_signals():
        server = subprocess.Popen(_command(path, host, port, open_browser), stdin=subprocess.DEVNULL, stdout=_STDERR)
        try:
            _wait_until_ready(server, host, port)
            if not _is_this_machine(host):
                print(f"Whoever reaches {host} can read the runs: there is no password.", file=sys.stderr, flush=True)
            print(f"Dashboard of {path}: http://{_written(host)}:{port} (Ctrl-C ends it)", flush=True)
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
    if not os.path.lexists(path):
        raise DiagError("no such file or folder", path=path, hint="give a run directory or a folder of runs")
    with readable(path):  # said here, not on each page
        if stat.S_ISDIR(path.stat().st_mode):
            os.scandir(path).close()
    return path


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _free_port(host: str, port: int) -> int:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise DiagError(
            f"{host} is no address: {error.strerror}", hint=f"`--host {ADDRESS}` is this machine"
        ) from error
    with socket.socket(family, kind, protocol) as probe:
        # As the server will: a port that was closed a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise DiagError(
                f"port {port} on {host} cannot be used: {error.strerror}",
                hint="another dashboard may be running; `--port 0` takes a free port",
            ) from error
        return int(probe.getsockname()[1])


def _command(path: Path, host: str, port: int, open_browser: bool) -> list[str]:
    """``-P``: the folder that it is called in may hold a ``streamlit.py`` or a ``diag`` folder."""
    options = {
        "server.address": host,
        "server.port": port,
        "server.headless": not open_browser,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": _MOST_UPLOAD_MB,
        "server.showEmailPrompt": False,
        "logger.level": "warning",
        "logger.hideWelcomeMessage": True,
        "browser.serverAddress": socket.gethostname() if host in _LOCAL else host,
        "browser.serverPort": port,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorLinks": False,
        **{f"theme.{mode}.primaryColor": colour for mode, colour in _ACCENT.items()},
    }
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    return [sys.executable, "-P", "-m", _SERVER, "run", str(SCRIPT), *flags, "--", str(path)]


def _wait_until_ready(server: subprocess.Popen[bytes], host: str, port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DiagError(
                f"the dashboard's server ended with exit code {server.returncode} before it was ready",
                hint="what it printed is above; try another --port",
            )
        if _healthy(_LOCAL.get(host, host), port):
            return
        time.sleep(0.1)
    raise DiagError(
        f"the dashboard's server did not answer within {_START_S:.0f} s", hint="try again, or `diag report`"
    )


def _healthy(host: str, port: int) -> bool:
    # Not urllib: it would ask a proxy from the environment.
    connection = http.client.HTTPConnection(host, port, timeout=1)
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

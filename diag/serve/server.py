"""Starts the dashboard: Streamlit in a separate process, by default reachable only from this machine and only with the
token that is printed.

Users wait for it to start: modules that are needed later are imported where they are used, while that process
starts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from diag import processes
from diag.errors import DiagError, require, require_listable
from diag.words.places import shown
from diag.words.terminal import say

from . import guard
from .guard import Guard

# -- signals -----------------------------------------------------------------------------------------------------------
#
# Signals that end the process raise one exception.


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal raise KeyboardInterrupt as Ctrl-C does, so that nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), _interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a signal handler
    raise KeyboardInterrupt


ADDRESS = "127.0.0.1"
_LOCAL = {"0.0.0.0": ADDRESS, "::": "::1"}  # local addresses of a server that listens on all of them
_NOBODY = "diag.invalid"  # a host name that no server has (RFC 6761)
_PACKAGE = Path(__file__).parents[1]
# A path and not an import: only the command line may depend on the app, and Streamlit needs a script.
SCRIPT = _PACKAGE / "app" / "main.py"
SAMPLES = _PACKAGE / "sample_traces"

_MOST_UPLOAD_MB = 200  # of each file, which is held in memory
_SERVER = "diag.app.server"  # by name and not an import, as the script
_SETTINGS = "STREAMLIT_"  # prefix of the environment variables that set Streamlit's options
_STDERR = 2  # the server's output goes here: it is not part of the command's own output
_START_S = 60.0  # a cold start on a slow disk takes about ten
_STOP_S = 5.0
_POLL_S = 0.01
# Blue instead of Streamlit's red: red means critical. Both modes are set, so that the browser's preference decides.
_ACCENT = {"light": "#0072b2", "dark": "#4ba3e3"}


def serve_dashboard(
    path: Path | None,
    *,
    port: int,
    open_browser: bool,
    host: str = ADDRESS,
    token: bool = True,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serves until Ctrl-C. ``path``: a run or a folder of runs, which need not exist yet, None for the samples;
    ``port``: 0 takes a free one; ``host``: the address to listen on; ``token``: requests need the token of the printed
    address; ``allowed_hosts``: further host names of the server, as NAME or NAME:PORT. DiagError if there is nothing to
    show, the port is taken or the server does not start."""
    require("streamlit", "streamlit, which the dashboard needs,", "dashboard")
    path = _existing(path)
    address, port = _free_port(host, port)
    guarded = guard.listening(host, address, allowed_hosts, guard.new_token() if token else None, browser=True)
    name = shown(str(path))  # of what a local copy was made of
    handed = json.dumps({"guard": asdict(guarded), "options": _options(host, address, port), "name": name})
    with ended_by_signals():
        server = processes.start(_command(path), _environment(), stdin=subprocess.PIPE, stdout=_STDERR)
        try:
            _hand_over(server, handed)
            _wait_until_ready(server, address, port, guarded)
            _say_who_can_read(address, guarded)
            opened = guard.url(_LOCAL.get(address, host), port, token=guarded.token)
            say(f"Dashboard of {name}: {opened} (Ctrl-C ends it)")
            if address in _LOCAL:
                elsewhere = guard.url(socket.gethostname(), port, token=guarded.token)
                say(f"From another machine: {elsewhere}")
            with _shown_in_browser(opened, open_browser):
                code = server.wait()
        except KeyboardInterrupt:
            return
        finally:
            _end(server)
    if code:
        raise DiagError(f"the dashboard's server ended with exit code {code}", hint="its output is above")


def _say_who_can_read(address: str, guarded: Guard) -> None:
    if guarded.token is None and guard.is_loopback(address):
        warning = "There is no token: every user and every program of this machine can read the runs."
    elif guarded.token is None:
        warning = f"There is no token: anyone who can reach {address} can read the runs."
    elif not guard.is_loopback(address):
        warning = f"Whoever reaches {address} and has the token can read the runs. The connection is not encrypted."
    else:
        return
    say(warning, err=True)


def _existing(path: Path | None) -> Path:
    if path is None:
        if not SAMPLES.is_dir():
            raise DiagError("this installation has no sample runs", hint="give a run: diag dashboard RUN")
        return SAMPLES
    folder = path
    if "::" in str(path):  # may be a job in a folder, FOLDER::NAME
        from diag.rundir.runs import split_job

        folder = Path(split_job(path)[0])
    if not os.path.lexists(folder):
        say(f"{path} does not exist yet: the page waits for it.", err=True)
        return path
    require_listable(folder)  # an error here, not on each page
    return path


def _free_port(host: str, port: int) -> tuple[str, int]:
    """The numeric address and the port to listen on."""
    family, address = guard.resolved(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port that was closed a moment ago counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise DiagError(
                f"port {port} on {host} cannot be used: {error.strerror}",
                hint="another dashboard may be running; `--port 0` takes a free port",
            ) from error
        return address[0], int(probe.getsockname()[1])


def _options(host: str, address: str, port: int) -> dict[str, Any]:
    """Streamlit's options. Those that matter for security are set explicitly, even to Streamlit's default."""
    return {
        "server.address": address,
        "server.port": port,
        "server.headless": True,  # this module opens the browser: Streamlit does not know the token
        "server.fileWatcherType": "none",
        "server.maxUploadSize": _MOST_UPLOAD_MB,
        "server.showEmailPrompt": False,
        "server.enableCORS": True,
        "server.corsAllowedOrigins": [],
        "server.enableXsrfProtection": True,
        "server.xsrfCookieSameSite": "strict",
        "server.allowedHosts": [],  # checked by the guard, for every path and not only the WebSocket
        "server.trustedUserHeaders": {},
        "server.enableStaticServing": False,
        "server.enableAgentApi": False,
        "server.scriptHealthCheckEnabled": False,
        "server.baseUrlPath": "",
        "server.sslCertFile": "",
        "server.sslKeyFile": "",
        "secrets.files": [],
        "global.developmentMode": False,
        "global.e2eTest": False,
        "global.unitTest": False,
        "logger.level": "warning",
        "logger.hideWelcomeMessage": True,
        "browser.serverAddress": host,
        "browser.serverPort": port,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorLinks": False,
        "client.allowedOrigins": [],  # pages that may frame the dashboard and send it messages
        **{f"theme.{mode}.primaryColor": colour for mode, colour in _ACCENT.items()},
    }


def _command(path: Path) -> list[str]:
    return processes.python("-m", _SERVER, str(SCRIPT), str(path))


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(_SETTINGS)}


def _hand_over(server: subprocess.Popen[bytes], text: str) -> None:
    assert server.stdin is not None
    try:
        with server.stdin as pipe:
            pipe.write(text.encode())
    except BrokenPipeError:
        pass  # the server has ended; `_wait_until_ready` reports its exit code


def _wait_until_ready(server: subprocess.Popen[bytes], address: str, port: int, guarded: Guard) -> None:
    """Waits until the server answers a request with the token and refuses strangers. It serves its page before
    Streamlit is imported."""
    deadline = time.monotonic() + _START_S
    local = _LOCAL.get(address, address)
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DiagError(
                f"the dashboard's server ended with exit code {server.returncode} before it was ready",
                hint="its output is above; try another --port",
            )
        strangers = [(_asked(local, port, guarded.token, host=_NOBODY), HTTPStatus.FORBIDDEN)]
        if guarded.token is not None:
            strangers.append((_asked(local, port, None), HTTPStatus.UNAUTHORIZED))
        if any(status == HTTPStatus.OK for status, _ in strangers):
            raise DiagError(
                "the dashboard's server answers without the token: this version of Streamlit bypasses the guard",
                hint="install another version of Streamlit, or use `diag report`",
            )
        refused = all(status == expected for status, expected in strangers)
        if refused and _asked(local, port, guarded.token) == HTTPStatus.OK:
            return
        time.sleep(_POLL_S)
    raise DiagError(
        f"the dashboard's server did not answer within {_START_S:.0f} s", hint="try again, or `diag report`"
    )


def _asked(address: str, port: int, token: str | None, host: str | None = None) -> int | None:
    """The HTTP status of the page, None without an answer. ``host``: the Host header, else the address."""
    import http.client

    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if host is not None:
        headers["Host"] = host
    # Not urllib: it would use a proxy from the environment.
    connection = http.client.HTTPConnection(address, port, timeout=1)
    try:
        connection.request("GET", "/", headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@contextmanager
def _shown_in_browser(url: str, wanted: bool) -> Iterator[None]:
    """Opens a page that redirects to the address. The token must not be on the browser's command line, which other
    users of the machine can read. Only this user can read the page, which is removed when the server ends."""
    if not wanted or not _has_windows():
        yield
        return
    import html
    import tempfile

    with tempfile.TemporaryDirectory(prefix="diag-dashboard-") as folder:  # readable by this user only
        page, link = Path(folder) / "open.html", html.escape(url)
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={link}">'
            f'<meta name="referrer" content="no-referrer"><title>diag</title><a href="{link}">Dashboard</a>\n',
            "utf-8",
        )
        processes.open_in_browser(page.as_uri())
        yield


def _has_windows() -> bool:
    """Whether a browser can open a window; a text browser would take over this terminal."""
    elsewhere = sys.platform in ("win32", "darwin")
    return elsewhere or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends the server. Streamlit stops at SIGTERM; it is killed if it waits for a browser that keeps its connection
    open."""
    if server.poll() is None:
        server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()

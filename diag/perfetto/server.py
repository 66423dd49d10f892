"""Shows a trace file in https://ui.perfetto.dev: serves it once, on this machine only.

The page runs in the browser and fetches the file itself from the address in its link; nothing is uploaded. Its
Content-Security-Policy lets it connect to ``http://127.0.0.1:9001`` and to no other port of this machine
(github.com/google/perfetto, ui/src/frontend/index.ts, setupContentSecurityPolicy), which is why its own
tools/open_trace_in_ui uses that port, too; the link's form is from there, and ``visStart`` and ``visEnd`` from
docs/visualization/deep-linking-to-perfetto-ui.md. A file from 127.0.0.1 is fetched once and kept by the page
(trace_url_handler.ts, loadTraceFromUrl), so the server can go right after.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socketserver
import sys
import threading
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from diag.collectors.reading import open_regular
from diag.errors import DiagError

ADDRESS = "127.0.0.1"
PORT = 9001
UI = "https://ui.perfetto.dev"
_PATIENCE_S = 30  # with a connection that says nothing
# Chrome asks since version 142 (google/perfetto issue 7425).
_ASKED = "If the browser asks whether ui.perfetto.dev may access this device: allow it, the trace comes from here."


class TraceServer(ThreadingHTTPServer):
    """Serves one file under one address, which nobody can guess: other users of the machine reach the port as well.
    ``fetched`` is set when somebody has all of it."""

    daemon_threads = True

    def __init__(self, file: Path, port: int = PORT) -> None:
        self.file = file
        self.fetched = threading.Event()
        self.sent = False
        self.path = f"/{secrets.token_urlsafe(16)}/{file.name}"
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise DiagError(
                f"port {port} on {ADDRESS} cannot be used: {error.strerror}",
                hint="Perfetto's page reads from no other port: end what uses it (another `diag open`, "
                "trace_processor), or write the trace with -o FILE and drop it on the page",
            ) from error
        self.host = f"{ADDRESS}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}{self.path}"

    def server_bind(self) -> None:
        """Without the look-up of a name for the address, which waits for a name server that may not be there."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is none."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection is closed; only now has the other side surely got everything."""
        super().shutdown_request(request)
        if self.sent:
            self.fetched.set()


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        # A page of another site may call itself by a name that leads here; it does not call itself 127.0.0.1.
        if self.headers.get("Host") != self.server.host or self.path != self.server.path:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with open_regular(self.server.file) as file:
            self.send_response(HTTPStatus.OK)
            self.send_header("Access-Control-Allow-Origin", UI)
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)
        self.server.sent = True

    def do_POST(self) -> None:
        """The page first asks for a trace_processor at this port, which we are not."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is the user's."""


def link(url: str, begin_ns: int, end_ns: int) -> str:
    """The address that opens the trace at ``url`` on the window, in ns of the trace's own clock."""
    view = f"&{urlencode({'visStart': begin_ns, 'visEnd': end_ns})}" if begin_ns >= 0 else ""
    return f"{UI}/#!/?url={url}{view}"


def show(
    file: Path,
    begin_ns: int,
    end_ns: int,
    *,
    open_browser: bool,
    say: Callable[[str], None],
    port: int = PORT,
) -> bool:
    """Serves the file until it has been fetched once; whether it was, False after Ctrl-C. DiagError where the port is
    taken."""
    with TraceServer(file, port) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        address = link(server.url, begin_ns, end_ns)
        try:
            say(address)
            say(f"Serving it on {ADDRESS} until it has been fetched once (Ctrl-C ends it). {_ASKED}")
            if open_browser:
                webbrowser.open(address)
            server.fetched.wait()
        except KeyboardInterrupt:
            return False
        finally:
            server.shutdown()
        return True

"""The dashboard's server as a stranger meets it: other names and pages, no token, a user's own Streamlit settings."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest
from starlette.types import Receive, Scope, Send

from diag.app.pages import PAGES
from diag.app.server import _ELEMENTS, Files, GuardedApp, _listening
from diag.errors import DiagError
from diag.serve import server
from diag.serve.guard import HEADERS, listening
from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.patience import PATIENCE_S

RUN = "a-run-whose-name-is-secret"
PATHS = (
    ("GET", "/"),
    ("GET", "/timeline?run=x"),
    ("GET", "/_stcore/health"),
    ("GET", "/_stcore/host-config"),
    ("GET", "/_stcore/metrics"),
    ("GET", "/_stcore/agent/openapi.json"),
    ("POST", "/_stcore/agent/interact"),
    ("PUT", "/_stcore/upload_file/session/file"),
    ("OPTIONS", "/_stcore/upload_file/session/file"),
    ("GET", "/media/0123456789.html"),
    ("GET", "/static/index.html"),
    ("GET", "/app/static/x"),
    ("GET", "/component/x/index.html"),
    ("GET", "/favicon.png"),
    ("GET", "//evil.example.org/"),
    ("GET", "/../../etc/passwd"),
    ("HEAD", "/"),
)
PROXY = "diag.example.org"
# Every address that the server's processes look up or connect to, a line each.
_WATCH = """
import os, sys
def note(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        with open({log!r}, "a") as log:
            log.write(f"{{event}} {{arguments[1:] if event != 'socket.getaddrinfo' else arguments}}\\n")
sys.addaudithook(note)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run = write_run(tmp_path_factory.mktemp("runs") / RUN)
    with dashboard(run, "--allow-host", PROXY, forked=False) as running:
        yield running


def upgrade(served: Served, host: str, origin: str | None = None, *, authorized: bool = True) -> bytes:
    """The status line and headers that answer a WebSocket's handshake."""
    lines = [
        "GET /_stcore/stream HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: streamlit",
        *([f"Origin: {origin}"] if origin else []),
        *([f"Authorization: Bearer {served.token}"] if authorized else []),
    ]
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(65536)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_path_is_guarded(served: Served, method: str, path: str) -> None:
    name = f"localhost:{served.port}"
    refused = [
        (401, served.ask(path, method=method, authorized=False)),
        (403, served.ask(path, method=method, host=f"evil.example.org:{served.port}")),
        (403, served.ask(path, method=method, host=name, origin="http://evil.example.org")),
        (403, served.ask(path, method=method, host=name, origin="http://localhost:1")),
        (403, served.ask(path, method=method, host=name, origin="null")),
    ]
    for expected, (status, _, body) in refused:
        assert status == expected
        assert RUN.encode() not in body
    allowed = served.ask(path, method=method, host=name, origin=f"http://{name}")
    assert allowed[2] not in [body for _, (_, _, body) in refused if body]  # Streamlit itself may refuse it
    for _, headers, _ in [allowed, *(answer for _, answer in refused)]:
        assert set(HEADERS) <= set(headers.items())
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/", "/timeline?step=3"])
def test_a_page_knows_where_its_server_is(served: Served, path: str) -> None:
    status, headers, body = served.ask(path, accept="text/html,*/*", accept_encoding="gzip")
    assert status == 200
    assert int(headers["content-length"]) == len(body)
    assert body.index(b"BACKEND_BASE_URL") < body.index(b"<script type"), "before Streamlit's own script asks"
    assert b"BACKEND_BASE_URL" not in served.ask("/_stcore/health", accept="text/html")[2]


def test_the_page_and_its_files_do_not_wait_for_streamlit(tmp_path: Path) -> None:
    """The browser loads them while Streamlit is imported; what only Streamlit can answer waits for it."""
    (tmp_path / "static/js").mkdir(parents=True)
    (tmp_path / "index.html").write_text("<head></head>")
    (tmp_path / "static/js/script.123.js").write_text("let a")
    loading, loaded = threading.Event(), asyncio.Event()

    class Streamlit:
        async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
            assert loaded.is_set()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

        def lifespan(self) -> Callable[[object], AbstractAsyncContextManager[None]]:
            return lambda _: nullcontext()

    def load() -> Any:
        assert loading.wait(60)
        return Streamlit()

    async def visit() -> None:
        guard = listening("127.0.0.1", "127.0.0.1", [], None, browser=True)
        app = GuardedApp(guard, Files(tmp_path), load, lambda: None, lambda error: None)
        phases = asyncio.Queue[dict[str, Any]]()
        phases.put_nowait({"type": "lifespan.startup"})
        started = asyncio.Event()

        async def told(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete":
                started.set()

        life = asyncio.ensure_future(app({"type": "lifespan"}, phases.get, told))
        await started.wait()

        async def ask(path: str) -> tuple[int, bytes]:
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "method": "GET",
                "path": path,
                "query_string": b"",
                "headers": [(b"host", b"localhost")],
            }
            await app(scope, phases.get, send)
            return sent[0]["status"], sent[1]["body"]

        assert b"BACKEND_BASE_URL" in (await ask("/what-if"))[1]
        assert await ask("/static/js/script.123.js") == (200, b"let a")
        waiting = [asyncio.ensure_future(ask(path)) for path in ("/_stcore/health", "/static/../secret")]
        await asyncio.sleep(0.1)
        assert not any(one.done() for one in waiting)
        loaded.set()
        loading.set()
        assert await asyncio.gather(*waiting) == [(200, b"ok")] * 2
        phases.put_nowait({"type": "lifespan.shutdown"})
        await life

    with ThreadPoolExecutor(1) as thread:  # Playwright's loop runs in this one while a browser is open
        thread.submit(asyncio.run, visit()).result()


def test_every_page_has_an_address_that_is_answered_at_once(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<head></head>")
    files = Files(tmp_path)
    for page in PAGES:
        answer = files.answer("GET", f"/{page.path}")
        assert answer is not None
        assert ("cache-control", "no-cache") in answer.headers
    assert files.answer("POST", "/") is None


def test_the_browser_is_told_at_once_what_the_first_screen_needs(tmp_path: Path) -> None:
    """With all that it imports, each once, and without what the page loads anyway."""
    scripts = tmp_path / "static" / "js"
    scripts.mkdir(parents=True)
    (tmp_path / "index.html").write_text('<head><script src="./static/js/index.1.js"></script></head>')
    for name, imports in {
        "Html.1": ["a.2", "index.1"],
        "Metric.9": ["a.2"],
        "a.2": ["b.3"],
        "b.3": ["a.2"],
        "c.4": [],
    }.items():
        (scripts / f"{name}.js").write_text("".join(f'import{{x as y}}from"./{one}.js";' for one in imports))
    answer = Files(tmp_path).answer("GET", "/")
    assert answer is not None
    told = re.findall(rb'<link rel="modulepreload" crossorigin href="./static/js/([^"]+)">', answer.body)
    assert told == [b"Html.1.js", b"Metric.9.js", b"a.2.js", b"b.3.js"]


def test_this_version_of_streamlit_has_the_elements_of_the_first_screen() -> None:
    spec = find_spec("streamlit")
    assert spec is not None
    assert spec.submodule_search_locations
    scripts = Path(spec.submodule_search_locations[0]) / "static" / "static" / "js"
    for element in _ELEMENTS:
        assert len([*scripts.glob(f"{element}.*.js")]) == 1, element


def test_answers_are_not_held_back() -> None:
    """Where the protocol is not named, asyncio leaves Nagle's algorithm on: 40 ms for each file of the page."""
    with _listening("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_the_websocket_is_guarded(served: Served) -> None:
    own = f"localhost:{served.port}"
    assert upgrade(served, own, f"http://{own}").startswith(b"HTTP/1.1 101 ")
    tunnel = "localhost:9999"  # of SSH, with a port of its own at the other end
    assert upgrade(served, tunnel, f"http://{tunnel}").startswith(b"HTTP/1.1 101 ")
    assert upgrade(served, own, f"http://{own}", authorized=False).startswith(b"HTTP/1.1 401 ")
    for host, origin in (
        (f"evil.example.org:{served.port}", f"http://evil.example.org:{served.port}"),
        (f"evil.example.org:{served.port}", None),
        (own, "http://evil.example.org"),
        (own, f"http://127.0.0.1:{served.port}"),
        (own, "http://localhost:1"),
    ):
        answer = upgrade(served, host, origin)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"x-frame-options: DENY" in answer


def test_an_upload_needs_more_than_the_token(served: Served) -> None:
    assert served.ask("/_stcore/upload_file/session/file", method="PUT")[0] == 403  # Streamlit's own XSRF check


def test_the_token_is_nowhere_to_be_read(tmp_path: Path) -> None:
    with dashboard(write_run(tmp_path / "r"), stderr=True, forked=False) as served:
        assert len(served.token) >= 32
        served.ask(f"/?token={served.token}", authorized=False)
        served.ask(f"/?token={served.token}x", authorized=False)
        upgrade(served, f"localhost:{served.port}")
        family = psutil.Process(served.process.pid)
        for process in (family, *family.children(recursive=True)):
            assert served.token not in str(process.cmdline())
            assert served.token not in str(process.environ())
        served.process.send_signal(signal.SIGINT)
        _, said = served.process.communicate(timeout=PATIENCE_S)
    assert served.token not in said


def test_the_user_s_streamlit_settings_change_nothing(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    settings = """
[global]
developmentMode = true
[server]
enableCORS = false
enableXsrfProtection = false
enableStaticServing = true
corsAllowedOrigins = ["http://evil.example.org"]
allowedHosts = ["evil.example.org"]
baseUrlPath = "elsewhere"
sslCertFile = "/nothing"
enableAgentApi = true
address = "0.0.0.0"
port = 1
trustedUserHeaders = "{}"
"""
    for folder in (home, here):
        (folder / ".streamlit").mkdir(parents=True)
        (folder / ".streamlit/config.toml").write_text(settings)
        (folder / ".streamlit/secrets.toml").write_text("is = = no TOML")
    environment = {
        **os.environ,
        "HOME": str(home),
        "STREAMLIT_SERVER_ENABLE_CORS": "false",
        "STREAMLIT_SERVER_ENABLE_XSRF_PROTECTION": "false",
        "STREAMLIT_SERVER_BASE_URL_PATH": "elsewhere",
        "STREAMLIT_SERVER_COOKIE_SECRET": "known",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with dashboard(write_run(tmp_path / "r"), env=environment, cwd=here, stderr=True, forked=False) as served:
        assert served.ask()[2] == b"ok"
        assert served.ask(authorized=False)[0] == 401
        assert served.ask(host="evil.example.org")[0] == 403
        assert served.ask(origin="http://evil.example.org")[0] == 403
        assert "access-control-allow-origin" not in served.ask("/_stcore/host-config")[1]
        assert served.ask("/_stcore/upload_file/session/file", method="PUT")[0] == 403
        # A file that appears later is read no more than one that was there.
        (here / ".streamlit/config.toml").write_text(settings + "maxUploadSize = 1\n")
        assert b"<title>Streamlit</title>" in served.ask("/")[2]
        served.process.send_signal(signal.SIGINT)
        _, said = served.process.communicate(timeout=PATIENCE_S)
    assert said == ""


def test_nothing_is_asked_outside(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch/sitecustomize.py").write_text(_WATCH.format(log=str(log)))
    paths = os.pathsep.join([str(tmp_path / "watch"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    with dashboard(write_run(tmp_path / "r"), "--allow-host", PROXY, env=environment, forked=False) as served:
        own = f"127.0.0.1:{served.port}"
        for host, origin in (
            (own, f"http://{own}"),
            (own, f"https://{PROXY}"),  # a proxy that asks under the server's name
            (PROXY, f"https://{PROXY}"),
        ):
            assert served.ask("/_stcore/host-config", host=host, origin=origin)[0] == 200
            assert upgrade(served, host, origin).startswith(b"HTTP/1.1 101 ")
        served.ask("/", origin="http://evil.example.org")
        upgrade(served, own, "http://evil.example.org")
        family = psutil.Process(served.process.pid).children(recursive=True)
        assert family  # the server, which is watched as well
        time.sleep(1)  # its threads ask in their own time
    asked = log.read_text().splitlines()
    assert asked  # our own question whether it is ready
    assert [line for line in asked if "'127.0.0.1'" not in line] == []


def test_the_browser_gets_the_token_from_a_private_file(tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {opened}.new\nmv {opened}.new {opened}\n')
    browser.chmod(0o700)
    environment = {**os.environ, "BROWSER": str(browser)}
    with dashboard(write_run(tmp_path / "r"), "--browser", env=environment, forked=False) as served:
        deadline = time.monotonic() + PATIENCE_S
        while not opened.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        address = opened.read_text()
        assert served.token not in address
        page = Path(unquote(urlsplit(address).path))
        assert served.printed.replace("&", "&amp;") in page.read_text()
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    assert not page.exists()


def test_without_a_token_names_and_pages_still_count(tmp_path: Path) -> None:
    with dashboard(write_run(tmp_path / "r"), "--no-token", stderr=True, forked=False) as served:
        assert served.printed == f"http://127.0.0.1:{served.port}/"
        assert served.ask()[0] == 200
        assert served.ask(host="evil.example.org")[0] == 403
        assert served.ask(origin="http://evil.example.org")[0] == 403
        served.process.send_signal(signal.SIGINT)
        _, said = served.process.communicate(timeout=PATIENCE_S)
    assert "There is no token: every user and every program of this machine can read the runs." in said


class _AnswersEverybody(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


class _Runs:
    returncode = None

    def poll(self) -> None: ...


@pytest.mark.parametrize("token", ["secret", None])
def test_a_server_that_passes_the_guard_by_is_not_shown(token: str | None) -> None:
    with HTTPServer((server.ADDRESS, 0), _AnswersEverybody) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        guard = listening(server.ADDRESS, server.ADDRESS, [], token, browser=True)
        with pytest.raises(DiagError, match="answers without the token"):
            server._wait_until_ready(_Runs(), server.ADDRESS, answering.server_port, guard)  # type: ignore[arg-type]
        answering.shutdown()


@pytest.mark.parametrize("missing", ["streamlit.App", "streamlit.config.get_config_files"])
def test_another_streamlit_is_refused(missing: str) -> None:
    start = "import runpy; runpy.run_module('diag.app.server', run_name='__main__')"
    code = f"import {missing.rpartition('.')[0]}; del {missing}; {start}"
    handed = {
        "guard": asdict(listening("127.0.0.1", "127.0.0.1", [], "secret", browser=True)),
        "options": {"server.address": "127.0.0.1", "server.port": 0},
        "name": "a run",
    }
    command = [sys.executable, "-c", code, "script", "run"]
    ended = subprocess.run(
        command, input=json.dumps(handed), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("This version of Streamlit ")
    assert "Traceback" not in ended.stderr

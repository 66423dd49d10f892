"""The dashboard's server: Streamlit behind the guard, with nothing of the user's own Streamlit settings.

``python -m diag.app.server SCRIPT PATH``. The guard with its token, and Streamlit's options, come as JSON on standard
input: other users of the machine can read what is on a command line.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette import requests
from starlette.responses import Response
from starlette.routing import Route
from streamlit import config
from streamlit.components.v2 import manifest_scanner

from diag.app.ready import READY
from diag.serve.guard import Answer, Guard, Request, with_headers

try:
    from streamlit import App
except ImportError:
    sys.exit("This version of Streamlit has no streamlit.App, which the dashboard is guarded by: install 1.67 or later")

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_STDIN = 0
# Every page of the dashboard is one level below the server's root, wherever a proxy puts that.
_BASE = b'<script>window.__streamlit = {BACKEND_BASE_URL: new URL(".", location.href).href};</script>'
_LATE = ("pandas", "pyarrow", "PIL.Image", "diag.replay.advice")  # imported when a page is drawn


def _timeline_data(request: requests.Request) -> Response:  # not async: Starlette runs it in a thread of its own
    from diag.app.timeline_data import answer  # with the pages: the server listens before they are imported

    return answer(request)


ROUTES = [Route("/timeline-data/{what}", _timeline_data, methods=["GET"])]  # what the timeline's canvas asks for


class GuardedApp(App):
    """Every request to Streamlit passes through here."""

    def __init__(self, script: Path, guard: Guard, warm_up: Callable[[], None]) -> None:
        """``warm_up``: called once, in a thread, when the first request shows that the server listens."""
        super().__init__(script, routes=ROUTES)
        self._guard = guard
        self._warming = threading.Thread(target=warm_up, daemon=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        if self._warming.ident is None:
            READY.clear()
            self._warming.start()
        answer = self._guard.answer(_request(scope))
        if answer is not None:
            await _refuse(answer, scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
                message = {**message, "headers": _encoded(with_headers(headers))}
            await send(message)

        # The guard has seen to the Origin. Streamlit would compare it with this machine's public address, for which it
        # asks a server on the internet.
        left_out = (b"origin", b"accept-encoding") if _asks_for_page(scope) else (b"origin",)
        headers = [(name, value) for name, value in scope["headers"] if name not in left_out]
        answered = _with_base(send_with_headers) if _asks_for_page(scope) else send_with_headers
        await super().__call__({**scope, "headers": headers}, receive, answered)


def _asks_for_page(scope: Scope) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    )


def _with_base(send: Send) -> Send:
    """Tells the script of Streamlit's page where the server is: opened at a page's own address, as by a link, it would
    look for it below that first, and find nothing (404)."""
    held: dict[str, Any] = {}

    async def send_page(message: Message) -> None:
        if message["type"] == "http.response.start" and _is_page(message["headers"]):
            held["start"], held["body"] = message, b""
            return
        if "start" not in held:
            await send(message)
            return
        held["body"] += message.get("body", b"")
        if message.get("more_body"):
            return
        body = held["body"].replace(b"<head>", b"<head>" + _BASE, 1)
        headers = [(name, value) for name, value in held["start"]["headers"] if name.lower() != b"content-length"]
        await send({**held["start"], "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    return send_page


def _is_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)


def _request(scope: Scope) -> Request:
    return Request(
        scope.get("method", "GET"),  # a WebSocket has none
        scope.get("raw_path", scope["path"].encode()).decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]),
    )


async def _refuse(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
    await send({"type": f"{kind}.start", "status": int(answer.status), "headers": _encoded(answer.headers)})
    await send({"type": f"{kind}.body", "body": answer.body})


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _no_components(max_workers: int | None = None) -> list[Any]:  # noqa: ARG001 - in place of Streamlit's
    """The dashboard uses none of other packages, and looking for them reads the metadata of every package (0.5 s)."""
    return []


def _no_files(file_name: str) -> list[str]:  # noqa: ARG001 - in place of Streamlit's
    return []


def main() -> None:
    handed: dict[str, Any] = json.load(sys.stdin)
    # What the pages start must not read on, and no file may get its number.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    given = handed["guard"]
    guard = Guard(tuple(given["hosts"]), tuple(given["added"]), given["token"], given["browser"])
    # A config.toml or secrets.toml in the home or in the current folder is about the user's own Streamlit apps.
    if not hasattr(config, "get_config_files"):
        sys.exit("This version of Streamlit finds its settings in another way, which the dashboard cannot turn off")
    config.get_config_files = _no_files
    manifest_scanner.scan_component_manifests = _no_components
    del sys.argv[0]  # what runs is the script
    script, root = map(Path, sys.argv)
    with suppress(KeyboardInterrupt):  # its server raises the signal again that ended it
        GuardedApp(script, guard, lambda: _warm_up(root)).run(config=handed["options"])


def _warm_up(root: Path) -> None:
    """While the browser loads Streamlit's page, which takes it as long: the verdict of the first run, then what its
    figures and tables need."""
    try:
        import_module("diag.app.pages")
        from diag.app.address import prepare

        prepare(root)
        for name in _LATE:
            import_module(name)
        gc.freeze()  # the modules: Streamlit collects all garbage after each run of a page and of a fragment
    finally:
        READY.set()


if __name__ == "__main__":
    main()

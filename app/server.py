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
# Below its root, as at /timeline, Streamlit's page would first ask for its own addresses there, and get a 404 for each.
_BASE = b"<head><script>window.__streamlit = {BACKEND_BASE_URL: location.origin}</script>"
_LATE = ("pandas", "pyarrow", "PIL.Image", "diag.replay.advice")  # imported when a page is drawn


class GuardedApp(App):
    """Every request to Streamlit passes through here."""

    def __init__(self, script: Path, guard: Guard, warm_up: Callable[[], None]) -> None:
        """``warm_up``: called once, in a thread, when the first request shows that the server listens."""
        super().__init__(script)
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

        page = _Page()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
                message = {**message, "headers": _encoded(with_headers(headers))}
            for ready in page.with_base(message):
                await send(ready)

        # The guard has seen to the Origin. Streamlit would compare it with this machine's public address, for which it
        # asks a server on the internet.
        left_out = {b"origin", b"accept-encoding"} if _asks_for_page(scope) else {b"origin"}
        headers = [(name, value) for name, value in scope["headers"] if name not in left_out]
        await super().__call__({**scope, "headers": headers}, receive, send_with_headers)


class _Page:
    """One answer; where it is Streamlit's page, the page is told where its server is."""

    def __init__(self) -> None:
        self._start: Message | None = None
        self._body = b""

    def with_base(self, message: Message) -> list[Message]:
        """What can be sent after this message."""
        if message["type"] == "http.response.start":
            kinds = dict(message["headers"])
            if kinds.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in kinds:
                self._start = message
                return []
        if self._start is None or message["type"] != "http.response.body":
            return [message]
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return []
        body = self._body.replace(b"<head>", _BASE, 1)
        headers = [(name, value) for name, value in self._start["headers"] if name != b"content-length"]
        start = {**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        self._start = None
        return [start, {**message, "body": body}]


def _asks_for_page(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


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

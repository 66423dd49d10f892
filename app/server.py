"""The dashboard's server: Streamlit behind the guard, without the user's own Streamlit settings.

``python -m diag.app.server SCRIPT PATH``. The guard with its token, and Streamlit's options, come as JSON on standard
input, because other users of the machine can read a command line.

The browser needs about a second to load Streamlit's page, and Python as long to import Streamlit and the modules of the
pages. Both begin at once: this module imports little, serves the page's files itself, and a thread imports the rest.
"""

from __future__ import annotations

import asyncio
import gc
import json
import mimetypes
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import WS_PROTOCOLS

from diag.app.ahead import scripts_of, static_folder
from diag.app.one_page import keep_to_one_page
from diag.app.policy import DASHBOARD
from diag.app.ready import READY, WANTED
from diag.serve.guard import HEADERS, Answer, Guard, Request, with_headers
from diag.words.places import show_as

if TYPE_CHECKING:
    from starlette import requests
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import Message, Receive, Scope, Send
    from streamlit import App

_STDIN = 0
_SPLIT = "_str_to_dict_path_full"  # Plotly's: "marker_line_width" into its three parts
_OF_FIGURES = ("pandas", "pyarrow", "PIL.Image")  # and of tables
# What the page of a hang imports when it is opened.
_OF_TRIAGE = ("diag.ended.rundir", "diag.hang.classes", "diag.hang.flight", "diag.hang.ras.read", "diag.hang.reason",
              "diag.hang.text")  # fmt: skip
# While modules are imported a request waits this long for the GIL, not the usual 5 ms: the page has 150 files.
_SWITCH_S, _USUAL_SWITCH_S = 0.0005, sys.getswitchinterval()

# Streamlit runs a full garbage collection after each run of a page. Python's own in between would take a sixth of the
# time of an analysis.
_OBJECTS_UNTIL_GC = 1_000_000


# -- files -------------------------------------------------------------------------------------------------------------

# Every page of the dashboard is one level below the server's root, which a proxy may put under any path. If a page's
# own address is opened, as by a link, Streamlit's script would look for its server below that address first (404).
_BASE = b'<script>window.__streamlit = {BACKEND_BASE_URL: new URL(".", location.href).href};</script>'
# Until the first words of a page are there, which takes seconds where runs are read for the first time, it says so. It
# lies behind the page, and goes by the style sheet alone.
_READING = b"""<style>
#reading { position: fixed; top: 38%; width: 100%; text-align: center; pointer-events: none; z-index: 0;
  font: 16px/1.4 ui-sans-serif, system-ui, sans-serif; color: #7a7d85; }
body:has([data-testid="stMain"] :is(h1, h3, [data-testid="stAlert"], [data-testid="stException"])) #reading,
body:has([role="dialog"]) #reading { display: none; }
</style><div id="reading" role="status">Reading the runs \xe2\x80\xa6</div>"""
_PAGE = re.compile(r"/[a-z-]*")
_HASHED = "/static/"  # files whose names change with their content
# The page asks for the code of a kind of element when it first shows one: half a dozen requests one after the other,
# while the server draws the first screen. The browser is told of them at once, and loads them while it waits.
_ELEMENTS = ("Html", "Spinner", "DownloadButton", "Metric", "BidiComponent", "Selectbox", "PageLink", "Table")


class Files:
    """Streamlit's page and the files that it loads, from Streamlit's package: served without importing Streamlit."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the one with the page, ``index.html``. SystemExit if it has none."""
        if not (folder / "index.html").is_file():
            sys.exit("This version of Streamlit has its page in another place, where the dashboard does not find it")
        page = (folder / "index.html").read_bytes().replace(b"<head>", b"<head>" + _BASE, 1)
        page = page.replace(b"</head>", _loaded_ahead(folder, page) + b"</head>", 1)
        self._page = page.replace(b"</body>", _READING + b"</body>", 1)
        self._paths = {
            f"/{file.relative_to(folder).as_posix()}": file for file in folder.rglob("*") if file.suffix != ".html"
        }

    def answer(self, method: str, path: str) -> Answer | None:
        """The file at the path; None if it is not one of the page's."""
        if method != "GET":
            return None
        if _PAGE.fullmatch(path):
            return _file(self._page, "text/html; charset=utf-8", "no-cache")
        file = self._paths.get(path)
        if file is None or not file.is_file():
            return None
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        cache_control = "public, immutable, max-age=31536000" if path.startswith(_HASHED) else "no-cache"
        return _file(file.read_bytes(), kind, cache_control)


def _loaded_ahead(folder: Path, page: bytes) -> bytes:
    """Links to the code of the first screen's elements, without what the page names itself."""
    names = scripts_of(folder, _ELEMENTS, page)
    return "".join(f'<link rel="modulepreload" crossorigin href="./{name}">' for name in names).encode()


def _file(content: bytes, kind: str, cache_control: str) -> Answer:
    headers = (("content-type", kind), ("content-length", str(len(content))), ("cache-control", cache_control))
    return Answer(HTTPStatus.OK, tuple(with_headers(headers)), content)


_NO_STREAMLIT = Answer(HTTPStatus.SERVICE_UNAVAILABLE, (("content-length", "0"), *HEADERS), b"")


class GuardedApp:
    """The ASGI application that gets every request. It refuses what the guard refuses and serves the page's files.
    Everything else goes to Streamlit, and waits until Streamlit is imported."""

    def __init__(
        self,
        guard: Guard,
        files: Files,
        load: Callable[[], App],
        then: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``load`` and ``then`` are called in a thread, one after the other; if ``load`` raises, ``failed`` is called
        instead of ``then``."""
        self._guard = guard
        self._files = files
        self._load = load
        self._then = then
        self._failed = failed
        self._loaded: asyncio.Future[App | None]  # None: Streamlit could not be imported, and the server ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        request = _request(scope)
        answer = self._guard.answer(request)
        if answer is None and scope["type"] == "http":
            answer = self._files.answer(request.method, request.path)
        if answer is not None:
            await _send(answer, scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
                message = {**message, "headers": _encoded(with_headers(headers))}
            await send(message)

        # The guard has checked the Origin. Streamlit would compare it with this machine's public address, which it
        # requests from a server on the internet.
        headers = [(name, value) for name, value in scope["headers"] if name != b"origin"]
        app = await asyncio.shield(self._loaded)
        if app is None:
            await _send(_NO_STREAMLIT, scope, receive, send)
            return
        await app({**scope, "headers": headers}, receive, send_with_headers)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Handles the lifespan of the server, which is Streamlit's as well."""
        loop = asyncio.get_running_loop()
        imported: asyncio.Future[App | None] = loop.create_future()
        self._loaded = loop.create_future()
        await receive()
        threading.Thread(target=self._work, args=(loop, imported), daemon=True).start()
        await send({"type": "lifespan.startup.complete"})
        ended = asyncio.ensure_future(receive())
        await asyncio.wait((ended, imported), return_when=asyncio.FIRST_COMPLETED)
        app = imported.result() if imported.done() else None
        if app is None:
            self._loaded.set_result(None)
            await ended
        else:
            async with app.lifespan()(app):
                self._loaded.set_result(app)
                await ended
        await send({"type": "lifespan.shutdown.complete"})

    def _work(self, loop: asyncio.AbstractEventLoop, imported: asyncio.Future[App | None]) -> None:
        try:
            app = self._load()
        except BaseException as error:
            self._failed(error)
            loop.call_soon_threadsafe(imported.set_result, None)
            return
        loop.call_soon_threadsafe(imported.set_result, app)
        self._then()


def _request(scope: Scope) -> Request:
    return Request(
        scope.get("method", "GET"),  # a WebSocket has none
        scope.get("raw_path", scope["path"].encode()).decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]),
    )


async def _send(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
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


def routes() -> list[BaseRoute]:
    """The route of the timeline's data, which the canvas requests."""
    from starlette.routing import Route

    return [Route("/timeline-data/{what}", _timeline_data, methods=["GET"])]


def _timeline_data(request: requests.Request) -> Response:  # not async: Starlette runs it in a thread of its own
    from diag.app.timeline_data.answers import answer

    return answer(request)


def _streamlit(script: Path, options: dict[str, Any]) -> App:
    """Imports Streamlit and sets it up. SystemExit if the dashboard cannot use its version."""
    with _without_plotly():
        from streamlit import config
    from streamlit import delta_generator
    from streamlit.components.v2 import manifest_scanner

    try:
        from streamlit import App
    except ImportError:
        sys.exit("This version of Streamlit has no streamlit.App, which the dashboard needs: install 1.67 or later")
    # A config.toml or secrets.toml in the home or in the current folder is meant for the user's own Streamlit apps.
    if not hasattr(config, "get_config_files"):
        sys.exit("This version of Streamlit finds its settings in another way, which the dashboard cannot turn off")
    config.get_config_files = _no_files
    config.get_config_options(force_reparse=True, options_from_flags=options)
    manifest_scanner.scan_component_manifests = _no_components
    serialization: Any = import_module("streamlit.components.v2.bidi_component.serialization")
    serialization.is_dataframe_like = _no_data_frame
    delta_generator._use_warning_has_been_displayed = True  # one about the REPL, which reads the source of every caller
    keep_to_one_page()
    return App(script, routes=routes())


@contextmanager
def _without_plotly() -> Iterator[None]:
    """Streamlit makes Plotly's theme when it is imported, a quarter of the time that takes. `_make_figures` does it
    later: no text of the first screen has to wait for it."""
    sys.modules["plotly"] = None  # type: ignore[assignment]  # Python's way to say that there is no such module
    try:
        yield
    finally:
        del sys.modules["plotly"]


def _make_figures() -> None:
    """Imports what figures and tables need."""
    from streamlit.elements.lib.streamlit_plotly_theme import configure_streamlit_plotly_theme

    for name in _OF_FIGURES:
        import_module(name)
    configure_streamlit_plotly_theme()
    _remember_names()


def _remember_names() -> None:
    """Plotly splits the name of a property each time that one is set or read, and makes a class to do so: a quarter of
    the time that a page with figures takes. The names are those in the code of the pages, so there are few."""
    figures: Any = import_module("plotly.basedatatypes")
    split = getattr(figures, _SPLIT, None)
    if split is not None:  # another version of Plotly may not have it
        setattr(figures, _SPLIT, cache(split))


def _no_components(max_workers: int | None = None) -> list[Any]:  # noqa: ARG001 - in place of Streamlit's
    """No components: the dashboard uses none, and a scan reads the metadata of every installed package (0.5 s)."""
    return []


def _no_data_frame(value: object) -> bool:  # noqa: ARG001 - in place of Streamlit's
    """No component of the dashboard is sent a data frame, and Streamlit imports pandas to see that a list or dict is
    none: a second, before the picture on the first screen."""
    return False


def _no_files(file_name: str) -> list[str]:  # noqa: ARG001 - in place of Streamlit's
    return []


def _views() -> list[str]:
    package = import_module("diag.app.views")
    return [f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__)]


def _warm_up(
    root: Path,
    analysis_first_s: float = DASHBOARD.analysis_first_s,
    first_screen_s: float = DASHBOARD.first_screen_s,
) -> None:
    """Analyses the first run, then imports what its figures and tables need. Runs while the browser loads Streamlit's
    page, which takes as long. Pages that need no analysis, as that of a hang, do not wait for one that takes long. The
    first screen needs none of these modules: it is drawn before they are imported."""
    try:
        import_module("diag.app.views.overview")
        from diag.app.address import prepare

        analysis = threading.Thread(target=prepare, args=(root,), daemon=True)
        analysis.start()
        analysis.join(analysis_first_s)
        WANTED.wait(first_screen_s)
        _make_figures()
        READY.set()
        for name in (*_views(), *_OF_TRIAGE):
            import_module(name)
        gc.freeze()  # the modules: Streamlit runs a full collection after each run of a page and of a fragment
    finally:
        sys.setswitchinterval(_USUAL_SWITCH_S)
        READY.set()


def main() -> None:
    handed: dict[str, Any] = json.load(sys.stdin)
    # Child processes of the pages must not read from standard input, and no other file may get its descriptor.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    fields, options = handed["guard"], handed["options"]
    guard = Guard(tuple(fields["hosts"]), tuple(fields["added"]), fields["token"], fields["browser"])
    static = static_folder()
    if static is None:
        sys.exit("Streamlit is not installed")
    files = Files(static)
    del sys.argv[0]  # so that it is the argv of Streamlit's script
    script, root = map(Path, sys.argv)
    if handed["name"] != str(root):  # a local copy of what has this name
        show_as({root: handed["name"]})
    gc.set_threshold(_OBJECTS_UNTIL_GC)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in diag analyze
    READY.clear()
    failed: list[BaseException] = []

    def end(error: BaseException) -> None:
        failed.append(error)
        server.should_exit = True

    app = GuardedApp(guard, files, partial(_streamlit, script, options), partial(_warm_up, root), end)
    sockets = "websockets-sansio" if "websockets-sansio" in WS_PROTOCOLS else "auto"  # as Streamlit chooses
    settings = uvicorn.Config(app, ws=sockets, log_level="warning", access_log=False, use_colors=False)
    server = uvicorn.Server(settings)
    sys.setswitchinterval(_SWITCH_S)
    with suppress(KeyboardInterrupt):  # uvicorn raises again the signal that ended it
        server.run(sockets=[_listening(options["server.address"], options["server.port"])])
    if failed:
        raise failed[0]


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket's protocol is given as TCP. Without it the end of each answer waits
    # 40 ms for the browser's acknowledgement of its begin, which adds up to 0.7 s for the files of the page.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind((address, port))
    except OSError as error:
        sys.exit(f"port {port} on {address} cannot be used: {error.strerror}")
    return listening


if __name__ == "__main__":
    main()

"""Imports what most trainings and commands need, once for all workers of pytest, then forks a process for each request
of tests/fork_client.py: importing PyTorch takes a process two seconds, what a training imports in its first step one
more, and ``diag`` half a second, often longer than the rest.

A fork runs its program as Python does, up to the functions that are registered with ``atexit``. What comes before a
program (sitecustomize, options of the interpreter) and what comes after it (modules are taken apart) is left out.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from tests import fork_client  # noqa: E402
from tests.fork_client import ENDED, FORKS  # noqa: E402

FORKED = ("diag.collectors.trainer", "diag.app.server")  # the modules of the ranks, and of the dashboard's server

_OF_TORCH = (
    "diag.collectors.trainer.loop",
    "torch._dynamo",  # by the first step of any optimizer
    "torch.distributed.fsdp",
    "torch.distributed.run",
)
_OF_COMMANDS = (
    "diag.cli.main",
    "diag.api",
    "diag.replay.advice",
    "diag.hang.api",
    "diag.show.text",
    "diag.show.answer",
    # What commands import when they are called: a triage took 0.25 s of CPU for that, and 0.05 s for a short log.
    "diag.cli.analyze",
    "diag.cli.check",
    "diag.cli.compare",
    "diag.cli.export",
    "diag.cli.open",
    "diag.cli.plan",
    "diag.cli.report",
    "diag.cli.run",
    "diag.cli.trace",
    "diag.cli.triage",
    "diag.app.html_report.render",
    "diag.export.formats",
    "diag.gate.check",
    "diag.hang.failures",
    "diag.hang.ras.clues",
    "diag.hang.reason",
    "diag.hang.rules",
    "diag.ended.outcome",
    "diag.perfetto",
    "diag.planning.measured",
    "diag.serve.server",
    "diag.show.compare",
    "diag.show.gate",
    "diag.show.json",
    "diag.show.plan",
    "diag.show.redact",
    "diag.show.triage",
    "diag.summaries",
    "diag.tables.breakdowns",
    "diag.watch.hang_monitor",
    "diag.watch.launch",
    "diag.watch.traces",
    "numpy.ma",
    "numpy.random",
    "polars",  # the analyser loads it at its first use, in 0.25 s of CPU
    "plotly.graph_objs._bar",
    "plotly.graph_objs._figure",
    "plotly.graph_objs._heatmap",
    "plotly.graph_objs._layout",
    "plotly.graph_objs._scatter",
)
# Of `diag dashboard` and of its server, which is a process of its own and takes three seconds of CPU for them.
_OF_DASHBOARDS = (
    "anyio._backends._asyncio",
    "diag.api",
    "diag.app.ahead",
    "diag.app.one_page",
    "diag.app.pages",
    "diag.app.timeline_data.answers",
    "diag.cli.dashboard",
    "diag.cli.main",
    "diag.serve.server",
    "itsdangerous",
    "plotly.graph_objs._bar",
    "plotly.graph_objs._figure",
    "plotly.graph_objs._heatmap",
    "plotly.graph_objs._layout",
    "plotly.graph_objs._scatter",
    "plotly.offline",
    "polars",
    "pyarrow.pandas_compat",
    "streamlit",
    "streamlit.components.v2.bidi_component.serialization",
    "streamlit.components.v2.manifest_scanner",
    "streamlit.elements.lib.streamlit_plotly_theme",
    "streamlit.material_icon_names",
    "streamlit.starlette",
    "streamlit.web.bootstrap",
    "streamlit.web.server.starlette.starlette_agent_routes",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)
# What a server imports before it forks, by its name.
PRELOADED = {
    "trainings": (*_OF_TORCH, *_OF_COMMANDS),
    "commands": _OF_COMMANDS,  # without torch a fork takes 15 ms and not 75
    "dashboards": _OF_DASHBOARDS,
}


class Request(NamedTuple):
    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


def _received(connection: socket.socket) -> Request | None:
    """None: somebody only says that the server is needed."""
    header, streams, _, _ = socket.recv_fds(connection, ENDED.size, 3)
    if len(header) < ENDED.size or not streams:
        return None
    (left,) = ENDED.unpack(header)
    request = b""
    while len(request) < left:
        request += connection.recv(left - len(request))
    return Request(*marshal.loads(request), streams)


class Server:
    """The connections of those who need it, and of those whose process runs."""

    def __init__(self, address: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{address}.new")
        self._listener.listen(128)
        Path(f"{address}.new").rename(address)
        self._ended, self._ends = os.pipe()
        for end in (self._ended, self._ends):
            os.set_blocking(end, False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._ended, selectors.EVENT_READ, self._reap)
        self._running: dict[int, socket.socket] = {}
        self._users: set[socket.socket] = set()
        self._fork: Request | None = None
        self._over = False

    def serve(self) -> Request | None:
        """In the server: until nobody needs it any more. In each process that it forks: what that is to run."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ends, warn_on_full_buffer=False)
        while not self._over and self._fork is None:
            for key, _ in self._selector.select():
                key.data(key.fileobj)
                if self._fork is not None:
                    break
        return self._fork

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        request = _received(connection)
        if request is None:
            self._users.add(connection)
            self._selector.register(connection, selectors.EVENT_READ, self._leave)
            return
        process = os.fork()
        if process == 0:
            self._forget(connection)
            self._fork = request
            return
        for stream in request.streams:
            os.close(stream)
        self._running[process] = connection
        self._selector.register(connection, selectors.EVENT_READ, self._kill)
        _send(connection, process)

    def _forget(self, connection: socket.socket) -> None:
        """In a fork: what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in (connection, self._listener, self._selector, *self._running.values(), *self._users):
            other.close()
        os.close(self._ended)
        os.close(self._ends)

    def _reap(self, ended: int) -> None:
        os.read(ended, 4096)
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            connection = self._running.pop(process, None)
            if connection is not None:
                _send(connection, status)
                self._close(connection)

    def _kill(self, connection: socket.socket) -> None:
        """Who waited for the process has gone."""
        for process, own in list(self._running.items()):
            if own is connection:
                del self._running[process]
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        self._close(connection)

    def _leave(self, connection: socket.socket) -> None:
        self._users.discard(connection)
        self._close(connection)
        self._over = not self._users

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()


def _send(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(ENDED.pack(number))
    except OSError:
        return  # it has gone


def _become(request: Request) -> NoReturn:
    """A Python that was started with these words."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    for name, mode, number in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        stream = open(number, mode, -1 if number < 2 else 1, "utf-8", "strict" if number < 2 else "backslashreplace")  # noqa: PTH123, SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    if (address := os.environ.pop(FORKS, "")) and "diag.processes" in sys.modules:
        _fork_further(address)
    code = 0
    try:
        _run(*request.words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
    # What Python does before it takes its modules apart, which takes 0.4 s with as many as these.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _fork_further(address: str) -> None:
    """What ``diag`` starts of ours is forked from the server, too."""
    from diag import processes

    python = processes.python

    def started(*arguments: str) -> list[str]:
        if not {*FORKED} & {*arguments}:
            return python(*arguments)
        return [sys.executable, "-IS", fork_client.__file__, address, *arguments[arguments.index("-m") :]]

    processes.python = started


def _run(first: str, *rest: str) -> None:
    path = os.environ.get("PYTHONPATH")
    sys.path[1:1] = path.split(os.pathsep) if path else []
    if first == "-m":
        sys.argv = list(rest)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = ModuleType("__main__")
    names: dict[str, Any] = vars(main)
    if first == "-c":
        sys.argv, sys.path[0:0] = ["-c", *rest[1:]], [""]
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv, sys.path[0:0] = [first, *rest], [str(Path(first).resolve().parent)]
        names["__file__"] = first
        code = compile(Path(first).read_bytes(), first, "exec")
    exec(code, names)


def _preload(kind: str) -> None:
    _import(PRELOADED[kind])
    if kind == "dashboards":
        server = importlib.import_module("diag.app.server")
        _import((*server._OF_FIGURES, *server._views(), *server._OF_TRIAGE))
        del sys.modules[server.__name__]  # each fork runs it as __main__
    _import(_named())


def _import(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # an environment that has torch and little else
            importlib.import_module(name)


def _named() -> list[str]:
    """The modules that registries of the analyser name, which a command loads when it needs them."""
    deferred = sys.modules.get("diag.deferred")
    named = [one.where for one in gc.get_objects() if deferred and type(one) is deferred.ByName]
    return sorted({where.partition(":")[0] for where in named})


def main() -> None:
    _preload(sys.argv[2])
    gc.collect()
    gc.freeze()  # what was imported stays, and its pages are the server's as long as nobody looks for garbage in them
    request = Server(sys.argv[1]).serve()
    if request is not None:
        _become(request)
    shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)


if __name__ == "__main__":
    main()

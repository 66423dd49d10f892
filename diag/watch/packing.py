"""Where a run is recorded: in a folder, or in one of this node that a packer carries to a store meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diag import processes
from diag.collectors.launchers import digest
from diag.collectors.packing import MODULE, PACK_VARIABLE, Packing, make_private, node_folder
from diag.errors import DiagError, ExitCode
from diag.store.packer import ENDS as PACKER_ENDS
from diag.store.policy import SEGMENTS
from diag.store.stores import is_remote, require_client
from diag.words.formatting import masked
from diag.words.places import show_as
from diag.words.terminal import say as put_line


def place_of(out: str | None, pack: bool, interval_s: float, attempt: str = "") -> tuple[Path | None, Packing | None]:
    """The folder that the processes of this node record in, and how it is packed: not at all if ``out`` is a folder and
    ``pack`` is False. ``attempt``: its key; the node's folder is then the same whenever it is asked for. DiagError
    where the store's client is not installed, or the node's folder cannot be made."""
    if out is None or not (pack or is_remote(out)):
        if pack:
            raise DiagError("--pack needs --out", hint="give a shared folder", exit_code=ExitCode.USAGE)
        return (Path(out) if out is not None else None), None
    if is_remote(out):
        require_client(out)
    to = out if is_remote(out) else str(Path(out).resolve())
    folder = node_folder(digest(f"{to} {attempt}") if attempt else "")
    try:
        make_private(folder)
    except OSError as error:
        raise DiagError(
            f"the folder of this node cannot be made: {error.strerror or error}",
            path=folder,
            hint="DIAG_NODE_FOLDER names another place for it",
        ) from error
    show_as({folder: masked(to.rstrip("/"))})
    return folder, Packing(to, interval_s, processes.python()[0], processes.__file__)


@contextmanager
def packed(folder: Path, packing: Packing | None, say: Callable[[str], object]) -> Iterator[None]:
    """A context around a training and its end: a packer runs, also after one was killed, and has stored everything at
    the end, unless the store is away."""
    if packing is None:
        yield
        return
    keeper = _Packer(folder, packing)
    keeper.start()
    try:
        yield
    finally:
        if not keeper.stop():
            then = ""
            if os.getpid() == 1:  # the first process of a container, with which all others end
                then = " This container ends now. Unless its folder is on a volume, they are lost."
            elif keeper.runs:
                then = f" A process goes on trying for {SEGMENTS.patience_s / 60:.0f} minutes."
            say(f"the last records are not stored yet; they are in {folder}.{then}")


class _Packer:
    """The packer of this node as a child of the launcher, started again if it ends."""

    def __init__(self, folder: Path, packing: Packing) -> None:
        self._command = processes.python("-m", MODULE, str(folder), str(os.getpid()))
        self._variables = {**os.environ, PACK_VARIABLE: packing.to_json()}
        self._stopped = threading.Event()
        self._process: subprocess.Popen[Any] | None = None
        self._thread = threading.Thread(target=self._keep, name="diag-packer", daemon=True)

    def start(self) -> None:
        self._begin()
        self._thread.start()

    def _begin(self) -> None:
        # A session of its own: Ctrl-C in the terminal ends the training, whose last records are stored after that.
        with suppress(OSError), held_back(PACKER_ENDS):
            self._process = processes.start(
                self._command,
                self._variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            threading.Thread(target=_print_lines, args=(self._process,), daemon=True).start()

    def _keep(self) -> None:
        while not self._stopped.wait(SEGMENTS.restart_s):
            if self._process is None or self._process.poll() is not None:
                self._begin()

    def stop(self) -> bool:
        """Whether everything is stored. One that is killed meanwhile is started again."""
        self._stopped.set()
        self._thread.join()
        deadline_s = time.monotonic() + SEGMENTS.wait_s
        while True:
            if self._process is None or self._process.poll() is not None:
                self._begin()
            if self._process is None:
                return False
            with suppress(OSError):
                self._process.send_signal(signal.SIGTERM)
            try:
                code = self._process.wait(max(0.0, deadline_s - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                return False
            if code >= 0:
                return code == 0

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def held_back(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """A context in which a process may be started that gets these signals only once it lets them through: until then it
    could not answer them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _print_lines(process: subprocess.Popen[Any]) -> None:
    with suppress(OSError, ValueError):
        for line in process.stderr or ():
            put_line(line.rstrip("\n"), err=True)

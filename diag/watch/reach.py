"""How the ranks of a run are asked for something: by a file in their run directory, which a packed run's packers carry
to its nodes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from diag.collectors.layout import ABOUT_PACKER, RunLayout, is_regular
from diag.collectors.reading import object_of, read_regular
from diag.errors import DiagError, readable
from diag.rundir.local import local_path, packed_at
from diag.store.policy import SEGMENTS, STORES
from diag.store.requests import ask_nodes, asked_now
from diag.store.stores import Store


class Reach:
    """A run whose ranks can be asked. ``layout``: the run directory of its newest attempt, or the local copy of
    one of a packed run."""

    def __init__(self, path: str) -> None:
        """DiagError where the run cannot be read, or is a copy that no rank looks at."""
        local = local_path(path)
        self.layout = RunLayout(local).newest()
        self._path = path
        self._store: Store | None = None
        self._asked: dict[str, bytes] = {}  # handed on and not taken back, by the name of the request
        self._answered_s = time.monotonic()  # when the store last did
        if local == Path(path):
            return
        if not any(is_regular(folder / ABOUT_PACKER) for folder in (local, local.parent)):
            raise DiagError(
                "its ranks cannot be asked: no packer of their nodes looks at this place",
                path=path,
                hint="give the run directory that the ranks write into",
            )
        self._store = Store(packed_at(path))

    def hand_on(self, request: Path) -> None:
        """Lets the ranks know of a request that was written in the run directory. DiagError where the store does not
        answer."""
        if self._store is not None:
            with readable(request):
                content = read_regular(request, SEGMENTS.most_request_bytes)
            ask_nodes(self._store, request.name, content)
            self._asked[request.name] = content

    def take_back(self, request: Path) -> None:
        """Removes a request; its answers stay. Errors are ignored: nobody answers it twice."""
        with suppress(OSError):
            request.unlink()
        self._asked.pop(request.name, None)
        if self._store is not None:
            with suppress(DiagError):
                ask_nodes(self._store, request.name, None)

    def refresh(self) -> None:
        """Brings a local copy up to date. A request of ours that another one's overwrote is made again: both read the
        document, then both wrote it. DiagError where the store has not answered for long."""
        if self._store is None:
            return
        try:
            there = asked_now(self._store).files if self._asked else {}
            for name, content in self._asked.items():
                if _number(there.get(name, "")) < _number(content):
                    ask_nodes(self._store, name, content)
            local_path(self._path)
        except DiagError:
            if time.monotonic() - self._answered_s > STORES.patience_s:
                raise
        else:
            self._answered_s = time.monotonic()


def _number(request: str | bytes) -> int:
    """A newer request has a higher one; -1 for none."""
    number = object_of(request).get("number")
    return number if isinstance(number, int) else -1

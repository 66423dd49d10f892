"""Local copies that are kept up to date while a command runs: of a run at an address, or of the runs in a folder that
packers wrote."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from diag.collectors.layout import without_first
from diag.collectors.reading import walk
from diag.errors import DiagError
from diag.store.policy import STORES

from .local import is_run, local_path, unpacked


@contextmanager
def followed(path: str, say: Callable[[str], object]) -> Iterator[Path]:
    """The local run directory of a path, which is kept up to date until the end of the context. ``say`` gets the reason
    where that fails, once until it succeeds again."""
    local = Path(without_first(local_path(path)))
    if str(local) == path and not packed_in(path):
        yield local
        return
    stopped = threading.Event()

    def keep() -> None:
        took_s, failing = 0.0, False
        while not stopped.wait(max(STORES.refresh_s, STORES.refresh_over_reading * took_s)):
            began_s = time.monotonic()
            try:
                if str(local_path(path)) == path:
                    packed_in(path)
                failing = False
            except DiagError as error:
                if not failing:
                    say(f"{error.message}; trying again")
                failing = True
            took_s = time.monotonic() - began_s

    thread = threading.Thread(target=keep, name="diag-follow", daemon=True)
    thread.start()
    try:
        yield local
    finally:
        stopped.set()
        thread.join(STORES.refresh_s)


def packed_in(folder: str) -> list[str]:
    """The local copies of the runs that packers wrote at or below a folder, brought up to date."""
    found: list[str] = []

    def enter(below: str) -> bool:
        if is_run(below):
            return False
        copy = unpacked(below)
        found.extend([copy] if copy is not None else [])
        return copy is None

    if enter(folder):
        deque(walk(folder, wanted=lambda _: False, enter=enter, order=None), maxlen=0)
    return found

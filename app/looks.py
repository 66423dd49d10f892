"""The state of a run, looked at no more often than it is worth: of thousands of ranks each look reads as many files."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from diag import api
from diag.app.policy import DASHBOARD


@dataclass
class _Look:
    """``holds_until_s``: by the monotonic clock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    state: api.RunState | None = None
    holds_until_s: float = 0.0


_DRAWN = threading.local()  # ``state``: what this thread draws a page of

_LOOKS: OrderedDict[str, _Look] = OrderedDict()
_LOOKS_LOCK = threading.Lock()


@contextmanager
def drawing(state: api.RunState | None) -> Iterator[None]:
    """One look for a whole page, which is of one moment then. What follows a run on it looks again: it is drawn alone,
    outside of this."""
    _DRAWN.state = state
    try:
        yield
    finally:
        _DRAWN.state = None


def state_of(path: Path) -> api.RunState:
    """As `diag.api.state_of`, for the pages and what follows a run on them. Where a look takes long, the last one holds
    for a while, so that looking takes no more than ``looks_share`` of the time."""
    drawn: api.RunState | None = getattr(_DRAWN, "state", None)
    if drawn is not None and drawn.path == path:
        return drawn
    with _LOOKS_LOCK:
        look = _LOOKS.pop(str(path), None) or _Look()
        _LOOKS[str(path)] = look
        if len(_LOOKS) > DASHBOARD.most_runs_known:
            _LOOKS.popitem(last=False)
    with look.lock:
        begin_s = time.monotonic()
        if look.state is None or begin_s >= look.holds_until_s:
            look.state = api.state_of(path)
            end_s = time.monotonic()
            took_s = end_s - begin_s
            look.holds_until_s = end_s + (took_s / DASHBOARD.looks_share if took_s > DASHBOARD.quick_look_s else 0.0)
        return look.state

"""Opens runs for the pages: once for each state of their files, whoever looks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from diag.api import newest_change
from diag.app.run_view import RunView, view_of
from diag.summaries import open_by_size


@dataclass(frozen=True)
class _Last:
    changed_ns: int
    took_s: float


_LAST: dict[str, _Last] = {}  # opening of each path, by whomever


def opened(path: Path, changed_ns: int | None = None) -> RunView:
    """The analysed run; read again when one of its records has changed. DiagError where there is nothing to analyse.
    ``changed_ns``: when one of them last did, for a caller who has looked already."""
    return _opened(str(path), newest_change(path) if changed_ns is None else changed_ns)


def is_open(path: Path, changed_ns: int) -> bool:
    """Whether `opened` answers at once, as far as is known."""
    last = _LAST.get(str(path))
    return last is not None and last.changed_ns == changed_ns


def seconds_to_open(path: Path) -> float:
    """How long the last opening of the run took; 0 where it was not opened, or cannot be."""
    last = _LAST.get(str(path))
    return last.took_s if last is not None else 0.0


@st.cache_resource(show_spinner="Reading and analysing the run…", show_time=True, max_entries=8)
def _opened(path: str, changed_ns: int) -> RunView:
    begin = time.monotonic()
    view = view_of(open_by_size(path))
    _LAST[path] = _Last(changed_ns, time.monotonic() - begin)
    return view

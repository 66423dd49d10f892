"""Opens runs for the pages: once for each state of their files, whoever looks."""

from __future__ import annotations

import time
from pathlib import Path

import streamlit as st

from diag.api import newest_change, open_run
from diag.app.run_view import RunView, view_of

_TOOK: dict[str, float] = {}  # seconds, by path


def opened(path: Path) -> RunView:
    """The analysed run; read again when one of its records has changed. DiagError where there is nothing to analyse."""
    return _opened(str(path), newest_change(path))


def seconds_to_open(path: Path) -> float:
    """How long the last opening of the run took; 0 where it was not opened, or cannot be."""
    return _TOOK.get(str(path), 0.0)


@st.cache_resource(show_spinner="Reading and analysing the run…", show_time=True, max_entries=8)
def _opened(path: str, changed_ns: int) -> RunView:  # noqa: ARG001 - part of the cache's key
    begin = time.monotonic()
    view = view_of(open_run(path))
    _TOOK[path] = time.monotonic() - begin
    return view

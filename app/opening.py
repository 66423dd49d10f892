"""Opens runs for the pages: once for each state of their files, whoever looks."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from diag.api import open_run
from diag.app.run_view import RunView, view_of


def opened(path: Path) -> RunView:
    """The analysed run; read again when one of its files has changed. DiagError where there is nothing to analyse."""
    return _opened(str(path), _newest_change(path))


@st.cache_resource(show_spinner="Reading and analysing the run…", show_time=True, max_entries=8)
def _opened(path: str, changed_ns: int) -> RunView:  # noqa: ARG001 - part of the cache's key
    return view_of(open_run(path))


def _newest_change(path: Path) -> int:
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return max((_changed_ns(file) for file in files), default=0)


def _changed_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # replaced while we looked, or not there: opening it will say so
        return 0

"""What the list of runs shows of each: analysed one after the other beside the page, and kept while nothing changes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from diag.api import Curves, RunState, curves_of
from diag.app.address import Version, analyse, bytes_of, job_at, name_of, version_of
from diag.app.curves import curves_of_result
from diag.errors import DiagError
from diag.show.runs import RunRow, row_of

_MOST_BYTES = 64 << 20  # of a run that is analysed for the list alone: a few seconds
_MOST_KNOWN = 1024  # runs
_LIVE_S = 60.0  # a run that trains is not analysed for the list more often


@dataclass(frozen=True)
class Outline:
    """``row``: as of ``version``. ``curves``: of a run without records, whose steps only an analysis knows. ``why``: it
    was not analysed."""

    row: RunRow
    version: Version
    made_s: float
    curves: Curves | None = None
    why: str = ""


_KNOWN: OrderedDict[Path, Outline] = OrderedDict()
_WAITING: OrderedDict[Path, RunState] = OrderedDict()
_LOCK = threading.Lock()
_WORKING = threading.Event()  # a thread analyses what waits


def outline_of(state: RunState) -> Outline | None:
    """Of the run as it is, or was less than a minute ago where it trains; None while it waits for its analysis."""
    with _LOCK:
        known = _KNOWN.get(state.path)
        if known is not None and _holds(known, state):
            return known
        _WAITING.setdefault(state.path, state)
        if not _WORKING.is_set():
            _WORKING.set()
            threading.Thread(target=_work, daemon=True).start()
    return None


def row_for(root: Path, state: RunState) -> RunRow:
    """What is known of a run of the folder now: its last analysis here, else that of ``diag analyze``; of a job of
    traces at least its ranks and when they were recorded."""
    outline, now = outline_of(state) or _KNOWN.get(state.path), row_of(state)
    row = now if outline is None else outline.row
    job = job_at(state.path)
    if job is not None and job.tables is not None:
        ranks, world_size, recorded = len(job.tables.ranks), job.tables.world_size, job.tables.recorded
        changed_ns = recorded[1] if recorded is not None and recorded[0] > 0 else now.changed_ns
        row = replace(row, ranks=ranks, world_size=world_size)
        now = replace(now, changed_ns=changed_ns)
    return replace(
        row, name=name_of(root, state.path), state=now.state, changed_ns=now.changed_ns, last_step=now.last_step
    )


def curves_for(state: RunState) -> Curves | None:
    """Of a run directory, or of the analysis of traces; None where there are none, or not yet."""
    found = curves_of(state.path)
    if found is None and (known := _KNOWN.get(state.path)) is not None:
        return known.curves
    return found


def _holds(known: Outline, state: RunState) -> bool:
    fresh = state.live and known.version[1] and time.monotonic() - known.made_s < _LIVE_S
    return fresh or known.version == version_of(state)


def _work() -> None:
    while (state := _next()) is not None:
        try:
            found = _outlined(state)
            with _LOCK:
                _KNOWN[state.path] = found
                _KNOWN.move_to_end(state.path)
                if len(_KNOWN) > _MOST_KNOWN:
                    _KNOWN.popitem(last=False)
        except BaseException:  # a mistake of ours ends this thread, and not the list
            _WORKING.clear()
            raise
        finally:
            with _LOCK:
                _WAITING.pop(state.path, None)


def _next() -> RunState | None:
    with _LOCK:
        state = next(iter(_WAITING.values()), None)
        if state is None:
            _WORKING.clear()
        return state


def _outlined(state: RunState) -> Outline:
    version, now_s = version_of(state), time.monotonic()
    if bytes_of(state.path) > _MOST_BYTES:
        why = f"more than {_MOST_BYTES >> 20} MiB of records; open it to analyse it"
        return Outline(row_of(state), version, now_s, why=why)
    try:
        result = analyse(state)
    except DiagError as error:
        return Outline(row_of(state), version, now_s, why=error.message)
    curves = curves_of_result(result) if curves_of(state.path) is None and result.attribution.steps else None
    return Outline(row_of(state, result), version, now_s, curves)

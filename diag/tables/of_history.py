"""Data frames of a run's history. Their columns are in ``diag.tables.frames.COLUMNS``."""

from __future__ import annotations

from msgspec.structs import asdict

from diag.deferred import pl
from diag.model.history import History
from diag.tables.frames import frame


def stretches(history: History) -> pl.DataFrame:
    """A row for each step, or each sum over several."""
    return frame(
        "stretches",
        (
            {
                **asdict(stretch),
                "rank": history.rank,
                "resolution": stretch.resolution,
                "step_ns": round(stretch.step_ns),
                "longest_ns": round(stretch.longest_ns),
                **{name: round(ns) for name, ns in (stretch.parts or {}).items()},
            }
            for stretch in history.stretches
        ),
    )


def changes(history: History) -> pl.DataFrame:
    """A row for each change of the step time, in order."""
    return frame(
        "changes",
        (
            {
                **asdict(change),
                "before_ns": round(change.before_ns),
                "after_ns": round(change.after_ns),
                "change": change.by,
                "ranks": list(change.ranks),
                "hosts": ", ".join(change.hosts),
            }
            for change in history.changes
        ),
    )


def incidents(history: History) -> pl.DataFrame:
    """A row for each incident, in order."""
    return frame(
        "incidents",
        (
            {**asdict(incident), "ranks": list(incident.ranks), "hosts": ", ".join(incident.hosts)}
            for incident in history.incidents
        ),
    )


def goodput(history: History) -> pl.DataFrame:
    """A row for each part of the wall time; none without a clock."""
    goodput = history.goodput
    parts = goodput.parts if goodput is not None else {}
    wall_ns = goodput.wall_ns if goodput is not None else 0
    return frame(
        "goodput",
        ({"part": name, "ns": ns, "share": ns / wall_ns if wall_ns else 0.0} for name, ns in parts.items()),
    )

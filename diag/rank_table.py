"""Where each rank's time goes, as a table of text: mean milliseconds a step, over the steps that count."""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from msgspec import Struct

from diag.model import Attribution, Parts

MOST_RANKS = 16
# Why a device was idle, in the words of every front end.
IDLE_PARTS = (
    ("not launched", "not_launched_ns"),
    ("in launch", "in_launch_ns"),
    ("queued", "queued_ns"),
    ("host call", "host_call_ns"),
    ("outside", "outside_ns"),
    ("unknown", "unknown_ns"),
)
_PARTS = (
    ("step", "dur_ns"),
    ("compute", "compute_ns"),
    ("exposed comm.", "exposed_comm_ns"),
    ("of it waiting", "exposed_wait_ns"),
    ("copies", "exposed_copy_ns"),
    ("data wait", "data_wait_ns"),
    ("checkpoint", "checkpoint_ns"),
    ("idle", "idle_ns"),
    *((name, f"idle_parts.{field}") for name, field in IDLE_PARTS),
    ("hidden comm.", "overlapped_comm_ns"),
)


class RankTable(Struct, frozen=True):
    """``rows``: (rank, one cell a column). ``left_out``: ranks beyond the MOST_RANKS that are shown."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    left_out: int


def rank_table(attribution: Attribution) -> RankTable:
    """The first ranks by number; a column of nothing but zeros or unknowns is left out."""
    by_rank: dict[int, list[Parts]] = {}
    for step in attribution.usable or attribution.steps:
        for parts in step.parts:
            by_rank.setdefault(parts.rank, []).append(parts)
    columns = [(name, field) for name, field in _PARTS if _matters(by_rank, field)]
    shown = sorted(by_rank)[:MOST_RANKS]
    return RankTable(
        columns=tuple(name for name, _ in columns),
        rows=tuple((rank, tuple(_mean(by_rank[rank], field) for _, field in columns)) for rank in shown),
        left_out=len(by_rank) - len(shown),
    )


def _matters(by_rank: dict[int, list[Parts]], field: str) -> bool:
    if field.startswith("idle_parts.") and not _of_a_device(by_rank):
        return False  # idle time of a CPU is not divided
    return field == "dur_ns" or any(_value(parts, field) for rows in by_rank.values() for parts in rows)


def _of_a_device(by_rank: dict[int, list[Parts]]) -> bool:
    every = [parts for rows in by_rank.values() for parts in rows]
    return any(parts.idle_parts.unknown_ns < parts.idle_ns for parts in every)


def _mean(rows: list[Parts], field: str) -> str:
    values = [_value(row, field) for row in rows]
    known = [value for value in values if value is not None]
    return f"{float(np.mean(known)) / 1e6:,.1f}" if known else "unknown"


def _value(parts: Parts, field: str) -> int | None:
    value: int | None = attrgetter(field)(parts)
    return None if field == "overlapped_comm_ns" and not parts.hidden_known else value

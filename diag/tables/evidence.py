"""Evidence: the data frames that only queries name, and the rows that a query returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import to_builtins
from msgspec.structs import asdict

from diag.account.scheduling import Scheduling
from diag.deferred import pl
from diag.model.accounts import Attribution
from diag.model.query import By, Query
from diag.model.steps import Detail, Kind
from diag.rundir.numbers import value_of
from diag.rundir.tables import Tables
from diag.tables.frames import COLUMNS, frame, frame_of, names_of
from diag.tables.passes import phased_calls


def rows(query: Query, whole: pl.DataFrame) -> pl.DataFrame:
    """The rows of its frame that a query names."""
    conditions = []
    for name, value in query.where.items():
        column, _, bound = name.partition(" ")
        of = pl.col(column)
        if bound:
            conditions.append(of.ge(value) if bound == ">=" else of.lt(value))
        elif isinstance(value, list):
            conditions.append(of.is_in(value))
        else:
            conditions.append(of.eq_missing(value))
    return whole.filter(conditions) if conditions else whole


def number(query: Query, whole: pl.DataFrame) -> float | None:
    """The number that the rows give, in the units of their columns; None if it comes from them in another way."""
    chosen = rows(query, whole)
    if query.by == By.ROWS:
        return None
    value = len(chosen) if query.by == By.COUNT else getattr(chosen[query.column], query.by.value)()
    if query.of:
        return float(value or 0) / float(chosen[query.of].sum() or 1)
    return float(value or 0) / (whole.select(query.per).n_unique() if query.per else 1)


def path(attribution: Attribution) -> pl.DataFrame:
    """A row for each piece of the critical path of a counted step, in their order."""
    steps = attribution.counted
    kinds, details = (names_of(members) for members in (Kind, Detail))

    return frame_of(
        "path",
        {
            "step": steps.step[steps.paths.of_step],
            "rank": steps.paths.rank.astype(np.int64),
            "kind": kinds[steps.paths.kind],
            "detail": details[steps.paths.detail],
            "dur_ns": steps.paths.lasted_ns,
        },
    )


def calls(attribution: Attribution) -> pl.DataFrame:
    """A row for each collective of a rank in a counted step."""
    steps = attribution.counted.step.tolist()
    return frame(
        "calls",
        (
            {**asdict(call), "phase": call.phase.name.lower(), "micro_batch": call.micro}
            for call in phased_calls(attribution, steps)
        ),
    )


def meetings(attribution: Attribution) -> pl.DataFrame:
    """A row for each collective that was matched across ranks."""
    counted = attribution.counted.numbers
    return frame(
        "meetings",
        (
            {
                **asdict(met),
                "counted": met.step in counted,
                "group": met.key[0],
                "number": met.key[1],
                "last_rank": met.last_arriver,
                "wait_ns": sum(met.wait_ns),
                "sizes_differ": len(set(met.sizes) - {0}) > 1,
            }
            for met in attribution.collectives
        ),
    )


def stalls(attribution: Attribution) -> pl.DataFrame:
    """A row for each long stall of a device in a counted step."""
    steps = attribution.counted
    parts, owner = steps.parts, steps.of_part
    return frame(
        "stalls",
        (
            {**asdict(stall), "step": int(steps.step[owner[place]]), "rank": int(parts.rank[place])}
            for place, of_rank in parts.stalls.items()
            for stall in of_rank
        ),
    )


def scheduling(account: Scheduling) -> pl.DataFrame:
    """A row for each rank and counted step whose CPU scheduling was recorded."""
    numbers, ranks = account.numbers, account.ranks
    fields = [name for name in COLUMNS["scheduling"] if name not in ("step", "rank")]
    return frame_of(
        "scheduling",
        {
            "step": np.tile(np.array(numbers, dtype=np.int64), len(ranks)),
            "rank": np.repeat(np.array(list(ranks), dtype=np.int64), len(numbers)),
            **{name: _in_ns(getattr(of, name) for of in ranks.values()) for name in fields},
        },
    )


def checkpoints(tables: Tables) -> pl.DataFrame:
    """A row for each checkpoint of a rank."""
    return frame(
        "checkpoints",
        (
            {**to_builtins(record), "rank": rank}
            for rank, of_rank in sorted(tables.ranks.items())
            for record in of_rank.checkpoints
        ),
    )


def numbers(tables: Tables) -> pl.DataFrame:
    """A row for each loss and gradient norm of a rank that is not finite, or jumps."""
    return frame(
        "numbers",
        (
            {**to_builtins(record), "rank": rank, "value": value_of(record)}
            for rank, of_rank in sorted(tables.ranks.items())
            for record in of_rank.numbers
        ),
    )


def costs(
    named: Mapping[tuple[str, int | None], Any],
    hidden: Mapping[tuple[str, int | None], Any],
    numbers: Sequence[int],
    dur_ns: Any,
) -> pl.DataFrame:
    """A row for each cost of a counted step, and for each late rank in it. ``named``: by cost and rank, None for the
    whole cost, an array over the steps; ``hidden``: the part of it that hides behind computation, where there is one.
    ``dur_ns`` is such an array as well."""
    steps, nothing = len(numbers), np.zeros(len(numbers))
    return frame_of(
        "costs",
        {
            "step": np.tile(np.array(numbers, dtype=np.int64), len(named)),
            "cost": list(chain.from_iterable([name] * steps for name, _ in named)),
            "rank": list(chain.from_iterable([rank] * steps for _, rank in named)),
            "cost_ns": _in_ns(named.values()),
            "hidden_ns": _in_ns(hidden.get(key, nothing) for key in named),
            "step_ns": np.tile(np.rint(dur_ns).astype(np.int64), len(named)),
        },
    )


def _in_ns(columns: Iterable[Any]) -> npt.NDArray[np.int64]:
    column: npt.NDArray[np.int64] = np.rint(np.concatenate([np.zeros(0), *columns])).astype(np.int64)
    return column

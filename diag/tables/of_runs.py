"""What differs between two or more runs below the parts of the step: collectives, kernels and modules, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diag.model.axes import axis_words
from diag.model.breakdown import Breakdowns, ModuleTable
from diag.tables.by_step import OfSteps
from diag.words.wording import operation

COLLECTIVES, KERNELS, MODULES = "collectives", "kernels", "modules"


class NamedTime(Struct, frozen=True):
    """One name in each run: mean nanoseconds and calls of a rank's step; None where the run has none of it.
    ``of_steps``: of collectives, the same step by step."""

    name: str
    ns: tuple[float | None, ...]
    calls: tuple[float | None, ...]
    of_steps: tuple[OfSteps | None, ...] = ()

    @property
    def spread_ns(self) -> float:
        """How far the runs are apart; a run without it took no time for it."""
        known = [ns or 0.0 for ns in self.ns]
        return max(known) - min(known)


class NamedTimes(Struct, frozen=True):
    """``of``: COLLECTIVES (exposed time), KERNELS (of a CPU: operators, self time) or MODULES (self time). ``rows``:
    those that differ most first. ``missing``: places of the runs that recorded none of it. ``what``: what the times
    are, in words; ``noun``: what a row is."""

    of: str
    noun: str
    what: str
    rows: tuple[NamedTime, ...]
    missing: tuple[int, ...]


_Times = dict[str, tuple[float, float]]  # nanoseconds and calls of a rank's step, by name


def differences_by_name(
    runs: Sequence[Breakdowns], of_steps: Sequence[Mapping[tuple[str, str], OfSteps]] = ()
) -> tuple[NamedTimes, ...]:
    """Collectives, kernels and modules, each if at least one run recorded it. ``of_steps``: the collectives of each run
    step by step."""
    units = {run.kernels.unit for run in runs if run.kernels.rows}
    kernels = "kernels" if units == {"kernel"} else "operators, without the operators inside them"
    source = next((table.source for run in runs for table in run.modules if table.rows), "")
    every = (
        _named(COLLECTIVES, "collective", "exposed time of collectives", runs, _collectives),
        _named(KERNELS, "kernel" if units == {"kernel"} else "operator", f"time of {kernels}", runs, _kernels),
        _named(MODULES, "module", f"self time of modules by {source}", runs, lambda run: _modules(run, source)),
    )
    collectives, *others = every
    if of_steps:
        named = [_by_name(run, own) for run, own in zip(runs, of_steps, strict=True)]
        rows = tuple(replace(row, of_steps=tuple(own.get(row.name) for own in named)) for row in collectives.rows)
        collectives = replace(collectives, rows=rows)
    return tuple(times for times in (collectives, *others) if times.rows)


def _by_name(run: Breakdowns, of_steps: Mapping[tuple[str, str], OfSteps]) -> dict[str, OfSteps]:
    several = len({row.axis for row in run.collectives.rows}) > 1
    return {_collective(op, axis, several): own for (op, axis), own in of_steps.items()}


def _collective(op: str, axis: str, several: bool) -> str:
    """The name of a row."""
    return f"{operation(op)}{f', {axis_words(axis)}' if several and axis else ''}"


def _named(
    of: str, noun: str, what: str, runs: Sequence[Breakdowns], times_of: Callable[[Breakdowns], _Times]
) -> NamedTimes:
    found = [times_of(run) for run in runs]
    names = dict.fromkeys(name for times in found for name in times)
    rows = [
        NamedTime(
            name,
            tuple(times[name][0] if name in times else None for times in found),
            tuple(times[name][1] if name in times else None for times in found),
        )
        for name in names
    ]
    rows.sort(key=lambda row: (-row.spread_ns, row.name))
    return NamedTimes(of, noun, what, tuple(rows), tuple(place for place, times in enumerate(found) if not times))


def _collectives(run: Breakdowns) -> _Times:
    table = run.collectives
    several = len({row.axis for row in table.rows}) > 1
    return _sums(
        (
            _collective(row.op, row.axis, several),
            row.exposed_ns,
            row.count * (row.group_size or 1),
        )
        for row in table.rows
    ).per(table.rank_steps)


def _kernels(run: Breakdowns) -> _Times:
    return _sums((row.name, row.total_ns, row.count) for row in run.kernels.rows).per(run.kernels.rank_steps)


def _modules(run: Breakdowns, source: str) -> _Times:
    table: ModuleTable | None = next((table for table in run.modules if table.source == source), None)
    if table is None:
        return {}
    return _sums((row.name, row.self_ns, row.calls) for row in table.rows).per(table.rank_steps)


class _Sums(Struct):
    by_name: _Times

    def per(self, rank_steps: int) -> _Times:
        steps = max(1, rank_steps)
        return {name: (ns / steps, calls / steps) for name, (ns, calls) in self.by_name.items()}


def _sums(rows: Iterable[tuple[str, int, int]]) -> _Sums:
    total: _Times = {}
    for name, ns, calls in rows:
        before_ns, before_calls = total.get(name, (0.0, 0.0))
        total[name] = before_ns + ns, before_calls + calls
    return _Sums(total)

"""The picture beside the verdict: one bar a rank with the step that is predicted without the fault, or, of many ranks,
a grid of hosts by local ranks. Data for ``views/picture.js``; nothing here draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from diag.api import Result
from diag.app.drawings import mean_step_ns, of_ranks
from diag.app.figures import GB, MB, MS
from diag.app.policy import DASHBOARD
from diag.app.run_view import Grid, Part, RunView, name_of_host, path_of
from diag.app.theme import Theme, ink_on
from diag.diagnoses.costs import Cost
from diag.model.steps import Advice, Risk
from diag.show.page import CRITICAL_PATH, STEP_TIME, Change, against_cost, numbers_of
from diag.words.formatting import counted, duration, listing, number, share, size, visible, visible_lines
from diag.words.wording import sentence

Data = dict[str, Any]  # as JSON
BEYOND_MEDIAN = "ms a step more than the others' median, without waiting"
WAITED_FOR = "ms a step that the others wait for it"


def picture_of(
    view: RunView, theme: Theme, first: Advice | None = None, standing: Collection[int] | None = None
) -> Data | None:
    """The data of the picture; None where no steps were recorded. ``first``: the advice whose prediction is drawn.
    ``standing``: of a run that does not go on, the ranks that are at fault for that; these are marked, over the steps
    before, and nothing is predicted."""
    if not view.result.attribution.steps:
        return None
    ranks = view.result.attribution.ranks
    culprits = view.at_fault if standing is None else standing
    many = len(ranks) > DASHBOARD.most_bars_of_ranks
    drawn = (_grid if many else _bars)(view, theme, culprits)
    if standing is not None:
        drawn["rest"] += "; the steps until it stopped"
    at_fault = f"; at fault: {listing(sorted(culprits))}" if culprits else ""
    return {
        **drawn,
        "alt": f"{drawn['title']}{drawn['rest']}{at_fault}",
        "predicted": _predicted(view, first) if standing is None else None,
        "colours": colours_of(theme),
    }


def _bars(view: RunView, theme: Theme, culprits: Collection[int]) -> Data:
    totals = np.nan_to_num(view.per_rank(view.dur_ns)) / MS
    of_part = {part: np.nan_to_num(view.per_rank(grid)) / MS for part, grid in view.parts.items()}
    of_part = _with_queueing(of_part, view, totals)
    path, least, drawing = _critical_path(view), DASHBOARD.least_legend_share, of_ranks(view)
    step_ms, names = sum(path.values()), {Part.HOST: name_of_host(view.result) or Cost.CONTENTION.words}
    parts = [
        (part, names.get(part, part.value))
        for part in Part
        if (part in of_part and of_part[part].sum() > least * totals.sum()) or path.get(part, 0.0) > least * step_ms
    ]
    return {
        "kind": "bars",
        "title": drawing.lead,
        "rest": drawing.rest + _why_longer(view, float(totals.max(initial=0.0))) + _what_compute_is(view),
        "parts": [[name, theme.part[part], ink_on(theme.part[part])] for part, name in parts],
        "path": {
            "label": "critical path",
            "text": f"{number(step_ms)} ms",
            "ms": [path.get(part, 0.0) for part, _ in parts],
            "about": f"critical path: {CRITICAL_PATH}\n"
            + "\n".join(f"{names.get(part, part.value)} {number(ms)} ms" for part, ms in path.items() if ms > 0),
        } if path else None,
        "rows": [
            {
                "rank": rank,
                "fault": rank in culprits,
                "total": float(totals[at]),
                "text": f"{number(totals[at])} ms",
                "ms": (ms := [float(of_part[part][at]) if part in of_part else 0.0 for part, _ in parts]),
                "about": _about(rank, view, rank in culprits, dict(zip((name for _, name in parts), ms, strict=True))),
            }
            for at, rank in enumerate(view.ranks)
        ],
        "end": max(step_ms, float(totals.max(initial=0.0))),
    }  # fmt: skip


def _critical_path(view: RunView) -> dict[Part, float]:
    """Milliseconds a step by part, which the shares of the verdict are of; of one rank, its bar is that."""
    if len(view.ranks) < 2:
        return {}
    return {part: ns / MS for part, ns in path_of(view.result).items()}


def _with_queueing(of_part: dict[Part, Grid], view: RunView, totals: Grid) -> dict[Part, Grid]:
    """The parts, milliseconds by rank, with the time in which a rank was ready to run and had no CPU core as the host's
    instead of inside of its own work. While it waits for others it loses nothing by that. As they are where it is not
    known of all ranks, or next to nothing."""
    known = view.result.examination.scheduling
    if view.result.on_device or not set(view.ranks) <= known.ranks.keys():
        return of_part
    parts, waits = dict(of_part), np.zeros(len(view.ranks))
    for name, part in (("queued_ns", Part.COMPUTE), ("loading_ns", Part.DATA)):
        if part in parts:
            means = known.mean_ms(name)
            taken = np.minimum(np.array([means[rank] for rank in view.ranks]), parts[part])
            parts[part], waits = parts[part] - taken, waits + taken
    if waits.max(initial=0.0) < DASHBOARD.equal_ranks_share * totals.max(initial=0.0):
        return of_part
    parts[Part.HOST] = parts.get(Part.HOST, 0.0) + waits
    return parts


def _what_compute_is(view: RunView) -> str:
    """What is drawn as compute where the verdict names what a rank does outside of operators."""
    cause = view.result.cause
    if cause is None or not cause.outside_of_work or view.result.on_device:
        return ""
    return "; compute is all time in a phase without another part, also Python, sleeps and locks there"


def _why_longer(view: RunView, longest_ms: float) -> str:
    """Where a rank's own step is clearly longer than the step of the verdict, or every one shorter, why."""
    step_ns, longer = numbers_of(view.result).get(STEP_TIME), view.result.examination.longer
    if step_ns is None:
        return ""
    if longer is not None:
        return f"; a profiler recorded them: without it, a step takes {duration(longer.untraced_ns)}"
    if duration(step_ns) != duration(longest_ms * MS) and longest_ms * MS < step_ns:
        return f"; from the first rank's begin to the last one's end, a step takes {duration(step_ns)}"
    if longest_ms * MS <= (1 + DASHBOARD.full_scale_share) * step_ns:
        return ""
    return f"; some begin early and wait: the critical path takes {duration(step_ns)}"


def _about(rank: int, view: RunView, fault: bool, ms: Mapping[str, float]) -> str:
    at_fault = ", at fault" if fault else ""
    parts = (f"{name} {number(value)} ms" for name, value in ms.items() if value > 0)
    return "\n".join((f"rank {rank}{_on(view.result, rank)}{at_fault}", *parts))


def _on(result: Result, rank: int) -> str:
    return _at(host_of_rank(result, rank))


def host_of_rank(result: Result, rank: int) -> str:
    """ "" where it is not known."""
    tables = result.tables.ranks.get(rank)
    return (tables.host if tables is not None else None) or ""


def _at(host: str | None) -> str:
    return f" on {visible(host)}" if host else ""


def _grid(view: RunView, theme: Theme, culprits: Collection[int]) -> Data:
    return grid_of_ms(view, *beyond_others(view.result), culprits, theme)


def grid_of_ms(
    view: RunView, ms: Mapping[int, float], unit: str, at_fault: Collection[int], theme: Theme, least: float = 0.0
) -> Data:
    """A grid of hosts by ranks, the darker the more milliseconds. ``unit``: what is counted, in words; ``least``: what
    the darkest colour is at least."""
    whole = Whole(mean_step_ns(view) / MS, "ms", "the step")
    return _grid_of(view, ms, unit, whole, at_fault, theme, least)


def grids_of_both(views: Sequence[RunView], theme: Theme) -> tuple[list[Data], list[dict[int, float]]]:
    """A grid of each run in one unit and with one scale, and its milliseconds by rank; none where a run has none."""
    found = [beyond_others(view.result) for view in views]
    if len({unit for _, unit in found}) > 1:  # one from summaries
        found = [waited_for(view.result) for view in views]
    if not all(ms for ms, _ in found):
        return [], []
    top = max(grid_of_ms(view, *each, view.culprits, theme)["top"] for view, each in zip(views, found, strict=True))
    grids = [grid_of_ms(view, *each, view.culprits, theme, top) for view, each in zip(views, found, strict=True)]
    return grids, [ms for ms, _ in found]


def grid_of_peaks(view: RunView, theme: Theme) -> Data:
    """A grid of hosts by ranks, the darker the more a rank's peak of memory is above the median of the ranks."""
    table = view.result.memory_table
    median = float(np.median([row.peak for row in table.rows]))
    per, symbol = (GB, "GB") if median >= GB else (MB, "MB")
    held = "reserved" if table.on_device else "resident"
    unit = f"{symbol} {held} more than the ranks' median, {size(median)}"
    more = {row.rank: (row.peak - median) / per for row in table.rows}
    return _grid_of(view, more, unit, Whole(median / per, symbol, "the median"), (), theme)


def bars_of_peaks(view: RunView, ranks: Collection[int], theme: Theme) -> Data | None:
    """The highest step of each of these ranks against the capacity: what tensors held, what the allocator held beside
    it, and what was free. None without a device, or where its capacity is not known."""
    rows = [row for row in view.result.memory_table.rows if not ranks or row.rank in ranks]
    rows = sorted(rows, key=lambda row: -row.peak)[: DASHBOARD.most_ranks_of_moment]
    known = [(row, row.reserved, row.capacity) for row in rows if row.reserved is not None and row.capacity]
    if not known:
        return None
    shades = dict(zip(("allocated", "reserved by the allocator", "free"), theme.held, strict=True))

    def of_row(rank: int, allocated: int, reserved: int, capacity: int) -> Data:
        amounts = (allocated, max(0, reserved - allocated), max(0, capacity - reserved))
        about = ", ".join(f"{name} {size(held)}" for name, held in zip(shades, amounts, strict=True))
        return {
            "rank": rank,
            "fault": False,  # a full device is no fault of its rank
            "total": capacity / GB,
            "text": f"{size(reserved)} of {size(capacity)}",
            "ms": [each / GB for each in amounts],
            "about": f"rank {rank}: {about}",
        }

    bars = [of_row(row.rank, row.allocated, reserved, capacity) for row, reserved, capacity in known]
    return {
        "kind": "bars",
        "title": "Peak of the device's memory",
        "rest": ", GB",
        "parts": [[name, shade, ink_on(shade)] for name, shade in shades.items()],
        "rows": bars,
        "end": max(bar["total"] for bar in bars),
        "alt": "; ".join(bar["about"] for bar in bars),
        "predicted": None,
        "colours": colours_of(theme),
    }


class Whole(NamedTuple):
    """What the values of a grid are a part of."""

    amount: float
    symbol: str
    name: str


def _grid_of(
    view: RunView,
    values: Mapping[int, float],
    unit: str,
    whole: Whole,
    at_fault: Collection[int],
    theme: Theme,
    least: float = 0.0,
) -> Data:
    """What costs nothing is pale: the darkest colour is at least a tenth of the whole."""
    host_of = {rank: host_of_rank(view.result, rank) for rank in values}
    hosts = rows_of_hosts(values, host_of)
    top = max(least, DASHBOARD.full_scale_share * whole.amount, *values.values())
    worst = max(values, key=lambda rank: values[rank])
    return {
        "kind": "grid",
        "title": counted(len(values), "rank"),
        "rest": f"{_of_hosts(host_of)}: {unit}",
        "rows": _grid_rows(hosts, {rank: round(each, 3) for rank, each in values.items()}, at_fault),
        "shown": list(view.ranks),
        "scale": [list(stop) for stop in theme.heat],
        "top": top,
        "unit": unit,
        "ends": [f"0 {whole.symbol}", f"{number(top)} {whole.symbol}"],
        "most": f"Most: rank {worst}{_on(view.result, worst)}, {number(values[worst])} {whole.symbol}"
        if values[worst] > DASHBOARD.equal_ranks_share * whole.amount
        else f"No rank: all within {share(DASHBOARD.equal_ranks_share)} of {whole.name}",
        "alt": f"{counted(len(values), 'rank')}: {unit}",
        "predicted": None,
        "colours": colours_of(theme),
    }


def _grid_rows(
    hosts: Mapping[str, Sequence[int]], values: Mapping[int, float], at_fault: Collection[int]
) -> list[Data]:
    """Rank and value of each cell, and 1 if the rank is at fault: no texts, as there may be ten thousands."""
    return [
        {
            "host": host,
            "fault": any(rank in at_fault for rank in ranks),
            "cells": [[rank, values[rank], 1] if rank in at_fault else [rank, values[rank]] for rank in ranks],
        }
        for host, ranks in hosts.items()
    ]


def rows_of_hosts(ranks: Iterable[int], host_of: Mapping[int, str]) -> dict[str, list[int]]:
    """The rows of a grid of ranks: the ranks of each host, by its name; of one host, rows of equal length."""
    hosts: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        hosts.setdefault(visible(host_of.get(rank, "")) or "host not known", []).append(rank)
    if len(hosts) > 1:
        return hosts
    width, every = DASHBOARD.ranks_in_a_row, next(iter(hosts.values()), [])
    return {
        f"ranks {every[at]} to {every[min(at + width, len(every)) - 1]}": every[at : at + width]
        for at in range(0, len(every), width)
    }


def _of_hosts(host_of: Mapping[int, str]) -> str:
    known = {host for host in host_of.values() if host}
    return f" of {counted(len(known), 'host')}" if known else ""


def grid_of_states(
    states: Mapping[int, tuple[str, str]],
    host_of: Mapping[int, str],
    shades: Mapping[str, str],
    at_fault: Collection[int],
    theme: Theme,
) -> Data:
    """A grid of ranks, each in the colour of its state. ``states``: by rank, the state, a key of ``shades``, and what
    more is known of the rank."""
    places = sorted(set(states.values()), key=lambda place: (list(shades).index(place[0]), place[1]))
    code = {place: at for at, place in enumerate(places)}
    hosts, of_state = rows_of_hosts(states, host_of), Counter(state for state, _ in states.values())
    names = [name for name in shades if name in of_state]
    amounts = ", ".join(f"{of_state[name]:,} {name}" for name in names)
    fault = f"; at fault: {listing(sorted(at_fault))}" if at_fault else ""
    return {
        "kind": "grid",
        "title": counted(len(states), "rank"),
        "rest": _of_hosts(host_of),
        "rows": _grid_rows(hosts, {rank: code[place] for rank, place in states.items()}, at_fault),
        "shown": [],
        "states": [[f"{name}: {of_state[name]:,}", shades[name]] for name in names],
        "places": [[names.index(state), "\n".join(filter(None, (state, visible(more))))] for state, more in places],
        "alt": f"{counted(len(states), 'rank')}: {amounts}{fault}",
        "predicted": None,
        "colours": colours_of(theme),
    }


def waits_for_loaders(result: Result) -> tuple[dict[int, float], str]:
    """By rank, milliseconds a step that it waits for its loader, and what that is in words. Summaries hold how long the
    others wait for each loader."""
    if not result.from_summaries:
        return {
            row.rank: row.wait_mean_ns / MS for row in result.loading.rows
        }, "ms a step that it waits for its loader"
    waited = _blamed(result, lambda cost: cost is Cost.DATA)
    return waited, "ms a step that the others wait for its loader"


def waited_for(result: Result) -> tuple[dict[int, float], str]:
    """By rank, milliseconds a step that the others wait for it, and that in words."""
    waits = result.ranks.select("rank", "caused_wait_ns").iter_rows()
    return {rank: (ns or 0) / MS for rank, ns in waits}, WAITED_FOR


def _blamed(result: Result, counts: Callable[[Cost], bool]) -> dict[int, float]:
    waited = dict.fromkeys(result.attribution.ranks, 0.0)
    for cost, by_rank in result.examination.shares.blame_ns.items():
        for rank, series in by_rank.items() if counts(cost) else ():
            waited[rank] = waited.get(rank, 0.0) + float(series.mean()) / MS
    return waited


def beyond_others(result: Result) -> tuple[dict[int, float], str]:
    """By rank, how much longer than the others it takes, milliseconds a step, and what that is in words. Summaries hold
    how long the others wait for each rank."""
    if not result.from_summaries:
        return {each.rank: each.total_ns / MS for each in result.differences}, BEYOND_MEDIAN
    return _blamed(result, lambda _: True), WAITED_FOR


def _predicted(view: RunView, first: Advice | None) -> Data | None:
    """The step without the fault, or, where none can be taken away, with the first advice: low, likely, high."""
    step_ns = numbers_of(view.result).get(STEP_TIME)
    if step_ns is None:
        return None
    supposed = view.result.without_fault
    prospect = view.result.what_if.suppose(supposed) if not supposed.nothing else None
    if prospect is not None and not prospect.refused:
        low, likely, high = map(float, prospect.new_step_ns)
        label, what = "without the fault", "without the fault (What if)"
        note = against_cost(step_ns - likely, view.result.cause, bool(supposed.work))
    elif first is not None:
        low, likely, high = (max(0.0, step_ns - ns) for ns in reversed(first.predicted_gain_ns))
        label, what, note = "after advice 1", f"with the first advice: {visible(first.change)}", ""
    else:
        return None
    return {
        "ms": [low / MS, likely / MS, high / MS],
        "text": f"{number(likely / MS)} ms",
        "label": label,
        "note": f"{sentence(label)}, a step is {duration(step_ns - likely)} shorter{visible(note)}." if note else "",
        "about": f"The step, predicted {what}.\n"
        f"{duration(likely)}, {within_words(low, high)}; it is {duration(step_ns)} now.",
    }


def within_words(low_ns: float, high_ns: float) -> str:
    """The interval of a predicted step in words. It may reach down to nothing where a fault takes nearly all of it."""
    between = f"between {duration(low_ns)} and {duration(high_ns)}"
    return between if low_ns > 0 else f"at most {duration(high_ns)}"


def advice_rows(view: RunView, advised: Sequence[Advice], changes: Sequence[Change], theme: Theme) -> Data:
    """The data of ``views/advice.js``: a row for each advice, its gain as shares of the step."""
    step_ns = numbers_of(view.result).get(STEP_TIME) or max(
        (advice.predicted_gain_ns[2] for advice in advised), default=1
    )
    return {
        "rows": [
            {
                "title": visible(change.title),
                "saves": change.saves,
                "range": f"{duration(advice.predicted_gain_ns[0])} to {duration(advice.predicted_gain_ns[2])}",
                "gain": change.gain,
                "sure": change.sure,
                "share": [ns / step_ns for ns in advice.predicted_gain_ns],
                "memory": change.price[0],
                "risk": change.price[1] if change.risk != Risk.MEMORY else "",  # the memory is beside it
                "safe": change.risk == Risk.SAFE,
                "copy": visible_lines(change.how),
            }
            for advice, change in zip(advised, changes, strict=True)
        ],
        "colours": colours_of(theme),
    }


def colours_of(theme: Theme) -> dict[str, str]:
    """What the style sheets of the components name."""
    return {
        "ink": theme.ink, "soft": theme.soft, "line": theme.faint, "ground": theme.ground, "faint": theme.grid,
        "predicted": theme.series[0], "good": theme.good, "bad": theme.bad, "warn": theme.warn,
    }  # fmt: skip

"""The picture beside the verdict: one bar a rank with the step that is predicted without the fault, or, of many ranks,
a grid of hosts by local ranks. Data for ``views/picture.js``; nothing here draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diag.api import Result
from diag.app.drawings import mean_step_ns, of_ranks
from diag.app.figures import MS
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, ink_on
from diag.model.steps import Advice, Risk
from diag.show.page import STEP_TIME, Change, numbers_of
from diag.words.formatting import counted, duration, listing, number, visible, visible_lines

Data = dict[str, Any]  # as JSON
BEYOND_MEDIAN = "ms a step more than the others' median, without waiting"
WAITED_FOR = "ms a step that the others wait for it"


def picture_of(view: RunView, theme: Theme, first: Advice | None = None) -> Data | None:
    """The data of the picture; None where no steps were recorded. ``first``: the advice whose prediction is drawn."""
    if not view.result.attribution.steps:
        return None
    ranks = view.result.attribution.ranks
    drawn = _grid(view, theme) if len(ranks) > DASHBOARD.most_bars_of_ranks else _bars(view, theme)
    at_fault = f"; at fault: {listing(view.culprits)}" if view.culprits else ""
    return {
        **drawn,
        "alt": f"{drawn['title']}{drawn['rest']}{at_fault}",
        "predicted": _predicted(view, first),
        "colours": colours_of(theme),
    }


def _bars(view: RunView, theme: Theme) -> Data:
    of_part = {part: view.per_rank(grid) / MS for part, grid in view.parts.items()}
    totals = np.nan_to_num(view.per_rank(view.dur_ns)) / MS
    parts = [part for part, ms in of_part.items() if np.nansum(ms) > DASHBOARD.least_legend_share * totals.sum()]
    drawing = of_ranks(view)
    return {
        "kind": "bars",
        "title": drawing.lead,
        "rest": drawing.rest,
        "parts": [[part.value, theme.part[part], ink_on(theme.part[part])] for part in parts],
        "rows": [
            {
                "rank": rank,
                "fault": rank in view.culprits,
                "total": float(totals[at]),
                "text": f"{number(totals[at])} ms",
                "ms": [float(np.nan_to_num(of_part[part][at])) for part in parts],
                "about": _about(rank, view, {part: float(of_part[part][at]) for part in parts}),
            }
            for at, rank in enumerate(view.ranks)
        ],
        "end": float(totals.max(initial=0.0)),
    }


def _about(rank: int, view: RunView, ms: Mapping[Part, float]) -> str:
    at_fault = ", at fault" if rank in view.culprits else ""
    parts = (f"{part.value} {number(value)} ms" for part, value in ms.items() if value > 0)
    return "\n".join((f"rank {rank}{_on(view.result, rank)}{at_fault}", *parts))


def _on(result: Result, rank: int) -> str:
    tables = result.tables.ranks.get(rank)
    return f" on {visible(tables.host)}" if tables is not None and tables.host else ""


def _grid(view: RunView, theme: Theme) -> Data:
    more_ms, unit = beyond_others(view.result)
    hosts: dict[str, list[int]] = {}
    for rank in sorted(more_ms):
        tables = view.result.tables.ranks.get(rank)
        hosts.setdefault(visible((tables.host if tables is not None else None) or ""), []).append(rank)
    if len(hosts) == 1:  # nothing to group by: rows of equal length
        width = DASHBOARD.ranks_in_a_row
        ranks = next(iter(hosts.values()))
        hosts = {f"ranks {ranks[at]} to {ranks[min(at + width, len(ranks)) - 1]}": ranks[at : at + width]
                 for at in range(0, len(ranks), width)}  # fmt: skip
    step_ms = mean_step_ns(view) / MS
    # What costs nothing is pale: the darkest colour is at least a tenth of the step.
    top = max(DASHBOARD.full_scale_share * step_ms, *more_ms.values())
    worst = max(more_ms, key=lambda rank: more_ms[rank])
    return {
        "kind": "grid",
        "title": counted(len(more_ms), "rank"),
        "rest": f" of {counted(len(hosts), 'host')}: {unit}",
        "rows": [
            {
                "host": host or "host not known",
                "fault": any(rank in view.culprits for rank in ranks),
                "cells": [
                    [rank, round(max(0.0, more_ms[rank]) / top, 4), int(rank in view.culprits)] for rank in ranks
                ],
                "about": [
                    f"rank {rank}, {host}{', at fault' if rank in view.culprits else ''}\n"
                    f"{number(more_ms[rank])} {unit}"
                    for rank in ranks
                ],
            }
            for host, ranks in hosts.items()
        ],
        "shown": list(view.ranks),
        "scale": [list(stop) for stop in theme.heat],
        "ends": ["0 ms", f"{number(top)} ms"],
        "most": f"Most: rank {worst}{_on(view.result, worst)}, {number(more_ms[worst])} ms",
    }


def beyond_others(result: Result) -> tuple[dict[int, float], str]:
    """By rank, how much longer than the others it takes, milliseconds a step, and what that is in words. Summaries hold
    how long the others wait for each rank."""
    if not result.from_summaries:
        return {each.rank: each.total_ns / MS for each in result.differences}, BEYOND_MEDIAN
    shares = result.examination.shares
    waited = dict.fromkeys(result.attribution.ranks, 0.0)
    for by_rank in shares.blame_ns.values():
        for rank, series in by_rank.items():
            waited[rank] = waited.get(rank, 0.0) + float(series.mean()) / MS
    return waited, WAITED_FOR


def _predicted(view: RunView, first: Advice | None) -> Data | None:
    """The step with the first advice, or without the fault if nothing is advised: low, likely, high."""
    step_ns = numbers_of(view.result).get(STEP_TIME)
    if step_ns is None:
        return None
    if first is not None:
        low, likely, high = (max(0.0, step_ns - ns) for ns in reversed(first.predicted_gain_ns))
        label, what = "after advice 1", f"with the first advice: {visible(first.change)}"
    else:
        supposed = view.result.without_fault
        if supposed.nothing or (prospect := view.result.what_if.suppose(supposed)).refused:
            return None
        low, likely, high = map(float, prospect.new_step_ns)
        label, what = "without the fault", "without the fault (What if)"
    return {
        "ms": [low / MS, likely / MS, high / MS],
        "text": f"{number(likely / MS)} ms",
        "label": label,
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

"""The figures of the overview and the report, each with its caption or the reason why there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import plotly.graph_objects as go

from diag.app.curves import memory_figure
from diag.app.figures import (
    GB,
    MS,
    averaged,
    blocks_of,
    colour_bar,
    field_columns,
    finish,
    heatmap,
    highest,
    rank_names,
    rows_height,
    shade_windows,
    step_axis,
    step_names,
)
from diag.app.markup import label
from diag.app.policy import DASHBOARD
from diag.app.run_view import PART_OF, Grid, Memory, Part, RunView
from diag.app.theme import Theme, ink_on
from diag.diagnoses.compare import RankDifference
from diag.model.steps import Bottleneck
from diag.show.curves import curve_sentence
from diag.show.memory import snapshots_sentence
from diag.words.formatting import counted, listing, number, share, size
from diag.words.wording import class_name


@dataclass(frozen=True)
class Drawing:
    """``lead`` and ``rest``: the caption, its first words in bold; ``alt``: the alternative text; ``ranks``: of the
    rows of a heat map, if not all."""

    key: str
    draw: Callable[[Theme], go.Figure]
    alt: str
    lead: str = ""
    rest: str = ""
    ranks: Sequence[int] | None = None


def every_rank(view: RunView) -> str:
    """How many of the ranks are shown."""
    ranks = len(view.result.attribution.ranks)
    return f"{len(view.ranks)} of {ranks:,} ranks" if len(view.ranks) < ranks else "Every rank"


def of_ranks(view: RunView, step: int | None = None) -> Drawing:
    """The parts of the step of every rank: the mean over the counted steps, or one step (its index)."""
    counts = int(view.counted.sum())
    if step is not None:
        steps = f"{view.noun} {view.steps[step]}"
    elif len(view.steps) == 1:
        steps = f"the one {view.noun}"
    else:
        steps = f"mean of {counted(counts, f'counted {view.noun}')}"
    return Drawing(
        "ranks",
        lambda theme: rank_bars(view, theme, step),
        f"Milliseconds by part of the step for every rank, {steps}",
        every_rank(view),
        f", {steps}",
    )


def of_differences(view: RunView) -> tuple[str, Drawing | None]:
    """A text, and the figure where there are ranks to compare."""
    if len(view.ranks) < 2:
        return "Only one rank was recorded: there is no other rank to compare it with.", None
    step_ns = mean_step_ns(view)
    most = max((abs(ns) for each in view.result.differences for ns in each.more_ns.values()), default=0)
    if most < DASHBOARD.equal_ranks_share * step_ns and not view.culprits:
        return (
            "Each rank against the others, without its waiting for others: no part of the step differs by "
            f"{share(DASHBOARD.equal_ranks_share)} of the step on any rank."
        ), None
    found = view.result.differences
    if len(found) == 2:  # the one is as far above the other as that is below it
        return "", Drawing(
            "differences",
            partial(difference_bars, found, view.culprits, step_ns),
            "How much longer than the other rank each rank takes for each part, milliseconds a step",
            "What takes longer on one of the two ranks",
            ", without waiting for the other",
        )
    few = len(compared(found)) < len(found)
    return "", Drawing(
        "differences",
        partial(difference_bars, found, view.culprits, step_ns),
        "Difference of each rank from the median of the other ranks, milliseconds a step",
        f"The {len(compared(found))} ranks that differ most from the others" if few else "Each rank against the others",
        ", without its waiting for others",
    )


def of_steps(view: RunView, rank: int, selected: int | None = None) -> Drawing:
    left_out = f"; hatched: {counted(view.left_out, view.noun)} left out of the verdict" if view.left_out else ""
    if limit_ms(view, rank) is not None:
        left_out += ", cut off at the top where longer"
    return Drawing(
        "history",
        lambda theme: step_history(view, rank, theme, selected),
        f"Milliseconds by part of the step for every {view.noun} of rank {rank}",
        f"Every {view.noun} of rank {rank}",
        f"{left_out}. The strip shows each {view.noun}'s class.",
    )


def of_waiting(view: RunView) -> tuple[str, Drawing | None]:
    """A text, and the figure where a rank waits."""
    if len(view.ranks) < 2:
        return "Only one rank was recorded: there is no other rank to wait for.", None
    if view.result.from_summaries:
        return "The ranks' summaries do not hold which rank waits for which.", None
    if not view.waiting_known:
        return "The ranks' clocks could not be aligned, so waiting and transfer cannot be separated.", None
    if Part.WAITING not in view.parts:
        return "No rank waits for another.", None
    if len(view.result.attribution.ranks) > DASHBOARD.most_bars_of_ranks and len(view.steps) > 1:
        return _of_late_ranks(view)
    text = waiting_text(view)
    if len(view.steps) == 1:
        return f"{text} One {view.noun} was recorded: the bars of the ranks hold its waiting.", None
    alt = "Milliseconds that each rank waited in each step"
    return text, Drawing("waiting", partial(waiting_field, view), alt)


def waiting_text(view: RunView) -> str:
    """What the figure of waiting shows, and which ranks the others wait for, if they stand out."""
    means, step_ns = view.per_rank(view.parts[Part.WAITING]), mean_step_ns(view)
    text = "Time that each rank waits in collectives for a later one."
    if means.max() < DASHBOARD.equal_ranks_share * step_ns:
        return f"{text} It is below {share(DASHBOARD.equal_ranks_share)} of the step on every rank."
    others = [float(np.median(np.delete(means, at))) for at in range(len(means))]
    quick = [
        rank
        for rank, mean, of_others in zip(view.ranks, means.tolist(), others, strict=True)
        if of_others >= DASHBOARD.equal_ranks_share * step_ns and mean <= of_others * _PALE
    ]
    if not quick or len(quick) > max(1, len(view.ranks) // 4):
        return text
    link = ", because of its link" if len(quick) == 1 and quick[0] in view.slow_links else ""
    if len(view.steps) == 1:
        return f"{text} The others wait for {listing(quick)}{link}."
    who = f"{listing(quick).capitalize()} hardly {'waits' if len(quick) == 1 else 'wait'}"
    return f"{text} {who}: the others wait for {'it' if len(quick) == 1 else 'them'}{link}."


def _of_late_ranks(view: RunView) -> tuple[str, Drawing | None]:
    """The same of many ranks, of which nearly all wait: for which ones they wait, and in which steps."""
    blamed = _blamed_ns(view)
    late = _late_ranks(view, blamed)
    least = share(DASHBOARD.equal_ranks_share)
    if not late:
        return f"For no rank do the others wait for {least} of a step.", None
    order = ", the worst first" if len(late) > 1 else ""
    text = (
        f"How long the others wait for a rank, where it is at least {least} of a step: {counted(len(late), 'rank')}"
        f"{order}. Blank: steps that are left out of the verdict."
    )
    return text, Drawing(
        "late-ranks",
        partial(late_field, view, {rank: blamed[rank] for rank in late}),
        "Milliseconds that the others waited for a rank in each step",
        ranks=late,
    )


def _late_ranks(view: RunView, blamed: Mapping[int, Grid]) -> list[int]:
    """The ranks that the others wait for, longest first, as many as have room. ``blamed``: as ``_blamed_ns``."""
    late_ns = {rank: float(np.nanmean(ns)) for rank, ns in blamed.items()}
    least = DASHBOARD.equal_ranks_share * mean_step_ns(view)
    ordered = sorted((rank for rank, ns in late_ns.items() if ns >= least), key=lambda rank: -late_ns[rank])
    return ordered[: DASHBOARD.most_rows_of_many_ranks]


def _blamed_ns(view: RunView) -> dict[int, Grid]:
    """By rank and step, how long the others waited for it, for any reason; NaN in steps that do not count."""
    shares = view.result.examination.shares
    counts = np.isin(view.steps, shares.numbers)
    shown = np.isin(shares.numbers, view.steps)
    blamed: dict[int, Grid] = {}
    for by_rank in shares.blame_ns.values() if counts.any() else ():
        for rank, series in by_rank.items():
            row = blamed.setdefault(rank, np.where(counts, 0.0, np.nan))
            row[counts] += series[shown]
    return blamed


def mean_step_ns(view: RunView) -> float:
    """The mean duration of the counted steps over all ranks."""
    return float(view.per_rank(view.dur_ns).mean())


def of_memory(view: RunView, rank: int) -> tuple[str, tuple[Drawing, ...]]:
    """A text, "" if the figures need none, and the figures: peaks by rank and by step of one rank, or for many ranks a
    heat map of ranks by steps."""
    memory = view.memory
    if memory is None and view.result.from_summaries:
        return "The ranks' summaries do not hold memory by step.", ()
    if memory is None:
        if curves := view.result.memory_curves:
            highest = max(curves, key=lambda curve: curve.peak_allocated)
            alt = f"Memory of rank {highest.rank} over time"
            several = len({curve.rank for curve in curves}) > 1
            text = f"{f'Rank {highest.rank}. ' if several else ''}{curve_sentence(highest)}"
            return text, (Drawing("memory-curve", partial(memory_figure, highest, None), alt),)
        return "Not recorded: `diag run` records it, and torch.profiler with `profile_memory=True`.", ()
    sentences = [] if memory.on_device else ["Resident memory of the training processes: the run is on a CPU."]
    alike = alike_peaks(memory)
    text = " ".join([*sentences, *filter(None, [alike, snapshots_sentence(view.result.tables.snapshots)])])
    by_step = Drawing(
        "memory-steps", lambda theme: memory_history(view, memory, rank, theme), f"Peak memory of rank {rank} by step"
    )
    if alike:
        return text, (by_step,)
    if len(view.ranks) > DASHBOARD.most_rank_bars:
        field = partial(memory_field, view, memory)
        return text, (Drawing("memory-field", field, "Peak memory of each rank in each step"),)
    return text, (Drawing("memory-peaks", partial(memory_peaks, view, memory), "Peak memory of each rank"), by_step)


def rank_bars(view: RunView, theme: Theme, step: int | None = None) -> go.Figure:
    """Milliseconds by part for every rank: the mean of the steps that count, or one step (its index)."""
    if len(view.ranks) > DASHBOARD.most_rank_bars:
        return _rank_field(view, theme, step)
    names = rank_names(view.ranks, view.culprits, theme.ink)
    # Thinner bars have no room for numbers, and the browser measures each number: a second for 64 ranks.
    labelled = len(names) <= DASHBOARD.most_labelled_ranks
    figure = go.Figure()
    for part, grid in view.parts.items():
        ms = view.per_rank(grid, step) / MS
        figure.add_bar(
            x=ms,
            y=names,
            orientation="h",
            name=part.value,
            marker={"color": theme.part[part], "line": {"color": theme.ground, "width": 1}},
            text=["" if np.isnan(value) else number(value) for value in ms] if labelled else None,
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ink_on(theme.part[part])},
            textangle=0,
            hovertemplate=f"%{{y}}<br>{part.value} %{{x:,.2f}} ms<extra></extra>",
        )
    totals = np.nan_to_num(view.per_rank(view.dur_ns, step)) / MS
    for name, total in zip(names, totals, strict=True) if labelled else ():
        figure.add_annotation(
            x=total, y=name, text=f"{number(total)} ms", showarrow=False, xanchor="left", xshift=4, font={"size": 12}
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=250, each=36),  # half of it has room for a legend of six rows
        barmode="stack",
        bargap=0.25,
        uniformtext={"minsize": 11, "mode": "hide"},
        margin={"l": 8, "r": 48, "t": 8, "b": 8},  # the totals reach over the axis on a phone
        xaxis={"title": {"text": f"milliseconds a {view.noun}"}, "range": [0, max(float(totals.max()) * 1.1, 1e-9)]},
        yaxis={"autorange": "reversed", "type": "category", "title": None},
    )


def _rank_field(view: RunView, theme: Theme, step: int | None) -> go.Figure:
    parts = list(view.parts)
    z = np.stack([view.per_rank(view.parts[part], step) / MS for part in parts])
    figure = go.Figure(
        heatmap(
            z,
            [str(rank) for rank in view.ranks],
            [part.value for part in parts],
            theme,
            colorbar=colour_bar("ms"),
            hovertemplate="rank %{x}<br>%{y} %{z:,.2f} ms<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(parts), each=28),
        xaxis={"title": {"text": "rank"}, "type": "category", "nticks": 20},
        yaxis={"autorange": "reversed", "type": "category", "title": None},
    )


_ROOM = 1.1
_HATCH = "/"


def step_history(view: RunView, rank: int, theme: Theme, selected: int | None = None) -> go.Figure:
    """Stacked bars, one a step, above a strip of the steps' classes. Steps that the verdict leaves out are hatched.
    Areas instead of bars if there are too many steps. ``selected``: the index of a step to mark."""
    as_bars = len(view.steps) * (len(view.parts) + 1) <= DASHBOARD.most_bars
    blocks = blocks_of(len(view.steps))
    names = step_names(view.steps, blocks)
    hatches = ["" if view.counted[block].any() else _HATCH for block in blocks]
    row = view.ranks.index(rank)
    figure = go.Figure()
    for part, grid in view.parts.items():
        ms = averaged(grid[row], blocks) / MS
        options = {
            "name": part.value,
            "legendgroup": part.value,
            "showlegend": False,
            "hovertemplate": "%{y:,.2f} ms",
        }
        if as_bars:
            figure.add_bar(x=names, y=ms, marker=_marker([theme.part[part]] * len(names), hatches), **_STAY, **options)
        else:
            figure.add_scatter(
                x=names,
                y=np.nan_to_num(ms),
                mode="lines",
                line={"width": 0, "shape": "hvh", "color": theme.part[part]},
                fillcolor=theme.part[part],
                stackgroup="parts",
                **options,
            )
        if np.nansum(grid[row]) > DASHBOARD.least_legend_share * np.nansum(view.dur_ns[row]):
            _legend(figure, part.value, theme.part[part])
    classes = [_class(view, block) for block in blocks]
    figure.add_bar(
        x=names,
        y=[1] * len(names),
        yaxis="y2",
        name="class",
        showlegend=False,
        marker=_marker([theme.bottleneck[name] for name, _ in classes], hatches),
        customdata=[text for _, text in classes],
        hovertemplate="%{customdata}",
        **_STAY,
    )
    drawn = {theme.part[part] for part in view.parts}
    for name in Bottleneck:
        # A class has the colour of its part, which these steps may not have, or a colour that no part has.
        own_colour = name in (Bottleneck.MIXED, Bottleneck.UNDETERMINED) or theme.bottleneck[name] not in drawn
        if own_colour and any(name == step_class for step_class, _ in classes):
            _legend(figure, f"{name.value} (class)", theme.bottleneck[name])
    limit = limit_ms(view, rank)
    if limit is not None and as_bars:
        _label_cut(figure, names, averaged(view.dur_ns[row], blocks) / MS, limit, theme)
    if selected is not None:
        column = next(i for i, block in enumerate(blocks) if block.start <= selected < block.stop)
        figure.add_vrect(x0=column - 0.5, x1=column + 0.5, line={"color": theme.ink, "width": 2}, fillcolor=None)
    finish(
        figure,
        theme,
        400,
        barmode="stack",
        # One or two bars would fill the whole width.
        bargap=max(0.12, 1 - len(names) / 8) if len(names) <= 200 else 0,
        hovermode="x unified",
        hoversubplots="axis",
        # The second y axis shares the x axis, so that one hover label shows the parts and the class.
        yaxis={
            "domain": [0.14, 1],
            "title": {"text": f"rank {rank}, milliseconds"},
            "rangemode": "tozero",
            **({"range": [0, limit]} if limit is not None else {}),
        },
        yaxis2={
            "domain": [0, 0.09],
            "range": [0, 1],
            "tickvals": [0.5],
            "ticktext": ["class"],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        xaxis=step_axis(blocks, view.noun, anchor="y2"),
    )
    return shade_windows(figure, view.windows, blocks, theme)


def limit_ms(view: RunView, rank: int) -> float | None:
    """Where the axis ends; None if it need not be cut. Start-up is part of the first step, or precedes it, and can take
    a hundred times as long as a step: the counted steps would be flat lines next to it."""
    dur = view.dur_ns[view.ranks.index(rank)] / MS
    longest = float(np.nanmax(dur[view.counted], initial=0.0))
    return _ROOM * longest if longest and float(np.nanmax(dur)) > DASHBOARD.cut_step_at * longest else None


def _label_cut(figure: go.Figure, names: list[str], ms: Grid, limit: float, theme: Theme) -> None:
    """Labels the steps that are cut off with their length."""
    cut = [(name, value) for name, value in zip(names, ms.tolist(), strict=True) if value > limit]
    for name, value in cut[: DASHBOARD.most_cut_steps_labelled]:
        figure.add_annotation(
            x=name, y=limit, text=f"{number(value)} ms ↑", showarrow=False, yanchor="top", xanchor="left",
            bgcolor=theme.ground, font={"size": 11, "color": theme.soft},
        )  # fmt: skip


# A click selects a step; the other bars must not fade.
_STAY = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}


def _marker(colours: list[str], hatches: list[str]) -> dict[str, object]:
    return {"color": colours, "line": {"width": 0}, "pattern": {"shape": hatches, "size": 5}}


def _legend(figure: go.Figure, name: str, colour: str) -> None:
    """A separate legend entry: that of the bars would be hatched if the first step is."""
    marker = {"color": colour, "symbol": "square", "size": 12}
    figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, legendgroup=name, hoverinfo="skip")


def _class(view: RunView, block: slice) -> tuple[Bottleneck, str]:
    """The most frequent class of the counted steps in a block, and its text."""
    steps = list(zip(view.bottlenecks[block], view.notes[block], view.counted[block], strict=True))
    classes = [name for name, _, counts in steps if counts] or [name for name, _, _ in steps]
    name = max(Bottleneck, key=classes.count)
    reasons = dict.fromkeys(note or "no reason given" for _, note, counts in steps if not counts)
    text = class_name(name)
    return name, f"{text}, not counted: {label(', '.join(reasons))}" if reasons else text


# -- ranks against the others ------------------------------------------------------------------------------------------


_PALE = 0.5  # of the others' waiting: a row that is at most as dark stands out


def compared(found: Sequence[RankDifference]) -> list[RankDifference]:
    """All ranks, in their order; of more than have room, those that differ most, the first one most."""
    if len(found) <= DASHBOARD.most_bars_of_ranks:
        return list(found)
    most = sorted(found, key=lambda each: -sum(abs(ns) for ns in each.more_ns.values()))
    return most[: DASHBOARD.most_rows_of_many_ranks]


def _more_ns(difference: RankDifference) -> dict[Part, int]:
    """By part, with idle time divided as in the bars of the ranks."""
    more = {PART_OF[kind]: ns for kind, ns in difference.more_ns.items()}
    divided = {Part.HOST: difference.idle_by_host_ns, Part.QUEUED: difference.idle_queued_ns}
    return {**more, **divided, Part.IDLE: more.get(Part.IDLE, 0) - sum(divided.values())}


def difference_bars(
    found: Sequence[RankDifference], culprits: Sequence[int], step_ns: float, theme: Theme
) -> go.Figure:
    """Milliseconds a step more (to the right) or less than the others' median, by part, without waiting. Of two ranks
    only what takes longer. The axis covers at least a tenth of the step; the band is what ranks of a healthy run differ
    by."""
    ranks, two = compared(found), len(found) == 2
    names = rank_names([each.rank for each in ranks], culprits, theme.ink)
    figure = go.Figure()
    for part in Part:
        more = np.array([_more_ns(each).get(part, 0) for each in ranks], dtype=np.float64)
        more = np.maximum(0.0, more) if two else more
        if np.abs(more).max(initial=0.0) < DASHBOARD.least_difference_ns:
            continue
        figure.add_bar(
            x=more / MS,
            y=names,
            orientation="h",
            name=part.value,
            customdata=[each.rank for each in ranks],
            marker={"color": theme.part[part], "line": {"color": theme.ground, "width": 1}},
            hovertemplate=f"%{{y}}<br>{part.value} %{{x:+,.2f}} ms<extra></extra>",
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
        )
    figure.add_vline(x=0, line={"color": theme.faint, "width": 1})
    alike = DASHBOARD.equal_ranks_share * step_ns / MS
    figure.add_vrect(x0=-alike, x1=alike, fillcolor=theme.grid, opacity=0.6, line={"width": 0}, layer="below")
    ends = [[sum(ns for ns in each.more_ns.values() if (ns > 0) == up) / MS for each in ranks] for up in (False, True)]
    least = DASHBOARD.full_scale_share * step_ns / MS
    low, high = 0.0 if two else min(-least, *ends[0]), max(least, *ends[1])
    return finish(
        figure,
        theme,
        rows_height(len(names), least=230, each=30),  # for a legend of four rows on a phone
        barmode="relative",
        bargap=0.3,
        xaxis={
            "title": {"text": f"ms a step more than the {'other rank' if two else 'median of the others'}"},
            "zeroline": False,
            "range": [low * _ROOM, high * _ROOM],
        },
        yaxis={"autorange": "reversed", "type": "category", "title": None},
    )


def waiting_field(view: RunView, theme: Theme) -> go.Figure:
    """Milliseconds that each rank waited for others in each step. Only where ``view.waiting_known``."""
    return field_of(view, Part.WAITING, view.culprits, "waited %{z:,.2f} ms", theme)


def late_field(view: RunView, blamed: Mapping[int, Grid], theme: Theme) -> go.Figure:
    """Milliseconds that the others waited for these ranks in each step."""
    return _field(
        view,
        list(blamed),
        np.stack(list(blamed.values())),
        view.culprits,
        "the others waited %{z:,.2f} ms for it",
        theme,
    )


def field_of(view: RunView, part: Part, culprits: Sequence[int], hover: str, theme: Theme) -> go.Figure:
    """Milliseconds of one kind of waiting, by rank and step. ``hover``: the label of a cell."""
    return _field(view, view.ranks, view.parts.get(part, np.zeros_like(view.dur_ns)), culprits, hover, theme)


def _field(
    view: RunView, ranks: Sequence[int], waited: Grid, culprits: Sequence[int], hover: str, theme: Theme
) -> go.Figure:
    """``waited``: nanoseconds, of shape (ranks, steps)."""
    blocks = blocks_of(len(view.steps), field_columns(len(view.ranks)))
    # Ranks wait longest in the first steps, which the verdict leaves out and which do not count for the scale here. The
    # darkest colour is at least a tenth of a step: what costs nothing is pale.
    top = (
        max(float(np.nanmax(waited[:, view.counted], initial=0.0)), DASHBOARD.full_scale_share * mean_step_ns(view))
        / MS
    )
    figure = go.Figure(
        heatmap(
            averaged(waited, blocks) / MS,
            step_names(view.steps, blocks),
            rank_names(ranks, culprits, theme.ink),
            theme,
            zmax=top or 1.0,
            colorbar=colour_bar("ms"),
            hovertemplate=f"%{{y}}, step %{{x}}<br>{hover}<extra></extra>",
        )
    )
    finish(
        figure,
        theme,
        rows_height(len(ranks), least=220),
        xaxis=step_axis(blocks),
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32, "showgrid": False},
    )
    return shade_windows(figure, view.windows, blocks, theme)


def alike_peaks(memory: Memory) -> str:
    """A sentence in the place of bars of equal length; "" where the peaks of ranks differ, or are compared with a
    capacity."""
    peaks = _largest(memory.peaks)
    peaks = peaks[~np.isnan(peaks)]
    if memory.capacity is not None or len(peaks) < 2:
        return ""
    low, high = float(peaks.min()), float(peaks.max())
    if high - low > DASHBOARD.equal_ranks_share * high:
        return ""
    if size(low) == size(high):
        return f"The peak is {size(high)} on every rank."
    return f"The peaks of all ranks are within {share(DASHBOARD.equal_ranks_share)}: {size(low)} to {size(high)}."


def memory_peaks(view: RunView, memory: Memory, theme: Theme) -> go.Figure:
    """The largest peak of every rank, in GB."""
    names = rank_names(view.ranks)
    figure = go.Figure()
    for name, grid, colour in _series(memory, theme):
        figure.add_bar(
            x=_largest(grid) / GB,
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{name} %{{x:,.3f}} GB<extra></extra>",
        )
    if memory.capacity is not None:
        figure.add_vline(x=memory.capacity / GB, line={"color": theme.ink, "dash": "dash"})
        figure.add_annotation(
            x=memory.capacity / GB,
            y=1,
            yref="paper",
            text="capacity",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=260),
        margin={"l": 8, "r": 16, "t": 26, "b": 8},  # above: the word at the capacity
        barmode="group",
        bargap=0.4,
        showlegend=memory.on_device,
        xaxis={"title": {"text": "peak, GB"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )


def memory_history(view: RunView, memory: Memory, rank: int, theme: Theme) -> go.Figure:
    """The peak of each step of one rank, as lines."""
    blocks = blocks_of(len(memory.steps))
    names = step_names(memory.steps, blocks)
    row = view.ranks.index(rank)
    figure = go.Figure()
    for name, grid, colour in _series(memory, theme):
        figure.add_scatter(
            x=names,
            y=highest(grid[row], blocks) / GB,
            name=name,
            showlegend=memory.on_device,
            mode="lines+markers" if len(names) <= 60 else "lines",
            line={"color": colour, "width": 2},
            hovertemplate=f"step %{{x}}<br>{name} %{{y:,.3f}} GB<extra></extra>",
        )
    if memory.capacity is not None:
        figure.add_hline(y=memory.capacity / GB, line={"color": theme.ink, "dash": "dash"})
    finish(
        figure,
        theme,
        rows_height(len(view.ranks) if len(view.ranks) <= DASHBOARD.most_rank_bars else 1, least=260),
        xaxis=step_axis(blocks),
        yaxis={"title": {"text": f"rank {rank}, GB"}, "rangemode": "tozero"},
    )
    return shade_windows(figure, memory.windows, blocks, theme)


def memory_field(view: RunView, memory: Memory, theme: Theme) -> go.Figure:
    """The peak by rank and step as a heat map, for many ranks."""
    blocks = blocks_of(len(memory.steps), field_columns(len(view.ranks)))
    held = highest(memory.peaks, blocks) / GB
    figure = go.Figure(
        heatmap(
            held,
            step_names(memory.steps, blocks),
            rank_names(view.ranks),
            theme,
            zmax=memory.capacity / GB if memory.capacity is not None else float(np.nanmax(held)),
            colorbar=colour_bar("GB"),
            hovertemplate="%{y}, step %{x}<br>%{z:,.3f} GB<extra></extra>",
        )
    )
    finish(
        figure,
        theme,
        rows_height(len(view.ranks)),
        xaxis=step_axis(blocks),
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32, "showgrid": False},
    )
    return shade_windows(figure, memory.windows, blocks, theme)


def _series(memory: Memory, theme: Theme) -> list[tuple[str, Grid, str]]:
    if not memory.on_device:
        return [("resident memory of the process", memory.allocated, theme.held[0])]
    return [
        ("allocated", memory.allocated, theme.held[0]),
        ("reserved by the allocator", memory.reserved, theme.held[1]),
    ]


def _largest(grid: Grid) -> Grid:
    """The largest value of each rank; NaN where none is known."""
    known = ~np.isnan(grid)
    return np.where(known.any(axis=1), np.where(known, grid, 0).max(axis=1, initial=0.0), np.nan)

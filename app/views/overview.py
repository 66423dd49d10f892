"""The first page: the answer, the numbers behind it, where every rank's and step's time goes, and what was not seen."""

from __future__ import annotations

import streamlit as st

from diag.app.address import choose
from diag.app.figures import memory as memory_figures
from diag.app.figures import ranks as rank_figures
from diag.app.figures import steps as step_figures
from diag.app.figures import waiting as waiting_figures
from diag.app.figures.common import MOST_RANK_BARS
from diag.app.formatting import UNKNOWN, counted, duration, listing, plain, share, size
from diag.app.parts import Part
from diag.app.run_view import RunView
from diag.app.theme import SEVERITY_COLOUR, SEVERITY_ICON, Theme, theme_of
from diag.app.views import coverage, findings
from diag.app.views.common import CONFIG, draw
from diag.model import Bottleneck

_MEAN = "mean"


def show(view: RunView) -> None:
    theme = theme_of(st.context.theme.type)
    _caption(view)
    coverage.show_warning(view)
    _verdict(view)
    _figures(view)
    rank = _breakdown(view, theme)
    _waiting(view, theme)
    _memory(view, rank, theme)
    findings.show(view)
    coverage.show(view)


def _caption(view: RunView) -> None:
    run = view.run
    path = view.result.tables.root
    st.title(plain(path.resolve().name))
    total = len(view.result.coverage.ranks_used) + len(view.result.coverage.ranks_missing)
    hosts = run["hosts"]
    parts = [
        f"{len(view.ranks)} of {counted(total, 'rank')}",
        (hosts[0] if len(hosts) == 1 else counted(len(hosts), "host")) if hosts else None,
        run["strategy"],
        run["backend"],
        run["device"],
        run["model"].get("preset") and f"model {run['model']['preset']}",
        counted(len(view.steps), "step"),
        str(path),
    ]
    st.caption(" · ".join(plain(part) for part in parts if part))


def _verdict(view: RunView) -> None:
    verdict = view.result.verdict
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            st.badge(
                verdict.severity.value, icon=SEVERITY_ICON[verdict.severity], color=SEVERITY_COLOUR[verdict.severity]
            )
            st.badge(_class(verdict.bottleneck), color="gray")
        st.subheader(plain(verdict.headline), anchor=False)
        sure = [f"Confidence {share(verdict.confidence)}"]
        if verdict.culprit_ranks:
            where = f" on {', '.join(verdict.culprit_hosts)}" if verdict.culprit_hosts else ""
            sure.insert(0, f"At fault: {listing(verdict.culprit_ranks)}{where}")
        sure.append(f"{view.counted.sum():,} of {counted(len(view.steps), 'step')} counted")
        st.markdown(" · ".join(plain(part) for part in sure))
        cause = view.result.cause
        if cause is not None and cause.action:
            st.markdown(f"**What to do:** {plain(cause.action)}")


def _class(bottleneck: Bottleneck) -> str:
    whole = bottleneck in (Bottleneck.MIXED, Bottleneck.UNDETERMINED)
    return bottleneck.value if whole else f"{bottleneck.value}-bound"


def _figures(view: RunView) -> None:
    communication = share(view.mean_share(Part.COMMUNICATION, Part.WAITING, Part.TRANSFER))
    columns = st.columns(5)
    columns[0].metric(
        "Step time, median",
        duration(view.median_step_ns),
        border=True,
        help="From the first rank's begin to the last rank's end, of the steps that count.",
    )
    columns[1].metric(
        "Tokens per second",
        f"{view.tokens_per_second:,.0f}" if view.tokens_per_second else UNKNOWN,
        border=True,
        help="All ranks together, in the steps that count. Unknown where the training does not count its tokens.",
    )
    columns[2].metric(
        "Exposed comm.",
        share(view.result.share_of(Bottleneck.COMMUNICATION)),
        border=True,
        help="Exposed communication: transfers on the critical path, the part of the time that free communication "
        "would save. Waiting for a slower rank is counted with what made it slow. As a mean over the ranks, waiting "
        f"included: {communication}.",
    )
    columns[3].metric(
        "Data wait",
        share(view.result.share_of(Bottleneck.DATA)),
        border=True,
        help="Waiting for the data loader on the critical path, also where all ranks wait for the loader of one. As a "
        f"mean over the ranks: {share(view.mean_share(Part.DATA))}.",
    )
    memory, peak = view.memory, view.peak_memory
    capacity = memory.capacity if memory is not None else None
    columns[4].metric(
        "Peak memory" if capacity is None else f"Memory, of {size(capacity)}",
        size(peak) if peak is not None else UNKNOWN,
        border=True,
        help="The largest of all ranks and steps: reserved by the allocator of the device, on a CPU the resident set.",
    )


def _breakdown(view: RunView, theme: Theme) -> int:
    """Draws the parts by rank and by step; the rank that is chosen."""
    st.subheader("Where the time goes", anchor="time")
    chosen = {str(step): i for i, step in enumerate(view.steps)}
    left, right, _ = st.columns([2, 3, 5], vertical_alignment="bottom")
    guilty = next((rank for rank in view.culprits if rank in view.ranks), view.ranks[0])
    with left:
        ranks = [str(rank) for rank in view.ranks]
        rank = int(choose("Rank", ranks, param="rank", default=str(guilty), within=view.run["path"]))
    with right:
        label = choose(
            "Step",
            [_MEAN, *chosen],
            param="step",
            default=_MEAN,
            within=view.run["path"],
            format_func=lambda name: "mean of the counted ones" if name == _MEAN else name,
            help="Also by a click on a step below.",
        )
    step = chosen.get(label)
    what = f"step {label}" if step is not None else f"mean of {counted(int(view.counted.sum()), 'counted step')}"
    st.markdown(f"**Every rank**, {what}")
    draw(rank_figures.breakdown(view, theme, step), "ranks", f"Milliseconds by part of the step for every rank, {what}")
    left_out = f"; hatched: {counted(view.left_out, 'step')} left out of the verdict" if view.left_out else ""
    st.markdown(f"**Every step of rank {rank}**{left_out}. The strip shows each step's class.")
    st.plotly_chart(
        step_figures.history(view, rank, theme, step),
        key="history",
        on_select=_choose_step,
        selection_mode="points",
        config=CONFIG,
        alt=f"Milliseconds by part of the step for every step of rank {rank}",
    )
    return rank


def _choose_step() -> None:
    """A click on a step is a choice in the list of steps, and so in the address."""
    points = st.session_state["history"].selection.points
    if points:
        st.session_state["step"] = str(points[0]["x"])


def _waiting(view: RunView, theme: Theme) -> None:
    st.subheader("Who waits", anchor="waiting")
    if len(view.ranks) < 2:
        st.markdown("One rank was recorded: nobody to wait for.")
    elif not view.waiting_known:
        st.markdown("The ranks' clocks could not be aligned, so waiting cannot be told from transfer.")
    elif Part.WAITING not in view.parts:
        st.markdown("No rank waits for another.")
    else:
        st.markdown("Time that each rank waits in collectives for a later one. The faint stripe is whom they wait for.")
        draw(waiting_figures.field(view, theme), "waiting", "Milliseconds that each rank waited in each step")


def _memory(view: RunView, rank: int, theme: Theme) -> None:
    st.subheader("Memory", anchor="memory")
    memory = view.memory
    if memory is None:
        st.markdown("Not recorded: traces alone do not hold it, `diag run` records it.")
        return
    if not memory.on_device:
        st.markdown("Resident memory of the training processes: the run is on a CPU.")
    if len(view.ranks) > MOST_RANK_BARS:
        draw(memory_figures.field(view, memory, theme), "memory-field", "Peak memory of each rank in each step")
        return
    left, right = st.columns(2)
    with left:
        draw(memory_figures.peaks(view, memory, theme), "memory-peaks", "Peak memory of each rank")
    with right:
        draw(memory_figures.history(view, memory, rank, theme), "memory-steps", f"Peak memory of rank {rank} by step")

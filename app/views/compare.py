"""This run against another of the folder: in which part of the step the difference is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from diag.api import compare_runs, list_runs
from diag.app.address import choose, choose_path
from diag.app.figures import compare as figures
from diag.app.run_view import RunView
from diag.app.theme import theme_of
from diag.app.views.common import bullets, draw, head, show_error
from diag.errors import DiagError
from diag.model.steps import Bottleneck
from diag.show.details import Comparison

from ..address import opened
from ..facts import counted, duration, plain, share
from ..run_view import PART_OF

_TYPED = "another path …"
_REFUSED = "This cannot be compared"


def show(view: RunView, root: Path) -> None:
    head("Compare", view, "The critical path of another run's steps against this run's")
    other = _other(view, root)
    if other is None:
        return
    try:
        against = opened(other)
    except DiagError as error:
        show_error(error, _REFUSED)
        return
    found = compare_runs(against.result, view.result)
    _differences(found, against, view)


def _other(view: RunView, root: Path) -> Path | None:
    """The run to compare with, inside the folder that the dashboard was given; None where there is none yet."""
    own = view.result.tables.root.resolve()
    runs = {run.name: run for run in list_runs(root) if run.resolve() != own}
    left, right = st.columns(2)
    with left:
        picked = choose(
            "Compare with", [*runs, _TYPED], param="with", default=next(iter(runs), _TYPED), within=view.run["path"]
        )
    if picked != _TYPED:
        return runs[picked]
    with right:
        return choose_path(
            "Path of a run", root, param="path", placeholder="inside the folder that is shown", refusal=_REFUSED
        )


def _differences(found: Comparison, against: RunView, view: RunView) -> None:
    before, after = against.result.tables.root.resolve().name, view.result.tables.root.resolve().name
    if found.not_comparable:
        st.warning("Not comparable, because:\n" + bullets(found.not_comparable), icon=":material/difference:")
    _numbers(found, before)
    st.subheader("Where the difference is", anchor="difference")
    draw(
        figures.flow(found, before, after, theme_of(st.context.theme.type)),
        "flow",
        f"From the step of {before} to the step of {after} in milliseconds, by kind of time",
    )
    st.caption(
        plain(
            f"From {before} ({counted(found.steps[0], 'step')}) to {after} ({counted(found.steps[1], 'step')}). Lines: "
            "95% intervals from the steps of both; hatched where one includes zero. Two runs of one configuration "
            "differ by more than their steps say: repeat a run to be sure of a small difference."
        )
    )
    st.table(
        [
            {
                "Kind": PART_OF[part.kind].value.partition(":")[0],
                "Before": duration(part.before_ns),
                "After": duration(part.after_ns),
                "Difference": _signed(part.ns[1]),
                "Between": f"{_signed(part.ns[0])} and {_signed(part.ns[2])}",
            }
            for part in found.parts
        ],
        border="horizontal",
        hide_index=True,
    )
    _verdicts(against, view, before, after)
    if found.notes:
        st.markdown(bullets(tuple(f"{note[:1].upper()}{note[1:]}." for note in found.notes)))


def _numbers(found: Comparison, before: str) -> None:
    columns = st.columns(3)
    columns[0].metric(plain(f"Step of {before}"), duration(found.before_ns), border=True, height="stretch")
    columns[1].metric(
        "This run's step",
        duration(found.after_ns),
        delta=f"{found.ns[1] / found.before_ns:.1%}" if found.before_ns else None,
        delta_color="inverse" if found.sure else "off",
        border=True,
        height="stretch",
    )
    columns[2].metric(
        "Difference",
        _signed(found.ns[1]),
        border=True,
        height="stretch",
        help=f"Between {_signed(found.ns[0])} and {_signed(found.ns[2])}"
        + ("." if found.sure else ": it may be none at all."),
    )


def _verdicts(against: RunView, view: RunView, before: str, after: str) -> None:
    rows: list[dict[str, Any]] = []
    for name, one in ((before, against), (after, view)):
        rows.append(
            {
                "Run": plain(name),
                "Verdict": plain(one.result.verdict.headline),
                "Communication": share(one.result.share_of(Bottleneck.COMMUNICATION)),
                "Data": share(one.result.share_of(Bottleneck.DATA)),
                "Host": share(one.result.share_of(Bottleneck.HOST)),
            }
        )
    st.table(rows, border="horizontal", hide_index=True)


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"

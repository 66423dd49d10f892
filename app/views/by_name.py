"""Which collectives, kernels and modules differ between runs."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.views.common import in_view, nothing, show_rows
from diag.show.compare import differences_by_name, named_table

_OF_RANKS = (
    "Means over all ranks, not the critical path: waiting for a slow rank is a part of these collectives. So they do "
    "not add up to the difference of the step, and may be longer where the step is shorter."
)


def show_by_name(views: Sequence[RunView], names: Sequence[str]) -> None:
    """Draws which collectives, kernels and modules differ between runs, once it is in view: that reads traces again."""
    st.subheader("Difference by collective, kernel and module", anchor="by-name")
    st.caption(plain(_OF_RANKS))
    st.fragment(_by_name)(views, names)


def _by_name(views: Sequence[RunView], names: Sequence[str]) -> None:
    if not in_view(f"by name {' '.join(names)}", DASHBOARD.memory_picture_px):
        return
    found = differences_by_name(*(view.result for view in views))
    if not found:
        nothing("Neither run recorded collectives, kernels or modules.", "`diag run` records a profiler window.")
        return
    for tab, times in zip(st.tabs([times.of.capitalize() for times in found]), found, strict=True):
        with tab:
            table = named_table(times, names)
            st.caption(plain(" ".join((f"{table.title}.", *table.notes))))
            show_rows(
                table, key=f"by-name-{times.of}", alt=f"Difference by name: {times.what}", at_first=["difference_ns"]
            )

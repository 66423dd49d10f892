"""What the answer rests on: what was looked for in vain, what could not be looked for, what could not be read."""

from __future__ import annotations

import streamlit as st

from diag.app.formatting import counted, duration, listing, plain
from diag.app.run_view import RunView

_MOST_GAPS = 50


def show_warning(view: RunView) -> None:
    """At the top of the page, only where data is missing."""
    coverage = view.result.coverage
    if not coverage.incomplete:
        return
    parts = []
    if coverage.ranks_missing:
        parts.append(f"nothing usable of {listing(coverage.ranks_missing)}")
    if coverage.skipped:
        parts.append(f"{counted(len(coverage.skipped), 'thing')} could not be read or used")
    st.warning(f"Incomplete: {plain(', '.join(parts))}. [The list](#coverage)", icon=":material/warning:")


def show(view: RunView) -> None:
    result = view.result
    coverage = result.coverage
    st.subheader("What this rests on", anchor="coverage")
    total = len(coverage.ranks_used) + len(coverage.ranks_missing)
    clock = coverage.clock_uncertainty_ns
    clocks = (
        "clocks not aligned" if clock is None else f"clocks aligned to ± {duration(clock)}" if clock else "one clock"
    )
    st.markdown(plain(f"{len(coverage.ranks_used)} of {counted(total, 'rank')}, {clocks}."))
    looked, not_looked = st.columns(2)
    with looked:
        st.markdown("**Looked for, not found**")
        st.markdown(_bullets(result.examination.not_found) or "Everything looked for was found.")
    with not_looked:
        st.markdown("**Could not look for, because**")
        st.markdown(_bullets(coverage.not_looked) or "Everything could be looked for.")
    for gap in coverage.skipped[:_MOST_GAPS]:
        st.warning(plain(gap.reason), title=plain(gap.path), icon=":material/warning:")
    if len(coverage.skipped) > _MOST_GAPS:
        st.markdown(f"… and {len(coverage.skipped) - _MOST_GAPS} more; `diag analyze` prints all of them.")


def _bullets(items: tuple[str, ...]) -> str:
    return "\n".join(f"- {plain(item)}" for item in items)

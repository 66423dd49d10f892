"""What the answer rests on: what was looked for in vain, what could not be looked for, what could not be read."""

from __future__ import annotations

import streamlit as st

from diag.app.formatting import plain
from diag.app.run_view import RunView
from diag.app.views.common import bullets
from diag.words.wording import EVERYTHING_FOUND, EVERYTHING_LOOKED_FOR, MOST_GAPS, basis, incomplete, sentence


def show_warning(view: RunView) -> None:
    """At the top of the page, only where data is missing."""
    missing = incomplete(view.result.coverage)
    if missing:
        st.warning(f"{plain(missing)} [The list](#coverage)", icon=":material/warning:")


def show(view: RunView) -> None:
    result = view.result
    coverage = result.coverage
    st.subheader("What this rests on", anchor="coverage")
    st.markdown(plain(basis(coverage)))
    for note in coverage.notes:
        st.warning(plain(f"{sentence(note)}."), icon=":material/warning:")
    looked, not_looked = st.columns(2)
    with looked:
        st.markdown("**Looked for, not found**")
        st.markdown(bullets(result.examination.not_found) or EVERYTHING_FOUND)
    with not_looked:
        st.markdown("**Could not look for, because**")
        st.markdown(bullets(coverage.not_looked) or EVERYTHING_LOOKED_FOR)
    for gap in coverage.skipped[:MOST_GAPS]:
        st.warning(plain(gap.reason), title=plain(gap.path), icon=":material/warning:")
    if len(coverage.skipped) > MOST_GAPS:
        st.markdown(f"… and {len(coverage.skipped) - MOST_GAPS} more; `diag analyze` prints all of them.")

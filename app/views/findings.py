"""What was found, most expensive first: the cost, what to do, and the numbers that it rests on."""

from __future__ import annotations

import streamlit as st

from diag.app.formatting import counted, plain
from diag.app.run_view import RunView
from diag.app.theme import SEVERITY_COLOUR, SEVERITY_ICON
from diag.model.steps import Finding, Severity
from diag.words.wording import EVIDENCE_COLUMNS, NOTHING_FOUND, evidence_row, finding_badge, finding_facts


def show(view: RunView) -> None:
    found = view.result.examination.findings
    st.subheader("Findings", anchor="findings")
    if not found:
        st.markdown(NOTHING_FOUND)
    for position, finding in enumerate(found):
        _finding(finding, expanded=position == 0)


def _finding(finding: Finding, expanded: bool) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            if finding.severity == Severity.HEALTHY:
                st.badge(finding_badge(finding), icon=":material/info:", color="gray")
            else:
                st.badge(
                    finding_badge(finding),
                    icon=SEVERITY_ICON[finding.severity],
                    color=SEVERITY_COLOUR[finding.severity],
                )
            st.markdown(f"**{plain(finding.title)}**")
        st.caption(" · ".join(plain(fact) for fact in finding_facts(finding)))
        if finding.action:
            st.markdown(f"**What to do:** {plain(finding.action)}")
        if finding.evidence:
            with st.expander(f"Evidence: {counted(len(finding.evidence), 'number')}", expanded=expanded):
                rows = [
                    dict(zip(EVIDENCE_COLUMNS, map(plain, evidence_row(item)), strict=True))
                    for item in finding.evidence
                ]
                st.table(rows, border="horizontal", hide_index=True)

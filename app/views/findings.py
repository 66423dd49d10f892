"""What was found, most expensive first: the cost, what to do, and the numbers that it rests on."""

from __future__ import annotations

import streamlit as st

from diag.app.formatting import counted, duration, listing, measured, plain, share
from diag.app.run_view import RunView
from diag.app.theme import SEVERITY_COLOUR, SEVERITY_ICON
from diag.model import Evidence, Finding, Severity


def show(view: RunView) -> None:
    found = view.result.examination.findings
    st.subheader("Findings", anchor="findings")
    if not found:
        st.markdown("Nothing costs a twentieth of the step or more.")
    for position, finding in enumerate(found):
        _finding(finding, expanded=position == 0)


def _finding(finding: Finding, expanded: bool) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            if finding.severity == Severity.HEALTHY:
                st.badge("minor", icon=":material/info:", color="gray")
            else:
                st.badge(
                    finding.severity.value,
                    icon=SEVERITY_ICON[finding.severity],
                    color=SEVERITY_COLOUR[finding.severity],
                )
            st.markdown(f"**{plain(finding.title)}**")
        facts = []
        if finding.cost_ns_per_step:
            facts.append(f"{share(finding.share)} of the step, {duration(finding.cost_ns_per_step)}")
        if finding.ranks:
            facts.append(listing(finding.ranks))
        facts.append(f"confidence {share(finding.confidence)}")
        facts.append(finding.id)
        st.caption(" · ".join(plain(fact) for fact in facts))
        if finding.action:
            st.markdown(f"**What to do:** {plain(finding.action)}")
        if finding.evidence:
            with st.expander(f"Evidence: {counted(len(finding.evidence), 'number')}", expanded=expanded):
                st.table([_row(item) for item in finding.evidence], border="horizontal", hide_index=True)


def _row(item: Evidence) -> dict[str, str]:
    return {"Table": plain(item.table), "Rows": plain(item.filter), "Value": plain(measured(item.value, item.unit))}

"""Choices that are in the page's address, so that a link opens the same view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st


def choose(
    label: str,
    options: Sequence[str],
    *,
    param: str,
    default: str,
    within: str = "",
    format_func: Callable[[str], str] = str,
    help: str | None = None,
) -> str:
    """The option that is chosen in the list or in the address; an address that asks for what is not there is mended.
    Where ``within`` is another than last time the choice begins anew: a rank is not the same rank in another run.

    Not ``bind="query-params"``: it leaves the default out of the address, and which one that is changes with the run.
    """
    last = f"{param} as last shown"
    shown, shown_within = st.session_state.get(last, (None, within))
    asked = st.query_params.get(param)
    if asked in options and asked != shown:  # a link was opened, or the browser went back
        st.session_state[param] = asked
    elif st.session_state.get(param) not in options or shown_within != within:
        st.session_state[param] = default
    chosen = st.selectbox(label, options, key=param, format_func=format_func, help=help)
    st.session_state[last] = chosen, within
    st.query_params[param] = chosen
    return chosen

"""What to change first: at most three, each with what it gains, costs and risks, and how to do it."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from diag.app.formatting import NBSP, duration, plain, prose, share, size
from diag.app.run_view import RunView
from diag.model import Advice, Risk, Severity

_RISK: dict[Risk, tuple[str, Literal["green", "orange", "red"]]] = {
    Risk.SAFE: ("safe", "green"),
    Risk.MEMORY: ("takes memory", "orange"),
    Risk.NUMERICS: ("changes the numbers", "orange"),
    Risk.CORRECTNESS: ("may change what is trained", "red"),
}
_API_NAMES = {
    "fsdp2": "FSDP2",
    "fsdp1": "FSDP1",
    "ddp": "DDP",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "hf_trainer": "HF Trainer",
    "pytorch": "PyTorch",
}


def show(view: RunView) -> None:
    """The changes; where there are none, why, and what the verdict's cause asks for instead."""
    found = view.result.recommendation
    st.markdown("**What to change first**")
    for number, advice in enumerate(found.advice, start=1):
        _action(number, advice)
    if found.advice:
        if found.replay_error is not None:
            st.caption(
                "Gains are predicted by replaying the recorded steps with the change; "
                f"the replay of the unchanged ones is off by {share(found.replay_error)}."
            )
        return
    cause = view.result.cause
    if view.result.verdict.severity == Severity.HEALTHY:
        st.markdown("Nothing: no change that is known here would gain a fiftieth of the step.")
    elif cause is not None and cause.action:
        st.markdown(plain(cause.action))
    for reason in found.not_advised:
        if reason.startswith("nothing was predicted"):
            st.caption(plain(reason[:1].upper() + reason[1:] + "."))


def _action(number: int, advice: Advice) -> None:
    with st.container(border=True):
        st.markdown(f"**{number}. {plain(advice.change[:1].upper() + advice.change[1:])}**")
        low, likely, high = advice.predicted_gain_ns
        with st.container(horizontal=True, gap="small"):
            st.badge(
                f"{duration(likely)} a step less, {share(advice.gain_share)}",
                icon=":material/speed:",
                color="green" if low > 0 else "gray",
                help=f"Between {duration(low)} and {duration(high)}."
                + ("" if low > 0 else " It may gain nothing: `diag tune` measures it."),
            )
            st.badge(_memory(advice.memory_delta_bytes), icon=":material/memory:", color="gray")
            text, colour = _RISK[advice.risk]
            st.badge(text, color=colour)
        if advice.command:
            st.code(advice.command, language="bash", wrap_lines=True)
        if advice.code:
            _code(advice)
        for assumed in advice.assumptions:
            st.caption(f"Taken for granted: {prose(assumed)}")


def _memory(delta: int | None) -> str:
    if delta is None:
        return "memory not known"
    if not delta:
        return "no more memory"
    return f"{size(abs(delta))} {'more' if delta > 0 else 'less'}{NBSP}memory"


def _code(advice: Advice) -> None:
    """For the run's own API first; the others in tabs behind it."""
    with st.expander("In your own code", expanded=not advice.command):
        names = list(advice.code)
        for tab, name in zip(st.tabs([_API_NAMES.get(name, name) for name in names]), names, strict=True):
            with tab:
                st.code(advice.code[name], language="json" if name == "deepspeed" else "python", wrap_lines=True)

"""What to change first: at most three, each with what it gains, costs and risks, and how to do it."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from diag.app.formatting import duration, plain, prose, share
from diag.app.run_view import RunView
from diag.app.views.common import show_code
from diag.model.steps import Advice, Bottleneck, Risk, Severity
from diag.words.wording import gain, not_predicted, price, sentence

_COLOUR: dict[Risk, Literal["gray", "orange", "red"]] = {
    Risk.SAFE: "gray",
    Risk.MEMORY: "orange",
    Risk.NUMERICS: "orange",
    Risk.CORRECTNESS: "red",
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
    """What the cause asks for, then the changes whose gain was predicted; for a healthy run what margin is left."""
    result, found = view.result, view.result.recommendation
    st.markdown("**What to do**")
    cause = result.cause
    if result.verdict.severity == Severity.HEALTHY:
        st.markdown(
            f"Nothing. The most that one change could remove is {share(max(result.verdict.share, 0.0))} of a step."
        )
    elif cause is not None and cause.action:
        st.markdown(prose(cause.action))
    elif result.verdict.bottleneck == Bottleneck.UNDETERMINED:
        st.markdown("Nothing yet: record what the answer needs first.")
    for number, advice in enumerate(found.advice, start=1):
        _action(number, advice)
    if found.advice and found.replay_error is not None:
        st.caption(
            "Gains are predicted by replaying the recorded steps with the change; the replay of the unchanged ones is "
            f"off by {share(found.replay_error)}."
        )
    for reason in not_predicted(found.not_advised):
        st.caption(plain(reason))


def _action(number: int, advice: Advice) -> None:
    with st.container(border=True):
        st.markdown(f"**{number}. {plain(sentence(advice.change))}**")
        memory, risk = price(advice)
        with st.container(horizontal=True, gap="small"):
            low, likely, _ = advice.predicted_gain_ns
            st.badge(
                f"{duration(likely)} less, {share(advice.gain_share)}",
                icon=":material/speed:",
                color="green" if low > 0 else "gray",
            )
            st.badge(memory, icon=":material/memory:", color="gray")
            st.badge(risk, color=_COLOUR[advice.risk])
        st.caption(prose(sentence(gain(advice)) + "."))
        if advice.command:
            show_code(advice.command, "bash")
        if advice.code:
            _code(advice)
        if advice.assumptions:
            with st.expander("Taken for granted"):
                st.markdown("\n".join(f"- {prose(assumed)}" for assumed in advice.assumptions))


def _code(advice: Advice) -> None:
    """For the run's own API first; the others in tabs behind it."""
    with st.expander("In your own code", expanded=not advice.command):
        names = list(advice.code)
        for tab, name in zip(st.tabs([_API_NAMES.get(name, name) for name in names]), names, strict=True):
            with tab:
                show_code(advice.code[name], "json" if name == "deepspeed" else "python")

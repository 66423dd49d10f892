"""How many sharding units are gathered ahead of their use (science.md 3.2, rules 3, 4 and 30)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.model.steps import Risk
from diag.replay.mutations.schedule import prefetch

from ..case import Api, Candidate, Case

_MOST = 3


def propose(case: Case) -> Sequence[Candidate]:
    found = case.found(
        "communication-not-overlapped",
        "missing-prefetch",
        "exposed-communication",
        "slow-network",
        "latency-bound-collectives",
        "reduce-scatter-stall",
        "regather-in-backward",
    )
    if found is None or len(case.sizes.units) < 3 or (case.strategy and case.strategy != "fsdp2"):
        return ()
    now = case.number("prefetch", 0)
    asynchronous = case.program.gloo and not now
    return [_candidate(case, found.id, depth, asynchronous) for depth in range(now + 1, min(now + 2, _MOST) + 1)]


def next_unit(depth: int, asynchronous: bool) -> str:
    """The code of it for FSDP2. ``asynchronous``: has to be asked for, too, as on gloo."""
    code = (
        "blocks = list(model.layers)\nfor i, block in enumerate(blocks):\n"
        f"    block.set_modules_to_forward_prefetch(blocks[i + 1 : i + {1 + depth}])\n"
        f"    block.set_modules_to_backward_prefetch(blocks[max(0, i - {depth}) : i][::-1])"
    )
    return code + "\nmodel._set_unshard_async_op(True)  # gloo gathers synchronously otherwise" * asynchronous


def _candidate(case: Case, finding: str, depth: int, asynchronous: bool) -> Candidate:
    units = "the next unit" if depth == 1 else f"the next {depth} units"
    return Candidate(
        id=f"prefetch-{depth}",
        finding=finding,
        knob="prefetch",
        change=f"gather {units} while one computes, in forward and in backward",
        mutation=prefetch(depth),
        # One more unit is gathered at any time for each that is gathered further ahead.
        memory_delta_bytes=(depth - case.number("prefetch", 0)) * case.sizes.largest,
        risk=Risk.MEMORY,
        code={
            Api.FSDP2: next_unit(depth, asynchronous),
            Api.FSDP1: "FSDP(model, forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
            Api.DEEPSPEED: '"zero_optimization": {"overlap_comm": true, "stage3_prefetch_bucket_size": '
            f"{depth * case.sizes.largest // 2}}}",
            Api.ACCELERATE: "fsdp_config:\n  fsdp_forward_prefetch: true\n  fsdp_backward_prefetch: BACKWARD_PRE",
            Api.HF_TRAINER: '"fsdp_config": {"forward_prefetch": true, "backward_prefetch": "backward_pre"}',
        },
        settings={"prefetch": depth} if case.bundled else {},
    )

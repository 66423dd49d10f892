"""Gradients reduced in a smaller type (science.md 3.2, rule 9)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.model.steps import Risk
from diag.replay.mutations.network import reduce_in
from diag.replay.program import GRADIENTS
from diag.traces.kineto_names import dtype_bytes

from ..case import Api, Candidate, Case


def propose(case: Case) -> Sequence[Candidate]:
    found = case.communication
    types = {c.dtype for c in case.program.collectives() if c.role in GRADIENTS}
    # On a CPU bf16 is emulated: ten times slower than fp32 [measured, trainer.md].
    if found is None or case.program.gloo:
        return ()
    if not types or any(dtype_bytes(dtype) != 4 for dtype in types):
        return ()
    return [
        Candidate(
            id="reduce-bf16",
            finding=found.id,
            knob="type of the gradients",
            change="reduce gradients in bf16, half the bytes",
            mutation=reduce_in("BFloat16"),
            memory_delta_bytes=-(case.sizes.largest_gradient // 2),
            risk=Risk.NUMERICS,
            code={
                Api.FSDP2: "fully_shard(block, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
                Api.FSDP1: "FSDP(model, mixed_precision=MixedPrecision(reduce_dtype=torch.bfloat16))",
                Api.DDP: "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
                Api.DEEPSPEED: '"communication_data_type": "bf16"',
            },
        )
    ]

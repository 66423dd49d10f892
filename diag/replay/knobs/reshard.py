"""Whether parameters stay gathered between forward and backward (science.md 3.2, rule 5)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.model.steps import Risk
from diag.replay.mutations.schedule import keep_gathered

from ..case import Api, Candidate, Case


def propose(case: Case) -> Sequence[Candidate]:
    found = case.communication
    if found is None or not case.sizes.regathered:
        return ()
    return [
        Candidate(
            id="keep-after-forward",
            finding=found.id,
            knob="reshard after forward",
            change="keep the parameters between forward and backward, so that backward gathers nothing",
            mutation=keep_gathered,
            memory_delta_bytes=case.sizes.regathered,
            risk=Risk.MEMORY,
            code={
                Api.FSDP2: "fully_shard(block, reshard_after_forward=False)",
                Api.FSDP1: "FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
                Api.DEEPSPEED: '"zero_optimization": {"stage": 2}',
                Api.ACCELERATE: "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false",
                Api.HF_TRAINER: '"fsdp": "shard_grad_op auto_wrap"',
            },
            settings={"reshard_after_forward": "no"} if case.bundled else {},
        )
    ]

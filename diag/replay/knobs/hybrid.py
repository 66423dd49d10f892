"""Parameters sharded within a host only, gradients all-reduced between hosts (science.md 3.2, rule 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from diag.model.steps import Risk
from diag.replay.mutations.network import hybrid_shard

from ..case import Api, Candidate, Case

_BYTES_OF_STATE = 4  # sharded bytes for each byte of fp32 parameters: themselves, gradients, two moments of Adam


def propose(case: Case) -> Sequence[Candidate]:
    found = case.communication
    if found is None or not case.sizes.units:
        return ()
    sizes = set(Counter(tables.host for tables in case.tables.ranks.values() if tables.host).values())
    world = len(case.program.ranks)
    if len(sizes) != 1 or not 1 < (ranks := sizes.pop()) < world:
        return ()
    state = _BYTES_OF_STATE * case.sizes.parameters
    return [
        Candidate(
            id="shard-within-host",
            finding=found.id,
            knob="sharding group",
            change=f"shard over the {ranks} ranks of a host only, and all-reduce gradients between hosts (HSDP)",
            mutation=hybrid_shard(ranks),
            memory_delta_bytes=state // ranks - state // world,
            risk=Risk.MEMORY,
            code={
                Api.FSDP2: f'mesh = init_device_mesh("cuda", ({world // ranks}, {ranks}), '
                'mesh_dim_names=("replicate", "shard"))\nfully_shard(block, mesh=mesh)',
                Api.FSDP1: "FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)",
                Api.DEEPSPEED: f'"zero_optimization": {{"stage": 3, "zero_hpz_partition_size": {ranks}}}',
                Api.ACCELERATE: "fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD",
                Api.HF_TRAINER: '"fsdp": "hybrid_shard auto_wrap"',
            },
        )
    ]

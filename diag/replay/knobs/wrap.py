"""What one sharding unit is: the whole model, a block, several, a layer (science.md 3.2, rules 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from diag.model.steps import Risk
from diag.replay.mutations import in_turn
from diag.replay.mutations.schedule import keep_gathered, prefetch
from diag.replay.mutations.wrapping import merge_units, split_root

from ..case import Api, Candidate, Case, grouped
from .prefetch import next_unit

_COMMUNICATION = (
    "root-only-unit",
    "latency-bound-collectives",
    "communication-not-overlapped",
    "missing-prefetch",
    "exposed-communication",
    "slow-network",
    "reduce-scatter-stall",
)
_BLOCK = {
    Api.FSDP2: "for block in model.layers:\n    fully_shard(block)\nfully_shard(model)",
    Api.FSDP1: "FSDP(model, auto_wrap_policy=ModuleWrapPolicy({TransformerBlock}))",
    Api.ACCELERATE: "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_transformer_layer_cls_to_wrap: TransformerBlock",
    Api.HF_TRAINER: '"fsdp": "full_shard auto_wrap",\n'
    '"fsdp_config": {"transformer_layer_cls_to_wrap": ["TransformerBlock"]}',
}


def propose(case: Case) -> Sequence[Candidate]:
    found = case.found(*_COMMUNICATION)
    if found is None or not case.sizes.units:
        return ()
    if len(case.sizes.units) == 1:
        return list(_blocks(case, found.id))
    return list(_coarser(case, found.id))


def _blocks(case: Case, finding: str) -> Iterator[Candidate]:
    """The whole model is one unit: nothing overlaps, and all of it is gathered at once."""
    if case.blocks is None or case.blocks < 2:
        return
    size = case.sizes
    before, after = size.transient(size.parameters, 1), size.transient(size.parameters // case.blocks, case.blocks)
    blocks = Candidate(
        id="wrap-blocks",
        finding=finding,
        knob="wrap granularity",
        change=f"shard each of the {case.blocks} blocks as a unit of its own, not the whole model as one",
        mutation=split_root(case.blocks),
        memory_delta_bytes=after - before,
        risk=Risk.SAFE,
        code=_BLOCK,
        settings={"wrap": "block"} if case.bundled else {},
        also=("all parameters are in the blocks, which are alike",),
    )
    yield blocks
    # Units overlap by themselves on a GPU; on gloo only where they are prefetched.
    ahead = replace(
        blocks,
        id="wrap-blocks-prefetch",
        change=f"{blocks.change}, and gather the next one while one computes",
        mutation=in_turn(split_root(case.blocks), prefetch(1)),
        code={api: text for api, text in _BLOCK.items() if api != Api.FSDP2}
        | {Api.FSDP2: f"{_BLOCK[Api.FSDP2]}\n{next_unit(1, case.program.gloo)}"},
        settings={"wrap": "block", "prefetch": 1} if case.bundled else {},
    )
    yield ahead
    # The root keeps its parameters for the backward, blocks do not unless they are told to.
    kept = _BLOCK[Api.FSDP2].replace("(block)", "(block, reshard_after_forward=False)")
    yield replace(
        ahead,
        id="wrap-blocks-prefetch-keep",
        change=f"{ahead.change}; keep the parameters for the backward, as now",
        mutation=in_turn(split_root(case.blocks), prefetch(1), keep_gathered),
        memory_delta_bytes=size.parameters + (after - before),
        code={Api.FSDP2: f"{kept}\n{next_unit(1, case.program.gloo)}"},
        settings={"wrap": "block", "prefetch": 1, "reshard_after_forward": "no"} if case.bundled else {},
    )


def _coarser(case: Case, finding: str) -> Iterator[Candidate]:
    """Fewer, larger collectives: their latency is paid less often."""
    units, blocks = case.sizes.units, case.blocks
    if case.option("wrap", "") == "linear" and blocks is not None:
        inner = len(units) - 1  # the last unit gathered is not always the root, but one is
        yield _merged(case, finding, max(2, round(inner / blocks)), "block", "each block a unit, not each linear layer")
        return
    if blocks is not None and len(units) >= 4:
        for by in (2, 4):
            now = case.option("wrap", "block")
            blocks_now = int(now) if str(now).isdecimal() else 1
            if blocks_now * by <= blocks // 2:
                wrap = str(blocks_now * by)
                yield _merged(case, finding, by, wrap, f"{wrap} blocks in one unit, not {blocks_now}")


def _merged(case: Case, finding: str, by: int, wrap: str, change: str) -> Candidate:
    size = case.sizes
    largest = max(grouped(size.units, by))
    now, then = size.transient(size.largest, len(size.units)), size.transient(largest, -(-len(size.units) // by))
    pairs = {
        Api.FSDP2: f"for i in range(0, len(model.layers), {by}):\n"
        f"    fully_shard([*model.layers[i : i + {by}]])\nfully_shard(model)",
        Api.DEEPSPEED: f'"zero_optimization": {{"stage3_param_persistence_threshold": {size.largest // 4}}}',
    }
    return Candidate(
        id="wrap-blocks" if wrap == "block" else f"wrap-{wrap}-blocks",
        finding=finding,
        knob="wrap granularity",
        change=change,
        mutation=merge_units(by),
        memory_delta_bytes=then - now,
        risk=Risk.MEMORY,
        code=_BLOCK if wrap == "block" else pairs,
        settings={"wrap": wrap} if case.bundled else {},
    )

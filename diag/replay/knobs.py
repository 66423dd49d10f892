"""The knobs: functions from a case to the changes that they propose, by name in KNOBS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from diag.account.records import loader_settings
from diag.diagnoses import answered_by
from diag.diagnoses.contended_host import no_core_for_loaders
from diag.diagnoses.subject import ranks_text
from diag.model.states import partitions_gradients
from diag.model.steps import Knob, Risk
from diag.replay.policy import ADVICE
from diag.traces.kineto_names import dtype_bytes

from .case import Api, Candidate, Case, grouped
from .mutations import hybrid_shard, in_turn, more_workers, reduce_in, without_straggler
from .program import GRADIENTS
from .sharding_mutations import keep_gathered, merge_units, prefetch, split_root, sync_last_micro_batch

# -- wrap granularity: the model, a block, several blocks or a layer in one sharding unit (rules 1 and 2) --------------


_BLOCK_CODE = {
    Api.FSDP2: "for block in model.layers:\n    fully_shard(block)\nfully_shard(model)",
    Api.FSDP1: "FSDP(model, auto_wrap_policy=ModuleWrapPolicy({TransformerBlock}))",
    Api.ACCELERATE: "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_transformer_layer_cls_to_wrap: TransformerBlock",
    Api.HF_TRAINER: '"fsdp": "full_shard auto_wrap",\n'
    '"fsdp_config": {"transformer_layer_cls_to_wrap": ["TransformerBlock"]}',
}
_SHARDED_NOW = {
    Api.FSDP1: "FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD)",
    Api.FSDP2: "fully_shard(block)",
    Api.DEEPSPEED: '"zero_optimization": {"stage": 3}',
    Api.HF_TRAINER: '"fsdp": "full_shard auto_wrap"',
}


def wrap_granularity(case: Case) -> Sequence[Candidate]:
    finding = case.finding(Knob.WRAP)
    if finding is None or not case.sizes.units:
        return ()
    if len(case.sizes.units) == 1:
        return list(_wrap_blocks(case, finding.id))
    return list(_coarser_units(case, finding.id))


def _wrap_blocks(case: Case, finding: str) -> Iterator[Candidate]:
    """The whole model is one unit: nothing overlaps, and all of it is gathered at once."""
    if case.blocks is None or case.blocks < 2:
        return
    size, split = case.sizes, split_root(case.blocks)
    before, after = size.transient(size.parameters, 1), size.transient(size.parameters // case.blocks, case.blocks)
    blocks = Candidate(
        id="wrap-blocks",
        finding=finding,
        knob=Knob.WRAP,
        change=f"shard each of the {case.blocks} blocks as its own unit instead of the whole model as one",
        mutation=split,
        memory_delta_bytes=after - before,
        risk=Risk.SAFE,
        code=_BLOCK_CODE,
        before={Api.FSDP2: "fully_shard(model)", Api.FSDP1: "FSDP(model)"},
        settings={"wrap": "block"} if case.bundled else {},
        also=("all parameters are in the blocks, which are alike",),
    )
    yield blocks
    # Units overlap by default on a GPU; on gloo only where they are prefetched.
    ahead = replace(
        blocks,
        id="wrap-blocks-prefetch",
        change=f"{blocks.change}, and prefetch the next unit",
        mutation=in_turn(split, prefetch(1)),
        code={api: text for api, text in _BLOCK_CODE.items() if api != Api.FSDP2}
        | {Api.FSDP2: f"{_BLOCK_CODE[Api.FSDP2]}\n{next_unit(1, case.program.gloo)}"},
        settings={"wrap": "block", "prefetch": 1} if case.bundled else {},
    )
    yield ahead
    # The root keeps its parameters for the backward; blocks do so only where that is set.
    keeping = _BLOCK_CODE[Api.FSDP2].replace("(block)", "(block, reshard_after_forward=False)")
    yield replace(
        ahead,
        id="wrap-blocks-prefetch-keep",
        change=f"{ahead.change}; keep the parameters for the backward, as now",
        mutation=in_turn(split, prefetch(1), keep_gathered),
        memory_delta_bytes=size.parameters + (after - before),
        code={Api.FSDP2: f"{keeping}\n{next_unit(1, case.program.gloo)}"},
        settings={"wrap": "block", "prefetch": 1, "reshard_after_forward": "no"} if case.bundled else {},
    )


def _coarser_units(case: Case, finding: str) -> Iterator[Candidate]:
    """Fewer, larger collectives: their latency is paid less often."""
    units, blocks = case.sizes.units, case.blocks
    if case.option("wrap", "") == "linear" and blocks is not None:
        inner = len(units) - 1  # the last unit gathered is not always the root, but one is
        yield _units_merged(
            case, finding, max(2, round(inner / blocks)), "block", "each block a unit, not each linear layer"
        )
        return
    if blocks is not None and len(units) >= 4:
        for by in (2, 4):
            now = case.option("wrap", "block")
            blocks_now = int(now) if str(now).isdecimal() else 1
            if blocks_now * by <= blocks // 2:
                wrap = str(blocks_now * by)
                yield _units_merged(case, finding, by, wrap, f"{wrap} blocks in one unit, not {blocks_now}")


def _units_merged(case: Case, finding: str, by: int, wrap: str, change: str) -> Candidate:
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
        knob=Knob.WRAP,
        change=change,
        mutation=merge_units(by),
        memory_delta_bytes=then - now,
        risk=Risk.MEMORY,
        code=_BLOCK_CODE if wrap == "block" else pairs,
        before={} if wrap == "block" else {Api.FSDP2: _BLOCK_CODE[Api.FSDP2]},
        settings={"wrap": wrap} if case.bundled else {},
    )


# -- prefetch: how many units are gathered ahead of their use (rules 3, 4 and 30) --------------------------------------


def prefetch_depth(case: Case) -> Sequence[Candidate]:
    finding = case.finding(Knob.PREFETCH)
    if finding is None or len(case.sizes.units) < 3 or case.api not in ("", Api.FSDP2):
        return ()
    now = case.number("prefetch", 0)
    asynchronous = case.program.gloo and not now
    return [
        _deeper_prefetch(case, finding.id, depth, asynchronous)
        for depth in range(now + 1, min(now + 2, ADVICE.deepest_prefetch) + 1)
    ]


def next_unit(depth: int, asynchronous: bool) -> str:
    """FSDP2 code that gathers the next units ahead. ``asynchronous``: must be set explicitly, as on gloo."""
    code = (
        "blocks = list(model.layers)\nfor i, block in enumerate(blocks):\n"
        f"    block.set_modules_to_forward_prefetch(blocks[i + 1 : i + {1 + depth}])\n"
        f"    block.set_modules_to_backward_prefetch(blocks[max(0, i - {depth}) : i][::-1])"
    )
    return code + "\nmodel._set_unshard_async_op(True)  # gloo gathers synchronously otherwise" * asynchronous


def _deeper_prefetch(case: Case, finding: str, depth: int, asynchronous: bool) -> Candidate:
    units, now = "the next unit" if depth == 1 else f"the next {depth} units", case.number("prefetch", 0)
    return Candidate(
        id=f"prefetch-{depth}",
        finding=finding,
        knob=Knob.PREFETCH,
        change=f"prefetch {units} in forward and in backward",
        mutation=prefetch(depth),
        # Each further unit of depth keeps one more unit gathered at any time.
        memory_delta_bytes=(depth - now) * case.sizes.largest,
        risk=Risk.MEMORY,
        code={
            Api.FSDP2: next_unit(depth, asynchronous),
            Api.FSDP1: "FSDP(model, forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
            Api.DEEPSPEED: '"zero_optimization": {"overlap_comm": true, "stage3_prefetch_bucket_size": '
            f"{depth * case.sizes.largest // 2}}}",
            Api.ACCELERATE: "fsdp_config:\n  fsdp_forward_prefetch: true\n  fsdp_backward_prefetch: BACKWARD_PRE",
            Api.HF_TRAINER: '"fsdp_config": {"forward_prefetch": true, "backward_prefetch": "backward_pre"}',
        },
        before={Api.FSDP2: next_unit(now, asynchronous=False)} if now else {},
        settings={"prefetch": depth} if case.bundled else {},
    )


def reshard_after_forward(case: Case) -> Sequence[Candidate]:
    finding = case.communication
    if finding is None or not case.sizes.regathered:
        return ()
    return [
        Candidate(
            id="keep-after-forward",
            finding=finding.id,
            knob=Knob.RESHARD,
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
            before={
                **_SHARDED_NOW,
                Api.ACCELERATE: "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true",
            },
            settings={"reshard_after_forward": "no"} if case.bundled else {},
        )
    ]


_STATE_BYTES = 4  # sharded bytes for each byte of fp32 parameters: themselves, gradients, two moments of Adam


def sharding_group(case: Case) -> Sequence[Candidate]:
    finding = case.communication
    if finding is None or not case.sizes.units:
        return ()
    sizes = set(Counter(tables.host for tables in case.tables.ranks.values() if tables.host).values())
    world = len(case.program.ranks)
    if len(sizes) != 1 or not 1 < (ranks := sizes.pop()) < world:
        return ()
    state = _STATE_BYTES * case.sizes.parameters
    return [
        Candidate(
            id="shard-within-host",
            finding=finding.id,
            knob=Knob.GROUP,
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
            before={**_SHARDED_NOW, Api.ACCELERATE: "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD"},
        )
    ]


def gradient_sync(case: Case) -> Sequence[Candidate]:
    finding = case.communication
    if finding is None:
        return ()
    reduced_in = {c.micro_batch for c in case.program.collectives() if c.role in GRADIENTS}
    if len(reduced_in) < 2 or (case.manifest is not None and partitions_gradients(case.manifest.strategy or "")):
        return ()
    # DDP and ZeRO-1 have the whole gradient anyway; FSDP then keeps it unsharded until the last micro-batch.
    whole = case.api in (Api.DDP, Api.DEEPSPEED)
    memory = 0 if whole else case.sizes.gradients
    return [
        Candidate(
            id="sync-last-micro-batch",
            finding=finding.id,
            knob=Knob.SYNC,
            change=f"reduce gradients in the last of the {len(reduced_in)} micro-batches only",
            mutation=sync_last_micro_batch,
            memory_delta_bytes=memory,
            risk=Risk.SAFE if whole else Risk.MEMORY,
            code={
                Api.FSDP2: "model.set_requires_gradient_sync(is_last_micro_batch)  # before each micro-batch",
                Api.FSDP1: "with contextlib.nullcontext() if is_last_micro_batch else model.no_sync():\n    ...",
                Api.DDP: "with contextlib.nullcontext() if is_last_micro_batch else model.no_sync():\n    ...",
                Api.DEEPSPEED: f'"gradient_accumulation_steps": {len(reduced_in)}',
                Api.ACCELERATE: "with accelerator.accumulate(model):\n    ...",
                Api.HF_TRAINER: f'"gradient_accumulation_steps": {len(reduced_in)}',
            },
            settings={"grad_sync": "last"} if case.bundled else {},
        )
    ]


def gradient_dtype(case: Case) -> Sequence[Candidate]:
    finding = case.communication
    types = {c.dtype for c in case.program.collectives() if c.role in GRADIENTS}
    # On a CPU bf16 is emulated: ten times slower than fp32 [measured].
    if finding is None or case.program.gloo:
        return ()
    if not types or any(dtype_bytes(dtype) != 4 for dtype in types):
        return ()
    return [
        Candidate(
            id="reduce-bf16",
            finding=finding.id,
            knob=Knob.DTYPE,
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
            before={Api.FSDP2: "fully_shard(block)", Api.FSDP1: "FSDP(model)"},
        )
    ]


# -- loader processes of each rank (rule 18) ---------------------------------------------------------------------------


def loader_workers(case: Case) -> Sequence[Candidate]:
    finding = case.finding(Knob.LOADER)
    workers = loader_settings(case.manifest).workers
    if finding is None or workers is None:
        return ()
    if no_core_for_loaders(case.examination.shares, case.examination.scheduling):
        return ()  # there is no core for another process
    cores = [rank.identity.cpus for rank in case.tables.ranks.values() if rank.identity and rank.identity.cpus]
    most = min([ADVICE.most_loader_workers, *cores])
    return [_more_workers(case, finding.id, workers, then) for then in _worker_counts(workers, most)]


def _worker_counts(now: int, most: int) -> list[int]:
    """Powers of two above the present number: the smallest that removes the wait is advised. ``most``: as many as the
    process may use cores, where PyTorch begins to warn (torch.utils.data.DataLoader)."""
    choices = [1 << exponent for exponent in range(6)]
    return [count for count in choices if now < count <= most][:4]


def _more_workers(case: Case, finding: str, now: int, then: int) -> Candidate:
    return Candidate(
        id=f"loader-workers-{then}",
        finding=finding,
        knob=Knob.LOADER,
        change=f"{then} DataLoader workers per rank instead of {now}",
        mutation=more_workers(now, then, case.micro_batches),
        memory_delta_bytes=0,
        risk=Risk.SAFE,
        code={
            Api.PYTORCH: f"DataLoader(..., num_workers={then}, persistent_workers=True)",
            Api.HF_TRAINER: f'"dataloader_num_workers": {then}, "dataloader_persistent_workers": true',
        },
        before={
            Api.PYTORCH: f"DataLoader(..., num_workers={now})",
            Api.HF_TRAINER: f'"dataloader_num_workers": {now}',
        },
        settings={"num_workers": then} if case.bundled else {},
        also=("each process holds the dataset's state and its batches in host memory, and needs a core of its own",),
    )


def straggler(case: Case) -> Sequence[Candidate]:
    finding = case.finding(Knob.STRAGGLER)
    if finding is None or not finding.ranks:
        return ()
    its = "its" if len(finding.ranks) == 1 else "their"
    return [
        Candidate(
            id="straggler",
            finding=finding.id,
            knob=Knob.STRAGGLER,
            change=answered_by(Knob.STRAGGLER)[finding.id].format(ranks=ranks_text(finding.ranks), its=its),
            mutation=without_straggler(finding.ranks),
            memory_delta_bytes=0,
            risk=Risk.SAFE,
            code={},
        )
    ]


KNOBS: dict[Knob, Callable[[Case], Sequence[Candidate]]] = {
    Knob.WRAP: wrap_granularity,
    Knob.PREFETCH: prefetch_depth,
    Knob.RESHARD: reshard_after_forward,
    Knob.GROUP: sharding_group,
    Knob.SYNC: gradient_sync,
    Knob.DTYPE: gradient_dtype,
    Knob.LOADER: loader_workers,
    Knob.STRAGGLER: straggler,
}

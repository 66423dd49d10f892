"""What cannot work together, refused before anything is launched, with the reason. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

from .checkpoint import resume
from .checkpoint.folder import find
from .faults import FaultError, parse_faults
from .options import DDP, DEEPSPEED, FSDP1, FSDP2, PRESETS, STRATEGIES, ZERO1, KnobError, OptionError, TrainerOptions

SCHEDULES = ("gpipe", "1f1b", "interleaved")


def validate(options: TrainerOptions, world_size: int | None = None) -> None:
    """Raise OptionError on the first choice that cannot work. ``world_size`` of None skips what depends on it."""
    _values(options)
    try:
        options.knobs()
        parse_faults(options.inject, world_size)
    except (KnobError, FaultError) as error:
        raise OptionError(str(error)) from error
    if options.strategy == FSDP2:
        _fsdp2(options)
    else:
        _without_units(options)
        _OF_STRATEGY[options.strategy](options)
    _precision(options)
    _model_parallel(options)
    if world_size is not None:
        _world(options, world_size)
    if options.resume is not None:
        resume.refuse(find(Path(options.resume)), options, world_size)


def validate_backend(options: TrainerOptions, backend: str) -> None:
    """Raise OptionError on what this backend cannot do. Of options that ``validate`` let pass."""
    if backend != "gloo":
        return
    if options.strategy == DDP and options.knobs().text("comm_hook") == "bf16":
        raise OptionError(
            "--set comm_hook=bf16 needs NCCL: PyTorch's bf16 hook refuses gloo. Use fp16 or powersgd, or run on GPUs"
        )
    if options.strategy == FSDP2 and options.knobs().on("separate_reduce_scatter_group"):
        raise OptionError("--set separate_reduce_scatter_group=yes is about NCCL's queues; gloo has none")


def _values(options: TrainerOptions) -> None:
    one_of("--preset", options.preset, tuple(PRESETS))
    one_of("--strategy", options.strategy, STRATEGIES)
    one_of("--grad-sync", options.grad_sync, ("last", "every"))
    one_of("--precision", options.precision, ("fp32", "bf16"))
    one_of("--reduce-dtype", options.reduce_dtype, ("fp32", "bf16"))
    one_of("--checkpoint-policy", options.checkpoint_policy, ("full", "selective"))
    one_of("--pipeline-schedule", options.pipeline_schedule, SCHEDULES)
    for flag, value, least in (
        ("--prefetch", options.prefetch, 0),
        ("--micro-batches", options.micro_batches, 1),
        ("--tp", options.tensor_parallel, 1),
        ("--pp", options.pipeline_parallel, 1),
        ("--stages-per-rank", options.stages_per_rank, 1),
        ("--num-workers", options.num_workers, 0),
        ("--prefetch-factor", options.prefetch_factor, 1),
        ("--steps", options.steps, 1),
        ("--batch-size", options.batch_size, 1),
        ("--seq-len", options.seq_len, 1),
        ("--seed", options.seed, 0),
        ("--learning-rate", options.learning_rate, 0),
        ("--warmup-steps", options.warmup_steps, 0),
        ("--checkpoint-every", options.checkpoint_every, 0),
        ("--keep", options.keep_checkpoints, 1),
        ("--max-grad-norm", options.max_grad_norm, 0),
    ):
        if value is not None and value < least:
            raise OptionError(f"{flag} {value} is too small: give {least} or more")
    if options.timeout_s <= 0:
        raise OptionError(f"--timeout {options.timeout_s:g} leaves a collective no time: give seconds above 0")
    if options.checkpoint_policy != "full" and not options.activation_checkpointing:
        raise OptionError(
            f"--checkpoint-policy {options.checkpoint_policy} says what is recomputed, and nothing is: add "
            "--activation-checkpointing"
        )


def _given(options: TrainerOptions, *names: str) -> list[str]:
    """Of options that differ from their defaults, the flags."""
    default = TrainerOptions()
    return [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name in names
        if getattr(options, name) != getattr(default, name)
    ]


_WHY_NO_UNITS = {
    DDP: "every rank keeps the whole model, so nothing is sharded or gathered. Drop it, or use --strategy fsdp2",
    ZERO1: "every rank keeps the whole model, only optimizer states are sharded. Drop it, or use --strategy fsdp2",
    FSDP1: "they are fully_shard's. FSDP1 says it with --set sharding=shard_grad_op (not resharded after forward), "
    "--set forward_prefetch=yes, --set backward_prefetch=pre",
    DEEPSPEED: "it gathers parameter by parameter in the order of the first step. Use --set prefetch_bucket_size=N and "
    "--set persistence_threshold=N",
}


def _without_units(options: TrainerOptions) -> None:
    units = () if options.strategy == FSDP1 else ("wrap",)
    if given := _given(options, *units, "prefetch", "reshard_after_forward"):
        why = _WHY_NO_UNITS[options.strategy]
        raise OptionError(f"--strategy {options.strategy} cannot use {', '.join(given)}: {why}")


def _ddp(options: TrainerOptions) -> None:
    knobs = options.knobs()
    if knobs.on("static_graph") and knobs.on("find_unused_parameters"):
        raise OptionError(
            "--set static_graph=yes says that every step uses the same parameters, and find_unused_parameters=yes "
            "looks for them in every step: use one of the two"
        )
    if knobs.on("static_graph") and options.micro_batches > 1 and options.grad_sync == "last":
        raise OptionError(
            "--set static_graph=yes counts on every backward to reduce gradients, and with --micro-batches "
            f"{options.micro_batches} only the last does: use --grad-sync every, or drop static_graph"
        )


def _fsdp1(options: TrainerOptions) -> None:
    knobs = options.knobs()
    hybrid = knobs.text("sharding") == "hybrid_shard"
    if hybrid and knobs.integer("replicas") < 2:
        raise OptionError(
            "--set sharding=hybrid_shard needs --set replicas=N, 2 or more: without it FSDP1 takes each host for a "
            "replica, and on one host that is full_shard, or each rank training alone"
        )
    if not hybrid and knobs.integer("replicas") > 1:
        raise OptionError("--set replicas is for --set sharding=hybrid_shard: other modes shard over all ranks")
    if options.wrap not in ("block", "root", "linear"):
        raise OptionError(f"--wrap {options.wrap}: a unit of FSDP1 is one module. Use block, root or linear")
    if not knobs.on("use_orig_params") and options.compile:
        raise OptionError("--compile needs --set use_orig_params=yes: flat parameters break the compiled graph")
    _units_and_recomputation(options)


def _units_and_recomputation(options: TrainerOptions) -> None:
    if options.wrap == "linear" and options.activation_checkpointing:
        raise OptionError(
            "--activation-checkpointing recomputes whole blocks, and with --wrap linear the units lie inside "
            "them and would be gathered a third time. Use --wrap block"
        )


def _fsdp2(options: TrainerOptions) -> None:
    layers = PRESETS[options.preset].layers
    blocks = options.blocks_per_unit()
    if options.wrap not in ("root", "linear") and blocks is None:
        raise OptionError(f"--wrap {options.wrap} is unknown: use block, root, linear, or a number of blocks")
    if blocks is not None and not 1 <= blocks <= layers:
        raise OptionError(
            f"--wrap {options.wrap}: {options.preset} has {layers} blocks, so give 1 to {layers}, "
            "or root for the whole model as one unit"
        )
    if options.wrap == "root":
        if options.prefetch:
            raise OptionError(
                f"--wrap root makes the whole model one unit, so --prefetch {options.prefetch} has nothing to gather "
                "ahead. Use --wrap block"
            )
        if options.reshard_after_forward != "yes":
            raise OptionError(
                f"--reshard-after-forward {options.reshard_after_forward} has no effect with --wrap root: its only "
                "unit stays gathered from forward to backward. Use --wrap block"
            )
    _units_and_recomputation(options)
    reshard = options.reshard_after_forward
    if reshard not in ("yes", "no"):
        if not reshard.isdecimal():
            raise OptionError(f"--reshard-after-forward {reshard} is unknown: use yes, no, or a number of ranks")
        if int(reshard) <= 1:
            raise OptionError(f"--reshard-after-forward {reshard} keeps everything gathered: say no for that")


def _reshard_size(given: str, shards: int) -> None:
    size = int(given)
    if size == shards:
        raise OptionError(f"--reshard-after-forward {given} is all {shards} ranks: say yes for that")
    if shards % size:
        divisors = [d for d in range(2, shards) if shards % d == 0]
        choice = f"use yes, no or one of {', '.join(map(str, divisors))}" if divisors else "use yes or no"
        raise OptionError(f"--reshard-after-forward {given} does not divide {shards} ranks: {choice}")


def _deepspeed(options: TrainerOptions) -> None:
    knobs = options.knobs()
    stage = knobs.integer("stage")
    if stage > 3:
        raise OptionError(f"--set stage={stage}: ZeRO has stages 1, 2 and 3")
    if stage < 3:
        for name, off in (("offload_param", "none"), ("zero_init", "no")):
            if knobs.text(name) != off:
                raise OptionError(
                    f"--set {name}={knobs.text(name)} needs --set stage=3: stage {stage} keeps all parameters on "
                    "every rank"
                )
    if "nvme" in (knobs.text("offload_optimizer"), knobs.text("offload_param")) and knobs.text("nvme_path") == "none":
        raise OptionError("offloading to nvme needs --set nvme_path=FOLDER on that disk")
    if knobs.text("offload_param") == "nvme" and knobs.text("offload_optimizer") == "none":
        raise OptionError("--set offload_param=nvme moves parameters whose optimizer states stay: offload both")
    if options.grad_sync == "every" and options.micro_batches > 1:
        raise OptionError(
            "--grad-sync every: DeepSpeed decides by itself when it reduces; ZeRO 2 and 3 reduce in every micro-batch"
        )
    if options.compile:
        raise OptionError("--compile is for the strategies of PyTorch; DeepSpeed compiles with its own engine")


_OF_STRATEGY = {DDP: _ddp, ZERO1: _ddp, FSDP1: _fsdp1, DEEPSPEED: _deepspeed}


def _precision(options: TrainerOptions) -> None:
    if options.reduce_dtype == "bf16":
        if options.precision != "bf16":
            raise OptionError("--reduce-dtype bf16 goes with --precision bf16: fp32 gradients are reduced as they are")
        if options.strategy in (DDP, ZERO1):
            raise OptionError(
                f"--reduce-dtype bf16: under --strategy {options.strategy} gradients are fp32; compress them with "
                "--strategy ddp --set comm_hook=bf16"
            )


def _model_parallel(options: TrainerOptions) -> None:
    shape = PRESETS[options.preset]
    parts, stages = options.tensor_parallel, options.pipeline_parallel
    if parts > 1:
        if options.strategy == DEEPSPEED:
            raise OptionError(
                "--strategy deepspeed cannot use --tp: its AutoTP cuts Hugging Face models by the names of their "
                "layers, and not at all with ZeRO 3. Use --strategy fsdp2"
            )
        if options.strategy != FSDP2:
            raise OptionError(
                f"--strategy {options.strategy} cannot use --tp: its buckets and flat parameters hold plain tensors, "
                "and --tp makes each parameter a DTensor. Use --strategy fsdp2"
            )
        if shape.tied:
            raise OptionError(f"--tp: {options.preset} has one table for embedding and output; use tiny, small or 8b")
        for what, size in (("heads", shape.heads), ("key-value heads", shape.kv_heads)):
            if size % parts:
                raise OptionError(f"--tp {parts} does not divide the {size} {what} of {options.preset}")
        if options.shape().seq_len % parts:
            raise OptionError(f"--tp {parts} does not divide sequences of {options.shape().seq_len} tokens")
    if stages == 1:
        if given := _given(options, "pipeline_schedule", "stages_per_rank"):
            raise OptionError(f"{', '.join(given)} needs a pipeline: give --pp 2 or more")
        return
    _pipeline(options)


def _pipeline(options: TrainerOptions) -> None:
    shape = PRESETS[options.preset]
    if options.strategy == DEEPSPEED:
        raise OptionError(
            "--strategy deepspeed cannot use --pp: its PipelineModule works with ZeRO 1 alone, since ZeRO 2 and 3 "
            "partition gradients that a pipeline accumulates. Use --strategy fsdp2 or ddp"
        )
    if options.strategy == FSDP1:
        raise OptionError(
            "--strategy fsdp1 cannot use --pp: PyTorch's schedules know how to hold back the reductions of DDP and "
            "fully_shard only. Use --strategy fsdp2"
        )
    if shape.tied:
        raise OptionError(
            f"--pp: {options.preset} has one table for embedding and output, which would be on the first and on the "
            "last stage; use tiny, small or 8b"
        )
    if options.stages() > shape.layers:
        raise OptionError(f"{options.stages()} stages are more than the {shape.layers} blocks of {options.preset}")
    interleaved = options.pipeline_schedule == "interleaved"
    if interleaved != (options.stages_per_rank > 1):
        raise OptionError(
            "--pipeline-schedule interleaved and --stages-per-rank 2 or more go together: other schedules have one "
            "stage on a rank"
        )
    rounds = max(1, options.micro_batches // options.pipeline_parallel)
    if interleaved and options.micro_batches % rounds:
        raise OptionError(
            f"--micro-batches {options.micro_batches}: interleaved, it must be a multiple of its {rounds} rounds"
        )
    if options.grad_sync == "every":
        raise OptionError("--grad-sync every: a pipeline reduces gradients once, after its last micro-batch")
    if options.strategy == DDP and options.knobs().on("static_graph"):
        raise OptionError("--set static_graph=yes cannot use --pp: the schedule runs backward without DDP's forward")
    if options.wrap not in ("block", "linear", "root") and options.strategy == FSDP2:
        raise OptionError(f"--wrap {options.wrap}: with --pp a unit is a block, a linear layer, or a stage (root)")


def _world(options: TrainerOptions, world_size: int) -> None:
    try:
        axes = options.axes(world_size)
    except ValueError:
        factors = {
            "--pp": options.pipeline_parallel,
            "--tp": options.tensor_parallel,
            "replicas": int(options.knobs().get("replicas", "1")),
        }
        what = " x ".join(f"{flag} {size}" for flag, size in factors.items() if size > 1)
        raise OptionError(f"{what} = {prod(factors.values())} does not divide {world_size} ranks") from None
    if axes.replicas > 1 and axes.shards == 1:
        raise OptionError(
            f"--set replicas={axes.replicas} leaves one rank to each replica, so nothing is sharded: that is "
            "--strategy ddp"
        )
    if options.strategy == FSDP2 and options.reshard_after_forward.isdecimal():
        _reshard_size(options.reshard_after_forward, axes.shards)


def one_of(flag: str, value: str, choices: Iterable[str]) -> None:
    *others, last = choices
    if value not in (*others, last):
        raise OptionError(f"{flag} {value} is unknown: use {', '.join(others)} or {last}")

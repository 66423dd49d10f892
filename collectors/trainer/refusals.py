"""What cannot work together, refused before anything is launched, with the reason. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

from .checkpoint import resume
from .checkpoint.folder import find
from .faults import FaultError, parse_faults
from .keys import KnobError, OptionError
from .options import PRESETS, TrainerOptions
from .strategies import STRATEGIES

SCHEDULES = ("gpipe", "1f1b", "interleaved")


def validate(options: TrainerOptions, world_size: int | None = None) -> None:
    """Raise OptionError on the first choice that cannot work. ``world_size`` of None skips what depends on it."""
    _values(options)
    try:
        options.knobs()
        parse_faults(options.inject, world_size)
    except (KnobError, FaultError) as error:
        raise OptionError(str(error)) from error
    strategy = STRATEGIES[options.strategy]
    if given := _given(options, *strategy.not_taken):
        raise OptionError(f"--strategy {strategy.id} cannot use {', '.join(given)}: {strategy.why_not_taken}")
    strategy.refuse(options)
    _precision(options)
    _model_parallel(options)
    if world_size is not None:
        _world(options, world_size)
    if options.resume is not None:
        resume.refuse(find(Path(options.resume)), options, world_size)


def validate_backend(options: TrainerOptions, backend: str) -> None:
    """Raise OptionError on what this backend cannot do. Of options that ``validate`` let pass."""
    STRATEGIES[options.strategy].refuse_backend(options, backend)


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


def _precision(options: TrainerOptions) -> None:
    if options.reduce_dtype == "bf16" and options.precision != "bf16":
        raise OptionError("--reduce-dtype bf16 goes with --precision bf16: fp32 gradients are reduced as they are")


def _model_parallel(options: TrainerOptions) -> None:
    shape = PRESETS[options.preset]
    parts, stages = options.tensor_parallel, options.pipeline_parallel
    if parts > 1:
        if why := STRATEGIES[options.strategy].no_tensor_parallel:
            raise OptionError(f"--strategy {options.strategy} cannot use --tp: {why}")
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
    if why := STRATEGIES[options.strategy].no_pipeline:
        raise OptionError(f"--strategy {options.strategy} cannot use --pp: {why}")
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
    STRATEGIES[options.strategy].refuse_shards(options, axes.shards)


def one_of(flag: str, value: str, choices: Iterable[str]) -> None:
    *others, last = choices
    if value not in (*others, last):
        raise OptionError(f"{flag} {value} is unknown: use {', '.join(others)} or {last}")

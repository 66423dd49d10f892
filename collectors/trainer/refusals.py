"""Checks options before anything is launched, and refuses combinations that cannot work. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from .checkpoint.folder import Checkpoint, find
from .faults import FaultError, parse_faults
from .keys import KnobError, OptionError, listed, options_of
from .options import PRESETS, TrainerOptions
from .strategies import STRATEGIES
from .strategies.base import Axes

_MOST_SEED = (1 << 63) - 1  # of torch's generators


def validate(options: TrainerOptions, world_size: int | None = None) -> None:
    """Raises OptionError for the first option that cannot work. ``world_size`` None skips the checks that need it."""
    _values(options)
    try:
        options.knobs()
        parse_faults(options.inject, world_size)
    except (KnobError, FaultError) as error:
        raise OptionError(str(error)) from error
    strategy = STRATEGIES[options.strategy]
    if refused := _given(options, *strategy.facts.not_taken):
        raise OptionError(f"--strategy {strategy.facts.id} cannot use {', '.join(refused)}: {strategy.why_not_taken}")
    strategy.refuse(options)
    _precision(options)
    _model_parallel(options)
    if world_size is not None:
        _world(options, world_size)
    if options.resume is not None:
        refuse_resume(find(Path(options.resume)), options, world_size)


def validate_backend(options: TrainerOptions, backend: str) -> None:
    """Raises OptionError for options that this backend does not support. Call it after ``validate``."""
    STRATEGIES[options.strategy].refuse_backend(options, backend)


def _values(options: TrainerOptions) -> None:
    for option_field, about in options_of(TrainerOptions):
        value = getattr(options, option_field.name)
        if about.choices and value not in about.choices:
            raise OptionError(f"{about.flag} {value} is unknown: use {listed(about.choices)}")
        if about.least is not None and value is not None and value < about.least:
            raise OptionError(f"{about.flag} {value} is too small: give {about.least:g} or more")
    if options.data is not None and not Path(options.data).exists():
        raise OptionError(f"--data {options.data} does not exist: give a text file or a folder of them")
    if options.seed > _MOST_SEED:
        raise OptionError(f"--seed {options.seed} is too large: give {_MOST_SEED} or less")
    if options.checkpoint_policy != "full" and not options.activation_checkpointing:
        raise OptionError(
            f"--checkpoint-policy {options.checkpoint_policy} has no effect without activation checkpointing: add "
            "--activation-checkpointing"
        )


def _given(options: TrainerOptions, *names: str) -> list[str]:
    """The flags of those options that differ from their defaults."""
    default = TrainerOptions()
    return [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name in names
        if getattr(options, name) != getattr(default, name)
    ]


def _precision(options: TrainerOptions) -> None:
    if options.reduce_dtype == "bf16" and options.precision != "bf16":
        raise OptionError("--reduce-dtype bf16 needs --precision bf16: fp32 gradients are reduced in fp32")


def _model_parallel(options: TrainerOptions) -> None:
    shape = PRESETS[options.preset]
    parts, stages = options.tensor_parallel, options.pipeline_parallel
    if parts > 1:
        if why := STRATEGIES[options.strategy].no_tensor_parallel:
            raise OptionError(f"--strategy {options.strategy} cannot use --tp: {why}")
        if shape.tied:
            raise OptionError(f"--tp: {options.preset} has one table for embedding and output; use tiny, small or 8b")
        for name, size in (("heads", shape.heads), ("key-value heads", shape.kv_heads)):
            if size % parts:
                raise OptionError(f"--tp {parts} does not divide the {size} {name} of {options.preset}")
        if options.shape().seq_len % parts:
            raise OptionError(f"--tp {parts} does not divide sequences of {options.shape().seq_len} tokens")
    if stages == 1:
        if flags := _given(options, "pipeline_schedule", "stages_per_rank"):
            raise OptionError(f"{', '.join(flags)} needs a pipeline: give --pp 2 or more")
        return
    _pipeline(options)


def _pipeline(options: TrainerOptions) -> None:
    shape = PRESETS[options.preset]
    stages = options.stages()
    if why := STRATEGIES[options.strategy].no_pipeline:
        raise OptionError(f"--strategy {options.strategy} cannot use --pp: {why}")
    if shape.tied:
        raise OptionError(
            f"--pp: {options.preset} has one table for embedding and output, which would be on the first and on the "
            "last stage; use tiny, small or 8b"
        )
    if stages > shape.layers:
        raise OptionError(f"{stages} stages are more than the {shape.layers} blocks of {options.preset}")
    interleaved = options.pipeline_schedule == "interleaved"
    if interleaved != (options.stages_per_rank > 1):
        raise OptionError(
            "--pipeline-schedule interleaved and --stages-per-rank 2 or more require each other: other schedules have "
            "one stage per rank"
        )
    if options.pipeline_schedule == "1f1b" and options.micro_batches < stages:
        raise OptionError(
            f"--micro-batches {options.micro_batches} are too few: the 1f1b schedule of --pp {stages} needs {stages} "
            "or more, one for each stage"
        )
    rounds = max(1, options.micro_batches // options.pipeline_parallel)
    if interleaved and options.micro_batches % rounds:
        raise OptionError(
            f"--micro-batches {options.micro_batches} must be a multiple of the {rounds} rounds of the interleaved "
            "schedule"
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
        product = " x ".join(f"{flag} {size}" for flag, size in factors.items() if size > 1)
        raise OptionError(f"{product} = {prod(factors.values())} does not divide {world_size} ranks") from None
    if axes.replicas > 1 and axes.shards == 1:
        raise OptionError(
            f"--set replicas={axes.replicas} leaves one rank to each replica, so nothing is sharded: that is "
            "--strategy ddp"
        )
    STRATEGIES[options.strategy].refuse_shards(options, axes.shards)


def without_effect(options: TrainerOptions, done: int = 0) -> list[str]:
    """Sentences on options that cannot have an effect in this training; it can be started nevertheless. ``done``: steps
    of the checkpoint that it resumes from."""
    sentences = []
    every, last = options.checkpoint_every, options.steps
    if every and last // every == done // every:
        sentences.append(f"--checkpoint-every {every}: no checkpoint will be written, as the last step is {last}")
    if not every and (flags := _given(options, "keep_checkpoints", "checkpoint_dir")):
        sentences.append(f"{', '.join(flags)}: no checkpoint will be written without --checkpoint-every")
    if options.warmup_steps > last:
        sentences.append(f"--warmup-steps {options.warmup_steps}: the training ends before, with step {last}")
    if not options.num_workers and (flags := _given(options, "prefetch_factor")):
        sentences.append(f"{', '.join(flags)}: there are no loader processes that could prefetch (--num-workers 0)")
    return sentences


# -- resume ------------------------------------------------------------------------------------------------------------
#
# Whether a run can resume from a checkpoint, and what will then differ.

# Fields of the model's shape that must be equal; the others concern its data.
_SHAPE = ("dim", "layers", "heads", "kv_heads", "ffn_dim", "vocab", "tied", "rope_theta")

# Options that change the numerical results, except those that are refused or reported separately.
_NUMERIC = (
    "learning_rate", "warmup_steps", "max_grad_norm", "precision", "reduce_dtype", "grad_sync", "micro_batches",
    "batch_size", "settings", "wrap", "compile", "activation_checkpointing", "pipeline_schedule",
)  # fmt: skip


def refuse_resume(checkpoint: Checkpoint, options: TrainerOptions, world_size: int | None) -> None:
    """OptionError if a run with these options cannot continue from the checkpoint."""
    saved, where = checkpoint.manifest, f"--resume {checkpoint.folder}"
    shape = asdict(options.shape())
    changed = [
        f"{name} {saved.model.get(name)}, not {shape[name]}" for name in _SHAPE if saved.model.get(name) != shape[name]
    ]
    if changed:
        raise OptionError(f"{where} is a checkpoint of another model ({', '.join(changed)}): give its --preset")
    if saved.options.get("seed") != options.seed:
        raise OptionError(
            f"{where} was trained with --seed {saved.options.get('seed')}, which determines the order of the data: "
            f"with --seed {options.seed} some samples would be repeated and others skipped"
        )
    if saved.model.get("seq_len") != shape["seq_len"]:
        raise OptionError(
            f"{where} split the text into sequences of {saved.model.get('seq_len')} tokens: its position in the data "
            f"is not valid with --seq-len {shape['seq_len']}"
        )
    if saved.steps >= options.steps:
        raise OptionError(
            f"{where} is at step {saved.steps}, and --steps {options.steps} includes the steps before it: give more"
        )
    strategy = STRATEGIES[options.strategy]
    if saved.kind != strategy.checkpoint_kind:
        raise OptionError(
            f"{where} was saved by {saved.strategy}, and --strategy {options.strategy} cannot read it: DeepSpeed has "
            "its own format, which no other strategy reads or writes"
        )
    strategy.refuse_resume(saved, where, options, world_size)
    if world_size is not None:
        carried_over(saved.cursor, {**saved.cursor, **_layout(options, options.axes(world_size))}, where)


def refuse_data(checkpoint: Checkpoint, data: dict[str, Any]) -> None:
    """OptionError if the text is not the one that the checkpoint was trained on."""
    saved = checkpoint.manifest.data
    if saved.get("fingerprint") != data["fingerprint"]:
        raise OptionError(
            f"--resume {checkpoint.folder} was trained on {saved.get('source')} ({saved.get('documents')} documents, "
            f"{saved.get('bytes')} bytes); {data['source']} is different ({data['documents']} documents, "
            f"{data['bytes']} bytes), so the position in the data is not valid. Give the same text with --data"
        )


def _layout(options: TrainerOptions, axes: Axes) -> dict[str, int]:
    return {"batch_size": options.shape().batch_size, "world_size": axes.data}


def differences(checkpoint: Checkpoint, options: TrainerOptions, world_size: int, strategy: str, mesh: dict[str, int],
                versions: dict[str, str]) -> list[str]:  # fmt: skip
    """What differs from the saved run, in words. If nothing does, the losses equal those of an uninterrupted run, bit
    for bit."""
    saved = checkpoint.manifest
    notes = []
    if (saved.strategy, saved.world_size, saved.mesh) != (strategy, world_size, mesh):
        notes.append(
            f"{saved.strategy} on {_ranks(saved.world_size, saved.mesh)} before, now {strategy} on "
            f"{_ranks(world_size, mesh)}: the order of floating-point sums differs"
        )
    now = asdict(options)
    for name in _NUMERIC:
        before, new = saved.options.get(name), now[name]
        if before != (list(new) if isinstance(new, tuple) else new):
            notes.append(f"{name} was {before} and is {new}")
    notes += STRATEGIES[options.strategy].not_resumed(options)
    for name, version in versions.items():
        if saved.versions.get(name) not in (None, version):
            notes.append(f"{name} was {saved.versions[name]} and is {version}")
    return notes


def _ranks(world_size: int, mesh: dict[str, int]) -> str:
    sizes = [f"{name} {size}" for name, size in mesh.items() if len(mesh) > 1]
    return f"{world_size} rank{'s' if world_size > 1 else ''}" + (f" ({' x '.join(sizes)})" if sizes else "")


def carried_over(cursor: Mapping[str, int], layout: Mapping[str, int], where: str = "the data") -> int:
    """The number of batches that a rank has consumed under another layout, at the same sample of the same epoch.

    Layout and cursor: see ``ShardedSampler.state_dict``. OptionError if no round of the new batches begins there.
    """
    old_batch, new_batch = (counts["batch_size"] * counts["world_size"] for counts in (cursor, layout))
    epoch, rounds = divmod(cursor["consumed"], cursor["samples"] // old_batch)
    sequences = rounds * old_batch
    if sequences % new_batch:
        raise OptionError(
            f"{where} stopped after {sequences} sequences of an epoch, which is not a multiple of the {new_batch} "
            f"that the ranks of this run read at a time ({layout['world_size']} x {layout['batch_size']}). Give a "
            "--batch-size and number "
            f"of ranks whose product divides {sequences}; as saved: {cursor['world_size']} x {cursor['batch_size']}"
        )
    return epoch * (layout["samples"] // new_batch) + sequences // new_batch

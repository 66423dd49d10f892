"""Whether a run can go on from a checkpoint, and what will then differ. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..keys import OptionError
from ..options import TrainerOptions
from ..strategies import STRATEGIES
from ..strategies.base import Axes
from .folder import Checkpoint

# Fields of the model's shape that must be equal; the others are about its data.
_SHAPE = ("dim", "layers", "heads", "kv_heads", "ffn_dim", "vocab", "tied", "rope_theta")

# Options that change the numbers a training computes, except those that are refused or reported separately.
_NUMERIC = (
    "learning_rate", "warmup_steps", "max_grad_norm", "precision", "reduce_dtype", "grad_sync", "micro_batches",
    "batch_size", "settings", "wrap", "compile", "activation_checkpointing", "pipeline_schedule",
)  # fmt: skip


def refuse(checkpoint: Checkpoint, options: TrainerOptions, world_size: int | None) -> None:
    """OptionError where the run that ``options`` ask for cannot be the continuation of the checkpoint's."""
    found, where = checkpoint.manifest, f"--resume {checkpoint.folder}"
    shape = asdict(options.shape())
    changed = [
        f"{name} {found.model.get(name)}, not {shape[name]}" for name in _SHAPE if found.model.get(name) != shape[name]
    ]
    if changed:
        raise OptionError(f"{where} is of another model ({', '.join(changed)}): give its --preset")
    if found.options.get("seed") != options.seed:
        raise OptionError(
            f"{where} was trained with --seed {found.options.get('seed')}, which orders the data; with --seed "
            f"{options.seed} samples would come twice and others never"
        )
    if found.model.get("seq_len") != shape["seq_len"]:
        raise OptionError(
            f"{where} cut the text into sequences of {found.model.get('seq_len')} tokens: where it stopped means "
            f"nothing with --seq-len {shape['seq_len']}"
        )
    if found.steps >= options.steps:
        raise OptionError(
            f"{where} has {found.steps} steps behind it, and --steps {options.steps} counts them: give more"
        )
    strategy = STRATEGIES[options.strategy]
    if found.kind != strategy.checkpoint_kind:
        raise OptionError(
            f"{where} was saved by {found.strategy}, and --strategy {options.strategy} cannot read that: DeepSpeed has "
            "a format of its own, that no other strategy reads or writes"
        )
    strategy.refuse_resume(found, where, options, world_size)
    if world_size is not None:
        carried_over(found.cursor, {**found.cursor, **_layout(options, options.axes(world_size))}, where)


def refuse_data(checkpoint: Checkpoint, data: dict[str, Any]) -> None:
    """OptionError where the text is not the one that the checkpoint was trained on."""
    was = checkpoint.manifest.data
    if was.get("fingerprint") != data["fingerprint"]:
        raise OptionError(
            f"--resume {checkpoint.folder} was trained on {was.get('source')} ({was.get('documents')} documents, "
            f"{was.get('bytes')} bytes); {data['source']} is not the same now ({data['documents']} documents, "
            f"{data['bytes']} bytes), so where it stopped means nothing. Give the same text with --data"
        )


def _layout(options: TrainerOptions, axes: Axes) -> dict[str, int]:
    return {"batch_size": options.shape().batch_size, "world_size": axes.data}


def differences(checkpoint: Checkpoint, options: TrainerOptions, world_size: int, strategy: str, mesh: dict[str, int],
                versions: dict[str, str]) -> list[str]:  # fmt: skip
    """What is not as it was, each in words: without any, the losses are those of an uninterrupted run, bit for bit."""
    found = checkpoint.manifest
    notes = []
    if (found.strategy, found.world_size, found.mesh) != (strategy, world_size, mesh):
        notes.append(
            f"{found.strategy} on {_ranks(found.world_size, found.mesh)} before, now {strategy} on "
            f"{_ranks(world_size, mesh)}: sums in another order"
        )
    now = asdict(options)
    for name in _NUMERIC:
        was, new = found.options.get(name), now[name]
        if was != (list(new) if isinstance(new, tuple) else new):
            notes.append(f"{name} was {was} and is {new}")
    notes += STRATEGIES[options.strategy].not_resumed(options)
    for name, version in versions.items():
        if found.versions.get(name) not in (None, version):
            notes.append(f"{name} was {found.versions[name]} and is {version}")
    return notes


def _ranks(world_size: int, mesh: dict[str, int]) -> str:
    sizes = [f"{name} {size}" for name, size in mesh.items() if len(mesh) > 1]
    return f"{world_size} rank{'s' if world_size > 1 else ''}" + (f" ({' x '.join(sizes)})" if sizes else "")


def carried_over(cursor: Mapping[str, int], layout: Mapping[str, int], where: str = "the data") -> int:
    """The batches of a rank that are behind a sampler of another layout, at the same sample of the same epoch.

    Layout and cursor: see ``ShardedSampler.state_dict``. OptionError where no round of its batches begins there.
    """
    was, now = (each["batch_size"] * each["world_size"] for each in (cursor, layout))
    epoch, rounds = divmod(cursor["consumed"], cursor["samples"] // was)
    taken = rounds * was
    if taken % now:
        raise OptionError(
            f"{where} stopped after {taken} sequences of an epoch, and this run takes {now} at a time "
            f"({layout['world_size']} x {layout['batch_size']}): no round begins there. Give a --batch-size and number "
            f"of ranks whose product divides {taken}; as saved: {cursor['world_size']} x {cursor['batch_size']}"
        )
    return epoch * (layout["samples"] // now) + taken // now

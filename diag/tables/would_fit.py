"""What would have made room for an allocation that failed, with its effect on memory.

Freed bytes are those that were live when the allocation failed, by category; where no history was recorded, the model's
states by formula. The changes are those that ``diag plan`` compares: sharding, recomputation, the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diag.collectors.records import Manifest
from diag.model.memory import Category
from diag.model.states import Sharding, sharding_of, shards_of
from diag.model.steps import Fit
from diag.tables.memory import estimate_of

_EXPANDABLE = "expandable_segments:True"
_SHARDED = {
    Sharding.NONE: (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER),
    Sharding.OPTIMIZER: (Category.PARAMETERS, Category.GRADIENTS),
    Sharding.GRADIENTS: (Category.PARAMETERS,),
    Sharding.PARAMETERS: (),
}


def would_fit(
    requested: int,
    device_free: int | None,
    unallocated: int | None,
    live: Mapping[Category, int],
    settings: str,
    manifest: Manifest | None,
) -> tuple[Fit, ...]:
    """Those that are enough first, then by the bytes that they free. ``unallocated``: bytes that PyTorch's allocator
    had reserved and not given out; ``live``: bytes by category, empty if that is not known; ``settings``: of the
    allocator."""
    lacking = max(1, requested - (device_free or 0))
    found = [
        Fit(change, frees, at_most, frees >= lacking, risk)
        for change, frees, at_most, risk in _changes(unallocated, live, settings, manifest)
        if frees > 0
    ]
    return tuple(sorted(found, key=lambda fit: (not fit.enough, -fit.frees)))


def _changes(
    unallocated: int | None, live: Mapping[Category, int], settings: str, manifest: Manifest | None
) -> Iterator[tuple[str, int, bool, str]]:
    trainer = manifest.trainer if manifest is not None else {}
    if unallocated and _EXPANDABLE not in settings:
        yield f"PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE}", unallocated, True, ""
    activations = live.get(Category.ACTIVATIONS, 0)
    yield "half the micro-batch, and twice as many of them", activations // 2, False, "the step takes longer"
    if not trainer.get("activation_checkpointing"):
        yield "activation checkpointing", activations, True, "the backward computes the forward again"
    if trainer.get("reshard_after_forward") == "no":
        gathered = live.get(Category.COMMUNICATION, 0)
        yield "reshard_after_forward=True", gathered, True, "parameters are gathered again in the backward"
    sharding = sharding_of(manifest.strategy or "") if manifest is not None else None
    shards = (shards_of(manifest.mesh, manifest.world_size) or 1) if manifest is not None else 1
    if sharding is None or shards < 2 or not _SHARDED[sharding]:
        return
    measured = sum(live.get(category, 0) for category in _SHARDED[sharding])
    held = measured or _by_formula(manifest, sharding)
    frees = held - held // shards
    yield f"FSDP2 (fully_shard) over {shards} ranks", frees, not measured, "more communication"


def _by_formula(manifest: Manifest | None, sharding: Sharding) -> int:
    states = estimate_of(manifest).states
    if states is None:
        return 0
    size = {
        Category.PARAMETERS: states.parameters,
        Category.GRADIENTS: states.gradients,
        Category.OPTIMIZER: states.optimizer,
    }
    return sum(size[category] for category in _SHARDED[sharding])

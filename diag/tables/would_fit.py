"""What would have made room for an allocation that failed, or would lower a peak, with its effect on memory.

Freed bytes are those that were live when the allocation failed, by category; where no history was recorded, the model's
states by formula. The changes are those that ``diag plan`` compares: sharding, recomputation, the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct

from diag.collectors.records import Manifest
from diag.model.memory import Category, Lower
from diag.model.states import Sharding, sharding_of, shards_of
from diag.model.steps import Fit
from diag.tables.memory import estimate_of
from diag.tables.memory_history import History

# Changes, each with its price.
HALF = ("half the micro-batch, and twice as many of them", "the step takes longer")
CHECKPOINTING = ("activation checkpointing", "the backward computes the forward again")
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
        Fit(change.change, frees, change.at_most, frees >= lacking, change.risk)
        for change in _changes(unallocated, live, settings, manifest)
        if (frees := change.frees(live)) > 0
    ]
    return tuple(sorted(found, key=lambda fit: (not fit.enough, -fit.frees)))


def lower_peaks(
    history: History | None,
    unallocated: int | None,
    settings: str,
    manifest: Manifest | None,
    peak_allocated: int = 0,
) -> tuple[Lower, ...]:
    """What would lower a peak, by the bytes that it frees. ``unallocated``: of the reserved bytes at the peak, those
    that no tensor used. Without a history, what is not the model's states by formula counts as activations of
    ``peak_allocated``, so that each change frees at most that."""
    states = estimate_of(manifest).states
    if history is None and states is not None and peak_allocated > states.total:
        rest = {Category.ACTIVATIONS: peak_allocated - states.total}
        fits = would_fit(0, None, unallocated, rest, settings, manifest)
        return tuple(Lower(fit.change, None, fit.frees, True, fit.risk) for fit in sorted(fits, key=_most_first))
    allocated = history.allocated if history is not None else np.zeros(1, dtype=np.int64)
    of = {category: history.of_category(category) for category in history.categories} if history is not None else {}
    live = {category: int(held[allocated.argmax()]) for category, held in of.items()}
    highest, found = int(allocated.max()), []
    for change in _changes(unallocated, live, settings, manifest):
        if change.bytes:
            found.append(Lower(change.change, None, change.bytes, change.at_most, change.risk))
            continue
        gone = sum(
            (part * of[category] for category, part in change.parts.items() if category in of), start=0 * allocated
        )
        peak = round(float((allocated - gone).max()))
        if peak < highest:
            found.append(Lower(change.change, peak, highest - peak, change.at_most, change.risk))
    return tuple(sorted(found, key=lambda lower: -lower.frees))


def _most_first(fit: Fit) -> int:
    return -fit.frees


class _Change(Struct, frozen=True):
    """``parts``: what it frees of each category, as a fraction; or ``bytes`` of any kind."""

    change: str
    parts: Mapping[Category, float]
    at_most: bool
    risk: str = ""
    bytes: int = 0

    def frees(self, live: Mapping[Category, int]) -> int:
        return self.bytes + sum(int(live.get(category, 0) * part) for category, part in self.parts.items())


def _changes(
    unallocated: int | None, live: Mapping[Category, int], settings: str, manifest: Manifest | None
) -> Iterator[_Change]:
    trainer = manifest.trainer if manifest is not None else {}
    if unallocated and _EXPANDABLE not in settings:
        yield _Change(f"PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE}", {}, True, bytes=unallocated)
    half = {Category.ACTIVATIONS: 0.5}
    change, risk = HALF
    yield _Change(change, half, False, risk)
    if not trainer.get("activation_checkpointing"):
        every = {Category.ACTIVATIONS: 1.0}
        change, risk = CHECKPOINTING
        yield _Change(change, every, True, risk)
    if trainer.get("reshard_after_forward") == "no":
        gathered = {Category.COMMUNICATION: 1.0}
        yield _Change("reshard_after_forward=True", gathered, True, "parameters are gathered again in the backward")
    sharding = sharding_of(manifest.strategy or "") if manifest is not None else None
    shards = (shards_of(manifest.mesh, manifest.world_size) or 1) if manifest is not None else 1
    if sharding is None or shards < 2 or not _SHARDED[sharding]:
        return
    change, risk = f"FSDP2 (fully_shard) over {shards} ranks", "more communication"
    if any(live.get(category) for category in _SHARDED[sharding]):
        yield _Change(change, dict.fromkeys(_SHARDED[sharding], 1 - 1 / shards), False, risk)
    elif held := _by_formula(manifest, sharding):
        yield _Change(change, {}, True, risk, held - held // shards)


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

"""Parameters and gradients during a step: whole on every rank (DDP), or gathered unit by unit (fully_shard).

Read from torch 2.13: ``Reducer`` with gradient_as_bucket_view; ``foreach_all_gather``, ``foreach_reduce``,
``wait_for_unshard`` and ``post_backward`` of fully_shard; ProcessGroupGloo's all-gather (its output once more, flat)
and reduce-scatter (an all-reduce of a copy of its input).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from .shape import Recipe

# -- account -----------------------------------------------------------------------------------------------------------
#
# Live bytes by use, and the moment of their peak.


class MemoryUse(StrEnum):
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    GATHERED = "gathered"  # parameters of units that are temporarily unsharded
    BUFFERS = "buffers"  # of collectives, and gradients that are not reduced yet
    ACTIVATIONS = "activations"  # saved by forward for backward
    LOGITS = "logits"  # of the last layer, and the tensors that the loss saves
    WORKSPACES = "workspaces"  # of matrix products
    PASSING = "passing"  # outputs and gradients between operations


class Peak(Struct, frozen=True):
    """The peak of live memory: its bytes, its moment in the step, and its parts."""

    bytes: int
    moment: str
    parts: dict[str, int]


class Account:
    """Counts live bytes as they are taken and given back, in order."""

    def __init__(self) -> None:
        self._live: Counter[MemoryUse] = Counter()
        self._total = 0
        self._most = 0
        self._parts: dict[MemoryUse, int] = {}
        self._moment = ""
        self.moment = ""  # the current part of the step, to name the peak

    def take(self, part: MemoryUse, count: int) -> None:
        self._live[part] += count
        self._total += count
        if self._total > self._most:
            self._most, self._moment, self._parts = self._total, self.moment, dict(self._live)

    def give(self, part: MemoryUse, count: int) -> None:
        self._live[part] -= count
        self._total -= count

    def passing(self, part: MemoryUse, count: int) -> None:
        """Takes bytes and gives them back at once."""
        self.take(part, count)
        self.give(part, count)

    @property
    def live(self) -> dict[MemoryUse, int]:
        """The bytes that are live now; after a step, those that stay."""
        return {part: count for part, count in self._live.items() if count}

    @property
    def peak(self) -> Peak:
        return Peak(self._most, self._moment, {str(part): self._parts.get(part, 0) for part in MemoryUse})


class Gathering:
    """Memory of parameters and gradients; a step calls its methods. Units are numbered in order of forward, 0 is the
    root's."""

    def begin_forward(self) -> None:
        """The root is entered."""

    def enter(self, unit: int, /) -> None:
        """The unit's parameters are needed."""

    def leave(self, unit: int, /) -> None:
        """The unit's parameters are not needed until backward."""

    def end_forward(self) -> None:
        """The root's forward is over."""

    def begin_backward(self) -> None:
        """The gradient of the root's output exists."""

    def enter_backward(self, unit: int, /) -> None:
        """The unit's parameters are needed."""

    def gradient(self, unit: int, parameters: int, reduce: bool, /) -> None:
        """Creates the gradient of this many parameters; ``reduce``: this micro-batch's gradients are reduced."""

    def leave_backward(self, unit: int, reduce: bool, /) -> None:
        """All gradients of the unit exist."""

    def end_backward(self, reduce: bool, /) -> None:
        """All gradients of the root exist, too."""

    def clear(self) -> None:
        """The optimizer is done with the gradients."""


class Whole(Gathering):
    """DDP: gradients live in buckets that stay allocated. Autograd creates each gradient anew, and the reducer's hook
    copies it into its bucket and frees it. Between reductions (no_sync), and if gradients are not ``views`` of the
    buckets, autograd's tensors stay."""

    def __init__(self, account: Account, recipe: Recipe, buckets: int, *, views: bool = True) -> None:
        self._account, self._each, self._all, self._views = account, recipe.gradients, buckets, views
        self._outside = 0
        account.take(MemoryUse.GRADIENTS, buckets)

    def gradient(self, _unit: int, parameters: int, reduce: bool, /) -> None:
        size = parameters * self._each
        if reduce and self._views:
            self._account.passing(MemoryUse.PASSING, size)
            self._drop(size)
            return
        grown = min(size, self._all - self._outside)
        self._account.take(MemoryUse.BUFFERS, grown)
        self._account.passing(MemoryUse.BUFFERS, size - grown)  # added to those of another micro-batch
        self._outside += grown

    def clear(self) -> None:
        self._drop(self._outside)

    def _drop(self, size: int) -> None:
        dropped = min(size, self._outside)
        self._account.give(MemoryUse.BUFFERS, dropped)
        self._outside -= dropped


class Sharded(Gathering):
    """fully_shard. The root's unit stays gathered from forward to the end of backward, and is reduced last."""

    def __init__(
        self,
        account: Account,
        recipe: Recipe,
        shards: int,
        sizes: Mapping[int, int],
        *,
        kept: float,
        ahead: int,
        gloo: bool,
    ) -> None:
        self._account, self._recipe, self._shards = account, recipe, shards
        self._sizes, self._gathered_share, self._ahead, self._gloo = sizes, kept, ahead, gloo and shards > 1
        self._order = sorted(sizes)
        self._whole: set[int] = set()
        self._flat: set[int] = set()  # units that are gathered, not copied out yet
        self._part: dict[int, int] = {}  # bytes of units that are resharded to fewer ranks after forward
        self._copied = 0  # bytes of the last flat buffer, which the next unit frees
        self._made: dict[int, int] = {}  # bytes of gradients that are not reduced
        self._reducing = 0  # bytes of the last reduction's input, which the next reduction frees
        self._gradients = 0

    def _parameters(self, unit: int) -> int:
        return self._sizes[unit] * self._recipe.computed

    def begin_forward(self) -> None:
        self.enter(0)

    def enter(self, unit: int, /) -> None:
        if unit in self._whole:
            return
        self._gather(unit)
        self._account.give(MemoryUse.BUFFERS, self._copied)
        self._copied = 0
        size = self._copy_out(unit)
        if self._ahead:  # explicit prefetch: asynchronous, and freed at once
            self._account.give(MemoryUse.BUFFERS, size)
            index = self._order.index(unit)
            for following in self._order[index + 1 : index + 1 + self._ahead]:
                self._gather(following)
        else:
            self._copied = size

    def leave(self, unit: int, /) -> None:
        if unit == 0 or self._gathered_share == 1:
            return
        self._reshard(unit)
        if self._gathered_share:
            self._part[unit] = round(self._parameters(unit) * self._gathered_share)
            self._account.take(MemoryUse.GATHERED, self._part[unit])

    def end_forward(self) -> None:
        self._account.give(MemoryUse.BUFFERS, self._copied)
        self._copied = 0

    def begin_backward(self) -> None:
        self._prefetch(len(self._order))

    def enter_backward(self, unit: int, /) -> None:
        if unit == 0 and unit in self._whole:
            return
        if unit not in self._whole:
            self._gather(unit)
            self._account.give(MemoryUse.BUFFERS, self._copy_out(unit))
            self._account.give(MemoryUse.GATHERED, self._part.pop(unit, 0))
        self._prefetch(self._order.index(unit))

    def gradient(self, unit: int, parameters: int, _reduce: bool, /) -> None:
        """In the gathered parameters' type; it is added to another micro-batch's gradient, if there is one."""
        size, unit_bytes = parameters * self._recipe.computed, self._parameters(unit)
        grown = min(size, max(0, unit_bytes - self._made.get(unit, 0)))
        self._account.take(MemoryUse.BUFFERS, grown)
        self._account.passing(MemoryUse.BUFFERS, size - grown)
        self._made[unit] = self._made.get(unit, 0) + grown

    def leave_backward(self, unit: int, reduce: bool, /) -> None:
        if unit:
            self._reduce(unit, reduce)

    def end_backward(self, reduce: bool, /) -> None:
        self._reduce(0, reduce)
        self._account.give(MemoryUse.BUFFERS, self._reducing)
        self._reducing = 0

    def clear(self) -> None:
        self._account.give(MemoryUse.GRADIENTS, self._gradients)
        self._gradients = 0

    def _prefetch(self, index: int) -> None:
        """Gathers the next units of backward, those before this one in forward; by default PyTorch prefetches one. The
        root is gathered already."""
        for unit in reversed(self._order[max(1, index - max(1, self._ahead)) : index]):
            self._gather(unit)

    def _gather(self, unit: int) -> None:
        if unit in self._whole or unit in self._flat or self._shards == 1:
            return
        self._flat.add(unit)
        self._account.take(MemoryUse.BUFFERS, self._parameters(unit))
        if self._gloo:
            self._account.passing(MemoryUse.BUFFERS, self._parameters(unit))

    def _copy_out(self, unit: int) -> int:
        """Copies the parameters into their own tensors; returns the bytes of the flat buffer."""
        self._account.take(MemoryUse.GATHERED, self._parameters(unit))
        self._whole.add(unit)
        if unit not in self._flat:
            return 0
        self._flat.discard(unit)
        return self._parameters(unit)

    def _reshard(self, unit: int) -> None:
        if unit in self._whole:
            self._whole.discard(unit)
            self._account.give(MemoryUse.GATHERED, self._parameters(unit))

    def _reduce(self, unit: int, reduce: bool) -> None:
        self._reshard(unit)
        if not reduce or unit not in self._made:
            return
        account, size = self._account, self._sizes[unit] * self._recipe.reduced
        account.give(MemoryUse.BUFFERS, self._reducing)
        account.take(MemoryUse.BUFFERS, size)
        account.give(MemoryUse.BUFFERS, self._made.pop(unit))
        shard_bytes = -(-self._sizes[unit] * self._recipe.gradients // self._shards)
        account.take(MemoryUse.GRADIENTS, shard_bytes)
        self._gradients += shard_bytes
        if self._gloo:
            account.passing(MemoryUse.BUFFERS, size)
        self._reducing = size


# -- flat units --------------------------------------------------------------------------------------------------------
#
# Parameters and gradients of FSDP1: each unit is one flat parameter, gathered and reduced as a whole.
#
# Read from torch 2.13's ``_flat_param.py`` and ``_runtime_utils.py``: the original parameters are views of the gathered
# flat parameter, so autograd joins their gradients into a flat gradient when the last one exists, and both are live for
# a moment; the unit is freed before the flat gradient is reduced. If the unit's size is not a multiple of the ranks and
# padding is not part of it (``use_orig_params=False``), the gradient is copied once more to pad it. Gradients live
# until the next forward. Without sharding nothing is gathered, and the flat gradient is reduced in place.


class FlatUnits(Struct, frozen=True):
    """Settings of FSDP1. ``keeps``: a unit stays gathered from forward to backward (SHARD_GRAD_OP).
    ``backward_prefetch``: the next unit is gathered before ("pre") or after ("post") this one's gradients, or not ahead
    ("none"). ``padded``: padding is part of the flat parameter (``use_orig_params``)."""

    keeps: bool = False
    backward_prefetch: str = "pre"
    forward_prefetch: bool = False
    padded: bool = True


class Flat(Gathering):
    """FSDP1's units. The root's stays gathered from forward to the end of backward, and is reduced last."""

    def __init__(
        self, account: Account, recipe: Recipe, shards: int, sizes: Mapping[int, int], how: FlatUnits, *, gloo: bool
    ) -> None:
        self._account, self._recipe, self._shards, self._how = account, recipe, shards, how
        self._sizes, self._order = sizes, sorted(unit for unit, size in sizes.items() if size)
        self._gloo = gloo and shards > 1
        self._whole: set[int] = set()
        self._single: dict[int, int] = {}  # bytes of gradients that are not joined yet
        self._joined: dict[int, int] = {}  # bytes of flat gradients that are not reduced, across micro-batches
        self._gradients: dict[int, int] = {}  # bytes of reduced gradients
        self._late = 0  # the unit whose gradients exist and are not joined yet

    def begin_forward(self) -> None:
        self._enter(0)

    def enter(self, unit: int, /) -> None:
        if unit:
            self._enter(unit)

    def _enter(self, unit: int) -> None:
        self._gather(unit)
        if self._how.forward_prefetch:
            self._ahead(unit, 1)

    def leave(self, unit: int, /) -> None:
        if unit and not self._how.keeps:
            self._free(unit)

    def begin_backward(self) -> None:
        if self._how.backward_prefetch == "pre" and self._order:
            self._gather(self._order[-1])

    def enter_backward(self, unit: int, /) -> None:
        self._gather(unit)
        if unit and self._how.backward_prefetch == "pre":
            self._ahead(unit, -1)

    def gradient(self, unit: int, parameters: int, _reduce: bool, /) -> None:
        """In the gathered parameters' type. The second gradient of a tied table is added to the first."""
        size, existing = parameters * self._recipe.computed, self._single.get(unit, 0)
        grown = min(size, self._sizes[unit] * self._recipe.computed - existing)
        self._account.take(MemoryUse.BUFFERS, grown)
        self._account.passing(MemoryUse.BUFFERS, size - grown)
        self._single[unit] = existing + grown

    def leave_backward(self, unit: int, reduce: bool, /) -> None:
        if not unit:
            return
        if self._how.forward_prefetch:
            # The views of this unit were created before the previous unit computed, and autograd runs backward in
            # reverse order of creation: that unit's backward comes first.
            unit, self._late = self._late, unit
        if unit:
            self._end(unit, reduce)

    def end_backward(self, reduce: bool, /) -> None:
        if self._late:
            self._end(self._late, reduce)
            self._late = 0
        self._end(0, reduce)

    def clear(self) -> None:
        self._account.give(MemoryUse.GRADIENTS, sum(self._gradients.values()))
        self._gradients.clear()

    def _ahead(self, unit: int, way: int) -> None:
        """Gathers the neighbouring unit in order of forward, if there is one below the root."""
        index = self._order.index(unit) + way if unit in self._order else 0
        if 0 < index < len(self._order):
            self._gather(self._order[index])

    def _computed(self, unit: int) -> int:
        """Bytes of the unsharded flat parameter with its padding."""
        return self._own(unit) * self._shards * self._recipe.computed

    def _own(self, unit: int) -> int:
        """Elements of this rank's shard."""
        return -(-self._sizes[unit] // self._shards)

    def _gather(self, unit: int) -> None:
        """Gathers from a copy of the shard in the computed type, if that differs. Without sharding there is only that
        copy."""
        if unit in self._whole or not self._sizes[unit]:
            return
        account, size, cast = self._account, self._computed(unit), self._recipe.computed != self._recipe.parameters
        if self._shards == 1 and not cast:
            return
        self._whole.add(unit)
        shard = size // self._shards if cast and self._shards > 1 else 0
        account.take(MemoryUse.BUFFERS, shard)
        account.take(MemoryUse.GATHERED, size)
        if self._gloo:
            account.passing(MemoryUse.BUFFERS, size)
        account.give(MemoryUse.BUFFERS, shard)

    def _free(self, unit: int) -> None:
        if unit in self._whole:
            self._whole.discard(unit)
            self._account.give(MemoryUse.GATHERED, self._computed(unit))

    def _end(self, unit: int, reduce: bool) -> None:
        """Joins the gradients, frees the unit, and reduces."""
        account, single_bytes = self._account, self._single.pop(unit, 0)
        if not single_bytes:
            return
        flat_bytes = self._sizes[unit] * self._recipe.computed
        account.take(MemoryUse.BUFFERS, flat_bytes)
        account.give(MemoryUse.BUFFERS, single_bytes)
        if unit in self._joined:
            account.give(MemoryUse.BUFFERS, flat_bytes)  # added to that of another micro-batch
        self._joined[unit] = flat_bytes
        if reduce or not self._how.keeps:
            self._free(unit)
        if unit and self._how.backward_prefetch == "post":
            self._ahead(unit, -1)
        if reduce:
            self._reduce(unit)

    def _reduce(self, unit: int) -> None:
        account, recipe = self._account, self._recipe
        joined, size = self._joined.pop(unit), self._sizes[unit] * recipe.reduced
        cast = size if recipe.reduced != recipe.computed else 0
        account.take(MemoryUse.BUFFERS, cast)
        shard_bytes = self._own(unit) * recipe.gradients
        if self._shards > 1:
            padded = self._own(unit) * self._shards * recipe.reduced
            copy = padded if padded > size and not self._how.padded else 0
            account.take(MemoryUse.BUFFERS, copy)
            account.take(MemoryUse.GRADIENTS, shard_bytes)
            if self._gloo:
                account.passing(MemoryUse.BUFFERS, padded)
            account.give(MemoryUse.BUFFERS, joined + cast + copy)
        else:  # the flat gradient itself stays
            account.give(MemoryUse.BUFFERS, joined + cast)
            account.take(MemoryUse.GRADIENTS, shard_bytes)
        if unit in self._gradients:
            account.give(MemoryUse.GRADIENTS, shard_bytes)  # added to that of an earlier reduction
        self._gradients[unit] = shard_bytes

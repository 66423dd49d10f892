"""Parameters and gradients of FSDP1: each unit is one flat parameter, gathered and reduced as a whole.

Read from torch 2.13's ``_flat_param.py`` and ``_runtime_utils.py``: the original parameters are views of the gathered
flat one, so autograd joins their gradients into a flat gradient when the last of them is there, and both exist for a
moment; the unit is freed before that is reduced. Where the unit's size is no multiple of the ranks and no padding is
part of it (``use_orig_params=False``), the gradient is copied once more to pad it. Gradients live until the next
forward. Without sharding nothing is gathered, and the flat gradient is reduced where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from diag.plan.account import Account, Part
from diag.plan.gathering import Gathering
from diag.plan.recipe import Recipe


class FlatUnits(Struct, frozen=True):
    """How FSDP1 was told to work. ``keeps``: a unit stays gathered from forward to backward (SHARD_GRAD_OP).
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
        self._single: dict[int, int] = {}  # gradients that are not joined yet
        self._joined: dict[int, int] = {}  # flat gradients that are not reduced, from one micro-batch to the next
        self._gradients: dict[int, int] = {}  # reduced
        self._late = 0  # the unit whose gradients are there and not joined yet

    # -- forward ---------------------------------------------------------------------------------------------------

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

    # -- backward --------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        if self._how.backward_prefetch == "pre" and self._order:
            self._gather(self._order[-1])

    def enter_backward(self, unit: int, /) -> None:
        self._gather(unit)
        if unit and self._how.backward_prefetch == "pre":
            self._ahead(unit, -1)

    def gradient(self, unit: int, parameters: int, _reduce: bool, /) -> None:
        """In the gathered parameters' type. A second one of a tied table is added to the first."""
        size, made = parameters * self._recipe.computed, self._single.get(unit, 0)
        grown = min(size, self._sizes[unit] * self._recipe.computed - made)
        self._account.take(Part.BUFFERS, grown)
        self._account.passing(Part.BUFFERS, size - grown)
        self._single[unit] = made + grown

    def leave_backward(self, unit: int, reduce: bool, /) -> None:
        if not unit:
            return
        if self._how.forward_prefetch:
            # The views of this unit were made before the unit ahead of it computed, and autograd goes back in order of
            # making: that unit's backward comes first.
            unit, self._late = self._late, unit
        if unit:
            self._end(unit, reduce)

    def end_backward(self, reduce: bool, /) -> None:
        if self._late:
            self._end(self._late, reduce)
            self._late = 0
        self._end(0, reduce)

    def clear(self) -> None:
        self._account.give(Part.GRADIENTS, sum(self._gradients.values()))
        self._gradients.clear()

    # -- parts of both ---------------------------------------------------------------------------------------------

    def _ahead(self, unit: int, way: int) -> None:
        """Gathers the neighbour in order of forward, if there is one below the root."""
        place = self._order.index(unit) + way if unit in self._order else 0
        if 0 < place < len(self._order):
            self._gather(self._order[place])

    def _computed(self, unit: int) -> int:
        """Bytes of the whole flat parameter with its padding."""
        return self._own(unit) * self._shards * self._recipe.computed

    def _own(self, unit: int) -> int:
        """Elements of this rank's shard."""
        return -(-self._sizes[unit] // self._shards)

    def _gather(self, unit: int) -> None:
        """From a copy of the shard in the computed type, where that is another. Unsharded, that copy is all there
        is."""
        if unit in self._whole or not self._sizes[unit]:
            return
        account, size, cast = self._account, self._computed(unit), self._recipe.computed != self._recipe.parameters
        if self._shards == 1 and not cast:
            return
        self._whole.add(unit)
        shard = size // self._shards if cast and self._shards > 1 else 0
        account.take(Part.BUFFERS, shard)
        account.take(Part.GATHERED, size)
        if self._gloo:
            account.passing(Part.BUFFERS, size)
        account.give(Part.BUFFERS, shard)

    def _free(self, unit: int) -> None:
        if unit in self._whole:
            self._whole.discard(unit)
            self._account.give(Part.GATHERED, self._computed(unit))

    def _end(self, unit: int, reduce: bool) -> None:
        """Joins the gradients, frees the unit, and reduces."""
        account, single = self._account, self._single.pop(unit, 0)
        if not single:
            return
        whole = self._sizes[unit] * self._recipe.computed
        account.take(Part.BUFFERS, whole)
        account.give(Part.BUFFERS, single)
        if unit in self._joined:
            account.give(Part.BUFFERS, whole)  # added to another micro-batch's
        self._joined[unit] = whole
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
        account.take(Part.BUFFERS, cast)
        own = self._own(unit) * recipe.gradients
        if self._shards > 1:
            padded = self._own(unit) * self._shards * recipe.reduced
            copy = padded if padded > size and not self._how.padded else 0
            account.take(Part.BUFFERS, copy)
            account.take(Part.GRADIENTS, own)
            if self._gloo:
                account.passing(Part.BUFFERS, padded)
            account.give(Part.BUFFERS, joined + cast + copy)
        else:  # the flat gradient itself stays
            account.give(Part.BUFFERS, joined + cast)
            account.take(Part.GRADIENTS, own)
        if unit in self._gradients:
            account.give(Part.GRADIENTS, own)  # added to an earlier reduction's
        self._gradients[unit] = own

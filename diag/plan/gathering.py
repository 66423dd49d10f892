"""Parameters and gradients in the course of a step: whole on every rank (DDP), or gathered unit by unit (fully_shard).

Read from torch 2.13: ``Reducer`` with gradient_as_bucket_view; ``foreach_all_gather``, ``foreach_reduce``,
``wait_for_unshard`` and ``post_backward`` of fully_shard; ProcessGroupGloo's all-gather (its output once more, flat)
and reduce-scatter (an all-reduce of a copy of its input).
"""

from __future__ import annotations

from collections.abc import Mapping

from diag.plan.account import Account, Part
from diag.plan.recipe import Recipe


class Gathering:
    """What a step tells the owner of parameters and gradients. Units count in order of forward, 0 is the root's."""

    def begin_forward(self) -> None:
        """The root is entered."""

    def enter(self, unit: int, /) -> None:
        """Its parameters are needed."""

    def leave(self, unit: int, /) -> None:
        """They are not, until backward."""

    def end_forward(self) -> None:
        """The root's forward is over."""

    def begin_backward(self) -> None:
        """The gradient of the root's output is there."""

    def enter_backward(self, unit: int, /) -> None:
        """As in forward."""

    def gradient(self, unit: int, parameters: int, reduce: bool, /) -> None:
        """Of so many parameters; ``reduce``: this micro-batch's gradients are reduced."""

    def leave_backward(self, unit: int, reduce: bool, /) -> None:
        """All its gradients are there."""

    def end_backward(self, reduce: bool, /) -> None:
        """The root's, too."""

    def clear(self) -> None:
        """The optimizer is done with the gradients."""


class Whole(Gathering):
    """DDP: gradients live in buckets for good. Autograd makes each anew, and the reducer's hook copies it into its
    bucket and frees it. Between reductions (no_sync), and where gradients are no ``views`` of the buckets, they stay
    where autograd put them."""

    def __init__(self, account: Account, recipe: Recipe, buckets: int, *, views: bool = True) -> None:
        self._account, self._each, self._all, self._views = account, recipe.gradients, buckets, views
        self._outside = 0
        account.take(Part.GRADIENTS, buckets)

    def gradient(self, _unit: int, parameters: int, reduce: bool, /) -> None:
        size = parameters * self._each
        if reduce and self._views:
            self._account.passing(Part.PASSING, size)
            self._drop(size)
            return
        grown = min(size, self._all - self._outside)
        self._account.take(Part.BUFFERS, grown)
        self._account.passing(Part.BUFFERS, size - grown)  # added to another micro-batch's
        self._outside += grown

    def clear(self) -> None:
        self._drop(self._outside)

    def _drop(self, size: int) -> None:
        done = min(size, self._outside)
        self._account.give(Part.BUFFERS, done)
        self._outside -= done


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
        self._sizes, self._kept, self._ahead, self._gloo = sizes, kept, ahead, gloo and shards > 1
        self._order = sorted(sizes)
        self._whole: set[int] = set()
        self._flat: set[int] = set()  # gathered, not copied out yet
        self._part: dict[int, int] = {}  # resharded to fewer ranks after forward
        self._copied = 0  # the last flat one, which the next one frees
        self._made: dict[int, int] = {}  # gradients that are not reduced
        self._reducing = 0  # the last reduction's input, which the next one frees
        self._gradients = 0

    def _parameters(self, unit: int) -> int:
        return self._sizes[unit] * self._recipe.computed

    # -- forward ---------------------------------------------------------------------------------------------------

    def begin_forward(self) -> None:
        self.enter(0)

    def enter(self, unit: int, /) -> None:
        if unit in self._whole:
            return
        self._gather(unit)
        self._account.give(Part.BUFFERS, self._copied)
        self._copied = 0
        size = self._copy_out(unit)
        if self._ahead:  # asked for: asynchronous, and freed at once
            self._account.give(Part.BUFFERS, size)
            place = self._order.index(unit)
            for following in self._order[place + 1 : place + 1 + self._ahead]:
                self._gather(following)
        else:
            self._copied = size

    def leave(self, unit: int, /) -> None:
        if unit == 0 or self._kept == 1:
            return
        self._reshard(unit)
        if self._kept:
            self._part[unit] = round(self._parameters(unit) * self._kept)
            self._account.take(Part.GATHERED, self._part[unit])

    def end_forward(self) -> None:
        self._account.give(Part.BUFFERS, self._copied)
        self._copied = 0

    # -- backward --------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        self._prefetch(len(self._order))

    def enter_backward(self, unit: int, /) -> None:
        if unit == 0 and unit in self._whole:
            return
        if unit not in self._whole:
            self._gather(unit)
            self._account.give(Part.BUFFERS, self._copy_out(unit))
            self._account.give(Part.GATHERED, self._part.pop(unit, 0))
        self._prefetch(self._order.index(unit))

    def gradient(self, unit: int, parameters: int, _reduce: bool, /) -> None:
        """In the gathered parameters' type; where it comes on top of another micro-batch's, it is added to that."""
        size, whole = parameters * self._recipe.computed, self._parameters(unit)
        grown = min(size, max(0, whole - self._made.get(unit, 0)))
        self._account.take(Part.BUFFERS, grown)
        self._account.passing(Part.BUFFERS, size - grown)
        self._made[unit] = self._made.get(unit, 0) + grown

    def leave_backward(self, unit: int, reduce: bool, /) -> None:
        if unit:
            self._reduce(unit, reduce)

    def end_backward(self, reduce: bool, /) -> None:
        self._reduce(0, reduce)
        self._account.give(Part.BUFFERS, self._reducing)
        self._reducing = 0

    def clear(self) -> None:
        self._account.give(Part.GRADIENTS, self._gradients)
        self._gradients = 0

    # -- parts of both ---------------------------------------------------------------------------------------------

    def _prefetch(self, place: int) -> None:
        """The units before this one in forward are next in backward; PyTorch gathers one ahead unless told otherwise.
        The root needs nothing."""
        for unit in reversed(self._order[max(1, place - max(1, self._ahead)) : place]):
            self._gather(unit)

    def _gather(self, unit: int) -> None:
        if unit in self._whole or unit in self._flat or self._shards == 1:
            return
        self._flat.add(unit)
        self._account.take(Part.BUFFERS, self._parameters(unit))
        if self._gloo:
            self._account.passing(Part.BUFFERS, self._parameters(unit))

    def _copy_out(self, unit: int) -> int:
        """The parameters in their own tensors. Bytes of the flat one that they were copied from."""
        self._account.take(Part.GATHERED, self._parameters(unit))
        self._whole.add(unit)
        if unit not in self._flat:
            return 0
        self._flat.discard(unit)
        return self._parameters(unit)

    def _reshard(self, unit: int) -> None:
        if unit in self._whole:
            self._whole.discard(unit)
            self._account.give(Part.GATHERED, self._parameters(unit))

    def _reduce(self, unit: int, reduce: bool) -> None:
        self._reshard(unit)
        if not reduce or unit not in self._made:
            return
        account, size = self._account, self._sizes[unit] * self._recipe.reduced
        account.give(Part.BUFFERS, self._reducing)
        account.take(Part.BUFFERS, size)
        account.give(Part.BUFFERS, self._made.pop(unit))
        own = -(-self._sizes[unit] * self._recipe.gradients // self._shards)
        account.take(Part.GRADIENTS, own)
        self._gradients += own
        if self._gloo:
            account.passing(Part.BUFFERS, size)
        self._reducing = size

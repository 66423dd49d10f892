"""When a batch is asked for and when it is there: hooks on ``torch.utils.data.DataLoader``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..loader_queue import queue_of
from ..patches import Patches
from .hooking import Inside

if TYPE_CHECKING:
    from .life import Attachment

_Batch = TypeVar("_Batch")


class Fetches:
    """Tells of the batches that a training waits for, outermost only: a dataset may read from a loader of its own."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._events = life.events
        self._inside = Inside()
        self._asked = 0  # the outermost loader
        self._settings: dict[int, dict[str, Any]] = {}  # by loader, as far as it has any

    def told(self, loader: int, iterator: Any, fetch: Callable[[], _Batch]) -> _Batch:
        """What ``fetch`` returns, the next of ``iterator``; StopIteration and whatever else it raises goes through."""
        inside = self._inside
        if inside.now:
            if self._events.looks:
                self._look_at(iterator)  # what wraps a DataLoader has no queue of its own
            return fetch()
        inside.now = True
        try:
            self._asked = loader
            events = self._events
            events.fetch_begins(loader, torch.is_grad_enabled())
            if events.looks:
                self._look_at(iterator)
            try:
                batch = fetch()
            except StopIteration:
                self._life.tell("fetch_ends", True)
                raise
            except BaseException:
                self._life.tell("interrupted")
                raise
            events.fetch_ends()
        finally:
            inside.now = False
        return batch

    def settings(self, loaders: Collection[int]) -> dict[str, Any]:
        """In what these loaders agree, or all that were asked if it is not known which those are: ``num_workers``,
        ``prefetch_factor``, ``pin_memory``."""
        own = [self._settings.get(loader, {}) for loader in loaders or self._settings] or [{}]
        return {name: value for name, value in own[0].items() if all(one.get(name) == value for one in own)}

    def _look_at(self, iterator: Any) -> None:
        if self._asked not in self._settings and (found := _settings_of(iterator)):
            self._settings[self._asked] = found
        queue = queue_of(iterator)
        if queue is not None:
            self._events.queue_seen(queue)


def install(patches: Patches, fetches: Fetches) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def fetch(iterator: Any) -> Any:
        # The loader's number: an epoch makes a new iterator, but of the same sampler.
        return fetches.told(id(getattr(iterator, "_index_sampler", iterator)), iterator, lambda: original(iterator))

    patches.replace(_BaseDataLoaderIter, "__next__", fetch)


def _settings_of(iterator: Any) -> dict[str, Any]:
    """Empty of what is no DataLoader's iterator, whose fields these are, public in none."""
    workers = getattr(iterator, "_num_workers", None)
    if not isinstance(workers, int):
        return {}
    found = {"num_workers": workers, "pin_memory": bool(getattr(iterator, "_pin_memory", False))}
    factor = getattr(iterator, "_prefetch_factor", None)
    return {**found, "prefetch_factor": factor} if isinstance(factor, int) else found

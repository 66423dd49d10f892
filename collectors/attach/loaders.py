"""When a batch is asked for and when it is there: hooks on ``torch.utils.data.DataLoader``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..loader_queue import queue_of
from ..patches import Patches
from .hooking import Outermost

if TYPE_CHECKING:
    from .life import Attachment

_Batch = TypeVar("_Batch")


class Fetches:
    """Tells of the batches that a training waits for, outermost only: a dataset may read from a loader of its own."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._outermost = Outermost()

    def told(self, loader: int, iterator: Any, fetch: Callable[[], _Batch]) -> _Batch:
        """What ``fetch`` returns, the next of ``iterator``; StopIteration and whatever else it raises goes through."""
        if not self._outermost.enter():
            self._tell_queue(iterator)  # what wraps a DataLoader has none of its own
            return fetch()
        try:
            self._life.tell("fetch_begins", loader, torch.is_grad_enabled())
            self._tell_queue(iterator)
            try:
                batch = fetch()
            except StopIteration:
                self._life.tell("fetch_ends", True)
                raise
            except BaseException:
                self._life.tell("interrupted")
                raise
            self._life.tell("fetch_ends")
        finally:
            self._outermost.leave()
        return batch

    def _tell_queue(self, iterator: Any) -> None:
        queue = queue_of(iterator)
        if queue is not None:
            self._life.tell("queue_seen", queue)


def install(patches: Patches, fetches: Fetches) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def fetch(iterator: Any) -> Any:
        return fetches.told(_number(iterator), iterator, lambda: original(iterator))

    patches.replace(_BaseDataLoaderIter, "__next__", fetch)


def _number(iterator: Any) -> int:
    """The loader's: an epoch makes a new iterator, but of the same sampler."""
    return id(getattr(iterator, "_index_sampler", iterator))

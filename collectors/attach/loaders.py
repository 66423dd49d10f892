"""Hooks on ``torch.utils.data.DataLoader``: when a batch is asked for and when it is there."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ..patches import Patches
from .hooking import Outermost

if TYPE_CHECKING:
    from .life import Attachment


def install(patches: Patches, life: Attachment) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original, outermost = _BaseDataLoaderIter.__next__, Outermost()

    @functools.wraps(original)
    def fetch(iterator: Any) -> Any:
        if not outermost.enter():  # a dataset that reads from a loader of its own
            return original(iterator)
        try:
            life.tell("fetch_begins", _number(iterator), torch.is_grad_enabled())
            try:
                batch = original(iterator)
            except StopIteration:
                life.tell("fetch_ends", True)
                raise
            except BaseException:
                life.tell("interrupted")
                raise
            life.tell("fetch_ends")
        finally:
            outermost.leave()
        return batch

    patches.replace(_BaseDataLoaderIter, "__next__", fetch)


def _number(iterator: Any) -> int:
    """The loader's: an epoch makes a new iterator, but of the same sampler."""
    return id(getattr(iterator, "_index_sampler", iterator))

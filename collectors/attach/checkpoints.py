"""Hooks on saving: ``torch.save``, ``torch.distributed.checkpoint`` and DeepSpeed's engine; frameworks use these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..patches import Patches
from .hooking import Outermost, around

if TYPE_CHECKING:
    from .life import Attachment

DISTRIBUTED = ("save", "async_save", "save_state_dict")


class Saving:
    """One of these for all: DeepSpeed's engine saves with ``torch.save``."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._outermost = Outermost()

    def install(self, patches: Patches, owners: Sequence[Any], names: Sequence[str]) -> None:
        """``owners``: modules that hand out the same functions, or a class."""
        for name in names:
            original = getattr(owners[0], name, None)
            if original is None:
                continue
            timed = around(
                original,
                self._outermost,
                begin=lambda _args: self._life.tell("checkpoint_begins"),
                end=lambda start: start is not None and self._life.tell("checkpoint_ends", start),
                interrupted=lambda: self._life.tell("interrupted"),
            )
            for owner in owners:
                if getattr(owner, name, None) is original:
                    patches.replace(owner, name, timed)

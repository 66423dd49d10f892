"""What happens before the process's own first line: hardly anything. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

from .environment import wanted
from .importing import AfterImport

_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch",
     "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner"}
)  # fmt: skip


def boot() -> None:
    """Waits for torch where this process may be one that trains."""
    if not wanted():
        return
    imports = AfterImport()

    def arm(_torch: ModuleType) -> None:
        if launches(sys.orig_argv):
            return
        from .life import arm

        arm(imports)

    imports.call("torch", arm)


def launches(command: Sequence[str]) -> bool:
    """Whether this Python runs a launcher, which imports torch and trains nothing itself."""
    for word in command[1:]:
        if word in _LAUNCHERS or os.path.basename(word) in _LAUNCHERS:  # noqa: PTH119
            return True
        if not word.startswith("-"):
            return False
    return False

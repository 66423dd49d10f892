"""Waits, from a process's first line, for ``import torch``; does as little as possible. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..fence import Fence, unseen
from ..settings import wanted

_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch",
     "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner"}
)  # fmt: skip


def boot() -> None:
    """Waits for torch if this process may be one that trains."""
    if not wanted():
        return
    imports = AfterImport(Fence())

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


class AfterImport:
    """Runs actions after the import of named modules, within the fence. A finder of ``sys.meta_path`` that finds no
    module itself: it asks the other finders and wraps the loader that they return."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        fence.undo.append(lambda _why: self.forget())
        self._waiting: dict[str, list[Callable[[ModuleType], object]]] = {}
        self.find_spec = fence.hook(self._find)

    def call(self, name: str, action: Callable[[ModuleType], object]) -> None:
        """Calls ``action(module)`` after the module's import, or now if it is imported already."""
        module = sys.modules.get(name)
        if module is not None:
            self.fence.call(action, module)
            return
        self._waiting.setdefault(name, []).append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _find(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            try:
                spec: ModuleSpec | None = find(fullname, path, target) if find and finder is not self else None
            except Exception:  # the training's finder refuses the module; Python asks it next
                return None
            if spec is not None:
                self._look_over(fullname, spec)
                return spec
        return None

    def _look_over(self, name: str, spec: ModuleSpec) -> None:
        """Wraps ``exec_module`` of this loader, which belongs to this module only; undone when the module runs."""
        loader: Any = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            run(module)
            self.fence.call(self._imported, name, module)

        with contextlib.suppress(AttributeError):  # a loader without ``__dict__``: its module is not noticed
            loader.exec_module = unseen(exec_module)

    def _imported(self, name: str, module: ModuleType) -> None:
        for action in self._waiting.pop(name, []):
            action(module)
        if not self._waiting:
            self.forget()

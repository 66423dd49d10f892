"""Waits, from a process's first line, for ``import torch``; does as little as possible. Standard library only."""

from __future__ import annotations

import contextlib
import importlib.abc
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..settings import wanted

_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch",
     "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner"}
)  # fmt: skip


def boot() -> None:
    """Waits for torch if this process may be one that trains."""
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


class AfterImport(importlib.abc.MetaPathFinder):
    """Runs actions after the import of named modules. Finds no module itself: it asks the other finders and wraps the
    loader that they return."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[ModuleType], object]]] = {}

    def call(self, name: str, action: Callable[[ModuleType], object]) -> None:
        """Calls ``action(module)`` after the module's import, or now if it is imported already. It must not raise."""
        module = sys.modules.get(name)
        if module is not None:
            action(module)
            return
        self._waiting.setdefault(name, []).append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None and finder is not self else None
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
            for action in self._waiting.pop(name, []):
                action(module)
            if not self._waiting:
                self.forget()

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without ``__dict__``: its module is not noticed
            return

"""Replacing functions of libraries by ones that tell of their calls, and what could not be replaced."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..patches import Patches

Function = Callable[..., Any]


class Hooks:
    """Patches that name themselves: the manifest says which are in place and which are not, and why."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.placed: list[str] = []
        self.missing: dict[str, str] = {}

    def place(self, what: str, put: Callable[[Patches], object]) -> None:
        """Runs ``put``. A library that is not as expected costs this hook and nothing else."""
        try:
            put(self.patches)
        except Exception as error:  # whatever a library of another version raises
            self.missing[what] = repr(error)
        else:
            self.placed.append(what)

    def remove(self) -> None:
        self.patches.undo()


class Outermost:
    """Whether a call is inside another of its kind, on this thread."""

    def __init__(self) -> None:
        self._inside = threading.local()

    def enter(self) -> bool:
        """False where this thread is in one already; else ``leave`` must follow."""
        if getattr(self._inside, "now", False):
            return False
        self._inside.now = True
        return True

    def leave(self) -> None:
        self._inside.now = False


def around(
    original: Function, outermost: Outermost, begin: Function, end: Function, interrupted: Callable[[], object]
) -> Function:
    """The function, with ``begin(args)`` before it and ``end(what begin returned)`` when it has returned."""

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not outermost.enter():
            return original(*args, **kwargs)
        try:
            begun = begin(args)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                interrupted()
                raise
            end(begun)
        finally:
            outermost.leave()
        return result

    return told

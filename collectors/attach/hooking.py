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


class Inside(threading.local):
    """Whether this thread is in a call of a kind, of which only the outermost counts."""

    now = False


def around(
    original: Function,
    inside: Inside,
    begin: Callable[[], Any],
    end: Callable[[Any], object],
    interrupted: Callable[[], object],
) -> Function:
    """The function, with ``begin()`` before it and ``end(what begin returned)`` when it has returned."""
    compiling = torch.compiler.is_dynamo_compiling

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        if compiling() or inside.now:
            return original(*args, **kwargs)
        inside.now = True
        try:
            begun = begin()
            try:
                result = original(*args, **kwargs)
            except BaseException:
                interrupted()
                raise
            end(begun)
        finally:
            inside.now = False
        return result

    return told

"""Functions of other modules and classes that are replaced for a time."""

from __future__ import annotations

from typing import Any


class Patches:
    """Remembers what it replaced and puts it back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        # From the namespace itself: a class hands out the methods that C++ gave it without what makes them methods.
        self._originals.append((owner, name, vars(owner).get(name, getattr(owner, name))))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

"""Functions of other modules and classes that are replaced for a time."""

from __future__ import annotations

from typing import Any


class Patches:
    """Remembers what it replaced and puts it back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        # From the namespace itself: a class hands out the methods that C++ gave it without what makes them methods.
        self._replaced.append((owner, name, vars(owner).get(name, getattr(owner, name)), value))
        setattr(owner, name, value)

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def undo(self) -> None:
        """Leaves alone what somebody else has replaced since: theirs calls ours, which calls the original."""
        while self._replaced:
            owner, name, original, value = self._replaced.pop()
            if vars(owner).get(name, value) is value:
                setattr(owner, name, original)

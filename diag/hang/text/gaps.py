"""What could not be read or joined, collected while reading: said once a file and reason, with a count."""

from __future__ import annotations

from collections import Counter


class Gaps:
    """Reasons in the order they came up, each once a path."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._paths: set[str] = set()

    def say(self, path: str, reason: str) -> None:
        self._counts[path, reason] += 1
        self._paths.add(path)

    def about(self, path: str) -> bool:
        return path in self._paths

    def all(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (path, reason if count == 1 else f"{reason} ({count} times)")
            for (path, reason), count in self._counts.items()
        )

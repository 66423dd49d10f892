"""Which gaps mean that a file could not be read wholly, and which only say how it was read."""

from __future__ import annotations

from collections.abc import Iterable

from diag.collectors.reading import is_no_file

# How a reader begins what it says of a file that it read to the end. Everything else that names a file is a loss.
EMPTY = "is empty"
SHARES = "of each process the first and the last lines are kept"
NO_RANK = "collective calls of "

_READ_WHOLLY = (EMPTY, SHARES, NO_RANK)


def is_incomplete(reason: str) -> bool:
    """Whether a gap that names a file says that some of the file could not be read. A pipe, through which PyTorch is
    asked for a dump, or a device holds nothing that could have been read."""
    return not reason.startswith(_READ_WHOLLY) and not is_no_file(reason)


def by_reason(gaps: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The files ("" for a gap of no file) of each reason, as they come."""
    found: dict[str, list[str]] = {}
    for path, reason in gaps:
        found.setdefault(reason, []).append(path)
    return found

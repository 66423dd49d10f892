"""Exit codes of processes that a signal ended."""

from __future__ import annotations

BY_SHELLS = 128  # added to a signal's number: by shells, and by programs that handle the signal too


def signal_number(code: int) -> int:
    """The number of the signal for an exit code that stands for one; for another code, no number of a signal."""
    return -code if code < 0 else code - BY_SHELLS

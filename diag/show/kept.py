"""What a redacted report hides and what it deliberately keeps, as its reader and the command's help are told."""

from __future__ import annotations

REDACTED = (
    "Host names, user names, paths, addresses, run and job ids are replaced by pseudonyms, each by one of its own."
)
KEPT = (
    "Kept: what was trained (the model's size and shape, strategy, backend, versions), the names of devices, modules "
    "and kernels, ranks, steps, and all numbers."
)

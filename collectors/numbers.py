"""The loss and the gradient's norm, step by step: the first ones that are not finite, or jump.

Nothing here waits for a device: only numbers that are on the host already are looked at. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from typing import Any

from .policy import RECORDING

LOSS = "loss"  # of this rank alone, before any reduction
GRADIENT = "gradient"  # of this rank alone, as an exception says
GRADIENT_NORM = "gradient norm"
REPORTED_LOSS, REPORTED_NORM = "reported loss", "reported gradient norm"  # as the training prints them: of all ranks


class Numbers:
    """Compares each number with those before it. ``seen``: how many were looked at."""

    def __init__(self) -> None:
        self.seen = 0
        self._before: dict[str, deque[float]] = {}
        self._limits: dict[str, float] = {}
        self._told: Counter[tuple[str, bool]] = Counter()

    def odd(self, what: str, value: float) -> float | None:
        """The usual value if this one is not finite or jumps, NaN if none is known; None for any other. The first few
        of each kind are told: what follows a NaN is NaN as well."""
        self.seen += 1
        finite = math.isfinite(value)
        before = self._before.get(what)
        if before is None:
            before = self._before[what] = deque(maxlen=RECORDING.numbers_kept)
        jumps = finite and value > self._limits.get(what, math.inf)
        usual = statistics.median(before) if before and (jumps or not finite) else math.nan
        if finite:
            before.append(value)
            if len(before) >= RECORDING.least_numbers and self.seen % RECORDING.numbers_between_limits == 0:
                times = RECORDING.jump_of_norm if what in (GRADIENT_NORM, REPORTED_NORM) else RECORDING.jump_of_loss
                # Above all of them as well: several losses of different size may alternate.
                self._limits[what] = max(times * abs(statistics.median(before)), RECORDING.jump_over_all * max(before))
            if not jumps:
                return None
        self._told[what, finite] += 1
        return usual if self._told[what, finite] <= RECORDING.most_odd_numbers else None


def number_of(value: Any) -> float | None:
    """A number that is on the host already: a float, or a tensor of one on the CPU. None for anything else: reading it
    would wait for a device, or for other ranks."""
    if isinstance(value, float):
        return value
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a subclass may be spread over ranks, or stand for none
        return None
    if value.device.type != "cpu" or value.numel() != 1 or not value.is_floating_point():
        return None
    return float(value.detach().item())

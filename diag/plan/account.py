"""Live bytes by what they are for, and the moment when they were most."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from msgspec import Struct


class Part(StrEnum):
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    GATHERED = "gathered"  # parameters of units that are whole for a while
    BUFFERS = "buffers"  # of collectives, and gradients that are not reduced yet
    ACTIVATIONS = "activations"  # kept from forward for backward
    LOGITS = "logits"  # of the last layer, and what the loss keeps of them
    PASSING = "passing"  # outputs and gradients on their way between operations


class Peak(Struct, frozen=True):
    """The most that is alive at once: how much, in which part of the step, and what it consists of."""

    bytes: int
    moment: str
    parts: dict[str, int]


class Account:
    """What is taken and given back, in order."""

    def __init__(self) -> None:
        self._live: Counter[Part] = Counter()
        self._total = 0
        self._most = 0
        self._parts: dict[Part, int] = {}
        self._moment = ""
        self.moment = ""  # what the step is doing, for the peak's name

    def take(self, part: Part, count: int) -> None:
        self._live[part] += count
        self._total += count
        if self._total > self._most:
            self._most, self._moment, self._parts = self._total, self.moment, dict(self._live)

    def give(self, part: Part, count: int) -> None:
        self._live[part] -= count
        self._total -= count

    def passing(self, part: Part, count: int) -> None:
        """Taken and given back at once."""
        self.take(part, count)
        self.give(part, count)

    @property
    def live(self) -> dict[Part, int]:
        """What is alive now; empty after a step but for what stays."""
        return {part: count for part, count in self._live.items() if count}

    @property
    def peak(self) -> Peak:
        return Peak(self._most, self._moment, {str(part): self._parts.get(part, 0) for part in Part})

"""The learning rate's schedule: it rises over the first steps, then stays."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class Schedule:
    """Step ``n``, counted from 0, has ``(n + 1) / steps`` of the rate, and all of it from ``steps`` on."""

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        self._optimizer = optimizer
        self._scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))

    def step(self) -> None:
        """After the optimizer's."""
        self._scheduler.step()

    def state(self) -> dict[str, Any]:
        """Numbers only, for a manifest."""
        state = self._scheduler.state_dict()
        return {name: state[name] for name in ("last_epoch", "base_lrs", "_last_lr", "_step_count")}

    def restore(self, state: dict[str, Any]) -> None:
        """Where it was: the state of a scheduler does not set the rates of its optimizer's groups by itself."""
        self._scheduler.load_state_dict({**state, "lr_lambdas": [None]})  # a function has no state
        for group, rate in zip(self._optimizer.param_groups, state["_last_lr"], strict=True):
            group["lr"] = rate


def schedule_of(optimizer: Optimizer, warmup_steps: int) -> Schedule | None:
    """None: the rate is constant."""
    return Schedule(optimizer, warmup_steps) if warmup_steps else None

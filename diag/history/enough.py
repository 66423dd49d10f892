"""Whether a run is long enough for its step time to have changed: asked before a history is read."""

from __future__ import annotations

from .policy import HISTORY


def may_have_changed(steps: int) -> bool:
    """Whether so many steps can hold a level of the step time and another one. Sums are of more steps than that."""
    return steps >= 2 * HISTORY.least_steps

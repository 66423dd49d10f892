"""Thresholds of `diag tune`."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Tuning(Topic, name="tuning", fixed=True):
    """When two runs of a training can be compared."""

    least_steps_after_queue = threshold(
        6,
        "steps",
        "chosen",
        "untraced steps after those fed by the full queue; runs with fewer are measured from their first step",
    )
    loss_difference = threshold(
        0.01,
        "fraction",
        "chosen: a larger difference in loss between equal steps comes from another computation, not from "
        "another order of sums",
    )
    least_steps_of_a_run = threshold(3, "steps", "chosen", "undisturbed steps: a mean of fewer is not worth comparing")
    most_reasons = threshold(5, "reasons")
    log_lines = threshold(3, "lines")


TUNING = Tuning()

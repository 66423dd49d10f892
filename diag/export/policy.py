"""How many series and steps exported metrics have."""

from __future__ import annotations

from diag.policy import Topic, threshold


class ExportLimits(Topic, name="metrics", fixed=True):
    """How many series and steps exported metrics have."""

    steps_at_once = threshold(
        32, "steps", "chosen", "steps in a batch: splitting compares every step of it with every collective of it"
    )
    most_open_collectives = threshold(
        10_000, "collectives", "chosen", "collectives whose end on the device is not known yet"
    )
    most_series = threshold(
        1_000_000, "series", "chosen", "per instrument; the SDK's own limit is 2,000, and a run can have 24,576 ranks"
    )
    most_groups = threshold(
        64, "groups", "chosen", "process groups with the most bytes; the others are merged into one"
    )
    most_ranks = threshold(64, "ranks", "chosen", "by default up to this number of ranks have their own series")


EXPORT_LIMITS = ExportLimits()

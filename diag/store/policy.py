"""Limits of what is read from stores."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Stores(Topic, name="stores", fixed=True):
    """Runs on stores, and the segments that packers write."""

    longest_name = threshold(1_000, "characters", "chosen", "of a file's name in a run")
    tail_bytes = threshold(256, "bytes", "chosen", "before the new end of a file, by which it is known to have grown")
    refresh_s = threshold(10.0, "s", "chosen", "between two looks at a store while a run is followed")
    refresh_over_reading = threshold(5, "times", "chosen", "times what a look took, before the next one")
    unused_copy_days = threshold(14, "days", "chosen", "after which a local copy that nobody opened is removed")


STORES = Stores()

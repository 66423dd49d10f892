"""Limits of what is read from stores."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Stores(Topic, name="stores", fixed=True):
    """Runs on stores, and the segments that packers write."""

    longest_name = threshold(1_000, "characters", "chosen", "of a file's name in a run")
    tail_bytes = threshold(256, "bytes", "chosen", "before the new end of a file, by which it is known to have grown")
    refresh_s = threshold(10.0, "s", "chosen", "between two looks at a store while a run is followed")
    refresh_over_reading = threshold(5, "times", "chosen", "times what a look took, before the next one")
    most_looks = threshold(
        5, "looks", "chosen", "at a store, while packers merge and remove what was listed before it could be read"
    )
    most_missing_named = threshold(4, "segments", "chosen", "missing segments that a gap names")
    patience_s = threshold(
        60.0, "s", "chosen", "for which a store may not answer while the answer of ranks is waited for"
    )
    unused_copy_days = threshold(14, "days", "chosen", "after which a local copy that nobody opened is removed")


STORES = Stores()


class Segments(Topic, name="segments", fixed=True):
    """Segments, and the packers that write them."""

    compression = threshold(3, "level", "chosen", "of Zstandard")
    most_bytes = threshold(256 << 20, "bytes", "chosen", "that one segment unpacks to")
    raw_bytes = threshold(32 << 20, "bytes", "chosen", "of files in one segment; what is more is in the next")
    merged_count = threshold(16, "segments", "chosen", "of equal size that are merged into one")
    most_merged_bytes = threshold(
        96 << 20, "bytes", "chosen: segments are merged in memory", "of files in a merged segment"
    )
    most_remembered_bytes = threshold(16 << 20, "bytes", "chosen", "of segments in memory until they are merged")
    most_request_bytes = threshold(1 << 16, "bytes", "chosen", "of what is asked of the ranks")
    look_s = threshold(1.0, "s", "chosen", "between two looks whether the node's processes have ended")
    linger_s = threshold(60.0, "s", "chosen: a training is restarted meanwhile", "after the last process has ended")
    start_s = threshold(3600.0, "s", "chosen", "in which a first rank must start")
    patience_s = threshold(
        1200.0,
        "s",
        "chosen: twice the outage that must lose nothing",
        "for which the end of a run is tried to be stored",
    )
    wait_s = threshold(60.0, "s", "chosen", "for which `diag run` waits for the last segment")
    restart_s = threshold(2.0, "s", "chosen", "between two looks whether the packer runs")


SEGMENTS = Segments()

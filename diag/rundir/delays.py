"""By how much the records of a run are late, where packers carry them."""

from __future__ import annotations

from diag.collectors.layout import ABOUT_PACKER, RunLayout
from diag.collectors.reading import read_object
from diag.rundir.policy import RUN_READING


def delay_ns(layout: RunLayout) -> int:
    """By how much the newest records of a run may be late: that of a packer that carries them. 0 without one."""
    return int(RUN_READING.intervals_late * interval_s(layout) * 1e9)


def interval_s(layout: RunLayout) -> float:
    """Seconds between two looks of the packers that carry a run's records; 0 without packers."""
    for root in (layout.root, layout.root.parent):
        seconds = read_object(root / ABOUT_PACKER, root).get("interval_s")
        if isinstance(seconds, int | float) and 0 < seconds < RUN_READING.longest_interval_s:
            return float(seconds)
    return 0.0

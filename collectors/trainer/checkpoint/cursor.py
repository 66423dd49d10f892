"""Where in its data a training is, when it goes on with other ranks or batches. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

from ..options import OptionError


def carried_over(cursor: Mapping[str, int], layout: Mapping[str, int], where: str = "the data") -> int:
    """The batches of a rank that are behind a sampler of another layout, at the same sample of the same epoch.

    Layout and cursor: see ``ShardedSampler.state_dict``. OptionError where no round of its batches begins there.
    """
    was, now = (each["batch_size"] * each["world_size"] for each in (cursor, layout))
    epoch, rounds = divmod(cursor["consumed"], cursor["samples"] // was)
    taken = rounds * was
    if taken % now:
        raise OptionError(
            f"{where} stopped after {taken} sequences of an epoch, and this run takes {now} at a time "
            f"({layout['world_size']} x {layout['batch_size']}): no round begins there. Give a --batch-size and number "
            f"of ranks whose product divides {taken}; as saved: {cursor['world_size']} x {cursor['batch_size']}"
        )
    return epoch * (layout["samples"] // now) + taken // now

"""What to use of what fits, and why."""

from __future__ import annotations

from collections.abc import Sequence

from diag.plan.cluster import Cluster
from diag.plan.memory import HYBRID, Strategy
from diag.plan.result import Row
from diag.plan.topology import Topology
from diag.words.formatting import duration, share

# A strategy that is simpler to run is used where it costs no more of a step than this.
WORTH_IT = 0.1
_LEAST_GAIN = 1.5  # times the work of one GPU, from which on several are advised


def choice(
    rows: Sequence[Row], cluster: Cluster, axes: Topology, *, alone: bool, estimate: int | None
) -> tuple[Strategy | None, tuple[str, ...]]:
    """The strategy and the reasons; None where nothing fits, with the reasons for that. ``alone``: one GPU holds all.
    ``rows``: from simple to involved."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return None, _nothing(axes, estimate)
    if alone and axes.plain:
        simplest = fitting[0].need.strategy
        if cluster.gpus == 1:
            return simplest, ("everything fits on one GPU: do not distribute",)
        return simplest, (
            "everything fits on one GPU",
            "several only make it faster, and DDP is the simplest way to use them",
            *_worth(fitting[0], cluster.gpus),
        )
    best, reasons = _quickest(fitting)
    if alone:
        reasons.append("everything fits on one GPU: tensor, pipeline and context parallelism are not needed for memory")
    if cluster.hosts > 1 and axes.plain and HYBRID not in [row.need.strategy for row in fitting]:
        reasons.append("the states do not fit on the GPUs of one host, so hybrid sharding is out")
    return best.need.strategy, tuple(reasons)


def _worth(row: Row, gpus: int) -> tuple[str, ...]:
    """How many times the work of one GPU they do, where that is known: below two, they are not worth it."""
    if row.expected is None:
        return ()
    times = gpus * row.expected.compute_ns / row.expected.step_ns
    if times < _LEAST_GAIN:
        more = "with more micro-batches or a larger one they reduce gradients less often"
        return (f"but {gpus} of them do only {times:.1f} times the work of one: do not distribute, or {more}",)
    return (f"{gpus} of them do {times:.1f} times the work of one",)


def _quickest(fitting: Sequence[Row]) -> tuple[Row, list[str]]:
    """By the time of a step where it is known, else by what the links need; the simplest of those that are about as
    good."""
    if len(fitting) == 1:
        return fitting[0], ["nothing else fits"]
    times = {row.need.strategy.name: row.expected.step_ns for row in fitting if row.expected is not None}
    if len(times) < len(fitting):
        # The first of those that send as little: they are ordered from simple to involved.
        return min(fitting, key=lambda row: round(row.seconds, 6)), ["it sends least of those that fit"]
    fastest = min(fitting, key=lambda row: times[row.need.strategy.name])
    least = times[fastest.need.strategy.name]
    best = next(row for row in fitting if times[row.need.strategy.name] <= (1 + WORTH_IT) * least)
    own = times[best.need.strategy.name]
    if best is fastest:
        return best, [f"its step is the shortest of those that fit ({duration(own)})"]
    more = share(own / least - 1)
    return best, [
        f"its step takes {duration(own)}, {more} more than the shortest ({fastest.need.strategy.name}), and it is "
        "simpler"
    ]


def _nothing(axes: Topology, estimate: int | None) -> tuple[str, ...]:
    less = "activation checkpointing, a smaller micro-batch or offload need less memory on each"
    if not axes.plain:
        return ("no strategy fits with these axes", less)
    if estimate is not None:
        return (f"{estimate} GPUs hold it with ZeRO-3", less)
    return (
        "no number of GPUs holds it: the gathered units and what lies outside the states do not fit on one",
        less,
    )

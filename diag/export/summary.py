"""Samples of many ranks as a few of the whole run: as many series for 24,576 ranks as for two."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from diag.export import definitions as of
from diag.export.definitions import Kind, Metric, Sample

_OF_A_RANK = (of.RANK, of.HOST, of.GPU)
MOST_GROUPS = 64  # of collectives, those with most bytes; the others are one group
OTHERS = "other"

_Labels = tuple[tuple[str, str], ...]


class _Merged:
    """The values of one metric and set of labels, over the ranks."""

    __slots__ = ("count", "high", "low", "sum")

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.low, self.high = min(self.low, value), max(self.high, value)


def summarised(samples: Iterable[Sample]) -> list[Sample]:
    """Counters added up over the ranks; of gauges the min, mean and max, by the label ``stat``. What is the run's own
    stays as it is. Queries that sum counters and take the max of gauges give the same answer for both forms."""
    found: list[Sample] = []
    merged: dict[tuple[Metric, _Labels], _Merged] = {}
    for metric, labels, value in samples:
        if not metric.per_rank:
            found.append(Sample(metric, labels, value))
            continue
        own = tuple((name, text) for name, text in labels.items() if name not in _OF_A_RANK)
        values = merged.get((metric, own))
        if values is None:
            values = merged[metric, own] = _Merged()
        values.add(value)
    counters: dict[tuple[Metric, _Labels], float] = {}
    kept = _largest_groups(merged)
    for (metric, own), values in merged.items():
        if metric.kind is Kind.GAUGE:
            stats = (("min", values.low), ("mean", values.sum / values.count), ("max", values.high))
            found += (Sample(metric, {**dict(own), of.STAT: stat}, value) for stat, value in stats)
            continue
        folded = tuple((name, OTHERS if name == of.GROUP and text not in kept else text) for name, text in own)
        counters[metric, folded] = counters.get((metric, folded), 0.0) + values.sum
    return found + [Sample(metric, dict(own), value) for (metric, own), value in counters.items()]


def _largest_groups(merged: Mapping[tuple[Metric, _Labels], _Merged]) -> set[str]:
    sizes: Counter[str] = Counter()
    for (metric, own), values in merged.items():
        if metric is of.COLLECTIVE_BYTES:
            sizes[dict(own)[of.GROUP]] += round(values.sum)
    return set(sorted(sizes, key=lambda group: (-sizes[group], group))[:MOST_GROUPS])

"""The reasons for a difference: found by measuring again, not by guessing.

Our events are read again with every set of departures, small sets first, until the numbers are HTA's. A set that closes
all gaps of a rank at once is trusted before one that closes a single gap: that can be chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations

from .model import AGREE_PERCENT, Comparison, Departure, Measures, Quantity, difference

Measure = Callable[[frozenset[str]], Measures]


def compare(ours: Measures, hta: Measures, departures: tuple[Departure, ...], measure: Measure) -> list[Comparison]:
    """Every quantity with the smallest set of departures that closes its gap; without reasons where none does."""
    measure = cache(measure)
    first = {quantity: difference(ours.value(quantity), hta.value(quantity), quantity) for quantity in Quantity}

    def left(chosen: frozenset[str], quantity: Quantity) -> float:
        return difference(measure(chosen).value(quantity), hta.value(quantity), quantity)

    def closes_all(chosen: frozenset[str]) -> float | None:
        gaps = [abs(left(chosen, quantity)) for quantity in Quantity]
        return sum(gaps) if max(gaps) <= AGREE_PERCENT else None

    def closes(quantity: Quantity) -> Callable[[frozenset[str]], float | None]:
        def gap(chosen: frozenset[str]) -> float | None:
            return size if (size := abs(left(chosen, quantity))) <= AGREE_PERCENT else None

        return gap

    everything = frozenset(departure.id for departure in departures)
    open_gaps = [quantity for quantity in Quantity if abs(first[quantity]) > AGREE_PERCENT]
    among = (_smallest(everything, closes_all) if open_gaps else None) or everything
    found = {quantity: _smallest(among, closes(quantity)) or frozenset() for quantity in open_gaps}
    return [
        Comparison(
            quantity=quantity,
            ours=ours.value(quantity),
            hta=hta.value(quantity),
            difference=first[quantity],
            reasons=tuple(d for d in departures if d.id in found.get(quantity, ())),
            residual=left(found[quantity], quantity) if found.get(quantity) else first[quantity],
        )
        for quantity in Quantity
    ]


def _smallest(among: frozenset[str], gap: Callable[[frozenset[str]], float | None]) -> frozenset[str] | None:
    """The smallest subset with a gap (not None), of equals the one with the least; None where there is none."""
    for size in range(1, len(among) + 1):
        closing = [(found, sorted(chosen)) for chosen in _subsets(among, size) if (found := gap(chosen)) is not None]
        if closing:
            return frozenset(min(closing)[1])
    return None


def _subsets(among: frozenset[str], size: int) -> Iterator[frozenset[str]]:
    return map(frozenset, combinations(sorted(among), size))

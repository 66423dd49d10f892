"""Change points of a series: where its level changes, by ranks, so that outliers and the shape of noise do not count.

Each stretch of a fixed set of stretches is tested for one change: the CUSUM of its ranks (Pettitt, 1979) against the
limit of Kolmogorov. The stretches are those of seeded binary segmentation (Kovács et al., 2023), the shortest that
shows a change decides. Noise of step times is autocorrelated, which a test for independent values takes for changes:
the CUSUM is divided by the square root of the noise's autocorrelation time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt

import numpy as np

from diag.rundir.columns import Floats

from .policy import HISTORY


def level(values: Floats) -> float:
    """The mean without the highest values: without evaluations and checkpoints."""
    return float(_levels(values[None])[0])


def _levels(rows: Floats) -> Floats:
    """The level of each row."""
    count = rows.shape[1]
    least = np.sort(rows, axis=1)[:, : max(1, count - int(HISTORY.trimmed_share * count))]
    levels: Floats = least.mean(axis=1)
    return levels


def change_points(values: Floats, *, summed: bool = False) -> list[int]:
    """The places at which the level of the values changes, in order. NaN is not allowed. ``summed``: each is a mean of
    many steps, so that their size tells more than their ranks, and few of them make a level."""
    if summed:
        return _changes(values, _Sizes(values), HISTORY.least_sums)
    if len(values) <= HISTORY.most_values:
        return _changes(values, _Ranks(), HISTORY.least_steps)
    size = -(-len(values) // HISTORY.most_values)
    whole = values[: len(values) // size * size].reshape(-1, size)
    rest = values[whole.size :]
    means = np.concatenate((_levels(whole), _levels(rest[None]) if len(rest) else rest))
    newest = len(values) - HISTORY.most_values
    found = [_refined(values, at * size, size) for at in _changes(means, _Ranks(), HISTORY.least_steps)]
    found += [newest + at for at in _changes(values[newest:], _Ranks(), HISTORY.least_steps)]
    return _proven(values, sorted(set(found)), _Ranks(), HISTORY.least_steps)


class _Ranks:
    """Scores without any assumption about the noise."""

    def __call__(self, values: Floats) -> tuple[Floats, float]:
        """The scores, and their standard deviation where there is no change."""
        _, code, number = np.unique(values, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(number) - (number - 1) / 2)[code]  # of equal values, their mean
        return ranks, float(ranks.std())


class _Sizes:
    """The values themselves, in terms of how much they differ from one to the next; outliers are cut."""

    def __init__(self, values: Floats) -> None:
        usual = float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0.0
        least = HISTORY.least_noise * float(np.median(values)) if len(values) else 0.0
        self._scale = max(usual * HISTORY.deviation_of_differences, least, 1e-12)

    def __call__(self, values: Floats) -> tuple[Floats, float]:
        scores = (values - np.median(values)) / self._scale
        return np.clip(scores, -HISTORY.most_score, HISTORY.most_score), 1.0


_Scores = _Ranks | _Sizes


def _changes(values: Floats, scores: _Scores, least: int) -> list[int]:
    tested = [
        (first, last, *_split(values[first:last], scores, least)) for first, last in _stretches(len(values), least)
    ]
    if not tested:
        return []
    long = [tau for first, last, _, _, tau in tested if HISTORY.telling_parts * (last - first) >= len(values)]
    usual = float(np.median(long))
    limit = _limit(len(tested))
    found: list[int] = []
    for first, last, at, excess, tau in sorted(tested, key=lambda stretch: (stretch[1] - stretch[0], -stretch[3])):
        if excess > limit * sqrt(max(tau, usual)) and not any(first < place < last for place in found):
            found.append(first + at)
    todo = [*found]
    while todo:  # what lies next to a change, in stretches that end or begin with it
        place = todo.pop()
        for first, last in _beside(place, sorted({0, *found, len(values)}), least):
            at, excess, tau = _split(values[first:last], scores, least)
            if excess > limit * sqrt(max(tau, usual)):
                found.append(first + at)
                todo.append(first + at)
                break
    return _proven(values, sorted(set(found)), scores, least, usual, len(tested))


def _beside(place: int, edges: list[int], least: int) -> Iterator[tuple[int, int]]:
    """Stretches that end or begin at the place, the shortest first, up to the next edges."""
    at = edges.index(place)
    before, after = edges[at - 1], edges[at + 1]
    length = 2 * least
    while length <= max(place - before, after - place):
        if length <= place - before:
            yield place - length, place
        if length <= after - place:
            yield place, place + length
        length *= 2


def _proven(
    values: Floats, found: list[int], scores: _Scores, least: int, usual: float = 1.0, tests: int = 1
) -> list[int]:
    """Those that are changes between the levels before and after, which neighbours bound."""
    limit = _limit(tests)
    while found:
        edges = [0, *found, len(values)]
        placed, weakest = [], (0.0, -1)
        for at, (first, place, last) in enumerate(zip(edges, found, edges[2:], strict=False)):
            reach = HISTORY.longer_side * min(place - first, last - place)
            near = max(first, place - reach)
            place, excess, tau = _split(values[near : min(last, place + reach)], scores, least)
            place += near
            before, after = level(values[first:place]), level(values[place:last])
            short = min(place - first, last - place) < least
            small = abs(after - before) < HISTORY.least_change * min(before, after)
            lack = float("inf") if small or short else limit * sqrt(max(tau, usual)) / max(excess, 1e-12)
            placed.append(place)
            if lack > max(1.0, weakest[0]):
                weakest = lack, at
        if weakest[1] < 0:
            edges = [0, *sorted(set(placed)), len(values)]
            return [_exact(values, *around, least) for around in zip(edges, edges[1:], edges[2:], strict=False)]
        found = [place for at, place in enumerate(found) if at != weakest[1]]
    return []


def _exact(values: Floats, first: int, place: int, last: int, least: int) -> int:
    """The place from which on values are nearer to the level after it than to the one before."""
    before, after = np.median(values[first:place]), np.median(values[place:last])
    nearer = np.clip(2 * (values[first:last] - before) / ((after - before) or 1.0) - 1, -1.0, 1.0)
    sums = np.cumsum(nearer)[least - 1 : last - first - least]
    return first + least + int(sums.argmin()) if len(sums) else place


def _stretches(count: int, least: int) -> Iterator[tuple[int, int]]:
    """All of it, and stretches of half of it, of a quarter and so on, each overlapping half of the next."""
    length, shortest = count, 2 * least
    while length >= shortest:
        number = 2 * -(-count // length) - 1
        begins = np.unique(np.linspace(0, count - length, number).round().astype(np.int64)).tolist()
        yield from ((first, first + length) for first in begins)
        length = -(-length // 2) if length > shortest else 0


def _limit(tests: int) -> float:
    """Of the CUSUM: by chance, one of so many tests exceeds it with the probability ``chance`` (Kolmogorov)."""
    return sqrt(log(2 * max(1, tests) / HISTORY.chance) / 2)


def _split(values: Floats, scores: _Scores, least: int) -> tuple[int, float, float]:
    """The best place of one change, its CUSUM in standard deviations of independent values, and the autocorrelation
    time of what is left without it."""
    count = len(values)
    each, spread = scores(values)
    each = each - each.mean()
    if not each.any():
        return count // 2, 0.0, 1.0
    sums = np.abs(np.cumsum(each))[:-1]
    margin = min(least, count // 2) - 1
    at = margin + int(sums[margin : len(sums) - margin].argmax()) if len(sums) > 2 * margin else int(sums.argmax())
    each[: at + 1] -= each[: at + 1].mean()
    each[at + 1 :] -= each[at + 1 :].mean()
    return at + 1, float(sums[at]) / (spread * sqrt(count)), _autocorrelation_time(each)


def _autocorrelation_time(values: Floats) -> float:
    """1 for independent values; at least 1."""
    count = len(values)
    power = np.abs(np.fft.rfft(values, 2 * count)) ** 2
    covariance = np.fft.irfft(power)[:count]
    if covariance[0] <= 0:
        return 1.0
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    enough = np.flatnonzero(np.arange(count) >= HISTORY.autocorrelation_times * times)
    return max(1.0, float(times[enough[0]] if len(enough) else times.max()))


def _refined(values: Floats, near: int, reach: int) -> int:
    """The place of a change among single values, which is near."""
    first, last = max(0, near - 4 * reach), min(len(values), near + 4 * reach)
    least = HISTORY.least_steps
    return first + _split(values[first:last], _Ranks(), least)[0] if last - first >= 2 * least else near

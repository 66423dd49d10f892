"""Runs that repeat one another: means over them, with intervals from how much they differ, as no run alone tells."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np
from msgspec import Struct

from .compare import text_of
from .culprits import t95
from .setups import Setup, repeat

Interval = tuple[float, float, float]  # low, likely, high


class Repeats(Struct, frozen=True):
    """Runs of one job with equal settings. ``settings``: those in which they differ from the other groups, by name;
    ``ns``: the mean step of each run."""

    runs: tuple[str, ...]
    settings: Mapping[str, str]
    ns: tuple[float, ...]

    @property
    def name(self) -> str:
        """The settings, or the run where no setting tells it from the other groups."""
        words = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return words or (self.runs[0] if len(self.runs) == 1 else f"{self.runs[0]} and its repeats")

    @property
    def mean_ns(self) -> Interval | None:
        """With its 95 % interval; None of one run, which does not tell it."""
        if len(self.ns) < 2:
            return None
        mean, half = float(np.mean(self.ns)), t95(len(self.ns) - 1) * sqrt(_variance_of_mean(self))
        return max(0.0, mean - half), mean, mean + half


def groups_of(setups: Mapping[str, Setup], ns: Mapping[str, float]) -> tuple[Repeats, ...]:
    """The runs by what they were asked to do, in their order. ``ns``: the mean step of each; runs without are left out,
    and so are those of which it is not known what they were asked to do: each of them is a group."""
    groups: list[list[str]] = []
    for run in ns:
        same = next((group for group in groups if repeat(setups.get(group[0]), setups.get(run))), None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    told = [setups[group[0]].settings if group[0] in setups else {} for group in groups]
    known = [of_group for of_group in told if of_group]
    names = sorted({name for of_group in known for name in of_group})
    differing = [name for name in names if len({repr(of_group.get(name)) for of_group in known}) > 1]
    settings = [{name.replace("_", " "): text_of(own[name]) for name in differing if name in own} for own in told]
    return tuple(
        # Groups that differ in what may not be told have the names of their runs.
        Repeats(tuple(group), own if settings.count(own) == 1 else {}, tuple(ns[run] for run in group))
        for group, own in zip(groups, settings, strict=True)
    )


def difference_of(before: Repeats, after: Repeats) -> Interval | None:
    """Of the mean step, with its 95 % interval by Welch's test; None unless both have repeats."""
    if len(before.ns) < 2 or len(after.ns) < 2:
        return None
    likely = float(np.mean(after.ns) - np.mean(before.ns))
    own = [_variance_of_mean(each) for each in (before, after)]
    free = (
        sum(own) ** 2 / sum(each**2 / (len(of.ns) - 1) for each, of in zip(own, (before, after), strict=True))
        if sum(own)
        else 1
    )
    half = t95(max(1, int(free))) * sqrt(sum(own))
    return likely - half, likely, likely + half


def _variance_of_mean(of: Repeats) -> float:
    return float(np.var(of.ns, ddof=1)) / len(of.ns)

"""The table of the steps of ranks. A row is a ``RankStep``, which is made when it is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.model.ragged import edges_of, entries_of, owners
from diag.model.steps import Detail, Pieces, RankStep, Stall
from diag.rundir.columns import Bools, Columns, Ints, Places

from .calls import CODED, Calls, Some, calls_in

SOURCES = ("records", "events", "trace")
FLAGS = ("comm_known", "hidden_known", "waits_known")
NUMBERS = (
    "rank", "step", "begin_ns", "end_ns", "overlapped_comm_ns", "optimizer_ns", "comm_known", "hidden_known", "pieces",
    "fused_ns", "beneath_ns", "waits_known",
)  # fmt: skip
COLUMNS = (*NUMBERS, "source")
_OF_SOME = ("stalls", "outside_operators_ns")


@dataclass(frozen=True, eq=False)
class RankSteps(Columns[RankStep]):
    """The columns are the fields of ``RankStep``; ``source`` is a place in SOURCES. ``stalls`` and
    ``outside_operators_ns`` are by the place of the step, of those that have any. ``calls``: those in the steps, and
    maybe others; the calls of step i are ``place_edges[i]`` to ``place_edges[i + 1]`` of ``places``."""

    rank: Ints
    step: Ints
    begin_ns: Ints
    end_ns: Ints
    source: npt.NDArray[np.int8]
    segments: Pieces
    overlapped_comm_ns: Ints
    optimizer_ns: Ints
    calls: Calls
    places: Ints
    place_edges: Ints
    comm_known: Bools
    hidden_known: Bools
    pieces: Ints
    fused_ns: Ints
    beneath_ns: Ints
    waits_known: Bools
    stalls: Mapping[int, tuple[Stall, ...]] = field(default_factory=dict)
    outside_operators_ns: Mapping[int, Mapping[Detail, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Sequence[RankStep]) -> RankSteps:
        """Each call of a rank once, though it may be listed in two steps."""
        if isinstance(steps, RankSteps):
            return steps
        of_ranks: dict[int, list[int]] = defaultdict(list)
        for at, step in enumerate(steps):
            of_ranks[step.rank].append(at)
        tables, listed, count = list[Calls](), [np.zeros(0, dtype=np.int64)] * len(steps), 0
        for own in of_ranks.values():
            calls, places = calls_in([steps[at].collectives for at in own])
            for at, of_step in zip(own, places, strict=True):
                listed[at] = of_step + count
            tables.append(calls)
            count += len(calls)
        columns: dict[str, Any] = {
            name: np.array([getattr(step, name) for step in steps], dtype=np.bool_ if name in FLAGS else np.int64)
            for name in NUMBERS
        }
        for name in _OF_SOME:
            columns[name] = {at: of_step for at, step in enumerate(steps) if (of_step := getattr(step, name))}
        return cls(
            **columns,
            source=np.array([SOURCES.index(step.source) for step in steps], dtype=np.int8),
            segments=Pieces.of([step.segments for step in steps]),
            calls=Calls.together(tables),
            places=np.concatenate([np.zeros(0, dtype=np.int64), *listed]),
            place_edges=edges_of(list(map(len, listed))),
        )

    @classmethod
    def together(cls, several: Sequence[RankSteps]) -> RankSteps:
        """One after the other."""
        if len(several) < 2:
            return several[0] if several else cls.of(())
        steps, calls = (edges_of(list(map(len, of))).tolist() for of in (several, [each.calls for each in several]))
        columns: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in several]) for name in COLUMNS}
        for name in _OF_SOME:
            of_each = zip(steps, (getattr(each, name) for each in several), strict=False)
            columns[name] = {first + at: of_step for first, own in of_each for at, of_step in own.items()}
        return cls(
            **columns,
            segments=Pieces.joined([each.segments for each in several]),
            calls=Calls.together([each.calls for each in several]),
            places=np.concatenate([each.places + first for each, first in zip(several, calls, strict=False)]),
            place_edges=edges_of(np.concatenate([np.diff(each.place_edges) for each in several])),
        )

    @classmethod
    def with_views(cls, ranks: Mapping[int, RankSteps]) -> tuple[RankSteps, dict[int, RankSteps]]:
        """Several ``together``, and each with its pieces and calls as views of these, which lie in memory once."""
        every, views, step, call = cls.together(list(ranks.values())), dict[int, RankSteps](), 0, 0
        uncoded = set(Calls.columns()) - set(CODED)
        for rank, own in ranks.items():
            steps, calls = slice(step, step := step + len(own)), slice(call, call := call + len(own.calls))
            columns: dict[str, Any] = {name: getattr(every.calls, name)[calls] for name in uncoded}
            views[rank] = replace(own, segments=every.segments.take(steps), calls=replace(own.calls, **columns))
        return every, views

    def take(self, chosen: Places) -> RankSteps:
        """The steps at these places, or those for which a mask is true. The calls stay all of them."""
        at: Ints = np.arange(len(self))[chosen]
        if len(at) == len(self) and (np.diff(at, prepend=-1) == 1).all():
            return self
        places = chosen if isinstance(chosen, slice) and chosen.step in (None, 1) else at  # of a slice, views
        entries, edges = entries_of(self.place_edges, places)
        columns: dict[str, Any] = {name: getattr(self, name)[places] for name in COLUMNS}
        for name in _OF_SOME:
            if own := getattr(self, name):
                columns[name] = {i: own[place] for i, place in enumerate(at.tolist()) if place in own}
        segments = self.segments.take(places)
        return replace(self, **columns, segments=segments, places=self.places[entries], place_edges=edges)

    def of_steps(self, numbers: Collection[int]) -> RankSteps:
        """Those of these steps."""
        return self.take(np.isin(self.step, list(numbers)))

    def from_source(self, source: str) -> Bools:
        mask: Bools = self.source == SOURCES.index(source)
        return mask

    def on_clock(self, clock: Callable[[Ints], Ints]) -> RankSteps:
        """The steps with all their times mapped by ``clock``, which must be monotonic."""
        every = self.segments.every
        return replace(
            self,
            begin_ns=clock(self.begin_ns),
            end_ns=clock(self.end_ns),
            segments=self.segments.moved(clock(every.start_ns), clock(every.end_ns)),
            calls=self.calls.on_clock(clock),
        )

    @property
    def dur_ns(self) -> Ints:
        return self.end_ns - self.begin_ns

    @cached_property
    def of_place(self) -> Ints:
        """The step of each of the ``places``."""
        return owners(self.place_edges)

    @property
    def begun(self) -> Bools:
        """Whether each of the ``places`` is a call that starts in its step, or later. A step from the records also
        lists calls that only end in it: those belong to the step before."""
        mask: Bools = self.calls.start_ns[self.places] >= self.begin_ns[self.of_place]
        return mask

    def __len__(self) -> int:
        return len(self.step)

    def _records(self, first: int, last: int) -> Iterator[RankStep]:
        numbers = zip(*(getattr(self, name)[first:last].tolist() for name in NUMBERS), strict=True)
        for at, of_step in enumerate(numbers, first):
            yield RankStep(
                **dict(zip(NUMBERS, of_step, strict=True)),
                source=SOURCES[self.source[at]],
                segments=self.segments[at],
                collectives=Some(self.calls, self.places[self.place_edges[at] : self.place_edges[at + 1]]),
                stalls=self.stalls.get(at, ()),
                outside_operators_ns=self.outside_operators_ns.get(at, {}),
            )

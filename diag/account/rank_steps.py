"""The table of the steps of one rank. A row is a ``RankStep``, which is made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from diag.model.ragged import edges_of
from diag.model.steps import Detail, Pieces, RankStep, Stall
from diag.rundir.columns import Bools, Ints

from .calls import Calls, Some, calls_in

_FLAGS = ("comm_known", "hidden_known", "waits_known")
NUMBERS = (
    "step", "begin_ns", "end_ns", "overlapped_comm_ns", "optimizer_ns", "comm_known", "hidden_known", "pieces",
    "fused_ns", "beneath_ns", "waits_known",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RankSteps:
    """The columns are the fields of ``RankStep``; ``stalls`` and ``outside_operators_ns`` are by the place of the step,
    of those that have any. ``calls``: those in the steps; the calls of step i are ``place_edges[i]`` to
    ``place_edges[i + 1]`` of ``places``."""

    rank: int
    step: Ints
    begin_ns: Ints
    end_ns: Ints
    source: tuple[str, ...]
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
        numbers: dict[str, Any] = {
            name: np.array([getattr(step, name) for step in steps], dtype=np.bool_ if name in _FLAGS else np.int64)
            for name in NUMBERS
        }
        calls, places = calls_in([step.collectives for step in steps])
        return cls(
            rank=steps[0].rank if steps else -1,
            **numbers,
            source=tuple(step.source for step in steps),
            segments=Pieces.of([step.segments for step in steps]),
            calls=calls,
            places=np.concatenate([np.zeros(0, dtype=np.int64), *places]),
            place_edges=edges_of(list(map(len, places))),
            stalls={at: step.stalls for at, step in enumerate(steps) if step.stalls},
            outside_operators_ns={
                at: step.outside_operators_ns for at, step in enumerate(steps) if step.outside_operators_ns
            },
        )

    def take(self, chosen: Bools) -> RankSteps:
        """The steps for which a mask is true."""
        return self if chosen.all() else RankSteps.of(self.rows(chosen))

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

    def shifted(self, delta_ns: int) -> RankSteps:
        """The steps on a clock that is ``delta_ns`` ahead."""
        return self.on_clock(lambda times_ns: times_ns + delta_ns)

    @property
    def dur_ns(self) -> Ints:
        return self.end_ns - self.begin_ns

    def __len__(self) -> int:
        return len(self.step)

    def __iter__(self) -> Iterator[RankStep]:
        return iter(self.rows(np.ones(len(self), dtype=np.bool_)))

    def rows(self, chosen: Bools) -> list[RankStep]:
        """The steps for which a mask is true, as objects."""
        at = np.flatnonzero(chosen)
        edges = zip(self.place_edges[at].tolist(), self.place_edges[at + 1].tolist(), strict=True)
        numbers = zip(*(getattr(self, name)[at].tolist() for name in NUMBERS), strict=True)
        return [
            RankStep(
                rank=self.rank,
                **dict(zip(NUMBERS, of_step, strict=True)),
                source=self.source[place],
                segments=self.segments[place],
                collectives=Some(self.calls, self.places[i:j]),
                stalls=self.stalls.get(place, ()),
                outside_operators_ns=self.outside_operators_ns.get(place, {}),
            )
            for place, of_step, (i, j) in zip(at.tolist(), numbers, edges, strict=True)
        ]

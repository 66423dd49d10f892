"""The account of every step as one table: critical paths, blames and parts of all ranks, one step after the other.

A row is a ``StepAccount``, which is made when it is asked for. Whatever goes through all steps takes the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import force_setattr

from .axes import Axes
from .keys import Keys
from .matched import MatchedCollectives
from .parts import Bools, Ints, PartColumns, PartRows
from .ragged import edges_of, entries_of, owners
from .steps import (
    Blames,
    CriticalPath,
    Division,
    Kind,
    Parts,
    Pieces,
    RankStep,
    Segments,
    by_causes,
)

_Table = TypeVar("_Table", "Paths", Blames, PartColumns)


class StepAccount(Struct, frozen=True):
    """One step across all ranks: its critical path, whose pieces add up to ``dur_ns``, and which ranks were late and
    why.

    ``dur_ns`` runs from the first step begin on the path to the last rank's step end. ``blames`` may be given as any
    sequence of them.
    """

    step: int
    dur_ns: int
    parts: Sequence[Parts]
    path: CriticalPath
    blames: Blames
    usable: bool = True  # False: warm-up, in or next to a profiler window; shown, and left out of the verdict
    note: str = ""
    window: bool = False  # left out only because a profiler recorded it; data that only traces have is read from it
    waited_ns: int = 0  # for ranks that were late where the path met others
    explained_ns: int = 0  # the part of it that the late ranks' activity, or their links, account for
    once_ns: int = 0  # ``waited_ns``, counting once if several ranks were late at one meeting

    def __post_init__(self) -> None:
        force_setattr(self, "blames", Blames.of(self.blames))


class Paths(Struct, frozen=True, eq=False):
    """The stretches of several critical paths, with the columns of ``CriticalPath``. The keys of path i are
    ``key_edges[i]`` to ``key_edges[i + 1]`` of ``keys``; ``collective`` is a place among these."""

    rank: npt.NDArray[np.signedinteger]
    start_ns: Ints
    end_ns: Ints
    kind: npt.NDArray[np.signedinteger]
    detail: npt.NDArray[np.signedinteger]
    collective: npt.NDArray[np.signedinteger]
    edges: Ints
    keys: Keys
    key_edges: Ints

    @classmethod
    def of(cls, paths: Sequence[CriticalPath]) -> Paths:
        columns = {name: np.concatenate([_NONE, *(getattr(path, name) for path in paths)]) for name in PATH_COLUMNS}
        return cls(
            **columns,
            edges=edges_of([len(path.kind) for path in paths]),
            keys=Keys.of([key for path in paths for key in path.keys]),
            key_edges=edges_of([len(path.keys) for path in paths]),
        )

    @classmethod
    def joined(cls, several: Sequence[Paths]) -> Paths:
        columns = {name: np.concatenate([getattr(each, name) for each in several]) for name in PATH_COLUMNS}
        edges = edges_of(np.concatenate([np.diff(each.edges) for each in several]))
        key_edges = edges_of(np.concatenate([np.diff(each.key_edges) for each in several]))
        return cls(**columns, edges=edges, keys=Keys.joined([each.keys for each in several]), key_edges=key_edges)

    def take(self, steps: Ints | slice) -> Paths:
        at, edges = entries_of(self.edges, steps)
        of_keys, key_edges = entries_of(self.key_edges, steps)
        columns = {name: getattr(self, name)[at] for name in PATH_COLUMNS}
        return Paths(**columns, edges=edges, keys=self.keys.take(of_keys), key_edges=key_edges)

    @property
    def pieces(self) -> Pieces:
        return Pieces(Segments(self.start_ns, self.end_ns, self.kind, self.detail), self.edges)

    @property
    def lasted_ns(self) -> Ints:
        """Of each stretch."""
        return self.end_ns - self.start_ns

    @property
    def of_step(self) -> Ints:
        """The place of each stretch's step."""
        return owners(self.edges)

    @property
    def key_places(self) -> Ints:
        """For each stretch, the place of its collective in ``keys``; -1 if it is not a transfer."""
        return np.where(self.collective >= 0, self.collective + self.key_edges[self.of_step], -1)

    def path(self, at: int) -> CriticalPath:
        one = slice(self.edges[at], self.edges[at + 1])
        keys = self.keys.take(slice(self.key_edges[at], self.key_edges[at + 1])).keys()
        columns = {name: getattr(self, name)[one] for name in PATH_COLUMNS}
        return CriticalPath(**columns, keys=tuple(keys))


PATH_COLUMNS = ("rank", "start_ns", "end_ns", "kind", "detail", "collective")
STEP_COLUMNS = ("step", "dur_ns", "usable", "window", "waited_ns", "explained_ns", "once_ns")
_NONE = np.zeros(0, dtype=np.int64)
_FLAGS = ("usable", "window")


@dataclass(frozen=True, eq=False)
class StepAccounts(Sequence[StepAccount]):
    """The columns are the fields of ``StepAccount``. The blames of step i are ``blame_edges[i]`` to
    ``blame_edges[i + 1]`` of ``blames``, in the same way its ``parts``."""

    step: Ints
    dur_ns: Ints
    usable: Bools
    window: Bools
    waited_ns: Ints
    explained_ns: Ints
    once_ns: Ints
    note: tuple[str, ...]
    paths: Paths
    blames: Blames
    blame_edges: Ints
    parts: PartColumns
    part_edges: Ints

    @classmethod
    def of(cls, steps: Sequence[StepAccount]) -> StepAccounts:
        if isinstance(steps, StepAccounts):
            return steps
        columns: dict[str, Any] = {
            name: np.array([getattr(step, name) for step in steps], dtype=np.bool_ if name in _FLAGS else np.int64)
            for name in STEP_COLUMNS
        }
        return cls(
            **columns,
            note=tuple(step.note for step in steps),
            paths=Paths.of([step.path for step in steps]),
            blames=Blames.joined([step.blames for step in steps]),
            blame_edges=edges_of([len(step.blames) for step in steps]),
            parts=PartColumns.of([parts for step in steps for parts in step.parts]),
            part_edges=edges_of([len(step.parts) for step in steps]),
        )

    @classmethod
    def joined(cls, several: Sequence[StepAccounts]) -> StepAccounts:
        """One after the other."""
        if len(several) < 2:
            return several[0] if several else cls.of(())
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in several]) for name in STEP_COLUMNS
        }
        return cls(
            **columns,
            note=tuple(note for each in several for note in each.note),
            paths=Paths.joined([each.paths for each in several]),
            blames=Blames.joined([each.blames for each in several]),
            blame_edges=edges_of(np.concatenate([np.diff(each.blame_edges) for each in several])),
            parts=PartColumns.joined([each.parts for each in several]),
            part_edges=edges_of(np.concatenate([np.diff(each.part_edges) for each in several])),
        )

    def take(self, places: Ints | Bools | slice) -> Self:
        """The steps at these places, or those for which a mask is true. Consecutive ones are views."""
        if not isinstance(places, slice):
            at: Ints = np.flatnonzero(places) if places.dtype == np.bool_ else np.asarray(places, dtype=np.int64)
            consecutive = len(at) > 0 and bool((np.diff(at) == 1).all())
            return self._cut(slice(int(at[0]), int(at[-1]) + 1) if consecutive else at)
        return self._cut(places)

    def _cut(self, places: Ints | slice) -> Self:
        if isinstance(places, slice) and places.indices(len(self)) == (0, len(self), 1):
            return self
        columns = {name: getattr(self, name)[places] for name in STEP_COLUMNS}
        of_blames, blame_edges = entries_of(self.blame_edges, places)
        of_parts, part_edges = entries_of(self.part_edges, places)
        listed = range(len(self))[places] if isinstance(places, slice) else places.tolist()
        return replace(
            self, **columns, note=tuple(self.note[at] for at in listed), paths=self.paths.take(places),
            blames=self.blames.take(of_blames), blame_edges=blame_edges,
            parts=self.parts.take(of_parts), part_edges=part_edges,
        )  # fmt: skip

    def of_numbers(self, numbers: Sequence[int] | frozenset[int] | set[int]) -> Self:
        """The steps of these numbers."""
        return self.take(np.isin(self.step, list(numbers)))

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(self.step.tolist())

    @property
    def of_blame(self) -> Ints:
        """The place of each blame's step."""
        return owners(self.blame_edges)

    @property
    def of_part(self) -> Ints:
        """The place of each part's step."""
        return owners(self.part_edges)

    @property
    def together(self) -> npt.NDArray[np.float64]:
        """By step, the fraction of all blames that was lost: ranks that are late together are waited for at the same
        time."""
        return np.where(self.once_ns != 0, self.once_ns / np.where(self.waited_ns != 0, self.waited_ns, 1), 1.0)

    def spent_by_step(self) -> Ints:
        """Nanoseconds on the critical paths by kind and detail, [steps, kinds, details]."""
        return by_causes(self.paths.pieces)

    def spent(self) -> Ints:
        """The same of all steps together, [kinds, details]."""
        total: Ints = self.spent_by_step().sum(axis=0)
        return total

    def __len__(self) -> int:
        return len(self.step)

    def __iter__(self) -> Iterator[StepAccount]:
        return map(self._one, range(len(self)))

    @overload
    def __getitem__(self, place: int) -> StepAccount: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> StepAccount | Self:
        return self.take(place) if isinstance(place, slice) else self._one(range(len(self))[place])

    def _one(self, at: int) -> StepAccount:
        values = {name: getattr(self, name)[at].item() for name in STEP_COLUMNS}
        return StepAccount(
            **values,
            note=self.note[at],
            path=self.paths.path(at),
            blames=self.blames[self.blame_edges[at] : self.blame_edges[at + 1]],
            parts=PartRows(self.parts, range(int(self.part_edges[at]), int(self.part_edges[at + 1]))),
        )


class Attribution(Struct, frozen=True, dict=True):
    """Every step of the run accounted for, and the data of the account. ``steps`` and ``collectives`` may be given as
    any sequence of them."""

    steps: StepAccounts
    ranks: tuple[int, ...]
    clock_uncertainty_ns: int | None
    aligned: bool  # whether waiting could be separated from transfer
    comm_known: bool
    collectives: MatchedCollectives
    untied: tuple[int, ...] = ()  # ranks that no collective ties to the common clock of the others
    rank_steps: Sequence[RankStep] = ()  # the steps behind the accounts, on the common clock if there is one
    clock_drift: float = 0.0  # the largest difference between the rates of two clocks that was corrected; 1e-6 is 1 ppm
    axes: Axes = field(default_factory=Axes)  # axes of the device mesh
    division: Division = Division.RECORDED
    step_marker: str = ""  # what repeats, if the steps are inferred
    idle_known: bool = True  # False: part of what counts as compute was idle time of a device, of unknown length
    # Of a long run, the steps that ``rank_steps`` and ``collectives`` have; None: all.
    detailed: frozenset[int] | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "steps", StepAccounts.of(self.steps))
        force_setattr(self, "collectives", MatchedCollectives.of(self.collectives))

    @property
    def undivided(self) -> bool:
        return self.division == Division.UNDIVIDED

    @property
    def by_events(self) -> bool:
        """Whether the steps are on devices' clocks, without a profiler window: of all ranks, or of none."""
        return bool(self.steps.parts.from_source("events").any())

    @cached_property
    def usable(self) -> StepAccounts:
        return self.steps.take(self.steps.usable)

    @property
    def counted(self) -> StepAccounts:
        """The steps that the verdict rests on: the usable ones, or all where none is usable."""
        return self.usable or self.steps

    @cached_property
    def traced(self) -> StepAccounts:
        """The steps for data that only traces have (operators, kernels, modules): those of profiler windows if they are
        left out, else the counted steps. Never for a mean that is compared with the step time."""
        return self.steps.take(self.steps.window) or self.counted

    @property
    def in_windows(self) -> bool:
        """Whether a profiler recorded every counted step, although the run has its own records: there are no others to
        count."""
        counted = self.counted
        recorded = self.division == Division.RECORDED and bool(counted)
        return recorded and bool(counted.parts.from_source("trace").all())

    @property
    def explained_wait(self) -> float | None:
        """Fraction of the waiting for late ranks in the counted steps with a known reason; None: no rank waited."""
        counted = self.counted
        waited = int(counted.waited_ns.sum())
        return int(counted.explained_ns.sum()) / waited if waited else None


def spent_on(pieces: Paths, kind: Kind) -> Ints:
    """Nanoseconds by rank of the stretches of one kind: [ranks], from rank 0 on."""
    chosen = pieces.kind == kind
    sums = np.zeros(int(pieces.rank.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(sums, pieces.rank[chosen], pieces.lasted_ns[chosen])
    return sums


Nanoseconds = npt.NDArray[np.float64]


class Idle(Struct, frozen=True, eq=False):
    """Nanoseconds of idle time of each rank's device in each step: [ranks, steps]. ``late``: its host had not launched
    all of the next work; ``besides``: for an unknown reason."""

    late: Nanoseconds
    besides: Nanoseconds


class HostsWork(Struct, frozen=True, eq=False):
    """Nanoseconds in each step, of the rank whose host works longest: [steps]. ``spent``: it loads, launches and saves;
    ``hidden``: what it waits for its loader while its device still works."""

    spent: Nanoseconds
    hidden: Nanoseconds

"""A rank's steps joined into one line of time, with sums over any window in logarithmic time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diag.collectors.records import SEND
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep

from .intervals import Intervals, Times

_DETAILS = len(Detail)
Mask = npt.NDArray[np.bool_]
Activity = npt.NDArray[np.int64]  # nanoseconds by label


def label_of(kind: int, detail: int) -> int:
    return kind * _DETAILS + detail


def of_label(label: int) -> tuple[Kind, Detail]:
    return Kind(label // _DETAILS), Detail(label % _DETAILS)


# Small integers: a trace of five million events has a million pieces, and a path has them all.
def labels_of(kinds: npt.NDArray[np.integer], details: npt.NDArray[np.integer]) -> npt.NDArray[np.int16]:
    return kinds.astype(np.int16) * np.int16(_DETAILS) + details.astype(np.int16)


def kinds_of(labels: npt.NDArray[np.int16]) -> npt.NDArray[np.int8]:
    return (labels // _DETAILS).astype(np.int8)


def details_of(labels: npt.NDArray[np.int16]) -> npt.NDArray[np.int8]:
    return (labels % _DETAILS).astype(np.int8)


LABELS = len(Kind) * _DETAILS


class Arrivals(NamedTuple):
    """Of some calls of a rank, in their order.

    ``start_ns``, ``end_ns``: the calls' own. ``ready_ns``: when it had nothing left to do but wait for the call's end:
    when it called, or when what it computed beside the transfer was done. When it called, too, if it was busy to the
    end. What is computed while the thread waits is the collective's own work: gloo copies. ``idle_ns``: the same, or
    earlier, where the rank already stood still for collectives before. ``still``: whether it has nothing to do but wait
    when the call ends.
    """

    start_ns: Times
    end_ns: Times
    ready_ns: Times
    idle_ns: Times
    still: Mask


class Timeline:
    """All segments of one rank on the common clock, in order. Time between steps belongs to nothing."""

    def __init__(self, steps: Sequence[RankStep]) -> None:
        ordered = sorted(steps, key=lambda step: step.begin_ns)
        segments = [step.segments for step in ordered]
        self.start_ns = np.concatenate([s.start_ns for s in segments])
        self.end_ns = np.concatenate([s.end_ns for s in segments])
        kind = np.concatenate([s.kind for s in segments])
        self.label = labels_of(kind, np.concatenate([s.detail for s in segments]))
        self._communicating: Mask = kind == Kind.COMM
        self._communication = np.flatnonzero(self._communicating)
        calls = sorted({call.key: call for step in ordered for call in step.collectives}.values(), key=_by_end)
        self.calls: list[CollectiveCall] = calls
        self._call_ends = np.array([call.end_ns for call in calls], dtype=np.int64)

    @cached_property
    def _sums(self) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The labels in use; of each segment the place of its own among them; and, of shape (segments, labels in use),
        the nanoseconds of each before each segment. A rank that meets no other needs none of it."""
        used, own = np.unique(self.label, return_inverse=True)
        spent = np.zeros((len(own), len(used)), dtype=np.int64)
        spent[np.arange(len(own)), own] = self.end_ns - self.start_ns
        return used, own, np.cumsum(spent, axis=0) - spent

    def segment_before(self, time_ns: int) -> int | None:
        """Index of the segment that the moment just before ``time_ns`` lies in; None between or before the steps."""
        index = int(np.searchsorted(self.start_ns, time_ns, side="left")) - 1
        return index if index >= 0 and self.end_ns[index] >= time_ns else None

    def segment_after(self, time_ns: int) -> int:
        """Index of the segment that the moment just after ``time_ns`` lies in, else of the next one."""
        return int(np.searchsorted(self.end_ns, time_ns, side="right"))

    def last_communication(self, index: int, begin_ns: int) -> int | None:
        """The last segment up to ``index`` that is communication and reaches beyond ``begin_ns``."""
        at = int(np.searchsorted(self._communication, index, side="right")) - 1
        if at < 0 or self.end_ns[self._communication[at]] <= begin_ns:
            return None
        return int(self._communication[at])

    def arrivals(self, calls: Sequence[CollectiveCall]) -> Arrivals:
        """When the rank came to each call: one pass over all of them."""
        start, end = (np.array([getattr(c, key) for c in calls], dtype=np.int64) for key in ("start_ns", "end_ns"))
        waited = np.array([call.waited_ns is not None for call in calls], dtype=np.bool_)
        since, until = np.array([call.waited_ns or (0, 0) for call in calls], dtype=np.int64).reshape(-1, 2).T
        busy_until = np.where(waited, since, end)
        at, inside = self._segments_before(busy_until)
        standing = inside & self._communicating[at]
        idle = np.where(standing, self.start_ns[self._stretches[at]], np.where(waited, busy_until, start))
        at, inside = self._segments_before(end)
        still = np.where(waited, (since < end) & (end <= until), ~inside | self._communicating[at])
        # A sender is ready when it sends: it may stand still for that later, but the receiver need not wait until then.
        sent = np.array([call.op == SEND for call in calls], dtype=np.bool_)
        ready = np.where(sent, start, np.maximum(start, np.where(waited, since, idle)))
        return Arrivals(start, end, ready, np.where(sent, start, idle), still & ~sent)

    def _segments_before(self, times: Times) -> tuple[Times, Mask]:
        """Indices of the segments that the moments just before lie in, and whether there is one."""
        at = np.searchsorted(self.start_ns, times, side="left") - 1
        inside = at >= 0
        at = np.maximum(at, 0)
        return at, inside & (self.end_ns[at] >= times)

    @cached_property
    def _stretches(self) -> npt.NDArray[np.int64]:
        """Of each segment the first one of the unbroken communication that it belongs to."""
        breaks = np.ones(len(self.start_ns), dtype=np.bool_)
        together = self._communicating[1:] & self._communicating[:-1]
        breaks[1:] = ~(together & (self.end_ns[:-1] == self.start_ns[1:]))
        return np.maximum.accumulate(np.where(breaks, np.arange(len(breaks)), 0))

    def activity(self, start_ns: int, end_ns: int) -> Activity:
        """What the rank did in a window, nanoseconds by label."""
        window = np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
        found: Activity = self.activities(*window)[0]
        return found

    def activities(self, start_ns: Times, end_ns: Times) -> Activity:
        """The same of many windows: shape (windows, labels)."""
        totals = np.zeros((len(start_ns), LABELS), dtype=np.int64)
        totals[:, self._sums[0]] = self._until(np.maximum(start_ns, end_ns)) - self._until(start_ns)
        return totals

    def _until(self, times_ns: Times) -> npt.NDArray[np.int64]:
        """Nanoseconds before each moment, by the labels in use."""
        _, own, before = self._sums
        index = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        at = np.maximum(index, 0)
        done: npt.NDArray[np.int64] = before[at]
        done[np.arange(len(at)), own[at]] += np.minimum(times_ns, self.end_ns[at]) - self.start_ns[at]
        done[index < 0] = 0
        return done

    @property
    def labels(self) -> npt.NDArray[np.int16]:
        """Those in use, sorted."""
        return self._sums[0]

    @property
    def standing(self) -> Intervals:
        """When the rank did nothing but wait for collectives."""
        return np.stack((self.start_ns[self._communication], self.end_ns[self._communication]), axis=1)

    def releasing_call(self, start_ns: int, end_ns: int) -> CollectiveCall | None:
        """The collective whose end freed the rank at ``end_ns``, among those open in the window."""
        first = int(np.searchsorted(self._call_ends, start_ns, side="right"))
        best: CollectiveCall | None = None
        for number in range(first, len(self.calls)):
            call = self.calls[number]
            if call.start_ns < end_ns and (best is None or abs(call.end_ns - end_ns) < abs(best.end_ns - end_ns)):
                best = call
            if call.end_ns > end_ns and best is not None:
                break
        return best


def _by_end(call: CollectiveCall) -> tuple[int, int]:
    return call.end_ns, call.start_ns

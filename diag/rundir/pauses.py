"""The longest pauses that a training has made, by its records: evaluations, checkpoints, and times between steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from msgspec import Struct

from diag.collectors.layout import RankLayout
from diag.collectors.records import CHECKPOINT, EVALUATION, CheckpointRecord
from diag.rundir.policy import SILENCE

from .lines import each_piece, read_last_lines


class Pause(Struct, frozen=True):
    """The longest times on record, ns; 0 without any. ``period_ns``: between the ends of two steps, or the first
    step."""

    period_ns: int = 0
    checkpoint_ns: int = 0
    evaluation_ns: int = 0

    def of(self, phase: str | None) -> int:
        """The longest one in a phase; an evaluation between steps is known by their ends."""
        if phase == CHECKPOINT:
            return self.checkpoint_ns
        return self.evaluation_ns if phase == EVALUATION else 0


class _Phases(Struct):
    step: int
    begin_ns: int
    end_ns: int
    phases: list[tuple[str, int, int]] = []


_LOCK = Lock()
_PAUSES: OrderedDict[Path, tuple[tuple[int, int], Pause]] = OrderedDict()


def longest(ranks: Sequence[RankLayout]) -> Pause:
    """Of several ranks: one saves, another evaluates. Kept while their files do not change: a stuck run writes none,
    and is looked at every second."""
    pauses = [_longest_of(rank) for rank in ranks]
    return Pause(
        max((pause.period_ns for pause in pauses), default=0),
        max((pause.checkpoint_ns for pause in pauses), default=0),
        max((pause.evaluation_ns for pause in pauses), default=0),
    )


def _longest_of(files: RankLayout) -> Pause:
    try:
        about = files.steps.stat()
    except OSError:
        return Pause()
    stamp = about.st_mtime_ns, about.st_size
    with _LOCK:
        known = _PAUSES.get(files.folder)
    if known is not None and known[0] == stamp:
        return known[1]
    pause = _measured(files, about.st_size)
    with _LOCK:
        _PAUSES[files.folder] = stamp, pause
        while len(_PAUSES) > SILENCE.most_pauses_kept:
            _PAUSES.popitem(last=False)
    return pause


def _measured(files: RankLayout, size: int) -> Pause:
    period = checkpoint = evaluation = 0
    last: int | None = None

    def take(steps: list[_Phases]) -> None:
        nonlocal period, checkpoint, evaluation, last
        for step in steps:
            # A gap in what is read, and another process's clock, are no period.
            begin_ns = last if last is not None and last <= step.begin_ns else step.begin_ns
            period, last = max(period, step.end_ns - begin_ns), step.end_ns
            for name, start_ns, end_ns in step.phases:
                if name == CHECKPOINT:
                    checkpoint = max(checkpoint, end_ns - start_ns)
                elif name == EVALUATION:
                    evaluation = max(evaluation, end_ns - start_ns)

    for span in _spans(size):
        last = None
        each_piece(files.steps, _Phases, take, span=span)
    saved, _ = read_last_lines(files.checkpoints, CheckpointRecord, SILENCE.pauses_head_bytes)
    checkpoint = max([checkpoint, *(record.blocking_ns for record in saved)])
    return Pause(period, checkpoint, evaluation)


def _spans(size: int) -> Iterator[tuple[int, int]]:
    """The head of a file of steps, which compile, and its end."""
    head, tail = SILENCE.pauses_head_bytes, SILENCE.pauses_tail_bytes
    if size <= head + tail:
        yield 0, size
    else:
        yield 0, head
        yield size - tail, size

"""Asks ranks of a running job for a profiler window at the same steps, or for a snapshot of their device's allocator,
and waits for what they say.

The request is a file in the run directory. Each rank looks for one about once a second, in the thread that writes its
heartbeat; so the first step is chosen far enough ahead for all of them to have read it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import ceil
from pathlib import Path

from msgspec import Struct

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import ASKED, RankLayout, RunLayout, is_regular
from diag.collectors.manifest import update_manifest
from diag.collectors.reading import natural
from diag.collectors.records import TRACE_PENDING, TRACE_RECORDED, Heartbeat, Manifest, TraceAsked
from diag.collectors.settings import CollectorSettings
from diag.errors import DiagError, readable
from diag.rundir.lines import SILENT_S, last_steps, read_heartbeat, read_manifest, read_trace_asked
from diag.words.formatting import rank_ranges

from .workers import Worker

_MARGIN_S = 1.0  # beyond two intervals of the ranks' threads: one until they look, one that a heartbeat may be old
_LOOKED_AT = 64  # ranks, to see how far the job is: they are in step
_FAST = 0.25  # quantile of the steps' durations: that the steps ahead may be faster than the last ones on the whole
_PATIENCE_S = 120.0  # without a step of any rank, before nobody is waited for any longer

Beats = Mapping[int, Heartbeat]


class Answer(Struct, frozen=True):
    """What became of a request on one rank: the file, or why there is none. Neither: it is not known yet."""

    rank: int
    path: Path | None = None
    why_not: str = ""

    @property
    def open(self) -> bool:
        return self.path is None and not self.why_not


def ask(
    layout: RunLayout,
    count: int,
    ranks: Sequence[int] | None = None,
    why: str = "",
    ahead_s: float | None = None,
    now: Callable[[], float] = time.time,
) -> TraceAsked:
    """Leaves a request for ``count`` steps that these ranks, or all, will have read in time. ``ahead_s``: how far
    ahead the window begins, where two of the ranks' intervals and a second are not enough (storage that shows new
    files late). DiagError where it would come to nothing."""
    manifest, _ = read_manifest(layout)
    settings = _settings(manifest)
    files, beats = _reachable(layout, ranks, manifest, now())
    at = max(beat.step for beat in beats.values())
    before = _answered(layout, at)
    step_s = _step_s([files[rank] for rank in beats])
    if step_s is None:
        raise DiagError(
            "no rank has finished a step yet", path=layout.root, hint="ask again when the training is under way"
        )
    ahead = ahead_s if ahead_s is not None else 2 * settings.interval_s + _MARGIN_S
    aged = max(0.0, now() - min(beat.unix_ns for beat in beats.values()) / 1e9)
    first = at + ceil((ahead + min(aged, SILENT_S)) / step_s) + settings.trace_warmup + 1
    asked = TraceAsked(
        number=before.number + 1 if before is not None else 1,
        first_step=first,
        count=count,
        ranks=sorted(files) if ranks is not None else None,
        why=why,
        unix_ns=int(now() * 1e9),
    )
    try:
        replace_file(layout.trace_asked, encode(asked))
        update_manifest(
            layout, windows=[asdict(one) for one in (*(manifest.windows if manifest is not None else ()), asked)]
        )
    except OSError as error:
        raise DiagError(f"the request cannot be written: {error.strerror}", path=layout.root) from error
    return asked


def ask_for_memory(
    layout: RunLayout, ranks: Sequence[int] | None = None, why: str = "", now: Callable[[], float] = time.time
) -> TraceAsked:
    """Leaves a request for a memory snapshot of these ranks, or all, which each writes when it reads of it. DiagError
    where it would come to nothing."""
    files, beats = _reachable(layout, ranks, read_manifest(layout)[0], now())
    at = max(0, *(beat.step for beat in beats.values()))
    before = _answered(layout, at)
    asked = TraceAsked(
        number=before.number + 1 if before is not None else 1,
        first_step=at,
        count=0,
        ranks=sorted(files) if ranks is not None else None,
        why=why,
        unix_ns=int(now() * 1e9),
        memory=True,
    )
    try:
        replace_file(layout.trace_asked, encode(asked))
    except OSError as error:
        raise DiagError(f"the request cannot be written: {error.strerror}", path=layout.root) from error
    return asked


def _reachable(
    layout: RunLayout, ranks: Sequence[int] | None, manifest: Manifest | None, now_s: float
) -> tuple[Mapping[int, RankLayout], Beats]:
    """The ranks that are asked, which have room for an answer, and the heartbeats of those that train."""
    with readable(layout.ranks_folder):
        layout.ranks_folder.exists()  # raises where that cannot be seen
        found = layout.ranks()
    files = _chosen(layout, found, ranks)
    beats = _alive(layout, files, manifest, now_s)
    _check_room(files, _settings(manifest).byte_budget)
    return files, beats


def _answered(layout: RunLayout, at: int) -> TraceAsked | None:
    """The last request. DiagError where it is still under way, by the heartbeats: they are up to a second old, so the
    ranks may have delivered by then."""
    before, _ = read_trace_asked(layout)
    if before is None or not any(answer.open for answer in answers(layout, before)):
        return before
    if before.first_step + before.count <= at and not before.memory:
        return before
    last = before.first_step + before.count - 1
    what = "a memory snapshot" if before.memory else f"a window of steps {before.first_step} to {last}"
    raise DiagError(
        f"{what} has been asked for already; the job is at step {at}",
        path=layout.root,
        hint="ask again when it is over",
    )


def answers(layout: RunLayout, asked: TraceAsked) -> list[Answer]:
    """What the ranks that were asked say by now, in order of rank."""
    ended = _is_over(read_manifest(layout)[0])
    return [_answer(rank, files, asked, ended) for rank, files in _asked_ranks(layout, asked).items()]


def wait(
    layout: RunLayout,
    asked: TraceAsked,
    progress: Callable[[int, int, str], None] | None = None,
    interval_s: float = 0.5,
    patience_s: float = _PATIENCE_S,
) -> list[Answer]:
    """The answers, when all ranks have one, or when no rank has moved for so long."""
    reached, since = -1, time.monotonic()
    while True:
        looked = time.monotonic()
        found = answers(layout, asked)
        waiting = sum(answer.open for answer in found)
        step = max((beat.step for beat in _beats(_some(_asked_ranks(layout, asked))).values()), default=-1)
        if progress is not None:
            progress(
                len(found) - waiting, len(found), f"ranks; the job is at step {step}, asked from {asked.first_step}"
            )
        if not waiting:
            return found
        if step > reached:
            reached, since = step, time.monotonic()
        if time.monotonic() - since > patience_s:
            reason = f"has not answered, and no rank has begun a step for {patience_s:.0f} s"
            return [Answer(a.rank, why_not=reason) if a.open else a for a in found]
        time.sleep(max(interval_s, time.monotonic() - looked))  # of very many ranks a look takes seconds


def _chosen(
    layout: RunLayout, found: Mapping[int, RankLayout], ranks: Sequence[int] | None
) -> Mapping[int, RankLayout]:
    if not found:
        raise DiagError(
            "no run of diag is here, or no rank of it has started",
            path=layout.root,
            hint="give the run directory of a job that was started with `diag run`, or whose ranks have a Collector",
        )
    if ranks is None:
        return found
    if unknown := sorted(set(ranks) - set(found)):
        raise DiagError(
            f"the run has no {rank_ranges(unknown)}: {rank_ranges(sorted(found))} are there", path=layout.root
        )
    return {rank: found[rank] for rank in sorted(set(ranks))}


def _alive(layout: RunLayout, files: Mapping[int, RankLayout], manifest: Manifest | None, now_s: float) -> Beats:
    """The heartbeats of ranks that are training; DiagError where none is."""
    if _is_over(manifest):
        raise DiagError("the run is over", path=layout.root, hint="`diag run --trace` records a window on a schedule")
    beats = _beats(_some(files))
    if not beats:
        raise DiagError(
            "the ranks have no collectors: nothing would see the request",
            path=layout.root,
            hint="start the training without --no-collect",
        )
    ages = {rank: now_s - _seen_s(files[rank].heartbeat, beat) for rank, beat in beats.items()}
    going = {rank: beat for rank, beat in beats.items() if not beat.done and ages[rank] < SILENT_S}
    if going:
        return going
    if all(beat.done for beat in beats.values()):
        raise DiagError("the training is over", path=layout.root)
    raise DiagError(
        f"the job is not reachable: no sign of it for {min(ages.values()):.0f} s",
        path=layout.root,
        hint="was it killed, or is this another machine's copy of its folder?",
    )


def _seen_s(path: Path, beat: Heartbeat) -> float:
    """When a heartbeat was written, by the later of two clocks: the rank's, and that of the storage."""
    try:
        return max(beat.unix_ns / 1e9, path.stat().st_mtime)
    except OSError:
        return beat.unix_ns / 1e9


def _check_room(files: Mapping[int, RankLayout], byte_budget: int) -> None:
    full = [rank for rank, own in _some(files).items() if _written(own.folder) >= byte_budget]
    if full:
        raise DiagError(
            f"{rank_ranges(full)} may write nothing more: the budget of {byte_budget / 1e6:,.0f} MB a rank is used up",
            path=files[full[0]].folder,
            hint="start the training with a larger --byte-budget-mb",
        )


def _written(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except OSError:
        return 0


def _step_s(files: Iterable[RankLayout]) -> float | None:
    """Seconds from the begin of a step to that of the next, of steps that are rather fast."""
    found: list[float] = []
    for own in list(files)[:8]:
        begins = [step.begin_ns for step in last_steps(own.steps)]
        found.extend((after - before) / 1e9 for before, after in pairwise(begins))
    positive = sorted(seconds for seconds in found if seconds > 0)
    return positive[int(_FAST * len(positive))] if positive else None


def _is_over(manifest: Manifest | None) -> bool:
    return manifest is not None and manifest.exit_code is not None


def _settings(manifest: Manifest | None) -> CollectorSettings:
    recorded = manifest.collector.get("settings", {}) if manifest is not None else {}
    known = {key: value for key, value in recorded.items() if key in CollectorSettings.__dataclass_fields__}
    return CollectorSettings(**known)


def _asked_ranks(layout: RunLayout, asked: TraceAsked) -> dict[int, RankLayout]:
    found = layout.ranks()
    return found if asked.ranks is None else {rank: layout.rank(rank) for rank in asked.ranks}


def _some(files: Mapping[int, RankLayout]) -> Mapping[int, RankLayout]:
    """Few of many ranks, from all over the job."""
    if len(files) <= _LOOKED_AT:
        return files
    ranks = sorted(files)
    return {rank: files[rank] for rank in ranks[:: -(-len(ranks) // _LOOKED_AT)]}


def _beats(files: Mapping[int, RankLayout]) -> dict[int, Heartbeat]:
    read = ((rank, read_heartbeat(own)[0]) for rank, own in files.items())
    return {rank: beat for rank, beat in read if beat is not None}


def _answer(rank: int, files: RankLayout, asked: TraceAsked, ended: bool) -> Answer:
    beat, _ = read_heartbeat(files)
    path = _newest_snapshot(files, asked) if asked.memory else files.trace(asked.first_step)
    told = beat.trace_answer if beat is not None and beat.trace_number == asked.number else TRACE_PENDING
    if told == TRACE_RECORDED or (told == TRACE_PENDING and is_regular(path)):
        return Answer(rank, path)
    if told != TRACE_PENDING:
        return Answer(rank, why_not=told)
    if ended or (beat is not None and (beat.done or beat.failed_in)):
        return Answer(rank, why_not="the training ended before")
    return Answer(rank)


def _newest_snapshot(files: RankLayout, asked: TraceAsked) -> Path:
    """The snapshot that was written for the request, as far as there is one: its step is a later one, or the same."""
    earliest = files.memory_snapshot(ASKED, asked.first_step)
    asked_for = [path for path in files.memory_snapshots() if path.name.startswith(f"memory-{ASKED}-")]
    return next((path for path in asked_for if natural(path.name) >= natural(earliest.name)), earliest)


# -- asked for by the launcher -----------------------------------------------------------------------------------------
#
# Asks for a profiler window by itself when the verdict over all ranks turns bad: a thread of the launcher.
#
# It rests on the ranks' summaries of their newest steps alone, so it costs the training nothing, and the launcher a
# moment every fifty steps.

INTERVAL_S = 2.0
STEPS = 3  # of a window
_STEPS_SEEN = 50  # the newest
_SURE = 0.5  # the least confidence: what the phases say at most, where collectives are not known
_MANY = 512  # ranks: from there on a look takes seconds
_INTERVAL_OF_MANY_S = 60.0
_CULPRITS, _OTHERS = 4, 4  # ranks that are recorded of a large job: without others nothing is slow
_ALL = 16  # ranks of a job that is recorded whole

State = tuple[str, tuple[int, ...]]  # cause, culprits


class AutoTrace:
    """Watches a run from ``start`` to ``stop``. Where a scheduled window shows what the run is like from its begin,
    only a change asks for another. ``workers``: of this launcher; of those of several nodes, that of rank 0 is the
    one."""

    def __init__(
        self,
        layout: RunLayout,
        settings: CollectorSettings,
        say: Callable[[str], None],
        workers: Callable[[], Sequence[Worker]],
    ) -> None:
        self._layout = layout
        self._left = settings.auto_traces
        self._traced = settings.trace
        self._say = say
        self._workers = workers
        self._size = 0  # of the first rank's summary
        self._seen = -1  # the last step that was looked at
        self._known: set[State] = set()  # what a window has been recorded of
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diag-auto-trace", daemon=True)

    def start(self) -> None:
        if self._left > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> TraceAsked | None:
        """One round: the request, where something was asked for."""
        if self._left <= 0 or not self._grown() or not self._is_first():
            return None
        from diag.model.steps import Bottleneck, Severity  # numpy and more: not before the first steps are summed up
        from diag.summaries import open_summaries

        try:
            result = open_summaries(self._layout.root, most_steps=_STEPS_SEEN)
        except DiagError:
            return None  # one rank's, so far
        newest = result.attribution.steps[-1].step
        if newest <= self._seen:
            return None
        first, self._seen = self._seen < 0, newest
        verdict = result.verdict
        bad = verdict.severity != Severity.HEALTHY and verdict.bottleneck != Bottleneck.UNDETERMINED
        state = (verdict.cause, tuple(sorted(verdict.culprit_ranks)))
        if not bad or verdict.confidence < _SURE or state in self._known:
            return None
        if first and self._traced:
            self._known.add(state)
            return None
        why = f"automatic: {verdict.headline}"
        try:
            asked = ask(self._layout, STEPS, ranks_to_record(result.attribution.ranks, verdict.culprit_ranks), why)
        except (DiagError, OSError):
            return None  # another window is under way, the run is ending, or no disk is free: the next round sees
        self._known.add(state)
        self._left -= 1
        last = asked.first_step + asked.count - 1
        self._say(f"{verdict.headline} A profiler window of steps {asked.first_step} to {last} is being recorded.")
        return asked

    def _grown(self) -> bool:
        """Whether the first rank has written another line."""
        first = next(iter(self._layout.ranks().values()), None)
        try:
            size = first.summary.stat().st_size if first is not None else 0
        except OSError:
            return False
        grown, self._size = size > self._size, size
        return grown

    def _is_first(self) -> bool:
        return any(worker.rank == 0 for worker in self._workers())

    def _run(self) -> None:
        interval = INTERVAL_S
        while not self._stopped.wait(interval) and self._left > 0:
            ranks = len(self._layout.ranks())
            if ranks > _MANY:
                interval = _INTERVAL_OF_MANY_S
            if ranks <= 1:
                continue
            try:
                self.look()
            except Exception as error:  # analysing what is half written must not show in the training's output
                reason = f"{type(error).__name__}: {error}"
                self._say(f"No more profiler windows are asked for by themselves ({reason}); diag trace asks for one.")
                return


def ranks_to_record(ranks: Sequence[int], culprits: Sequence[int]) -> list[int] | None:
    """All of a small job (None); of a large one the culprits, and some others from all over it to hold them against."""
    if len(ranks) <= _ALL:
        return None
    named = list(culprits[:_CULPRITS])
    rest = [rank for rank in ranks if rank not in culprits] or list(ranks)
    return sorted({*named, *rest[:: max(1, len(rest) // _OTHERS)][:_OTHERS]})

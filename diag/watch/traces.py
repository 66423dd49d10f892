"""Requests from ranks of a running job a profiler window at the same steps, or a snapshot of their device's allocator,
and waits for their answers.

The request is a file in the run directory. Each rank looks for one about once a second, in the thread that writes its
heartbeat; so the first step is chosen far enough ahead for all of them to have read the request.
"""

from __future__ import annotations

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
from diag.rundir.delays import delay_ns
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import last_steps, read_heartbeat, read_identity, read_manifest, read_trace_asked
from diag.rundir.policy import SILENCE
from diag.rundir.runs import state_of
from diag.watch.policy import WATCHING
from diag.words.formatting import elapsed, rank_ranges

from .workers import Worker

Beats = Mapping[int, Heartbeat]


class Answer(Struct, frozen=True):
    """One rank's answer to a request: the file, or why there is none; neither before the answer is known."""

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
    """Writes a request for a window of ``count`` steps, far enough ahead for these ranks, or all, to read it in time.
    ``ahead_s``: how far ahead the window begins, by default two of the ranks' intervals and a second; give more for
    storage that shows new files late. DiagError if the request cannot succeed."""
    manifest, _ = read_manifest(layout)
    settings = _settings(manifest)
    files, beats = _reachable(layout, ranks, manifest, now())
    current_step = max(beat.step for beat in beats.values())
    before = _answered(layout, current_step)
    step_s = _step_s([files[rank] for rank in beats])
    if step_s is None:
        raise DiagError("no rank has finished a step yet", path=layout.root, hint="retry when the training is running")
    late_s = delay_ns(layout) / 1e9
    ahead = ahead_s if ahead_s is not None else 2 * settings.interval_s + WATCHING.margin_s + late_s
    age_s = max(0.0, now() - min(beat.unix_ns for beat in beats.values()) / 1e9)
    first = current_step + ceil((ahead + min(age_s, SILENCE.silent_s + late_s)) / step_s) + settings.trace_warmup + 1
    trace_request = TraceAsked(
        number=before.number + 1 if before is not None else 1,
        first_step=first,
        count=count,
        ranks=sorted(files) if ranks is not None else None,
        why=why,
        unix_ns=int(now() * 1e9),
    )
    try:
        replace_file(layout.trace_asked, encode(trace_request))
        update_manifest(
            layout,
            windows=[asdict(window) for window in (*(manifest.windows if manifest is not None else ()), trace_request)],
        )
    except OSError as error:
        raise DiagError(f"the request cannot be written: {error.strerror}", path=layout.root) from error
    return trace_request


def ask_for_memory(
    layout: RunLayout, ranks: Sequence[int] | None = None, why: str = "", now: Callable[[], float] = time.time
) -> TraceAsked:
    """Writes a request for a memory snapshot of these ranks, or all; each writes it when it reads the request.
    DiagError if the request cannot succeed."""
    files, beats = _reachable(layout, ranks, read_manifest(layout)[0], now(), memory=True)
    current_step = max(0, *(beat.step for beat in beats.values()))
    before = _answered(layout, current_step)
    trace_request = TraceAsked(
        number=before.number + 1 if before is not None else 1,
        first_step=current_step,
        count=0,
        ranks=sorted(files) if ranks is not None else None,
        why=why,
        unix_ns=int(now() * 1e9),
        memory=True,
    )
    try:
        replace_file(layout.trace_asked, encode(trace_request))
    except OSError as error:
        raise DiagError(f"the request cannot be written: {error.strerror}", path=layout.root) from error
    return trace_request


def _reachable(
    layout: RunLayout, ranks: Sequence[int] | None, manifest: Manifest | None, now_s: float, memory: bool = False
) -> tuple[Mapping[int, RankLayout], Beats]:
    """The requested ranks, and the heartbeats of those that train."""
    with readable(layout.ranks_folder):
        layout.ranks_folder.exists()  # raises without permission
        rank_files = job_ranks(layout).files
    files = _chosen(layout, rank_files, ranks)
    return files, _alive(layout, files, manifest, now_s, memory)


def _answered(layout: RunLayout, current_step: int) -> TraceAsked | None:
    """The last request. DiagError if it is still under way by the heartbeats, which are up to a second old, so the
    ranks may have answered since. One from before this attempt, which packers hand on, is of other steps."""
    before, _ = read_trace_asked(layout)
    if before is None or not any(answer.open for answer in answers(layout, before)):
        return before
    if 0 < before.unix_ns < _began_ns(layout):
        return before
    if before.first_step + before.count <= current_step and not before.memory:
        return before
    last = before.first_step + before.count - 1
    request_text = "a memory snapshot" if before.memory else f"a window of steps {before.first_step} to {last}"
    raise DiagError(
        f"{request_text} has already been requested; the job is at step {current_step}",
        path=layout.root,
        hint="retry when it is over",
    )


def _began_ns(layout: RunLayout) -> int:
    """When the first of the ranks began to record, Unix time; 0 where that is not known."""
    identities = (read_identity(files)[0] for files in layout.ranks().values())
    return min((identity.unix_ns for identity in identities if identity is not None), default=0)


def answers(layout: RunLayout, trace_request: TraceAsked) -> list[Answer]:
    """The current answers of the requested ranks, in order of rank."""
    ended = _is_over(read_manifest(layout)[0])
    return [
        _answer(rank, files, trace_request, ended) for rank, files in _requested_ranks(layout, trace_request).items()
    ]


def wait(
    layout: RunLayout,
    trace_request: TraceAsked,
    progress: Callable[[int, int, str], None] | None = None,
    interval_s: float = 0.5,
    patience_s: float = WATCHING.patience_s,
    refresh: Callable[[], object] = lambda: None,
) -> list[Answer]:
    """Waits for the answers of all ranks, or until no rank has begun a step for ``patience_s`` seconds, and for as long
    as records may be late. ``refresh``: brings a local copy of the run up to date."""
    reached, since = -1, time.monotonic()
    late_s = delay_ns(layout) / 1e9
    while True:
        looked = time.monotonic()
        refresh()
        replies = answers(layout, trace_request)
        waiting = sum(answer.open for answer in replies)
        step = max((beat.step for beat in _beats(_some(_requested_ranks(layout, trace_request))).values()), default=-1)
        if progress is not None:
            progress(
                len(replies) - waiting,
                len(replies),
                f"ranks; the job is at step {step}, requested from {trace_request.first_step}",
            )
        if not waiting:
            return replies
        if step > reached:
            reached, since = step, time.monotonic()
        if time.monotonic() - since > patience_s + late_s:
            reason = f"has not answered, and no rank has begun a step for {patience_s + late_s:.0f} s"
            return [Answer(a.rank, why_not=reason) if a.open else a for a in replies]
        time.sleep(max(interval_s, time.monotonic() - looked))  # with very many ranks a look takes seconds


def _chosen(
    layout: RunLayout, rank_files: Mapping[int, RankLayout], ranks: Sequence[int] | None
) -> Mapping[int, RankLayout]:
    if not rank_files:
        raise DiagError(
            "no diag run found, or none of its ranks has started",
            path=layout.root,
            hint="give the run directory of a job that was started with `diag run`, or whose ranks have a Collector",
        )
    if ranks is None:
        return rank_files
    if unknown := sorted(set(ranks) - set(rank_files)):
        raise DiagError(
            f"the run has no {rank_ranges(unknown)}, only {rank_ranges(sorted(rank_files))}", path=layout.root
        )
    return {rank: rank_files[rank] for rank in sorted(set(ranks))}


def _alive(
    layout: RunLayout, files: Mapping[int, RankLayout], manifest: Manifest | None, now_s: float, memory: bool
) -> Beats:
    """The heartbeats of ranks that are training; DiagError if none is, or if the training is stuck: then a rank can
    still write a snapshot of its ``memory``, but no window."""
    if _is_over(manifest):
        raise DiagError("the run is over", path=layout.root, hint="`diag run --trace` records a window on a schedule")
    beats = _beats(_some(files))
    if not beats:
        raise DiagError(
            "the ranks have no collectors, so none would read the request",
            path=layout.root,
            hint="start the training without --no-collect",
        )
    state = state_of(layout.root, round(now_s * 1e9), with_answer=False)
    open_beats = {rank: beat for rank, beat in beats.items() if not beat.done}
    if state.live and open_beats:
        if state.stuck and not memory:
            raise DiagError(
                f"no step begins that a window could record. {state.headline.rstrip('.')}",
                path=layout.root,
                hint=f"diag triage {layout.root} --stacks shows where every rank is",
            )
        return open_beats
    if not open_beats:
        raise DiagError("the training is over", path=layout.root)
    raise DiagError(
        f"the job is not reachable ({state.state.value}): its last heartbeat was "
        f"{elapsed(max(0.0, now_s * 1e9 - state.as_of_ns))} ago",
        path=layout.root,
        hint="was it killed, or is this folder a copy from another machine?",
    )


def _step_s(files: Iterable[RankLayout]) -> float | None:
    """Seconds from the begin of a step to that of the next, a low quantile of recent steps."""
    durations: list[float] = []
    for rank_layout in list(files)[:8]:
        begins = [step.begin_ns for step in last_steps(rank_layout.steps)]
        durations.extend((after - before) / 1e9 for before, after in pairwise(begins))
    positive = sorted(seconds for seconds in durations if seconds > 0)
    return positive[int(WATCHING.fast_steps_quantile * len(positive))] if positive else None


def _is_over(manifest: Manifest | None) -> bool:
    return manifest is not None and manifest.exit_code is not None


def _settings(manifest: Manifest | None) -> CollectorSettings:
    recorded = manifest.collector.get("settings", {}) if manifest is not None else {}
    values = {key: value for key, value in recorded.items() if key in CollectorSettings.__dataclass_fields__}
    return CollectorSettings(**values)


def _requested_ranks(layout: RunLayout, trace_request: TraceAsked) -> dict[int, RankLayout]:
    rank_files = job_ranks(layout).files
    return rank_files if trace_request.ranks is None else {rank: layout.rank(rank) for rank in trace_request.ranks}


def _some(files: Mapping[int, RankLayout]) -> Mapping[int, RankLayout]:
    """At most ``ranks_looked_at`` of the ranks, spread over the job."""
    if len(files) <= WATCHING.ranks_looked_at:
        return files
    ranks = sorted(files)
    return {rank: files[rank] for rank in ranks[:: -(-len(ranks) // WATCHING.ranks_looked_at)]}


def _beats(files: Mapping[int, RankLayout]) -> dict[int, Heartbeat]:
    read = ((rank, read_heartbeat(rank_layout)[0]) for rank, rank_layout in files.items())
    return {rank: beat for rank, beat in read if beat is not None}


def _answer(rank: int, files: RankLayout, trace_request: TraceAsked, ended: bool) -> Answer:
    beat, _ = read_heartbeat(files)
    path = _newest_snapshot(files, trace_request) if trace_request.memory else files.trace(trace_request.first_step)
    reply = beat.trace_answer if beat is not None and beat.trace_number == trace_request.number else TRACE_PENDING
    if reply == TRACE_RECORDED or (reply == TRACE_PENDING and is_regular(path)):
        return Answer(rank, path)
    if reply != TRACE_PENDING:
        return Answer(rank, why_not=reply)
    if ended or (beat is not None and (beat.done or beat.failed_in)):
        return Answer(rank, why_not="the training ended first")
    return Answer(rank)


def _newest_snapshot(files: RankLayout, trace_request: TraceAsked) -> Path:
    """The snapshot that was written for the request, at its step or a later one; without one, the earliest possible
    path."""
    earliest = files.memory_snapshot(ASKED, trace_request.first_step)
    asked_for = [path for path in files.memory_snapshots() if path.name.startswith(f"memory-{ASKED}-")]
    return next((path for path in asked_for if natural(path.name) >= natural(earliest.name)), earliest)


# -- requests by the launcher ------------------------------------------------------------------------------------------
#
# A thread of the launcher requests a profiler window when the verdict over all ranks becomes bad.
#
# It reads only the ranks' summaries of their newest steps, so it costs the training nothing, and the launcher a moment
# every fifty steps.


State = tuple[str, tuple[int, ...]]  # cause, culprits


class AutoTrace:
    """Watches a run from ``start`` to ``stop``. If a scheduled window records the begin of the run, only a change of
    the verdict leads to a request. ``workers``: those of this launcher; of several nodes' launchers, only that of rank
    0 requests windows."""

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
        self._last_analysed = -1  # the last step that was analysed
        self._known: set[State] = set()  # states of which a window has been recorded
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
        """One round; returns the request, if one was made."""
        if self._left <= 0 or not self._grown() or not self._is_first():
            return None
        from diag.account.stalls import without_stalls  # numpy and more: not before the first summary
        from diag.model.steps import Bottleneck, Severity
        from diag.summaries import open_summaries

        try:
            result = open_summaries(self._layout.root, most_steps=WATCHING.steps_analysed)
        except DiagError:
            return None  # summaries of one rank only, so far
        newest = result.attribution.steps[-1].step
        if newest <= self._last_analysed:
            return None
        first, self._last_analysed = self._last_analysed < 0, newest
        verdict = result.verdict
        bad = verdict.severity != Severity.HEALTHY and verdict.bottleneck != Bottleneck.UNDETERMINED
        state = (verdict.cause, tuple(sorted(verdict.culprit_ranks)))
        if not bad or verdict.confidence < WATCHING.sure or state in self._known:
            return None
        if without_stalls(result.attribution) is not None:  # the verdict rests on steps that stalled: that is over
            return None
        if first and self._traced:
            self._known.add(state)
            return None
        why = f"automatic: {verdict.headline}"
        try:
            trace_request = ask(
                self._layout,
                WATCHING.steps_of_window,
                ranks_to_record(result.attribution.ranks, verdict.culprit_ranks),
                why,
            )
        except (DiagError, OSError):
            return None  # another window is under way, the run is ending, or the disk is full: the next round retries
        self._known.add(state)
        self._left -= 1
        last = trace_request.first_step + trace_request.count - 1
        self._say(
            f"step {newest:,}: {verdict.headline} A profiler window of steps {trace_request.first_step:,} to {last:,} "
            "is being recorded."
        )
        return trace_request

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
        interval = WATCHING.trace_interval_s
        while not self._stopped.wait(interval) and self._left > 0:
            ranks = len(self._layout.ranks())
            if ranks > WATCHING.many_ranks:
                interval = WATCHING.interval_of_many_s
            if ranks <= 1:
                continue
            try:
                self.look()
            except Exception as error:  # half-written records must not cause a traceback in the training's output
                reason = f"{type(error).__name__}: {error}"
                self._say(f"Automatic profiler windows are off ({reason}); diag trace requests one.")
                return


def ranks_to_record(ranks: Sequence[int], culprits: Sequence[int]) -> list[int] | None:
    """The ranks to record: all of a small job (None); of a large one the culprits, and some others for comparison."""
    if len(ranks) <= WATCHING.all_ranks_recorded:
        return None
    chosen = list(culprits[: WATCHING.culprits_recorded])
    rest = [rank for rank in ranks if rank not in culprits] or list(ranks)
    return sorted({*chosen, *rest[:: max(1, len(rest) // WATCHING.others_recorded)][: WATCHING.others_recorded]})

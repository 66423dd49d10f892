"""All samples of a run, finished or under way; reads its new records each time."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from diag.collectors.layout import RankLayout, RunLayout, numbered_parts
from diag.collectors.records import (
    MACHINE_GAUGES,
    Heartbeat,
    MachineRecord,
    Manifest,
    RankRecord,
    StepRecord,
    machine_values,
    split_machine_name,
)
from diag.decoding import json_decoder
from diag.export import definitions as of
from diag.export.finished_steps import FinishedSteps, RankTotals, must_be_run
from diag.export.policy import EXPORT_LIMITS
from diag.model import DAMAGED, Gap
from diag.model.breakdown import peak_of
from diag.model.steps import Parts
from diag.rundir.columns import Steps
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import (
    Judged,
    read_answer,
    read_heartbeat,
    read_identity,
    read_last_lines,
    read_manifest,
)
from diag.rundir.numbers import first_odd, numbers_of
from diag.rundir.policy import RUN_READING
from diag.rundir.runs import RunState, state_of
from diag.rundir.sharing import sharing_by
from diag.rundir.state_words import behind_ranks
from diag.rundir.states import State
from diag.rundir.tail import RestartedError
from diag.tables.efficiency import efficiency

from .definitions import Kind, Metric, Sample

# -- last analysis -----------------------------------------------------------------------------------------------------
#
# The last ``diag analyze`` of a run as samples: the verdict, and the parts of each rank's step.


class _Step(msgspec.Struct):
    usable: bool
    ranks: tuple[Parts, ...]


class LastAnalysis:
    """Reads verdict.json, and again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = 0
        self._verdict: Judged | None = None
        self._parts_s: dict[int, dict[str, float]] = {}

    def samples(self, run: Mapping[str, str], ranks: Mapping[int, Mapping[str, str]]) -> Iterator[Sample]:
        """The samples; none if the run was not analysed, or verdict.json cannot be read. ``ranks``: labels of the
        exported ranks."""
        self._refresh()
        if self._verdict is None:
            return
        verdict = self._verdict
        labels = {"bottleneck": verdict.bottleneck, "severity": verdict.severity, "cause": verdict.cause}
        culprits = ",".join(map(str, verdict.culprit.ranks)) if verdict.culprit is not None else ""
        yield Sample(of.VERDICT_INFO, {**run, **labels, "culprit_ranks": culprits}, 1)
        yield Sample(of.VERDICT_SHARE, run, verdict.share)
        yield Sample(of.VERDICT_CONFIDENCE, run, verdict.confidence)
        yield Sample(of.VERDICT_TIME, run, self._changed_ns / 1e9)
        for rank in sorted(self._parts_s.keys() & ranks.keys()):
            for part, seconds in self._parts_s[rank].items():
                yield Sample(of.ANALYSED_PART, {**ranks[rank], of.PART: part}, seconds)

    def _refresh(self) -> None:
        changed_ns, answer = 0, None
        with suppress(OSError):
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns == self._changed_ns:
                return
            answer, _ = read_answer(self._path)
        self._changed_ns, self._verdict, self._parts_s = 0, None, {}
        if answer is not None:
            with suppress(*DAMAGED):
                steps = json_decoder(tuple[_Step, ...]).decode(answer.steps)
                self._changed_ns, self._verdict, self._parts_s = changed_ns, answer.verdict, _means(steps)


def _means(steps: tuple[_Step, ...]) -> dict[int, dict[str, float]]:
    """Mean seconds by rank and part, over the counted steps."""
    sums: dict[int, Counter[str]] = {}
    counts: Counter[int] = Counter()
    for step in [step for step in steps if step.usable] or steps:
        for parts in step.ranks:
            sums.setdefault(parts.rank, Counter()).update(_split(parts))
            counts[parts.rank] += 1
    return {rank: {part: ns / 1e9 / counts[rank] for part, ns in by_part.items()} for rank, by_part in sums.items()}


def _split(parts: Parts) -> dict[str, int]:
    """Nanoseconds by part, which add up to the step; wait and transfer separately if the clocks allow it."""
    if parts.exposed_wait_ns is None or parts.exposed_transfer_ns is None:
        comm = {"exposed_comm": parts.exposed_comm_ns}
    else:
        comm = {"exposed_wait": parts.exposed_wait_ns, "exposed_transfer": parts.exposed_transfer_ns}
    return {
        "compute": parts.compute_ns,
        **comm,
        "exposed_copy": parts.exposed_copy_ns,
        "data_wait": parts.data_wait_ns,
        "checkpoint": parts.checkpoint_ns,
        "idle": parts.idle_ns,
    }


# -- summary -----------------------------------------------------------------------------------------------------------
#
# Aggregates samples over the ranks: as many series for 24,576 ranks as for two.

_OF_A_RANK = (of.RANK, of.HOST, of.GPU, of.DEVICE)
OTHERS = "other"

_Labels = tuple[tuple[str, str], ...]


class _Merged:
    """The aggregated values of one metric and set of labels, over the ranks."""

    __slots__ = ("count", "high", "low", "sum")

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.low, self.high = min(self.low, value), max(self.high, value)


def summarised(samples: Iterable[Sample]) -> list[Sample]:
    """Sums of counters over the ranks, and min, mean and max of gauges, by the label ``stat``. Samples of the run stay
    unchanged. Queries that sum counters and take the max of gauges give the same answer for both forms."""
    combined: list[Sample] = []
    merged: dict[tuple[Metric, _Labels], _Merged] = {}
    for metric, labels, value in samples:
        if not metric.per_rank:
            combined.append(Sample(metric, labels, value))
            continue
        run_labels = tuple((name, text) for name, text in labels.items() if name not in _OF_A_RANK)
        values = merged.get((metric, run_labels))
        if values is None:
            values = merged[metric, run_labels] = _Merged()
        values.add(value)
    counters: dict[tuple[Metric, _Labels], float] = {}
    largest = _largest_groups(merged)
    for (metric, run_labels), values in merged.items():
        if metric.kind is Kind.GAUGE:
            stats = (("min", values.low), ("mean", values.sum / values.count), ("max", values.high))
            combined += (Sample(metric, {**dict(run_labels), of.STAT: stat}, value) for stat, value in stats)
            continue
        folded = tuple(
            (name, OTHERS if name == of.GROUP and text not in largest else text) for name, text in run_labels
        )
        counters[metric, folded] = counters.get((metric, folded), 0.0) + values.sum
    return combined + [Sample(metric, dict(run_labels), value) for (metric, run_labels), value in counters.items()]


def _largest_groups(merged: Mapping[tuple[Metric, _Labels], _Merged]) -> set[str]:
    sizes: Counter[str] = Counter()
    for (metric, run_labels), values in merged.items():
        if metric is of.COLLECTIVE_BYTES:
            sizes[dict(run_labels)[of.GROUP]] += round(values.sum)
    return set(sorted(sizes, key=lambda group: (-sizes[group], group))[: EXPORT_LIMITS.most_groups])


class RunMetrics:
    """Follows one run. ``per_rank`` True: each rank has its own series; False: sums, and min, mean and max over the
    ranks; None: own series up to MOST_RANKS ranks, since 24,576 ranks have 786,000 series. ``only``: the ranks to
    export, None for all. ``say`` is called once with each file that cannot be read, and why."""

    def __init__(
        self,
        run: Path,
        per_rank: bool | None = None,
        only: Container[int] | None = None,
        say: Callable[[str, str], object] | None = None,
    ) -> None:
        self._training = RunLayout(run)
        must_be_run(self._training)
        self._run = {of.RUN: run.resolve().name}
        self._per_rank, self._only = per_rank, only
        self._say, self._reported = say, set[tuple[str, str]]()
        self.live = False  # whether the run was live in the last reading
        self._begin(self._training.newest())

    def _begin(self, attempt: RunLayout) -> None:
        self._layout, self._analysis = attempt, LastAnalysis(attempt.verdict)
        self._ranks: dict[int, _Rank] = {}

    def read(self, now_ns: int | None = None) -> list[Sample]:
        """Reads the run, of several attempts the newest; returns all current samples."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        if (newest := self._training.newest()) != self._layout:  # it was restarted
            self._begin(newest)
        manifest, gap = read_manifest(self._layout)
        self._report([gap])
        ended = manifest is not None and manifest.exit_code is not None
        readable_ranks = self._readable_ranks()
        for rank in self._ranks.keys() - readable_ranks.keys():
            del self._ranks[rank]
        for rank, files in readable_ranks.items():
            if self._only is not None and rank not in self._only:
                continue
            if rank not in self._ranks:
                self._ranks[rank] = _Rank(rank, files, keeps_records=not self._ranks)
            self._report(self._ranks[rank].read(ended))
        state = state_of(self._layout.root, now_ns, with_answer=False)
        self.live = state.live
        samples = self._samples(manifest, state, now_ns)
        per_rank = self._per_rank if self._per_rank is not None else len(self._ranks) <= EXPORT_LIMITS.most_ranks
        return list(samples) if per_rank else summarised(samples)

    def _readable_ranks(self) -> dict[int, RankLayout]:
        try:
            job = job_ranks(self._layout)
        except OSError as error:  # a later reading may succeed
            self._report([Gap(str(self._layout.ranks_folder), f"cannot be read: {error.strerror}")])
            return {rank: follower.files for rank, follower in self._ranks.items()}
        self._report(job.gaps)
        return job.files

    def _report(self, gaps: Iterable[Gap | None]) -> None:
        for gap in gaps:
            if gap is not None and (gap.path, gap.reason) not in self._reported:
                self._reported.add((gap.path, gap.reason))
                if self._say is not None:
                    self._say(gap.path, gap.reason)

    def _samples(self, manifest: Manifest | None, state: RunState, now_ns: int) -> Iterator[Sample]:
        yield from self._of_run(manifest)
        yield from self._of_state(state)
        yield from self._of_numbers()
        for follower in self._ranks.values():
            yield from follower.samples(self._run, now_ns)
        yield from self._analysis.samples(
            self._run, {rank: follower.labels(self._run) for rank, follower in self._ranks.items()}
        )

    def _of_run(self, manifest: Manifest | None) -> Iterator[Sample]:
        yield Sample(of.RANKS, self._run, len(self._ranks))
        if manifest is None:
            return
        labels = {"run_id": manifest.run_id, "strategy": manifest.strategy, "backend": manifest.backend}
        yield Sample(of.RUN_INFO, {**self._run, **{k: v or "" for k, v in labels.items()}, "device": self._device}, 1)
        if manifest.world_size is not None:
            yield Sample(of.WORLD_SIZE, self._run, manifest.world_size)
        if manifest.exit_code is not None:
            yield Sample(of.EXIT_CODE, self._run, manifest.exit_code)
        mfu = self._mfu(manifest)
        if mfu is not None:
            yield Sample(of.MFU, self._run, mfu)

    def _of_state(self, state: RunState) -> Iterator[Sample]:
        yield Sample(of.STATE, {**self._run, "state": state.state.value}, 1)
        if state.live:
            yield Sample(of.STUCK, self._run, int(state.stuck))
            yield Sample(of.SLOW, self._run, int(state.state is State.SLOW))
            culprits = behind_ranks(state.judged) if state.stuck else []
            for rank in culprits:
                yield Sample(of.BEHIND, {**self._run, of.RANK: str(rank.rank), "phase": rank.phase}, 1)
            yield Sample(of.SILENT, self._run, len(state.standstill.silent) if state.standstill is not None else 0)
            still = state.standstill.still_ns if state.standstill is not None else None
            if still is not None:
                yield Sample(of.NO_STEP, self._run, still / 1e9)

    def _of_numbers(self) -> Iterator[Sample]:
        odd = first_odd(numbers_of({rank: each.files for rank, each in self._ranks.items()}), finite=False)
        if odd is not None:
            ranks = ",".join(map(str, odd.ranks))
            yield Sample(of.NOT_FINITE, {**self._run, "what": odd.what, "culprit_ranks": ranks}, odd.step)

    @property
    def _device(self) -> str:
        return next(
            (follower.identity.device for follower in self._ranks.values() if follower.identity is not None), ""
        )

    def _mfu(self, manifest: Manifest) -> float | None:
        """MFU from the last steps of one rank: all ranks have the same FLOPs."""
        first = next(iter(self._ranks.values()), None)
        if first is None or not first.recent:
            return None
        device = self._device
        step_ns = sum(record.end_ns - record.begin_ns for record in first.recent) / len(first.recent)
        world_size = manifest.world_size or len(self._ranks)
        recent = [Steps.of(list(first.recent))]
        identities = {rank: of.identity for rank, of in self._ranks.items() if of.identity is not None}
        gpus = sharing_by(identities).count(world_size)
        return efficiency(
            (), manifest, recent, step_ns, world_size, peak_of(device), device, device not in ("", "cpu"), gpus
        ).mfu.value


class _Machine:
    """What the rank that reads its host's counters wrote last; most ranks of a host write nothing."""

    def __init__(self, file: Path) -> None:
        self._file, self._size = file, 0
        self._values: dict[str, int | None] = {}

    def read(self) -> Gap | None:
        """Reads the newest lines again if there are more."""
        last = numbered_parts(self._file)[-1:]
        size = sum(part.stat().st_size + number for number, part in last)
        if size == self._size:
            return None
        self._size = size
        lines, gap = read_last_lines(self._file, MachineRecord, RUN_READING.machine_tail_bytes)
        for line in lines:
            self._values = machine_values(self._values, line)
        return gap

    def samples(self, run: Mapping[str, str], host: str) -> Iterator[Sample]:
        for name, value in self._values.items():
            if value is None:
                continue
            device, short = split_machine_name(name)
            metric = of.MACHINE_READING if name.rpartition(".")[2] in MACHINE_GAUGES else of.MACHINE_COUNTER
            yield Sample(metric, {**run, of.HOST: host, of.DEVICE: device, of.NAME: short}, value)


class _Rank:
    """Follows one rank. ``recent``: its last records, if ``keeps_records``."""

    def __init__(self, rank: int, files: RankLayout, keeps_records: bool) -> None:
        self._rank, self.files, self._keeps_records = rank, files, keeps_records
        self.identity: RankRecord | None = None
        self.heartbeat: Heartbeat | None = None
        self._gaps: list[Gap | None] = []
        self._machine = _Machine(files.machine)
        self._start()

    def _start(self) -> None:
        self.recent: deque[StepRecord] = deque(maxlen=of.RECENT if self._keeps_records else 0)
        self._totals = RankTotals()
        self._steps: FinishedSteps | None = None

    def labels(self, run: Mapping[str, str]) -> dict[str, str]:
        identity = self.identity
        gpu = identity.device_index if identity is not None else None
        return {
            **run,
            of.RANK: str(self._rank),
            of.HOST: identity.host if identity is not None else "",
            of.GPU: "" if gpu is None else str(gpu),
        }

    def read(self, ended: bool) -> list[Gap | None]:
        """Reads new records; returns what could not be read."""
        self.heartbeat, gap = read_heartbeat(self.files)
        self._gaps = [gap]
        with suppress(OSError):  # a part may be removed meanwhile
            self._gaps.append(self._machine.read())
        try:
            self._add(ended)
        except RestartedError:  # the counters start at 0 again, as after a restart of a process
            self.identity = None
            self._start()
            self._add(ended)
        refusals = self._steps.refusals if self._steps is not None else {}
        return [*self._gaps, *(Gap(str(path), f"cannot be read: {reason}") for path, reason in refusals.items())]

    def samples(self, run: Mapping[str, str], now_ns: int) -> Iterator[Sample]:
        unreadable = self._steps.unreadable if self._steps is not None else 0
        yield from self._totals.samples(self.labels(run), self.identity, self.heartbeat, unreadable, now_ns)
        if self.identity is not None:
            yield from self._machine.samples(run, self.identity.host)

    def _add(self, ended: bool) -> None:
        if self.identity is None:
            self.identity, gap = read_identity(self.files)
            self._gaps.append(gap)
        if self._steps is None:
            if self.identity is None and not ended:
                return  # without it, it is not known whether the rank computes on a device
            on_device = self.identity is not None and self.identity.device != "cpu"
            self._steps = FinishedSteps(self._rank, self.files, on_device)
        steps, calls = self._steps.read(ended)
        self._totals.add(steps, calls)
        self.recent.extend(step.record for step in steps)

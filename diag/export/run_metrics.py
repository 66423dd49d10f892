"""All samples of a run, finished or under way, read again and again for what is new in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import Heartbeat, Manifest, RankRecord, StepRecord
from diag.errors import DiagError, readable
from diag.export import definitions as of
from diag.export.definitions import Sample
from diag.export.finished_steps import FinishedSteps
from diag.export.last_analysis import LastAnalysis
from diag.export.rank_totals import RankTotals
from diag.export.summary import summarised
from diag.model.steps import Gap
from diag.rundir.lines import read_record
from diag.rundir.run import must_exist
from diag.rundir.runs import SILENT_S
from diag.rundir.tail import RestartedError
from diag.tables.efficiency import efficiency
from diag.tables.peaks import peak_of

MOST_RANKS = 64  # with series of their own, unless somebody asks for more


def must_be_run(layout: RunLayout) -> None:
    """DiagError where the folder is none that the collectors wrote."""
    must_exist([str(layout.root)])
    if not layout.is_run():
        raise DiagError(
            "is no run directory",
            path=layout.root,
            hint="metrics are read from what the collectors record: give a folder that `diag run` wrote",
        )
    with readable(layout.ranks_folder):
        layout.ranks()


class RunMetrics:
    """Follows one run. ``per_rank``: each rank has its own series; False: sums, and min, mean and max over the ranks;
    None: the former up to MOST_RANKS ranks, since 24,576 of them have 786,000 series. ``only``: the ranks that are
    looked at, None for all. ``say`` is told once of each file that cannot be read, and why."""

    def __init__(
        self,
        run: Path,
        per_rank: bool | None = None,
        only: Container[int] | None = None,
        say: Callable[[str, str], object] | None = None,
    ) -> None:
        self._layout = RunLayout(run)
        must_be_run(self._layout)
        self._run = {of.RUN: run.resolve().name}
        self._per_rank, self._only = per_rank, only
        self._say, self._said = say, set[tuple[str, str]]()
        self._ranks: dict[int, _Rank] = {}
        self._analysis = LastAnalysis(self._layout.verdict)
        self.live = False  # when it was last read

    def read(self, now_ns: int | None = None) -> list[Sample]:
        """Everything that is known now."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        manifest, gap = read_record(self._layout.manifest, Manifest, self._layout.root)
        self._tell([gap])
        ended = manifest is not None and manifest.exit_code is not None
        for rank, files in self._readable_ranks().items():
            if self._only is not None and rank not in self._only:
                continue
            if rank not in self._ranks:
                self._ranks[rank] = _Rank(rank, files, keeps_records=not self._ranks)
            self._tell(self._ranks[rank].read(ended))
        signs = [own.heartbeat.unix_ns for own in self._ranks.values() if own.heartbeat is not None]
        signs.append(manifest.created_unix_ns if manifest is not None else 0)  # a launcher needs a while
        self.live = not ended and now_ns - max(signs) < SILENT_S * 1e9
        samples = self._samples(manifest, now_ns)
        per_rank = self._per_rank if self._per_rank is not None else len(self._ranks) <= MOST_RANKS
        return list(samples) if per_rank else summarised(samples)

    def _readable_ranks(self) -> dict[int, RankLayout]:
        try:
            return self._layout.ranks()
        except OSError as error:  # a later reading may be allowed again
            self._tell([Gap(str(self._layout.ranks_folder), f"cannot be read: {error.strerror}")])
            return {}

    def _tell(self, gaps: Iterable[Gap | None]) -> None:
        for gap in gaps:
            if gap is not None and (gap.path, gap.reason) not in self._said:
                self._said.add((gap.path, gap.reason))
                if self._say is not None:
                    self._say(gap.path, gap.reason)

    def _samples(self, manifest: Manifest | None, now_ns: int) -> Iterator[Sample]:
        yield from self._of_run(manifest)
        for own in self._ranks.values():
            yield from own.samples(self._run, now_ns)
        yield from self._analysis.samples(self._run, {rank: own.labels(self._run) for rank, own in self._ranks.items()})

    def _of_run(self, manifest: Manifest | None) -> Iterator[Sample]:
        yield Sample(of.RANKS, self._run, len(self._ranks))
        if manifest is None:
            return
        told = {"run_id": manifest.run_id, "strategy": manifest.strategy, "backend": manifest.backend}
        yield Sample(of.RUN_INFO, {**self._run, **{k: v or "" for k, v in told.items()}, "device": self._device}, 1)
        if manifest.world_size is not None:
            yield Sample(of.WORLD_SIZE, self._run, manifest.world_size)
        if manifest.exit_code is not None:
            yield Sample(of.EXIT_CODE, self._run, manifest.exit_code)
        mfu = self._mfu(manifest)
        if mfu is not None:
            yield Sample(of.MFU, self._run, mfu)

    @property
    def _device(self) -> str:
        return next((own.identity.device for own in self._ranks.values() if own.identity is not None), "")

    def _mfu(self, manifest: Manifest) -> float | None:
        """Of one rank's last steps: all have the same arithmetic to do."""
        first = next(iter(self._ranks.values()), None)
        if first is None or not first.recent:
            return None
        device = self._device
        step_ns = sum(record.end_ns - record.begin_ns for record in first.recent) / len(first.recent)
        world_size = manifest.world_size or len(self._ranks)
        return efficiency(
            (), manifest, list(first.recent), step_ns, world_size, peak_of(device), device, device not in ("", "cpu")
        ).mfu.value


class _Rank:
    """One rank under way. ``recent``: its last records, if it ``keeps_records``."""

    def __init__(self, rank: int, files: RankLayout, keeps_records: bool) -> None:
        self._rank, self._files, self._keeps_records = rank, files, keeps_records
        self.identity: RankRecord | None = None
        self.heartbeat: Heartbeat | None = None
        self._gaps: list[Gap | None] = []
        self._start()

    def _start(self) -> None:
        self.recent: deque[StepRecord] = deque(maxlen=of.RECENT if self._keeps_records else 0)
        self._totals = RankTotals()
        self._steps: FinishedSteps | None = None

    def labels(self, run: Mapping[str, str]) -> dict[str, str]:
        own = self.identity
        gpu = own.device_index if own is not None else None
        return {
            **run,
            of.RANK: str(self._rank),
            of.HOST: own.host if own is not None else "",
            of.GPU: "" if gpu is None else str(gpu),
        }

    def read(self, ended: bool) -> list[Gap | None]:
        """Takes in what is new. What could not be read."""
        self.heartbeat, gap = read_record(self._files.heartbeat, Heartbeat, self._files.run)
        self._gaps = [gap]
        try:
            self._add(ended)
        except RestartedError:  # the counters begin again, as they do when a process restarts
            self.identity = None
            self._start()
            self._add(ended)
        refusals = self._steps.refusals if self._steps is not None else {}
        return [*self._gaps, *(Gap(str(path), f"cannot be read: {reason}") for path, reason in refusals.items())]

    def samples(self, run: Mapping[str, str], now_ns: int) -> Iterator[Sample]:
        unreadable = self._steps.unreadable if self._steps is not None else 0
        yield from self._totals.samples(self.labels(run), self.identity, self.heartbeat, unreadable, now_ns)

    def _add(self, ended: bool) -> None:
        if self.identity is None:
            self.identity, gap = read_record(self._files.identity, RankRecord, self._files.run)
            self._gaps.append(gap)
        if self._steps is None:
            if self.identity is None and not ended:
                return  # without it nobody knows whether the host's times are the device's
            on_device = self.identity is not None and self.identity.device != "cpu"
            self._steps = FinishedSteps(self._rank, self._files, on_device)
        steps, calls = self._steps.read(ended)
        self._totals.add(steps, calls)
        self.recent.extend(step.record for step in steps)

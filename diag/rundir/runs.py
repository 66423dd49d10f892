"""The state of a run, from the ends of its files: cheap enough to read every few seconds, for a whole folder."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from diag.collectors.layout import RUN_DIR_VARIABLE, RankLayout, RunLayout, is_folder, is_regular, world_size_of
from diag.collectors.reading import size_of, walk
from diag.collectors.records import FAILED, Manifest, RankRecord
from diag.errors import DiagError
from diag.model.steps import Bottleneck, Severity, Verdict

from .job_ranks import job_ranks
from .lines import JudgedCulprit, last_steps, read_answer, read_heartbeat, read_manifest
from .state_words import behind_ranks, headline_of
from .states import LIVE, Judged, RankState, Standstill, State, judge

# Not written by the collectors, or every second: no reason to analyse again.
_RUN = RunLayout(Path())
_RANK = _RUN.rank(0)
_NOT_RECORDS = frozenset(
    file.name
    for file in (
        *(_RUN.verdict, _RUN.hang, _RUN.trace_asked, _RUN.tables, Path("report.html")),
        *(_RANK.heartbeat, _RANK.stdout, _RANK.log, _RANK.nccl_log),
    )
)


class RunState(Struct, frozen=True):
    """``last_step`` and ``step_ns`` (the median of the last 20) are the first rank's; None if it recorded none.
    ``answer``: the verdict of the last analysis, None if none is newer than the records. ``planned_steps``: the planned
    length of the training, None if unknown. ``as_of_ns``: the moment that the state is of, Unix time; ``was``: the
    state then, if the run ended since. ``by_rank``: of the ranks whose heartbeats were read, all if the run is
    stuck."""

    path: Path
    state: State
    changed_ns: int  # when a record was last written, Unix time; 0 where it was not asked for
    ranks: int
    world_size: int | None
    strategy: str
    last_step: int | None
    step_ns: int | None
    exit_code: int | None
    answer: Verdict | None = None
    planned_steps: int | None = None
    standstill: Standstill | None = None  # of a run that makes no progress, or made none when its records end
    as_of_ns: int = 0
    was: State | None = None
    by_rank: tuple[RankState, ...] = ()

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def stuck(self) -> bool:
        """Whether the training should make progress and does not."""
        return self.state is State.STUCK

    @property
    def headline(self) -> str:
        """Of a run that is stuck, or was when its records end; else ""."""
        return headline_of(self.judged)

    @property
    def behind(self) -> list[RankState]:
        """The ranks that the others of a stuck run wait for, as far as it is known."""
        return behind_ranks(self.judged)

    @property
    def judged(self) -> Judged:
        return Judged(self.state, self.as_of_ns, self.was, self.standstill, self.by_rank)


JOB = "::"  # between a folder and the name of one of the jobs in it


def split_job(path: Path | str) -> tuple[str, str]:
    """The folder and the job's name of FOLDER::NAME; for any other path, the path and "". A path that exists is never
    split."""
    text = str(path)
    if JOB not in text or os.path.lexists(text):
        return text, ""
    cuts = [match.start() for match in re.finditer(JOB, text)]
    at = next((cut for cut in cuts if "://" in text[:cut] or os.path.lexists(text[:cut])), None)
    if at is None or "://" in text[at:]:  # fsspec writes :: between addresses
        return text, ""
    return text[:at], text[at + len(JOB) :]


def state_of(
    path: Path, now_ns: int | None = None, *, with_answer: bool = True, known: Mapping[int, RankRecord] | None = None
) -> RunState:
    """The state of a run or of a folder of traces. Never raises: unreadable fields are unknown. ``with_answer``: with
    the time of the last change, for which every file is looked at, and the verdict of the last analysis, whose file
    grows with the run. ``known``: as of ``job_ranks``."""
    layout = RunLayout(path)
    changed_ns = newest_change(path) if with_answer or not layout.is_run() else 0
    if not layout.is_run():
        return RunState(path, State.RECORDED, changed_ns, 0, None, "", None, None, None)
    try:
        manifest, _ = read_manifest(layout)
    except DiagError:  # in a newer schema: opening the run reports it
        return RunState(path, State.RECORDED, changed_ns, 0, None, "", None, None, None)
    ranks = {}
    with suppress(OSError, DiagError):  # opening the run reports it
        ranks = job_ranks(layout, known=known).files
    first = next(iter(ranks.values()), None)
    steps = last_steps(first.steps) if first is not None else []
    planned = _planned_steps(manifest)
    now_ns = time.time_ns() if now_ns is None else now_ns
    judged = judge(ranks, manifest, lambda: changed_ns or newest_change(path), now_ns, planned)
    return RunState(
        path=path,
        state=judged.state,
        changed_ns=changed_ns,
        ranks=len(ranks),
        world_size=world_size_of(manifest.world_size) if manifest is not None else None,
        strategy=(manifest.strategy or "") if manifest is not None else "",
        last_step=steps[-1].step if steps else None,
        step_ns=round(statistics.median(step.end_ns - step.begin_ns for step in steps)) if steps else None,
        exit_code=manifest.exit_code if manifest is not None else None,
        answer=_verdict(layout.verdict, changed_ns) if with_answer else None,
        planned_steps=planned,
        standstill=judged.standstill,
        as_of_ns=judged.as_of_ns,
        was=judged.was,
        by_rank=judged.ranks,
    )


def recording_environment(layout: RunLayout, pid: int) -> dict[str, str]:
    """The environment of a process of this host that records into this run, whoever started it; empty for any other
    process, and for another user's."""
    import psutil

    try:
        environment = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}
    root = layout.root.resolve()
    runs = {str(root), str(root.parent)} if layout.is_restart else {str(root)}  # the variable names no restart
    return environment if environment.get(RUN_DIR_VARIABLE) in runs else {}


def newest_change(path: Path) -> int:
    """When a file that an analysis reads was last written, Unix time in ns; 0 if there is none."""
    path = Path(split_job(path)[0])
    if not is_folder(path):
        return _changed_ns(path)
    return max(_changes(path), default=0)


def record_bytes(path: Path) -> int:
    """The size of all files that an analysis reads; 0 if they are not accessible."""
    files = _records(path) if is_folder(path) else iter([str(path)])
    return sum(map(size_of, files))


def _records(folder: Path) -> Iterator[str]:
    return walk(folder, wanted=_is_record, enter=lambda path: _is_record(path.rpartition("/")[2]), order=None)


def _changes(folder: Path) -> Iterator[int]:
    """Times of change of the folder and of all that is in it: removing a file changes its folder."""
    yield _changed_ns(folder) if not RunLayout(folder).is_run() else 0
    yield from map(_changed_ns, _records(folder))


def _is_record(name: str) -> bool:
    return name not in _NOT_RECORDS and not name.startswith(".")


def _changed_ns(file: Path | str) -> int:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116  (as ``size_of``)
    except OSError:
        return 0


def _planned_steps(manifest: Manifest | None) -> int | None:
    """Planned steps of the bundled trainer, with those before a resumed checkpoint. Unknown for a script's own loop."""
    steps = manifest.trainer.get("steps") if manifest is not None else None
    return steps if type(steps) is int and steps > 0 else None


def _verdict(file: Path, changed_ns: int) -> Verdict | None:
    """The verdict of the last analysis; None if none is newer than the records."""
    answer, _ = read_answer(file) if _changed_ns(file) > changed_ns else (None, None)
    if answer is None:
        return None
    judged, culprit = answer.verdict, answer.verdict.culprit or JudgedCulprit(())
    try:
        bottleneck, severity = Bottleneck(judged.bottleneck), Severity(judged.severity)
    except ValueError:  # written by another version
        return None
    return Verdict(
        bottleneck, severity, judged.cause, judged.share, judged.confidence, culprit.ranks, culprit.hosts,
        judged.headline, judged.doubts,
    )  # fmt: skip


def ended_well(layout: RunLayout) -> bool:
    """Whether the last heartbeat of every rank is that of a training that came to its end, none left an error, and its
    launcher none either."""
    if is_regular(layout.exits):
        return False
    with suppress(OSError):
        return all(map(_rank_ended_well, layout.ranks().values()))
    return False


def _rank_ended_well(files: RankLayout) -> bool:
    names = files.names()
    if names is None or RankLayout.error.name in names:
        return False
    beat, _ = read_heartbeat(files)
    return beat is not None and beat.done and not beat.phase.startswith(FAILED) and not beat.failed_in

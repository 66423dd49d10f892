"""What a run is doing, told from the ends of its files: cheap enough to ask every few seconds, of a whole folder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from diag.collectors.layout import RunLayout, is_folder, run_of, world_size_of
from diag.collectors.manifest import read_fields
from diag.collectors.reading import ANSWER_BYTES, read_regular, read_tail, walk
from diag.model.damaged import DAMAGED
from diag.model.steps import Bottleneck, Severity, Verdict

# A collector writes a heartbeat a second, whatever the training does.
SILENT_S = 30.0
_TAIL_BYTES = 1 << 16
_LAST_STEPS = 20
# Written by others than the collectors, or every second: no reason to analyse again.
_RUN = RunLayout(Path())
_RANK = _RUN.rank(0)
_NOT_RECORDS = frozenset(
    file.name
    for file in (
        *(_RUN.verdict, _RUN.trace_asked, _RUN.tables, Path("report.html")),
        *(_RANK.heartbeat, _RANK.stdout, _RANK.log, _RANK.nccl_log),
    )
)


class State(StrEnum):
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"  # with an exit code
    STOPPED = "stopped"  # it left no end, and is silent
    RECORDED = "recorded"  # traces of another tool, which say nothing about the process


class RunState(Struct, frozen=True):
    """``last_step`` and ``step_ns`` (the median of the last 20) are the first rank's; None where it recorded none.
    ``answer``: what the last analysis left, None where there is none that is newer than the records."""

    path: Path
    state: State
    changed_ns: int  # when a record was written last, Unix time
    ranks: int
    world_size: int | None
    strategy: str
    last_step: int | None
    step_ns: int | None
    exit_code: int | None
    answer: Verdict | None = None

    @property
    def live(self) -> bool:
        return self.state == State.TRAINING


class LastStep(msgspec.Struct):
    """What of a step record tells how fast a run is."""

    step: int
    begin_ns: int
    end_ns: int


class _Culprit(msgspec.Struct):
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class _Kept(msgspec.Struct):
    bottleneck: Bottleneck
    severity: Severity
    cause: str
    share: float
    confidence: float
    headline: str
    culprit: _Culprit | None


class _Document(msgspec.Struct):
    verdict: _Kept


def state_of(path: Path, now_ns: int | None = None) -> RunState:
    """The state of a run or of a folder of traces. Never raises: what cannot be read is not known."""
    layout, changed_ns = RunLayout(path), newest_change(path)
    if not layout.is_run():
        return RunState(path, State.RECORDED, changed_ns, 0, None, "", None, None, None)
    manifest, ranks = read_fields(layout), {}
    with suppress(OSError):  # said by whoever opens the run
        ranks = layout.ranks()
    first = next(iter(ranks.values()), None)
    steps = last_steps(first.steps) if first is not None else []
    alive_ns = max([changed_ns, *(_changed_ns(rank.heartbeat) for rank in ranks.values())])
    now_ns = time.time_ns() if now_ns is None else now_ns
    exit_code = _whole(manifest.get("exit_code"))
    return RunState(
        path=path,
        state=_state(manifest, exit_code, now_ns - alive_ns),
        changed_ns=changed_ns,
        ranks=len(ranks),
        world_size=world_size_of(manifest.get("world_size")),
        strategy=str(manifest.get("strategy") or ""),
        last_step=steps[-1].step if steps else None,
        step_ns=round(statistics.median(step.end_ns - step.begin_ns for step in steps)) if steps else None,
        exit_code=exit_code,
        answer=_answer(layout.verdict, changed_ns),
    )


def newest_change(path: Path) -> int:
    """When one of the files that an analysis reads was written last, Unix time in ns; 0 where there is none."""
    if not is_folder(path):
        return _changed_ns(path)
    return max(_changes(path), default=0)


def _changes(folder: Path) -> Iterator[int]:
    """Of the folder and all that is in it: a file that is gone changes its folder."""
    yield _changed_ns(folder) if not RunLayout(folder).is_run() else 0
    files = walk(folder, wanted=_is_record, enter=lambda path: _is_record(Path(path).name), order=None)
    yield from (_changed_ns(Path(file)) for file in files)


def _is_record(name: str) -> bool:
    return name not in _NOT_RECORDS and not name.startswith(".")


def _changed_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _state(manifest: dict[str, Any], exit_code: int | None, silent_ns: int) -> State:
    if exit_code is not None:
        return State.FAILED if exit_code else State.FINISHED
    if not manifest:
        return State.RECORDED
    return State.TRAINING if silent_ns < SILENT_S * 1e9 else State.STOPPED


def last_steps(file: Path) -> list[LastStep]:
    """The last twenty of a steps.jsonl, read from its end; none where it cannot be read."""
    try:
        tail = read_tail(file, _TAIL_BYTES, run_of(file))[0].split(b"\n")
    except OSError:
        return []
    found = []
    for line in tail[-1 - _LAST_STEPS :]:  # the last one is being written, or empty
        try:
            found.append(msgspec.json.decode(line, type=LastStep))
        except DAMAGED:
            continue
    return found


def _answer(file: Path, changed_ns: int) -> Verdict | None:
    if _changed_ns(file) <= changed_ns:
        return None
    try:
        kept = msgspec.json.decode(read_regular(file, ANSWER_BYTES, file.parent), type=_Document).verdict
    except (OSError, *DAMAGED):
        return None
    culprit = kept.culprit or _Culprit((), ())
    return Verdict(
        kept.bottleneck, kept.severity, kept.cause, kept.share, kept.confidence, culprit.ranks, culprit.hosts,
        kept.headline,
    )  # fmt: skip


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""What the collectors and the launcher left in a run directory. Damaged files are gaps and count as missing."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from diag.collectors.layout import RankLayout, RunLayout, world_size_of
from diag.collectors.living import process_is_stopped, process_runs
from diag.collectors.reading import read_tail
from diag.collectors.records import (
    FAILED,
    HANG,
    P2P_PREFIX,
    Asked,
    CollectiveLine,
    CollectiveRow,
    Heartbeat,
    Manifest,
    RankExit,
    RankRecord,
)
from diag.ended.model import Culprit, short_host
from diag.ended.policy import ENDED
from diag.ended.raised import Chain, chain_of, chain_of_message
from diag.model import Gap
from diag.rundir.beats import Beat, beat_of
from diag.rundir.garbage import without_collections
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import (
    read_asked,
    read_exits,
    read_heartbeat,
    read_last_lines,
    read_manifest,
    read_record,
)
from diag.rundir.runs import RunState, state_of
from diag.rundir.states import Judged, RankState, State


class CalledCollective(Struct, frozen=True, gc=False):
    """A collective that a rank's collector recorded. ``ended``: its result was available."""

    group: str
    seq: int
    op: str
    bytes: int
    dtype: str
    ended: bool

    @property
    def what(self) -> tuple[str, int, str]:
        """The fields that must be equal on all ranks of the group. A send and its receive count as equal."""
        return "" if self.group.startswith(P2P_PREFIX) else self.op, self.bytes, self.dtype

    def __str__(self) -> str:
        return f"{self.op} of {self.bytes:,} bytes"


class Rank(Struct, frozen=True):
    """One rank. ``steps``: its calls in the last steps; ``open_step``: the step that it did not finish."""

    culprit: Culprit
    files: RankLayout
    beat: Beat | None = None
    beat_ns: int = 0  # monotonic
    failed_in: str = ""
    answered: int = 0
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    steps: Mapping[int, tuple[CalledCollective, ...]] = field(default_factory=dict)
    open_step: int | None = None
    exit: RankExit | None = None
    error: str = ""  # of the exception that ended it, as torchrun's error file has it
    raised: Chain | None = None  # the same exception, from that file, else from the end of its standard error
    raised_at: int = 0  # Unix time in s, from that file; 0: it has none
    log: str = ""  # the end of its standard error
    reports: bool = True  # whether it may have left a file with its exception, or its standard error
    failed_as: str = ""  # the type of the exception that ended its training, as its heartbeat has it
    runs: bool | None = None  # whether its process exists; None on another host
    began_unix_ns: int = 0  # when its process began, on its own clock; 0: unknown
    pid: int | None = None
    stopped: bool = False  # its process is there, and a signal has stopped it
    ended_as_hung: bool = False  # ``diag run`` ended its process, which was there until then
    raised_late: Chain | None = None  # what it raised only after that

    @property
    def is_done(self) -> bool:
        return self.beat is not None and self.beat.done and not self.beat.failed and not self.failed_in


@dataclass(frozen=True)
class Rundir:
    """``asked``: (number, why) of the launcher's last request; None where it never asked. ``exit_code``: None while it
    trains, and where the launcher was killed."""

    manifest: Path
    ranks: Mapping[int, Rank]
    world_size: int | None
    asked: tuple[int, str] | None = None
    exit_code: int | None = None
    ended_by: tuple[str, int] | None = None  # the signal that asked the launcher to end the run, and when, Unix ns
    backend: str | None = None
    judged: Judged | None = None  # what it and its ranks are doing
    read_unix_ns: int = 0  # when it was read: heartbeats older than some seconds come from a process that is gone
    gaps: tuple[tuple[str, str], ...] = ()  # path and reason of files that cannot be read

    @property
    def stuck(self) -> bool:
        """Whether it makes no progress, or made none when its records end."""
        return self.judged is not None and State.STUCK in (self.judged.state, self.judged.was)

    def stack_files(self) -> tuple[list[Path], list[Path]]:
        """The stacks of its ranks that were taken in this standstill, and those of an earlier one."""
        taken: tuple[list[Path], list[Path]] = [], []
        standstill = self.judged.standstill if self.judged is not None and self.stuck else None
        if standstill is None:
            return taken
        for record in self.ranks.values():
            for file in (record.files.stacks, record.files.pyspy):
                with suppress(OSError):
                    status = file.stat()
                    if status.st_size:
                        taken[status.st_mtime_ns < standstill.since_unix_ns].append(file)
        return taken

    def state_of(self, rank: int) -> RankState | None:
        return self._states.get(rank)

    @cached_property
    def _states(self) -> Mapping[int, RankState]:
        of_rank = self.judged.ranks if self.judged is not None else ()
        return {state.rank: state for state in reversed(of_rank)}

    @cached_property
    def hosts(self) -> frozenset[str]:
        return frozenset(record.culprit.host for record in self.ranks.values())

    @cached_property
    def ended_first_on(self) -> frozenset[str]:
        """The hosts on which a rank is known to have ended before the others."""
        records = self.ranks.values()
        return frozenset(of.culprit.host for of in records if of.exit is not None and of.exit.first)


@without_collections()
def read_run(
    layout: RunLayout,
    state: RunState | None = None,
    known: Mapping[int, RankRecord] | None = None,
    listed: Mapping[int, frozenset[str]] | None = None,
) -> Rundir:
    """``state``: of the run, if the caller has it already; ``known``: as in ``job_ranks``; ``listed``: the names of the
    files of ranks, as the caller has just listed them. Raises OSError where the ranks cannot be listed."""
    gaps: list[Gap | None] = []
    _, gap = read_manifest(layout)
    asked, asked_gap = read_asked(layout)
    exits, exits_gap = read_exits(layout)
    gaps += gap, asked_gap, exits_gap
    job = job_ranks(layout, whole=True, known=known)
    manifest = job.manifest
    gaps += job.gaps
    # Of thousands of ranks, looking for files that are not there takes most of the time.
    names = {rank: (listed or {}).get(rank) or files.names() for rank, files in job.files.items()}
    beats = {
        rank: (None, None) if (of_rank := names[rank]) is not None and _BEAT not in of_rank else read_heartbeat(files)
        for rank, files in job.files.items()
    }
    for rank, (beat, _) in beats.items():
        # It may have failed since they were listed.
        if listed and (beat is None or rank in exits or beat.failed_in or beat.phase.startswith(FAILED)):
            names[rank] = job.files[rank].names()
    # The calls show who left a step that others are in. If none is in one, thousands of ranks need not be read.
    most = ENDED.collectives_tail_bytes if any(_in_step(beat) for beat, _ in beats.values()) else 0
    ranks = {
        rank: _rank(rank, files, job.identities[rank], exits.get(rank), beats[rank], names[rank], most, gaps)
        for rank, files in job.files.items()
    }
    hung_ns = _hang_ended_ns(manifest, asked)
    for rank, record in ranks.items():
        if _is_ended_as_hung(manifest, rank, record.exit):
            ranks[rank] = _as_it_hung(record, hung_ns)
    return Rundir(
        manifest=layout.manifest,
        ranks=ranks,
        world_size=world_size_of(manifest.world_size) if manifest is not None else None,
        asked=(asked.number, asked.why) if asked is not None else None,
        exit_code=manifest.exit_code if manifest is not None else None,
        ended_by=_ended_by(manifest),
        judged=(state or state_of(layout.root, with_answer=False)).judged,
        read_unix_ns=time.time_ns(),
        backend=manifest.backend if manifest is not None else None,
        gaps=tuple((gap.path, gap.reason) for gap in gaps if gap is not None),
    )


def _failed_as(heartbeat: Heartbeat | None) -> str:
    name = heartbeat.phase.removeprefix(FAILED) if heartbeat is not None and heartbeat.phase.startswith(FAILED) else ""
    return "" if name == "SystemExit" else name  # the code is known, or the message is in its error file


def _ended_by(manifest: Manifest | None) -> tuple[str, int] | None:
    ended_by = manifest.ended_by if manifest is not None else {}
    signal, unix_ns = ended_by.get("signal"), ended_by.get("unix_ns")
    return (signal, unix_ns) if isinstance(signal, str) and signal and isinstance(unix_ns, int) else None


def _is_ended_as_hung(manifest: Manifest | None, rank: int, ended: RankExit | None) -> bool:
    if ended is not None and ended.by_launcher:
        return True
    hang = manifest.hang if manifest is not None else {}
    ranks = hang.get("ended")  # older versions of diag named none: it may have ended any of them
    return bool(hang.get("ended_by_diag")) and (not isinstance(ranks, list) or rank in ranks)


def _hang_ended_ns(manifest: Manifest | None, asked: Asked | None) -> int:
    """When ``diag run`` began to end the ranks of a hang, Unix ns. Older versions did not write it: then when it asked
    them where they were, shortly before."""
    ended_ns = manifest.hang.get("unix_ns") if manifest is not None else None
    if isinstance(ended_ns, int) and ended_ns > 0:
        return ended_ns
    return asked.unix_ns if asked is not None and asked.why == HANG else 0


def _as_it_hung(record: Rank, hung_ns: int) -> Rank:
    """A rank that ``diag run`` ended, as it was until then: what it raised only afterwards, because it or a worker of
    its loader was ended, is no cause."""
    record = replace(record, ended_as_hung=True)
    raised_ns = (
        record.beat.unix_ns if record.beat is not None and record.beat.failed else (record.raised_at + 1) * 10**9
    )
    if raised_ns < hung_ns and (record.raised_at or (record.beat is not None and record.beat.failed)):
        return record
    beat = record.beat
    if beat is not None and beat.failed:
        beat = replace(beat, phase=record.failed_in or beat.phase.removeprefix(FAILED))
    late = record.raised
    return replace(record, beat=beat, failed_in="", error="", raised=None, raised_at=0, failed_as="", raised_late=late)


def _in_step(heartbeat: Heartbeat | None) -> bool:
    """Whether a rank was in a step, whose calls it names or in which it failed."""
    under_way = heartbeat is not None and heartbeat.phase != "between steps" and not heartbeat.done
    return heartbeat is not None and under_way and bool(heartbeat.calls or heartbeat.failed_in)


def _rank(
    rank: int,
    files: RankLayout,
    identity: RankRecord | None,
    ended: RankExit | None,
    beat: tuple[Heartbeat | None, Gap | None],
    names: frozenset[str] | None,
    most: int,
    gaps: list[Gap | None],
) -> Rank:
    """``most``: bytes of its calls that are read; ``names``: of its files, None if unknown."""
    heartbeat, heartbeat_gap = beat
    calls = names is None or any(map(_HOLDS_CALLS, names))
    lines, lines_gap = _last_calls(files, most) if calls else ([], None)
    error, error_gap = _read_error(files) if names is None or RankLayout.error.name in names else (None, None)
    log, log_gap = _tail(files.log, files.run) if names is None or RankLayout.log.name in names else ("", None)
    gaps += heartbeat_gap, lines_gap, error_gap, log_gap
    steps, open_step = _calls(lines), None
    if heartbeat is not None and _in_step(heartbeat):
        open_step = heartbeat.step
        if heartbeat.calls:
            steps[heartbeat.step] = tuple(map(_call, heartbeat.calls))
    callstack, raised_at = _about_error(error or {})
    message = _error(error or {})
    host = short_host(identity.host) if identity is not None else ""
    runs = process_runs(identity, (heartbeat or identity).unix_ns) if identity is not None else None
    return Rank(
        culprit=Culprit(rank, host, identity.device_index if identity is not None else None),
        files=files,
        beat=beat_of(heartbeat) if heartbeat is not None else None,
        beat_ns=heartbeat.monotonic_ns if heartbeat is not None else 0,
        failed_in=heartbeat.failed_in if heartbeat is not None else "",
        answered=heartbeat.answered if heartbeat is not None else 0,
        groups={name: tuple(ranks) for name, ranks in heartbeat.groups.items()} if heartbeat is not None else {},
        steps=steps,
        open_step=open_step,
        exit=ended,
        error=message,
        raised=chain_of(callstack) or chain_of_message(message) or chain_of(log[-ENDED.traceback_chars :]),
        raised_at=raised_at,
        log=log,
        reports=names is None or not names.isdisjoint((RankLayout.error.name, RankLayout.log.name)),
        failed_as=_failed_as(heartbeat),
        runs=runs,
        began_unix_ns=identity.unix_ns if identity is not None else 0,
        pid=identity.pid if identity is not None else None,
        stopped=bool(runs) and identity is not None and process_is_stopped(identity),
    )


_BEAT = RankLayout.heartbeat.name
_HOLDS_CALLS = re.compile(rf"{Path(RankLayout.collectives.name).stem}\b").match  # the stream, or a part of it


def _last_calls(files: RankLayout, most: int) -> tuple[list[CollectiveLine], Gap | None]:
    return read_last_lines(files.collectives, CollectiveLine, most, ENDED.collectives_tail_lines)


def _read_error(files: RankLayout) -> tuple[dict[str, Any] | None, Gap | None]:
    return read_record(files.error, dict[str, Any], files.run)


def _tail(path: Path, run: Path) -> tuple[str, Gap | None]:
    try:
        return read_tail(path, ENDED.log_bytes, run)[0].decode(errors="replace"), None
    except FileNotFoundError:
        return "", None
    except OSError as error:
        return "", Gap(str(path), f"cannot be read: {error.strerror}")


def _calls(lines: Iterable[CollectiveLine]) -> dict[int, tuple[CalledCollective, ...]]:
    """The calls by step."""
    by_step: dict[int, list[CalledCollective]] = defaultdict(list)
    for line in lines:
        by_step[line.step] += map(_call, line.rows)
    return {step: tuple(sorted(calls, key=lambda call: (call.group, call.seq))) for step, calls in by_step.items()}


def _call(row: CollectiveRow) -> CalledCollective:
    return CalledCollective(row.group, row.seq, row.op, row.bytes, row.dtype, row.end_ns is not None)


def _error(content: Mapping[str, Any]) -> str:
    """The message in torchrun's error file."""
    message = content.get("message")
    if isinstance(message, dict):
        message = message.get("message")
    return str(message or "")


def _about_error(content: Mapping[str, Any]) -> tuple[str, int]:
    """Traceback and time in torchrun's error file."""
    message = content.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    if not isinstance(extra, dict):
        return "", 0
    time = str(extra.get("timestamp") or "")
    return str(extra.get("py_callstack") or ""), int(time) if time.isdecimal() and len(time) < 12 else 0

"""Reads what the collectors and the launcher left in a run directory. Damaged files are as good as missing ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.collectors.layout import RankLayout, RunLayout, world_size_of
from diag.collectors.reading import read_json, read_object, read_tail
from diag.collectors.records import CHECKPOINT, EVALUATION, FAILED, P2P_PREFIX
from diag.hang.model import Culprit
from diag.hang.raised import Chain, chain_of, chain_of_message

# -- Heartbeats: how far a rank has come -------------------------------------------------------------------------------
#
# How far a rank has come, as its heartbeats say. Pure.

BUSY_PHASES = (CHECKPOINT, EVALUATION)  # long by nature, and often on one rank alone


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat. Two that differ in ``sent_ns`` alone mean that the rank stalls."""

    steps: int  # that this process has finished
    step: int
    phase: str
    phase_since_ns: int
    started: tuple[tuple[str, int], ...]  # (group, sequence number of the last collective called)
    finished: tuple[tuple[str, int], ...]
    recorder: tuple[tuple[str, int, int], ...] = ()  # (group, last enqueued, last completed); only of one that stands
    done: bool = False
    sent_ns: int = 0  # on the sender's clock: good for telling whether a new one has come

    def moved_since(self, before: Beat) -> bool:
        """Whether anything has happened. The recorder's numbers count only where both have them."""
        if self.recorder and before.recorder and self.recorder != before.recorder:
            return True
        return self._reached != before._reached

    @property
    def _reached(self) -> tuple[object, ...]:
        return self.steps, self.step, self.phase, self.phase_since_ns, self.started, self.finished, self.done

    @property
    def failed(self) -> bool:
        """Whether its training raised; the process may still be there."""
        return self.phase.startswith(FAILED)

    @property
    def in_collective(self) -> bool:
        """Whether a collective that this rank called is not finished.

        On a device the host knows the start only; then the Flight Recorder decides, and without it the answer is yes. A
        group in which the recorder never saw a collective complete does not count.
        """
        finished = dict(self.finished)
        on_host = [(number, finished[group]) for group, number in self.started if group in finished]
        told = [(enqueued, completed) for _, enqueued, completed in self.recorder if completed > 0]
        if self.failed:
            return False
        if any(called > done for called, done in (*on_host, *told)):
            return True
        return not told and len(on_host) < len(self.started)


def beat_of(content: Mapping[str, Any]) -> Beat | None:
    """The heartbeat in heartbeat.json; None where it is none of ours."""
    try:
        return Beat(
            steps=int(content.get("steps", 0)),
            step=int(content["step"]),
            phase=str(content["phase"]),
            phase_since_ns=int(content.get("phase_since_ns", 0)),
            started=_numbers(content.get("last_started", {})),
            finished=_numbers(content.get("last_finished", {})),
            recorder=tuple(
                sorted((str(group), int(row[0]), int(row[1])) for group, row in content.get("recorder", {}).items())
            ),
            done=bool(content.get("done", False)),
            sent_ns=int(content.get("monotonic_ns", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _numbers(content: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((str(group), int(number)) for group, number in content.items()))


_TAIL_BYTES = 2 << 20  # of collectives.jsonl: the last steps; a step of 4,096 calls takes 400 kB
_LOG_BYTES = 256 << 10
_TRACEBACK_CHARS = 64 << 10  # of that: looked through line by line


@dataclass(frozen=True, slots=True)
class CalledCollective:
    """A collective that a rank's collector recorded. ``ended``: its result was there."""

    group: str
    seq: int
    op: str
    bytes: int
    dtype: str
    ended: bool

    @property
    def what(self) -> tuple[str, int, str]:
        """What must be equal on all ranks of the group. A send and its receive are equal."""
        return "" if self.group.startswith(P2P_PREFIX) else self.op, self.bytes, self.dtype

    def __str__(self) -> str:
        return f"{self.op} of {self.bytes:,} bytes"


@dataclass(frozen=True)
class Exit:
    code: int  # -N: by signal N
    first: bool
    by_launcher: bool


@dataclass(frozen=True)
class Rank:
    """One rank. ``steps``: its calls in the last steps; ``open_step``: the step that it did not finish."""

    culprit: Culprit
    folder: Path
    beat: Beat | None = None
    beat_ns: int = 0  # monotonic
    failed_in: str = ""
    answered: int = 0
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    steps: Mapping[int, tuple[CalledCollective, ...]] = field(default_factory=dict)
    open_step: int | None = None
    exit: Exit | None = None
    error: str = ""  # of the exception that ended it, as torchrun's error file has it
    raised: Chain | None = None  # the same exception, from that file, else from the end of its standard error
    raised_at: int = 0  # Unix time in s, from that file; 0: it has none
    log: str = ""  # the end of its standard error

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
    gaps: tuple[tuple[str, str], ...] = ()  # path and reason of files that cannot be read


@dataclass
class _Files:
    """Reads files of one run directory. A missing or damaged file is empty; ``gaps``: path and reason of unreadable
    ones."""

    run: Path
    gaps: list[tuple[str, str]] = field(default_factory=list)

    def object(self, path: Path) -> dict[str, Any]:
        return read_object(path, self.run, self._refused)

    def array(self, path: Path) -> list[Any]:
        return _list(read_json(path, self.run, self._refused))

    def tail(self, path: Path, most: int) -> bytes:
        try:
            return read_tail(path, most, self.run)[0]
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._refused(str(path), f"cannot be read: {error.strerror}")
            return b""

    def _refused(self, path: str, reason: str) -> None:
        self.gaps.append((path, reason))


def read_run(layout: RunLayout) -> Rundir:
    """Raises OSError where the ranks cannot be listed."""
    read = _Files(layout.root)
    about, asked = read.object(layout.manifest), read.object(layout.asked)
    exits = _exits(read.array(layout.exits))
    number, code = asked.get("number"), about.get("exit_code")
    ranks = {rank: _rank(rank, files, exits.get(rank), read) for rank, files in layout.ranks().items()}
    return Rundir(
        manifest=layout.manifest,
        ranks=ranks,
        world_size=world_size_of(about.get("world_size")),
        asked=(number, str(asked.get("why"))) if isinstance(number, int) else None,
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        gaps=tuple(read.gaps),
    )


def _rank(rank: int, files: RankLayout, ended: Exit | None, read: _Files) -> Rank:
    identity, content = read.object(files.identity), read.object(files.heartbeat)
    host, gpu = identity.get("host"), identity.get("device_index")
    steps = _calls(read.tail(files.collectives, _TAIL_BYTES))
    open_step = None
    if content:
        rows = [call for row in _list(content.get("calls")) if (call := _call(row)) is not None]
        step, finished = content.get("step"), content.get("phase") == "between steps" or content.get("done")
        if isinstance(step, int) and not finished and (rows or content.get("failed_in")):
            open_step = step
            if rows:
                steps[step] = tuple(rows)
    error, log = read.object(files.error), read.tail(files.log, _LOG_BYTES).decode(errors="replace")
    callstack, raised_at = _about_error(error)
    return Rank(
        culprit=Culprit(rank, str(host).partition(".")[0] if host else "", gpu if isinstance(gpu, int) else None),
        folder=files.folder,
        beat=beat_of(content) if content else None,
        beat_ns=_integer(content.get("monotonic_ns")),
        failed_in=str(content.get("failed_in") or ""),
        answered=_integer(content.get("answered")),
        groups=_groups(content.get("groups")),
        steps=steps,
        open_step=open_step,
        exit=ended,
        error=_error(error),
        raised=chain_of(callstack) or chain_of_message(_error(error)) or chain_of(log[-_TRACEBACK_CHARS:]),
        raised_at=raised_at,
        log=log,
    )


def _calls(tail: bytes) -> dict[int, tuple[CalledCollective, ...]]:
    """The calls by step. The first line of the tail is incomplete, and the last one may be."""
    found: dict[int, list[CalledCollective]] = defaultdict(list)
    for line in tail.splitlines():
        try:
            content = json.loads(line)
            step, rows = int(content["step"]), list(content["rows"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        found[step] += [call for row in rows if (call := _call(row)) is not None]
    return {step: tuple(sorted(calls, key=lambda call: (call.group, call.seq))) for step, calls in found.items()}


def _call(row: object) -> CalledCollective | None:
    """From a ``CollectiveRow``."""
    try:
        group, seq, op, size, dtype, _, end_ns = list(row)[:7]  # type: ignore[call-overload]
        return CalledCollective(str(group), int(seq), str(op), int(size), str(dtype), end_ns is not None)
    except (TypeError, ValueError):
        return None


def _exits(rows: Sequence[object]) -> dict[int, Exit]:
    found = {}
    for one in rows:
        if isinstance(one, dict) and isinstance(one.get("rank"), int) and isinstance(one.get("exit_code"), int):
            found[one["rank"]] = Exit(one["exit_code"], bool(one.get("first")), bool(one.get("by_launcher")))
    return found


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


def _groups(content: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(content, dict):
        return {}
    return {
        str(name): tuple(rank for rank in ranks if isinstance(rank, int))
        for name, ranks in content.items()
        if isinstance(ranks, list)
    }


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

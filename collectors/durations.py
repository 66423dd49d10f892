"""Durations of collectives on the device, from the accelerator's Flight Recorder.

ProcessGroupNCCL and XCCL time each collective with two events once timing is enabled, and their watchdog puts the
elapsed time into the recorder's entry when the collective has ended. The recorder's JSON dump is the only way to read
it. A dump holds the whole ring buffer, and Python is blocked while C++ writes it [measured: 10 us an entry, so 20 ms
for 2,000]. So the ring is read only as often as ``cpu_share`` allows. All ranks read at the same moments of the wall
clock: where the ring wraps in between, they lose the same calls, and the remaining calls can be compared.

Members of a coalesced launch have no events of their own, and sends and receives do not wait for all ranks: both are
left out.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from .accelerator import Accelerator, query_beside_captures
from .block_sums import SumsOfBlocks
from .budget import Complaints, LineFile
from .flight_recorder import TORCH, Recorder, native_recorder
from .policy import RECORDING
from .records import DurationLine, DurationRow

TIMING_VARIABLE = "TORCH_NCCL_ENABLE_TIMING"  # applies to groups that are created after it was set
_TORCH = (2, 7)  # earlier versions freed events when their collective ended, also while a dump queried them
_NUMBER = b'"record_id":'
_FALSE = frozenset({"0", "N", "NO", "F", "FALSE"})


INSPECTED = "NCCL Inspector records them"


def inspector_records(environ: Mapping[str, str]) -> bool:
    return "NCCL_PROFILER_PLUGIN" in environ and environ.get("NCCL_INSPECTOR_ENABLE", "0") not in ("", "0")


def no_timing_because(enabled: bool, environ: Mapping[str, str] = os.environ) -> str:
    """Why the Flight Recorder must not time collectives; "" if it may. ``enabled``: the settings ask for it."""
    if not enabled:
        return "switched off"
    if inspector_records(environ):
        return INSPECTED
    if environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        return "CUDA_DEVICE_MAX_CONNECTIONS=1, where the events of the timing would serialise the streams"
    for name in (TIMING_VARIABLE, "TORCH_NCCL_CUDA_EVENT_CACHE"):
        if environ.get(name, "1").upper() in _FALSE:
            return f"{name} is off"
    if TORCH < _TORCH:
        return f"torch {torch.__version__} is older than {'.'.join(map(str, _TORCH))}"
    return ""


def poll_of(
    accelerator: Accelerator | None,
    enabled: bool,
    file: LineFile,
    complaints: Complaints,
    sums: SumsOfBlocks | None = None,
) -> tuple[DurationPoll | None, str]:
    """The poll that reads this process's recorder; or None, and why durations are not recorded. ``sums``: takes the
    durations as well."""
    if accelerator is None:
        return None, "this rank uses no GPU"
    if why := no_timing_because(enabled):
        return None, why
    if not dist.is_available() or not dist.is_initialized():
        return None, "there is no process group"
    recorder = native_recorder()
    if recorder is None:
        return None, "this build of torch has no Flight Recorder of an accelerator"
    timing = _Timing()
    timing.enable()
    kind = accelerator.kind
    return DurationPoll(recorder, file, complaints, timing.enable, lambda: query_beside_captures(kind), sums), ""


class _Timing:
    """Enables the timing of groups that were created before TIMING_VARIABLE was set."""

    def __init__(self) -> None:
        self._enabled: set[str] = set()

    def enable(self) -> None:
        world = dist.distributed_c10d._world
        for group in list(world.pg_map):
            name = str(world.pg_names.get(group))
            if name in self._enabled:
                continue
            self._enabled.add(name)
            try:
                # Of the group, not of its backends: the Python objects of those do not have it.
                group._enable_collectives_timing()  # type: ignore[attr-defined]
            except RuntimeError:  # a backend that times nothing
                continue


class Pace:
    """Runs something as often as ``cpu_share`` allows, at moments of the wall clock that ranks have in common."""

    def __init__(self) -> None:
        self._due_s = self._period_s = 0

    def run(self, now_s: float, look: Callable[[], object]) -> None:
        """Calls ``look`` if it is due."""
        if 0 < self._due_s - now_s <= 2 * self._period_s:
            return
        began = time.thread_time()
        look()
        self._period_s = period_of(time.thread_time() - began)
        half = self._period_s / 2  # the next moment may be near
        self._due_s = (int(now_s + half) // self._period_s + 1) * self._period_s


class DurationPoll:
    """Writes the duration of each collective once. ``look`` never raises: an error ends the polling."""

    def __init__(
        self,
        recorder: Recorder,
        file: LineFile,
        complaints: Complaints,
        enable: Callable[[], object] = lambda: None,
        safe: Callable[[], bool] = lambda: True,
        sums: SumsOfBlocks | None = None,
    ) -> None:
        """``enable``: called before each reading, as groups are created at any time. ``safe``: called once by the
        polling thread; returns whether it may query events while another thread captures a graph. ``sums``: takes
        the durations as well."""
        self._recorder, self._file, self._complaints = recorder, file, complaints
        self._enable, self._safe, self._sums = enable, safe, sums
        self._off = self._checked = False
        self._pace = Pace()
        self._next: int | None = None  # the number of the first entry that was not there yet
        self._pending: dict[int, bool] = {}  # see ``_Reading.left``
        self._ranks: dict[str, tuple[object, list[int]]] = {}  # ranks of groups: the recorder's text, and parsed
        self._named: dict[str, list[int]] = {}  # groups whose ranks are in the file
        self._in_vain = 0
        file.at_begin = self._name_groups

    def poll(self, now_s: float | None = None) -> None:
        """Reads the recorder if it is due. ``now_s``: seconds of the wall clock."""
        if not self._off:
            self._pace.run(time.time() if now_s is None else now_s, self._checked_look)

    def _checked_look(self) -> None:
        if not self._checked:
            self._checked = True
            if not self._safe():
                self._stop("the stream capture mode of a thread cannot be set")
        self.look()

    def look(self) -> None:
        """Reads the recorder now."""
        try:
            if self._off or not dist.is_initialized():  # without groups the recorder's events are gone
                return
            self._enable()
            for line in self._lines():
                self._file.write(line)
        except Exception as error:  # whatever C++ raises, or an unknown format: it must not end the training
            self._stop(repr(error))

    def _stop(self, why: str) -> None:
        self._off = True
        self._complaints.add("durations of collectives are not recorded", why)

    def _lines(self) -> Iterator[DurationLine]:
        assert self._recorder.json is not None
        began = time.thread_time()
        text = self._recorder.json(includeCollectives=True, onlyActive=False)
        if time.thread_time() - began > RECORDING.longest_still_s:
            self._stop(
                f"the recorder's buffer is so large that reading it takes more than {RECORDING.longest_still_s} s"
            )
        if not self._is_new(last_number(text)):
            return
        reading = _Reading(self._next or 0, self._pending)
        rest = read_dump(text, min(self._pending, default=self._next or 0), reading.take)
        lost = reading.lost() if self._next is not None else 0
        self._read_groups(rest.get("pg_config") or {})
        rows = [row for row in reading.rows if len(self._ranks.get(row.group, ("", [0, 1]))[1]) != 1]
        if self._sums is not None:
            self._sums.add(rows, lambda group: self._ranks.get(group, ("", []))[1], reading.awaited())
        for start in range(0, max(len(rows), min(lost, 1)), RECORDING.rows_of_line):
            chunk = rows[start : start + RECORDING.rows_of_line]
            yield DurationLine(chunk, self._new_groups(chunk), self._recorder.name, 0 if start else lost)
        self._next, self._pending = reading.next, reading.left()
        self._in_vain = 0 if reading.rows else self._in_vain + bool(reading.last)
        if self._in_vain >= RECORDING.readings_in_vain:
            self._stop(f"the Flight Recorder of {self._recorder.name or 'this backend'} has no durations")

    def _is_new(self, last: int) -> bool:
        """Whether a dump whose last entry has this number holds anything to read."""
        if self._next is not None and last < self._next - 1:  # the recorder was reset, and counts anew
            self._next, self._pending = 0, {}
        if last < 0:
            self._next = self._next or 0
            return False
        return last + 1 != self._next or bool(self._pending)

    def _read_groups(self, config: Mapping[str, Any]) -> None:
        for name, group in config.items():
            text = group.get("ranks")
            if name not in self._ranks or self._ranks[name][0] != text:
                self._ranks[name] = text, _ranks_of(text)

    def _name_groups(self, line: DurationLine) -> None:
        """Names all groups in the first line of a piece, as those before it may be removed."""
        line.groups = self._named | line.groups

    def _new_groups(self, rows: list[DurationRow]) -> dict[str, list[int]]:
        """The groups of these rows whose ranks are in no line yet, or have changed."""
        names = {row.group for row in rows} & self._ranks.keys()
        new = {name: self._ranks[name][1] for name in names if self._ranks[name][1] != self._named.get(name)}
        self._named.update(new)
        return new


def period_of(cpu_s: float) -> int:
    """Seconds between two readings that take this CPU time: 1, 2, 3, 4, 6, 8, 12, 16, ..., so that ranks with different
    periods have moments in common."""
    least = max(1, math.ceil(RECORDING.reserve * cpu_s / RECORDING.cpu_share))
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power > 2 and power * 3 // 4 >= least else power


def last_number(text: bytes) -> int:
    """The number of a dump's last entry; -1 where it has none."""
    position = text.rfind(_NUMBER)
    match = (
        re.match(rb"\s*(\d+)", text[position + len(_NUMBER) : position + len(_NUMBER) + 20]) if position >= 0 else None
    )
    return int(match[1]) if match else -1


def read_dump(text: bytes, first: int, take: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Passes the entries of a dump from number ``first`` on to ``take``; returns what the dump holds after them. Parses
    only the text from entry ``first`` on, or the whole text where that is not found. ValueError for other text.

    Entries are parsed one at a time: thousands of them at once would trigger Python's garbage collector.
    """
    position = text.rfind(b"%s%d," % (_NUMBER, first))
    begin = text.rfind(b"{", 0, position) if position >= 0 else -1
    if begin >= 0:
        tail = text[begin:].decode()
        try:
            entry, end = _decode(tail, 0)
        except ValueError:  # a name with a brace in it
            entry, end = None, 0
        if isinstance(entry, dict) and entry.get("record_id") == first:
            take(entry)
            while tail[end] == ",":
                entry, end = _decode(tail, end + 1)
                take(entry)
            rest: dict[str, Any] = json.loads("{" + tail[end + 1 :].removeprefix(","))
            return rest
    dump = json.loads(text)
    if not isinstance(dump, dict):
        raise ValueError("the recorder's dump is not a JSON object")
    for entry in dump.pop("entries", None) or []:
        if entry["record_id"] >= first:
            take(entry)
    return dump


_decode = json.JSONDecoder().raw_decode


class _Reading:
    """One reading of the recorder. ``rows``: the collectives that have ended since the previous reading. ``next``: the
    number of the next entry to come. ``last``: the last retired entry of each group.

    A watchdog adds the duration just after it retires an entry, and retires a group's entries nearly in order. An entry
    that was retired without a duration, or skipped as members of a coalesced launch are, gets one more reading.
    """

    def __init__(self, new: int, before: Mapping[int, bool]) -> None:
        """``new``: the number of the first entry that was in no reading yet; ``before``: what ``left`` of the previous
        reading returned."""
        self._new, self._before = new, before
        self._apart_ns = time.time_ns() - time.monotonic_ns()
        self._first = -1
        self._open: list[tuple[int, object, str, int]] = []  # without a duration: number, group, its name, seq
        self.rows: list[DurationRow] = []
        self.next = new
        self.last: dict[object, int] = {}

    def take(self, entry: Mapping[str, Any]) -> None:
        number, group = int(entry["record_id"]), entry.get("pg_id")
        self.next = number + 1
        if self._first < 0:
            self._first = number
        if entry.get("is_p2p"):
            return
        if entry.get("retired"):
            self.last[group] = number
        if number < self._new and number not in self._before:
            return
        if (row := _row(entry, self._apart_ns)) is not None:
            self.rows.append(row)
        elif not self._before.get(number):
            self._open.append((number, group, str(entry["process_group"][0]), int(entry["collective_seq_id"])))

    def lost(self) -> int:
        """How many entries were overwritten before they were read."""
        return max(0, self._first - self._new) + sum(number < self._first for number in self._before)

    def left(self) -> dict[int, bool]:
        """The entries that the next reading has to look at again; True for those that it looks at for the last time."""
        return {number: number <= self.last.get(group, -1) for number, group, _, _ in self._open}

    def awaited(self) -> set[tuple[str, int]]:
        """Group and number of the collectives whose duration may still come."""
        return {(name, seq) for _, _, name, seq in self._open}


# -- entries -----------------------------------------------------------------------------------------------------------

# Parts of operation names such as "nccl:_all_gather_base"; the first match counts.
_OPS = (
    ("barrier", "barrier"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("allreduce", "all_reduce"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
# The names of types in c10::toString: their names in torch, and the bytes of an element.
_TYPES = {
    "Float": ("float32", 4),
    "BFloat16": ("bfloat16", 2),
    "Half": ("float16", 2),
    "Double": ("float64", 8),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "UInt64": ("uint64", 8),
    "UInt32": ("uint32", 4),
    "UInt16": ("uint16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}


def _row(entry: Mapping[str, Any], apart_ns: int) -> DurationRow | None:
    """The row of an entry; None without a duration. ``apart_ns``: the wall clock's lead over the monotonic clock."""
    took_ms = entry.get("duration_ms")
    if not isinstance(took_ms, float | int) or not 0 <= took_ms < 1e12:
        return None
    op = _op(str(entry["profiling_name"]))
    side = "output" if op == "all_gather" else "input"
    names = entry.get(f"{side}_dtypes") or [""]
    dtype, size = _TYPES.get(names[0], (names[0].lower(), 1))  # types that are not in the table have one byte
    elements = sum(math.prod(sizes) for sizes in entry.get(f"{side}_sizes") or ())
    created_ns = int(entry["time_created_ns"]) - apart_ns
    group, seq = str(entry["process_group"][0]), int(entry["collective_seq_id"])
    return DurationRow(group, seq, op, elements * size, dtype, created_ns, round(took_ms * 1e6))


@cache
def _op(title: str) -> str:
    name = title.rpartition(":")[2]
    plain = name.lower().replace("_", "")
    return next((op for part, op in _OPS if part in plain), name)


def _ranks_of(text: object) -> list[int]:
    """The ranks in a text like "[0, 1]"; empty for any other text."""
    try:
        ranks = json.loads(text) if isinstance(text, str) else []
    except ValueError:
        return []
    return ranks if isinstance(ranks, list) and all(type(rank) is int for rank in ranks) else []

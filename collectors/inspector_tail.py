"""Durations of collectives that NCCL Inspector writes while a rank trains, for the sums in the rank's summary.

Where Inspector records, the Flight Recorder does not (``durations.no_timing_because``). Inspector writes
``<host>-pid<pid>.log`` into NCCL_INSPECTOR_DUMP_DIR, a JSON line for each collective: ``diag.rundir.inspector`` has its
facts. The new lines are read as often as ``cpu_share`` allows. Where there are more than that, blocks are left out by
their numbers (``block_sums.chosen``), so that ranks that leave out different parts have blocks in common.

Inspector numbers the calls of each operation of a communicator [NCCL's src/misc/profiler.cc: seqNumber[func]], so the
blocks are of these. Prometheus text has means only, which cannot be summed: that is left out. So are collectives whose
time was taken on the host.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .accelerator import Accelerator
from .block_sums import SumsOfBlocks, chosen
from .budget import Complaints
from .durations import INSPECTED, Pace, inspector_records
from .inspector import operation_of
from .layout import MOST_NS, MOST_RANKS
from .policy import RECORDING
from .reading import open_regular, whole
from .records import CALLS_OF_A_SUM, DurationRow

FOLDER_VARIABLE = "NCCL_INSPECTOR_DUMP_DIR"
_NUMBER = re.compile(rb'"coll_sn"\s*:\s*(\d{1,11})\b')
_OTHERS = b'"p2p_perf"', b'"proxy_trace"'

_Context = tuple[Mapping[str, Any], Mapping[str, Any]]  # header and metadata


def tail_of(
    accelerator: Accelerator | None, timing: str, complaints: Complaints, sums: SumsOfBlocks
) -> tuple[InspectorTail, str] | None:
    """The tail of this process's file, and why the Flight Recorder's durations are not recorded; None where Inspector
    does not record, or not to where is known. ``timing``: as in the settings."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if accelerator is None or timing == "off" or not inspector_records(os.environ) or not folder:
        return None
    return InspectorTail(Path(folder), complaints, sums, time.time_ns() // 1000), INSPECTED


class InspectorTail:
    """Adds each collective in the file once. ``look`` never raises: an error ends the reading."""

    def __init__(
        self, folder: Path, complaints: Complaints, sums: SumsOfBlocks, since_us: int, pid: int | None = None
    ) -> None:
        """``since_us``: of the wall clock; older records are another process's. ``pid``: this process's."""
        self._complaints, self._sums, self._since_us = complaints, sums, since_us
        self._pid = os.getpid() if pid is None else pid
        self._path = folder / f"{socket.gethostname()}-pid{self._pid}.log"
        sums.ranks_known = False
        self._pace = Pace()
        self._off = False
        self._inode = self._at = 0
        self._level = 0  # see ``chosen``
        self._inside = False  # of a line whose begin was left out
        self._jumped = False
        self._context: _Context | None = None  # of v4.3: of the lines that follow it
        self._understood = self._strange = 0  # lines
        self._ranks: dict[str, range] = {}  # of a group: within it
        self._newest: dict[str, int] = {}  # block of a group
        self._seen: dict[str, set[int]] = defaultdict(set)  # numbers of the calls in this block and the one before
        self._dumped_us: dict[str, int] = {}

    def poll(self, now_s: float | None = None) -> None:
        """Reads new lines if that is due. ``now_s``: seconds of the wall clock."""
        if not self._off:
            self._pace.run(time.time() if now_s is None else now_s, self.look)

    def look(self) -> None:
        """Reads new lines now: at most ``RECORDING.inspector_bytes``."""
        try:
            if not self._off:
                self._read()
        except FileNotFoundError:  # not there yet, or moved away
            return
        except Exception as error:  # a disk that fails, or an unknown format: it must not end the training
            self._stop(repr(error))

    def _stop(self, why: str) -> None:
        self._off = True
        self._complaints.add("durations of NCCL Inspector are not in the summary", why)

    def _read(self) -> None:
        with open_regular(self._path) as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self._at:  # another file, or it was cut
                self._inode, self._at, self._inside, self._context = about.st_ino, 0, False, None
            behind = about.st_size - self._at
            if behind > RECORDING.inspector_backlog_bytes:
                self._at, self._inside, self._context = about.st_size - RECORDING.inspector_bytes, True, None
                self._jumped = True
            file.seek(self._at)
            text = file.read(RECORDING.inspector_bytes)
        end = text.rfind(b"\n") + 1
        if not end and len(text) >= RECORDING.inspector_bytes:
            self._stop("the file has no lines")
            return
        self._at += end
        lines = text[:end].split(b"\n")[self._inside and end > 0 :]
        self._inside = self._inside and not end
        self._take(lines)
        if behind > RECORDING.inspector_bytes:
            self._level = min(self._level + 1, RECORDING.inspector_levels)
        elif behind < RECORDING.inspector_bytes // 8:
            self._level = max(self._level - 1, 0)

    def _take(self, lines: list[bytes]) -> None:
        found: dict[str, list[tuple[int, str, int, int]]] = defaultdict(list)  # number, operation, ns, when dumped
        for line in lines:
            if not (line := line.strip()):
                continue
            try:
                self._take_line(line, found)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self._strange += 1
        if self._strange > max(self._understood, RECORDING.inspector_strange_lines):
            self._stop(f"{self._path.name} is not in the JSON format of NCCL Inspector")
            return
        rows = [row for group, calls in found.items() for row in self._rows(group, calls)]
        # The blocks before the last two have ended: calls on two streams may end in another order.
        waits = {(group, CALLS_OF_A_SUM * (newest - 1)) for group, newest in self._newest.items()}
        if rows:
            self._sums.add(rows, self._ranks.__getitem__, waits)

    def _take_line(self, line: bytes, found: dict[str, list[tuple[int, str, int, int]]]) -> None:
        number = _NUMBER.search(line)
        if number is None:
            if b'"dump_stats"' in line:
                self._context = _context(json.loads(line))
            elif not any(mark in line for mark in _OTHERS):
                raise ValueError("an unknown line")
            self._understood += 1
            return
        seq = int(number[1])
        block = seq // CALLS_OF_A_SUM
        if not chosen(block, self._level):
            return
        record = json.loads(line)
        context = _context(record) or self._context
        if context is None:
            if self._jumped:  # over its header
                return
            raise ValueError("no header")
        (header, metadata), call = context, record["coll_perf"]
        if whole(metadata["pid"]) != self._pid:
            return
        took_us, size, dumped_us = call["coll_exec_time_us"], whole(header["n_ranks"]), metadata["dump_timestamp_us"]
        if whole(call["coll_sn"]) != seq or not 0 <= 1000 * took_us < MOST_NS or not 1 <= size <= MOST_RANKS:
            raise ValueError("a number that cannot be")
        self._understood += 1
        if whole(dumped_us) < self._since_us or str(call.get("coll_timing_source", "")).endswith("_cpu"):
            return
        op = operation_of(call["coll"])
        group = f"{str(header['id'])[:100]} {op}"
        if group not in self._newest:
            self._newest[group], self._ranks[group] = block, range(size)
        newest = self._newest[group]
        if block > newest:
            self._newest[group] = block
            self._seen[group] = {one for one in self._seen[group] if one // CALLS_OF_A_SUM >= block - 1}
        if block >= newest - 1 and seq not in self._seen[group]:
            self._seen[group].add(seq)
            found[group].append((seq, op, round(took_us * 1000), dumped_us))

    def _rows(self, group: str, calls: list[tuple[int, str, int, int]]) -> list[DurationRow]:
        """Inspector does not say when a collective began. Those of a dump were called since the dump before: they are
        spread evenly over that time."""
        apart_us = (time.time_ns() - time.monotonic_ns()) // 1000
        rows: list[DurationRow] = []
        at = 0
        while at < len(calls):
            first = calls[at][3]
            count = next(
                (n for n, call in enumerate(calls[at:]) if call[3] - first > RECORDING.inspector_dump_us),
                len(calls) - at,
            )
            before = self._dumped_us.get(group, first)
            for place, (seq, op, took_ns, _) in enumerate(calls[at : at + count]):
                called_us = before + (first - before) * place // count - apart_us
                rows.append(DurationRow(group, seq, op, 0, "", 1000 * called_us, took_ns))
            self._dumped_us[group] = first
            at += count
        return rows


def _context(record: Mapping[str, Any]) -> _Context | None:
    header, metadata = record.get("header"), record.get("metadata")
    return (header, metadata) if isinstance(header, dict) and isinstance(metadata, dict) else None

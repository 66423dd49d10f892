"""Durations of collectives from any source, and those that the ranks took from PyTorch's Flight Recorder.

``diag.rundir.inspector`` reads NCCL Inspector's files. ``diag.collectors.durations`` writes a rank's durations.jsonl.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.layout import RankLayout
from diag.collectors.records import DurationLine, DurationRow, RankRecord
from diag.deferred import pl
from diag.model import Gap
from diag.rundir.policy import RUN_READING
from diag.words.formatting import counted, rank_ranges

from .lines import each_line

INSPECTOR: Final = "NCCL Inspector"
RECORDER: Final = "PyTorch's Flight Recorder"
SUMMED: Final = "collectives"  # the operation of a row that is the sum over several, all of them SYNCHRONISING
_ONE_CALL: Final = ("process", "group", "op", "seq", "peer", "bytes", "duration_ns")
_MOST: Final = 1 << 60


class Process(Struct, frozen=True):
    """A process that wrote records; in Prometheus text, a GPU. ``communicators``: its rank in each, and the size."""

    host: str
    pid: int
    communicators: dict[str, tuple[int, int]]
    gpu: str = ""


class DurationRecords(Struct, frozen=True, eq=False):
    """All records of a job, one row each, in the order in which each process wrote them.

    ``rows``: ``process`` (place in ``processes``), ``group`` (the communicator's id), ``seq``, ``op``, ``bytes`` (of
    the full tensor), ``duration_ns``, ``end_ns`` (of the host's clock; null unless the output is verbose),
    ``dumped_ns`` (when the record was written), ``peer`` (of a send or receive, else -1). ``names``: of communicators.
    ``on_cpu``: number of records with times measured on the host. ``means``: the rows are means over an interval.
    ``places``: by file, the processes whose records it holds. ``source``: the recorder. ``dropped``: number of records
    that it lost. ``calls_of_a_row``: if more than 1, each row is a sum over so many collectives at most, and has
    further columns: see ``diag.account.durations.durations_of``.
    """

    rows: pl.DataFrame
    processes: tuple[Process, ...]
    names: dict[str, str]
    files: tuple[str, ...]
    gaps: tuple[Gap, ...]
    dropped: int = 0
    on_cpu: int = 0
    means: bool = False
    places: dict[str, frozenset[int]] = {}
    source: str = INSPECTOR
    calls_of_a_row: int = 1

    @property
    def seen(self) -> float:
        """Fraction of the records that was not lost; 1.0 without any record."""
        count = len(self.rows) + self.dropped
        return len(self.rows) / count if count else 1.0

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ranks of each communicator."""
        return {group: size for process in self.processes for group, (_, size) in process.communicators.items()}


class DurationColumns:
    """The records read so far. Columns of numbers are arrays: a job leaves millions of records."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, int, str], int] = {}
        self.communicators: list[dict[str, tuple[int, int]]] = []
        self.names: dict[str, str] = {}
        self.columns: dict[str, array[int]] = {
            name: array("q") for name in ("process", "seq", "bytes", "duration_ns", "end_ns", "dumped_ns", "peer")
        }
        self.groups: dict[str, int] = {}
        self.ops: dict[str, int] = {}
        self.group, self.op = array("l"), array("l")
        self.gaps: list[Gap] = []
        self.dropped: dict[tuple[int, str], int] = defaultdict(int)
        self.on_cpu = 0
        self.means = False
        self.places: dict[str, frozenset[int]] = {}

    @property
    def full(self) -> bool:
        return len(self.group) >= RUN_READING.most_duration_records

    def process_of(self, host: str, pid: int, gpu: str = "") -> int:
        key = host, pid, gpu
        if key not in self.processes:
            self.processes[key] = len(self.processes)
            self.communicators.append({})
        return self.processes[key]

    def add(self, process: int, group: str, op: str, **values: int) -> None:
        self.group.append(self.groups.setdefault(group, len(self.groups)))
        self.op.append(self.ops.setdefault(op, len(self.ops)))
        self.columns["process"].append(process)
        for name, value in values.items():
            self.columns[name].append(value)

    def _column(self, name: str) -> pl.Series:
        return pl.Series(np.asarray(self.columns.pop(name), dtype=np.int64), dtype=pl.Int64)

    def done(self, files: Sequence[Path]) -> DurationRecords:
        groups, ops = (pl.Series(list(names), dtype=pl.String) for names in (self.groups, self.ops))
        rows = pl.DataFrame({name: self._column(name) for name in tuple(self.columns)})
        rows = rows.with_columns(
            group=groups.gather(pl.Series(self.group, dtype=pl.UInt32)),
            op=ops.gather(pl.Series(self.op, dtype=pl.UInt32)),
            end_ns=pl.when(pl.col("end_ns") > 0).then(pl.col("end_ns")),
            dumped_ns=pl.when(pl.col("dumped_ns") > 0).then(pl.col("dumped_ns")),
        )
        if not self.means:  # means of two intervals may be equal; a collective has one number
            once = each_once(rows, _ONE_CALL)
            if (repeated := len(rows) - len(once)) and files:
                self.gaps.append(
                    Gap(str(files[0]), f"{counted(repeated, 'record')} twice, as in copied files; left out")
                )
            rows = once
        processes = [
            Process(host, pid, communicators, gpu)
            for (host, pid, gpu), communicators in zip(self.processes, self.communicators, strict=True)
        ]
        return DurationRecords(
            rows,
            tuple(processes),
            self.names,
            tuple(map(str, files)),
            tuple(self.gaps),
            sum(self.dropped.values()),
            self.on_cpu,
            self.means,
            self.places,
        )


def each_once(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The rows, the first of those with equal values in these columns. Only rows with equal hashes are compared:
    comparing all takes 300 bytes a row."""
    hashed = rows.select(key).hash_rows()
    if hashed.n_unique() == len(rows):
        return rows
    rows = rows.with_row_index("row")
    alike = hashed.is_duplicated()
    first = rows.filter(alike).unique(key, keep="first")["row"]
    return rows.filter(~alike | pl.col("row").is_in(first.implode())).drop("row")


def with_ranks(read: DurationRecords, ranks: Mapping[int, int]) -> pl.DataFrame:
    """The rows with a column ``rank``, from the ranks of the processes."""
    return read.rows.with_columns(rank=pl.col("process").replace_strict(ranks, return_dtype=pl.Int64))


# -- PyTorch's Flight Recorder -----------------------------------------------------------------------------------------


def recorded(
    files: Mapping[int, RankLayout], identities: Mapping[int, RankRecord | None]
) -> tuple[DurationRecords, dict[int, int]] | None:
    """The records that the ranks took from their Flight Recorders, and the rank of each process; None without any.
    ``files``: of each rank whose folder can be read. Unreadable parts are gaps."""
    reading = _Recorded()
    for rank, rank_files in files.items():
        reading.read(rank, rank_files, identities.get(rank))
    return reading.done()


class _Recorded:
    """The records read so far. Groups are identified by name and ranks: two groups may have the same name."""

    def __init__(self) -> None:
        self._columns = DurationColumns()
        self._ranks: dict[int, int] = {}  # by process
        self._files: list[Path] = []
        self._names: dict[tuple[str, tuple[int, ...]], str] = {}
        self._taken: set[str] = set()

    def read(self, rank: int, files: RankLayout, identity: RankRecord | None) -> None:
        columns, path = self._columns, files.durations
        place = (identity.host, identity.pid) if identity is not None else ("", 0)
        process, groups = -1, set[str]()
        strange = beyond = 0

        def take(line: DurationLine) -> None:
            nonlocal process, strange, beyond
            if process < 0:
                process = columns.process_of(*place, f"{rank}")
                self._ranks[process] = rank
            columns.dropped[process, ""] += min(max(line.lost, 0), RUN_READING.most_duration_records)
            for name, ranks in line.groups.items():
                groups.discard(name)
                if rank in ranks:
                    groups.add(name)
                    known[name] = self._group(name, tuple(ranks))
                    columns.communicators[process][known[name]] = ranks.index(rank), len(ranks)
            for row in line.rows:
                if columns.full:
                    beyond += 1
                elif row.group in groups and _plausible(row):
                    self._add(process, known[row.group], row)
                else:
                    strange += 1

        known: dict[str, str] = {}
        gaps = each_line(path, DurationLine, take, files.run)
        if strange:
            durations = counted(strange, "duration")
            gaps.append(Gap(str(path), f"{durations} out of range or in a process group without this rank; left out"))
        if beyond:
            gaps.append(
                Gap(str(path), f"more than {RUN_READING.most_duration_records:,} durations: {beyond:,} were left out")
            )
        columns.gaps += gaps
        if process >= 0:
            self._files.append(path)

    def _add(self, process: int, group: str, row: DurationRow) -> None:
        values = {"seq": row.seq, "bytes": row.bytes, "duration_ns": row.duration_ns}
        self._columns.add(process, group, row.op[:40], **values, end_ns=0, dumped_ns=0, peer=-1)

    def _group(self, name: str, ranks: tuple[int, ...]) -> str:
        """The name of these ranks' group: its own, unless other ranks have a group of that name."""
        known = self._names.get((name, ranks))
        if known is None:
            taken = name in self._taken
            self._taken.add(name)
            known = self._names[name, ranks] = f"{name[:200]} of {rank_ranges(ranks)}" if taken else name[:200]
        return known

    def done(self) -> tuple[DurationRecords, dict[int, int]] | None:
        if not self._ranks and not self._columns.gaps:
            return None
        return replace(self._columns.done(self._files), source=RECORDER), self._ranks


def _plausible(row: DurationRow) -> bool:
    return 0 <= row.duration_ns < RUN_READING.longest_duration_ns and 0 <= row.seq < _MOST and 0 <= row.bytes < _MOST

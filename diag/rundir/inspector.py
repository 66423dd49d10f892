"""Reads the files of NCCL Inspector and RCCL Inspector: how long every collective took on every rank.

Inspector is a profiler plugin of NCCL (2.28 and newer) and of RCCL. It writes a file of JSON lines per process, or
Prometheus text with means over the last interval. Facts of NCCL's plugins/profiler/inspector (versions v4.0 to v4.3 of
its JSON, October 2025 to August 2026):

* ``header.rank`` is the rank within the communicator; host and process id identify a process.
* ``coll_sn`` counts the calls of one operation on one communicator.
* ``coll_exec_time_us`` includes the time in which the rank waited for the others. There are no begins and ends, unless
  the output is verbose; then they are times of the host's clock in microseconds.
* ``coll_msg_size_bytes`` is the contribution of one rank; the full tensor of an all-gather or a reduce-scatter is that
  size times the number of ranks. ``coll_algobw_gbs`` uses the full tensor, which decides between the two.
* Collectives below 8 KiB are not recorded by default, and a full ring buffer drops the oldest.
* In v4.3 a ``dump_stats`` line has the header of the records that follow it; before, each record has its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from diag.collectors.inspector import operation_of
from diag.collectors.layout import MOST_NS, MOST_RANKS, RankLayout, is_folder
from diag.collectors.reading import open_regular, walk
from diag.collectors.records import RankRecord
from diag.decoding import json_decoder
from diag.deferred import pl
from diag.model import DAMAGED, Gap
from diag.packed import PackedError, Unpacked
from diag.rundir.policy import RUN_READING
from diag.words.formatting import counted

from .durations import DurationColumns, DurationRecords, Process, with_ranks
from .inspector_files import is_inspector
from .tables import RankTables, Tables

_SAMPLE: Final = re.compile(
    r"nccl_(?:collective|p2p)_exec_time_microseconds\{(?P<labels>[^}]*)\}\s+(?P<value>[0-9.eE+-]+)\s*$"
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_PER_RANK: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Time = Annotated[float, Meta(ge=0, lt=1e15)]  # microseconds: 30 years


class _Header(Struct):
    id: str | int
    rank: Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
    n_ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    comm_name: str = ""


class _Metadata(Struct):
    inspector_output_format_version: str = ""
    hostname: str = ""
    pid: Count = 0
    dump_timestamp_us: Count = 0


class _Times(Struct):
    coll_start_ts: Count = 0
    coll_stop_ts: Count = 0
    p2p_start_ts: Count = 0
    p2p_stop_ts: Count = 0


class _Collective(Struct):
    coll: str
    coll_sn: Count
    coll_msg_size_bytes: Count
    coll_exec_time_us: Time
    coll_timing_source: str = ""
    coll_algobw_gbs: Time = 0.0
    event_trace_ts: _Times | None = None


class _P2p(Struct):
    p2p: str
    p2p_sn: Count
    p2p_peer: int
    p2p_msg_size_bytes: Count
    p2p_exec_time_us: Time
    p2p_timing_source: str = ""
    event_trace_ts: _Times | None = None


class _Stats(Struct):
    coll_records: Count = 0
    coll_dropped_total: Count = 0
    p2p_records: Count = 0
    p2p_dropped_total: Count = 0


class _Record(Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _P2p | None = None
    dump_stats: _Stats | None = None
    proxy_trace: dict[str, object] | None = None


def of_run(
    rank_files: Mapping[int, RankLayout], identities: Mapping[int, RankRecord | None]
) -> tuple[DurationRecords, dict[int, int]] | None:
    """The files of NCCL Inspector in the ranks' folders of a run directory, and the rank of each process; None without
    any. What another process wrote there is a gap."""
    ranks = {}
    files = []
    run = None
    for rank, of_rank in rank_files.items():
        if is_folder(of_rank.inspector):
            run = of_rank.run
            for file in walk(of_rank.inspector):
                if is_inspector(file, run):
                    files.append(Path(file))
                    ranks[file] = rank
    if not files:
        return None
    read = read_inspector(files, run)
    by_process = {}
    gaps = []
    for file, places in read.places.items():
        identity = identities.get(ranks[file])
        for at in sorted(places):
            if identity is not None and (reason := _not_of(read.processes[at], identity)):
                gaps.append(Gap(file, f"{reason}; left out"))
            else:
                by_process[at] = ranks[file]
    chosen = sorted(by_process)
    read = replace(_only(read, chosen), gaps=(*read.gaps, *gaps))
    return read, {place: by_process[at] for place, at in enumerate(chosen)}


def _not_of(process: Process, identity: RankRecord) -> str:
    """Why the records are not of this rank; "" if nothing contradicts it. The communicator of all ranks has their
    numbers."""
    of_all = [rank for rank, size in process.communicators.values() if size == identity.world_size and rank >= 0]
    if of_all and identity.rank not in of_all:
        return f"records of rank {of_all[0]}"
    return ""


def read_inspector(files: Sequence[Path], run: Path | None = None) -> DurationRecords:
    """The records of these files, which must not lead out of the run directory ``run``. Unreadable parts are gaps and
    do not affect the rest."""
    reading = DurationColumns()
    for path in files:
        before = len(reading.group)
        _read(path, reading, run)
        reading.places[str(path)] = frozenset(reading.columns["process"][before:])
    return reading.done(files)


def _read(path: Path, reading: DurationColumns, run: Path | None) -> None:
    try:
        with open_regular(path, run) as file:
            lines = iter(
                partial(
                    io.BufferedReader(
                        Unpacked(file, times=RUN_READING.inspector_inflation), RUN_READING.inspector_buffer_bytes
                    ).readline,
                    RUN_READING.inspector_line_bytes,
                ),
                b"",
            )
            useful = _useful(lines, reading)
            first = next(useful, b"")
            several = chain([first], useful)
            if first.lstrip()[:1] == b"{":
                _read_json(path, several, reading)
            else:
                _read_prometheus(path, several, reading)
    except (OSError, PackedError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reading.gaps.append(Gap(str(path), f"cannot be read to the end: {reason}"))


def _useful(lines: Iterator[bytes], reading: DurationColumns) -> Iterator[bytes]:
    """The lines that are not blank, as long as some of them become records. PackedError for a file of other lines."""
    before = len(reading.group)
    for number, line in enumerate(lines):
        if number > RUN_READING.useless_lines and number > RUN_READING.useless_lines + 10 * (
            len(reading.group) - before
        ):
            raise PackedError(f"more than {RUN_READING.useless_lines:,} lines are no records")
        if line.strip():
            yield line


def _read_json(path: Path, lines: Iterator[bytes], reading: DurationColumns) -> None:
    decode = json_decoder(_Record).decode
    context: tuple[_Header, _Metadata] | None = None
    damaged = alone = 0
    for line in lines:
        if reading.full:
            reading.gaps.append(
                Gap(str(path), f"more than {RUN_READING.most_duration_records:,} records: the others were left out")
            )
            break
        try:
            record = decode(line)
        except DAMAGED:
            if not line.endswith(b"\n") and len(line) < RUN_READING.inspector_line_bytes:
                reading.gaps.append(
                    Gap(str(path), "the last line is truncated (process killed or disk full); left out")
                )
            else:
                damaged += 1
            continue
        header, metadata = record.header, record.metadata
        if record.dump_stats is not None:
            context = (header, metadata) if header is not None and metadata is not None else None
            if context is not None:
                _count_dropped(*context, record.dump_stats, reading)
            continue
        if header is None or metadata is None:
            if context is None:
                alone += 1
                continue
            header, metadata = context
        _take(record, header, metadata, reading)
    if damaged:
        reading.gaps.append(Gap(str(path), f"{counted(damaged, 'invalid NCCL Inspector record')}; left out"))
    if alone:
        reading.gaps.append(Gap(str(path), f"{counted(alone, 'record')} without a communicator header; left out"))


def _take(record: _Record, header: _Header, metadata: _Metadata, reading: DurationColumns) -> None:
    group = str(header.id)
    process = reading.process_of(metadata.hostname, metadata.pid)
    reading.communicators[process].setdefault(group, (header.rank, header.n_ranks))
    if header.comm_name not in ("", "unknown"):
        reading.names.setdefault(group, header.comm_name)
    dumped_ns = _ns(metadata.dump_timestamp_us)
    if (collective := record.coll_perf) is not None:
        op = operation_of(collective.coll)
        reading.on_cpu += collective.coll_timing_source.endswith("_cpu")
        reading.add(
            process,
            group,
            op,
            seq=collective.coll_sn,
            bytes=_full_tensor(op, collective, header.n_ranks),
            duration_ns=round(collective.coll_exec_time_us * 1000),
            end_ns=_ns(collective.event_trace_ts.coll_stop_ts) if collective.event_trace_ts is not None else 0,
            dumped_ns=dumped_ns,
            peer=-1,
        )
    elif (transfer := record.p2p_perf) is not None:
        reading.on_cpu += transfer.p2p_timing_source.endswith("_cpu")
        reading.add(
            process,
            group,
            operation_of(transfer.p2p),
            seq=transfer.p2p_sn,
            bytes=transfer.p2p_msg_size_bytes,
            duration_ns=round(transfer.p2p_exec_time_us * 1000),
            end_ns=_ns(transfer.event_trace_ts.p2p_stop_ts) if transfer.event_trace_ts is not None else 0,
            dumped_ns=dumped_ns,
            peer=min(max(transfer.p2p_peer, -1), MOST_RANKS),
        )


def _ns(microseconds: int) -> int:
    return microseconds * 1000 if microseconds * 1000 < MOST_NS else 0


def _full_tensor(op: str, collective: _Collective, ranks: int) -> int:
    if op not in _PER_RANK:
        return collective.coll_msg_size_bytes
    moved = collective.coll_algobw_gbs * collective.coll_exec_time_us * 1000
    whole = min(collective.coll_msg_size_bytes * ranks, (1 << 62) - 1)
    return (
        collective.coll_msg_size_bytes
        if moved and abs(moved - whole) > abs(moved - collective.coll_msg_size_bytes)
        else whole
    )


def _count_dropped(header: _Header, metadata: _Metadata, stats: _Stats, reading: DurationColumns) -> None:
    place = reading.process_of(metadata.hostname, metadata.pid), str(header.id)
    reading.communicators[place[0]].setdefault(place[1], (header.rank, header.n_ranks))
    total = stats.coll_dropped_total + stats.p2p_dropped_total
    reading.dropped[place] = max(reading.dropped[place], total)


# -- Prometheus --------------------------------------------------------------------------------------------------------
#
# Means over the last interval (30 s) by GPU, communicator name, operation and size class. There are no ranks and no
# single collectives: GPUs of one communicator are compared by their means.

_UNITS: Final = {"B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40}
_SIZE: Final = re.compile(r"(\d{1,5})(?:-\d{1,5})?(B|KB|MB|GB|TB)$")


def _read_prometheus(path: Path, lines: Iterator[bytes], reading: DurationColumns) -> None:
    reading.means = True
    strange = 0
    for line in lines:
        text = line.decode("utf-8", "replace")
        if not text.startswith("nccl_") or "_exec_time_microseconds{" not in text:
            continue
        sample = _SAMPLE.match(text.strip())
        labels = dict(_LABEL.findall(sample["labels"])) if sample else {}
        op = labels.get("collective") or labels.get("p2p_operation", "")
        size = _SIZE.fullmatch(labels.get("message_size", ""))
        try:
            ranks, microseconds = int(labels["nranks"]), float(sample["value"]) if sample else 0.0
        except (KeyError, ValueError):
            strange += 1
            continue
        if not op or size is None or not 1 <= ranks <= MOST_RANKS or not 0 <= microseconds < 1e15:
            strange += 1
            continue
        name = labels.get("comm_name", "")
        group = f"{name or 'unknown'} of {ranks} ranks"
        process = reading.process_of(labels.get("node", ""), 0, labels.get("gpu", ""))
        reading.communicators[process].setdefault(group, (-1, ranks))
        amount = int(size[1]) << _UNITS[size[2]]
        reading.add(
            process,
            group,
            operation_of(op),
            seq=amount,
            bytes=amount,
            duration_ns=round(microseconds * 1000),
            end_ns=0,
            dumped_ns=0,
            peer=-1,
        )
    if strange:
        reading.gaps.append(Gap(str(path), f"{counted(strange, 'invalid NCCL Inspector sample')}; left out"))


# -- processes and ranks -----------------------------------------------------------------------------------------------


def newest_job(read: DurationRecords) -> DurationRecords:
    """The records of the newest job in the files; the rest is a gap. Processes that share no communicator with others,
    and wrote at another time, belong to another job: NCCL_INSPECTOR_DUMP_DIR is often reused."""
    jobs = _jobs(read.processes)
    number = max(jobs, default=-1) + 1
    at_ns = pl.col("dumped_ns")
    spans = (
        with_ranks(read, dict(enumerate(jobs)))
        .group_by(job="rank")
        .agg(first=at_ns.min(), last=at_ns.max())
        .drop_nulls()
    )
    if number < 2 or len(spans) < number:
        return read
    newest_jobs = set(spans.filter(pl.col("last") >= spans.sort("last", descending=True)["first"][0])["job"])
    if len(newest_jobs) == number:
        return read
    chosen = [at for at, job in enumerate(jobs) if job in newest_jobs]
    left = len(read.processes) - len(chosen)
    processes_left = f"{left:,} process{'es' if left > 1 else ''}"
    gap = Gap(read.files[0], f"{processes_left} of an earlier job in the same folder; left out")
    return replace(_only(read, chosen), gaps=(*read.gaps, gap))


def _only(read: DurationRecords, chosen: Sequence[int]) -> DurationRecords:
    """The records of these processes, which are numbered anew."""
    if len(chosen) == len(read.processes):
        return read
    place = {process: at for at, process in enumerate(chosen)}
    rows = read.rows.filter(pl.col("process").is_in(chosen)).with_columns(
        process=pl.col("process").replace_strict(place, return_dtype=pl.Int64)
    )
    return replace(read, rows=rows, processes=tuple(read.processes[at] for at in chosen))


def _jobs(processes: Sequence[Process]) -> list[int]:
    """The number of each process's job: processes that share a communicator, also by way of others, are of one job."""
    above = list(range(len(processes)))

    def root(at: int) -> int:
        while above[at] != at:
            above[at] = above[above[at]]
            at = above[at]
        return at

    first: dict[str, int] = {}
    for at, process in enumerate(processes):
        for group in process.communicators:
            above[root(at)] = root(first.setdefault(group, at))
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(at), len(numbers)) for at in range(len(processes))]


def ranks_of(read: DurationRecords) -> tuple[dict[int, int], bool]:
    """The rank of each process, by its place; and whether that is its rank in the communicator of all processes."""
    sizes = [(size, group) for process in read.processes for group, (_, size) in process.communicators.items()]
    _, world = max(sizes, default=(0, ""))
    world_ranks = {at: p.communicators[world][0] for at, p in enumerate(read.processes) if world in p.communicators}
    if (
        len(world_ranks) == len(read.processes)
        and len(set(world_ranks.values())) == len(world_ranks)
        and min(world_ranks.values(), default=0) >= 0
    ):
        return world_ranks, True
    order = sorted(range(len(read.processes)), key=lambda at: _order(read.processes[at]))
    return {at: rank for rank, at in enumerate(order)}, False


def _order(process: Process) -> tuple[str, int, str, int]:
    return process.host, len(process.gpu), process.gpu, process.pid


def tables_of(root: Path, read: DurationRecords, ranks: Mapping[int, int]) -> Tables:
    """The processes as ranks of a run without recorded steps."""
    world = max((size for process in read.processes for _, size in process.communicators.values()), default=0)
    world = max(world, len(ranks))
    of_host: dict[str, int] = {}
    identities = {}
    for at in sorted(ranks, key=lambda at: ranks[at]):
        process, rank = read.processes[at], ranks[at]
        local = of_host.setdefault(process.host, 0)
        of_host[process.host] += 1
        identities[rank] = RankRecord(rank, local, world, process.host, process.pid, process.host, 0, 0, "GPU")
    return Tables(
        root, None, world, {rank: RankTables(rank, identity) for rank, identity in identities.items()}, read.gaps
    )

"""One rank's Kineto (torch.profiler) trace: from the bytes of a file to a `Trace`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, field
from msgspec.structs import replace

from diag.collectors.layout import MOST_RANKS
from diag.deferred import pl
from diag.errors import DiagError
from diag.traces.event_table import EventTable, add_events
from diag.traces.kineto_names import whole
from diag.traces.policy import TRACE_CONTENTS
from diag.traces.trace import Events

from . import foreign, kineto_json
from . import kineto_names as names
from .fast.kineto_text import KinetoText
from .kineto_json import Cutter, exact_cut
from .kineto_names import index_of, parse_ranks
from .text_stream import blocks, damaged, file_name, opened
from .trace import Contents, Derived, Trace

# -- several ranks -----------------------------------------------------------------------------------------------------
#
# The ranks whose events one file holds, and each rank's part of them.
#
# torch.profiler writes a file for each process, and a process that drives several GPUs is one rank. A file with several
# ranks was merged by a tool. Some tools write the rank into each event (``args.rank``: AMD's TraceLens), some into the
# names of the processes. Others only put the files together: then a rank is a process of the host with the devices on
# which its launches run, found by correlation.

_RANK = re.compile(r"\brank[\s_:#-]*(\d{1,7})\b", re.I)
_HOST = (names.CPU_OP, *names.LAUNCH_CATEGORIES)
_WORK = (*_HOST, *names.DEVICE_CATEGORIES)
_HINT = "Pass one trace file per rank, or merge them with process and correlation ids that are unique per rank."


class RankContents(Struct, frozen=True, eq=False):
    """One rank's events. ``rank`` is None if the file does not contain it."""

    rank: int | None
    contents: Contents


class _Process(Struct):
    """A process of the host and its devices, as the events name them."""

    pid: str
    devices: list[str] = field(default_factory=list)


def host_pids(contents: Contents) -> tuple[str, ...]:
    """The host processes that have operators or runtime calls."""
    return tuple(_pids(contents, _HOST))


def only_rank(contents: Contents) -> int | None:
    """The only rank that the events name; None if they name none, or several."""
    ranks = {rank for process in contents.processes.values() for rank in process.ranks}
    return next(iter(ranks)) if len(ranks) == 1 else None


def parts_by_rank(contents: Contents, path: str) -> list[RankContents]:
    """The events of each rank, in order; [] if the file holds a single rank, as nearly all do. DiagError if it holds
    several that cannot be separated."""
    pids_by_rank = _pids_by_rank(contents, path)
    if pids_by_rank:
        return [
            _part(contents, rank, pids, _gap_text(contents, pids_by_rank, rank))
            for rank, pids in sorted(pids_by_rank.items())
        ]
    if len(_pids(contents, (names.CPU_OP,))) < 2 and (
        len(_pids(contents, names.LAUNCH_CATEGORIES)) < 2 or _pids(contents, (names.CPU_OP,))
    ):
        return []
    processes = _launching(contents, path)
    if not processes:
        return []
    pids = _listed([process.pid for process in processes])
    if len(processes) > 1:
        reason = (
            f"holds events of {len(processes)} processes ({pids}) without ranks; each process is treated as one rank"
        )
    else:
        reason = f"holds events of several processes, but only {pids} launched work on a device"
    ignored = len(_busy_pids(contents)) - len(processes)
    if ignored:
        reason += f"; {ignored} without work on a device {'was' if ignored == 1 else 'were'} left out"
    return [
        _part(contents, None, [process.pid, *process.devices], reason if number == 0 else "")
        for number, process in enumerate(processes)
    ]


# -- ranks named by the file -------------------------------------------------------------------------------------------


def _pids_by_rank(contents: Contents, path: str) -> dict[int, list[str]]:
    """The processes of each rank, if the file names several ranks; {} otherwise."""
    pids_by_rank: dict[int, list[str]] = {}
    for pid in dict.fromkeys(pid for pid, _ in contents.threads):
        process = contents.processes.get(pid)
        ranks = set(process.ranks) if process is not None else set()
        if not ranks:
            ranks = {int(number) for text in (pid, process.name if process else "") for number in _RANK.findall(text)}
        if len(ranks) > 1:
            raise DiagError(
                f"{file_name(path)}: events of ranks {_listed(sorted(ranks))} have the same process id {pid} "
                "and cannot be separated",
                hint=_HINT,
                path=path,
            )
        for rank in ranks:
            pids_by_rank.setdefault(rank, []).append(pid)
    busy = set(_pids(contents, _WORK))
    pids_by_rank = {rank: pids for rank, pids in pids_by_rank.items() if busy & set(pids)}
    if len(pids_by_rank) < 2:
        return {}
    rank_of = {pid: rank for rank, pids in pids_by_rank.items() for pid in pids}
    devices = [pid for pid in _pids(contents, names.DEVICE_CATEGORIES) if pid not in rank_of]
    if devices:
        hosts = [pid for pid in host_pids(contents) if pid in rank_of]
        for device, pid in _owners(contents, hosts, devices, path).items():
            pids_by_rank[rank_of[pid]].append(device)
    return pids_by_rank


def _gap_text(contents: Contents, pids_by_rank: Mapping[int, Collection[str]], rank: int) -> str:
    if rank != min(pids_by_rank):
        return ""
    named = {pid for pids in pids_by_rank.values() for pid in pids}
    without = [pid for pid in _pids(contents, _WORK) if pid not in named]
    reason = f"holds events of {len(pids_by_rank)} ranks; each rank is read as a separate trace"
    if without:
        reason += f"; events of processes without a rank ({_listed(without)}) were left out"
    return reason


# -- ranks inferred from the events ------------------------------------------------------------------------------------


def _launching(contents: Contents, path: str) -> list[_Process]:
    """The processes with their devices, in order of the devices; without devices, all processes in order of their ids.
    [] for fewer than two."""
    pids = _busy_pids(contents)
    if len(pids) < 2:
        return []
    devices = _pids(contents, names.DEVICE_CATEGORIES)
    if not devices:
        return [_Process(pid) for pid in pids]
    owners = _owners(contents, pids, devices, path)
    by_pid = {pid: _Process(pid) for pid in pids}
    for device, pid in owners.items():
        by_pid[pid].devices.append(device)
    launching = [process for process in by_pid.values() if process.devices]
    if len(launching) == 1:  # other busy processes are workers of its data loader, profiled too: not ranks
        return launching
    return sorted(launching, key=lambda process: (min(map(_number, process.devices)), _number(process.pid)))


def _busy_pids(contents: Contents) -> list[str]:
    """Processes with a share of the operators, or of the runtime calls if there are no operators."""
    kinds: Sequence[str] = (names.CPU_OP,) if _pids(contents, (names.CPU_OP,)) else names.LAUNCH_CATEGORIES
    counts = _by_pid(contents, kinds).group_by("pid").len()
    total = sum(counts["len"])
    return sorted(
        (pid for pid, count in counts.iter_rows() if count >= TRACE_CONTENTS.least_operators_share * total), key=_number
    )


def _owners(contents: Contents, pids: Sequence[str], devices: Sequence[str], path: str) -> dict[str, str]:
    launches = _by_pid(contents, names.LAUNCH_CATEGORIES, names.LAUNCH_PATTERN).filter(pl.col("pid").is_in(pids))
    work = _by_pid(contents, names.DEVICE_CATEGORIES).drop_nulls("correlation")
    joined = work.unique(["pid", "correlation"], keep="first").join(
        launches.unique(["pid", "correlation"], keep="first"), on="correlation", suffix="_host"
    )
    pairs = joined.group_by("pid", "pid_host").agg(
        pl.len().alias("count"), (pl.col("ts_ns_host") <= pl.col("ts_ns")).mean().alias("causal")
    )
    launched = dict(joined.unique(["pid", "correlation"]).group_by("pid").len().iter_rows())
    # Work without a correlation does not show its launcher; if all of a device's work has none, its owner is unknown.
    possible: dict[str, list[str]] = {device: [] for device in devices}
    for device, host, count, causal in pairs.iter_rows():
        if count >= TRACE_CONTENTS.launched_share * launched[device] and causal >= TRACE_CONTENTS.causal_share:
            possible[device].append(host)
    owners: dict[str, str] = {}
    while True:
        new = {device: hosts[0] for device, hosts in possible.items() if len(hosts) == 1 and device not in owners}
        if not new:
            break
        owners |= new
        if len(possible) <= len(pids):  # no process has two devices, or another has none
            taken = set(owners.values())
            possible = {d: h if d in owners else [host for host in h if host not in taken] for d, h in possible.items()}
    if len(owners) < len(possible):
        unclear = sorted(set(possible) - set(owners), key=_number)
        raise DiagError(
            f"{file_name(path)}: holds events of {len(pids)} processes ({_listed(pids)}), and their correlation ids do "
            f"not show which process launched the work on {'device' if len(unclear) == 1 else 'devices'} "
            f"{_listed(unclear)}",
            hint=_HINT,
            path=path,
        )
    return owners


def _by_pid(contents: Contents, categories: Collection[str], name: str | None = None) -> pl.DataFrame:
    events = contents.events
    codes = [code for code, category in enumerate(events.categories) if category in categories]
    rows = events.columns(codes, ("thread", "correlation", "ts_ns", "name"))
    if name is not None:
        rows = rows.filter(pl.Series(events.matching(name)[rows["name"].to_numpy()]))
    pids = pl.Series("pid", [pid for pid, _ in contents.threads], dtype=pl.String)
    return rows.select(pids.gather(rows["thread"]).alias("pid"), "correlation", "ts_ns")


def _part(contents: Contents, rank: int | None, pids: Collection[str], reason: str) -> RankContents:
    """The contents with the events of these processes alone, whose ids are again those from before the merging."""
    chosen = set(pids)
    threads = [code for code, (pid, _) in enumerate(contents.threads) if pid in chosen]
    events = contents.events
    frames = tuple(_only(frame, threads) for frame in events.frames)
    spans = [
        frame.lazy().select(pl.col("ts_ns").min().alias("a"), (pl.col("ts_ns") + pl.col("dur_ns")).max().alias("b"))
        for frame in frames
    ]
    span = pl.concat(pl.collect_all(spans)).select(pl.col("a").min(), pl.col("b").max())
    begin, end = span.row(0)
    chosen_threads = set(threads)
    return RankContents(
        rank,
        replace(
            contents,
            threads=tuple((_raw(contents, pid), tid) for pid, tid in contents.threads),
            begin_ns=begin if begin is not None else contents.begin_ns,
            end_ns=end if end is not None else contents.end_ns,
            gaps=(*contents.gaps, reason) if reason else (),
            events=Events(
                frames=frames,
                names=events.names,
                categories=events.categories,
                arguments=events.arguments,
                counters=events.counters.filter(pl.col("thread").is_in(pl.Series(threads, dtype=pl.UInt32).implode())),
            ),
            places=tuple((category, thread) for category, thread in contents.places if thread in chosen_threads),
            processes={pid: process for pid, process in contents.processes.items() if pid in chosen},
            derived=_PartsDerived(contents.derived, _key(pids)) if contents.derived is not None else None,
        ),
    )


class _PartsDerived(Struct, frozen=True):
    """Derived data of one rank, stored separately from the others'."""

    whole: Derived
    key: str

    def load(self, name: str) -> bytes | None:
        return self.whole.load(f"{name}-{self.key}")

    def save(self, name: str, data: bytes) -> None:
        self.whole.save(f"{name}-{self.key}", data)


def _key(pids: Iterable[str]) -> str:
    """A name for one rank's part of a file."""
    return sha256("\n".join(sorted(pids)).encode()).hexdigest()[:16]


def _only(frame: pl.DataFrame | pl.LazyFrame, threads: Sequence[int]) -> pl.DataFrame | pl.LazyFrame:
    return frame.filter(pl.col("thread").is_in(pl.Series(threads, dtype=pl.UInt32).implode()))


def _raw(contents: Contents, pid: str) -> str:
    process = contents.processes.get(pid)
    return process.raw or pid if process is not None else pid


def _pids(contents: Contents, categories: Collection[str]) -> list[str]:
    codes = {code for code, category in enumerate(contents.events.categories) if category in categories}
    return list(dict.fromkeys(contents.threads[thread][0] for code, thread in contents.places if code in codes))


def _number(pid: str) -> tuple[int, str]:
    """For an order in which 10 comes after 9."""
    match = re.search(r"(\d{1,18})$", pid)
    return (int(match[1]) if match else -1, pid)


def _listed(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[:8]))
    return shown if len(items) <= 8 else f"{shown} and {len(items) - 8} more"


_UNCLOSED = "the traceEvents array has no closing bracket: the last events may be missing"


def read_trace(path: Path | str) -> Trace:
    """The trace in a .json or .json.gz file. DiagError if the file is not a whole trace or holds no event."""
    with opened(str(path)) as file:
        return as_trace(read_contents(file, str(path)), str(path))


def read_contents(file: BinaryIO, name: str, write: Callable[[pl.DataFrame], None] | None = None) -> Contents:
    """Everything that is kept of a file, in memory or, part by part, wherever ``write`` puts it.

    The text is never in memory as a whole, so memory grows only with the kept data. DiagError if the file is not a
    whole Kineto trace, with the reason; what was written until then is useless."""
    table = EventTable(write)
    text = KinetoText(table, name)
    cutter = Cutter(blocks(file, name), name)
    while pieces := cutter.next_chunk():
        if not text.decode(pieces):
            _decode_any(table, cutter, b"".join(pieces), name)
    head, tail = _documents(cutter, name)
    add_events(table, tail.events)
    framed = table.profiled or head.devices is not None or tail.devices is not None
    if not table.rows and (table.untimed or framed):
        raise foreign.no_events(name)
    if not table.rows or not (framed or foreign.is_ours(table.categories)):
        names_of = {process.name or pid for pid, process in table.processes.items()}
        names_of |= {pid for pid, _ in table.threads if not pid.isdecimal()}  # the legacy profiler's are names
        raise foreign.no_events_of_ours(name, table.categories, table.phases, names_of, cutter.beginning)
    return Contents(
        distributed=head.distributed or tail.distributed,
        devices=head.devices or tail.devices,
        base_ns=whole(head.base_ns) or whole(tail.base_ns) or 0,
        host=_text(head.host_name or tail.host_name),
        threads=table.threads,
        begin_ns=table.begin_ns,
        end_ns=table.end_ns,
        untimed_events=table.untimed,
        gaps=(*table.gaps, _UNCLOSED) if cutter.unclosed else table.gaps,
        events=table.events(),
        places=table.places,
        processes=table.processes,
    )


def _documents(cutter: Cutter, name: str) -> tuple[kineto_json.KinetoDocument, kineto_json.KinetoDocument]:
    """The JSON before and after the chunks. DiagError if the file is incomplete."""
    head, tail = cutter.documents()
    try:
        first = kineto_json.document(head, name)
        return first, kineto_json.document(tail, name) if tail else first  # the key may be written with escapes
    except DiagError as error:
        if not tail:
            raise foreign.no_trace(name, head, whole=True, otherwise=error) from error
        if cutter.unclosed and "nested too deeply" not in error.message and not exact_cut(cutter.rest)[2]:
            raise damaged(name, "the JSON ends early, the file is truncated") from error
        raise


def _decode_any(table: EventTable, cutter: Cutter, chunk: bytes, name: str) -> None:
    """The chunk by the general decoder; cut again if the guess of a boundary was wrong."""
    try:
        events = kineto_json.events(chunk, name)
    except DiagError as error:
        chunk = cutter.again(chunk)
        if not chunk.strip() and not cutter.closed:
            raise error
        events = kineto_json.events(chunk, name)
    add_events(table, events)


def as_traces(contents: Contents, path: str, rank: int | None = None) -> list[Trace]:
    """The contents as the trace at a path, or as the traces of several ranks if the file holds several. DiagError if
    they cannot be separated."""
    parts = parts_by_rank(contents, path)
    if not parts:
        return [as_trace(contents, path, rank)]
    return [as_trace(part.contents, path, part.rank, of_several=len(parts) > 1) for part in parts]


def as_trace(contents: Contents, path: str, rank: int | None = None, of_several: bool = False) -> Trace:
    """The contents as the trace at a path. Without ``rank`` the header names it, else the file's or its folder's name;
    for a file ``of_several`` ranks neither is used."""
    info = contents.distributed if isinstance(contents.distributed, dict) else {}
    if rank is None and not of_several:
        rank = index_of(info.get("rank"))
        rank = rank if rank is not None else only_rank(contents)
        rank = rank if rank is not None else names.rank_from_path(path)
    gaps = contents.gaps
    world_size = index_of(info.get("world_size"))
    if world_size is not None and world_size > MOST_RANKS:
        reason = f"the world size in distributedInfo is {world_size:,}, above the maximum of {MOST_RANKS:,}; ignored"
        world_size, gaps = None, (*gaps, reason)
    return Trace(
        path=path,
        rank=rank,
        world_size=world_size,
        host=contents.host,
        backend=_text(info.get("backend")),
        device_names=_device_names(contents.devices),
        base_ns=contents.base_ns,
        groups=_groups(info.get("pg_config")),
        descriptions=_descriptions(info.get("pg_config")),
        threads=contents.threads,
        begin_ns=contents.begin_ns + contents.base_ns,
        end_ns=contents.end_ns + contents.base_ns,
        stored=contents.events,
        untimed_events=contents.untimed_events,
        gaps=gaps,
        derived=contents.derived,
        host_pids=host_pids(contents),
        process_names=tuple(process.name for process in contents.processes.values() if process.name),
    )


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    return json.dumps(value)


def _device_names(properties: object) -> tuple[str, ...]:
    if not isinstance(properties, list):
        return ()
    return tuple(str(item["name"]) for item in properties if isinstance(item, dict) and item.get("name"))


def _groups(config: object) -> dict[str, tuple[int, ...]]:
    groups = {}
    for item in _configured(config):
        ranks = parse_ranks(item.get("ranks"))
        # An empty list stands for the default group in some versions.
        groups[str(item["pg_name"])] = ranks or tuple(range(min(index_of(item.get("pg_size")) or 0, MOST_RANKS))) * (
            item.get("pg_desc") == "default_pg"
        )
    return groups


def _descriptions(config: object) -> dict[str, str]:
    return {str(item["pg_name"]): str(item["pg_desc"]) for item in _configured(config) if item.get("pg_desc")}


def _configured(config: object) -> list[dict[str, Any]]:
    """Process groups from pg_config, which is a list of objects, or an object by name, or text holding either."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return []
    if isinstance(config, dict):
        config = [
            {"pg_name": name, **(value if isinstance(value, dict) else {"ranks": value})}
            for name, value in config.items()
        ]
    if not isinstance(config, list):
        return []
    return [item for item in config if isinstance(item, dict) and item.get("pg_name") is not None]

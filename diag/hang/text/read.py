"""Everything that text logs show of a training: lines, processes, communicators."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from diag.collectors.layout import RANKS, RunLayout, is_regular, world_size_of
from diag.ended.model import Source, short_host
from diag.hang.model import Communicator, Line, Logs, Member, NcclCall, Process, Speaker, StrayCalls, Written, grouped
from diag.hang.policy import HANG_ANSWER
from diag.hang.text.gather import LAST_LINES, Gatherer
from diag.hang.text.keep import SOURCES, TRACEBACK, RawLine, shape_of, without_shape
from diag.hang.text.messages import Facts, Hint, OneSided, ProcessFacts, ProcessKey, call_of
from diag.hang.text.prefixes import NamedRank, ParsedLine
from diag.hang.text.streams import STDIN, Gaps, files_of
from diag.hang.wording import NO_RANK, SHARES
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import read_manifest
from diag.words.formatting import counted, spaced

# -- Processes and communicators, joined from what each line states ----------------------------------------------------
#
# Pointers are meaningful within their process only; commId joins across processes. A communicator that was split off
# has no commId from NCCL 2.23 on: it is named after its parent's, the number of the split and the colour.


@dataclass(slots=True)
class JoinedProcesses:
    """``index``: processes by host and pid."""

    processes: list[Process] = field(default_factory=list)
    sides: list[list[OneSided]] = field(default_factory=list)  # by process
    loose: list[OneSided] = field(default_factory=list)  # of processes that cannot be distinguished
    index: dict[tuple[str, int | None], list[int]] = field(default_factory=lambda: defaultdict(list))
    by_pid: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    aliases: dict[str, str] = field(default_factory=dict)  # a launcher's name for a host: its address, a pod
    by_rank: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def find(self, host: str, pid: int | None, rank: int | None) -> int | None:
        """The process with this host and pid; the rank distinguishes those that share them."""
        if pid is None:
            matches = self.by_rank.get(rank, []) if rank is not None else []
            return matches[0] if len(matches) == 1 else None
        matches = self.index.get((self.aliases.get(host, host), pid), [])
        if not matches and not host:  # Ray on one node, py-spy
            matches = self.by_pid.get(pid, [])
        if len(matches) > 1 and rank is not None:
            matches = [number for number in matches if self.processes[number].rank == rank]
        return matches[0] if len(matches) == 1 else None

    def put(self, process: Process, sides: list[OneSided]) -> None:
        number = len(self.processes)
        self.processes.append(process)
        self.sides.append(sides)
        if process.pid is not None:
            self.index[process.host, process.pid].append(number)
            self.by_pid[process.pid].append(number)
        if process.rank is not None:
            self.by_rank[process.rank].append(number)


def processes_of(
    facts: Facts,
    names: list[NamedRank],
    files: list[str],
    size: int | None,
    renamed: dict[ProcessKey, ProcessKey],
    gaps: Gaps,
) -> JoinedProcesses:
    merged: dict[ProcessKey, ProcessFacts] = {}
    for old, process in facts.processes.items():
        new = renamed[old]
        merged[new] = process if new not in merged else _merged(merged[new], process)
    hinted = {(host, pid) for host, pid, hint in merged if hint is not None}
    unhinted = {(host, pid) for host, pid, hint in merged if hint is None and pid is not None}
    for name, number in sorted(unhinted & hinted, key=str):
        gaps.say("", f"{name}: pid {number} is used by several ranks, and some of its lines do not say by which")
    joined = JoinedProcesses(aliases={outer: min(hosts) for outer, hosts in facts.aliases.items() if len(hosts) == 1})
    for (host, pid, hint), process in merged.items():
        for sides in _lives(process, size, joined, host, pid, gaps):
            world = {side.event.rank for side in sides if side.event.size == size}
            rank = hint[1] if hint is not None else min(world) if len(world) == 1 else None
            devices = {side.event.device for side in sides if side.event.device is not None}
            buses = {side.event.bus_id for side in sides if side.event.bus_id}
            joined.put(
                Process(
                    host=host,
                    pid=pid,
                    rank=rank,
                    local_rank=process.local_rank if process.local_rank is not None else _local_rank(process, names),
                    gpu=min(devices) if len(devices) == 1 else process.device,
                    bus_id=min(buses) if len(buses) == 1 else "",
                    nccl_version=process.version,
                    env=process.env,
                    paths=tuple(files[file] for file in sorted(process.files)),
                    last_time_ns=process.last_ns,
                ),
                sides,
            )
    _report_duplicate_ranks(joined, gaps)
    return joined


def _merged(first: ProcessFacts, second: ProcessFacts) -> ProcessFacts:
    return ProcessFacts(
        communicators=_once([*first.communicators, *second.communicators]),
        env={**first.env, **second.env},
        version=second.version or first.version,
        local_rank=first.local_rank if first.local_rank is not None else second.local_rank,
        device=first.device if first.device is not None else second.device,
        files=first.files | second.files,
        last_ns=max((ns for ns in (first.last_ns, second.last_ns) if ns is not None), default=None),
    )


def _once(sides: list[OneSided]) -> list[OneSided]:
    """Communicators without repetitions from several files."""
    distinct: dict[tuple[str, str, int, int], OneSided] = {}
    for side in sides:
        key = (side.event.comm, side.event.comm_id, side.event.rank, side.event.size)
        if (before := distinct.get(key)) is None or not side.event.comm_id:
            distinct[key if before is None else (*key[:3], -len(distinct) - 1)] = side
            continue
        before.started |= side.started
        before.completed |= side.completed
        before.ended = before.ended or side.ended
    return list(distinct.values())


def _lives(
    process: ProcessFacts, size: int | None, joined: JoinedProcesses, host: str, pid: int | None, gaps: Gaps
) -> list[list[OneSided]]:
    """The communicators of each process behind one host and pid.

    Usually one process. Where one communicator has several ranks there, a process drives several GPUs (each counts as
    one here), or containers share the host's name: then the device distinguishes them, or nothing does.
    """
    if not _conflict(process.communicators, size):
        return [process.communicators]
    by_device: dict[int | None, list[OneSided]] = defaultdict(list)
    for side in process.communicators:
        by_device[side.event.device].append(side)
    lives: list[list[OneSided]] = []
    for sides in by_device.values():
        if not _conflict(sides, size):
            lives.append(sides)
            continue
        gaps.say("", f"{host}: pid {pid} is several processes (containers with one host name): joined only in part")
        of_world = [side for side in sides if side.event.size == size]
        lives.extend([side] for side in of_world)
        joined.loose.extend(side for side in sides if side.event.size != size)
    return lives


def _conflict(sides: list[OneSided], size: int | None) -> bool:
    ranks: dict[str, int] = {}
    for side in sides:
        key = side.event.comm_id or ("world" if side.event.size == size else "")
        if key and ranks.setdefault(key, side.event.rank) != side.event.rank:
            return True
    return False


def _local_rank(process: ProcessFacts, names: list[NamedRank]) -> int | None:
    local_ranks = {names[file].local_rank for file in process.files} - {None}
    return local_ranks.pop() if len(local_ranks) == 1 else None


def _report_duplicate_ranks(joined: JoinedProcesses, gaps: Gaps) -> None:
    twice = [rank for rank, processes in joined.by_rank.items() if len(processes) > 1]
    if twice:
        some = ", ".join(map(str, sorted(twice)[:8])) + (", .." if len(twice) > 8 else "")
        gaps.say("", f"several processes have the same rank (a restart, or several jobs): {some}")


def communicators_of(
    joined: JoinedProcesses, calls: dict[int, tuple[NcclCall, ...]], gaps: Gaps
) -> tuple[Communicator, ...]:
    """``calls``: the last calls, by ``id`` of the process's communicator."""
    groups: dict[object, dict[int, Member]] = {}
    about: dict[object, tuple[str, int, str]] = {}
    twice = 0
    everyone = [
        *((number, sides) for number, sides in enumerate(joined.sides)),
        *((None, [side]) for side in joined.loose),
    ]
    for number, sides in everyone:
        names = _identities(sides)
        for side in sides:
            name, parent = names[id(side)]
            key: object = (name, side.event.size) if name else id(side)
            about.setdefault(key, (name, side.event.size, parent))
            members = groups.setdefault(key, {})
            if side.event.rank in members:
                twice += 1
                continue
            members[side.event.rank] = Member(
                side.event.rank, number, side.started, side.completed, side.ended, calls.get(id(side), ())
            )
    if any(not name for name, size, _ in about.values() if size > 1):
        gaps.say("", "communicators without a commId (NCCL before 2.16) cannot be joined across processes")
    if twice:
        gaps.say("", f"{twice} ranks of communicators are claimed by several processes: the first is used")
    return tuple(
        Communicator(about[key][0], about[key][1], tuple(members[rank] for rank in sorted(members)), about[key][2])
        for key, members in groups.items()
    )


def _identities(sides: list[OneSided]) -> dict[int, tuple[str, str]]:
    """(identity, parent's identity) of one process's communicators, by ``id``; "" where unknown."""
    latest: dict[str, str] = {}
    identities: dict[int, tuple[str, str]] = {}
    for side in sides:  # in order of creation: a parent before its children
        event = side.event
        parent = latest.get(event.parent, "") if event.parent else ""
        name = event.comm_id
        if not name and event.split and parent:
            name = f"{parent}/{event.split}"
        latest[event.comm] = name
        identities[id(side)] = (name, parent)
    return identities


# -- Kept lines, each with the process that printed it -----------------------------------------------------------------


def lines_of(gatherer: Gatherer, joined: JoinedProcesses, doubtful: set[str]) -> list[Line]:
    """The kept lines, by file and number. A line that continues a block without a prefix has the block's speaker."""
    makes = _Maker(gatherer, joined, doubtful)
    lines: dict[tuple[int, int, bytes], list[Line]] = {}
    for kind, entry in gatherer.keep.entries():
        if isinstance(kind, str) and kind.startswith("block "):
            makes.block += 1
            source = SOURCES.get(kind.removeprefix("block "), "stack")
            opener = makes.lines(entry[0], source, None)
            shape = _shape_in(opener[0], kind)
            lines[entry[0]] = [_shaped(line, shape) for line in opener]
            for raw_line in entry[1:]:
                lines[raw_line] = [_shaped(line, shape) for line in makes.lines(raw_line, source, opener[0].speaker)]
    for kind, entry in gatherer.keep.entries():
        for raw_line in entry:
            if raw_line not in lines and kind != LAST_LINES:
                lines[raw_line] = makes.lines(raw_line)
    shown = max(1, min(HANG_ANSWER.calls_of_member, HANG_ANSWER.most_calls_shown // max(1, len(gatherer.calls))))
    for (file, _, _), calls in gatherer.calls.items():
        for number, raw in list(calls)[-shown:]:
            lines.setdefault((file, number, raw), makes.lines((file, number, raw)))
    return [line for key in sorted(lines) for line in lines[key]]


def last_lines_of(gatherer: Gatherer, joined: JoinedProcesses, doubtful: set[str]) -> tuple[Line, ...]:
    """The last telling lines of each file and its last one, by file and number."""
    makes = _Maker(gatherer, joined, doubtful)
    last = sorted(entry[0] for kind, entry in gatherer.keep.entries() if kind == LAST_LINES)
    return tuple(line for raw_line in last for line in makes.lines(raw_line))


def _shape_in(opener: Line, kind: str) -> re.Pattern[str] | None:
    """The prefix that the lines of a traceback have in common, where it is not a known one."""
    return shape_of(opener.text.partition(TRACEBACK)[0]) if kind == "block traceback" else None


def _shaped(line: Line, shape: re.Pattern[str] | None) -> Line:
    return line if shape is None else replace(line, text=without_shape(line.text, shape))


def rank_of(parsed: ParsedLine, gatherer: Gatherer, file: int, doubtful: set[str]) -> int | None:
    """The global rank that a line or its file name gives."""
    if parsed.rank is not None and parsed.rank_from not in doubtful:
        return parsed.rank
    return gatherer.names[file].rank if "file" not in doubtful else None


def put_ranks(joined: JoinedProcesses, lines: list[Line], gatherer: Gatherer, doubtful: set[str]) -> None:
    """Adds processes of which only the rank is known."""
    seen: dict[int, dict[str, None]] = defaultdict(dict)
    for line in lines:
        if line.speaker.rank is not None and line.speaker.rank not in joined.by_rank:
            seen[line.speaker.rank][line.path] = None
    for file, name in enumerate(gatherer.names):
        if name.rank is not None and name.rank not in joined.by_rank and "file" not in doubtful:
            seen[name.rank][gatherer.files[file]] = None
    for rank in sorted(seen):
        joined.put(Process("", None, rank, paths=tuple(seen[rank])), [])


def put_last_times(joined: JoinedProcesses, lines: list[Line]) -> None:
    """Sets each process's last time from its kept lines."""
    latest: dict[int, int] = {}
    for line in lines:
        if line.time_ns is None:
            continue
        number = joined.find(line.speaker.host, line.speaker.pid, line.speaker.rank)
        if number is not None:
            latest[number] = max(latest.get(number, 0), line.time_ns)
    for number, time_ns in latest.items():
        process = joined.processes[number]
        if process.last_time_ns is None or process.last_time_ns < time_ns:
            joined.processes[number] = replace(process, last_time_ns=time_ns)


class _Maker:
    def __init__(self, gatherer: Gatherer, joined: JoinedProcesses, doubtful: set[str]) -> None:
        self.block = 0
        self._gatherer, self._joined, self._doubtful = gatherer, joined, doubtful
        self._speakers: dict[Speaker, Speaker] = {}  # equal speakers of many lines are stored once
        self._texts: dict[str, str] = {}

    def lines(self, raw_line: RawLine, source: str = "", heir: Speaker | None = None) -> list[Line]:
        file, number, raw = raw_line
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        return [
            Line(
                path=self._gatherer.files[file],
                number=number,
                raw=parsed.piece or text,
                text=text if parsed.text == text else parsed.text,
                speaker=self._speaker(parsed, file) if heir is None or parsed.any else heir,
                source=parsed.source or source,
                level=self._texts.setdefault(parsed.level, parsed.level),
                code=self._texts.setdefault(parsed.code, parsed.code),
                time_ns=parsed.time_ns,
                block=self.block if source else 0,
            )
            for parsed in self._gatherer.parsed_by(file, raw)
        ]

    def _speaker(self, parsed: ParsedLine, file: int) -> Speaker:
        rank = rank_of(parsed, self._gatherer, file, self._doubtful)
        local = parsed.local_rank if parsed.local_rank is not None else self._gatherer.names[file].local_rank
        host, pid = self._joined.aliases.get(parsed.host, parsed.host), parsed.pid
        number = self._joined.find(host, pid, rank)
        if number is not None:
            process = self._joined.processes[number]
            host, rank = host or process.host, process.rank if rank is None else rank
            pid = process.pid if pid is None else pid
            local = process.local_rank if local is None else local
        speaker = Speaker(host, pid, rank, local, parsed.group_rank, parsed.device, parsed.worker)
        return self._speakers.setdefault(speaker, speaker)


# -- World size, and which hints at ranks to trust ---------------------------------------------------------------------

NAMES = {
    "rank=N": "the rank in the prefix of a framework",
    "axis": "the place of a worker on an axis of parallelism",
    "srun": "the task of srun",
    "mpirun": "the rank of mpirun",
    "file": "the file's name",
}


def world_size(facts: Facts, manifest: set[int], gaps: Gaps) -> int | None:
    """The world size from a run's manifest, else as launchers print it, else the largest communicator's; None where
    unknown."""
    largest = max(
        (side.event.size for process in facts.processes.values() for side in process.communicators), default=0
    )
    hints = {key[2] for key in facts.processes if key[2] is not None} | facts.by_rank
    seen = max((rank for kind, rank in hints if kind in ("[rankN]", "rank=N", "axis", "mpirun")), default=-1) + 1
    printed = set(facts.worlds)
    printed |= {nodes * each for nodes, each in facts.nodes.values() if nodes and each}
    for sizes, source in ((manifest, "the run's manifest"), (printed, "printed")):
        if not sizes:
            continue
        if len(sizes) > 1:
            gaps.say("", f"several world sizes ({source}): {', '.join(map(str, sorted(sizes)))}; the largest is taken")
        if max(sizes) >= max(largest, seen):
            return max(sizes)
        gaps.say("", f"the world size {max(sizes)} ({source}) is less than the number of ranks seen: ignored")
    if largest >= seen:
        return largest or None
    if largest:
        gaps.say("", f"ranks up to {seen - 1} are seen, the largest communicator has {largest}: world size unknown")
    return None


def doubtful_hints(facts: Facts, size: int | None, gaps: Gaps) -> set[str]:
    """The kinds of hints ("srun", "mpirun", "file") that do not number global ranks here.

    ``srun --label`` before torchrun numbers nodes, and so may files that are named after ranks. A kind is not trusted
    where one number denotes several processes that live at the same time (they have different ranks in one communicator
    or different devices), or where NCCL's rank in a communicator of the whole job differs.
    """
    side_by_side: dict[Hint, list[OneSided]] = defaultdict(list)
    doubtful: set[str] = set()
    for (_, pid, hint), process in facts.processes.items():
        if hint is None or hint[0] == "[rankN]" or pid is None:
            continue
        if size is not None and hint[1] >= size:
            doubtful.add(hint[0])
        for side in process.communicators:
            side_by_side[hint].append(side)
            if side.event.size == size and side.event.rank != hint[1]:
                doubtful.add(hint[0])
    for (kind, _), sides in side_by_side.items():
        ranks = grouped((side.event.comm_id, side.event.rank) for side in sides)
        several = any(len(of_one) > 1 for comm_id, of_one in ranks.items() if comm_id)
        if several or len({side.event.device for side in sides if side.event.device is not None}) > 1:
            doubtful.add(kind)
    for kind in sorted(doubtful):
        gaps.say("", f"{NAMES.get(kind, kind)} does not number global ranks here: not used")
    return doubtful


def without(facts: Facts, doubtful: set[str]) -> dict[ProcessKey, ProcessKey]:
    """New names of the processes once doubtful hints are dropped. A process that some lines name without a hint is
    joined with the only one that has its host and pid."""
    renamed: dict[ProcessKey, ProcessKey] = {}
    hinted: dict[tuple[str, int | None], set[ProcessKey]] = defaultdict(set)
    for old in facts.processes:
        host, pid, hint = old
        new: ProcessKey = (host, pid, None if hint is not None and hint[0] in doubtful else hint)
        renamed[old] = new
        if new[2] is not None:
            hinted[host, pid].add(new)
    for old, new in renamed.items():
        candidates = hinted[new[0], new[1]]
        ranks = {candidate[2][1] for candidate in candidates if candidate[2] is not None}
        if len(ranks) == 1:  # hints of several kinds may agree
            renamed[old] = min(candidates, key=lambda candidate: (candidate[2] or ("", 0))[0])
    return renamed


# -- Run directories: ranks from manifest.json and rank.json -----------------------------------------------------------


def run_directories(paths: Sequence[str | Path], files: Iterable[str]) -> list[RunLayout]:
    """The run directories among the paths, and those that contain the files found."""
    roots = {Path(path) for path in paths if str(path) != STDIN}
    for file in files:
        folder = Path(file).parent
        if folder.parent.name == RANKS:
            roots.add(folder.parent.parent)
    return [RunLayout(root) for root in sorted(roots) if is_regular(RunLayout(root).manifest)]


def take_run(run: RunLayout, facts: Facts, gaps: Gaps) -> int | None:
    """Adds the ranks of a run to the processes; returns its world size. Damaged files are gaps."""
    manifest, gap = read_manifest(run)
    refused = [gap]
    with suppress(OSError):  # where they cannot be listed, the search for files reports it
        job = job_ranks(run, whole=True)
        manifest = job.manifest
        refused += job.gaps
        for rank, identity in job.identities.items():
            if identity is not None:
                process = facts.process((short_host(identity.host), identity.pid, ("file", rank)))
                process.local_rank, process.device = identity.local_rank, identity.device_index
    for gap in refused:
        if gap is not None:
            gaps.say(gap.path, gap.reason)
    return world_size_of(manifest.world_size) if manifest is not None else None


Progress = Callable[[int, int, str], None]


def read_logs(paths: Sequence[str | Path], anchors: Sequence[str] = (), progress: Progress | None = None) -> Logs:
    """The logs of files, folders and "-" (standard input), plain, gzip or zstd, in any mixture.

    ``anchors``: substrings; a line with one is kept, like those needed for identity and stacks. For each substring and
    process the first and last lines are kept, more of them the smaller the logs are; ``gaps`` counts what is left out.
    ``progress`` is called with (files read, number of files, file). One pass, in bounded memory. Raises DiagError where
    a path does not exist.
    """
    gaps = Gaps()
    files = files_of(paths, gaps)
    named = set(map(str, paths))
    gatherer = Gatherer(anchors, gaps)
    for done, path in enumerate(files):
        if progress is not None:
            progress(done, len(files), path)
        gatherer.read(path, explicit=path in named)
    if progress is not None:
        progress(len(files), len(files), "")
    return _joined(gatherer, [take_run(run, gatherer.facts, gaps) for run in run_directories(paths, files)], gaps)


def _joined(gatherer: Gatherer, sizes: list[int | None], gaps: Gaps) -> Logs:
    gatherer.settle_years()
    facts, files, names = gatherer.facts, gatherer.files, gatherer.names
    for name in names:
        if name.rank is not None:
            facts.by_rank.add(("file", name.rank))
    size = world_size(facts, {size for size in sizes if size is not None}, gaps)
    doubtful = doubtful_hints(facts, size, gaps)
    renamed = without(facts, doubtful)
    joined = processes_of(facts, names, files, size, renamed, gaps)
    calls, strays = _calls(gatherer, joined, doubtful, gaps)
    lines = lines_of(gatherer, joined, doubtful)
    put_ranks(joined, lines, gatherer, doubtful)
    put_last_times(joined, lines)
    communicators = communicators_of(joined, calls, gaps)
    _report_left_out(gatherer, gaps)
    return Logs(
        lines=tuple(lines),
        processes=tuple(joined.processes),
        communicators=communicators,
        world_size=size,
        paths=tuple(files),
        gaps=gaps.all(),
        deduplicated=facts.deduplicated,
        stray_calls=strays,
        last_lines=last_lines_of(gatherer, joined, doubtful),
        written=_written(files),
    )


def _written(files: Sequence[str]) -> dict[str, Written]:
    """When each file was last written; without standard input and files that are gone."""
    now, written = time.time_ns(), {}
    for path in files:
        with suppress(OSError, ValueError):
            at = Path(path).stat().st_mtime_ns
            zone = time.localtime(at // 1_000_000_000).tm_gmtoff
            written[path] = Written(at, zone * 1_000_000_000, max(0, now - at))
    return written


def _calls(
    gatherer: Gatherer, joined: JoinedProcesses, doubtful: set[str], gaps: Gaps
) -> tuple[dict[int, tuple[NcclCall, ...]], tuple[StrayCalls, ...]]:
    """The last calls of each process's communicators, by ``id``: host, pid and pointer identify one; and those of
    processes without Init lines."""
    sides: dict[tuple[int, str], list[OneSided]] = defaultdict(list)
    for index, of_one in enumerate(joined.sides):
        for side in of_one:
            sides[index, side.event.comm].append(side)
    by_side: dict[int, list[NcclCall]] = defaultdict(list)
    strangers: dict[int, set[tuple[str, int | None]]] = defaultdict(set)
    strays: list[StrayCalls] = []
    for (file, _, comm), lines in gatherer.calls.items():
        parsed = gatherer.parsed_by(file, lines[-1][1])[-1]
        number = joined.find(parsed.host, parsed.pid, rank_of(parsed, gatherer, file, doubtful))
        pointer = comm.decode("ascii", "replace")
        # Several processes behind one host and pid: the pointer decides if only one of them has it.
        of_pid = [number] if number is not None else joined.index.get((parsed.host, parsed.pid), [])
        holders = [sides[index, pointer] for index in of_pid if (index, pointer) in sides]
        candidates = holders[0] if len(holders) == 1 else []
        if not candidates:
            strangers[file].add((parsed.host, parsed.pid))
            made = [read for line in lines if (read := _read_call(gatherer, file, *line)) is not None]
            size = _SIZE.search(lines[-1][1])
            of_all = int(size[1]) if size is not None else 0
            strays.append(StrayCalls(parsed.host, parsed.pid, parsed.device, of_all, tuple(call for _, call in made)))
            continue
        side = candidates[-1]
        for line, raw in lines:
            if side.file == file and line < side.line:
                continue  # a call of an earlier communicator at the same address
            if (read := _read_call(gatherer, file, line, raw)) is not None:
                by_side[id(side)].append(read[1])
    for file, callers in strangers.items():
        gaps.say(
            gatherer.files[file],
            f"{NO_RANK}{spaced(counted(len(callers), 'process', 'processes'))} without Init lines: no rank",
        )
    return {side: tuple(sorted(calls, key=_place)) for side, calls in by_side.items()}, tuple(strays)


_SIZE = re.compile(rb"\[nranks=(\d{1,7})\]")


def _read_call(gatherer: Gatherer, file: int, line: int, raw: bytes) -> tuple[str, NcclCall] | None:
    text = raw.decode("utf-8", "replace")
    return call_of(text, Source(gatherer.files[file], line, text))


def _place(call: NcclCall) -> tuple[str, int]:
    return call.evidence.path, call.evidence.line  # by line, since several threads of a process may call


def _report_left_out(gatherer: Gatherer, gaps: Gaps) -> None:
    of_file: dict[int, dict[str, int]] = defaultdict(dict)
    for (file, kind), count in gatherer.keep.left_out.items():
        of_file[file][str(kind)] = count
    for file, kinds in of_file.items():
        most = sorted(kinds, key=lambda kind: -kinds[kind])
        listed = ", ".join(f"{kinds[kind]:,} with {kind.strip()!r}" for kind in most[: HANG_ANSWER.kinds_shown])
        more = (
            f" and of {len(most) - HANG_ANSWER.kinds_shown} other kinds" if len(most) > HANG_ANSWER.kinds_shown else ""
        )
        gaps.say(gatherer.files[file], f"{SHARES}; left out: {listed}{more}")
    for file, unread in gatherer.facts.unread_events.items():
        gaps.say(gatherer.files[file], f"{unread} Init lines are damaged (interleaved?) and could not be read")
    if gatherer.facts.left_out:
        gaps.say("", f"{gatherer.facts.left_out} lines of further communicators were left out")

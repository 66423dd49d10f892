"""All that text logs say about a training: lines, processes, communicators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from ..gaps import NO_RANK, SHARES
from ..model import Call, Evidence, Logs
from .facts import Own
from .gaps import Gaps
from .gather import Gatherer
from .inputs import files_of
from .join import Joined, communicators_of, processes_of
from .messages import call_of
from .runs import run_directories, take_run
from .spoken import lines_of, put_last_times, put_ranks, rank_of
from .world import doubtful_hints, without, world_size

Progress = Callable[[int, int, str], None]
_KINDS_SAID = 6


def read_logs(paths: Sequence[str | Path], anchors: Sequence[str] = (), progress: Progress | None = None) -> Logs:
    """Of files, folders and "-" (standard input), plain, gzip or zstd, in any mixture.

    ``anchors``: substrings; a line with one of them is kept, beside those that identity and stacks need. Of each
    substring and process the first and the last lines are kept, the more the smaller the logs are; what is left out is
    counted in ``gaps``. ``progress`` is told (files done, files in all, the file). One pass, in bounded memory.
    Raises DiagError where a path does not exist."""
    gaps = Gaps()
    files = files_of(paths, gaps)
    named = set(map(str, paths))
    gatherer = Gatherer(anchors, gaps)
    for done, path in enumerate(files):
        if progress is not None:
            progress(done, len(files), path)
        gatherer.read(path, given=path in named)
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
    calls = _calls(gatherer, joined, doubtful, gaps)
    lines = lines_of(gatherer, joined, doubtful)
    put_ranks(joined, lines, gatherer, doubtful)
    put_last_times(joined, lines)
    communicators = communicators_of(joined, calls, gaps)
    _say_left_out(gatherer, gaps)
    return Logs(
        lines=tuple(lines),
        processes=tuple(joined.processes),
        communicators=communicators,
        world_size=size,
        paths=tuple(files),
        gaps=gaps.all(),
        deduplicated=facts.deduplicated,
    )


def _calls(gatherer: Gatherer, joined: Joined, doubtful: set[str], gaps: Gaps) -> dict[int, tuple[Call, ...]]:
    """The last calls of each process's communicators, by ``id``: host, pid and pointer meet in the same process."""
    owns: dict[tuple[int, str], list[Own]] = defaultdict(list)
    for index, of_one in enumerate(joined.owns):
        for own in of_one:
            owns[index, own.event.comm].append(own)
    found: dict[int, list[Call]] = defaultdict(list)
    strangers: dict[int, set[tuple[str, int | None]]] = defaultdict(set)
    for (file, _, comm), lines in gatherer.calls.items():
        said = gatherer.said_by(file, lines[-1][1])[-1]
        number = joined.find(said.host, said.pid, rank_of(said, gatherer, file, doubtful))
        pointer = comm.decode("ascii", "replace")
        # Several processes behind one host and pid: the pointer tells, if it is one's alone.
        of_pid = [number] if number is not None else joined.index.get((said.host, said.pid), [])
        holders = [owns[index, pointer] for index in of_pid if (index, pointer) in owns]
        candidates = holders[0] if len(holders) == 1 else []
        if not candidates:
            strangers[file].add((said.host, said.pid))
            continue
        own = candidates[-1]
        for line, raw in lines:
            if own.file == file and line < own.line:
                continue  # of an earlier communicator at the same address
            text = raw.decode("utf-8", "replace")
            if (read := call_of(text, Evidence(gatherer.files[file], line, text))) is not None:
                found[id(own)].append(read[1])
    for file, who in strangers.items():
        gaps.say(gatherer.files[file], f"{NO_RANK}{len(who)} processes without their Init lines: no rank")
    return {own: _in_order(calls) for own, calls in found.items()}


def _in_order(calls: list[Call]) -> tuple[Call, ...]:
    """Several threads of a process may call: by where the lines stand."""
    return tuple(sorted(calls, key=lambda call: (call.evidence.path, call.evidence.line)))


def _say_left_out(gatherer: Gatherer, gaps: Gaps) -> None:
    of_file: dict[int, dict[str, int]] = defaultdict(dict)
    for (file, kind), count in gatherer.keep.left_out.items():
        of_file[file][str(kind)] = count
    for file, kinds in of_file.items():
        most = sorted(kinds, key=lambda kind: -kinds[kind])
        said = ", ".join(f"{kinds[kind]:,} with {kind.strip()!r}" for kind in most[:_KINDS_SAID])
        more = f" and of {len(most) - _KINDS_SAID} other kinds" if len(most) > _KINDS_SAID else ""
        gaps.say(gatherer.files[file], f"{SHARES}; left out: {said}{more}")
    for file, unread in gatherer.facts.unread_events.items():
        gaps.say(gatherer.files[file], f"{unread} Init lines are damaged (interleaved?) and could not be read")
    if gatherer.facts.left_out:
        gaps.say("", f"{gatherer.facts.left_out} lines of further communicators were left out")

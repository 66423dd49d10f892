"""All that text logs say about a training: lines, processes, communicators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from diag.collectors.layout import RANKS, RankLayout, RunLayout, is_regular, world_size_of
from diag.collectors.reading import read_object

from ..model import Call, Evidence, Logs
from ..wording import NO_RANK, SHARES
from .facts import Facts, Hint, Own, Who
from .gaps import Gaps
from .gather import Gatherer
from .join import Joined, communicators_of, processes_of
from .messages import call_of
from .spoken import lines_of, put_last_times, put_ranks, rank_of
from .streams import STDIN, files_of

# -- world -------------------------------------------------------------------------------------------------------------
#
# How many ranks the training has, and which hints at ranks can be believed.

NAMES = {"srun": "the task of srun", "mpirun": "the rank of mpirun", "file": "the file's name"}


def world_size(facts: Facts, manifest: set[int], gaps: Gaps) -> int | None:
    """Of a run's manifest, else as launchers print it, else the largest communicator's; None where nothing says it."""
    largest = max((own.event.size for heard in facts.heard.values() for own in heard.owns), default=0)
    hints = {who[2] for who in facts.heard if who[2] is not None} | facts.by_rank
    seen = max((rank for kind, rank in hints if kind in ("[rankN]", "mpirun")), default=-1) + 1
    printed = set(facts.worlds)
    printed |= {nodes * each for nodes, each in facts.nodes.values() if nodes and each}
    for sizes, source in ((manifest, "the run's manifest"), (printed, "printed")):
        if not sizes:
            continue
        if len(sizes) > 1:
            gaps.say("", f"several world sizes ({source}): {', '.join(map(str, sorted(sizes)))}; the largest is taken")
        if max(sizes) >= max(largest, seen):
            return max(sizes)
        gaps.say("", f"the world size {max(sizes)} ({source}) is less than the ranks that are seen: not believed")
    if largest >= seen:
        return largest or None
    if largest:
        gaps.say("", f"ranks up to {seen - 1} are seen, the largest communicator has {largest}: world size unknown")
    return None


def doubtful_hints(facts: Facts, size: int | None, gaps: Gaps) -> set[str]:
    """The kinds of hints ("srun", "mpirun", "file") that do not number global ranks here.

    ``srun --label`` before torchrun numbers nodes, and so may files that are named after ranks. A kind is not believed
    where one number stands for several processes that live side by side (they have different ranks in one communicator
    or different devices), or where NCCL's rank in a communicator of the world says otherwise."""
    side_by_side: dict[Hint, list[Own]] = defaultdict(list)
    doubtful: set[str] = set()
    for (_, pid, hint), heard in facts.heard.items():
        if hint is None or hint[0] == "[rankN]" or pid is None:
            continue
        if size is not None and hint[1] >= size:
            doubtful.add(hint[0])
        for own in heard.owns:
            side_by_side[hint].append(own)
            if own.event.size == size and own.event.rank != hint[1]:
                doubtful.add(hint[0])
    for (kind, _), owns in side_by_side.items():
        ranks = defaultdict(set)
        for own in owns:
            ranks[own.event.comm_id].add(own.event.rank)
        several = any(len(of_one) > 1 for comm_id, of_one in ranks.items() if comm_id)
        if several or len({own.event.device for own in owns if own.event.device is not None}) > 1:
            doubtful.add(kind)
    for kind in sorted(doubtful):
        gaps.say("", f"{NAMES.get(kind, kind)} does not number global ranks here: not used")
    return doubtful


def without(facts: Facts, doubtful: set[str]) -> dict[Who, Who]:
    """Who each process is called once doubtful hints are dropped, and a process that some lines name without a hint
    is joined with the only one that bears its host and pid."""
    renamed: dict[Who, Who] = {}
    hinted: dict[tuple[str, int | None], set[Who]] = defaultdict(set)
    for who in facts.heard:
        host, pid, hint = who
        new: Who = (host, pid, None if hint is not None and hint[0] in doubtful else hint)
        renamed[who] = new
        if new[2] is not None:
            hinted[host, pid].add(new)
    for who, new in renamed.items():
        others = hinted[new[0], new[1]]
        ranks = {other[2][1] for other in others if other[2] is not None}
        if len(ranks) == 1:  # hints of several kinds may agree
            renamed[who] = min(others, key=lambda other: (other[2] or ("", 0))[0])
    return renamed


# -- runs --------------------------------------------------------------------------------------------------------------
#
# Run directories of this project: who the ranks are, from manifest.json and rank.json.


def run_directories(paths: Sequence[str | Path], files: Iterable[str]) -> list[RunLayout]:
    """The runs that the given paths are, and those that the files found below them lie in."""
    roots = {Path(path) for path in paths if str(path) != STDIN}
    for file in files:
        folder = Path(file).parent
        if folder.parent.name == RANKS:
            roots.add(folder.parent.parent)
    return [RunLayout(root) for root in sorted(roots) if is_regular(RunLayout(root).manifest)]


def ranks_of(run: RunLayout) -> dict[int, RankLayout]:
    """The ranks that left a folder; none where they cannot be listed, which is said of the folder itself."""
    try:
        return run.ranks()
    except OSError:
        return {}


def take_run(run: RunLayout, facts: Facts, gaps: Gaps) -> int | None:
    """Puts its ranks to the processes; the world size that it states. A run that crashed opens all the same: what is
    missing or damaged says nothing."""
    about = read_object(run.manifest, run.root, gaps.say)
    for rank, layout in ranks_of(run).items():
        record = read_object(layout.identity, run.root, gaps.say)
        host, pid = record.get("host"), record.get("pid")
        if not isinstance(host, str) or not isinstance(pid, int):
            continue
        heard = facts.process((host.partition(".")[0], pid, ("file", rank)))
        local, device = record.get("local_rank"), record.get("device_index")
        heard.local_rank = local if isinstance(local, int) else None
        heard.device = device if isinstance(device, int) else None
    return world_size_of(about.get("world_size"))


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

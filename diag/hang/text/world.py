"""How many ranks the training has, and which hints at ranks can be believed."""

from __future__ import annotations

from collections import defaultdict

from .facts import Facts, Hint, Own, Who
from .gaps import Gaps

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

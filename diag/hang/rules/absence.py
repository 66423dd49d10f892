"""Ranks that did not come: to a collective that the others timed out in, to a barrier, to an initialisation.

An absence counts only where the size of the group is known, and never where Ray left lines out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from diag.hang.case import Case, distinct
from diag.hang.model import MOST_RANKS, Clue, Communicator, Culprit, Line, Role
from diag.hang.progress import ended_well
from diag.hang.rules.direct import clue_of, ranks_in
from diag.hang.rules.exceptions import victims_of
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, Hit
from diag.hang.timeouts import GroupTimeouts, groups_of, is_world, rank_in, timeouts_of
from diag.hang.timeouts import group_of as group_of_line

_TIMED_OUT = re.compile(r"(?i)time(?:d )? ?out")
_LISTED = re.compile(r"(?:\[\d+\] )?(\d{1,9}): \[")
_LOGS_READ = 0.85  # the logs of the absent ranks are there, and they do not say it
_LOGS_MISSING = 0.6  # perhaps only their logs are missing
_FROM_A_REPORT = 0.85
_LAGS = 0.8  # the group's own counters say so


def clues(case: Case) -> list[Clue]:
    found = [
        *_barrier(case),
        *_watchdogs(case),
        *_lagging(case),
        *_never_started(case),
        *_behind_in_calls(case),
        *_late_at_the_store(case),
        *_store_barrier(case),
        *_horovod(case),
        *_coordination(case),
        *_lost_nodes(case),
        *_registered_twice(case),
    ]
    return found or _raised_by_all_others(case)


def _late_at_the_store(case: Case) -> list[Clue]:
    """A store that answers "timed out" is alive: whoever writes the key is late."""
    found = []
    ids = [hit for hit in case.named("store-get") if _TIMED_OUT.search(hit.line.text)]
    if ids:
        writers = sorted({int(hit.groups["writer"]) for hit in ids if "writer" in hit.groups})
        victims = {rank for hit in ids if (rank := case.rank_of(hit.line)) is not None} - set(writers)
        who = f"rank {writers[0]}" if len(writers) == 1 else "the first rank of its group"
        note = (
            f"The store answers, but the key '{ids[0].groups['key']}' that {who} writes when it initialises NCCL did "
        )
        note += "not come in time."
        culprits = [case.of_rank(rank) for rank in writers]
        clue = clue_of("slow_rank_init", ids, culprits, note, confidence=NAMES_AN_EFFECT)
        found.append(replace(clue, victims=tuple(sorted(victims))))
    waits = [hit for hit in case.named("store-wait") if "store_based_barrier" not in hit.line.text]
    if waits and not ids:
        note = f"{waits[0].sentence} The store answers, so the rank that writes it is late or waits elsewhere."
        found.append(clue_of("missing_rank", waits, [], note, confidence=SUGGESTS))
    return found


def _horovods_list(case: Case) -> list[Clue]:
    """ "Missing ranks:" and a line for each with what it has not submitted (Horovod 0.20+)."""
    lines = [line for line in case.logs.lines if line.source == "horovod" and _LISTED.match(line.raw)]
    ranks = sorted({int(match[1]) for line in lines if (match := _LISTED.match(line.raw))})
    if not ranks:
        return []
    first = lines[0].raw.partition(": [")[2].partition(",")[0].strip("] ")
    note = f"Horovod waits for rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} to submit {first}."
    culprits = distinct([case.of_rank(rank) for rank in ranks])
    evidence = tuple(line.evidence for line in lines[:4])
    return [Clue("missing_rank", Role.ROOT, culprits, evidence, _LAGS, note)]


def _lost_nodes(case: Case) -> list[Clue]:
    """A node that the cluster no longer sees, or on which it could not start a task."""
    hits = case.named("node-lost")
    if not hits:
        return []
    hosts = dict.fromkeys(hit.groups.get("host") or hit.groups["node"] for hit in hits)
    return [clue_of("missing_rank", hits, [case.of_host(host) for host in hosts], hits[0].sentence)]


def _registered_twice(case: Case) -> list[Clue]:
    """Every rank that registers does so twice, and the others never: two nodes take themselves for the first."""
    hits = case.named("lightning-member")
    times = Counter(int(hit.groups["rank"]) for hit in hits)
    size = max((int(hit.groups["size"]) for hit in hits), default=0)
    absent = [rank for rank in range(min(size, MOST_RANKS)) if rank not in times]
    if not absent or min(times.values()) < 2 or case.once(ended_well):
        return []
    note = (
        f"Ranks {', '.join(map(str, sorted(times)[:8]))} of {size} register twice and the others never: several nodes "
    )
    note += "have the same node rank (SLURM_NODEID, NODE_RANK, --node-rank)."
    return [clue_of("missing_rank", hits, [case.of_rank(rank) for rank in absent], note, confidence=NAMES_AN_EFFECT)]


def _coordination(case: Case) -> list[Clue]:
    """JAX's and TensorFlow's coordination service lists the tasks that did not reach its barrier."""
    hits, tasks = case.named("coordination-barrier"), case.named("coordination-task")
    ranks = sorted({int(hit.groups["rank"]) for hit in tasks})
    if not hits or not ranks:
        return []
    note = f"{hits[0].sentence} It lists tasks {', '.join(map(str, ranks))}."
    return [clue_of("missing_rank", hits, [case.of_rank(rank) for rank in ranks], note, tasks, confidence=_LAGS)]


def _lacking(case: Case, hit: Hit) -> set[int]:
    """Older versions list who is ready: of the others those below the highest rank exist for sure."""
    if "ranks" in hit.groups:
        return set(ranks_in(hit.groups["ranks"]))
    ready = ranks_in(hit.groups["ready"])
    size = case.logs.world_size or max(ready, default=-1) + 1
    return set(range(size)) - set(ready) if size <= MOST_RANKS else set()


def _horovod(case: Case) -> list[Clue]:
    """Horovod's coordinator lists who has not submitted a tensor. Where ranks lack different tensors, each waits in
    another one."""
    hits = case.named("horovod-stalled")
    if not hits:
        return _horovods_list(case)
    last = {hit.groups["tensor"]: hit for hit in hits}
    lacking = {tensor: _lacking(case, hit) for tensor, hit in last.items()}
    lacking = {tensor: ranks for tensor, ranks in lacking.items() if ranks}
    if not lacking:
        return []
    common = set.intersection(*lacking.values())
    ranks = sorted(common or set.union(*lacking.values()))
    tensors = ", ".join(list(last)[:3]) + (f" and {len(last) - 3} more" if len(last) > 3 else "")
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
    note = f"Horovod waits for {who} (missing ranks: {', '.join(map(str, ranks))}) to submit {tensors}."
    name = "missing_rank" if common else "desync"
    return [clue_of(name, list(last.values()), [case.of_rank(rank) for rank in ranks], note, confidence=_LAGS)]


def _store_barrier(case: Case) -> list[Clue]:
    """torch's barrier at the store prints how many of how many came: who waits in it has come."""
    hits = case.named("store-barrier")
    if not hits:
        return []
    last = hits[-1]
    size, joined = int(last.groups["size"]), int(last.groups["joined"])
    waiting = {int(hit.groups["rank"]) for hit in hits if hit.groups["key"] == last.groups["key"]}
    if joined >= size or case.once(ended_well):
        return []
    absent = [rank for rank in range(size) if rank not in waiting] if joined == len(waiting) else []
    note = f"{joined} of {size} ranks came to the store's barrier {last.groups['key'].strip(',')}."
    repeated = len([hit for hit in hits if hit.groups["rank"] == last.groups["rank"]]) > 1
    sure = NAMES_AN_EFFECT if "Timed out" in last.line.text or repeated else SUGGESTS
    clue = clue_of("missing_rank", [last], [case.of_rank(rank) for rank in absent], note, hits[:2], confidence=sure)
    return [replace(clue, victims=tuple(sorted(waiting)))]


def _raised_by_all_others(case: Case) -> list[Clue]:
    """gloo has no watchdog: whoever waits raises that it waited too long, or that a peer is gone. Who raised nothing,
    if that are few and their logs are there, is who they waited for."""
    world, raised = case.logs.world_size, victims_of(case)
    if world is None or case.logs.deduplicated or not raised:
        return []
    silent = [rank for rank in range(world) if rank not in raised]
    if not silent or len(silent) > len(raised) or not all(_read(case, rank) for rank in silent):
        return []
    lines = list(raised.values())
    name = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent[:8]))}"
    note = f"{len(raised)} of {world} ranks lost a peer or waited for one too long; {name} did not say so."
    culprits = distinct([case.of_rank(rank) for rank in silent])
    evidence = tuple(line.evidence for line in lines[:4])
    return [Clue("missing_rank", Role.ROOT, culprits, evidence, _LOGS_MISSING, note, tuple(sorted(raised)))]


def _read(case: Case, rank: int) -> bool:
    """Whether something that this rank printed was read."""
    process = case.by_rank.get(rank)
    return process is not None and bool(process.paths)


def _barrier(case: Case) -> list[Clue]:
    """Rank 0's line names who did not come; with wait_all_ranks=False only the first of them."""
    hits = case.named("monitored-barrier")
    if not hits:
        return []
    ranks = sorted({rank for hit in hits for rank in ranks_in(hit.groups["ranks"])})
    victims = case.named("barrier-victim")
    clue = clue_of("missing_rank", hits, [case.of_rank(rank) for rank in ranks], hits[0].sentence, victims[:2])
    waiting = {int(hit.groups["rank"]) for hit in victims} - set(ranks)
    return [replace(clue, confidence=_FROM_A_REPORT, victims=tuple(sorted(waiting | ({0} - set(ranks)))))]


def waiting_elsewhere(groups: tuple[GroupTimeouts, ...]) -> set[int]:
    """Ranks that wait in some group: whatever they are absent from, they could not come."""
    return {rank for group in groups for rank in group.ranks}


def _watchdogs(case: Case) -> list[Clue]:
    if case.logs.deduplicated:
        return []
    groups = groups_of(case, case.once(timeouts_of))
    waiting = waiting_elsewhere(groups)
    found = []
    for group in groups:
        absent = tuple(rank for rank in group.absent if rank not in waiting)
        if not absent or group.members is None or not group.ranks:
            continue
        read = all(_read(case, rank) for rank in absent)
        if not read and 2 * len(absent) >= len(group.members):
            continue  # half of the logs are missing: nothing can be said
        sure = _LOGS_READ if read else _LOGS_MISSING
        sure = sure if group.group else min(sure, SUGGESTS)
        usual = next(report for report in group.reports if report.call == group.usual)
        who = ", ".join(map(str, absent[:8]))
        name = f"rank{'s' if len(absent) > 1 else ''} {who}"
        note = f"{len(group.ranks)} of {len(group.members)} ranks of {group.words} timed out in {usual.words}; "
        note += f"{name} did not."
        if not read:
            note += " No log of theirs was read."
        times = [report.line.time_ns for report in group.reports if report.line.time_ns is not None]
        culprits = [replace(case.of_rank(rank), process_group=group.group) for rank in absent]
        evidence = tuple(report.line.evidence for report in (usual, *(r for r in group.reports if r is not usual)))
        victims = tuple(sorted(waiting - set(absent)))
        time = min(times, default=None)
        found.append(
            Clue("missing_rank", Role.ROOT, distinct(culprits), evidence[:4], sure, note, victims, time_ns=time)
        )
    return found


@dataclass(frozen=True)
class _Status:
    enqueued: int
    completed: int
    line: Line


def _statuses(case: Case) -> dict[str, dict[int, _Status]]:
    """The last counters that every rank printed of every group."""
    found: dict[str, dict[int, _Status]] = defaultdict(dict)
    for hit in case.named("pg-status"):
        group, group_rank = group_of_line(hit.line)
        rank = rank_in(case, hit.line, group, group_rank)
        if group and rank is not None:
            found[group][rank] = _Status(int(hit.groups["enqueued"]), int(hit.groups["completed"]), hit.line)
    return found


def _lagging(case: Case) -> list[Clue]:
    """All members print their counters, and some have enqueued less than the others."""
    found = []
    for group, by_rank in case.once(_statuses).items():
        if len(by_rank) < 2 or not is_world(group) or case.logs.world_size != len(by_rank):
            continue
        most = max(status.enqueued for status in by_rank.values())
        least = min(status.enqueued for status in by_rank.values())
        behind = sorted(rank for rank, status in by_rank.items() if status.enqueued == least)
        if least == most or 2 * len(behind) >= len(by_rank) + (len(by_rank) == 2):
            continue
        ahead = next(rank for rank, status in by_rank.items() if status.enqueued == most)
        note = f"In process group {group} rank {behind[0]} enqueued {least} operations, rank {ahead} {most}."
        evidence = tuple(by_rank[rank].line.evidence for rank in (*behind[:3], ahead))
        culprits = distinct([replace(case.of_rank(rank), process_group=group) for rank in behind])
        victims = tuple(sorted(set(by_rank) - set(behind)))
        found.append(Clue("missing_rank", Role.ROOT, culprits, evidence, _LAGS, note, victims))
    return found


def _never_started(case: Case) -> list[Clue]:
    """Members of a communicator that never logged Init START while those that did wait for them (NCCL 2.18+)."""
    if case.logs.deduplicated:
        return []
    for communicator in case.communicators:
        started = {m.group_rank for m in communicator.members if m.started or m.completed}
        waits = [m for m in communicator.members if m.started and not m.completed and not m.ended]
        absent = [number for number in range(communicator.size) if number not in started]
        if not communicator.comm_id or not waits or not absent:
            continue
        ranks = [case.global_rank(communicator, number) for number in absent]
        known = [rank for rank in ranks if rank is not None]
        read = len(known) == len(ranks) and all(_read(case, rank) for rank in known)
        if not read and 2 * len(absent) > communicator.size:
            continue
        return [_not_started(case, communicator, absent, read)]
    return []


def _not_started(case: Case, communicator: Communicator, absent: list[int], read: bool) -> Clue:
    culprits, waiting = [], []
    for number in range(communicator.size):
        rank = case.global_rank(communicator, number)
        if number in absent:
            alone = Culprit(process_group=communicator.comm_id, peer=f"rank {number} of the communicator")
            culprits.append(case.of_rank(rank) if rank is not None else alone)
        elif rank is not None:
            waiting.append(rank)
    lines = [line for line in case.logs.lines if communicator.comm_id in line.text and "Init START" in line.text]
    note = (
        f"{communicator.size - len(absent)} of {communicator.size} members of communicator {communicator.comm_id} "
        f"began "
        f"its initialisation; {', '.join(map(str, absent[:8]))} did not."
    )
    sure = _LOGS_READ if read else _LOGS_MISSING
    evidence = tuple(line.evidence for line in lines[:4])
    return Clue("missing_rank", Role.ROOT, distinct(culprits), evidence, sure, note, tuple(waiting))


def _behind_in_calls(case: Case) -> list[Clue]:
    """Members whose last call on a communicator comes before that of the others (SUBSYS=COLL)."""
    if case.logs.deduplicated:
        return []
    found = []
    for communicator in case.communicators:
        last = {m.group_rank: m.calls[-1] for m in communicator.members if m.calls and not m.ended}
        if len(last) != communicator.size or communicator.size < 2:
            continue
        most = max(call.op_count for call in last.values())
        behind = sorted(rank for rank, call in last.items() if call.op_count < most)
        if not behind or 2 * len(behind) >= communicator.size + (communicator.size == 2):
            continue
        ahead = next(rank for rank, call in last.items() if call.op_count == most)
        culprits = []
        for number in behind:
            rank = case.global_rank(communicator, number)
            alone = Culprit(process_group=communicator.comm_id, peer=f"rank {number} of the communicator")
            culprits.append(case.of_rank(rank) if rank is not None else alone)
        note = (
            f"The last call of rank {behind[0]} on communicator {communicator.comm_id or 'without id'} is number "
            f"{last[behind[0]].op_count:#x}; that of the others is {most:#x} ({last[ahead].op})."
        )
        evidence = tuple(last[number].evidence for number in (*behind[:3], ahead))
        hung = case.first_timeout() is not None
        # Without a time-out the job may still be running: the log is a moment of it.
        sure = NAMES_AN_EFFECT if hung else SUGGESTS
        ranks = [case.global_rank(communicator, number) for number in last if number not in behind]
        victims = tuple(sorted(rank for rank in ranks if rank is not None))
        found.append(Clue("missing_rank", Role.ROOT, distinct(culprits), evidence, sure, note, victims))
    return found

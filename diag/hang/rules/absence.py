"""Ranks that did not arrive: at a collective that the others timed out in, a barrier, an initialisation.

An absence counts only where the size of the group is known, and never where Ray left lines out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from diag.ended.model import Clue, Culprit
from diag.events.behind import Waits, uneven_counters, waits_of
from diag.events.differs import who_differs
from diag.events.left import Ended, who_left
from diag.events.rows import Call, Did, Event, GroupRank, JobRank, M
from diag.events.said import Report, who_said_so
from diag.hang.classes.base import Hit
from diag.hang.failures import (
    TIMED_OUT,
    GroupTimeouts,
    Timeout,
    actor_above,
    ended_well,
    failed,
    groups_of,
    timeouts_of,
    went_on,
    writers_of_ids,
)
from diag.hang.job import JobLogs, distinct
from diag.hang.model import MOST_RANKS, Communicator, absent_of
from diag.hang.numbering import Member, Numbering, member_culprit
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, ranks_in, time_of
from diag.hang.rules.exceptions import victims_of
from diag.hang.rules.tracebacks import cut_among
from diag.words.formatting import begun, listing, spaced

_LISTED = re.compile(r"(?:^|\]<std\w{2,5}>:)(?:\[\d+\] )?(\d{1,9}): \[(?P<tensor>[^,\]]*)")


def clues(job: JobLogs) -> list[Clue]:
    absences = [
        *_barrier(job),
        *_awaited(job),
        *_watchdogs(job),
        *_never_started(job),
        *_behind_in_calls(job),
        *_late_at_the_store(job),
        *_store_barrier(job),
        *_closed(job),
        *_horovod(job),
        *_coordination(job),
        *_lost_nodes(job),
        *_abnormal_of_hccl(job),
        *_registered(job),
        *_analysed(job),
    ]
    absences = absences or [*_passed_over(job), *_clients(job), *_rendezvous(job), *_fewer_came(job)]
    return absences or _raised_by_all_others(job)


def _late_at_the_store(job: JobLogs) -> list[Clue]:
    """A store that answers "timed out" is alive: the rank that writes the key is late."""
    late = []
    ids = [hit for hit in job.named("store-get") if TIMED_OUT.search(hit.line.text)]
    if ids:
        writers = job.once(writers_of_ids)
        victims = {rank for hit in ids if (rank := job.rank_of(hit.line)) is not None} - set(writers)
        if busy := [report for report in job.once(timeouts_of) if report.rank in writers]:
            return [_waits_elsewhere(ids, busy[0])]
        writer = f"rank {writers[0]}" if len(writers) == 1 else "the first rank of its group"
        note = (
            f"The store answers, but the key '{ids[0].groups['key']}' that {writer} sets "
            "when it initialises NCCL was not set in time."
        )
        culprits = [job.of_rank(rank) for rank in writers]
        clue = clue_of("slow_rank_init", ids, culprits, note, confidence=HANG_EVIDENCE.names_an_effect)
        late.append(replace(clue, victims=tuple(sorted(victims))))
    waits = [hit for hit in job.named("store-wait") if "store_based_barrier" not in hit.line.text]
    if waits and not ids:
        note = f"{waits[0].sentence} The store answers, so the rank that sets it is late or waits elsewhere."
        late.append(clue_of("missing_rank", waits, [], note, confidence=HANG_EVIDENCE.suggests))
    return late


def _waits_elsewhere(ids: list[Hit], report: Timeout) -> Clue:
    """A rank that waits in a collective is not slow to start: the ranks are at different places of the program."""
    note = (
        f"Others set up a communicator and wait for its key '{ids[0].groups['key']}' of rank {report.rank}, which "
        f"waits for them in {report.op}, sequence number {report.seq}."
    )
    return clue_of("desync", ids, [], note, confidence=HANG_EVIDENCE.suggests)


def _horovods_list(job: JobLogs) -> list[Clue]:
    """ "Missing ranks:" and a line for each, with the tensor that it has not submitted (Horovod 0.20+)."""
    lines = {line: match for line in job.logs.lines if line.source == "horovod" and (match := _LISTED.search(line.raw))}
    ranks = sorted(who_said_so(Report((int(match[1]),)) for match in lines.values()).named)
    if not ranks:
        return []
    first = next(iter(lines.values()))["tensor"].strip()
    note = f"Horovod waits for {spaced(listing(ranks, len(ranks)))} to submit {first}."
    culprits = distinct([job.of_rank(rank) for rank in ranks])
    return [
        Clue("missing_rank", culprits, tuple(line.evidence for line in lines)[:4], HANG_RULES.lags_by_counters, note)
    ]


_LOST = ("host", "node", "failed", "not_ready", "named", "spark")


def _lost_nodes(job: JobLogs) -> list[Clue]:
    """A node that the cluster no longer sees, or on which it could not start a task."""
    hits = job.named("node-lost")
    if not hits:
        return []
    hosts = who_said_so(Report(_hosts_of(job, hit)) for hit in hits).named
    note = next((hit.sentence for hit in hits if "ended" not in hit.groups), hits[0].sentence)
    ranks = sorted({int(hit.groups["rank"]) for hit in hits if "rank" in hit.groups})
    few = ranks if len(ranks) <= HANG_RULES.few_absent_ranks else []
    return [clue_of("missing_rank", hits, [*map(job.of_host, hosts), *map(job.of_rank, few)], note)]


def _abnormal_of_hccl(job: JobLogs) -> list[Clue]:
    """The devices that HCCL's heartbeats name: those that make no progress, else those that no longer answer, where the
    ones that miss them are not missed themselves, as by a network that fails between them."""
    hits = job.named("hccl-abnormal")
    stuck = [hit for hit in hits if "stuck" in hit.groups]
    missed = {f"{hit.groups['host']}/{hit.groups['gpu']}" for hit in hits}
    by = {hit.groups.get("by") or hit.groups.get("informer", "") for hit in hits}
    named = stuck or ([] if missed & by else hits)
    if not hits:
        return []
    devices = dict.fromkeys((hit.groups["host"].partition("%")[0], int(hit.groups["gpu"])) for hit in named)
    culprits = [Culprit(host=job.resolve(host) or host, gpu=gpu) for host, gpu in devices]
    return [clue_of("missing_rank", named or hits, culprits, (named or hits)[0].sentence)]


def _hosts_of(job: JobLogs, hit: Hit) -> tuple[str, ...]:
    """The nodes that a line names; of an actor of Ray whose node died, the address above the line."""
    named = tuple(hit.groups[name] for name in _LOST if name in hit.groups)
    address = actor_above(job, hit.line).get("ip") if "ended" in hit.groups else None
    return named if address is None else (*named, address)


def _registered(job: JobLogs) -> list[Clue]:
    """Lightning's ranks register, and some do not come. Where those that came did so twice, two nodes believe to be the
    first."""
    hits = job.named("lightning-member")
    times = Counter(int(hit.groups["rank"]) for hit in hits)
    size = max((int(hit.groups["size"]) for hit in hits), default=0)
    said = who_said_so([Report(tuple(absent_of(size, times)), tuple(sorted(times)))])
    absent = said.named
    if not absent or job.once(ended_well) or not _would_be_seen(job, absent, cut_among(job, (h.line for h in hits))):
        return []
    twice = min(times.values()) > 1
    # The log of one node has its own ranks only, and a process that ended explains more.
    doubtful = 2 * len(absent) > size or job.once(failed) or bool(job.named("lightning-registered"))
    if not twice and (doubtful or any(went_on(job, hit.line) for hit in hits)):
        return []
    came = f"Ranks {', '.join(map(str, sorted(times)[:8]))} of {size} register"
    note = f"{came}, and no line says that all did. The others registered nowhere in these logs."
    if twice:
        note = f"{came} twice and the others never: several nodes have the same node rank (SLURM_NODEID, NODE_RANK, "
        note += "--node-rank)."
    clue = clue_of("missing_rank", hits, [job.of_rank(rank) for rank in absent], note)
    return [
        replace(
            clue,
            confidence=HANG_EVIDENCE.names_an_effect if twice else HANG_EVIDENCE.suggests,
            victims=said.waiting,
        )
    ]


def _analysed(job: JobLogs) -> list[Clue]:
    """Ranks of which torchfrtrace found no entry. Perhaps only their dumps are missing."""
    hits = job.named("fr-trace-missing")
    if not hits:
        return []
    ranks = who_said_so([Report(tuple(ranks_in(hits[0].groups["ranks"])))]).named
    return [
        clue_of(
            "missing_rank",
            hits[:1],
            [job.of_rank(r) for r in ranks],
            hits[0].sentence,
            confidence=HANG_RULES.absent_logs_missing,
        )
    ]


def _clients(job: JobLogs) -> list[Clue]:
    """How many processes did not come to the store; which ones, it does not know."""
    counts = job.named("waiting-for-clients") or job.named("fewer-joined", "etcd-barrier")
    hits = [hit for hit in counts if int(hit.groups["joined"]) < int(hit.groups["wanted"])]
    if not hits or job.once(ended_well):
        return []
    wanted, joined = int(hits[-1].groups["wanted"]), int(hits[-1].groups["joined"])
    where = " to the store" if hits[-1].name == "waiting-for-clients" else ""
    note = f"{joined} of {wanted} processes came{where}; which did not is not printed."
    return [clue_of("missing_rank", hits, [], note, confidence=HANG_EVIDENCE.names_an_effect)]


def _fewer_came(job: JobLogs) -> list[Clue]:
    """A program that waits for devices or pods, and does not say for which."""
    hits = job.named("xla-rendezvous") or job.named("pod-not-scheduled", "ray-no-node")
    if not hits or any(went_on(job, hit.line) for hit in hits):
        return []
    return [clue_of("missing_rank", hits, [], hits[0].sentence, confidence=HANG_EVIDENCE.suggests)]


def _rendezvous(job: JobLogs) -> list[Clue]:
    hits = job.named("rendezvous-timeout")
    return [clue_of("missing_rank", hits, [], hits[0].sentence, confidence=HANG_EVIDENCE.suggests)] if hits else []


def _passed_over(job: JobLogs) -> list[Clue]:
    """A group of unknown size in which ranks 1, 2, 3 and so on wait in the same collective, and rank 0 alone does not:
    of pasted lines it would hardly be just its own that are missing."""
    if job.logs.deduplicated or job.logs.world_size is not None:
        return []
    groups = groups_of(job, job.once(timeouts_of))
    waiting = {rank for group in groups for rank in group.ranks}
    for group in groups:
        same = len({report.call for report in group.reports}) == 1
        if (
            group.members is None
            and group.passed_over == (0,)
            and len(group.ranks) >= HANG_RULES.few_absent_ranks
            and same
            and 0 not in waiting
            and _would_be_seen(job, (0,), cut_among(job, (report.line for report in group.reports)))
        ):
            note = f"Ranks 1 to {len(group.ranks)} timed out in {group.reports[0].words}, and rank 0 reported nothing."
            evidence = tuple(report.line.evidence for report in group.reports)[:4]
            victims = tuple(sorted(group.ranks))
            return [Clue("missing_rank", (job.of_rank(0),), evidence, HANG_EVIDENCE.suggests, note, victims)]
    return []


def _coordination(job: JobLogs) -> list[Clue]:
    """JAX's and TensorFlow's coordination service lists the tasks that did not reach its barrier; TensorFlow's first
    service names each that does not answer."""
    silent = [hit for hit in job.named("heartbeat-lost", "session-waits") if not went_on(job, hit.line)]
    hits, tasks = job.named("coordination-barrier") or silent, job.named("coordination-task")
    ranks = sorted(who_said_so(Report((int(hit.groups["rank"]),)) for hit in silent or tasks).named)
    if hits and not ranks and any("egister" in hit.groups.get("barrier", "") for hit in hits):
        note = f"{hits[0].sentence} Some of the job's processes never registered; which is not printed."
        return [clue_of("missing_rank", hits, [], note, confidence=HANG_EVIDENCE.names_an_effect)]
    if not hits or not ranks:
        return []
    note = silent[0].sentence if silent else f"{hits[0].sentence} It lists tasks {', '.join(map(str, ranks))}."
    return [
        clue_of(
            "missing_rank",
            hits,
            [job.of_rank(rank) for rank in ranks],
            note,
            tasks,
            confidence=HANG_RULES.lags_by_counters,
        )
    ]


def _lacking(stalled: re.Match[str], size: int) -> set[int]:
    """The ranks that lack a tensor. Older versions list the ranks that are ready."""
    if stalled["ranks"] is not None:
        return set(ranks_in(stalled["ranks"]))
    return set(range(size)) - set(ranks_in(stalled["ready"])) if size <= MOST_RANKS else set()


def _lack_all(lacking: Mapping[str, set[int]], size: int) -> set[int]:
    """The ranks that others wait for and that wait in no tensor themselves."""
    ranks = [JobRank(rank) for rank in range(size)]
    unseen = JobRank(-1)  # a rank of which no line is here: somebody has submitted each of the tensors
    events = [
        Event(rank, 0, did=Did.WAITS, group=tensor)
        for tensor, without in lacking.items()
        for rank in (unseen, *(rank for rank in ranks if rank not in without))
    ]
    members: dict[Hashable, Sequence[JobRank]] = dict.fromkeys(lacking, ranks)
    return set(waits_of(events, members).absent)


def _elsewhere(lacking: Mapping[str, set[int]], size: int) -> tuple[Sequence[int], str]:
    """Where no rank lacks all tensors: the ranks that submitted others than most, and what the two sides submitted."""
    submitted = {rank: tuple(t for t, ranks in lacking.items() if rank not in ranks) for rank in range(size)}
    difference = who_differs([Event(JobRank(rank), 0, Call(sizes=tensors)) for rank, tensors in submitted.items()])
    if difference is None or difference.open:
        return sorted(set().union(*lacking.values())), ""
    odd, usual = difference.odd, submitted[difference.usual.who]
    if not usual or not submitted[odd[0]]:
        return sorted(set().union(*lacking.values())), ""
    return odd, f"{begun(spaced(listing(odd, len(odd))))} submitted {submitted[odd[0]][0]}, the others {usual[0]}."


def _horovod(job: JobLogs) -> list[Clue]:
    """Horovod's coordinator lists the ranks that have not submitted a tensor. Ranks that lack different tensors wait in
    different ones."""
    hits = job.named("horovod-stalled")
    if not hits:
        return _horovods_list(job)
    # Older versions list all tensors in one line.
    stalled = {match["tensor"]: match for hit in hits for match in hit.pattern.matches(hit.line.text)}
    # Without a world size, only ranks up to the highest that is printed are known to exist.
    printed = [rank for match in stalled.values() for rank in ranks_in(match["ranks"] or match["ready"] or "")]
    size = job.logs.world_size or max(printed, default=-1) + 1
    few = size * len(stalled) <= MOST_RANKS  # else the ranks that are not listed are too many to look at
    lacking = {tensor: _lacking(match, size if few else MOST_RANKS + 1) for tensor, match in stalled.items()}
    lacking = {tensor: ranks for tensor, ranks in lacking.items() if ranks}
    if not lacking:
        return []
    common = _lack_all(lacking, size) if few else set.intersection(*lacking.values())
    if not common and few:
        odd, note = _elsewhere(lacking, size)
        if note:
            culprits = [job.of_rank(rank) for rank in odd]
            clue = clue_of("desync", hits, culprits, note, confidence=HANG_RULES.lags_by_counters)
            return [replace(clue, victims=tuple(sorted(set(range(size)) - set(odd))))]
    ranks = sorted(common or set.union(*lacking.values()))
    tensors = ", ".join(list(stalled)[:3]) + (f" and {len(stalled) - 3} more" if len(stalled) > 3 else "")
    note = f"Horovod waits for {spaced(listing(ranks, len(ranks)))} to submit {tensors}."
    name = "missing_rank" if common else "desync"
    return [clue_of(name, hits, [job.of_rank(rank) for rank in ranks], note, confidence=HANG_RULES.lags_by_counters)]


def _store_barrier(job: JobLogs) -> list[Clue]:
    """torch's barrier at the store prints how many ranks have come; a rank that waits in it has come."""
    hits = job.named("store-barrier")
    if not hits:
        return []
    last = hits[-1]
    key, size, joined = last.groups["key"].strip(","), int(last.groups["size"]), int(last.groups["joined"])
    came = who_said_so(
        Report(came=(int(hit.groups["rank"]),)) for hit in hits if hit.groups["key"] == last.groups["key"]
    )
    waiting = set(came.waiting)
    done = any(hit.groups["key"] == key for hit in job.named("store-barrier-done"))
    if joined == size or done or job.once(ended_well):
        return []
    if joined > size:
        return _stale_store(job, last, hits)
    absent = absent_of(size, waiting) if joined == len(waiting) else []
    absent = absent if _would_be_seen(job, absent, cut_among(job, (hit.line for hit in hits))) else []
    note = f"{joined} of {size} ranks came to the store's barrier {key}."
    repeated = len([hit for hit in hits if hit.groups["rank"] == last.groups["rank"]]) > 1
    sure = HANG_EVIDENCE.names_an_effect if "Timed out" in last.line.text or repeated else HANG_EVIDENCE.suggests
    clue = clue_of("missing_rank", [last], [job.of_rank(rank) for rank in absent], note, hits[:2], confidence=sure)
    return [replace(clue, victims=tuple(sorted(waiting)))]


def _stale_store(job: JobLogs, last: Hit, hits: list[Hit]) -> list[Clue]:
    """More workers than the world has: the store also counts those of an earlier run or attempt. Where a cancellation
    ended that attempt, the cancellation is the cause."""
    cancelled = any(job.before(hit.line, last.line) for hit in job.of_class("job_cancelled"))
    if cancelled or went_on(job, last.line):
        return []
    note = f"Its barrier counts {last.groups['joined']} workers, and the world has {last.groups['size']}."
    return [clue_of("stale_store", [last], [], note, hits[:2], confidence=HANG_EVIDENCE.names_an_effect)]


def _closed(job: JobLogs) -> list[Clue]:
    """A rendezvous that is closed when the first launchers come: an earlier run with its id, or an attempt that ended,
    closed it. A launcher that had joined sees the end of its own job."""
    hits = job.named("etcd-closed")
    if not hits or job.named("etcd-joined"):
        return []
    note = f"{hits[0].sentence} No launcher in these logs had joined it: an earlier run or attempt had."
    return [clue_of("stale_store", hits, [], note, confidence=HANG_EVIDENCE.suggests)]


def _raised_by_all_others(job: JobLogs) -> list[Clue]:
    """gloo has no watchdog: ranks that wait raise a time-out or a lost peer. The few ranks that raised nothing, and
    whose logs are there, are the ones that they waited for."""
    world, raised = job.logs.world_size, victims_of(job)
    if world is None or job.logs.deduplicated or not raised:
        return []
    silent = absent_of(world, raised)
    if not silent or len(silent) > len(raised) or not all(_read(job, rank) for rank in silent):
        return []
    left = who_left((Ended(rank, of_others=rank in raised) for rank in (*silent, *sorted(raised))), 0)
    name = spaced(listing(left.first))
    note = f"{len(raised)} of {world} ranks lost a peer or timed out waiting for one; {name} reported nothing."
    culprits = distinct([job.of_rank(rank) for rank in left.first])
    evidence = tuple(line.evidence for line in list(raised.values())[:4])
    return [Clue("missing_rank", culprits, evidence, HANG_RULES.absent_logs_missing, note, left.victims)]


def _read(job: JobLogs, rank: int) -> bool:
    """Whether something that this rank printed was read."""
    process = job.by_rank.get(rank)
    return process is not None and bool(process.paths)


def _would_be_seen(job: JobLogs, ranks: Iterable[int], cut: set[str]) -> bool:
    """Whether lines of these ranks, had they printed them, would be in the logs: not behind the end of a file that is
    ``cut`` inside such a line."""
    if not cut:
        return True
    return all(rank in job.by_rank and set(job.by_rank[rank].paths) - cut for rank in ranks)


def _barrier(job: JobLogs) -> list[Clue]:
    """Rank 0's line names the ranks that did not come; with wait_all_ranks=False only the first."""
    hits = job.named("monitored-barrier")
    if not hits:
        return []
    victims = job.named("barrier-victim")
    zeros = [Member(0, job.rank_of(hit.line)) for hit in hits]
    came = [Member(int(hit.groups["rank"]), job.rank_of(hit.line)) for hit in victims]
    numbering = Numbering([*zeros, *came])
    ranks = {
        number: numbering.likely(number, zero)
        for hit, zero in zip(hits, zeros, strict=True)
        for number in ranks_in(hit.groups["ranks"])
    }
    culprits = [member_culprit(job, number, ranks[number]) for number in sorted(ranks)]
    waiting = (numbering.likely(member.number, member) for member in (*zeros, *came))
    missing = tuple(rank for rank in ranks.values() if rank is not None)
    said = who_said_so([Report(missing, tuple(rank for rank in waiting if rank is not None))])
    waited = tuple(sorted(said.waiting))
    clue = clue_of("missing_rank", hits, culprits, hits[0].sentence, victims[:2])
    return [replace(clue, confidence=HANG_RULES.absent_in_report, victims=waited)]


def _awaited(job: JobLogs) -> list[Clue]:
    """torchcomms: each rank that times out names the peer that it waits for. A peer that waits, too, is not one."""
    by_communicator: dict[str, list[Hit]] = defaultdict(list)
    for hit in job.named("ctran-wait"):
        by_communicator[hit.groups["communicator"]].append(hit)
    clues = []
    for hits in by_communicator.values():
        waiting = [Member(int(hit.groups["rank"]), job.rank_of(hit.line)) for hit in hits]
        said = who_said_so(
            Report((int(hit.groups["awaited"]),), (member.number,)) for hit, member in zip(hits, waiting, strict=True)
        )
        named = [number for number in said.named if number not in {member.number for member in waiting}]
        if named:
            numbering = Numbering(waiting)
            ranks = {number: numbering.likely(number, waiting[0]) for number in named}
            culprits = [member_culprit(job, number, rank) for number, rank in ranks.items()]
            victims = (numbering.likely(member.number, member) for member in waiting)
            clue = clue_of("missing_rank", hits, culprits, hits[0].sentence, confidence=HANG_EVIDENCE.suggests)
            clues.append(replace(clue, victims=tuple(sorted(rank for rank in victims if rank is not None))))
    return clues[:1]


def _watchdogs(job: JobLogs) -> list[Clue]:
    if job.logs.deduplicated:
        return []
    groups = groups_of(job, job.once(timeouts_of))
    cut = cut_among(job, (hit.line for hit in job.named("watchdog")))
    behind = set(_behind_of_watchdogs(groups).absent)
    waiting = {rank for group in groups for rank in group.ranks}
    absences = []
    for group in groups:
        absent = tuple(rank for rank in group.absent if rank in behind)
        if not absent or group.members is None or not group.ranks:
            continue
        read = all(_read(job, rank) for rank in absent)
        if not read and 2 * len(absent) >= len(group.members):
            continue  # half of the logs are missing: nothing can be said
        if len({report.seq for report in group.reports}) > 1 or not _would_be_seen(job, absent, cut):
            continue  # who waits in another call says more than who says nothing
        sure = HANG_RULES.absent_logs_read if read else HANG_RULES.absent_logs_missing
        sure = sure if group.group else min(sure, HANG_EVIDENCE.suggests)
        usual = next(report for report in group.reports if report.call == group.usual)
        note = f"{len(group.ranks)} of {len(group.members)} ranks of {group.words} timed out in {usual.words}; "
        note += f"{spaced(listing(absent))} did not."
        if not read:
            note += " Its log was not read." if len(absent) == 1 else " Their logs were not read."
        culprits = [replace(job.of_rank(rank), process_group=group.group) for rank in absent]
        evidence = tuple(report.line.evidence for report in (usual, *(r for r in group.reports if r is not usual)))
        victims = tuple(sorted(waiting - set(absent)))
        time = time_of(report.line for report in group.reports)
        absences.append(Clue("missing_rank", distinct(culprits), evidence[:4], sure, note, victims, time_ns=time))
    return absences


def _behind_of_watchdogs(groups: Sequence[GroupTimeouts]) -> Waits[JobRank, Event[JobRank]]:
    """Each report is of a rank that waits. A member that waits in another group could not come."""
    events: list[Event[JobRank]] = []
    members: dict[Hashable, Sequence[JobRank]] = {}
    for place, group in enumerate(groups):
        if absent := group.absent:
            members[place] = [JobRank(rank) for rank in (*group.ranks, *absent)]
        events += [
            Event(JobRank(report.rank), report.seq, did=Did.WAITS, group=place)
            for report in group.reports
            if report.rank is not None
        ]
    return waits_of(events, members)


def behind_by_counters(positions: Mapping[M, int]) -> tuple[list[M], M] | None:
    """The members whose counter of calls is behind, and one of the furthest; None where all are even, and where the
    most are behind: the others may have made a call of their own."""
    found = uneven_counters(positions)
    if found is None or 2 * len(found.behind) >= len(positions) + (len(positions) == 2):
        return None
    return sorted(found.behind), max(positions, key=lambda member: positions[member])


def _never_started(job: JobLogs) -> list[Clue]:
    """Members of a communicator that never logged Init START while others wait for them (NCCL 2.18+)."""
    if job.logs.deduplicated:
        return []
    for communicator in job.communicators:
        started = [m for m in communicator.members if m.started or m.completed]
        events = [
            Event(
                GroupRank(m.group_rank),
                0,
                did=Did.FINISHED if m.completed or m.ended else Did.WAITS,
            )
            for m in started
        ]
        absent = absent_of(communicator.size, {m.group_rank for m in started})
        members = [GroupRank(number) for number in (*(m.group_rank for m in started), *absent)]
        behind = list(waits_of(events, {"": members}).absent)
        if not communicator.comm_id or not behind:
            continue
        ranks = [job.global_rank(communicator, number) for number in behind]
        known = [rank for rank in ranks if rank is not None]
        read = len(known) == len(ranks) and all(_read(job, rank) for rank in known)
        if not read and 2 * len(behind) > communicator.size:
            continue
        if not read and cut_among(job, (line for line in job.logs.lines if communicator.comm_id in line.text)):
            continue
        return [_not_started(job, communicator, behind, read)]
    return []


def _not_started(job: JobLogs, communicator: Communicator, absent: Sequence[int], read: bool) -> Clue:
    culprits = [job.of_member(communicator, number) for number in absent]
    missing = set(absent)
    ranks = [job.global_rank(communicator, number) for number in range(communicator.size) if number not in missing]
    waiting = [rank for rank in ranks if rank is not None]
    lines = [line for line in job.logs.lines if communicator.comm_id in line.text and "Init START" in line.text]
    note = (
        f"{communicator.size - len(absent)} of {communicator.size} members of communicator {communicator.comm_id} "
        f"began its initialisation; {', '.join(map(str, absent[:8]))} did not."
    )
    sure = HANG_RULES.absent_logs_read if read else HANG_RULES.absent_logs_missing
    evidence = tuple(line.evidence for line in lines[:4])
    return Clue("missing_rank", distinct(culprits), evidence, sure, note, tuple(waiting))


def _behind_in_calls(job: JobLogs) -> list[Clue]:
    """Members whose last call on a communicator comes before the others' (SUBSYS=COLL)."""
    if job.logs.deduplicated:
        return []
    lagging = []
    for communicator in job.communicators:
        last = {GroupRank(m.group_rank): m.calls[-1] for m in communicator.members if m.calls and not m.ended}
        if len(last) != communicator.size or communicator.size < 2:
            continue
        found = behind_by_counters({member: call.op_count for member, call in last.items()})
        if found is None:
            continue
        behind, ahead = found
        most = last[ahead].op_count
        culprits = [job.of_member(communicator, number) for number in behind]
        note = (
            f"The last call of rank {behind[0]} on communicator {communicator.comm_id or 'without id'} is number "
            f"{last[behind[0]].op_count:#x}; that of the others is {most:#x} ({last[ahead].op})."
        )
        evidence = tuple(last[number].evidence for number in (*behind[:3], ahead))
        hung = job.first_timeout() is not None
        # Without a time-out the job may still be running: the log is a snapshot.
        sure = HANG_EVIDENCE.names_an_effect if hung else HANG_EVIDENCE.suggests
        ranks = [job.global_rank(communicator, number) for number, call in last.items() if call.op_count == most]
        victims = tuple(sorted(rank for rank in ranks if rank is not None))
        lagging.append(Clue("missing_rank", distinct(culprits), evidence, sure, note, victims))
    return lagging

"""Ranks that disagree about a collective: the minority is at fault."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from diag.ended.model import Clue, Culprit, Source
from diag.events.differs import Difference, Kind, Known, first_met, who_differs
from diag.events.operations import keeps_law, members_of
from diag.events.policy import COLLECTIVES
from diag.events.rows import Call, Did, Event, GroupRank, JobRank, M
from diag.events.said import Report, who_said_so
from diag.events.vote import vote
from diag.hang.classes.base import Hit
from diag.hang.failures import GroupTimeouts, Timeout, groups_of, is_world, speaker_of, timeouts_of
from diag.hang.job import JobLogs, distinct
from diag.hang.model import NcclCall, StrayCalls
from diag.hang.numbering import Member, Numbering, member_culprit
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, far_end, ranks_in, time_of
from diag.words.formatting import begun

# Ranks may have different numbers of elements in these.
_UNEVEN = ("ALLTOALL", "GATHER", "SCATTER", "SEND", "RECV", "COALESCED", "UNKNOWN", "BATCH")
_POINT_TO_POINT = ("Send", "Recv", "AlltoAll", "Gather", "Scatter")


def clues(job: JobLogs) -> list[Clue]:
    return [
        *_detail(job),
        *_calls(job),
        *_stray_calls(job),
        *_watchdogs(job),
        *_transport(job),
        *_gloo(job),
        *_desync_report(job),
        *_analyser(job),
        *_same_model(job),
        *_parameters(job),
        *_told(job),
        *_accelerate(job),
    ]


# By torchfrtrace's type of error. A difference in state alone is one of ranks that are late.
_ANALYSED = {
    "COLLECTIVE_TYPE_MISMATCH": "mismatch_op",
    "SIZE_OR_SYNTAX_MISMATCH": "mismatch_shape",
    "COLLECTIVE_DTYPE_MISMATCH": "mismatch_shape",
}


def _analyser(job: JobLogs) -> list[Clue]:
    """What torchfrtrace printed. It compares all ranks with the first one and calls each that differs a culprit: where
    these are most of the group, the others are the odd ones."""
    hit = next((hit for hit in job.named("fr-trace-error") if hit.groups["error"] in _ANALYSED), None)
    if hit is None:
        return []
    listed = {int(match["rank"]) for match in hit.pattern.matches(hit.line.text)}
    members = _analysed_members(job, hit)
    calls = [Event(JobRank(rank), 0, Call("another" if rank in listed else "the first one's")) for rank in members]
    difference = who_differs(calls)
    odd = difference.odd if difference is not None and not difference.open else sorted(listed)
    of = f"{len(listed)} of {len(members) or '?'}"
    note = f"{hit.sentence} It compares with one rank only: {of} ranks differ from it."
    culprits = [job.of_rank(rank) for rank in odd]
    return [clue_of(_ANALYSED[hit.groups["error"]], [hit], culprits, note, confidence=COLLECTIVES.differs_openly)]


def _analysed_members(job: JobLogs, hit: Hit) -> set[int]:
    before = [m for m in job.named("fr-trace-members") if m.line.path == hit.line.path]
    near = [m for m in before if m.line.number < hit.line.number] or before
    return set(ranks_in(near[-1].groups["ranks"])) if near else set()


def _same_model(job: JobLogs) -> list[Clue]:
    """Each rank prints its number of parameters and the one that it read from rank 0. An impossible number is data of
    another call, or none: who sent it is elsewhere, and who prints it is in the check."""
    hits = job.named("ddp-same-model")
    if not hits:
        return []
    printed = [hit for hit in hits if "rank" in hit.groups]
    counts = {int(hit.groups["rank"]): int(hit.groups["count"]) for hit in printed}
    peer_counts = {int(hit.groups["other_rank"]): int(hit.groups["other_count"]) for hit in printed}
    printers = {int(hit.groups["rank"]): Member(int(hit.groups["rank"]), job.rank_of(hit.line)) for hit in printed}
    numbering = Numbering(printers.values())
    readers = {int(hit.groups["other_rank"]): printers[int(hit.groups["rank"])] for hit in printed}
    events = [Event(GroupRank(rank), 0, Call(sizes=count)) for rank, count in {**counts, **peer_counts}.items()]
    difference = who_differs(events)
    odd, clear = (list(difference.odd), not difference.open) if difference is not None else ([], False)
    most = HANG_RULES.most_tensors_of_one_model
    elsewhere = sorted(rank for rank, count in peer_counts.items() if count == 0 or count > most)
    strange = any(peer_counts[rank] for rank in elsewhere)
    name = "desync" if strange else "mismatch_shape"
    note = hits[0].sentence
    note += " No model has that number: that rank is in another collective, or its data was lost." if strange else ""
    note += " That rank sent no parameters: its model has none, or it had left." if elsewhere and not strange else ""
    named = elsewhere or (odd if clear or len(counts) > 1 else sorted({*counts, *peer_counts}))
    sure = HANG_EVIDENCE.names_an_effect if clear else HANG_EVIDENCE.suggests
    ranks = {number: numbering.likely(number, printers.get(number) or readers[number]) for number in named}
    culprits = [member_culprit(job, number, ranks[number]) for number in named]
    return [clue_of(name, hits, culprits, note, confidence=sure)]


def _parameters(job: JobLogs) -> list[Clue]:
    """Each rank compares its parameters with those of its group's first one, and prints its own where they differ. A
    group has at least the ranks below the highest that complains; those that are silent agree with the first one."""
    hits = job.named("ddp-parameter")
    if not hits:
        return []
    complain = [(int(hit.groups["group_rank"]), hit) for hit in hits if int(hit.groups.get("group_rank", 0))]
    own: dict[int, Hashable] = {number: (hit.groups["name"], hit.groups["own"]) for number, hit in complain}
    readers = {number: Member(number, job.rank_of(hit.line)) for number, hit in complain}
    known = job.logs.world_size or 0
    silent = (number for number in range(known or max(own, default=0) + 1) if number not in own)
    # More of them would not change the vote.
    parameters = own | dict.fromkeys(islice(silent, len(own) + 1), "those of the first rank")
    difference = who_differs([Event(GroupRank(number), 0, Call(sizes=value)) for number, value in parameters.items()])
    odd, clear = (difference.odd, not difference.open) if difference is not None else ((), False)
    numbering, any_reader = Numbering(readers.values()), next(iter(readers.values()), None)
    culprits = [
        member_culprit(job, number, numbering.likely(number, reader))
        for number in odd
        if (reader := readers.get(number, any_reader)) is not None
    ]
    sure = HANG_EVIDENCE.names_an_effect if clear and known else HANG_EVIDENCE.suggests
    return [clue_of("mismatch_shape", hits, culprits, hits[0].sentence, confidence=sure)]


def _told(job: JobLogs) -> list[Clue]:
    """Horovod's coordinator and TensorFlow's compare the calls of a tensor, and tell all ranks what differs, and not
    whose."""
    found = (
        ("mismatch_op", job.named("horovod-operation")),
        ("mismatch_shape", job.named("horovod-shape", "tf-shape")),
    )
    return [clue_of(name, hits, [], hits[0].sentence) for name, hits in found if hits]


def _accelerate(job: JobLogs) -> list[Clue]:
    """Accelerate's check prints what each process passes, by its rank. Every process prints all of them."""
    hits = job.named("accelerate-shapes")
    shapes = {int(hit.groups["process"]): hit for hit in reversed(job.named("accelerate-shape"))} if hits else {}
    events = [Event(JobRank(rank), 0, Call(sizes=hit.groups["shape"])) for rank, hit in shapes.items()]
    difference = who_differs(events)
    if difference is None:
        return [clue_of("mismatch_shape", hits, [], hits[0].sentence)] if hits else []
    odd, usual = sorted(difference.odd), shapes[difference.usual.who]
    note = f"{hits[0].sentence} {shapes[odd[0]].sentence} {usual.sentence}"
    culprits = [] if difference.open else [job.of_rank(rank) for rank in odd]
    return [clue_of("mismatch_shape", [hits[0], shapes[odd[0]], usual], culprits, note)]


def _detail(job: JobLogs) -> list[Clue]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: every message names its own rank and the first rank that differs."""
    hits = job.named("detail-mismatch")
    printers = [Member(int(hit.groups.get("rank", 0)), job.rank_of(hit.line)) for hit in hits]
    numbering = Numbering(printer for printer, hit in zip(printers, hits, strict=True) if "rank" in hit.groups)
    prints: dict[int, tuple[str, str, str, str]] = {}  # by the number in the group
    ranks: dict[int, int | None] = {}
    for hit, printer in zip(hits, printers, strict=True):
        for prefix, rank in (("", "rank"), ("other_", "other_rank")):
            if rank not in hit.groups or (prefix and _is_cut(hit)):
                continue
            parts = (hit.groups.get(f"{prefix}{name}", "") for name in ("seq", "op", "shape", "dtype"))
            seq, op, shape, dtype = (part.strip() for part in parts)
            number = int(hit.groups[rank])
            prints.setdefault(number, (seq, op, shape, dtype))
            if ranks.get(number) is None:
                ranks[number] = numbering.likely(number, printer)
    if not hits:
        return []
    same = [hit for hit in hits if _is_cut(hit) and hit.groups["op"].startswith(hit.groups["other_op"])]
    if len(prints) < 2 and same and len(same[0].groups["other_op"]) >= HANG_RULES.letters_that_tell:
        group = {name: int(same[0].groups[name]) for name in ("rank", "other_rank")}
        ranks.setdefault(group["other_rank"], numbering.likely(group["other_rank"], printers[hits.index(same[0])]))
        note = (
            f"{begun(_member_words(group['rank'], ranks))} and {_member_words(group['other_rank'], ranks)} both run "
            f"{same[0].groups['op']}, so its size or type differs; the line is cut before those of the other."
        )
        culprits = [member_culprit(job, number, ranks[number]) for number in group.values()]
        return [clue_of("mismatch_shape", hits, culprits, note, confidence=HANG_EVIDENCE.suggests)]
    if len(prints) < 2:
        known = "".join(
            f" {begun(_member_words(number, ranks))} runs {op}{f' number {seq}' if seq else ''}."
            for number, (seq, op, _, _) in prints.items()
        )
        note = f"torch found that the ranks call different collectives.{known} The line does not show the other side."
        return [
            clue_of(
                "mismatch_op",
                hits,
                [member_culprit(job, number, ranks[number]) for number in prints],
                note,
                confidence=HANG_EVIDENCE.suggests,
            )
        ]
    # The second rank of each message is the first that differs: the culprit, if the others agree.
    named = Counter(GroupRank(int(hit.groups["other_rank"])) for hit in hits if "other_rank" in hit.groups)
    only_two = len(prints) == 2 and len(hits) > 1 and (job.logs.world_size or 0) > 2
    events = [
        Event(GroupRank(number), int(seq or 0), Call(op, sizes=shape, types=dtype))
        for number, (seq, op, shape, dtype) in prints.items()
    ]
    difference = who_differs(events, known=Known(named=named if only_two else None), with_numbers=True)
    if difference is None:
        return [clue_of("desync", hits, [], "", confidence=COLLECTIVES.differs_openly)]
    singular, plural = {
        Kind.OPERATION: ("runs {1}", "run {1}"),
        Kind.SIZE: ("passes [{2}] {3}", "pass [{2}] {3}"),
        Kind.NUMBER: ("is at number {0}", "are at number {0}"),
    }[difference.kind]
    odd = difference.odd
    first = prints[odd[0]]
    others = [call for number, call in prints.items() if number not in odd] or list(prints.values())[1:]
    one = begun(_member_words(odd[0], ranks))
    note = f"{one} {singular.format(*first)}, the others {plural.format(*others[0])}."
    if difference.open and len(odd) == 2:
        other = _member_words(odd[1], ranks)
        note = f"{one} {singular.format(*first)}, {other} {singular.format(*prints[odd[1]])}."
    culprits = [member_culprit(job, number, ranks[number]) for number in odd]
    return [clue_of(difference.fault_class, hits, culprits, note, confidence=difference.confidence)]


def _is_cut(hit: Hit) -> bool:
    """Whether the line ends within the name of the other side's operation."""
    other = hit.groups.get("other_op")
    return other is not None and "other_shape" not in hit.groups and hit.line.text.rstrip().endswith(f"OpType={other}")


def _member_words(number: int, ranks: Mapping[int, int | None]) -> str:
    rank = ranks.get(number)
    return f"rank {number} of its group" if rank is None else f"rank {rank}"


def _calls(job: JobLogs) -> list[Clue]:
    """NCCL's lines (SUBSYS=COLL): the first call of a communicator that its members make differently."""
    mismatches = []
    for communicator in job.communicators:
        events = [event for member in communicator.members for event in _made(member.group_rank, member.calls)]
        difference = who_differs(first_met(events))
        if difference is not None:
            name = f"communicator {communicator.comm_id or 'without id'}"
            note = f"Call {difference.usual.number:#x} of {name}{_calls_in_words(difference)}."
            evidence = evidence_of(difference, events)
            culprits = distinct([job.of_member(communicator, rank) for rank in difference.odd])
            mismatches.append(Clue(difference.fault_class, culprits, evidence, difference.confidence, note))
    return mismatches


def _made(member: int, calls: Iterable[NcclCall]) -> list[Event[GroupRank]]:
    """The calls of a member that all members must make alike."""
    return [
        Event(
            GroupRank(member), call.op_count, Call(call.op, call.root, call.count, call.datatype), source=call.evidence
        )
        for call in calls
        if call.op not in _POINT_TO_POINT
    ]


def _calls_in_words(difference: Difference[GroupRank]) -> str:
    usual, strange = (_call_in_words(event.call, difference) for event in (difference.usual, difference.strange))
    op = f" ({difference.usual.call.op})" if difference.kind is Kind.SIZE else ""
    return f"{op}: {usual} against {strange}" if difference.open else f"{op}: {strange}, the others {usual}"


def _call_in_words(call: Call, difference: Difference[GroupRank]) -> str:
    if difference.kind is Kind.SIZE:
        return f"{call.sizes} elements of type {call.types}"
    return call.op if difference.aspect == "op" else f"root {call.root}"


def evidence_of(difference: Difference[M], met: Iterable[Event[M]]) -> tuple[Source, ...]:
    """The lines of the first members that differ, and of two others."""
    of_call = {event.who: event.source for event in met if event.number == difference.usual.number}
    others = [member for member in of_call if member not in difference.odd][:2]
    sources = (of_call.get(member) for member in (*difference.odd[:4], *others))
    return tuple(source for source in sources if source is not None)


def _stray_calls(job: JobLogs) -> list[Clue]:
    """As ``_calls``, for processes without Init lines: as many of them as a communicator has members, with calls of the
    same number, are taken for its members."""
    by_size: dict[int, list[StrayCalls]] = defaultdict(list)
    for stray in job.logs.stray_calls:
        by_size[stray.size].append(stray)
    for size, strays in by_size.items():
        if size < 2 or len(strays) != size or len({(stray.host, stray.pid, stray.gpu) for stray in strays}) != size:
            continue
        made = [_made(place, stray.calls) for place, stray in enumerate(strays)]
        common = set.intersection(*({event.number for event in events} for events in made))
        events = [event for of_one in made for event in of_one if event.number in common]
        if (difference := who_differs(first_met(events))) is None:
            continue
        culprits = [Culprit(host=strays[place].host, gpu=strays[place].gpu) for place in difference.odd]
        differ = ", ".join(f"GPU {c.gpu} of {c.host}" if c.gpu is not None else c.host for c in culprits)
        note = (
            f"Call {difference.usual.number:#x} of {differ}{_calls_in_words(difference)}. No line shows the ranks of "
            f"these processes, or that they are one communicator of {size}."
        )
        evidence = evidence_of(difference, events)
        return [Clue(difference.fault_class, distinct(culprits), evidence, HANG_EVIDENCE.suggests, note)]
    return []


def _watchdogs(job: JobLogs) -> list[Clue]:
    """Watchdogs of one group that stopped at different calls. Numbers of different groups are never compared."""
    mismatches = []
    groups = groups_of(job, job.once(timeouts_of))
    for group in groups:
        if any(report.rank is None for report in group.reports):
            continue
        reports = {report.rank: report for report in group.reports if report.rank is not None}
        if not group.group and not _one_group(job, reports):
            mismatches += _elsewhere(job, group, reports)
            continue
        clue = _by_watchdog(job, group, reports)
        if clue is not None:
            mismatches.append(
                clue if group.group else replace(clue, confidence=min(clue.confidence, HANG_RULES.group_unnamed))
            )
    return mismatches or _apart(job, groups)


def _apart(job: JobLogs, groups: Sequence[GroupTimeouts]) -> list[Clue]:
    """All ranks of a job of two, each of which waits in another call of the whole job, where only some of the messages
    name the group: the sizes of one call say that it needs both."""
    reports = {report.rank: report for group in groups for report in group.reports if report.rank is not None}
    unnamed = any(not group.group for group in groups) and all(is_world(group.group or "0") for group in groups)
    if not unnamed or set(reports) != {0, 1} or job.logs.world_size not in (None, 2):
        return []
    one, other = reports[0], reports[1]
    sizes = {members_of(report.op, report.numel_in or 0, report.numel_out or 0) for report in (one, other)}
    if one.seq == other.seq or 2 not in sizes or sizes - {2, None}:
        return []
    note = f"Rank 0 waits in {one.words}, and rank 1 in {other.words}; the sizes say that both ranks are needed."
    return [Clue("desync", (), (one.line.evidence, other.line.evidence), HANG_EVIDENCE.names_an_effect, note)]


def _one_group(job: JobLogs, reports: Mapping[int, Timeout]) -> bool:
    """Whether reports that name no group (torch before 2.2) are of one group: all ranks stopped at the same number.
    Without a world size, all ranks up to the highest that was seen must have; or all members or enough of them for a
    vote, if input and output of each say the same number of members, and no rank is above it."""
    if len({report.seq for report in reports.values()}) != 1:
        return False
    world = job.logs.world_size or max(max(reports, default=0) + 1, HANG_RULES.ranks_for_a_vote)
    if len(reports) == world:
        return True
    members = {members_of(one.op, one.numel_in or 0, one.numel_out or 0) for one in reports.values()}
    size = members.pop() if len(members) == 1 else None
    of_all = size is not None and max(reports) < size and job.logs.world_size in (None, size)
    return of_all and len(reports) >= min(size or 0, HANG_RULES.ranks_for_a_vote)


def _elsewhere(job: JobLogs, group: GroupTimeouts, reports: Mapping[int, Timeout]) -> list[Clue]:
    """Ranks that wait in two calls, of which the sizes say that one needs all ranks: whether the other is of this group
    or of one that is not named, they are not where the others wait for them. Who waits elsewhere than most in the call
    of all is named; where it is the few that wait in that call, nobody is."""
    there = [rank for rank, report in reports.items() if report.call == group.usual]
    odd = sorted(rank for rank, report in reports.items() if report.seq != group.usual[0])
    if not odd or len(odd) >= len(there) or len(odd) + len(there) < len(reports):
        return []
    usual, other = reports[there[0]], reports[odd[0]]
    sizes = [members_of(one.op, one.numel_in or 0, one.numel_out or 0) for one in (usual, other)]
    size = sizes[0] or sizes[1]
    if size is None or max(reports) >= size or job.logs.world_size not in (None, size):
        return []
    note = f"Rank {odd[0]} waits in {other.words}, and {len(there)} others in {usual.words}; the "
    note += f"{'second' if sizes[0] else 'first'} needs all {size} ranks."
    culprits = distinct([job.of_rank(rank) for rank in odd]) if sizes[0] else ()
    evidence = tuple(reports[rank].line.evidence for rank in (*odd[:2], *there[:2]))
    return [Clue("desync", culprits, evidence, HANG_EVIDENCE.suggests, note, tuple(sorted(there)))]


def _by_watchdog(job: JobLogs, group: GroupTimeouts, reports: dict[int, Timeout]) -> Clue | None:
    events = [_event(JobRank(rank), report) for rank, report in reports.items()]
    size = len(group.members) if group.members is not None else 0
    lawless = [
        JobRank(rank)
        for rank, report in reports.items()
        if size and not keeps_law(report.op, report.numel_in or 0, report.numel_out or 0, size)
    ]
    difference = who_differs(events, known=Known(lawless=lawless), with_numbers=True, number_first=True)
    if difference is None:
        return None
    odd, usual = difference.odd, reports[difference.usual.who]
    note = f"In {group.words} rank {odd[0]} waits in {reports[odd[0]].words}, the others in {usual.words}."
    if difference.open:
        note = f"In {group.words} the ranks wait in {reports[odd[0]].words} and in {reports[odd[-1]].words}."
    evidence = tuple(reports[rank].line.evidence for rank in odd[:4]) + (
        () if difference.open else (usual.line.evidence,)
    )
    # Each report is of the call that its rank is in, not of one in which they meet.
    most = HANG_EVIDENCE.names_an_effect if difference.kind is Kind.NUMBER else HANG_RULES.vote_of_watchdogs
    culprits = [replace(job.of_rank(rank), process_group=group.group) for rank in odd]
    waiting = tuple(sorted(set(reports) - set(odd)))
    return Clue(
        difference.fault_class,
        distinct(culprits),
        evidence,
        min(most, difference.confidence),
        note,
        waiting,
        time_of(report.line for report in reports.values()),
    )


def _event(rank: JobRank, report: Timeout) -> Event[JobRank]:
    op = report.op.replace("ALLGATHER", "").replace("REDUCE_SCATTER", "")
    uneven = any(word in op for word in _UNEVEN)
    sizes = () if uneven else (report.numel_in, report.numel_out)
    return Event(rank, report.seq, Call(report.op, sizes=sizes), Did.WAITS, source=report.line.evidence)


def _transport(job: JobLogs) -> list[Clue]:
    """Receivers that got another size than they posted: each shows its two ends only."""
    checked = job.named("mismatched-collective")
    if checked:
        near = sorted({int(hit.groups["near"]) for hit in checked if "near" in hit.groups})
        culprits = [job.of_rank(rank) for rank in near]
        return [clue_of("mismatch_shape", checked, culprits, checked[0].sentence)]
    hits = job.named("collective-mismatch-size", "incorrect-receive", "socket-truncated")
    if not hits:
        return []
    peers, speakers = [far_end(job, hit) for hit in hits], [job.culprit(hit.line) for hit in hits]
    ends = (frozenset(map(_name_of, pair)) - {""} for pair in zip(peers, speakers, strict=True))
    pairs = {pair for pair in ends if len(pair) == 2}
    votes = Counter(name for pair in pairs for name in pair)
    by_name = {_name_of(culprit): culprit for culprit in (*speakers, *peers)}  # a peer's has its address as well
    culprits, note = list(by_name.values()), "The two ends disagree; this line does not show which one is wrong."
    if votes and (voted := vote(votes)).clear:
        culprits = [by_name[voted.usual]]
        note = f"Of {len(pairs)} pairs that disagree, {voted.usual} is in {votes[voted.usual]}."
    note = f"{hits[0].sentence} {note}"
    return [clue_of("mismatch_shape", hits, culprits, note, confidence=COLLECTIVES.differs_openly)]


def _name_of(culprit: Culprit) -> str:
    return f"rank {culprit.rank}" if culprit.rank is not None else culprit.host or culprit.peer


def _who_received(job: JobLogs, hit: Hit) -> Culprit:
    """The process that prints a line; in Open MPI's message, the one that it names some lines before."""
    for reporter in job.named("mpi-reporter"):
        if hit.line.follows(reporter.line, HANG_RULES.exit_code_reach):
            return job.of_rank(int(reporter.groups["rank"]))
    return speaker_of(job, hit.line)


def _gloo(job: JobLogs) -> list[Clue]:
    """gloo aborts the process that receives more than it asked for; its peers only lose it. Either that process passes
    too little or its neighbour too much: the process is named, with that doubt."""
    hits = job.named("gloo-length") or job.named("mpi-truncated", "hccl-inconsistent")
    if not hits:
        return []
    culprits = [_who_received(job, hit) for hit in hits]
    note = f"{hits[0].sentence} This rank or the sender calls with another size than the others."
    return [clue_of("mismatch_shape", hits, culprits, note, confidence=COLLECTIVES.differs_openly)]


def _desync_report(job: JobLogs) -> list[Clue]:
    """torch's own report (TORCH_NCCL_DESYNC_DEBUG=1)."""
    hits = job.named("finished-not-joined") or job.named("lagging-ranks")
    if not hits:
        return []
    waits = job.named("joined-not-finished")
    reports = [Report(tuple(ranks_in(hit.groups["ranks"]))) for hit in hits]
    said = who_said_so([*reports, *(Report(came=tuple(ranks_in(hit.groups["ranks"]))) for hit in waits)])
    ranks, victims = sorted(said.named), sorted(said.waiting)
    joined: list[Source] = [hit.line.evidence for hit in waits[:2]]
    clue = clue_of("desync", hits, [job.of_rank(rank) for rank in ranks], hits[0].sentence)
    sure = 0.8 if ranks else HANG_EVIDENCE.suggests
    # A rank that waits in another collective is at another place; a rank that waits in none has not arrived.
    elsewhere = {report.rank for report in job.once(timeouts_of)} & set(ranks)
    if ranks and not elsewhere:
        clue = replace(clue, fault_class="missing_rank")
    return [replace(clue, evidence=(*clue.evidence, *joined), victims=tuple(victims), confidence=sure)]

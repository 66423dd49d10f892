"""Collectives that timed out, group by group, from the watchdogs' lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diag.hang.case import Case
from diag.hang.model import MOST_RANKS, Line

# "[PG ID 0 PG GUID 0(default_pg) Rank 3]", before torch 2.5 "[PG 0 (default_pg) Rank 3]" and "[PG 0 Rank 3]". This rank
# counts within the group.
_GROUP = re.compile(
    r"\[PG (?:ID \d+ PG GUID (?P<guid>[^\s(\]]+)|(?P<id>[^\s(\]]+)) ?(?:\((?P<desc>[^)]*)\))? ?Rank (?P<rank>\d{1,9})\]"
)
_AT_WORK = re.compile(r"(?:at work sequence id|watchdog at work|Timeout at NCCL work): (\d{1,20})")
_BY_CHANCE = 1000  # numbers up to here can be equal in two groups
_UNKNOWN = ""  # torch before 2.2 does not name the group


@dataclass(frozen=True)
class Timeout:
    """A rank's report. ``rank``: global, None where only the rank within an unknown group is known."""

    rank: int | None
    group_rank: int | None
    group: str
    seq: int
    op: str
    numel_in: int | None
    numel_out: int | None
    timeout_ms: int | None
    ran_ms: int | None
    line: Line

    @property
    def call(self) -> tuple[int, str, int | None, int | None]:
        return self.seq, self.op, self.numel_in, self.numel_out

    @property
    def words(self) -> str:
        plural = "" if self.numel_in == 1 else "s"
        size = f", {self.numel_in} element{plural}" if self.numel_in is not None else ""
        out = f" in and {self.numel_out} out" if size and self.numel_out not in (None, self.numel_in) else ""
        number = f" number {self.seq}" if self.seq else ""  # torch before 1.12 prints none
        return f"{self.op}{number}{size}{out}"


@dataclass(frozen=True)
class GroupTimeouts:
    """All that one process group reported. ``size``: None where nothing tells it; ``members``: global ranks."""

    group: str
    reports: tuple[Timeout, ...]  # one a rank, its first
    members: tuple[int, ...] | None

    @property
    def ranks(self) -> set[int]:
        return {report.rank for report in self.reports if report.rank is not None}

    @property
    def absent(self) -> tuple[int, ...]:
        """Members that did not report; empty where the members are not known."""
        return tuple(sorted(set(self.members or ()) - self.ranks))

    @property
    def passed_over(self) -> tuple[int, ...]:
        """Ranks below the highest that reported which did not. They exist, but how many more there are is not known."""
        highest = max(self.ranks, default=0)
        if highest > MOST_RANKS:
            return ()
        return tuple(sorted(set(range(highest)) - self.ranks))

    @property
    def usual(self) -> tuple[int, str, int | None, int | None]:
        """The call that most of them wait in."""
        return Counter(report.call for report in self.reports).most_common(1)[0][0]

    @property
    def words(self) -> str:
        return (
            f"process group {self.group}" if self.group else "a process group that this version of torch does not name"
        )


def group_of(line: Line) -> tuple[str, int | None]:
    """The name of the process group whose watchdog speaks, and the rank within it."""
    match = _GROUP.search(line.raw)
    if match is None:
        return _UNKNOWN, line.speaker.group_rank
    name, desc = match["guid"] or match["id"], match["desc"]
    return desc if desc and desc != "undefined" else name, int(match["rank"])


def is_world(group: str) -> bool:
    return group in ("default_pg", "0")


def rank_in(case: Case, line: Line, group: str, group_rank: int | None) -> int | None:
    """The global rank: the group's own number where the group is the whole job, else who printed it."""
    if is_world(group) and group_rank is not None:
        return group_rank
    rank = case.rank_of(line)
    if rank is None and (is_world(group) or group == _UNKNOWN):
        return group_rank
    return rank


def timeouts_of(case: Case) -> tuple[Timeout, ...]:
    """Every report once, in the order of the files."""
    found: dict[tuple[int | None, int | None, str, int, str], Timeout] = {}
    for hit in case.named("watchdog", "blocking-wait"):
        if "op" not in hit.groups:  # that something timed out is all that it says
            continue
        seq = int(hit.groups.get("seq", 0))
        group, group_rank = group_of(hit.line)
        if "pg_rank" in hit.groups and group == _UNKNOWN:
            group_rank = int(hit.groups["pg_rank"])
            group = _group_beside(case, hit.line, group_rank, seq)
        numbers = {name: int(hit.groups[name]) if name in hit.groups else None for name in _NUMBERS}
        report = Timeout(
            rank=rank_in(case, hit.line, group, group_rank),
            group_rank=group_rank,
            group=group,
            seq=seq,
            op=hit.groups["op"],
            numel_in=numbers["numel_in"],
            numel_out=numbers["numel_out"],
            timeout_ms=numbers["timeout"],
            ran_ms=numbers["ran"],
            line=hit.line,
        )
        found.setdefault((report.rank, report.group_rank, group, report.seq, report.op), report)
    return tuple(_repaired(_without_echoes(found.values())))


def _repaired(reports: list[Timeout]) -> list[Timeout]:
    """A line that something was written over tells the beginning of its operation only: that of the same number of
    another rank is whole."""
    whole = {(report.seq, report.op): report for report in reports if report.numel_in is not None}
    found = []
    for report in reports:
        same = [one for (seq, op), one in whole.items() if seq == report.seq and op.startswith(report.op) and seq]
        if report.numel_in is None and report.timeout_ms is None and len(same) == 1:
            report = replace(report, op=same[0].op, numel_in=same[0].numel_in, numel_out=same[0].numel_out)
        found.append(report)
    return found


def _group_beside(case: Case, line: Line, group_rank: int, seq: int) -> str:
    """The message of the collective itself bears "[Rank 3]" alone, also in torch 2.9; the one that the watchdog prints
    of the same number behind it, with the group's counters, names the group."""
    stated = case.once(_stated_groups).get((line.path, case.rank_of(line), group_rank, seq), [])
    return min(stated, key=lambda place: abs(place[0] - line.number))[1] if stated else _UNKNOWN


def _stated_groups(case: Case) -> dict[tuple[str, int | None, int | None, int], list[tuple[int, str]]]:
    """(line, group) of the watchdogs' messages, by file, rank, rank in the group and number."""
    found: dict[tuple[str, int | None, int | None, int], list[tuple[int, str]]] = defaultdict(list)
    for hit in case.named("pg-status"):
        group, member = group_of(hit.line)
        at = _AT_WORK.search(hit.line.text)
        if group and at is not None:
            found[hit.line.path, case.rank_of(hit.line), member, int(at[1])].append((hit.line.number, group))
    return found


_NUMBERS = ("numel_in", "numel_out", "timeout", "ran")


def _without_echoes(reports: Iterable[Timeout]) -> list[Timeout]:
    """The exception that ends the process repeats the message, without the group's prefix in some versions."""
    listed = list(reports)
    named = {(report.rank, report.seq, report.op) for report in listed if report.group}
    return [report for report in listed if report.group or (report.rank, report.seq, report.op) not in named]


def groups_of(case: Case, reports: Iterable[Timeout]) -> tuple[GroupTimeouts, ...]:
    """The reports by process group; one name may stand for several groups of different members, which are kept apart
    where the communicators tell them apart."""
    by_group: dict[str, dict[int | None, Timeout]] = defaultdict(dict)
    for report in reports:
        first = by_group[report.group].setdefault(report.rank, report)
        if report.seq < first.seq:
            by_group[report.group][report.rank] = report
    _put_nameless(by_group)
    return tuple(
        GroupTimeouts(
            group,
            tuple(by_rank.values()),
            _members(case, group, {rank for rank in by_rank if rank is not None}, by_rank.values()),
        )
        for group, by_rank in by_group.items()
    )


def _put_nameless(by_group: dict[str, dict[int | None, Timeout]]) -> None:
    """Reports that name no group belong to the one group whose other ranks wait in the same call: some messages of one
    version bear "[PG ...]" and some do not."""
    nameless = by_group.get(_UNKNOWN, {})
    for rank, report in list(nameless.items()):
        same = [
            group
            for group, by_rank in by_group.items()
            if group != _UNKNOWN and rank not in by_rank and any(_same_call(report, one) for one in by_rank.values())
        ]
        if not same and report.seq > _BY_CHANCE:
            same = [
                g for g, by_rank in by_group.items() if g and any(one.seq == report.seq for one in by_rank.values())
            ]
        if len(same) == 1 and rank is not None:
            by_group[same[0]][rank] = nameless.pop(rank)
    if not nameless:
        by_group.pop(_UNKNOWN, None)


def _same_call(one: Timeout, other: Timeout) -> bool:
    """Number, operation and size, as far as both tell it."""
    sizes = (one.numel_in, one.numel_out), (other.numel_in, other.numel_out)
    return (one.seq, one.op) == (other.seq, other.op) and (sizes[0] == sizes[1] or (None, None) in sizes)


def _by_ratio(reports: Iterable[Timeout]) -> int | None:
    """How many ranks a group has: an all-gather makes that many times its part, a reduce-scatter divides by it."""
    sizes = set()
    for report in reports:
        small, large = sorted((report.numel_in or 0, report.numel_out or 0))
        if ("ALLGATHER" in report.op or "REDUCE_SCATTER" in report.op) and small and large % small == 0:
            sizes.add(large // small)
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if 1 < size <= MOST_RANKS else None


def _members(case: Case, group: str, ranks: set[int], reports: Iterable[Timeout]) -> tuple[int, ...] | None:
    """The global ranks of a group: all for the default one, else those of the one communicator that has these ranks.
    None where nothing says how many there are: the highest rank that was seen need not be the last one."""
    world = case.logs.world_size
    if is_world(group) or group == _UNKNOWN:
        size = world or _by_ratio(reports) or 0
        alone = is_world(group) or len(case.communicators) <= 1
        return tuple(range(size)) if max(1, *ranks, 0) < size <= MOST_RANKS and alone else None
    fitting = set()
    for communicator in case.communicators:
        found = [case.global_rank(communicator, number) for number in range(communicator.size)]
        members = tuple(sorted(rank for rank in found if rank is not None))
        if len(members) == communicator.size and ranks <= set(members) and communicator.size != world:
            fitting.add(members)
    return fitting.pop() if len(fitting) == 1 else None

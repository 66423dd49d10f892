"""What one dump says, from the containers that its file holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diag.hang.flight.entries import Joined, Signatures, join_entries, spelled
from diag.hang.flight.record import Dump, Group
from diag.hang.model import MOST_RANKS

_KEYS = frozenset({"entries", "pg_config", "pg_status"})
_RANKS = re.compile(r"\s*\[?[\s\d,]*\]?\s*")


@dataclass(frozen=True, slots=True)
class Name:
    """What a file's name tells."""

    rank: int | None
    host: str


def is_dump(content: object) -> bool:
    return isinstance(content, dict) and "version" in content and bool(_KEYS & content.keys())


def parse(content: object, path: str, name: Name, signatures: Signatures) -> tuple[Dump | None, list[str]]:
    """The dump, or None where its rank is unknown, and what is wrong with it."""
    assert isinstance(content, dict)
    entries = content.get("entries")
    joined = join_entries(entries if isinstance(entries, list) else [], signatures)
    problems = [f"{joined.malformed} entries that are none"] if joined.malformed else []
    groups = _groups(content.get("pg_config"), joined)
    rank, rank_from = _rank(groups, joined, name, problems)
    if rank is None:
        return None, [*problems, "nothing says its rank: neither its name nor its process groups"]
    count = len(entries) - joined.malformed if isinstance(entries, list) else 0
    return (
        Dump(
            path=path,
            rank=rank,
            rank_from=rank_from,
            host=name.host,
            version=spelled(content.get("version"))[:20],
            backend=joined.backend,
            groups=groups,
            histories=joined.histories,
            pending=tuple(joined.pending),
            recent=joined.recent,
            last=joined.last,
            last_called=_status(content.get("pg_status"), groups, joined),
            entries=count,
            whole=joined.whole and count > 0,
            pair_counts=dict(joined.pair_counts),
            newest_ns=joined.last.created_ns if joined.last else 0,
        ),
        problems,
    )


def _groups(config: object, joined: Joined) -> dict[str, Group]:
    found: dict[str, Group] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        # gloo (torch 2.13) has one group here, without a name, whatever groups there are.
        if isinstance(value, dict) and key != "":
            found[str(key)] = Group(str(key), spelled(value.get("desc", ""))[:120], _ranks(value.get("ranks")))
    for group, desc in joined.descs.items():
        found.setdefault(group, Group(group, desc, ()))
    return found


def _ranks(value: object) -> tuple[int, ...]:
    """Of "[0, 1, 2]", or of a list."""
    if isinstance(value, str) and len(value) < 8 * MOST_RANKS and _RANKS.fullmatch(value):
        return tuple(int(number) for number in re.findall(r"\d{1,9}", value))
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    return ()


def _rank(groups: dict[str, Group], joined: Joined, name: Name, problems: list[str]) -> tuple[int | None, str]:
    """A dump lists the groups that its rank belongs to: where they have one rank in common, it is that one."""
    told = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*told) if told else set()
    for group, op, src, dst in joined.pair_counts:
        ranks = groups[group].ranks
        own = src if op == "send" else dst
        if own < len(ranks):
            common &= {ranks[own]}
    if len(common) == 1:
        rank = common.pop()
        if name.rank is not None and name.rank != rank:
            problems.append(f"its name says rank {name.rank}, its process groups say {rank}: the latter is used")
        return rank, "the process groups"
    if name.rank is None:
        return None, ""
    if common and name.rank not in common:
        problems.append(f"its name says rank {name.rank}, which is in none of its process groups")
    return name.rank, "the file name"


def _status(value: object, groups: dict[str, Group], joined: Joined) -> dict[str, int]:
    """The number of the last collective called in each group.

    The status is keyed by pg_id, which only entries tie to a group. Both count up in the order in which the groups were
    made, so where there are as many of one as of the other they are paired in that order, unless an entry contradicts
    it. Held against all 32 dumps of two Megatron runs with 12 or 13 groups each: no contradiction. gloo counts sends
    there that it does not record, and NCCL counts sends and collectives in one: not used."""
    if not isinstance(value, dict) or joined.backend == "gloo":
        return {}
    last: dict[int, int] = {}
    for key, status in value.items():
        try:
            last[int(key)] = int(status["last_enqueued_collective"])
        except (TypeError, ValueError, KeyError):
            return {}
    of_id = {key: group for key, group in joined.group_of_id.items() if isinstance(key, int)}
    if len(last) == len(groups) and all(group.isdecimal() and len(group) < 10 for group in groups):
        paired = dict(zip(sorted(last), sorted(groups, key=int), strict=True))
        if all(paired.get(key) == group for key, group in of_id.items()):
            of_id = paired
    return {group: last[key] for key, group in of_id.items() if last.get(key, -1) >= 0 and group not in joined.mixed}

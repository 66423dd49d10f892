"""What one dump says, from the containers that its file holds."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from io import BytesIO
from typing import NoReturn

from diag.collectors import bounded_pickle
from diag.collectors.bounded_pickle import RefusedError, TruncatedError
from diag.hang.model import MOST_RANKS

from .entries import Joined, Signatures, join_entries, spelled
from .record import Dump, Group

_KEYS = frozenset({"entries", "pg_config", "pg_status"})
_RANKS = re.compile(r"\s*\[?[\s\d,]*\]?\s*")


@dataclass(frozen=True, slots=True)
class Name:
    """What a file's name tells."""

    rank: int | None
    host: str


def is_dump(content: object) -> bool:
    return isinstance(content, dict) and "version" in content and bool(_KEYS & content.keys())


def parse_dump(content: object, path: str, name: Name, signatures: Signatures) -> tuple[Dump | None, list[str]]:
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


# -- pickles -----------------------------------------------------------------------------------------------------------
#
# Reads the pickle of a dump without ever making an object of a class.
#
# ``pickle.Unpickler`` only gets what ``bounded_pickle.check`` has walked through, or, an eighth of the time, what two
# regular expressions find to be as recorders write it (torch 2.13, and 64 dumps of Megatron runs): containers that are
# finished before they are used, with texts as keys. Of 2,000 entries with 20 frames each (300 KB), looking takes as
# long as loading (6 ms); ``check`` takes 50.

# Instructions of a fixed length. Texts lie between them.
_FIXED = re.compile(rb"(?:(?:[hK].)++|[N\x88\x89\]}(eu\x86]++|M..|[Jjr]....|q.|\x8a\x08.{8}|G.{8})*+", re.DOTALL)
_MEMO = re.compile(rb"(?:q.|r..[\x00-\x07]\x00)?+", re.DOTALL)
_START = b"\x80\x02}"
_STOP, _TEXT = b".X"
_MOST_FIXED_BYTES = 24 << 20  # such instructions take up to 13 times as much memory
_MOST_TEXTS = 500_000
_DEPTH = 6
_ANY_TEXT = b"h\0"  # stands for a text in what the second expression gets


def _grammar() -> re.Pattern[bytes]:
    """What a recorder writes, each text replaced by ``_ANY_TEXT``. Only flat dicts (the frames) are remembered, so what
    "h" and "j" get is a text, or a dict, which is no key."""
    get = rb"(?:h.|j....)"
    most = rb"{0,%d}+" % bounded_pickle.MAX_ITEMS
    plain = rb"(?:(?:[hK].|[N\x88\x89]|M..|[Jj]....|\x8a\x08.{8}|G.{8})(?:[hK].\x86)?+)"
    frame = rb"\}\((?:%b%b)%bu%b" % (get, plain, most, _MEMO.pattern)
    value = plain
    for _ in range(_DEPTH):
        pairs = rb"\}(?:\((?:%b%b)%bu)?+" % (get, value, most)
        items = rb"\](?:\((?:%b)%be)?+" % (value, most)
        value = rb"(?:%b|%b|%b|%b)" % (frame, pairs, items, plain)
    return re.compile(rb"\x80\x02%b%b\." % (value, _MEMO.pattern), re.DOTALL)


_AS_RECORDERS_WRITE = _grammar()


class _Plain(pickle.Unpickler):
    """Knows no class: the checks let none through, and this would not make one either."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError(f"asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:  # noqa: ARG002
        raise RefusedError("asks for a persistent object")


def loads(data: bytes) -> object:
    """What the pickle holds. Raises ``RefusedError`` or ``TruncatedError``."""
    if not _as_recorders_write(data):
        bounded_pickle.check(data)
    try:
        return _Plain(BytesIO(data)).load()
    except (pickle.UnpicklingError, TypeError, IndexError, ValueError, EOFError, KeyError, AttributeError) as problem:
        raise RefusedError(f"malformed ({type(problem).__name__})") from None


def _as_recorders_write(data: bytes) -> bool:
    if not data.startswith(_START) or len(data) > bounded_pickle.MAX_BYTES:
        return False
    position, end, size = 2, len(data), 0
    pieces = [data[:2]]
    while True:
        found = _FIXED.match(data, position)
        assert found is not None  # it matches the empty text
        pieces.append(found[0])
        size += len(found[0])
        position = found.end()
        if position >= end or size > _MOST_FIXED_BYTES or len(pieces) > 2 * _MOST_TEXTS:
            return False
        code = data[position]
        if code == _STOP:
            break
        if code != _TEXT:
            return False
        text_bytes = int.from_bytes(data[position + 1 : position + 5], "little")
        position += 5 + text_bytes
        if text_bytes > bounded_pickle.MAX_TEXT:
            return False
        pieces.append(_ANY_TEXT)
        found = _MEMO.match(data, position)
        assert found is not None
        position = found.end()
    instructions = b"".join([*pieces, b"."])
    if instructions.count(b"]") + instructions.count(b"}") > bounded_pickle.MAX_CONTAINERS:
        return False
    return bool(_AS_RECORDERS_WRITE.fullmatch(instructions))


__all__ = ["RefusedError", "TruncatedError", "loads"]

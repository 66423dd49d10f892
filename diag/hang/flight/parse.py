"""One dump: its containers, its entries joined into collectives, sends and receives, and what is pending."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from diag.collectors import bounded_pickle
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import whole
from diag.hang.flight.board import CallShape, Dump, Group, History, RecordedOp, Sizes
from diag.hang.model import MOST_RANKS, is_of_recorder
from diag.hang.policy import HANG_DUMPS

# -- Entries joined into collectives by number, sends and receives, and what is pending --------------------------------

_PAIR = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
Raw = dict[str, object]


class ShapeTable:
    """Shapes of all dumps, each stored once: a thousand ranks call the same collectives."""

    def __init__(self) -> None:
        self.all: list[CallShape] = []
        self._known: dict[CallShape, int] = {}
        self._stacks: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of_entry(self, name: str, entry: Raw) -> int:
        inputs, outputs = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
        if "all_to_all" in name or "alltoall" in name:
            inputs = outputs = ()  # may differ from rank to rank and from call to call
        types = (*_texts(entry.get("input_dtypes")), *_texts(entry.get("output_dtypes")))
        return self._index(CallShape(name, inputs, outputs, types))

    def of_several(self, parts: list[int]) -> int:
        """The index of the shape of collectives that were launched as one."""
        if not parts:
            return -1
        shapes = [self.all[part] for part in parts]
        return self._index(
            CallShape(
                f"coalesced({', '.join(dict.fromkeys(part.op for part in shapes))})",
                tuple(size for part in shapes for size in part.input_sizes),
                tuple(size for part in shapes for size in part.output_sizes),
                tuple(kind for part in shapes for kind in part.dtypes),
            )
        )

    def _index(self, shape: CallShape) -> int:
        index = self._known.get(shape)
        if index is None:
            sizes = (*shape.input_sizes, *shape.output_sizes)
            if not all(_is_number(n) for size in sizes for n in size) or not all(type(t) is str for t in shape.dtypes):
                raise TypeError
            index = self._known[shape] = len(self.all)
            self.all.append(shape)
        return index

    def stack(self, value: object) -> tuple[str, ...]:
        """A stack's frames, innermost first, without those of the recorder, each stack once."""
        if not isinstance(value, list):
            return ()
        frames = [frame for frame in value[: HANG_DUMPS.most_frames] if isinstance(frame, dict)]
        texts = tuple(
            [
                text
                for f in frames
                if not is_of_recorder(
                    text := f"{spelled(f.get('name', '?'))} ({spelled(f.get('filename', '?'))}:"
                    f"{spelled(f.get('line', '?'))})"[:300]
                )
            ]
        )
        return self._stacks.setdefault(texts, texts)


def _is_number(value: object) -> TypeGuard[int]:
    """Whether it is a whole number of 64 bits."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def spelled(value: object) -> str:
    """A text or number as at most 300 characters. Containers become "?": nested ones that share their parts would grow
    without limit."""
    if isinstance(value, str):
        return value[:300]
    plain = isinstance(value, float | bool | None) or (isinstance(value, int) and abs(value) < 1 << 63)
    return repr(value) if plain else "?"


def _sizes(value: object) -> Sizes:
    if not isinstance(value, list):
        return ()
    return tuple([tuple(size) if isinstance(size, list) else (size,) for size in value])


def _texts(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else ()


@dataclass(slots=True)
class JoinedEntries:
    """The contents of one dump's entries. ``pending``: in the order of the calls."""

    histories: dict[str, History] = field(default_factory=dict)
    pending: list[RecordedOp] = field(default_factory=list)
    recent: dict[str, tuple[RecordedOp, ...]] = field(default_factory=dict)
    last: RecordedOp | None = None
    pair_counts: Counter[tuple[str, str, int, int]] = field(default_factory=Counter)
    backend: str = ""
    group_of_id: dict[int, str] = field(default_factory=dict)  # pg_id, which each process counts for itself
    descs: dict[str, str] = field(default_factory=dict)
    mixed: set[str] = field(default_factory=set)  # groups with sends or receives: their status counts both
    whole: bool = True  # no entry was lost since the process began
    only_active: bool = False  # finished entries were left out of the dump
    malformed: int = 0
    finished: int = 0


@dataclass(slots=True)
class _Slot:
    """The entries of one number in one group: more than one where they were coalesced."""

    parts: list[tuple[_Name, Raw]]
    launch: Raw | None = None  # the entry of the launch itself: the only one whose state is updated


_Slots = dict[str, dict[int, _Slot]]


def join_entries(entries: list[object], shapes: ShapeTable) -> JoinedEntries:
    """The calls of one dump. Entries that cannot be parsed are counted as malformed and left out."""
    joined = JoinedEntries()
    collectives: _Slots = {}
    pairs: _Slots = {}
    names: dict[object, _Name] = {}
    for expected, entry in enumerate(entries):
        try:
            if not isinstance(entry, dict):
                raise TypeError
            where, pg_id = entry["process_group"], entry["pg_id"]
            group = where[0] or f"#{pg_id}"
            called = entry["profiling_name"]
            name = names.get(called) or names.setdefault(called, _parsed(called))
            is_p2p = bool(entry.get("is_p2p"))
            number = entry["p2p_seq_id" if is_p2p else "collective_seq_id"]
            if entry["record_id"] != expected:
                joined.whole = False
            record = entry["record_id"]
            if (
                not (type(number) is int and type(group) is str and type(record) is int)
                or max(abs(number), abs(record)) >= 1 << 62
            ):
                raise TypeError
            slots = (pairs if is_p2p else collectives).setdefault(group, {})
            slot = slots.get(number)
            if slot is None:
                slot = slots[number] = _Slot([])
            if name.op.lower().endswith("coalesced") and (name.op == "coalesced" or slot.parts):
                slot.launch = entry
            else:
                slot.parts.append((name, entry))
            joined.group_of_id[pg_id] = group
            joined.descs[group] = spelled(where[1])[:120]
            joined.backend = joined.backend or name.library
        except (KeyError, TypeError, IndexError, AttributeError):
            joined.malformed += 1
    # gloo's entries stay "scheduled" and only retire (torch 2.13); NCCL's retire after a time-out.
    completed = any(isinstance(e, dict) and e.get("state") == "completed" for e in entries)
    by_retiring = joined.backend != "nccl" and not completed
    joined.only_active = not joined.whole and not any(
        isinstance(e, dict) and (e.get("state") == "completed" or e.get("retired")) for e in entries
    )
    joined.mixed = set(pairs)
    _join_pairs(joined, pairs, shapes, by_retiring)
    for group, of_group in collectives.items():
        _join_collectives(joined, group, of_group, shapes, by_retiring)
    joined.pending.sort(key=lambda op: op.record_id)
    return joined


class _Name(NamedTuple):
    library: str
    op: str
    src: int | None
    dst: int | None


def _parsed(called: object) -> _Name:
    """The parts of "nccl:send 0->1" or "nccl:all_reduce"."""
    library, _, rest = spelled(called)[:200].rpartition(":")
    if pair := _PAIR.match(rest):
        first, second = int(pair[2]), int(pair[3])
        return _Name(library, pair[1], *((first, second) if pair[1] == "send" else (second, first)))
    return _Name(library, rest, None, None)


def _pending(entry: Raw, by_retiring: bool) -> bool:
    if by_retiring:
        return not entry.get("retired")
    return entry.get("state") != "completed" and not entry.get("time_discovered_completed_ns")


def _join_pairs(joined: JoinedEntries, pairs: _Slots, shapes: ShapeTable, by_retiring: bool) -> None:
    """The state of a coalesced launch is recorded on the launch, never on its parts. Where only active entries are
    dumped, a finished launch is left out while its parts stay. (A rank that hangs within the launch looks the same.)"""
    coalesces = any(slot.launch is not None for slots in pairs.values() for slot in slots.values())
    for group, slots in pairs.items():
        newest = max(slots)
        for number, slot in slots.items():
            left_behind = slot.launch is None and (
                (number < newest and coalesces and joined.only_active)
                or (len(slot.parts) > 1 and (number < newest or joined.only_active))
            )
            for name, entry in slot.parts:
                pending = not left_behind and _pending(slot.launch or entry, by_retiring)
                if name.src is None or name.dst is None:
                    continue
                joined.pair_counts[group, name.op, name.src, name.dst] += 1
                if not pending and number < newest - 1:
                    joined.finished += 1
                    continue
                _keep(joined, _op(shapes, name, entry, group, number, -1, pending, slot.launch), pending)


def _join_collectives(
    joined: JoinedEntries, group: str, slots: dict[int, _Slot], shapes: ShapeTable, by_retiring: bool
) -> None:
    newest = max(slots)
    first = max(min(slots), newest - HANG_DUMPS.most_numbers_of_group)
    history = array("i", [-1]) * (newest - first + 1)
    recent = sorted(slots)[-HANG_DUMPS.recent_collectives :]
    recent_ops: list[RecordedOp] = []
    for number, slot in slots.items():
        if number < first or not (slot.parts or slot.launch):
            continue
        try:
            parts = [shapes.of_entry(name.op, entry) for name, entry in slot.parts]
        except (TypeError, ValueError):
            joined.malformed += 1
            parts = []
        shape = parts[0] if len(parts) == 1 else shapes.of_several(parts)
        history[number - first] = shape
        pending = _pending(slot.launch or slot.parts[-1][1], by_retiring)
        if pending or number >= recent[0]:
            name, entry = slot.parts[0] if slot.parts else (_Name("", "coalesced", None, None), slot.launch or {})
            op = _op(shapes, name, entry, group, number, shape, pending, slot.launch)
            _keep(joined, op, pending)
            if number >= recent[0]:
                recent_ops.append(op)
        else:
            joined.finished += 1
    joined.histories[group] = History(first, history)
    joined.recent[group] = tuple(sorted(recent_ops, key=lambda op: op.number))


def _keep(joined: JoinedEntries, op: RecordedOp, pending: bool) -> None:
    if pending:
        joined.pending.append(op)
    else:
        joined.finished += 1
    if joined.last is None or joined.last.record_id < op.record_id:
        joined.last = op


def _op(
    shapes: ShapeTable, name: _Name, entry: Raw, group: str, number: int, shape: int, pending: bool, launch: Raw | None
) -> RecordedOp:
    created, record = entry.get("time_created_ns"), entry["record_id"]
    assert isinstance(record, int)  # join_entries checked it
    return RecordedOp(
        record,
        group,
        number,
        name.op if launch is None or name.src is not None else "coalesced",
        shape,
        created if _is_number(created) else 0,
        pending,
        timed_out=pending and bool(entry.get("retired")),
        src=name.src,
        dst=name.dst,
        frames=shapes.stack(entry.get("frames")),
    )


# -- A dump from the containers of its file ----------------------------------------------------------------------------

_KEYS = frozenset({"entries", "pg_config", "pg_status"})
_RANKS = re.compile(r"\s*\[?[\s\d,]*\]?\s*")


@dataclass(frozen=True, slots=True)
class DumpName:
    rank: int | None
    host: str


def is_dump(content: object) -> bool:
    return isinstance(content, dict) and "version" in content and bool(_KEYS & content.keys())


def parse_dump(content: object, path: str, name: DumpName, shapes: ShapeTable) -> tuple[Dump | None, list[str]]:
    """The dump (None where its rank is unknown), and its problems."""
    assert isinstance(content, dict)
    entries = content.get("entries")
    joined = join_entries(entries if isinstance(entries, list) else [], shapes)
    problems = [f"{joined.malformed} entries that are not valid"] if joined.malformed else []
    groups = _groups(content.get("pg_config"), joined)
    rank, rank_from = _rank(groups, joined, name, problems)
    if rank is None:
        return None, [*problems, "rank unknown: neither the file name nor the process groups show it"]
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


def _groups(config: object, joined: JoinedEntries) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        # gloo (torch 2.13) has one group here, without a name, whatever groups there are.
        if isinstance(value, dict) and key != "":
            groups[str(key)] = Group(str(key), spelled(value.get("desc", ""))[:120], _ranks(value.get("ranks")))
    for group, desc in joined.descs.items():
        groups.setdefault(group, Group(group, desc, ()))
    return groups


def _ranks(value: object) -> tuple[int, ...]:
    """The ranks of "[0, 1, 2]", or of a list."""
    if isinstance(value, str) and len(value) < 8 * MOST_RANKS and _RANKS.fullmatch(value):
        return tuple(int(number) for number in re.findall(r"\d{1,9}", value))
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    return ()


def _rank(
    groups: dict[str, Group], joined: JoinedEntries, name: DumpName, problems: list[str]
) -> tuple[int | None, str]:
    """The rank and where it comes from: the only rank that is in all of the dump's groups, else the file name's."""
    rank_sets = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*rank_sets) if rank_sets else set()
    for group, op, src, dst in joined.pair_counts:
        ranks = groups[group].ranks
        place = src if op == "send" else dst
        if place < len(ranks):
            common &= {ranks[place]}
    if len(common) == 1:
        rank = common.pop()
        if name.rank is not None and name.rank != rank:
            problems.append(
                f"the file name says rank {name.rank}, the process groups say rank {rank}: the process groups are used"
            )
        return rank, "the process groups"
    if name.rank is None:
        return None, ""
    if common and name.rank not in common:
        problems.append(f"the file name says rank {name.rank}, which is in none of the process groups")
    return name.rank, "the file name"


def _status(value: object, groups: dict[str, Group], joined: JoinedEntries) -> dict[str, int]:
    """The number of the last collective called in each group.

    The status is keyed by pg_id, which only entries relate to a group. Ids and group names both count up in the order
    in which the groups were made. So where there are as many ids as names, they are paired in that order, unless an
    entry contradicts it. Checked on all 32 dumps of two Megatron runs with 12 or 13 groups each: no contradiction. Not
    used: the status of gloo, which counts sends that gloo does not record, and that of NCCL groups with sends, which
    counts sends and collectives together."""
    if not isinstance(value, dict) or joined.backend == "gloo":
        return {}
    last: dict[int, int] = {}
    for key, status in value.items():
        try:
            last[int(key)] = whole(status["last_enqueued_collective"])
        except (TypeError, ValueError, KeyError, OverflowError):
            return {}
    of_id = {key: group for key, group in joined.group_of_id.items() if isinstance(key, int)}
    if len(last) == len(groups) and all(group.isdecimal() and len(group) < 10 for group in groups):
        paired = dict(zip(sorted(last), sorted(groups, key=int), strict=True))
        if all(paired.get(key) == group for key, group in of_id.items()):
            of_id = paired
    return {group: last[key] for key, group in of_id.items() if last.get(key, -1) >= 0 and group not in joined.mixed}


# -- Pickles of dumps, read without making an object of any class ------------------------------------------------------
#
# ``pickle.Unpickler`` only gets what ``bounded_pickle.check`` has walked through. A shortcut takes an eighth of the
# time: two regular expressions recognise what recorders write (torch 2.13, and 64 dumps of Megatron runs), which is
# containers that are finished before they are used, with texts as keys. For 2,000 entries with 20 frames each (300 KB),
# matching takes as long as loading (6 ms); ``check`` takes 50.

# Instructions of a fixed length. Texts lie between them.
_FIXED = re.compile(rb"(?:(?:[hK].)++|[N\x88\x89\]}(eu\x86]++|M..|[Jjr]....|q.|\x8a\x08.{8}|G.{8})*+", re.DOTALL)
_MEMO = re.compile(rb"(?:q.|r..[\x00-\x07]\x00)?+", re.DOTALL)
_START = b"\x80\x02}"
_STOP, _TEXT = b".X"
_ANY_TEXT = b"h\0"  # stands for a text in what the second expression gets


def _grammar() -> re.Pattern[bytes]:
    """What a recorder writes, each text replaced by ``_ANY_TEXT``. Only flat dicts (the frames) are memoised, so "h"
    and "j" get a text, or a dict, which cannot be a key."""
    get = rb"(?:h.|j....)"
    most = rb"{0,%d}+" % RECORDED_FILES.most_pickle_items
    plain = rb"(?:(?:[hK].|[N\x88\x89]|M..|[Jj]....|\x8a\x08.{8}|G.{8})(?:[hK].\x86)?+)"
    frame = rb"\}\((?:%b%b)%bu%b" % (get, plain, most, _MEMO.pattern)
    value = plain
    for _ in range(HANG_DUMPS.depth):
        pairs = rb"\}(?:\((?:%b%b)%bu)?+" % (get, value, most)
        items = rb"\](?:\((?:%b)%be)?+" % (value, most)
        value = rb"(?:%b|%b|%b|%b)" % (frame, pairs, items, plain)
    return re.compile(rb"\x80\x02%b%b\." % (value, _MEMO.pattern), re.DOTALL)


_AS_RECORDERS_WRITE = _grammar()


def loads(data: bytes) -> object:
    """What the pickle holds. Raises ``RefusedError`` or ``TruncatedError``."""
    if not _as_recorders_write(data):
        bounded_pickle.check(data)
    return bounded_pickle.load_checked(data)


def _as_recorders_write(data: bytes) -> bool:
    if not data.startswith(_START) or len(data) > RECORDED_FILES.most_pickle_bytes:
        return False
    position, end, size = 2, len(data), 0
    pieces = [data[:2]]
    while True:
        match = _FIXED.match(data, position)
        assert match is not None  # it matches the empty text
        pieces.append(match[0])
        size += len(match[0])
        position = match.end()
        if position >= end or size > HANG_DUMPS.most_fixed_bytes or len(pieces) > 2 * HANG_DUMPS.most_texts:
            return False
        code = data[position]
        if code == _STOP:
            break
        if code != _TEXT:
            return False
        text_bytes = int.from_bytes(data[position + 1 : position + 5], "little")
        position += 5 + text_bytes
        if text_bytes > RECORDED_FILES.most_pickle_text_bytes:
            return False
        pieces.append(_ANY_TEXT)
        match = _MEMO.match(data, position)
        assert match is not None
        position = match.end()
    instructions = b"".join([*pieces, b"."])
    if instructions.count(b"]") + instructions.count(b"}") > RECORDED_FILES.most_pickle_containers:
        return False
    return bool(_AS_RECORDERS_WRITE.fullmatch(instructions))

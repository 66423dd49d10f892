"""A dump's entries, joined into collectives by number, sends and receives, and what is still pending."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from diag.hang.flight.record import History, Op, Signature, Sizes

_PAIR = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
_RECENT = 8  # finished collectives of each group that stay as they are: gloo marks failed ones like finished ones
_MAX_NUMBERS = 200_000  # from the first to the last of one group: a ring holds far fewer
_MAX_FRAMES = 64
Raw = dict[str, object]


class Signatures:
    """Signatures of all dumps, each once: a thousand ranks call the same collectives."""

    def __init__(self) -> None:
        self.all: list[Signature] = []
        self._known: dict[Signature, int] = {}
        self._stacks: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of_entry(self, name: str, entry: Raw) -> int:
        inputs, outputs = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
        if "all_to_all" in name or "alltoall" in name:
            inputs = outputs = ()  # differ from rank to rank and from call to call, rightly
        types = (*_texts(entry.get("input_dtypes")), *_texts(entry.get("output_dtypes")))
        return self._index(Signature(name, inputs, outputs, types))

    def of_several(self, parts: list[int]) -> int:
        """Of collectives that were launched as one."""
        if not parts:
            return -1
        found = [self.all[part] for part in parts]
        return self._index(
            Signature(
                f"coalesced({', '.join(dict.fromkeys(part.op for part in found))})",
                tuple(size for part in found for size in part.input_sizes),
                tuple(size for part in found for size in part.output_sizes),
                tuple(kind for part in found for kind in part.dtypes),
            )
        )

    def _index(self, signature: Signature) -> int:
        index = self._known.get(signature)
        if index is None:
            sizes = (*signature.input_sizes, *signature.output_sizes)
            if not all(type(n) is int for size in sizes for n in size) or not all(
                type(t) is str for t in signature.dtypes
            ):
                raise TypeError
            index = self._known[signature] = len(self.all)
            self.all.append(signature)
        return index

    def stack(self, value: object) -> tuple[str, ...]:
        """A stack's frames, innermost first, each stack once."""
        if not isinstance(value, list):
            return ()
        kept = [frame for frame in value[:_MAX_FRAMES] if isinstance(frame, dict)]
        found = tuple(
            [
                f"{spelled(f.get('name', '?'))} ({spelled(f.get('filename', '?'))}:{spelled(f.get('line', '?'))})"[:300]
                for f in kept
            ]
        )
        return self._stacks.setdefault(found, found)


def spelled(value: object) -> str:
    """A text or number as a text of at most 300 characters. Containers are "?": shared ones can be spelled for ever."""
    if isinstance(value, str):
        return value[:300]
    return repr(value) if isinstance(value, float | bool | None) or _is_64_bit(value) else "?"


def _is_64_bit(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 63


def _sizes(value: object) -> Sizes:
    if not isinstance(value, list):
        return ()
    return tuple([tuple(size) if isinstance(size, list) else (size,) for size in value])


def _texts(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else ()


@dataclass(slots=True)
class Joined:
    """What the entries of one dump say. ``pending``: in the order of the calls."""

    histories: dict[str, History] = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)
    recent: dict[str, tuple[Op, ...]] = field(default_factory=dict)
    last: Op | None = None
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
    launch: Raw | None = None  # the entry of the launch itself, which alone learns the state


_Slots = dict[str, dict[int, _Slot]]


def join_entries(entries: list[object], signatures: Signatures) -> Joined:
    """The calls of one dump. An entry that is no entry is counted as malformed and left out."""
    joined = Joined()
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
                or max(number, record) >= 1 << 62
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
    by_retiring = _ends_by_retiring(entries, joined.backend)
    joined.only_active = not joined.whole and not any(
        isinstance(e, dict) and (e.get("state") == "completed" or e.get("retired")) for e in entries
    )
    joined.mixed = set(pairs)
    _join_pairs(joined, pairs, signatures, by_retiring)
    for group, found in collectives.items():
        _join_collectives(joined, group, found, signatures, by_retiring)
    joined.pending.sort(key=lambda op: op.record_id)
    return joined


class _Name(NamedTuple):
    library: str
    op: str
    src: int | None
    dst: int | None


def _parsed(called: object) -> _Name:
    """Of "nccl:send 0->1" or "nccl:all_reduce"."""
    library, _, rest = spelled(called)[:200].rpartition(":")
    if pair := _PAIR.match(rest):
        first, second = int(pair[2]), int(pair[3])
        return _Name(library, pair[1], *((first, second) if pair[1] == "send" else (second, first)))
    return _Name(library, rest, None, None)


def _ends_by_retiring(entries: list[object], backend: str) -> bool:
    """Whether entries stay "scheduled" for ever and only retire, as gloo's do (torch 2.13). NCCL's retire after a
    time-out."""
    return backend != "nccl" and not any(isinstance(e, dict) and e.get("state") == "completed" for e in entries)


def _pending(entry: Raw, by_retiring: bool) -> bool:
    if by_retiring:
        return not entry.get("retired")
    return entry.get("state") != "completed" and not entry.get("time_discovered_completed_ns")


def _join_pairs(joined: Joined, pairs: _Slots, signatures: Signatures, by_retiring: bool) -> None:
    """Parts of a launch never learn their state: the launch does. Where only active entries are dumped, a launch that
    is finished is left out, and its parts stay behind. (A rank that hangs within the launch looks the same there.)"""
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
                _keep(joined, _op(signatures, name, entry, group, number, -1, pending, slot.launch), pending)


def _join_collectives(
    joined: Joined, group: str, slots: dict[int, _Slot], signatures: Signatures, by_retiring: bool
) -> None:
    newest = max(slots)
    first = max(min(slots), newest - _MAX_NUMBERS)
    history = array("i", [-1]) * (newest - first + 1)
    recent = sorted(slots)[-_RECENT:]
    kept: list[Op] = []
    for number, slot in slots.items():
        if number < first or not (slot.parts or slot.launch):
            continue
        try:
            parts = [signatures.of_entry(name.op, entry) for name, entry in slot.parts]
        except (TypeError, ValueError):
            joined.malformed += 1
            parts = []
        signature = parts[0] if len(parts) == 1 else signatures.of_several(parts)
        history[number - first] = signature
        pending = _pending(slot.launch or slot.parts[-1][1], by_retiring)
        if pending or number >= recent[0]:
            name, entry = slot.parts[0] if slot.parts else (_Name("", "coalesced", None, None), slot.launch or {})
            op = _op(signatures, name, entry, group, number, signature, pending, slot.launch)
            _keep(joined, op, pending)
            if number >= recent[0]:
                kept.append(op)
        else:
            joined.finished += 1
    joined.histories[group] = History(first, history)
    joined.recent[group] = tuple(sorted(kept, key=lambda op: op.number))


def _keep(joined: Joined, op: Op, pending: bool) -> None:
    if pending:
        joined.pending.append(op)
    else:
        joined.finished += 1
    if joined.last is None or joined.last.record_id < op.record_id:
        joined.last = op


def _op(
    signatures: Signatures,
    name: _Name,
    entry: Raw,
    group: str,
    number: int,
    signature: int,
    pending: bool,
    launch: Raw | None,
) -> Op:
    created, record = entry.get("time_created_ns"), entry["record_id"]
    assert isinstance(record, int)  # join_entries lets no other through
    return Op(
        record,
        group,
        number,
        name.op if launch is None or name.src is not None else "coalesced",
        signature,
        created if isinstance(created, int) else 0,
        pending,
        timed_out=pending and bool(entry.get("retired")),
        src=name.src,
        dst=name.dst,
        frames=signatures.stack(entry.get("frames")),
    )

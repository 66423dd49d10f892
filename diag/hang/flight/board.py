"""Flight Recorder dumps as types, and the dumps of all ranks side by side: what each rank called, and what is
pending."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from diag.events.operations import kind_of, needs_all
from diag.hang.model import MOST_RANKS

# -- Types of what dumps hold ------------------------------------------------------------------------------------------

Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CallShape:
    """What all members of a group must agree on in one collective, as far as the recorder has it."""

    op: str  # without the library: all_reduce, _all_gather_base, coalesced(...)
    input_sizes: Sizes
    output_sizes: Sizes
    dtypes: tuple[str, ...]

    @property
    def input_numel(self) -> int:
        return sum(prod(size) for size in self.input_sizes)

    @property
    def output_numel(self) -> int:
        return sum(prod(size) for size in self.output_sizes)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ``ranks``: global, in the order of the group; empty where the dump does not say (gloo)."""

    name: str
    desc: str
    ranks: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"group {self.name}" + (f" ({self.desc})" if self.desc not in ("", "undefined") else "")


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One entry of a recorder. ``number``: collective_seq_id; of a send or receive p2p_seq_id."""

    record_id: int
    group: str
    number: int
    name: str
    shape: int  # index in Dumps.shapes
    created_ns: int
    pending: bool  # not finished, as far as the recorder knows
    timed_out: bool = False
    src: int | None = None  # of a send or receive, within the group
    dst: int | None = None
    frames: tuple[str, ...] = ()

    @property
    def p2p(self) -> bool:
        return self.src is not None

    @property
    def title(self) -> str:
        if self.p2p:
            return f"{self.name} {self.src}->{self.dst}"
        return f"{self.name} #{self.number}"


@dataclass(frozen=True, slots=True)
class History:
    """The collectives of one group that a dump still has, by number. ``first``: the number of the first."""

    first: int
    shapes: array[int]  # -1 where an entry is missing

    @property
    def last(self) -> int:
        return self.first + len(self.shapes) - 1


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's recorder. ``pending``: in the order of the calls."""

    path: str
    rank: int
    rank_from: str  # "the process groups", "the file name"
    host: str
    version: str
    backend: str  # nccl, gloo, ...; empty where no entry names it
    groups: dict[str, Group]
    histories: dict[str, History]
    pending: tuple[RecordedOp, ...]
    recent: dict[str, tuple[RecordedOp, ...]]  # the last collectives of each group, finished or not
    last: RecordedOp | None
    last_called: dict[str, int]  # by group, from the status: also where entries are gone
    entries: int
    whole: bool  # no entry was lost since the process began
    pair_counts: dict[tuple[str, str, int, int], int] = field(default_factory=dict)  # (group, send or recv, src, dst)
    newest_ns: int = 0

    def called(self, group: str) -> int | None:
        """The number of the rank's last collective in a group; None where it is not known."""
        history = self.histories.get(group)
        numbers = [history.last] if history else []
        if group in self.last_called:
            numbers.append(self.last_called[group])
        return max(numbers, default=None)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A dump that cannot be used. ``rank``: from its name."""

    path: str
    rank: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Dumps:
    """All dumps, by rank."""

    dumps: dict[int, Dump]
    unreadable: tuple[Unreadable, ...]
    shapes: tuple[CallShape, ...]
    paths: tuple[str, ...]  # of every file that is a dump, read or not
    gaps: tuple[tuple[str, str], ...]


# -- All ranks' dumps side by side: members of each group, what each rank has called, what is pending ------------------


@dataclass(frozen=True, slots=True)
class Board:
    """``members``: global ranks by group, in its order. ``unsure``: groups of which no dump lists the members."""

    dumps: dict[int, Dump]
    shapes: tuple[CallShape, ...]
    groups: dict[str, Group]
    members: dict[str, tuple[int, ...]]
    unsure: frozenset[str]
    unknown: frozenset[int]  # ranks that have no readable dump
    world_size: int
    world_from: str
    pending: dict[int, tuple[RecordedOp, ...]]  # by rank, in the order of the calls
    place: dict[tuple[int, str, int], int] = field(default_factory=dict)  # of a pending collective in that order

    def called(self, rank: int, op: RecordedOp) -> bool:
        """Whether a rank that has a dump has come to a collective of its group."""
        last = self.dumps[rank].called(op.group)
        # None: the dump holds nothing of this group, and what is pending elsewhere is recent.
        return last is not None and last >= op.number

    def finished(self, rank: int, op: RecordedOp) -> bool:
        return self.called(rank, op) and (rank, op.group, op.number) not in self.place

    def others(self, rank: int, op: RecordedOp) -> tuple[int, ...]:
        """The other members that must take part in an op."""
        members = self.members.get(op.group, ())
        if not op.p2p:
            return tuple(member for member in members if member != rank)
        ends = [members[end] for end in (op.src, op.dst) if end is not None and end < len(members)]
        return tuple(end for end in ends if end != rank)


def lay_out(dumps: Dumps, world_size: int | None) -> Board:
    """The board. Groups with one name and different members (another job's, or unnamed ones) are kept apart."""
    ranks = _with_unique_group_names(dumps.dumps)
    world, world_from = _world(ranks, dumps, world_size)
    groups: dict[str, Group] = {}
    seen: dict[str, set[int]] = defaultdict(set)
    for rank, dump in ranks.items():
        for name, group in dump.groups.items():
            if name not in groups or (group.ranks and not groups[name].ranks):
                groups[name] = group
        for name in (*dump.histories, *(op.group for op in dump.pending)):
            seen[name].add(rank)
    members: dict[str, tuple[int, ...]] = {}
    unsure = set()
    for name, group in groups.items():
        members[name] = group.ranks
        if not group.ranks:
            is_default = group.desc == "default_pg" or (name == "0" and group.desc in ("", "undefined"))
            members[name] = tuple(range(world)) if is_default else tuple(sorted(seen[name]))
            unsure.add(name)
    everyone = {rank for ranks_of in members.values() for rank in ranks_of} | set(range(world))
    board = Board(
        ranks,
        dumps.shapes,
        groups,
        members,
        frozenset(unsure),
        frozenset(everyone - ranks.keys()),
        world,
        world_from,
        {rank: dump.pending for rank, dump in ranks.items()},
    )
    return _with_failed(board)


def _with_unique_group_names(dumps: dict[int, Dump]) -> dict[int, Dump]:
    variants: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps.values():
        for name, group in dump.groups.items():
            if group.ranks:
                variants[name].add(group.ranks)
    double = {name for name, rank_lists in variants.items() if len(rank_lists) > 1}
    if not double:
        return dumps
    return {rank: _renamed(dump, double) for rank, dump in dumps.items()}


def _renamed(dump: Dump, double: set[str]) -> Dump:
    listed = {name: group.ranks for name, group in dump.groups.items() if name in double}
    return _with_names(dump, {name: f"{name} of {', '.join(map(str, ranks))}" for name, ranks in listed.items()})


def _with_names(dump: Dump, names: Mapping[str, str]) -> Dump:
    """The dump with other names of some groups."""

    def name_of(name: str) -> str:
        return names.get(name, name)

    def moved(op: RecordedOp) -> RecordedOp:
        return replace(op, group=name_of(op.group))

    return replace(
        dump,
        groups={name_of(name): replace(group, name=name_of(name)) for name, group in dump.groups.items()},
        histories={name_of(name): history for name, history in dump.histories.items()},
        pending=tuple(map(moved, dump.pending)),
        recent={name_of(name): tuple(map(moved, ops)) for name, ops in dump.recent.items()},
        last=moved(dump.last) if dump.last else None,
        last_called={name_of(name): number for name, number in dump.last_called.items()},
        pair_counts={(name_of(key[0]), *key[1:]): count for key, count in dump.pair_counts.items()},
    )


def with_groups_of(dump: Dump, others: Sequence[Dump]) -> Dump:
    """The dump with the groups of the process's other recorders. Each recorder counts its calls by itself, so their
    order is that of the times at which they were called; a group with both backends (``cpu:gloo,cuda:nccl``) has two
    names."""
    if not others:
        return dump
    dump = _by_time(dump)
    for other in map(_by_time, others):
        both = dump.groups.keys() & other.groups.keys()
        added = _with_names(other, {name: f"{name} ({other.backend})" for name in both})
        dump = replace(
            dump,
            groups=dump.groups | added.groups,
            histories=dump.histories | added.histories,
            pending=tuple(sorted((*dump.pending, *added.pending), key=lambda op: op.record_id)),
            recent=dump.recent | added.recent,
            last=max((op for op in (dump.last, added.last) if op), key=lambda op: op.record_id, default=None),
            last_called=dump.last_called | added.last_called,
            entries=dump.entries + added.entries,
            whole=dump.whole and added.whole,
            pair_counts=dump.pair_counts | added.pair_counts,
            newest_ns=max(dump.newest_ns, added.newest_ns),
        )
    return dump


def _by_time(dump: Dump) -> Dump:
    def moved(op: RecordedOp) -> RecordedOp:
        return replace(op, record_id=op.created_ns)

    return replace(
        dump,
        pending=tuple(map(moved, dump.pending)),
        recent={name: tuple(map(moved, ops)) for name, ops in dump.recent.items()},
        last=moved(dump.last) if dump.last else None,
    )


def _world(ranks: dict[int, Dump], dumps: Dumps, world_size: int | None) -> tuple[int, str]:
    """The number of ranks, and where it comes from."""
    if world_size:
        return world_size, "the logs"
    listed = max((len(g.ranks) for dump in ranks.values() for g in dump.groups.values()), default=0)
    if listed:
        return max(listed, 1 + max(ranks)), "the process groups"
    for dump in ranks.values():
        for name, history in dump.histories.items():
            if dump.groups[name].desc != "default_pg":
                continue
            for index in set(history.shapes):
                shape = dumps.shapes[index]
                if index < 0 or kind_of(shape.op) != "all_gather" or shape.input_numel < 1:
                    continue
                if max(ranks) < (size := shape.output_numel // shape.input_numel) < MOST_RANKS:
                    return size, "the sizes of an all-gather"
    return 1 + max((*ranks, *(lost.rank or 0 for lost in dumps.unreadable)), default=-1), "the dumps themselves"


def _with_failed(board: Board) -> Board:
    """The board, with those collectives pending again that a dump marks as finished although a member never called
    them.

    gloo retires a collective that ended in an exception like one that succeeded; NCCL's kernels end when the
    communicator is aborted.
    """
    least: dict[str, int] = {}
    for name, members in board.members.items():
        for rank in members:
            if (dump := board.dumps.get(rank)) is None:
                continue
            last = dump.called(name)
            if last is not None or dump.whole:
                least[name] = min(least.get(name, last or 0), last or 0)
    pending: dict[int, tuple[RecordedOp, ...]] = {}
    for rank, dump in board.dumps.items():
        failed = [
            replace(op, pending=True)
            for name, ops in dump.recent.items()
            for op in ops
            if not op.pending
            and op.number > least.get(name, op.number)
            and (
                needs_all(op.name)
                or (dump.backend == "gloo" and dump.last is not None and op.record_id == dump.last.record_id)
            )
        ]
        pending[rank] = tuple(sorted((*dump.pending, *failed), key=lambda op: op.record_id))
    place = {
        (rank, op.group, op.number): index
        for rank, ops in pending.items()
        for index, op in enumerate(ops)
        if not op.p2p
    }
    return replace(board, pending=pending, place=place)

"""All ranks' dumps side by side: the members of each group, who has called what, and what is pending where."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from diag.hang.flight.record import Dump, Dumps, Group, Op, Signature, kind_of, needs_all
from diag.hang.model import MOST_RANKS


@dataclass(frozen=True, slots=True)
class Board:
    """``members``: global ranks by group, in its order. ``unsure``: groups of which no dump lists the members."""

    dumps: dict[int, Dump]
    signatures: tuple[Signature, ...]
    groups: dict[str, Group]
    members: dict[str, tuple[int, ...]]
    unsure: frozenset[str]
    unknown: frozenset[int]  # ranks that have no readable dump
    world_size: int
    world_from: str
    pending: dict[int, tuple[Op, ...]]  # by rank, in the order of the calls
    place: dict[tuple[int, str, int], int] = field(default_factory=dict)  # of a pending collective in that order

    def called(self, rank: int, op: Op) -> bool:
        """Whether a rank that has a dump has come to a collective of its group."""
        last = self.dumps[rank].called(op.group)
        # Nothing is kept of this group, and what is pending elsewhere is recent.
        return last is not None and last >= op.number

    def finished(self, rank: int, op: Op) -> bool:
        return self.called(rank, op) and (rank, op.group, op.number) not in self.place

    def others(self, rank: int, op: Op) -> tuple[int, ...]:
        """The members that must take part in an op beside this rank."""
        members = self.members.get(op.group, ())
        if not op.p2p:
            return tuple(member for member in members if member != rank)
        ends = [members[end] for end in (op.src, op.dst) if end is not None and end < len(members)]
        return tuple(end for end in ends if end != rank)


def lay_out(dumps: Dumps, world_size: int | None) -> Board:
    """The board. Groups of one name but other members (another job's, or unnamed ones) are kept apart."""
    ranks = _kept_apart(dumps.dumps)
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
        dumps.signatures,
        groups,
        members,
        frozenset(unsure),
        frozenset(everyone - ranks.keys()),
        world,
        world_from,
        {rank: dump.pending for rank, dump in ranks.items()},
    )
    return _with_failed(board)


def _kept_apart(dumps: dict[int, Dump]) -> dict[int, Dump]:
    variants: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps.values():
        for name, group in dump.groups.items():
            if group.ranks:
                variants[name].add(group.ranks)
    double = {name for name, found in variants.items() if len(found) > 1}
    if not double:
        return dumps
    return {rank: _renamed(dump, double) for rank, dump in dumps.items()}


def _renamed(dump: Dump, double: set[str]) -> Dump:
    def new(name: str) -> str:
        group = dump.groups.get(name)
        return f"{name} of {', '.join(map(str, group.ranks))}" if name in double and group else name

    def moved(op: Op) -> Op:
        return replace(op, group=new(op.group))

    return replace(
        dump,
        groups={new(name): replace(group, name=new(name)) for name, group in dump.groups.items()},
        histories={new(name): history for name, history in dump.histories.items()},
        pending=tuple(map(moved, dump.pending)),
        recent={new(name): tuple(map(moved, ops)) for name, ops in dump.recent.items()},
        last=moved(dump.last) if dump.last else None,
        last_called={new(name): number for name, number in dump.last_called.items()},
        pair_counts={(new(key[0]), *key[1:]): count for key, count in dump.pair_counts.items()},
    )


def _world(ranks: dict[int, Dump], dumps: Dumps, told: int | None) -> tuple[int, str]:
    """How many ranks there are, and what says so."""
    if told:
        return told, "given"
    listed = max((len(g.ranks) for dump in ranks.values() for g in dump.groups.values()), default=0)
    if listed:
        return max(listed, 1 + max(ranks)), "the process groups"
    for dump in ranks.values():
        for name, history in dump.histories.items():
            if dump.groups[name].desc != "default_pg":
                continue
            for index in set(history.signatures):
                signature = dumps.signatures[index]
                if index < 0 or kind_of(signature.op) != "all_gather" or signature.input_numel < 1:
                    continue
                if max(ranks) < (size := signature.output_numel // signature.input_numel) < MOST_RANKS:
                    return size, "the sizes of an all-gather"
    return 1 + max((*ranks, *(lost.rank or 0 for lost in dumps.unreadable)), default=-1), "the dumps themselves"


def _with_failed(board: Board) -> Board:
    """The board with collectives that a dump calls finished and cannot be: a known member never called them.

    gloo retires a collective that ended in an exception like one that succeeded; NCCL's kernels end when the
    communicator is aborted."""
    least: dict[str, int] = {}
    for name, members in board.members.items():
        for rank in members:
            if (dump := board.dumps.get(rank)) is None:
                continue
            last = dump.called(name)
            if last is not None or dump.whole:
                least[name] = min(least.get(name, last or 0), last or 0)
    pending: dict[int, tuple[Op, ...]] = {}
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

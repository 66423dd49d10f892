"""The last call of every rank in every group: communicators from logs, process groups from dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from diag.hang.flight import Dumps
from diag.hang.model import Communicator, Logs, Member


class At(StrEnum):
    """A member's position, relative to the furthest member of the group."""

    HERE = "as far as any other"
    BEHIND = "behind the others"
    INITIALISING = "initialises the communicator"
    NEVER_BEGAN = "never began to initialise it"
    ENDED = "has left it"
    UNKNOWN = "no information about it"


@dataclass(frozen=True)
class Place:
    """One member. ``rank``: global, None where unknown; ``last``: its last call, "" where unknown."""

    group_rank: int
    rank: int | None
    at: At
    last: str = ""
    number: int | None = None
    waits: bool = False  # the call is not finished, as far as its recorder knows


@dataclass(frozen=True)
class GroupPlaces:
    title: str
    size: int
    members: tuple[Place, ...]
    from_dumps: bool

    @property
    def uneven(self) -> bool:
        return len({place.at for place in self.members}) > 1


def places_of(logs: Logs, dumps: Dumps) -> tuple[GroupPlaces, ...]:
    """All groups of two members and more: those with members at different places first, then the largest."""
    groups = [_of_communicator(logs, communicator) for communicator in logs.communicators if communicator.size > 1]
    groups += _of_dumps(dumps)
    return tuple(sorted(groups, key=lambda group: (not group.uneven, -group.size, group.title)))


def _of_communicator(logs: Logs, communicator: Communicator) -> GroupPlaces:
    by_rank = {member.group_rank: member for member in communicator.members}
    most = max((m.calls[-1].op_count for m in communicator.members if m.calls), default=None)
    began = any(member.started for member in communicator.members)
    members = []
    for number in range(communicator.size):
        member = by_rank.get(number)
        rank = number if communicator.size == logs.world_size else None
        if member is not None and member.process is not None:
            rank = logs.processes[member.process].rank if logs.processes[member.process].rank is not None else rank
        members.append(_member(number, rank, member, most, began))
    title = f"communicator {communicator.comm_id}" if communicator.comm_id else "communicator without an id"
    return GroupPlaces(title, communicator.size, tuple(members), from_dumps=False)


def _member(number: int, rank: int | None, member: Member | None, most: int | None, began: bool) -> Place:
    if member is None:
        return Place(number, rank, At.NEVER_BEGAN if began else At.UNKNOWN)
    call = member.calls[-1] if member.calls else None
    last, count = (f"{call.op} {call.op_count:#x}", call.op_count) if call is not None else ("", None)
    if member.ended:
        return Place(number, rank, At.ENDED, last, count)
    if not member.completed and member.started:
        return Place(number, rank, At.INITIALISING, last, count)
    if most is None:
        return Place(number, rank, At.HERE)
    return Place(number, rank, At.HERE if count == most else At.BEHIND, last, count)


def _of_dumps(dumps: Dumps) -> list[GroupPlaces]:
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    for dump in dumps.dumps.values():
        for name, group in dump.groups.items():
            if group.ranks or name not in names:
                names[name] = group.title, group.ranks
    groups = []
    for name, (title, listed) in names.items():
        ranks = listed or tuple(sorted(dumps.dumps))
        called = {rank: dumps.dumps[rank].called(name) for rank in ranks if rank in dumps.dumps}
        most = max((number for number in called.values() if number is not None), default=None)
        if len(ranks) > 1 and most is not None:
            members = tuple(_of_dump(dumps, name, i, rank, called.get(rank), most) for i, rank in enumerate(ranks))
            groups.append(GroupPlaces(title, len(ranks), members, from_dumps=True))
    return groups


def _of_dump(dumps: Dumps, group: str, group_rank: int, rank: int, number: int | None, most: int) -> Place:
    dump = dumps.dumps.get(rank)
    if dump is None or number is None:
        return Place(group_rank, rank, At.UNKNOWN if dump is None else At.BEHIND)
    pending: Sequence[str] = [op.title for op in dump.pending if op.group == group and op.number == number]
    recent = [op.title for op in dump.recent.get(group, ()) if op.number == number]
    last = next(iter((*pending, *recent)), f"#{number}")
    return Place(group_rank, rank, At.HERE if number == most else At.BEHIND, last, number, waits=bool(pending))

"""Which calls of a program complete and which wait, when every rank issues its calls in order.

A collective completes when all members of its group have issued the same call at the same position of that group; a
send when its receive is there. A rank runs ahead of its calls by some depth, then waits, as a GPU's host does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

P2P = ("send", "recv")


@dataclass(frozen=True)
class Call:
    """``peer``: the other rank of a send or receive. ``sizes`` decide whether two calls are the same."""

    group: str
    op: str
    sizes: tuple[int, ...]
    frame: tuple[str, str, int] = ("train_step", "/workspace/train.py", 210)
    peer: int | None = None


@dataclass
class Issued:
    """A call of a rank, and whether it completed."""

    call: Call
    seq: int  # position in the group among collectives, or among sends and receives
    done: bool = False


Programs = dict[int, list[Call]]


def run(programs: Programs, groups: dict[str, tuple[int, ...]], depth: dict[int, int]) -> dict[int, list[Issued]]:
    """The calls that each rank got to issue before everything stood still or was over."""
    issued: dict[int, list[Issued]] = {rank: [] for rank in programs}
    positions: dict[tuple[int, str, str], int] = {}
    slots: dict[tuple[str, int], dict[int, Issued]] = {}
    pairs: dict[tuple[str, int, int, int], dict[str, Issued]] = {}
    waiting: dict[int, int] = dict.fromkeys(programs, 0)
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            waiting[rank] = sum(1 for item in issued[rank][-64:] if not item.done)
            while len(issued[rank]) < len(program) and waiting[rank] < depth[rank]:
                call = program[len(issued[rank])]
                kind = "p2p" if call.op in P2P else "collective"
                key = (rank, call.group, kind)
                positions[key] = positions.get(key, 0) + 1
                item = Issued(call, positions[key])
                issued[rank].append(item)
                waiting[rank] += 1
                moved = True
                if kind == "collective":
                    slots.setdefault((call.group, item.seq), {})[rank] = item
                    _complete(slots, call.group, item.seq, groups[call.group])
                else:
                    assert call.peer is not None
                    ends = (rank, call.peer) if call.op == "send" else (call.peer, rank)
                    order_key = (rank, f"{call.group}/{ends}", call.op)
                    positions[order_key] = positions.get(order_key, 0) + 1
                    pair = pairs.setdefault((call.group, *ends, positions[order_key]), {})
                    pair[call.op] = item
                    if len(pair) == 2 and pair["send"].call.sizes == pair["recv"].call.sizes:
                        pair["send"].done = pair["recv"].done = True
                waiting[rank] = sum(1 for item in issued[rank][-64:] if not item.done)
    return issued


def _complete(slots: dict[tuple[str, int], dict[int, Issued]], group: str, seq: int, members: tuple[int, ...]) -> None:
    """Collectives of a group run one after the other: one that never completes holds up all behind it."""
    while (slot := slots.get((group, seq))) is not None:
        before = slots.get((group, seq - 1))
        agree = len(slot) == len(members) and len({(item.call.op, item.call.sizes) for item in slot.values()}) == 1
        if not agree or (before and not all(item.done for item in before.values())):
            return
        for item in slot.values():
            item.done = True
        seq += 1


def with_size(call: Call, factor: float) -> Call:
    """The same call with another size, also where there is but one element."""
    return replace(call, sizes=tuple(max(1, int(size * factor)) + (size == 1) for size in call.sizes))

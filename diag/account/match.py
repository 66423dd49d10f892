"""Which calls of the ranks are the same collective, and what each rank's part in it was (science.md 2.4, 2.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diag.collectors.records import RECV, SEND
from diag.model.steps import CollectiveCall, MatchedCollective

# Nobody leaves one of these before everybody has entered it. A broadcast's root may leave at once.
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

SEND_RECV = "send_recv"  # a send and its receive as one transfer
_PAIR = {SEND, RECV}
BLOCKED_NS = 50_000  # a wait that returned sooner found everything done

Calls = Mapping[int, Sequence[CollectiveCall]]  # rank: its calls
Key = tuple[str, int, str]


def by_key(calls: Calls) -> dict[Key, dict[int, CollectiveCall]]:
    """Collectives that at least two ranks took part in: key, then rank. A call that was listed twice counts once."""
    found: dict[Key, dict[int, CollectiveCall]] = {}
    for rank, own in calls.items():
        for call in own:
            found.setdefault(call.key, {}).setdefault(rank, call)
    return {key: members for key, members in found.items() if len(members) > 1}


def is_pair(calls: Iterable[CollectiveCall]) -> bool:
    """Whether these are a send and its receive: the receiver waits for the sender, and hardly the other way round."""
    ops = set()
    for call in calls:
        if call.op not in _PAIR:
            return False
        ops.add(call.op)
    return ops == _PAIR


def is_handed_over(calls: Iterable[CollectiveCall]) -> bool:
    """Whether these are a send and its receive, and nobody stood still for the send."""
    own = list(calls)
    return is_pair(own) and all(call.waited_ns is None for call in own if call.op == SEND)


def measure(step: int, key: Key, members: Mapping[int, CollectiveCall]) -> MatchedCollective:
    """Wait, transfer and tail of one collective whose calls are on the common clock.

    Of a send and its receive only the receiver's end counts, and only where somebody stood still for it: else it had
    come at some time before. The sender waits no longer than its own call does.
    """
    ranks = tuple(sorted(members))
    starts = {rank: members[rank].start_ns for rank in ranks}
    ends = {rank: members[rank].end_ns for rank in ranks}
    arrival, last = max((start, rank) for rank, start in starts.items())
    first_end = min(ends.values())
    first = members[ranks[0]]
    pair = is_pair(members.values())
    if pair:
        received = next(call for call in members.values() if call.op == RECV)
        stood_still = received.waited_ns is None or received.waited_ns[1] - received.waited_ns[0] >= BLOCKED_NS
        first_end = received.end_ns if stood_still else arrival
        ends = dict.fromkeys(ranks, first_end)
    return MatchedCollective(
        step=step,
        key=key,
        op=SEND_RECV if pair else first.op,
        bytes=first.bytes,
        ranks=ranks,
        last_arriver=last,
        arrival_ns=arrival,
        transfer_ns=max(0, first_end - arrival),
        wait_ns=tuple(
            arrival - starts[rank]
            if members[rank].op != SEND
            else max(0, min(arrival, members[rank].end_ns) - starts[rank])
            for rank in ranks
        ),
        tail_ns=tuple(ends[rank] - first_end for rank in ranks),
        complete=set(ranks) >= set(first.group_ranks) and len(ranks) >= first.group_size,
        inferred=any(call.inferred for call in members.values()),
        sizes=tuple(members[rank].bytes for rank in ranks),
    )

"""Which calls of the ranks are the same collective, and what each rank's part in it was (science.md 2.4, 2.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diag.model import CollectiveCall, MatchedCollective

# Nobody leaves one of these before everybody has entered it. A broadcast's root may leave at once.
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

Calls = Mapping[int, Sequence[CollectiveCall]]  # rank: its calls
Key = tuple[str, int, str]


def by_key(calls: Calls) -> dict[Key, dict[int, CollectiveCall]]:
    """Collectives that at least two ranks took part in: key, then rank. A call that was listed twice counts once."""
    found: dict[Key, dict[int, CollectiveCall]] = {}
    for rank, own in calls.items():
        for call in own:
            found.setdefault(call.key, {}).setdefault(rank, call)
    return {key: members for key, members in found.items() if len(members) > 1}


def measure(step: int, key: Key, members: Mapping[int, CollectiveCall]) -> MatchedCollective:
    """Wait, transfer and tail of one collective whose calls are on the common clock."""
    ranks = tuple(sorted(members))
    starts = {rank: members[rank].start_ns for rank in ranks}
    ends = {rank: members[rank].end_ns for rank in ranks}
    last = max(ranks, key=lambda rank: (starts[rank], rank))
    arrival, first_end = starts[last], min(ends.values())
    first = members[ranks[0]]
    return MatchedCollective(
        step=step,
        key=key,
        op=first.op,
        bytes=first.bytes,
        ranks=ranks,
        last_arriver=last,
        arrival_ns=arrival,
        transfer_ns=max(0, first_end - arrival),
        wait_ns=tuple(arrival - starts[rank] for rank in ranks),
        tail_ns=tuple(ends[rank] - first_end for rank in ranks),
        complete=not first.group_ranks or set(ranks) >= set(first.group_ranks),
        inferred=any(call.inferred for call in members.values()),
        sizes=tuple(members[rank].bytes for rank in ranks),
    )

"""The columns of calls hold what the calls hold, and match what a dictionary of them matches."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diag.account.attribute import waiting
from diag.account.calls import Calls, Matched, Some, calls_in
from diag.account.joined import once_each
from diag.account.match import measure
from diag.collectors.records import RECV, SEND
from diag.model.keys import Key, Keys
from diag.model.matched import MatchedCollectives
from diag.model.steps import CollectiveCall

GROUPS = {"0": (0, 1, 2), "dp": (0, 2), "unknown": ()}
times = st.integers(0, 1000)


@st.composite
def calls(draw: st.DrawFn) -> CollectiveCall:
    group = draw(st.sampled_from(sorted(GROUPS)))
    op = draw(st.sampled_from(["all_reduce", "all_gather", SEND, RECV]))
    start, end = sorted((draw(times), draw(times)))
    waited = draw(st.none() | st.tuples(times, times).map(lambda pair: (min(pair), max(pair))))
    ranks = GROUPS[group]
    return CollectiveCall(
        (group, draw(st.integers(0, 3)), "p2p" if op in (SEND, RECV) else op), op, group, ranks, draw(times), start,
        end, draw(st.booleans()), draw(st.sampled_from(["", "float32"])), len(ranks), waited, draw(st.none() | times),
        draw(st.none() | times),
    )  # fmt: skip


ranks = st.dictionaries(st.integers(0, 3), st.lists(calls(), max_size=8), max_size=4)


def by_hand(of_ranks: dict[int, list[CollectiveCall]]) -> dict[Key, dict[int, CollectiveCall]]:
    members: dict[Key, dict[int, CollectiveCall]] = {}
    for rank, own in of_ranks.items():
        for call in own:
            members.setdefault(call.key, {}).setdefault(rank, call)
    return {key: own for key, own in members.items() if len(own) > 1}


@given(st.lists(calls()))
def test_calls_come_back_as_they_were(own: list[CollectiveCall]) -> None:
    columns = Calls.of(own)
    assert list(columns) == columns.objects == own
    assert [columns.key(place) for place in range(len(own))] == [call.key for call in own]
    later = columns.on_clock(lambda times_ns: times_ns + 5)
    assert [call.waited_ns for call in later] == [
        call.waited_ns and tuple(ns + 5 for ns in call.waited_ns) for call in own
    ]
    some = Some(columns, np.arange(len(own))[::2])
    assert some == own[::2]
    assert list(some[1:]) == own[::2][1:]


@given(ranks)
def test_collectives_are_matched_in_the_order_of_their_first_calls(of_ranks: dict[int, list[CollectiveCall]]) -> None:
    matched = Matched({rank: Calls.of(own) for rank, own in of_ranks.items()})
    expected = by_hand(of_ranks)
    assert {key: dict(members) for key, members in matched.items()} == expected
    assert list(matched) == list(expected)
    for number, (key, members) in enumerate(expected.items()):
        at = slice(matched.edges[number], matched.edges[number + 1])
        assert matched.number[key] == number
        assert matched.rank[at].tolist() == list(members)
        assert matched.start_ns[at].tolist() == [call.start_ns for call in members.values()]
        ops = [call.op for call in members.values()]
        pair = set(ops) == {SEND, RECV}
        sent = [call for call in members.values() if call.op == SEND]
        assert matched.pairs[number] == pair
        assert matched.handed_over[number] == (pair and all(call.waited_ns is None for call in sent))
    for rank, own in of_ranks.items():
        numbers = matched.numbers_of(rank)
        first = {call.key: place for place, call in reversed(list(enumerate(own)))}
        known = [matched.number.get(call.key, -1) if first[call.key] == at else -1 for at, call in enumerate(own)]
        assert numbers.tolist() == known


@given(ranks)
def test_a_rank_waits_from_its_call_until_the_last_one_s(of_ranks: dict[int, list[CollectiveCall]]) -> None:
    plain = {
        rank: [msgspec.structs.replace(call, key=(*call.key[:2], "x"), op="all_reduce") for call in own]
        for rank, own in of_ranks.items()
    }
    expected = by_hand(plain)
    matched = Matched({rank: Calls.of(own) for rank, own in plain.items()})
    waits = waiting(matched)
    for measured, members in zip(measure(matched), expected.values(), strict=True):
        arrival = max(call.start_ns for call in members.values())
        assert measured.arrival_ns == arrival
        assert measured.ranks == tuple(sorted(members))
        assert measured.wait_ns == tuple(arrival - members[rank].start_ns for rank in sorted(members))
        for rank, call in members.items():
            span = call.start_ns, min(arrival, call.end_ns)
            if span[0] < span[1]:
                assert any(begin <= span[0] and span[1] <= end for begin, end in waits[rank].tolist())


@given(st.lists(st.lists(calls(), max_size=4), min_size=1, max_size=4))
def test_calls_of_steps_are_listed_once(steps: list[list[CollectiveCall]]) -> None:
    once, places = calls_in(steps)
    assert len({call.key for call in once}) == len(once)
    assert [[once.key(place) for place in of_step.tolist()] for of_step in places] == [
        [call.key for call in step] for step in steps
    ]
    again, same = calls_in([Some(once, of_step) for of_step in places])
    assert [[again.key(at) for at in of_step.tolist()] for of_step in same] == [[c.key for c in step] for step in steps]


@given(st.lists(st.lists(calls(), max_size=6), min_size=1, max_size=3))
def test_a_call_in_several_tables_is_one_call(tables: list[list[CollectiveCall]]) -> None:
    listed = [call for own in tables for call in own]
    for ranks in ([0] * len(listed), [at % 2 for at in range(len(listed))]):
        first, places = once_each(Calls.together([Calls.of(own) for own in tables]), np.array(ranks, dtype=np.int64))
        once: dict[tuple[int, Key], CollectiveCall] = {}
        for rank, call in zip(ranks, listed, strict=True):
            once.setdefault((rank, call.key), call)
        assert list(first) == list(once.values())
        assert [first.key(place) for place in places.tolist()] == [call.key for call in listed]


@given(ranks)
def test_matched_collectives_come_back_as_they_were(of_ranks: dict[int, list[CollectiveCall]]) -> None:
    table = measure(Matched({rank: Calls.of(own) for rank, own in of_ranks.items()}))
    rows = list(table)
    assert MatchedCollectives.of(rows) == rows == [table[at] for at in range(len(table))]
    assert list(table.take(np.arange(len(rows))[::2])) == list(table[::2]) == rows[::2]
    assert list(MatchedCollectives.joined([table[:2], MatchedCollectives.of(()), table[2:], table])) == rows + rows
    assert [table.teams[team] for team in table.team.tolist()] == [met.ranks for met in rows]
    assert table.teams == tuple(dict.fromkeys(met.ranks for met in rows))
    assert table.by(table.wait_ns, np.maximum).tolist() == [max(met.wait_ns) for met in rows]
    assert table.key_columns.keys() == [met.key for met in rows]


keys = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 1)))


@given(keys, keys)
def test_keys_are_found_at_their_last_place(
    wanted: list[tuple[str, int, str, int]], known: list[tuple[str, int, str, int]]
) -> None:
    own, among = (Keys.of([(group, number, op) for group, number, op, _ in each]) for each in (wanted, known))
    last = {(group, number, op): at for at, (group, number, op, _) in enumerate(known)}
    assert own.last_in(among).tolist() == [last.get((group, number, op), -1) for group, number, op, _ in wanted]
    steps = (np.array([key[3] for key in each], dtype=np.int64) for each in (wanted, known))
    in_step = {key: at for at, key in enumerate(known)}
    assert own.last_in(among, *steps).tolist() == [in_step.get(key, -1) for key in wanted]

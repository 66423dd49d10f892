"""The graph of which fault explains which."""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest

from diag.ended.model import Clue, Culprit
from diag.ended.precedence import OF_A_PROCESS, edges, level, reason_of
from diag.hang.classes import CLASSES
from diag.hang.order import choose

EDGES = tuple(edges())


def test_the_graph_has_no_cycle() -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for cause, effect, _ in EDGES:
        sorter.add(effect, cause)
    assert {*sorter.static_order()} <= {*CLASSES}


def test_edges_are_within_a_priority() -> None:
    assert all(CLASSES[cause].priority == CLASSES[effect].priority for cause, effect, _ in EDGES)


def test_every_class_of_a_priority_with_edges_has_one() -> None:
    """A new class would stand before all that the others explain."""
    connected = {name for cause, effect, _ in EDGES for name in (cause, effect)}
    priorities = {CLASSES[name].priority for name in connected}
    assert {name for name, its in CLASSES.items() if its.priority in priorities} == connected


@pytest.mark.parametrize(("cause", "effect", "because"), EDGES)
def test_each_edge_decides(cause: str, effect: str, because: str) -> None:
    """Though what it explains is surer."""
    clues = [Clue(effect, (Culprit(rank=1),), (), 0.9), Clue(cause, (Culprit(rank=0),), (), 0.6)]
    chosen = choose(clues, None)
    assert chosen.cause is not None
    assert chosen.cause.fault_class == cause
    stated = CLASSES[cause].rules_out.get(effect, because)
    assert [(ruled.fault_class, ruled.because) for ruled in chosen.ruled_out] == [(effect, stated)]


def test_an_explanation_reaches_along_the_edges() -> None:
    assert reason_of("cuda_oom", "net_connection_lost")
    assert not reason_of("net_connection_lost", "cuda_oom")
    assert [level(name) for name in (OF_A_PROCESS[0], "net_connection_lost", "missing_rank")] == [1, 5, 1]


@pytest.mark.parametrize(
    ("seconds", "first"),
    [
        ((10, 0), 1),  # the earlier one, though less sure
        ((1.5, 0), 0),  # clocks do not tell them apart
        ((None, 0), 0),
        ((10, None), 0),
        ((3, 1.5, 0), 1),  # of those that are not later than the earliest one, the surest
    ],
)
def test_the_earliest_of_clues_in_one_place_is_the_cause(seconds: tuple[float | None, ...], first: int) -> None:
    name = "rank_killed_exception"
    clues = [
        Clue(name, (Culprit(rank=rank),), (), 0.9 - rank / 100, time_ns=None if at is None else int(at * 1e9))
        for rank, at in enumerate(seconds)
    ]
    cause = choose(clues, None).cause
    assert cause is not None
    assert cause.culprits[0].rank == first

"""What somebody is told about a training: each thing once, and when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from diag.model.steps import Bottleneck, Severity, Verdict
from diag.rundir.runs import RunState
from diag.rundir.states import RankState, Standstill, State
from diag.watch.events import Event, Events, line_of
from diag.words import places

S = 10**9
TRAINS = RunState(Path("/runs/r"), State.TRAINING, 0, 2, 2, "ddp", 62, S, None, as_of_ns=1000 * S)
STUCK = replace(
    TRAINS,
    state=State.STUCK,
    standstill=Standstill(41 * S, {1: 42 * S}, {}, {}, 959 * S, 62),
    by_rank=(
        RankState(0, State.WAITING, 63, "backward", 40 * S, S, "all_reduce #6", (1,)),
        RankState(1, State.STUCK, 63, "forward", 42 * S, 42 * S),
    ),
)
HEALTHY = Verdict(Bottleneck.COMPUTE, Severity.HEALTHY, "healthy", 0.0, 0.9, (), (), "Compute-bound.", ())
SLOW = Verdict(Bottleneck.DATA, Severity.WARN, "slow-data", 0.3, 0.9, (1,), ("n",), "Rank 1 waits for data.", ())


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_stuck_is_said_once_with_the_rank_and_then_that_it_is_over() -> None:
    events = Events("/runs/r")
    assert events.look(TRAINS) == []
    (event,) = events.look(STUCK)
    assert (event.kind, event.level, event.ranks) == ("stuck", "critical", (1,))
    assert "rank 1 is silent for 42 s" in event.text
    assert line_of(event).startswith("step 62: The training is stuck: no step since ")
    assert events.look(STUCK) == []
    assert kinds(events.look(TRAINS)) == ["stuck-over"]
    assert kinds(events.look(STUCK)) == ["stuck"]


@pytest.mark.parametrize(
    ("state", "level"), [(State.FINISHED, "info"), (State.FAILED, "critical"), (State.UNCLOSED, "critical")]
)
def test_the_end_is_said_once(state: State, level: str) -> None:
    events = Events("/runs/r")
    ended = replace(TRAINS, state=state)
    assert [(event.kind, event.level) for event in events.look(ended)] == [("ended", level)]
    assert events.look(ended) == []


def test_a_verdict_must_hold_in_two_looks() -> None:
    events = Events("/runs/r")
    assert [events.look_at(verdict, TRAINS) for verdict in (HEALTHY, SLOW, HEALTHY, SLOW)] == [[], [], [], []]
    (event,) = events.look_at(SLOW, TRAINS)
    assert (event.kind, event.level, event.ranks) == ("verdict", "warning", (1,))
    assert event.text == "Rank 1 waits for data. diag analyze /runs/r"
    assert events.look_at(SLOW, TRAINS) == []
    other = replace(SLOW, culprit_ranks=(0,), headline="Rank 0 waits for data.")
    assert events.look_at(other, TRAINS) == []
    assert events.look_at(other, TRAINS)[0].text.startswith("The verdict has changed: Rank 0")
    assert events.look_at(HEALTHY, TRAINS) == []
    assert kinds(events.look_at(HEALTHY, TRAINS)) == ["verdict-over"]


def test_of_a_local_copy_the_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gets the message is on another machine."""
    monkeypatch.setattr(places, "_SHOWN", {"/runs/r": "s3://bucket/r"})
    (event,) = Events("/runs/r").look(STUCK)
    assert event.text.endswith(" diag analyze s3://bucket/r")
    assert event.run == "s3://bucket/r"


def test_an_unsure_verdict_is_not_told() -> None:
    events = Events("/runs/r")
    unsure = replace(SLOW, confidence=0.2)
    assert [events.look_at(unsure, TRAINS) for _ in range(3)] == [[], [], []]

"""When a training is called hung: successive heartbeats and a clock that the test turns."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diag.collectors.layout import RunLayout
from diag.collectors.records import CHECKPOINT, DATA, EVALUATION, FAILED, FORWARD
from diag.rundir.beats import Beat, beat_of
from diag.rundir.lines import read_heartbeat
from diag.watch.hang_monitor import HangState, Judgement, Limits, busy_words, hang_words, judged, observed

LIMITS = Limits(hang_s=30, setup_s=120, busy_s=90)


def beat(steps: int = 5, phase: str = FORWARD, started: int = 9, finished: int | None = None, **more: object) -> Beat:
    """On the host's side of a group of all ranks; ``finished`` of None: all that was started."""
    done = started if finished is None else finished
    made = Beat(steps, steps, phase, 1, (("0", started),), (("0", done),))
    return replace(made, **more)  # type: ignore[arg-type]


WAITS = beat(started=9, finished=8)
AWAY = beat(phase=DATA, started=8)


def after(seconds: float, *beats: Beat | None, limits: Limits = LIMITS) -> Judgement:
    """Ranks that have said the same for so long."""
    seen = observed({}, dict(enumerate(beats)), 0)
    seen = observed(seen, {rank: again(one, seconds) for rank, one in enumerate(beats)}, seconds)
    return judged(seen, seconds, limits)


def again(one: Beat | None, seconds: float) -> Beat | None:
    """The same, sent anew."""
    return one and replace(one, sent_ns=int(seconds * 1e9))


def test_a_rank_that_waits_in_a_collective_hangs_at_the_limit() -> None:
    assert after(23, WAITS, AWAY).state == HangState.MOVING
    assert after(24, WAITS, AWAY).state == HangState.DOUBTFUL
    assert after(29.9, WAITS, AWAY).state == HangState.DOUBTFUL
    found = after(30, WAITS, WAITS, AWAY)
    assert found == Judgement(HangState.HUNG, 30, 30, (0, 1), ((2, DATA),))
    assert hang_words(found) == "hang: no progress for 30 s; ranks 0, 1 wait in a collective, rank 2 is in data"


def test_all_ranks_in_different_collectives_hang() -> None:
    found = after(31, WAITS, beat(started=8, finished=7))
    assert (found.state, found.waiting, found.away) == (HangState.HUNG, (0, 1), ())


def test_one_that_waits_hangs_while_others_move_on() -> None:
    seen = observed({}, {0: WAITS, 1: AWAY, 2: beat()}, 0)
    for second in range(1, 31):
        beats = {0: WAITS, 1: beat(started=8 + second), 2: beat(steps=5 + second)}
        seen = observed(seen, {rank: again(one, second) for rank, one in beats.items()}, second)
        found = judged(seen, second, LIMITS)
    assert (found.state, found.still_s) == (HangState.HUNG, 30)


def test_a_rank_that_is_slow_and_waited_for_by_nobody_is_no_hang() -> None:
    seen = observed({}, {0: AWAY, 1: beat()}, 0)
    for second in range(1, 200):
        seen = observed(seen, {0: again(AWAY, second), 1: again(beat(steps=5 + second), second)}, second)
        assert judged(seen, second, LIMITS).state == HangState.MOVING


def test_where_nobody_waits_there_is_more_time() -> None:
    assert after(71, AWAY, AWAY).state == HangState.MOVING
    assert after(72, AWAY, AWAY).state == HangState.DOUBTFUL
    assert after(90, AWAY, AWAY).state == HangState.HUNG


@pytest.mark.parametrize("phase", [CHECKPOINT, EVALUATION])
def test_a_checkpoint_or_an_evaluation_is_said_and_waited_for(phase: str) -> None:
    busy = beat(phase=phase, started=8)
    assert after(23, WAITS, busy).state == HangState.MOVING
    found = after(35, WAITS, busy)
    assert (found.state, found.busy) == (HangState.BUSY, ((1, phase),))
    assert busy_words(found) == f"rank 1 is busy with {phase}, 1 rank waiting for 35 s: no hang before 90 s"
    assert after(90, WAITS, busy).state == HangState.HUNG
    assert after(60, busy, busy).state == HangState.MOVING, "nobody waits: nothing to say"


def test_before_the_first_step_there_is_more_time() -> None:
    waits, away = replace(WAITS, steps=0), replace(AWAY, steps=0, phase="setup")
    assert after(95, waits, away).state == HangState.MOVING
    assert after(120, waits, away).state == HangState.HUNG
    assert after(120, waits, None).away == ((1, "no heartbeat yet"),)
    assert after(120, waits, None).state == HangState.HUNG


def test_without_any_heartbeat_nothing_is_judged() -> None:
    assert after(1e6, None, None).state == HangState.MOVING
    assert judged({}, 5, LIMITS).state == HangState.MOVING


def test_ranks_that_are_done_are_not_waited_for() -> None:
    assert after(1e6, beat(done=True), beat(done=True)).state == HangState.MOVING
    found = after(31, WAITS, beat(done=True))
    assert (found.state, found.waiting, found.away) == (HangState.HUNG, (0,), ())


def test_a_rank_that_raised_and_stays_is_away() -> None:
    found = after(30, WAITS, beat(phase=f"{FAILED}RuntimeError", started=9, finished=8))
    assert (found.state, found.away) == (HangState.HUNG, ((1, "failed: RuntimeError"),))


def test_a_heartbeat_that_cannot_be_read_changes_nothing() -> None:
    seen = observed({}, {0: WAITS, 1: AWAY}, 0)
    seen = observed(seen, {0: again(WAITS, 20), 1: again(AWAY, 20)}, 20)
    seen = observed(seen, {0: None, 1: again(AWAY, 31)}, 31)
    assert judged(seen, 31, LIMITS).state == HangState.HUNG


@pytest.mark.parametrize("hang_s", [4, 30, 300])
def test_where_heartbeats_stop_coming_nothing_is_known(hang_s: float) -> None:
    """The disk is full, or the storage away: no reason to end a training."""
    seen = observed({}, {0: WAITS, 1: AWAY}, 0)
    for second in range(1, 1000):
        seen = observed(seen, {0: WAITS, 1: AWAY}, second)
        assert judged(seen, second, Limits(hang_s, 120, 3 * hang_s)).state == HangState.MOVING


def test_an_answer_may_hold_up_heartbeats() -> None:
    seen = observed({}, {0: WAITS, 1: AWAY}, 0)
    seen = observed(seen, {0: again(WAITS, 24), 1: again(AWAY, 24)}, 24)
    assert judged(seen, 40, LIMITS).state == HangState.HUNG


def test_one_whose_heartbeats_stop_is_away_from_those_that_wait() -> None:
    """Its process is stopped, or a thread holds the GIL."""
    seen = observed({}, {0: WAITS, 1: WAITS}, 0)
    for second in range(1, 31):
        seen = observed(seen, {0: again(WAITS, second), 1: WAITS}, second)
    found = judged(seen, 30, LIMITS)
    assert (found.state, found.waiting, found.away) == (HangState.HUNG, (0,), ((1, FORWARD),))


def test_on_a_device_the_recorder_tells_whether_a_collective_is_under_way() -> None:
    """NCCL: the host knows when it called, never when it ended."""
    called = Beat(5, 5, FORWARD, 1, (("0", 9),), ())
    assert called.in_collective, "without a recorder it may be"
    assert replace(called, recorder=(("0", 10, 9),)).in_collective
    assert not replace(called, recorder=(("0", 10, 10),)).in_collective
    assert replace(called, recorder=(("0", 3, -1),)).in_collective, "a recorder that never saw one end tells nothing"


def test_a_call_in_c_counts_by_the_recorder() -> None:
    """DTensor's collectives never pass through Python's functions."""
    assert not beat().in_collective
    assert beat(recorder=(("0", 12, 11),)).in_collective


def test_the_recorder_s_numbers_come_with_standing_and_are_progress_when_they_change() -> None:
    first, second = beat(recorder=(("0", 12, 11),)), beat(recorder=(("0", 13, 11),))
    assert not first.moved_since(beat())
    assert second.moved_since(first)


def test_limits_end_before_the_collectives_do() -> None:
    assert Limits.of(300, 300) == Limits(290, 290, 870)
    assert Limits.of(600, 10) == Limits(8, 120, 24)
    assert Limits.of(20, 300) == Limits(20, 120, 60)


WORDS = st.sampled_from(["", "0", "data"])
VALUES = st.none() | st.integers() | WORDS | st.dictionaries(WORDS, st.none() | st.integers() | st.just([1, 2]))
FIELDS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("step", "steps", "phase", "phase_since_ns", "last_started", "last_finished", "recorder", "done"), VALUES
    ),
)


@given(FIELDS)
def test_whatever_a_heartbeat_file_holds_is_read_or_refused(content: dict[str, object]) -> None:
    with TemporaryDirectory() as folder:
        files = RunLayout(Path(folder)).rank(0)
        files.folder.mkdir(parents=True)
        files.heartbeat.write_text(json.dumps({"unix_ns": 0, "monotonic_ns": 0, **content}))
        heartbeat, gap = read_heartbeat(files)
    assert (heartbeat is None) == (gap is not None)
    assert heartbeat is None or isinstance(beat_of(heartbeat).in_collective, bool)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 5)), min_size=1, max_size=40))
def test_nothing_is_hung_before_the_limit_since_it_last_moved(rounds: list[tuple[bool, float]]) -> None:
    seen, now, moved, steps = observed({}, {0: WAITS, 1: AWAY}, 0), 0.0, 0.0, 5
    for moves, seconds in rounds:
        now += seconds
        if moves:
            steps, moved = steps + 1, now
        beats = {0: replace(WAITS, steps=steps), 1: replace(AWAY, steps=steps)}
        seen = observed(seen, {rank: again(one, now) for rank, one in beats.items()}, now)
        assert (judged(seen, now, LIMITS).state == HangState.HUNG) == (now - moved >= LIMITS.hang_s)

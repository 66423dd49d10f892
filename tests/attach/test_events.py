"""Telling the timeline later changes nothing of what it makes of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from diag.collectors.policy import RECORDING
from diag.collectors.records import LoaderQueue
from tests.attach.told import ADAM, ENGINE, OTHER, SGD, TRAIN, Recorder, Training, evaluate


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.collectors.attach.events.monotonic_ns", lambda: Recorder.last.now)


def under_way(monkeypatch: pytest.MonkeyPatch) -> Training:
    """After three steps, of which the last ones are kept."""
    monkeypatch.setattr(Training, "belated", True)
    training = Training()
    for _ in range(3):
        training.train()
    return training


def some_training(training: Training, chance: random.Random) -> None:
    """Anything that a training may do, in an order that makes sense or does not."""

    def micro_batch() -> None:
        loader = TRAIN if chance.random() < 0.9 else OTHER
        training.fetch(chance.randrange(3), loader, gradients=chance.random() < 0.95)
        if chance.random() < 0.3:
            training.timeline.queue_seen(LoaderQueue(chance.randrange(4), 4, 2))
        if chance.random() < 0.3:
            training.timeline.note(7, None if chance.random() < 0.7 else 0.5)
        training.wait(chance.randrange(3))
        if chance.random() < 0.05:
            training.timeline.backward_begins()
            training.timeline.interrupted()
        elif chance.random() < 0.1:
            training.timeline.backward_begins()
            training.optimize(1, ADAM)
            training.timeline.backward_ends()
        else:
            training.backward(chance.randrange(3))

    def engine() -> None:
        training.timeline.optimizer_begins(ENGINE)
        training.optimize(1, ADAM)
        training.timeline.optimizer_ends(ENGINE, chance.random() < 0.7)

    def save() -> None:
        start = training.timeline.checkpoint_begins()
        training.wait(2)
        if start is not None:
            training.timeline.checkpoint_ends(start)

    seldom = [
        lambda: evaluate(training, chance.random() < 0.5, chance.random() < 0.5),
        lambda: training.optimize(1, SGD),
        lambda: training.timeline.optimizer_begins(chance.choice([ADAM, SGD])),  # which raised
        lambda: training.timeline.eval_called(),
        lambda: training.timeline.told_steps(),
        lambda: training.timeline.inferred_steps(),
        lambda: training.timeline.step_ends(chance.random() < 0.5),
        lambda: [training.optimize(1, ADAM) for _ in range(chance.randrange(1, 14))],  # and no backward
        engine,
        save,
    ]
    others = {optimizer: chance.choice([0, 1, 1, 2, 3]) for optimizer in (SGD, 20, 21)}
    unhooked = chance.random() < 0.2
    for number in range(60):
        if chance.random() < 0.2:
            chance.choice(seldom)()
        if chance.random() < 0.2:
            training.timeline.gradients_cleared()
        if chance.random() < 0.05:
            unhooked = not unhooked
        for _ in range(chance.choice([1, 1, 1, 2])):
            training.fetch(1) if unhooked else micro_batch()
        training.wait(chance.randrange(2))
        training.optimize(chance.randrange(3), ADAM)
        for optimizer, interval in others.items():
            if interval and not number % interval and chance.random() < 0.98:
                if chance.random() < 0.7 and not unhooked:
                    training.backward(1)
                training.optimize(1, optimizer)
    for _ in range(30):
        training.optimize(0, ADAM)


def test_belated_telling_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = passes = 0
    for seed in range(200):
        found = []
        for belated in (False, True):
            monkeypatch.setattr(Training, "belated", belated)
            training = Training()
            some_training(training, random.Random(seed))
            found.append((training.recorder.steps, training.recorder.queues, training.recorder.ahead))
            assert training.recorder.unused == 0
        assert found[0] == found[1]
        steps += len(found[0][0])
        passes += training.recorder.passes
    assert passes > steps / 3  # the boundaries that it asked to pass


def test_another_thread_tells_only_what_has_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(RECORDING), "still_ns", 50)
    training = under_way(monkeypatch)
    known = len(training.recorder._steps)
    training.timeline.events.catch_up(if_still=True)
    assert len(training.recorder._steps) == known < 3
    training.wait(50)
    training.timeline.events.catch_up(if_still=True)
    assert len(training.recorder._steps) == 3


def test_backwards_without_any_end_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where gradients are looked at, and no optimizer steps."""
    monkeypatch.setitem(vars(RECORDING), "most_waiting_events", 50)
    training = under_way(monkeypatch)
    for many in (lambda: training.backward(1), lambda: training.fetch(1)):
        before = len(training.recorder.open)
        for _ in range(100):
            many()
        assert len(training.recorder.open) - before > 100 - 50


def test_nothing_is_kept_of_a_recording_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    training = under_way(monkeypatch)
    heard: list[str] = []
    training.timeline.events.stop()
    training.timeline.events._tell = lambda name, *_values: heard.append(name)
    for _ in range(2):
        training.train()
    once = ["fetch_begins", "fetch_ends", "backward_begins", "backward_ends", "optimizer_begins", "optimizer_ends"]
    assert heard == 2 * once


@pytest.mark.parametrize("broken", ["pass_boundary", "moment"])
def test_what_goes_wrong_ends_the_recording_and_not_the_training(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(Recorder, "on_device", broken == "moment")
    training = under_way(monkeypatch)
    failed: list[str] = []

    def fail(error: Exception) -> None:
        failed.append(repr(error))
        training.timeline.events.stop()

    training.timeline.events._fail = fail
    training.timeline.events._tell = lambda *_event: None
    monkeypatch.setattr(Recorder, broken, lambda *_values, **_named: 1 / 0)
    training.train()
    assert failed == ["ZeroDivisionError('division by zero')"]


def test_the_queue_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the begin of a step, or not at all in it: several batches in a row empty it."""
    monkeypatch.setattr(Training, "belated", True)
    monkeypatch.setitem(vars(RECORDING), "queue_looked_at_from_ns", 35)
    training = Training()
    looked = []
    for _ in range(24):  # of 10
        training.train()
        looked.append(training.timeline.events.looks)
    assert 6 <= sum(looked[4:]) <= 14  # and after the steps that end at once
    seen = []
    for _ in range(40):
        events = training.timeline.events
        seen.append([events.looks for _ in range(3) if training.fetch(1) is None])
        training.backward(1)
        training.optimize(1)
    assert all(len(set(one)) == 1 for one in seen)
    assert {one[0] for one in seen} == {True, False}


def test_a_signal_handler_that_saves_between_two_lines_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on the training's thread, in the middle of what is being told."""
    monkeypatch.setattr(Training, "belated", True)
    training = Training()
    for _ in range(7):
        training.train()
    passed, told = training.timeline.events.passed, []

    def interrupted(*phase: Any) -> None:
        passed(*phase)
        if not told:
            told.append(training.timeline.checkpoint_begins())
            told.append(training.timeline.eval_called())

    training.timeline.events.passed = interrupted
    known = len(training.recorder._steps)
    assert len(training.recorder.steps) == 7 > known
    assert told == [None, None]
    assert all(end - begin == 10 for begin, end, *_ in training.recorder.steps[known + 1 :])
    training.train()
    assert len(training.recorder.steps) == 8

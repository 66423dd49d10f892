"""Telling the timeline later changes nothing of what it makes of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from diag.collectors.records import LoaderQueue
from tests.attach.told import ADAM, ENGINE, OTHER, SGD, TRAIN, Recorder, Training, evaluate


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.collectors.attach.events.monotonic_ns", lambda: Recorder.last.now)


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
        engine,
        save,
    ]
    for _ in range(60):
        if chance.random() < 0.2:
            chance.choice(seldom)()
        if chance.random() < 0.2:
            training.timeline.gradients_cleared()
        for _ in range(chance.choice([1, 1, 1, 2])):
            micro_batch()
        training.wait(chance.randrange(2))
        training.optimize(chance.randrange(3), ADAM)
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
        assert found[0] == found[1]
        steps += len(found[0][0])
        passes += training.recorder.passes
    assert passes > steps / 3  # the boundaries that it asked to pass


def test_another_thread_tells_only_what_has_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "belated", True)
    monkeypatch.setattr("diag.collectors.attach.events._STILL_NS", 50)
    training = Training()
    for _ in range(3):
        training.train()
    known = len(training.recorder._steps)
    training.recorder.catch_up(True)
    assert len(training.recorder._steps) == known < 3
    training.wait(50)
    training.recorder.catch_up(True)
    assert len(training.recorder._steps) == 3


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

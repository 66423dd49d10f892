"""What the timeline makes of events, told at once, or by ``Events``, belatedly."""

from __future__ import annotations

import pytest

from diag.collectors.records import LoaderQueue
from tests.attach.told import ADAM, ENGINE, SGD, TRAIN, VALIDATION, Recorder, Training, evaluate


@pytest.fixture(autouse=True, params=[False, True], ids=["at once", "belated"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "belated", request.param)
    if request.param:  # of the clock that the test moves
        monkeypatch.setattr("diag.collectors.attach.events.monotonic_ns", lambda: Recorder.last.now)


def test_a_step_ends_with_the_optimizer_and_holds_what_lies_before() -> None:
    training = Training()
    training.train()
    training.train()
    training.optimize(0)
    assert [step[:3] for step in training.recorder.steps[:2]] == [(0, 9, 1), (9, 19, 1)]
    assert training.phases[1] == [("data", 10, 11), ("forward", 11, 13), ("backward", 13, 16), ("optimizer", 16, 19)]


def test_micro_batches() -> None:
    training = Training()
    for ms in (1, 2):
        training.fetch(ms)
        training.wait(1)
        training.backward(1)
    training.optimize(1)
    assert training.recorder.steps[0][2] == 2
    assert [name for name, *_ in training.phases[0]] == [*["data", "forward", "backward"] * 2, "optimizer"]


def test_batches_fetched_ahead_of_several_backwards() -> None:
    """As the Trainer of transformers does."""
    training = Training()
    training.fetch(1)
    training.fetch(1)
    for _ in range(2):
        training.wait(2)
        training.backward(3)
    training.optimize(1)
    assert training.phases[0] == [
        ("data", 0, 1), ("data", 1, 2), ("forward", 2, 4), ("backward", 4, 7), ("forward", 7, 9), ("backward", 9, 12),
        ("optimizer", 12, 13),
    ]  # fmt: skip


def test_closure_within_the_optimizer() -> None:
    """As Lightning does: the optimizer's step encloses forward and backward."""
    training = Training()
    training.fetch(1)
    training.timeline.optimizer_begins(ADAM)
    training.wait(2)
    training.backward(3)
    training.wait(1)
    training.timeline.optimizer_ends(ADAM)
    assert training.phases[0] == [("data", 0, 1), ("forward", 1, 3), ("backward", 3, 6), ("optimizer", 6, 7)]


def test_the_queue_that_the_first_batch_of_a_step_was_taken_from() -> None:
    training = Training()
    for _ in range(2):
        for ready in (3, 1):  # micro-batches
            training.timeline.fetch_begins(TRAIN, True)
            training.timeline.queue_seen(LoaderQueue(ready, 4, 2))
            training.timeline.fetch_ends()
            training.backward(1)
        training.timeline.fetch_begins(VALIDATION, False)
        training.timeline.queue_seen(LoaderQueue(4, 4, 2))
        training.timeline.fetch_ends()
        training.optimize(1)
    training.timeline.fetch_begins(VALIDATION, False)
    training.timeline.queue_seen(LoaderQueue(4, 4, 2))
    training.timeline.fetch_ends()
    training.timeline.step_ends()
    assert training.recorder.queues == [(3, 4, 2), (3, 4, 2), None]


def test_no_loader_at_all() -> None:
    training = Training()
    for _ in range(2):
        training.wait(2)
        training.backward(3)
        training.optimize(1)
    assert training.phases[1] == [("forward", 6, 8), ("backward", 8, 11), ("optimizer", 11, 12)]


def test_two_optimizers_are_one_step() -> None:
    """Discriminator and generator: the first one leads."""
    training = Training()
    for _ in range(3):
        training.fetch(1)
        training.backward(2)
        training.optimize(1, ADAM)
        training.wait(1)
        training.backward(2)
        training.optimize(1, SGD)
    assert [step[2] for step in training.recorder.steps] == [1, 2, 2]


def test_an_optimizer_that_steps_once_does_not_lead_for_ever() -> None:
    training = Training()
    training.backward(1)
    training.optimize(1, SGD)
    for _ in range(3):
        training.backward(1)
        training.optimize(1, ADAM)
    assert len(training.recorder.steps) == 3  # SGD's; ADAM's first two, by the second of which it leads; ADAM's third


def test_an_engine_around_its_optimizer_steps_once() -> None:
    """As DeepSpeed's: the inner optimizer steps for each group of parameters, and not after every micro-batch."""
    training = Training()
    for boundary in (False, True):
        training.fetch(1)
        training.backward(1)
        training.timeline.optimizer_begins(ENGINE)
        if boundary:
            training.optimize(1, ADAM)
            training.optimize(1, ADAM)
        training.timeline.optimizer_ends(ENGINE, boundary)
    assert [step[2] for step in training.recorder.steps] == [2]


def test_an_optimizer_within_the_backward_ends_the_step_after_it() -> None:
    training = Training()
    for _ in range(2):
        training.fetch(1)
        training.timeline.backward_begins()
        training.optimize(1, ADAM)
        training.optimize(1, SGD)
        training.timeline.backward_ends()
    assert [step[:2] for step in training.recorder.steps] == [(0, 3), (3, 6)]


def test_an_optimizer_that_nobody_sees_is_told_by_the_clearing_of_gradients() -> None:
    training = Training()
    for _ in range(2):
        training.fetch(1)
        training.backward(2)
        training.wait(3)
        training.timeline.gradients_cleared()
    assert training.phases[1] == [("data", 6, 7), ("forward", 7, 7), ("backward", 7, 9), ("optimizer", 9, 12)]
    training = Training()
    for _ in range(2):  # where it is seen, clearing says nothing
        training.train()
        training.backward(1)
        training.timeline.gradients_cleared()
    assert len(training.recorder.steps) == 2


def test_an_optimizer_that_raised_does_not_hide_the_others() -> None:
    training = Training()
    training.fetch(1)
    training.timeline.optimizer_begins(SGD)  # and no end
    training.train()
    assert len(training.recorder.steps) == 1


def test_an_evaluation_by_either_sign() -> None:
    for called, gradients in ((True, True), (False, False), (True, False)):
        training = Training()
        training.train()
        evaluate(training, called, gradients)
        assert training.recorder.ahead == "evaluation"
        training.train()
        assert training.phases[1] == [
            ("evaluation", 10, 25), ("data", 25, 26), ("forward", 26, 28), ("backward", 28, 31), ("optimizer", 31, 34),
        ]  # fmt: skip


def test_an_evaluation_before_the_training_is_known() -> None:
    """As Lightning's sanity check: only the backward tells that the last batch was none of it."""
    training = Training()
    evaluate(training, True, False)
    training.train()
    assert training.phases[0][:3] == [("evaluation", 0, 15), ("data", 15, 16), ("forward", 16, 18)]
    evaluate(training, True, False)
    training.train()
    assert [name for name, *_ in training.phases[1]] == ["evaluation", "data", "forward", "backward", "optimizer"]


def test_a_frozen_teacher_is_no_evaluation() -> None:
    training = Training()
    for _ in range(3):
        training.timeline.eval_called()
        training.train()
    assert [name for phases in training.phases[1:] for name, *_ in phases].count("evaluation") == 0


def test_saving() -> None:
    training = Training()
    training.train()
    start = training.timeline.checkpoint_begins()
    assert start is not None
    training.wait(5)
    training.timeline.checkpoint_ends(start)
    training.train()
    assert training.phases[1][:2] == [("checkpoint", 10, 15), ("data", 15, 16)]


def test_a_model_that_is_loaded_and_saved_before_it_is_trained() -> None:
    """As ``from_pretrained`` does, which leaves it in evaluation mode; Accelerate's loader is a batch ahead."""
    training = Training()
    training.timeline.eval_called()
    assert training.timeline.checkpoint_begins() is None
    training.wait(50)
    training.fetch(1)
    training.train()
    assert training.recorder.steps[0][:2] == (50, 60)
    assert training.phases[0][:3] == [("data", 50, 51), ("data", 51, 52), ("forward", 52, 54)]


def test_steps_that_the_training_tells() -> None:
    """Two optimizers' steps and what follows them are one step."""
    training = Training()
    training.timeline.told_steps(TRAIN)
    for _ in range(2):
        training.train()
        training.train()
        training.wait(5)
        training.timeline.step_ends()
    assert [step[:3] for step in training.recorder.steps] == [(0, 25, 2), (25, 50, 2)]
    training.fetch(1)
    training.timeline.step_ends(whole=False)  # the loop is left before the optimizer
    assert len(training.recorder.steps) == 2
    training.train()
    training.timeline.step_ends(whole=False)  # and after it
    assert len(training.recorder.steps) == 3


def test_an_optimizer_within_the_backward_ends_no_step_that_the_training_tells() -> None:
    training = Training()
    training.timeline.told_steps()
    training.timeline.backward_begins()
    training.optimize(1, ADAM)
    training.timeline.backward_ends()
    assert training.recorder.steps == []
    training.timeline.step_ends(whole=False)
    assert len(training.recorder.steps) == 1

"""What the timeline makes of events, told at once, or by ``Events``, belatedly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.fixture
def autograd(monkeypatch: pytest.MonkeyPatch) -> Training:
    training = Training()
    monkeypatch.setattr("diag.collectors.attach.events.nodes_made", lambda: training.made)
    return training


def test_a_batch_fetched_between_forward_and_backward(autograd: Training) -> None:
    """As llama2.c does, in every micro-batch: autograd's nodes say where the forward was."""
    autograd.fetch(1)  # the first batch, before the loop
    for _ in range(3):
        for ms in (4, 2):
            autograd.forward(ms)
            autograd.fetch(1)
            autograd.backward(3)
        autograd.optimize(1)
    first, later = [sorted(phases, key=lambda phase: phase[1:]) for phases in autograd.phases[:2]]
    assert [phase for phase in first if phase[2] > phase[1]] == [
        ("data", 0, 1), ("forward", 1, 5), ("data", 5, 6), ("backward", 6, 9), ("forward", 9, 11), ("data", 11, 12),
        ("backward", 12, 15), ("optimizer", 15, 16),
    ]  # fmt: skip
    assert [phase for phase in later if phase[2] > phase[1]] == [
        ("forward", 16, 20), ("data", 20, 21), ("backward", 21, 24), ("forward", 24, 26), ("data", 26, 27),
        ("backward", 27, 30), ("optimizer", 30, 31),
    ]  # fmt: skip


def test_sums_of_losses_before_a_batch_are_no_forward(autograd: Training) -> None:
    """``total += loss`` makes a node, as does a metric."""
    for _ in range(2):
        autograd.fetch(1)
        autograd.forward(2)
        autograd.backward(3)
        autograd.optimize(1)
        autograd.forward(4, nodes=2)
    autograd.fetch(0)
    autograd.forward(2)
    autograd.backward(0)
    autograd.optimize(0)
    assert autograd.phases[1] == [("data", 11, 12), ("forward", 12, 14), ("backward", 14, 17), ("optimizer", 17, 18)]


def test_what_ran_before_the_first_batch_is_no_forward(autograd: Training) -> None:
    """A process may have used autograd for anything before it trains."""
    autograd.forward(4, nodes=1000)
    autograd.fetch(1)
    autograd.forward(2)
    autograd.backward(3)
    autograd.optimize(1)
    assert autograd.phases[0] == [("data", 4, 5), ("forward", 5, 7), ("backward", 7, 10), ("optimizer", 10, 11)]


def test_an_evaluation_with_gradients_before_a_batch_is_no_forward(autograd: Training) -> None:
    for _ in range(2):
        autograd.fetch(1)
        autograd.forward(2)
        autograd.backward(3)
        autograd.optimize(1)
    autograd.timeline.eval_called()
    for _ in range(2):
        autograd.fetch(1, VALIDATION)
        autograd.forward(4, nodes=9)
    autograd.fetch(1)
    autograd.forward(2)
    autograd.backward(3)
    autograd.optimize(1)
    assert [phase for phase in autograd.phases[2] if phase[0] == "forward"] == [("forward", 25, 27)]


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


def dcgan(training: Training) -> None:
    """Two backwards of the discriminator, one of the generator."""
    training.fetch(1)
    training.backward(2)
    training.backward(2)
    training.optimize(1, ADAM)
    training.wait(1)
    training.backward(2)
    training.optimize(1, SGD)


def wgan(training: Training, critic_steps: int = 5) -> None:
    for _ in range(critic_steps):
        training.fetch(1)
        training.backward(2)
        training.optimize(1, ADAM)
    training.backward(2)
    training.optimize(1, SGD)


def micro_batches(training: Training) -> list[int]:
    return [step[2] for step in training.recorder.steps]


def test_two_optimizers_are_one_step() -> None:
    """Discriminator and generator: the first one ends the steps, until it is known that the other always follows."""
    training = Training()
    for _ in range(8):
        dcgan(training)
    assert micro_batches(training) == [2, 3, 3, 4, 3, 3, 3, 3]  # as many steps as iterations
    assert [name for name, *_ in training.phases[-1]] == [
        "data", "forward", "backward", "forward", "backward", "optimizer", "forward", "backward", "optimizer",
    ]  # fmt: skip


def test_a_step_is_one_of_the_generator_not_of_the_critic() -> None:
    training = Training()
    for _ in range(10):
        wgan(training)
    assert micro_batches(training)[-6:] == [6] * 6
    assert len(training.recorder.steps) == 16 + 1 + 6  # the critic's, until the generator has stepped three times


def test_a_generator_that_steps_first() -> None:
    training = Training()
    for _ in range(10):
        training.backward(1)
        training.optimize(1, SGD)
        for _ in range(4):
            training.backward(1)
            training.optimize(1, ADAM)
    assert micro_batches(training)[-5:] == [5] * 5


def test_the_number_of_critic_steps_changes() -> None:
    """As at the end of an epoch, or every 500th time: no step is much longer, and the others are as before."""
    training = Training()
    for number in range(60):
        wgan(training, critic_steps=100 if number == 30 else 3 if number % 10 == 9 else 5)
    counts = micro_batches(training)
    assert max(counts) <= 8
    assert counts.count(6) > 40
    assert counts[-5:] == [6, 6, 6, 6, 4]


def test_an_optimizer_that_stops_is_not_waited_for() -> None:
    training = Training()
    for _ in range(10):
        wgan(training)
    for _ in range(40):
        training.backward(1)
        training.optimize(1, ADAM)
    counts = micro_batches(training)
    assert max(counts) <= 7
    assert counts[-15:] == [1] * 15
    for _ in range(20):  # and one that replaces it, with a generator that follows
        training.backward(1)
        training.optimize(1, ENGINE)
        training.optimize(1, SGD)
    assert micro_batches(training)[-15:] == [1] * 15


def test_optimizers_of_all_layers() -> None:
    """After one backward, in any order."""
    for shuffled in (False, True):
        training, order = Training(), list(range(100, 130))
        for _ in range(20):
            training.fetch(1)
            training.backward(3)
            if shuffled:
                random.Random(training.recorder.now).shuffle(order)
            for layer in order:
                training.optimize(1, layer)
        # In an order that is another one each time, the first iterations are not told apart as well.
        assert len(training.recorder.steps) in ((18, 19, 20) if shuffled else (20,))
        assert set(micro_batches(training)[:-1]) <= ({1, 2, 3} if shuffled else {1, 2})
        if not shuffled:
            assert [end - begin for begin, end, *_ in training.recorder.steps[-10:]] == [34] * 10


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_steps_are_iterations_whatever_the_optimizers(data: st.DataObject) -> None:
    """Optimizers that step at regular intervals, each after a backward of its own or all after one."""
    intervals = data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 4, 5, 7, 10]), min_size=1, max_size=5))
    intervals.append(1)
    offsets = [data.draw(st.integers(0, interval - 1)) for interval in intervals]
    order = data.draw(st.permutations(range(len(intervals))))
    joint = data.draw(st.booleans())
    chance = random.Random(data.draw(st.integers()))
    any_order = set(intervals) == {1} and data.draw(st.booleans())
    training, longest = Training(), max(intervals)
    for number in range(30 * longest):
        due = [one for one in order if number % intervals[one] == offsets[one]]
        if any_order:
            chance.shuffle(due)
        for position, one in enumerate(due):
            if position == 0 or not joint:
                training.backward(1)
            training.optimize(1, 100 + one)
    assert abs(len(training.recorder.steps) - 30) <= 4 * longest + 3
    if not any_order:
        lengths = [end - begin for begin, end, *_ in training.recorder.steps[-10:]]
        assert sum(lengths) / 10 == pytest.approx(training.recorder.now / 30, rel=0.15)


@settings(max_examples=25, deadline=None)
@given(st.integers(), st.floats(0.01, 0.99))
def test_an_optimizer_that_steps_irregularly_holds_no_step_back(seed: int, share: float) -> None:
    training, chance = Training(), random.Random(seed)
    for _ in range(500):
        training.backward(1)
        training.optimize(0, ADAM)
        if chance.random() < share:
            training.backward(1)
            training.optimize(0, SGD)
    assert max(micro_batches(training)) <= 2 * 66
    assert len(training.recorder.steps) >= 500 * min(0.5, share)


def test_optimizers_that_step_once_each() -> None:
    """A new one for every client of a federated training."""
    training = Training()
    for client in range(1000):
        training.backward(1)
        training.optimize(1, 100 + client)
    assert max(micro_batches(training)) <= 65


def test_an_optimizer_whose_state_is_loaded_makes_no_step() -> None:
    """torch.distributed.checkpoint makes the state with a step, of gradients that are zero."""
    training = Training()
    training.optimize(5)
    training.timeline.gradients_cleared()
    for _ in range(3):
        training.train()
        for _ in range(3):  # of SGD, which has none
            training.optimize(2)
            training.timeline.gradients_cleared()
    assert [step[:3] for step in training.recorder.steps] == [(5, 14, 1), (14, 30, 1), (30, 46, 1)]


def test_a_compiled_optimizer_whose_state_was_loaded() -> None:
    training = Training()
    training.optimize(5)
    for _ in range(2):
        training.fetch(1)
        training.backward(2)
        training.timeline.gradients_cleared()
    assert len(training.recorder.steps) == 2


@pytest.mark.parametrize("batches", [True, False])
def test_gradients_that_come_from_no_backward(batches: bool) -> None:
    """torch.autograd.grad, torch.func, a compiled training step."""
    training = Training()
    for _ in range(40):
        if batches:
            training.fetch(1)
        training.wait(3)
        training.optimize(1)
    assert len(training.recorder.steps) == (38 if batches else 31)
    before = len(training.recorder.steps)
    for _ in range(10):  # until there is one
        training.train()
        training.optimize(1)
    assert len(training.recorder.steps) == before + 10
    for _ in range(40):
        training.wait(1)
        training.optimize(1)
    assert len(training.recorder.steps) >= before + 10 + 30


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


def test_an_evaluation_without_a_loader_lasts_until_the_module_trains_again() -> None:
    training = Training()
    training.train()
    training.timeline.eval_called()
    training.wait(15)
    training.timeline.train_called()
    training.train()
    assert training.phases[1] == [
        ("evaluation", 10, 25), ("data", 25, 26), ("forward", 26, 28), ("backward", 28, 31), ("optimizer", 31, 34),
    ]  # fmt: skip


@pytest.mark.parametrize("sign", ["gradients", "a batch", "a step"])
def test_a_module_in_evaluation_mode_that_trains_is_no_evaluation(autograd: Training, sign: str) -> None:
    """A generator whose samples need gradients, a batch of the training, an optimizer without a backward."""
    for _ in range(2):
        autograd.train()
    autograd.timeline.eval_called(autograd.made)
    if sign == "a batch":
        autograd.fetch(1)
    autograd.forward(4, nodes=9 * (sign == "gradients"))
    if sign == "a step":
        autograd.optimize(1)
    autograd.timeline.train_called(autograd.made)
    autograd.train()
    assert "evaluation" not in [name for phases in autograd.phases for name, *_ in phases]


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

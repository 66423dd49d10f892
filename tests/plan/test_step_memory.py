"""A step walked through: what lives how long, by numbers made by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from diag.plan.account import Account, Part
from diag.plan.decoder_ops import Kernels
from diag.plan.gathering import Sharded, Whole
from diag.plan.recipe import RECIPES
from diag.plan.shape import PRESETS, Shape
from diag.plan.step_memory import Step, modelled, operations, step_peak, unit_sizes, walk
from diag.states import Sharding

FP32 = RECIPES["fp32"]
SHAPE = Shape("s", 4, 64, 4, 4, 16, 192, 264)
STEP = Step(SHAPE, FP32, Sharding.PARAMETERS, 2, 2, 32, kernels=Kernels(fused_norms=False, foreach=False), gloo=True)


@dataclass(frozen=True)
class Case:
    name: str
    step: Step

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("ddp", replace(STEP, sharding=Sharding.NONE, shards=1)),
    Case("block", STEP),
    Case("root", replace(STEP, wrap="root")),
    Case("linear", replace(STEP, wrap="linear")),
    Case("two blocks", replace(STEP, wrap="2")),
    Case("kept", replace(STEP, kept=1.0)),
    Case("resharded to 2 of 4", replace(STEP, shards=4, kept=0.5)),
    Case("ahead", replace(STEP, ahead=2)),
    Case("recomputed", replace(STEP, recompute=True)),
    Case("micro-batches", replace(STEP, micro_batches=3)),
    Case("reduced each", replace(STEP, micro_batches=3, reduce_each=True)),
    Case("ddp, micro-batches", replace(STEP, sharding=Sharding.NONE, shards=1, micro_batches=2)),
    Case("alone", replace(STEP, shards=1)),
    Case("16 bits", replace(STEP, recipe=RECIPES["fsdp-mixed"], gloo=False, kernels=Kernels())),
    Case("tied", replace(STEP, shape=Shape("t", 2, 64, 4, 4, 16, 192, 264, tied=True))),
    Case("no gate, shared keys", replace(STEP, shape=Shape("g", 2, 64, 4, 2, 16, 192, 264, gated=False))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_after_a_step_only_what_stays_is_left(case: Case) -> None:
    account = Account()
    walk(case.step, account)
    assert account.live == {
        Part.PARAMETERS: -(-4 * case.step.shape.parameters // case.step.shards),
        Part.OPTIMIZER: -(-8 * case.step.shape.parameters // case.step.shards),
        **({Part.GRADIENTS: 4 * case.step.shape.parameters} if case.step.sharding == Sharding.NONE else {}),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_peak_is_the_sum_of_its_parts(case: Case) -> None:
    peak = step_peak(case.step)
    assert peak.bytes == sum(peak.parts.values())
    assert all(count >= 0 for count in peak.parts.values())
    assert peak.moment
    more = step_peak(replace(case.step, sequences=2 * case.step.sequences))
    assert more.bytes > peak.bytes


@pytest.mark.parametrize("wrap", ["block", "2", "root", "linear"])
def test_units_are_the_whole_model(wrap: str) -> None:
    sizes = unit_sizes(operations(replace(STEP, wrap=wrap)), wrap)
    assert sum(sizes.values()) == SHAPE.parameters
    assert len(sizes) == {"block": 5, "2": 3, "root": 1, "linear": 1 + 4 * 7}[wrap]


@pytest.mark.parametrize("name", PRESETS)
def test_operations_are_the_whole_model_but_for_experts(name: str) -> None:
    assert modelled(PRESETS[name]) == (PRESETS[name].experts == 1)


def test_settings_that_cost_memory() -> None:
    plain = step_peak(STEP).bytes
    large = replace(STEP, shape=replace(SHAPE, layers=12), sequences=1, length=8)
    assert step_peak(replace(STEP, recompute=True)).bytes < plain
    assert step_peak(replace(STEP, kept=1.0)).bytes > plain
    assert step_peak(replace(STEP, shards=8)).bytes < plain
    wraps = [step_peak(replace(large, wrap=wrap)).bytes for wrap in ("linear", "block", "3", "root")]
    assert wraps == sorted(wraps)
    # Accumulated gradients are whole.
    assert step_peak(replace(STEP, micro_batches=2)).bytes > plain


# -- units by hand -----------------------------------------------------------------------------------------------------


def sharded(account: Account, **other: object) -> Sharded:
    given = {"kept": 0.0, "ahead": 0, "gloo": False} | other
    return Sharded(account, FP32, 2, {0: 10, 1: 100, 2: 100}, **given)  # type: ignore[arg-type]


def test_three_units_at_most_in_forward() -> None:
    """science.md 4.1: the last flat one, the next flat one or the next one's parameters, beside the root's."""
    account = Account()
    units = sharded(account)
    units.begin_forward()
    assert account.live == {Part.GATHERED: 40, Part.BUFFERS: 40}
    units.enter(1)
    units.leave(1)
    assert account.live == {Part.GATHERED: 40, Part.BUFFERS: 400}
    units.enter(2)
    assert account.peak.bytes == 40 + 400 + 400
    units.leave(2)
    units.end_forward()
    assert account.live == {Part.GATHERED: 40}


def test_gloo_gathers_into_a_copy() -> None:
    plain, gloo = Account(), Account()
    for account, is_gloo in ((plain, False), (gloo, True)):
        units = sharded(account, gloo=is_gloo)
        units.begin_forward()
        units.enter(1)
    assert plain.peak.bytes == 40 + 400 + 400
    assert gloo.peak.bytes == 40 + 40 + 400 + 400


def test_backward_gathers_one_ahead_and_reduces_behind() -> None:
    account = Account()
    units = sharded(account)
    units.begin_forward()
    for unit in (1, 2):
        units.enter(unit)
        units.leave(unit)
    units.end_forward()
    units.begin_backward()
    units.enter_backward(2)
    assert account.live == {Part.GATHERED: 440, Part.BUFFERS: 400}  # the first is on its way
    units.gradient(2, 100, True)
    units.leave_backward(2, True)
    # The flat first, the reduction's input; of the gradients this rank's half.
    assert account.live == {Part.GATHERED: 40, Part.BUFFERS: 800, Part.GRADIENTS: 200}
    units.enter_backward(1)
    units.gradient(1, 100, True)
    units.leave_backward(1, True)
    units.gradient(0, 10, True)
    units.end_backward(True)
    assert account.live == {Part.GRADIENTS: 420}


def test_gradients_of_a_micro_batch_that_is_not_reduced_are_whole() -> None:
    account = Account()
    units = sharded(account)
    for reduce in (False, True):
        units.begin_forward()
        units.end_forward()
        units.begin_backward()
        for unit in (2, 1):
            units.enter_backward(unit)
            units.gradient(unit, 100, reduce)
            units.leave_backward(unit, reduce)
        if not reduce:
            assert account.live == {Part.GATHERED: 40, Part.BUFFERS: 800}
        units.end_backward(reduce)
    assert account.live == {Part.GRADIENTS: 400}


def test_ddp_copies_each_gradient_into_its_bucket() -> None:
    account = Account()
    buckets = Whole(account, FP32, 1000)
    buckets.gradient(0, 50, True)
    assert (account.live, account.peak.bytes) == ({Part.GRADIENTS: 1000}, 1200)
    buckets.gradient(0, 50, False)
    assert account.live == {Part.GRADIENTS: 1000, Part.BUFFERS: 200}
    buckets.gradient(0, 50, True)
    assert account.live == {Part.GRADIENTS: 1000}


def test_a_large_model_on_gpus() -> None:
    """llama-3-8b computed in bf16 on 8 GPUs: the states are 16 bytes a parameter over 8, all else is activations."""
    step = Step(PRESETS["llama-3-8b"], RECIPES["fsdp-mixed"], Sharding.PARAMETERS, 8, 4, 4096, recompute=True)
    peak = step_peak(step)
    shape = step.shape
    assert peak.parts[Part.PARAMETERS] + peak.parts[Part.OPTIMIZER] == 12 * shape.parameters // 8
    # The entries of all blocks, the logits in 16 bits, their softmax and two gradients in fp32.
    assert peak.parts[Part.ACTIVATIONS] >= shape.layers * step.tokens * shape.hidden * 2
    assert peak.parts[Part.LOGITS] + peak.parts[Part.PASSING] >= step.tokens * shape.vocab * (2 + 4 + 4 + 4)

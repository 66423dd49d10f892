"""A step walked through: what lives how long, by numbers made by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from diag.model.states import Sharding
from diag.planning.gathering import Account, Flat, FlatUnits, MemoryUse, Sharded, Whole
from diag.planning.shape import PRESETS, RECIPES, Shape
from diag.planning.step_memory import (
    LINEAR_AND_HEAD,
    Kernels,
    Step,
    modelled,
    operations,
    states_of,
    step_peak,
    unit_sizes,
    walk,
)

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
    Case("ddp, copies", replace(STEP, sharding=Sharding.NONE, shards=1, micro_batches=3, bucket_views=False)),
    Case("zero 1", replace(STEP, sharding=Sharding.OPTIMIZER)),
    Case("logits dropped", replace(STEP, keeps_logits=False)),
    *(
        Case(f"flat, {name}", replace(STEP, **{"flat": FlatUnits(), **fields}))  # type: ignore[arg-type]
        for name, fields in {
            "block": {},
            "root": {"wrap": "root"},
            "linear": {"wrap": LINEAR_AND_HEAD, "flat": FlatUnits(forward_prefetch=True)},
            "kept": {"flat": FlatUnits(keeps=True), "micro_batches": 2},
            "ahead": {"flat": FlatUnits(forward_prefetch=True, backward_prefetch="post")},
            "not padded": {"flat": FlatUnits(backward_prefetch="none", padded=False)},
            "not sharded": {"sharding": Sharding.NONE, "shards": 1},
            "not sharded, 16 bits": {"sharding": Sharding.NONE, "shards": 1, "recipe": RECIPES["fsdp-mixed"]},
            "micro-batches": {"micro_batches": 3},
            "reduced each": {"micro_batches": 3, "reduce_each": True},
            "recomputed": {"recompute": True},
            "16 bits": {"recipe": RECIPES["fsdp-mixed"]},
        }.items()
    ),
    Case("16 bits", replace(STEP, recipe=RECIPES["fsdp-mixed"], gloo=False, kernels=Kernels())),
    Case("autocast", replace(STEP, sharding=Sharding.NONE, shards=1, recipe=RECIPES["fsdp-mixed"])),
    Case(
        "autocast, recomputed",
        replace(STEP, sharding=Sharding.NONE, shards=1, recipe=RECIPES["fsdp-mixed"], recompute=True, micro_batches=2),
    ),
    Case("tied", replace(STEP, shape=Shape("t", 2, 64, 4, 4, 16, 192, 264, tied=True))),
    Case("no gate, shared keys", replace(STEP, shape=Shape("g", 2, 64, 4, 2, 16, 192, 264, gated=False))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_after_a_step_only_what_stays_is_left(case: Case) -> None:
    account, step = Account(), case.step
    walk(step, account)
    states = states_of(step)
    assert account.live == {
        MemoryUse.PARAMETERS: states.parameters,
        MemoryUse.OPTIMIZER: states.optimizer,
        **({MemoryUse.GRADIENTS: 4 * step.shape.parameters} if step.in_buckets else {}),
    }
    cut = step.shards if step.sharding == Sharding.PARAMETERS else 1
    assert states.parameters == 4 * step.shape.parameters // cut
    assert states.optimizer == pytest.approx(8 * step.shape.parameters / step.shards, rel=0.01)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_peak_is_the_sum_of_its_parts(case: Case) -> None:
    peak = step_peak(case.step)
    assert peak.bytes == sum(peak.parts.values())
    assert all(count >= 0 for count in peak.parts.values())
    assert peak.moment
    more = step_peak(replace(case.step, sequences=2 * case.step.sequences))
    assert more.bytes > peak.bytes


@pytest.mark.parametrize("wrap", ["block", "2", "root", "linear", LINEAR_AND_HEAD])
def test_units_are_the_whole_model(wrap: str) -> None:
    sizes = unit_sizes(operations(replace(STEP, wrap=wrap)), wrap)
    assert sum(sizes.values()) == SHAPE.parameters
    assert len(sizes) == {"block": 5, "2": 3, "root": 1, "linear": 1 + 4 * 7, LINEAR_AND_HEAD: 2 + 4 * 7}[wrap]


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
    assert step_peak(replace(STEP, keeps_logits=False)).bytes < plain
    flat = replace(STEP, flat=FlatUnits())
    assert step_peak(replace(flat, flat=FlatUnits(keeps=True))).bytes > step_peak(flat).bytes
    # Accumulated gradients are whole.
    assert step_peak(replace(STEP, micro_batches=2)).bytes > plain


def test_autocast_costs_the_copies_of_weights_and_inputs() -> None:
    """Against parameters that are in 16 bits themselves."""
    wide = replace(SHAPE, vocab=8192)  # so the peak is in the loss
    cast = replace(STEP, shape=wide, sharding=Sharding.NONE, shards=1, recipe=RECIPES["fsdp-mixed"], kernels=Kernels())
    assert cast.types.autocast
    assert not replace(cast, flat=FlatUnits()).types.autocast
    assert not replace(cast, sharding=Sharding.PARAMETERS).types.autocast
    assert not replace(cast, recipe=RECIPES["mixed"]).types.autocast
    apart = step_peak(cast).parts["activations"]
    together = step_peak(replace(cast, recipe=RECIPES["mixed"])).parts["activations"]
    # A block: two norms' inputs in fp32, and the inputs of keys, values and up once more; the last norm's in fp32.
    block = SHAPE.hidden * (2 * 2 + 3 * 2)
    more = SHAPE.layers * block + SHAPE.hidden * 2
    assert apart - together == cast.tokens * more + 2 * wide.multiplied
    assert step_peak(replace(cast, kernels=Kernels(workspaces=1000))).bytes == step_peak(cast).bytes + 1000


# -- units by hand -----------------------------------------------------------------------------------------------------


def sharded(account: Account, **other: object) -> Sharded:
    given = {"kept": 0.0, "ahead": 0, "gloo": False} | other
    return Sharded(account, FP32, 2, {0: 10, 1: 100, 2: 100}, **given)  # type: ignore[arg-type]


def test_three_units_at_most_in_forward() -> None:
    """The last flat one, the next flat one or the next one's parameters, beside the root's."""
    account = Account()
    units = sharded(account)
    units.begin_forward()
    assert account.live == {MemoryUse.GATHERED: 40, MemoryUse.BUFFERS: 40}
    units.enter(1)
    units.leave(1)
    assert account.live == {MemoryUse.GATHERED: 40, MemoryUse.BUFFERS: 400}
    units.enter(2)
    assert account.peak.bytes == 40 + 400 + 400
    units.leave(2)
    units.end_forward()
    assert account.live == {MemoryUse.GATHERED: 40}


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
    assert account.live == {MemoryUse.GATHERED: 440, MemoryUse.BUFFERS: 400}  # the first is on its way
    units.gradient(2, 100, True)
    units.leave_backward(2, True)
    # The flat first, the reduction's input; of the gradients this rank's half.
    assert account.live == {MemoryUse.GATHERED: 40, MemoryUse.BUFFERS: 800, MemoryUse.GRADIENTS: 200}
    units.enter_backward(1)
    units.gradient(1, 100, True)
    units.leave_backward(1, True)
    units.gradient(0, 10, True)
    units.end_backward(True)
    assert account.live == {MemoryUse.GRADIENTS: 420}


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
            assert account.live == {MemoryUse.GATHERED: 40, MemoryUse.BUFFERS: 800}
        units.end_backward(reduce)
    assert account.live == {MemoryUse.GRADIENTS: 400}


def test_ddp_copies_each_gradient_into_its_bucket() -> None:
    account = Account()
    buckets = Whole(account, FP32, 1000)
    buckets.gradient(0, 50, True)
    assert (account.live, account.peak.bytes) == ({MemoryUse.GRADIENTS: 1000}, 1200)
    buckets.gradient(0, 50, False)
    assert account.live == {MemoryUse.GRADIENTS: 1000, MemoryUse.BUFFERS: 200}
    buckets.gradient(0, 50, True)
    assert account.live == {MemoryUse.GRADIENTS: 1000}


def test_gradients_beside_their_buckets_stay_until_the_optimizer_is_done() -> None:
    account = Account()
    buckets = Whole(account, FP32, 400, views=False)
    for _ in range(2):
        buckets.gradient(0, 100, True)
    assert (account.live, account.peak.bytes) == ({MemoryUse.GRADIENTS: 400, MemoryUse.BUFFERS: 400}, 1200)
    buckets.clear()
    assert account.live == {MemoryUse.GRADIENTS: 400}


def test_parameters_are_dealt_out_whole() -> None:
    """Table and head of 64 x 1,000 each, which are more than a third of all."""
    shape = replace(SHAPE, layers=1, vocab=1_000)
    step = replace(STEP, shape=shape, sharding=Sharding.OPTIMIZER, shards=3)
    assert shape.parameters < 3 * 64_000
    assert states_of(step).optimizer == 8 * 64_000
    assert states_of(replace(step, shards=1)).optimizer == 8 * shape.parameters


# -- flat units by hand ------------------------------------------------------------------------------------------------


def flat(account: Account, shards: int = 2, gloo: bool = False, **how: object) -> Flat:
    return Flat(account, FP32, shards, {0: 10, 1: 100, 2: 100}, FlatUnits(**how), gloo=gloo)  # type: ignore[arg-type]


def forward(units: Flat) -> None:
    units.begin_forward()
    for unit in (1, 2):
        units.enter(unit)
        units.leave(unit)
    units.end_forward()


@pytest.mark.parametrize(
    ("how", "most", "left"),
    [
        ({}, 40 + 400, 40),
        ({"forward_prefetch": True}, 40 + 400 + 400, 40),
        ({"keeps": True}, 40 + 400 + 400, 840),
        ({"gloo": True}, 40 + 400 + 400, 40),
        ({"shards": 1}, 0, 0),
    ],
)
def test_a_flat_unit_is_gathered_where_it_is_used(how: dict[str, object], most: int, left: int) -> None:
    account = Account()
    forward(flat(account, **how))  # type: ignore[arg-type]
    assert (account.peak.bytes, sum(account.live.values())) == (most, left)


@pytest.mark.parametrize(("prefetch", "beside", "after"), [("pre", 400, 400), ("post", 0, 400), ("none", 0, 0)])
def test_gradients_are_joined_before_they_are_reduced(prefetch: str, beside: int, after: int) -> None:
    account = Account()
    units = flat(account, backward_prefetch=prefetch)
    forward(units)
    units.begin_backward()
    units.enter_backward(2)
    for part in (60, 40):
        units.gradient(2, part, True)
    assert account.live == {MemoryUse.GATHERED: 40 + 400 + beside, MemoryUse.BUFFERS: 400}
    units.leave_backward(2, True)
    assert account.peak.bytes == 40 + 400 + beside + 800  # both the single ones and the flat one
    assert account.live == {MemoryUse.GATHERED: 40 + after, MemoryUse.GRADIENTS: 200}
    units.enter_backward(1)
    units.gradient(1, 100, True)
    units.leave_backward(1, True)
    units.gradient(0, 10, True)
    units.end_backward(True)
    assert account.live == {MemoryUse.GRADIENTS: 420}
    units.clear()
    assert account.live == {}


def test_a_unit_gathered_ahead_is_reduced_after_the_backward_of_the_one_before() -> None:
    account = Account()
    units = flat(account, forward_prefetch=True)
    forward(units)
    units.begin_backward()
    for unit, reduced in ((2, 0), (1, 200)):
        units.enter_backward(unit)
        units.gradient(unit, 100, True)
        units.leave_backward(unit, True)
        assert account.live.get(MemoryUse.GRADIENTS, 0) == reduced
    units.gradient(0, 10, True)
    units.end_backward(True)
    assert account.live == {MemoryUse.GRADIENTS: 420}


def test_a_flat_gradient_without_padding_is_copied_to_be_reduced() -> None:
    """Of 100 elements over 3 ranks; of gloo the reduction works on a copy, too."""
    peaks = {}
    for padded in (True, False):
        account = Account()
        units = flat(account, shards=3, gloo=True, padded=padded, backward_prefetch="none")
        units.begin_forward()
        units.gradient(1, 100, True)
        units.leave_backward(1, True)
        peaks[padded] = account.peak.bytes
        assert account.live == {MemoryUse.GATHERED: 48, MemoryUse.GRADIENTS: 136}  # of the root 4 x 3, a third of 102
    reducing = 48 + 400 + 136 + 408
    assert peaks == {True: reducing, False: reducing + 408}


def test_unsharded_flat_gradients_stay_where_they_are() -> None:
    account = Account()
    units = flat(account, shards=1)
    for reduce in (False, True):
        forward(units)
        for unit in (2, 1):
            units.gradient(unit, 100, reduce)
            units.leave_backward(unit, reduce)
        units.end_backward(reduce)
        assert account.live == {MemoryUse.GRADIENTS if reduce else MemoryUse.BUFFERS: 800}
    assert account.peak.bytes == 800 + 800  # the second micro-batch's, single and joined


def test_a_large_model_on_gpus() -> None:
    """llama-3-8b computed in bf16 on 8 GPUs: the states are 16 bytes a parameter over 8, all else is activations."""
    step = Step(PRESETS["llama-3-8b"], RECIPES["fsdp-mixed"], Sharding.PARAMETERS, 8, 4, 4096, recompute=True)
    peak = step_peak(step)
    shape = step.shape
    assert peak.parts[MemoryUse.PARAMETERS] + peak.parts[MemoryUse.OPTIMIZER] == 12 * shape.parameters // 8
    # The entries of all blocks, the logits in 16 bits, their softmax and two gradients in fp32.
    assert peak.parts[MemoryUse.ACTIVATIONS] >= shape.layers * step.tokens * shape.hidden * 2
    assert peak.parts[MemoryUse.LOGITS] + peak.parts[MemoryUse.PASSING] >= step.tokens * shape.vocab * (2 + 4 + 4 + 4)

"""What some steps of a run gain is moved to the whole run, whichever steps these are."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest
from msgspec.structs import replace

from diag.api import analyze
from diag.collectors.records import BACKWARD
from diag.model.accounts import Attribution
from diag.replay.mutations import without_straggler
from diag.replay.policy import REPLAY
from diag.replay.predict import Baseline, Prediction, baseline, gain
from diag.replay.sample import Sample, chosen
from tests.simulate import MS, Plan, simulate

STEPS = 320
LATE_NS = 60 * MS
Slow = Callable[[int], bool]


def _plan(slow: Slow) -> Plan:
    return Plan(steps=STEPS, units=2, jitter=0.05, extra=lambda step, r: {BACKWARD: LATE_NS * (r == 1 and slow(step))})


def _with_detail(attribution: Attribution, detailed: Collection[int]) -> Attribution:
    kept = tuple(step for step in attribution.rank_steps if step.step in detailed)
    return replace(attribution, detailed=frozenset(detailed), rank_steps=kept)


def _predicted(slow: Slow, detailed: Collection[int] = range(STEPS)) -> tuple[Baseline, Prediction, float]:
    """The gain without the straggler, and what it costs: how often it is late."""
    tables = simulate(_plan(slow))
    attribution = analyze(tables).attribution
    base = baseline(_with_detail(attribution, detailed), tables)
    assert isinstance(base, Baseline), base
    truth = LATE_NS * float(np.mean([slow(step) for step in attribution.usable.step.tolist()]))
    assert base.step_ns == pytest.approx(attribution.usable.dur_ns.mean(), rel=0.01)
    return base, gain(base, without_straggler([1])), truth


def _steps(base: Baseline) -> list[int]:
    return [step for stretch in base.program.stretches for step in stretch.steps]


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(lambda step: step < STEPS // 5, id="first fifth"),
        pytest.param(lambda step: step >= 0.7 * STEPS, id="last third"),
        pytest.param(lambda step: step % 10 == 0, id="every tenth step"),
        pytest.param(lambda step: 100 <= step < 116, id="once for 16 steps"),
    ],
)
def test_a_part_of_a_run_tells_the_gain_of_all_of_it(slow: Slow) -> None:
    base, found, truth = _predicted(slow)
    assert len(_steps(base)) == REPLAY.most_replayed_steps
    low, likely, high = found.gain_ns_per_step
    assert abs(likely - truth) < 0.01 * found.step_ns
    assert low < truth < high


@pytest.mark.parametrize("of_detail", [0.1, 0.5, 0.9])
def test_steps_that_are_kept_in_detail_need_not_be_like_the_others(of_detail: float) -> None:
    """A rank is late in a quarter of the run, and in this fraction of the steps that can be replayed."""
    slow, fast = range(200, 200 + round(40 * of_detail)), range(40 - round(40 * of_detail))
    base, found, truth = _predicted(lambda step: 200 <= step < 280, {*slow, *fast})
    assert set(_steps(base)) <= {*slow, *fast}
    low, likely, high = found.gain_ns_per_step
    assert abs(likely - truth) < 0.02 * found.step_ns
    assert low < truth < high


def test_steps_that_are_like_no_replayed_one_widen_the_interval() -> None:
    """A rank is late in a tenth of the steps, none of which is kept in detail: nobody knows what these would gain."""
    _, found, truth = _predicted(lambda step: step >= 0.9 * STEPS, range(40, 80))
    low, likely, high = found.gain_ns_per_step
    assert likely < 0.02 * found.step_ns
    assert low < truth < high < 1.3 * truth
    _, usual, _ = _predicted(lambda step: False, range(40, 80))
    assert usual.gain_ns_per_step[2] < 0.1 * truth


def test_stretches_are_chosen_by_their_durations() -> None:
    attribution = analyze(simulate(_plan(lambda step: step % 80 < 16))).attribution
    known = [step for step in range(STEPS) if step % 40 >= 8]
    steps = chosen(attribution.usable, known, 2)
    assert len(steps) == REPLAY.most_replayed_steps
    assert set(steps.step.tolist()) <= set(known)
    lengths = np.diff(np.flatnonzero(np.diff(steps.step, prepend=-9, append=9999) != 1))
    assert (lengths % REPLAY.steps_of_stretch == 0).all()
    frequent = np.isin(attribution.usable.step, known) & (attribution.usable.step % 80 < 16)
    share = frequent.sum() / np.isin(attribution.usable.step, known).sum()
    assert np.mean(steps.step % 80 < 16) == pytest.approx(share, abs=0.07)
    assert len(chosen(attribution.usable, known, REPLAY.most_replayed_rank_steps // 5)) == 5
    assert chosen(attribution.usable, known[:30], 2).step.tolist() == [step for step in known[:30] if step > 1]


def test_a_sample_of_all_steps_is_what_it_is() -> None:
    dur_ns = np.array([10.0, 30.0, 20.0])
    gains = np.array([1.0, 7.0, 2.0])
    found = Sample(dur_ns, dur_ns).whole(gains)
    assert (found.mean, found.fewer, found.more) == (pytest.approx(10 / 3), 0.0, 0.0)
    alike = Sample(np.array([10.0, 10.0]), np.array([10.0, 10.0, 16.0, 4.0])).whole(np.array([2, 2]))
    assert (alike.mean, alike.half, alike.fewer, alike.more) == (2.0, 0.0, 1.5, 1.5)

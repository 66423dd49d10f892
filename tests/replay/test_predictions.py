"""Replays against simulated runs: unchanged they must give the same times, changed those of a run so changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from diag.api import analyze
from diag.collectors.records import BACKWARD, FORWARD
from diag.replay.mutations import Mutation, hybrid_shard, in_turn, more_bandwidth, more_workers, without_straggler
from diag.replay.predict import Baseline, Prediction, baseline, gain, predict
from diag.replay.program import Mutated, Refusal
from diag.replay.sharding_mutations import keep_gathered, merge_units, prefetch, split_root, sync_last_micro_batch
from tests.copies import replace
from tests.simulate import MS, Plan, simulate

some = settings(
    max_examples=10, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)


def replayed(plan: Plan) -> Baseline:
    tables = simulate(plan)
    found = baseline(analyze(tables).attribution, tables)
    assert isinstance(found, Baseline), found
    return found


def true_gain(before: Plan, after: Plan) -> float:
    """By how much shorter the steps of the second run really are."""
    return replayed(before).step_ns - replayed(after).step_ns


def predicted(plan: Plan, mutation: Mutation) -> Prediction:
    found = gain(replayed(plan), mutation)
    assert found.refused is None, found.refused
    return found


def close(found: Prediction, truth: float, share: float = 0.03) -> None:
    """The likely gain is right within a part of the step, and the interval holds the truth."""
    low, likely, high = found.gain_ns_per_step
    assert abs(likely - truth) <= share * found.step_ns, (found.gain_ns_per_step, truth)
    slack = 0.01 * found.step_ns  # two simulated runs draw different jitter
    assert low - slack <= truth <= high + slack, (found.gain_ns_per_step, truth)


def test_a_measurement_is_expected_in_a_wider_interval_than_the_costs_give() -> None:
    found = Prediction((80 * MS, 100 * MS, 110 * MS), 1000 * MS, 0.0)
    beyond = 50.99 * MS  # 5 % of the step and 10 % of the gain, in quadrature
    assert found.expected_ns_per_step == pytest.approx((80 * MS - beyond, 100 * MS, 110 * MS + beyond), abs=0.01 * MS)
    assert Prediction((0, 0, 0), 1000 * MS, 0.0).expected_ns_per_step == (0, 0, 0)


@some
@given(
    ranks=st.integers(2, 5),
    units=st.integers(1, 5),
    late=st.integers(0, 80),
    transfer=st.integers(1, 20),
    seed=st.integers(0, 1000),
    regather=st.booleans(),
)
def test_simulated_runs_are_replayed_as_they_were(
    ranks: int, units: int, late: int, transfer: int, seed: int, regather: bool
) -> None:
    plan = Plan(
        ranks=ranks, units=units, transfer_ns=transfer * MS, seed=seed, regather=regather, jitter=0.2,
        extra=lambda step, rank: {FORWARD if step % 2 else BACKWARD: late * MS} if rank == step % ranks else {},
    )  # fmt: skip
    found = replayed(plan)
    assert found.error < 1e-3
    assert gain(found, lambda program, costs, level: Mutated(program)).gain_ns_per_step == (0, 0, 0)


@some
@given(factor=st.floats(1.0, 16.0), transfer=st.integers(1, 20), seed=st.integers(0, 100))
def test_more_bandwidth_never_takes_longer(factor: float, transfer: int, seed: int) -> None:
    plan = Plan(ranks=3, transfer_ns=MS, ns_a_byte=transfer * MS / 4e6, seed=seed)
    assert min(predicted(plan, more_bandwidth(factor)).gain_ns_per_step[1:]) >= 0


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
@pytest.mark.parametrize("ranks", [3, 4])
def test_a_straggler_that_is_as_fast_as_the_others(phase: str, ranks: int) -> None:
    healthy = Plan(ranks=ranks)
    slow = replace(healthy, extra=lambda step, rank: {phase: 60 * MS} if rank == 1 else {})
    close(predicted(slow, without_straggler([1])), true_gain(slow, healthy))


def test_removing_a_rank_that_is_not_slow_gains_next_to_nothing() -> None:
    found = predicted(Plan(ranks=4), without_straggler([2]))
    assert abs(found.gain_ns_per_step[1]) < 0.02 * found.step_ns


def test_a_network_twice_as_fast() -> None:
    """Latency is known from the small reductions."""
    slow = Plan(units=4, transfer_ns=MS // 10, ns_a_byte=20 * MS / 4e6)
    close(predicted(slow, more_bandwidth(2)), true_gain(slow, replace(slow, ns_a_byte=10 * MS / 4e6)), share=0.05)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_more_loader_processes(workers: int) -> None:
    """One process needs the whole time between two batches for one."""
    slow = Plan(data_ns=160 * MS)
    other = replayed(Plan(data_ns=0)).step_ns
    load = 160 * MS + other
    close(predicted(slow, more_workers(1, workers)), 160 * MS - max(0, load / workers - other), share=0.05)


def test_parameters_kept_between_forward_and_backward() -> None:
    gathered_twice = Plan(units=4, transfer_ns=8 * MS, regather=True)
    close(predicted(gathered_twice, keep_gathered), true_gain(gathered_twice, replace(gathered_twice, regather=False)))
    nothing = gain(replayed(replace(gathered_twice, regather=False)), keep_gathered)
    assert nothing.refused or nothing.gain_ns_per_step[1] == 0


def test_the_whole_model_as_one_unit_against_blocks() -> None:
    """Unhidden communication of the same bytes: pieces cost their latencies, and each is gathered twice."""
    root = Plan(units=1, unit_ns=60 * MS, unit_bytes=24_000_000, transfer_ns=2 * MS, ns_a_byte=100 * MS / 24e6)
    blocks = replace(root, units=6, unit_ns=10 * MS, unit_bytes=4_000_000, regather=True)
    found = predicted(root, split_root(6))
    truth = true_gain(root, blocks)
    assert truth < 0  # what is gathered twice without overlap takes longer
    assert abs(found.gain_ns_per_step[1] - truth) <= 0.12 * found.step_ns


def test_splitting_pays_once_the_units_are_prefetched() -> None:
    root = Plan(units=1, unit_ns=60 * MS, unit_bytes=24_000_000, transfer_ns=MS // 2, ns_a_byte=60 * MS / 24e6)
    together = predicted(root, in_turn(split_root(6), prefetch(1)))
    assert together.gain_ns_per_step[1] > 0
    assert together.gain_ns_per_step[1] > predicted(root, split_root(6)).gain_ns_per_step[1] + 0.1 * together.step_ns


def test_small_units_merged() -> None:
    """Seven units of a root and six others, whose latency outweighs their bytes."""
    fine = Plan(units=7, unit_ns=4 * MS, transfer_ns=8 * MS, ns_a_byte=MS / 4e6)
    found = predicted(fine, merge_units(2))
    # Three latencies of the forward and three of the backward are gone; the bytes stay.
    assert abs(found.gain_ns_per_step[1] - 6 * 8 * MS) <= 0.05 * found.step_ns


def test_what_cannot_be_changed_is_refused() -> None:
    one, several = replayed(Plan(units=1)), replayed(Plan(units=3))
    assert gain(one, merge_units(2)).refused
    assert gain(several, split_root(4)).refused
    assert gain(several, hybrid_shard(2)).refused  # two ranks are one shard
    assert gain(several, without_straggler([0, 1])).refused
    assert gain(several, more_workers(4, 2)).refused


def test_without_a_common_clock_there_is_no_program() -> None:
    tables = simulate(Plan())
    attribution = replace(analyze(tables).attribution, aligned=False)
    assert isinstance(baseline(attribution, tables), Refusal)
    assert predict(attribution, tables, more_bandwidth(2)).refused


@some
@given(seed=st.integers(0, 1000), late=st.integers(10, 80))
def test_the_ranks_numbers_change_no_prediction(seed: int, late: int) -> None:
    def on(rank: int) -> Plan:
        return Plan(ranks=3, jitter=0, seed=seed, extra=lambda step, r: {FORWARD: late * MS} if r == rank else {})

    gains = [predicted(on(rank), without_straggler([rank])).gain_ns_per_step for rank in range(3)]
    assert np.ptp([likely for _, likely, _ in gains]) <= 1000


def test_one_micro_batch_has_nothing_to_hold_back() -> None:
    assert gain(replayed(Plan()), sync_last_micro_batch).refused

"""Each change is predicted from one simulation and compared with a second one in which it was really made."""

from __future__ import annotations

import numpy as np
import pytest

from diag.account.critical_path import label_of
from diag.model.steps import Detail, Kind
from diag.replay.costs import Costs, Level
from diag.replay.mutations import (
    Mutation,
    faster_links,
    hybrid_shard,
    in_turn,
    more_bandwidth,
    more_workers,
    on_ranks,
    reduce_in,
    without_straggler,
)
from diag.replay.predict import gain
from diag.replay.program import Mutated, Program, Refusal, Role, over_lines, replay, with_collectives
from diag.replay.sharding_mutations import keep_gathered, merge_units, prefetch, split_root, sync_last_micro_batch
from tests.copies import replace
from tests.replay.fsdp import MS, Fsdp, simulate
from tests.replay.test_replay import base_of

BLOCKS = ((200_000, 0), *(((4_000_000, 12 * MS),) * 8))
LINEARS = ((200_000, 0), *(((1_000_000, 3 * MS),) * 32))
ROOT = ((32_200_000, 96 * MS),)
SLOW_WIRE = Fsdp(units=BLOCKS, ns_per_byte=6.0)


def slow_rank(step: int, rank: int) -> int:
    return 50 * MS * (rank == 1)


def slow_host(step: int, rank: int) -> int:
    return 50 * MS * (rank in {1, 2})


def half(step: int, rank: int) -> int:
    return slow_rank(step, rank) // 2


def now_and_then(step: int, rank: int) -> int:
    return 150 * MS * (rank == 1 and step % 3 == 0)


CASES: dict[str, tuple[Fsdp, Mutation, Fsdp]] = {
    "straggler removed": (Fsdp(slow=slow_rank), without_straggler([1]), Fsdp(seed=1)),
    "half of a straggler removed": (Fsdp(slow=slow_rank), without_straggler([1], part=0.5), Fsdp(slow=half, seed=1)),
    "straggler of some steps removed": (Fsdp(slow=now_and_then), without_straggler([1]), Fsdp(seed=1)),
    "straggler of four removed": (
        Fsdp(ranks=4, slow=slow_rank, jitter=0.1),
        without_straggler([1]),
        Fsdp(ranks=4, jitter=0.1, seed=1),
    ),
    "two stragglers removed": (Fsdp(ranks=4, slow=slow_host), without_straggler([1, 2]), Fsdp(ranks=4, seed=1)),
    "one of two stragglers removed": (
        Fsdp(ranks=4, slow=slow_host),
        without_straggler([1]),
        Fsdp(ranks=4, slow=slow_host, seed=1),
    ),
    "wire twice as fast": (SLOW_WIRE, more_bandwidth(2), replace(SLOW_WIRE, ns_per_byte=3.0)),
    "wire twice as fast under prefetch": (
        replace(SLOW_WIRE, prefetch=2),
        more_bandwidth(2),
        replace(SLOW_WIRE, prefetch=2, ns_per_byte=3.0),
    ),
    "twice the ranks": (
        SLOW_WIRE,
        on_ranks(4),  # half of a tensor came from another rank, now three quarters do
        replace(SLOW_WIRE, ranks=4, ns_per_byte=1.5 * SLOW_WIRE.ns_per_byte, latency_ns=round(6**0.5 * 3 * MS)),
    ),
    "prefetch 1": (SLOW_WIRE, prefetch(1), replace(SLOW_WIRE, prefetch=1)),
    "prefetch 2": (SLOW_WIRE, prefetch(2), replace(SLOW_WIRE, prefetch=2)),
    "prefetch 1 to 2": (replace(SLOW_WIRE, prefetch=1), prefetch(2), replace(SLOW_WIRE, prefetch=2)),
    "kept gathered": (SLOW_WIRE, keep_gathered, replace(SLOW_WIRE, keep_gathered=True)),
    "kept gathered under prefetch": (
        replace(SLOW_WIRE, prefetch=1),
        keep_gathered,
        replace(SLOW_WIRE, prefetch=1, keep_gathered=True),
    ),
    "gradients reduced once": (
        Fsdp(micro_batches=3, sync_every=True),
        sync_last_micro_batch,
        Fsdp(micro_batches=3),
    ),
    "linears to blocks": (Fsdp(units=LINEARS), merge_units(4), Fsdp(units=BLOCKS)),
    "linears to blocks under prefetch": (
        Fsdp(units=LINEARS, prefetch=1),
        merge_units(4),
        Fsdp(units=BLOCKS, prefetch=1),
    ),
    "root to blocks": (Fsdp(units=ROOT), split_root(8, 200_000 / 32_200_000), Fsdp(units=BLOCKS)),
    "root to blocks with prefetch": (
        Fsdp(units=ROOT),
        in_turn(split_root(8, 200_000 / 32_200_000), prefetch(1)),
        Fsdp(units=BLOCKS, prefetch=1),
    ),
    "root to blocks, gradients reduced once": (
        Fsdp(units=ROOT, micro_batches=2),
        split_root(8, 200_000 / 32_200_000),
        Fsdp(units=BLOCKS, micro_batches=2),
    ),
    "loader in its own process": (
        Fsdp(workers=0, batch_ns=100 * MS),
        more_workers(0, 1),
        Fsdp(workers=1, batch_ns=100 * MS),
    ),
    "some more loaders": (
        Fsdp(workers=1, batch_ns=900 * MS, steps=20),
        more_workers(1, 2),
        Fsdp(workers=2, batch_ns=900 * MS, steps=20),
    ),
    "enough loaders": (
        Fsdp(workers=1, batch_ns=900 * MS, steps=20),
        more_workers(1, 8),
        Fsdp(workers=8, batch_ns=900 * MS, steps=40),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_predicted_step_is_the_simulated_one(name: str) -> None:
    before, mutation, after = CASES[name]
    base, really = base_of(simulate(before)), base_of(simulate(after))
    predicted = gain(base, mutation)
    assert predicted.refused is None
    low, likely, high = predicted.gain_ns_per_step
    measured = base.step_ns - really.step_ns
    noise = round(0.005 * base.step_ns)  # of two simulations with other jitter
    print(f"{name}: {likely / 1e6:.1f} of {base.step_ns / 1e6:.1f} ms predicted, {measured / 1e6:.1f} simulated")
    assert abs(likely - measured) <= 0.03 * base.step_ns
    assert low - noise <= measured <= high + noise
    assert predicted.assumptions


def test_half_the_bytes() -> None:
    base = base_of(simulate(SLOW_WIRE))
    predicted = gain(base, reduce_in("bfloat16"))
    really = sum(size for size, _ in BLOCKS) * 3.0  # half of 6 ns a byte, nothing hidden
    assert predicted.gain_ns_per_step[1] == pytest.approx(really, rel=0.05)


def test_a_hybrid_shard_meets_fewer_and_adds_all_reduces() -> None:
    base = base_of(simulate(Fsdp(ranks=4)))
    changed = hybrid_shard(2)(base.program, base.costs, Level.LIKELY)
    assert isinstance(changed, Mutated)
    found = changed.program.collectives()
    assert {tuple(sorted(c.ranks)) for c in found if c.role == Role.GATHER_FORWARD} == {(0, 1), (2, 3)}
    assert {tuple(sorted(c.ranks)) for c in found if c.role == Role.REDUCE} == {(0, 2), (1, 3)}
    scattered = [c for c in found if c.role == Role.SCATTER]
    assert len([c for c in found if c.role == Role.REDUCE]) == len(scattered)
    gathered = sum(c.transfer_ns for c in found if c.role == Role.GATHER_FORWARD) / 2
    before = sum(c.transfer_ns for c in base.program.collectives() if c.role == Role.GATHER_FORWARD)
    assert gathered < before
    replay(changed.program)


@pytest.mark.parametrize("of", [(1,), (1, 2)])
def test_links_like_the_others_are_the_run_without_late_results(of: tuple[int, ...]) -> None:
    base = base_of(simulate(Fsdp(ranks=5)))
    late = with_collectives(
        base.program,
        lambda one: replace(one, tail_ns={rank: ns + 5 * MS * (rank in of) for rank, ns in one.tail_ns.items()}),
    )
    means = {}
    for part in (0.0, 0.5, 1.0):
        changed = faster_links(of, part)(late, base.costs, Level.LIKELY)
        assert isinstance(changed, Mutated)
        means[part] = replay(changed.program).mean_ns
    assert means[1.0] == pytest.approx(replay(base.program).mean_ns, rel=0.01)
    assert means[0.0] - means[1.0] == pytest.approx(2 * (means[0.5] - means[1.0]), rel=0.05)


def test_a_model_is_split_where_no_backward_is_known() -> None:
    """All that lies between the gather and the reduction is forward."""
    base = base_of(simulate(Fsdp(units=ROOT)))
    forward, backward = (label_of(Kind.COMPUTE, detail) for detail in (Detail.FORWARD, Detail.BACKWARD))
    program = over_lines(
        base.program, lambda _, line, __: replace(line, label=np.where(line.label == backward, forward, line.label))
    )
    assert gain(replace(base, program=program), split_root(2)).refused is None


def test_units_of_a_hybrid_shard_are_changed_within_it() -> None:
    """Two sharding groups have the same units: neither is merged with nor waits for those of the other."""
    base = base_of(simulate(replace(SLOW_WIRE, ranks=4, jitter=0.0)))
    merged = in_turn(hybrid_shard(2), merge_units(2))(base.program, base.costs, Level.LIKELY)
    assert isinstance(merged, Mutated)
    gathers = [c for c in merged.program.collectives() if c.role == Role.GATHER_FORWARD and c.step == 2]
    assert sorted(tuple(sorted(c.ranks)) for c in gathers) == 5 * [(0, 1)] + 5 * [(2, 3)]
    ahead = [gain(base, in_turn(*order)) for order in ((prefetch(1), hybrid_shard(2)), (hybrid_shard(2), prefetch(1)))]
    assert ahead[0].gain_ns_per_step == ahead[1].gain_ns_per_step
    assert replay(merged.program).mean_ns > 0


REFUSALS: dict[str, tuple[Fsdp, Mutation, str]] = {
    "nothing to prefetch": (Fsdp(units=ROOT), prefetch(1), "fewer than two sharding units"),
    "kept already": (Fsdp(keep_gathered=True), keep_gathered, "gathers nothing"),
    "one micro-batch": (Fsdp(), sync_last_micro_batch, "more than one micro-batch"),
    "blocks already": (Fsdp(), split_root(8), "not one sharding unit"),
    "nothing to merge": (Fsdp(units=ROOT), merge_units(2), "too few to merge"),
    "fewer workers": (Fsdp(), more_workers(2, 1), "not more"),
    "all ranks slow": (Fsdp(), without_straggler([0, 1]), "no other rank"),
    "no such type": (Fsdp(), reduce_in("fp7"), "not known"),
    "one rank": (Fsdp(), on_ranks(1), "two and more ranks"),
    "shards that do not fit": (Fsdp(ranks=4), hybrid_shard(3), "cannot be divided"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_change_that_cannot_be_made_is_refused(name: str) -> None:
    plan, mutation, reason = REFUSALS[name]
    refused = gain(base_of(simulate(plan)), mutation).refused
    assert refused is not None
    assert reason in refused


def test_a_loader_that_keeps_up_on_average_promises_nothing() -> None:
    """Few steps wait, so how long a batch takes it is not known: the gain may be all or nothing."""
    base = base_of(simulate(Fsdp(workers=1, batch_ns=2 * MS, slow=slow_rank)))
    predicted = gain(base, more_workers(1, 2))
    low, likely, high = predicted.gain_ns_per_step
    assert low <= 0 <= likely <= high
    assert any("keeps up" in assumed for assumed in predicted.assumptions)


def test_a_healthy_rank_is_no_straggler() -> None:
    """Noise goes both ways: what a rank is slower in some steps, it is faster in others."""
    base = base_of(simulate(Fsdp(ranks=4, steps=40, jitter=0.2)))
    predicted = gain(base, without_straggler([2]))
    assert predicted.gain_ns_per_step[1] < 0.02 * base.step_ns


@pytest.mark.parametrize("order", [(prefetch(1),), (prefetch(1), hybrid_shard(2))])
def test_what_is_the_same_on_the_fastest_wire_is_replayed_once(order: tuple[Mutation, ...]) -> None:
    """A change that says so has the prediction of one that is replayed for each wire."""
    base = base_of(simulate(replace(SLOW_WIRE, ranks=4, jitter=0.0)))
    change, asked = in_turn(*order), list[Level]()

    def of_each_wire(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        found = change(program, costs, level)
        return replace(found, fastest=False) if isinstance(found, Mutated) else found

    def watched(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        asked.append(level)
        return change(program, costs, level)

    assert gain(base, watched) == gain(base, of_each_wire)
    assert (Level.FAST in asked) == (len(order) == 2)

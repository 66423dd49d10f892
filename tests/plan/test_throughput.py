"""Steps that nobody ran: the replay of made-up programs against what the schedule's formulas give."""

from __future__ import annotations

import pytest

from diag.model.axes import bubble
from diag.planning.cluster import cluster_of, topology_of
from diag.planning.memory import STRATEGIES, Checkpointing, ShardingUnit
from diag.planning.plan import Batch, Plan, plan
from diag.planning.shape import RECIPES, size_of
from diag.planning.throughput import Data, Job, Link, Schedule, Speed, Stage, link, program, speed_of
from diag.replay.program import replay

BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
SPEED = Speed(peak=1e12, mfu=1.0)  # a FLOP takes a thousandth of a nanosecond
ALONE = Link(1, 1, 1e9)


def step_ns(job: Job) -> int:
    return int(replay(program(job)).dur_ns[0])


def of(strategy: str, wire: Link, units: int = 6, micro_batches: int = 1, bucket: int = 1 << 40) -> Job:
    own = BY_NAME[strategy]
    # 1 ms of forward and 2 of backward each
    parts = tuple(ShardingUnit(1_000_000, 1, 1e9, 2e9) for _ in range(units))
    data = Data(own, own.keeps, wire, ALONE, 2, 2, bucket)
    return Job((Stage(ShardingUnit(0, 0, 0, 0), parts),), data, SPEED, micro_batches, Schedule.GPIPE)


@pytest.mark.parametrize("bandwidth", [1e9, 5e9, 1e11])
def test_fully_sharded_by_the_recursion(bandwidth: float) -> None:
    """Gathers and reductions on one communicator."""
    wire = Link(4, 1, bandwidth)
    each = wire.ns(SPEED, 2_000_000)
    forward, backward = 1_000_000, 2_000_000
    now = each + 5 * max(forward, each) + forward
    free = 0  # when the wire is done with what was asked of it

    def sent(asked: int) -> int:
        nonlocal free
        free = max(asked, free) + each
        return free

    ready = sent(now)
    for unit in range(6):
        now = max(now, ready)
        ready = sent(now) if unit < 5 else now
        now += backward
        sent(now)
    assert step_ns(of("ZeRO-3", wire)) == max(now, free)


def test_kept_parameters_are_not_gathered_again() -> None:
    wire = Link(4, 1, 1e9)
    each = wire.ns(SPEED, 2_000_000)
    assert step_ns(of("ZeRO-3", wire)) - step_ns(of("ZeRO-3, kept", wire)) >= each


def test_ddp_hides_all_but_its_last_bucket() -> None:
    wire = Link(4, 1, 1e11)
    assert step_ns(of("DDP", wire, bucket=1_000_000)) == 6 * 3_000_000 + wire.ns(SPEED, 2_000_000, 2)
    assert step_ns(of("DDP", wire)) == 6 * 3_000_000 + wire.ns(SPEED, 12_000_000, 2)


def test_zero_gathers_the_new_parameters_after_the_optimizer() -> None:
    wire = Link(4, 1, 1e11)
    assert step_ns(of("ZeRO-2", wire)) == 6 * 3_000_000 + 2 * wire.ns(SPEED, 12_000_000)


def test_gradients_are_reduced_once_a_step() -> None:
    wire = Link(4, 1, 1e11)
    assert step_ns(of("DDP", wire, micro_batches=3)) == 3 * 6 * 3_000_000 + wire.ns(SPEED, 12_000_000, 2)


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 4)])
def test_the_replay_finds_the_bubble(schedule: Schedule, stages: int, micro_batches: int) -> None:
    """Equal stages that pass nothing on the wire: what the formulas say, to the nanosecond."""
    chunks = 2 if schedule == Schedule.INTERLEAVED else 1
    parts = tuple(
        Stage(
            ShardingUnit(0, 0, 0, 0),
            tuple(ShardingUnit(0, 1, 1e9, 2e9) for _ in range(2)),
            first=stage == 0,
            last=stage == stages - 1,
        )
        for stage in range(stages)
    )
    data = Data(BY_NAME["DDP"], False, ALONE, ALONE, 2, 2, 1)
    found = step_ns(Job(parts, data, SPEED, micro_batches, schedule, chunks))
    work = micro_batches * 2 * 3_000_000
    assert 1 - work / found == pytest.approx(bubble(stages, micro_batches, chunks))


def test_a_ring_as_nccl_counts_it() -> None:
    """Base 8.4 us, 3.4 a hop over NVLink, 14 over the network; an all-gather among 16 on two hosts has one of those."""
    speed = Speed(peak=1e15)
    cluster = cluster_of(16, "H100")
    size = 100_000_000
    within = link(cluster, 8).ns(speed, size)
    assert within == pytest.approx((8.4 + 7 * 3.4) * 1e3 + size * 7 / 8 / cluster.within * 1e9, abs=1)
    across = link(cluster, 16).ns(speed, size, 2)
    assert across == pytest.approx((8.4 + 28 * 3.4 + 2 * 14.0) * 1e3 + 2 * size * 15 / 16 / cluster.across * 1e9, abs=1)
    assert link(cluster, 2, apart=8).hosts == 2
    assert link(cluster, 1).ns(speed, size) == 0


# -- whole plans -------------------------------------------------------------------------------------------------------


def planned(
    gpus: int, model: str = "llama-3-8b", topology: str | None = None, within: float | None = None, **batch: object
) -> Plan:
    cluster = cluster_of(gpus, "H100", within_gb_s=within)
    axes = topology_of(topology) if topology else None
    own = Batch(**batch)  # type: ignore[arg-type]
    return plan(size_of(model), RECIPES["mixed"], cluster, own, topology=axes, speed=speed_of(cluster))


def test_one_gpu_waits_for_nothing() -> None:
    found = planned(1, "gpt2", length=1024, sequences=8)
    for row in found.rows:
        assert row.expected is not None
        assert (row.expected.exposed_ns, row.expected.bubble_ns) == (0, 0)
        assert row.expected.step_ns == row.expected.compute_ns
        assert 0.3 < row.expected.mfu < 0.4  # what is assumed, and the optimizer


@pytest.mark.parametrize(
    "topology", [None, "dp=2,tp=4", "dp=4,cp=2", "dp=4,pp=2", "dp=2,tp=2,pp=2", "dp_replicate=2,dp_shard=4"]
)
def test_parts_add_up_and_slower_links_are_slower(topology: str | None) -> None:
    fast, slow = (planned(8, topology=topology, within=gb_s, micro_batches=4) for gb_s in (400, 40))
    for one, other in zip(fast.rows, slow.rows, strict=True):
        assert one.expected is not None
        assert other.expected is not None
        for time in (one.expected, other.expected):
            assert time.step_ns == time.compute_ns + time.exposed_ns + time.bubble_ns
            assert time.exposed_ns >= 0
            assert 0 < time.mfu < 0.4
        assert one.expected.step_ns <= other.expected.step_ns


def test_micro_batches_beyond_the_third_are_alike() -> None:
    times = []
    for count in (3, 4, 5):
        expected = planned(8, micro_batches=count).rows[3].expected
        assert expected is not None
        times.append(expected.step_ns)
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], rel=1e-6)


def test_without_the_gpu_s_peak_nothing_is_said_of_time() -> None:
    cluster = cluster_of(8, None)
    assert speed_of(cluster) is None
    found = plan(size_of("7B"), RECIPES["mixed"], cluster, Batch())
    assert all(row.expected is None for row in found.rows)
    assert speed_of(cluster_of(8, None, peak_tflop_s=100), mfu=0.4) == Speed(100e12, 0.4, None)


def test_as_torchtitan_measured() -> None:
    """Llama 3.1 8B on 8 H100s, fully sharded, 2 sequences of 8,192, selective checkpointing: 5,762 tokens a second and
    GPU, 6,667 compiled (torchtitan's benchmarks/llama3_h100_202412_torchtitan.md). 33 and 39 % MFU."""
    cluster = cluster_of(8, "H100")
    batch = Batch(sequences=2, length=8192, checkpointing=Checkpointing.SELECTIVE)
    found = plan(size_of("llama-3-8b"), RECIPES["fsdp-mixed"], cluster, batch, speed=speed_of(cluster))
    row = next(row for row in found.rows if row.need.strategy.name == "ZeRO-3")
    assert row.expected is not None
    assert 5_762 < row.expected.tokens_s < 7_000
    assert 0.33 < row.expected.mfu < 0.4

"""Figures that everybody can check: 70 billion parameters on 256 GPUs, in gigabytes of 10^9 bytes."""

from __future__ import annotations

import pytest

from diag.errors import DiagError
from diag.planning.cluster import Cluster, check_world, cluster_of, topology_of
from diag.planning.memory import STRATEGIES, Checkpointing, activations, fewest, need, traffic, unit_of
from diag.planning.plan import Batch, plan, plan_for
from diag.planning.policy import PLANNING
from diag.planning.shape import PRESETS, PUBLISHED, RECIPES, Shape, Size, size_of

GB = 10**9
MIXED = RECIPES["mixed"]
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
SEVENTY = size_of("70B")


@pytest.mark.parametrize(
    ("strategy", "gigabytes"), [("DDP", 1120.0), ("ZeRO-1", 283.28), ("ZeRO-2", 143.83), ("ZeRO-3", 4.38)]
)
def test_states_of_70_billion_on_256_gpus(strategy: str, gigabytes: float) -> None:
    assert round(need(SEVENTY, MIXED, BY_NAME[strategy], 256, 8).states.total / GB, 2) == gigabytes


def test_16_bytes_a_parameter() -> None:
    assert MIXED.total == 16
    assert size_of("7B").parameters * MIXED.total == 112 * GB


def test_the_fewest_gpus() -> None:
    """80 GB each: 14 as a bare bound; with a peak of 18 GB outside the states 16 are too few, 24 and 32 are not."""
    assert fewest(SEVENTY, MIXED, 80 * GB) == 14
    assert fewest(SEVENTY, MIXED, 80 * GB, outside=18 * GB) == 19
    peaks = {n: need(SEVENTY, MIXED, BY_NAME["ZeRO-3"], n, 8).states.total / GB + 18 for n in (16, 24, 32)}
    assert {n: round(peak, 1) for n, peak in peaks.items()} == {16: 88.0, 24: 64.7, 32: 53.0}
    assert fewest(SEVENTY, MIXED, 80 * GB, outside=80 * GB) is None


def test_full_shard_sends_half_as_much_again_as_ddp() -> None:
    cluster = cluster_of(256, "A100-80")
    sent = {
        name: traffic(SEVENTY.parameters, MIXED, need(SEVENTY, MIXED, own, 256, 8), cluster).total
        for name, own in BY_NAME.items()
    }
    assert sent["ZeRO-3"] / sent["DDP"] == pytest.approx(1.5)
    assert sent["ZeRO-1"] == sent["ZeRO-2"] == sent["ZeRO-3, kept"] == sent["DDP"] == round(2 * 140 * GB * 255 / 256)


def test_gathers_are_repeated_in_each_micro_batch_and_reductions_are_not() -> None:
    cluster, copy = cluster_of(8, "H100"), 2 * SEVENTY.parameters * 7 / 8
    for name, copies in (("ZeRO-3", 2 * 4 + 1), ("ZeRO-3, kept", 4 + 1), ("DDP", 2)):
        found = traffic(SEVENTY.parameters, MIXED, need(SEVENTY, MIXED, BY_NAME[name], 8, 8), cluster, micro_batches=4)
        assert found.total == pytest.approx(copies * copy)
        assert found.seconds == pytest.approx(copies * copy / cluster.within)


def test_hybrid_sharding_sends_most_of_it_within_the_host() -> None:
    """Section 4.2 of the notes: 3 M (s - 1) / s within, 2 (M / s) (r - 1) / r across."""
    cluster, copy = cluster_of(32, "H100"), 2 * SEVENTY.parameters
    wanted = need(SEVENTY, MIXED, BY_NAME["hybrid"], 32, 8)
    found = traffic(SEVENTY.parameters, MIXED, wanted, cluster)
    assert wanted.shards == 8
    assert (found.shards, found.replicas) == (round(3 * copy * 7 / 8), round(2 * copy / 8 * 3 / 4))
    assert found.seconds == pytest.approx(found.shards / cluster.within + found.replicas / cluster.across)


def test_a_single_gpu_sends_nothing() -> None:
    for strategy in STRATEGIES:
        wanted = need(SEVENTY, MIXED, strategy, 1, 8)
        assert traffic(SEVENTY.parameters, MIXED, wanted, cluster_of(1, "H100")).total == 0
        assert wanted.states.total == 1120 * GB


def test_units_of_sharding() -> None:
    shape = PRESETS["llama-3-8b"]
    size = Size(shape.name, shape.parameters, shape)
    assert unit_of(size, "root") == shape.parameters
    assert unit_of(size, "2") == max(2 * shape.block, shape.table + shape.head + shape.norm)
    assert unit_of(size, "linear") == shape.vocab * shape.hidden
    whole = {wrap: need(size, MIXED, BY_NAME["ZeRO-3"], 8, 8, wrap).gathered for wrap in ("linear", "block", "root")}
    assert whole["linear"] < whole["block"] < whole["root"] == 2 * shape.parameters


def test_activations_of_gpt_as_korthikanti_counts_them() -> None:
    """Equation 1 of arXiv 2205.05198 without its dropout masks (3 x tokens x hidden) and with scores that are kept:
    34 - 3 = 31, of which our blocks count norms' outputs as the inputs of what follows them."""
    shape, length, sequences = PRESETS["gpt2-xl"], 1024, 4
    tokens = length * sequences
    theirs = tokens * shape.hidden * (34 - 3) + 2 * shape.heads * sequences * length**2 * 2.5
    found = activations(shape, tokens, 2, Checkpointing.NONE, scores_of_length=length)
    assert found.blocks / shape.layers == pytest.approx(theirs, rel=0.1)


def test_checkpointing_keeps_the_entry_of_each_block() -> None:
    shape, tokens = PRESETS["llama-3-8b"], 4096
    none, selective, full = (activations(shape, tokens, 2, kind) for kind in Checkpointing)
    assert full.blocks == shape.layers * tokens * shape.hidden * 2
    assert full.working == none.blocks // shape.layers
    assert full.total < selective.total < none.total
    # What autograd keeps of a block whose checkpoint policy keeps products and attention: its input and their results.
    kv, heads = shape.kv_heads * shape.head_size, shape.heads * shape.head_size
    of_a_token = 2 * (3 * shape.hidden + 2 * heads + 2 * kv + 2 * shape.ffn) + 4 * shape.heads
    assert selective.blocks == shape.layers * tokens * of_a_token


# -- plans -------------------------------------------------------------------------------------------------------------


def planned(model: str, gpus: int, gpu: str = "H100", outside: int | None = None, **batch: object):  # type: ignore[no-untyped-def]
    return plan(size_of(model), MIXED, cluster_of(gpus, gpu), Batch(**batch), outside=outside)  # type: ignore[arg-type]


def test_what_fits_on_one_gpu_is_not_distributed() -> None:
    assert planned("gpt2", 1).chosen is BY_NAME["DDP"]
    assert planned("gpt2", 1).reasons == ("everything fits on one GPU: do not distribute",)
    assert planned("gpt2", 8).chosen is BY_NAME["DDP"]


def test_the_simplest_of_those_that_send_least() -> None:
    found = planned("llama-3-8b", 8, checkpointing=Checkpointing.FULL)
    assert found.chosen is BY_NAME["ZeRO-1"]
    assert [row.need.strategy.name for row in found.rows if not row.fits] == ["DDP"]


def test_across_hosts_hybrid_sharding_where_a_host_holds_the_states() -> None:
    found = planned("13B", 64, outside=10 * GB)
    fitting = [row.need.strategy.name for row in found.rows if row.fits]
    assert "hybrid" in fitting
    assert found.chosen is BY_NAME["hybrid"]


def test_nothing_fits_and_what_would() -> None:
    found = planned("llama-3-70b", 16, checkpointing=Checkpointing.FULL)
    assert (found.chosen, found.bound, found.estimate) == (None, 17, 32)
    assert found.reasons[0] == "32 GPUs are enough with ZeRO-3"
    assert planned("llama-3-70b", 32, checkpointing=Checkpointing.FULL).chosen is BY_NAME["ZeRO-3"]


def test_no_number_of_gpus_is_enough() -> None:
    found = planned("llama-3-8b", 1024, outside=75 * GB)
    assert found.chosen is None
    assert found.estimate is None
    assert "no number of GPUs" in found.reasons[0]


@pytest.mark.parametrize("gpus", [1, 2, 3, 8, 16, 24, 100])
def test_the_estimate_is_the_fewest(gpus: int) -> None:
    """With that many it fits; with fewer, on whole hosts, it does not."""
    found = planned("llama-2-70b", gpus, checkpointing=Checkpointing.FULL)
    sharded = next(row for row in found.rows if row.need.strategy.name == "ZeRO-3")
    assert found.estimate is not None
    assert sharded.fits == (gpus >= found.estimate)
    assert sharded.fits == (sharded.peak <= found.cluster.memory * PLANNING.usable_memory_share)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_table_counts_autocast_as_the_simulated_step_does(checkpointing: str) -> None:
    """DDP with fp32 parameters computes by autocast, fully_shard gathers in bf16; the peak is the loss's backward."""
    made = plan_for("gpt2", 8, "H100", recipe="fsdp-mixed", batch_size=8, seq_len=1024, checkpointing=checkpointing)
    ddp, sharded = (next(row for row in made.rows if row.need.strategy.name == name) for name in ("DDP", "ZeRO-3"))
    assert made.chosen == ddp.need.strategy
    assert made.likely is not None
    assert made.likely.bytes == pytest.approx(ddp.peak, rel=0.001)
    assert made.likely.bytes <= ddp.peak
    assert ddp.outside - sharded.outside == ddp.autocast > 0
    assert made.outside == sharded.outside
    own = plan_for("gpt2", 8, "H100", recipe="mixed", batch_size=8, seq_len=1024, checkpointing=checkpointing)
    given = plan_for("gpt2", 8, "H100", recipe="fsdp-mixed", outside_gb=3)
    assert not any(row.autocast for row in (*own.rows, *given.rows))


def test_recipes_of_published_tables_are_told_apart() -> None:
    assert {one.each.total for one in PUBLISHED} == {16, 18, 12}
    assert next(one.each for one in PUBLISHED if one.each.optimizer == 8 and one.each.parameters == 2).total == 12


# -- clusters, topologies ----------------------------------------------------------------------------------------------


def test_devices_by_name() -> None:
    found = cluster_of(16, "h100")
    assert (found.memory, found.tflop_s, found.hosts, found.gpu) == (80 * GB, 989, 2, "H100")
    assert found.bandwidth(8) == found.within > found.bandwidth(16) == found.across
    assert cluster_of(4, "A100 80", memory_gb=79, within_gb_s=100).within == 100 * GB
    with pytest.raises(DiagError, match="no device called 'H1000'"):
        cluster_of(8, "H1000")
    with pytest.raises(DiagError, match="--memory 0: give a number above 0"):
        cluster_of(8, None, memory_gb=0)


def test_every_device_that_can_be_named_has_a_peak() -> None:
    from diag.planning.cluster import GPUS

    assert all(isinstance(cluster_of(1, name), Cluster) and cluster_of(1, name).tflop_s for name in GPUS)


def test_axes_multiply_to_the_world() -> None:
    found = topology_of("dp=8,tp=4,pp=2,cp=2")
    assert found.world_size == 128
    assert found.data_parallel == 8
    check_world(found, 128)
    with pytest.raises(DiagError, match="= 128 ranks, but there are 256 GPUs") as error:
        check_world(found, 256)
    assert error.value.hint == "give 128 GPUs, or 16 data-parallel ranks"
    assert topology_of("dp_replicate=2, dp_shard=4,ep=4").world_size == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no axis called ''"),
        ("dp=8,xp=2", "no axis called 'xp'"),
        ("dp=8,dp=2", "dp is given twice"),
        ("dp=0", "dp=0 is not a number"),
        ("dp", "dp= is not a number"),
        ("dp=8.0", "is not a number"),
        ("dp=8,dp_shard=4", "give it, or the two"),
        ("dp=6,ep=4", "ep=4 does not divide the 6"),
    ],
)
def test_topologies_that_are_none(text: str, message: str) -> None:
    with pytest.raises(DiagError, match=message):
        topology_of(text)


def test_a_shape_has_no_negative_parts() -> None:
    tiny = Shape("tiny", 1, 1, 1, 1, 1, 1, 1, tied=True)
    assert tiny.parameters == 1 + tiny.block + 1
    assert tiny.head == 0

"""Tables under tensor, pipeline and context parallelism, against the papers' formulas and numbers made by hand."""

from __future__ import annotations

import pytest

from diag.errors import DiagError
from diag.model.axes import bubble
from diag.planning.cluster import axis_traffic, bandwidth_of, cluster_of, routed, stride, topology_of
from diag.planning.memory import STRATEGIES, Checkpointing, activations, cut, need, shares
from diag.planning.plan import Batch, Plan, plan
from diag.planning.shape import PRESETS, RECIPES, size_of
from diag.planning.throughput import Schedule, in_flight, turns

MIXED = RECIPES["mixed"]
LLAMA = size_of("llama-3-8b")
SHAPE = PRESETS["llama-3-8b"]


def planned(topology: str | None, gpus: int = 64, model: str = "llama-3-8b", **batch: object) -> Plan:
    axes = topology_of(topology) if topology else None
    return plan(size_of(model), MIXED, cluster_of(gpus, "H100"), Batch(**batch), topology=axes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "memory_gb", "tflop_s", "memory_gb_s", "within", "per_host"),
    [("GB200", 198, 2500, 8000, 675, 72), ("B300", 288, 2250, 8000, 675, 8), ("MI355X", 288, 2500, 8000, 403, 8)],
)
def test_what_is_known_of_the_newest_gpus(
    gpu: str, memory_gb: int, tflop_s: int, memory_gb_s: int, within: int, per_host: int
) -> None:
    """Dense bf16. NVLink connects the 72 GPUs of a GB200 NVL72, so that sharding within a host is within the rack."""
    known = cluster_of(144, gpu)
    assert (known.memory, known.tflop_s, known.memory_gb_s) == (memory_gb * 10**9, tflop_s, memory_gb_s)
    assert (known.within, known.per_host) == (within * 1e9, per_host)
    assert cluster_of(144, gpu, per_host=4).per_host == 4


@pytest.mark.parametrize(("gpu", "mib"), [("H100", 81_559), ("H200", 143_771), ("B200", 183_359), ("GB200", 189_471)])
def test_no_plan_counts_on_more_memory_than_the_driver_reports(gpu: str, mib: int) -> None:
    """The totals that nvidia-smi prints. GB200 and B200 are within 1 % of them, so their order is right."""
    memory, total = cluster_of(8, gpu).memory, mib * 2**20
    assert memory <= total
    assert gpu not in ("B200", "GB200") or memory > 0.99 * total


@pytest.mark.parametrize("given", ["dp=64", "dp=64,tp=1,pp=1,cp=1", "tp=1,dp=64"])
def test_data_parallelism_alone_is_what_it_was(given: str) -> None:
    alone, told = planned(None), planned(given)
    assert told.rows == alone.rows
    assert (told.bound, told.estimate, told.chosen, told.reasons) == (
        alone.bound, alone.estimate, alone.chosen, alone.reasons,
    )  # fmt: skip


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_matrices_are_cut_and_norms_are_not(tensor: int) -> None:
    own = cut(SHAPE, tensor)
    norms = (2 * SHAPE.layers + 1) * SHAPE.norm
    assert tensor * (own.parameters - norms) + norms == SHAPE.parameters


def test_keys_of_fewer_heads_than_ranks_are_repeated() -> None:
    own = cut(SHAPE, 16)
    assert (own.heads, own.kv_heads) == (2, 1)
    with pytest.raises(DiagError, match="tp=5 does not divide the 32 of the query heads"):
        cut(SHAPE, 5)


@pytest.mark.parametrize("stages", [2, 3, 5, 32])
def test_stages_are_the_whole_model(stages: int) -> None:
    parts = shares(LLAMA, topology_of(f"pp={stages}"))
    assert sum(part.size.parameters for part in parts) == LLAMA.parameters
    layers = [part.size.shape.layers for part in parts if part.size.shape]
    assert sum(layers) == SHAPE.layers
    assert max(layers) - min(layers) <= 1
    with pytest.raises(DiagError, match="pp=33 is more than the 32 layers"):
        shares(LLAMA, topology_of("pp=33"))


def test_the_last_stage_of_a_tied_model_has_a_table_of_its_own() -> None:
    size = size_of("gpt2")
    assert size.shape is not None
    parts = shares(size, topology_of("pp=2"))
    assert sum(part.size.parameters for part in parts) == size.parameters + size.shape.vocab * size.shape.hidden


def test_a_number_of_parameters_is_cut_evenly() -> None:
    assert [part.size.parameters for part in shares(size_of("70B"), topology_of("tp=4,pp=2"))] == [8_750_000_000] * 2


# -- activations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", [2, 8])
def test_with_sequence_parallelism_all_of_a_block_is_cut(tensor: int) -> None:
    """Korthikanti et al., 2205.05198, equation 4: everything over t."""
    whole = activations(SHAPE, 4096, 2, Checkpointing.NONE)
    own = activations(cut(SHAPE, tensor), 4096, 2, Checkpointing.NONE, tensor=tensor)
    assert (own.blocks * tensor, own.logits * tensor) == (whole.blocks, whole.logits)


@pytest.mark.parametrize("tensor", [2, 8])
def test_latent_vectors_are_whole_on_each_rank(tensor: int) -> None:
    """As in torchtitan, whose products and norms of them are not parallel: 2 x 1536 + 2 x 512 + 64 elements."""
    shape = PRESETS["deepseek-v3"]
    whole = activations(shape, 4096, 2, Checkpointing.NONE)
    own = activations(cut(shape, tensor), 4096, 2, Checkpointing.NONE, tensor=tensor)
    assert own.blocks * tensor - whole.blocks == (tensor - 1) * 2 * 4160 * 4096 * shape.layers


def test_context_parallelism_cuts_the_sequence() -> None:
    one, two = (planned(f"dp={64 // cp},cp={cp}").activations for cp in (1, 2))
    assert one is not None
    assert two is not None
    assert two.blocks * 2 == one.blocks


def test_the_first_of_1f1b_s_stages_holds_what_an_uncut_model_would() -> None:
    """2205.05198, section 4.2.3: p micro-batches of L / p layers, whatever p is."""
    whole = activations(SHAPE, 4096, 2, Checkpointing.NONE)
    first = activations(
        shares(LLAMA, topology_of("pp=4"))[0].size.shape or SHAPE, 4096, 2, Checkpointing.NONE,
        in_flight=in_flight(Schedule.ONE_F_ONE_B, 0, 4, 8), last=False,
    )  # fmt: skip
    assert first.blocks == whole.blocks
    assert first.logits == 0


@pytest.mark.parametrize(("stages", "chunks"), [(4, 2), (8, 4)])
def test_micro_batches_in_flight(stages: int, chunks: int) -> None:
    """Interleaved: 1 + (p - 1) / (p v) of an uncut model's on the first stage (2205.05198, section 4.2.3)."""
    micro_batches = 2 * stages
    most = in_flight(Schedule.INTERLEAVED, 0, stages, micro_batches, chunks)
    assert most == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))
    assert [in_flight(Schedule.ONE_F_ONE_B, s, stages, micro_batches) for s in range(stages)] == list(
        range(stages, 0, -1)
    )
    assert in_flight(Schedule.GPIPE, 0, stages, micro_batches) == micro_batches
    assert in_flight(Schedule.ONE_F_ONE_B, 0, stages, 2) == 2


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_micro_batch_passes_every_chunk_once(schedule: Schedule) -> None:
    for stage in range(4):
        order = turns(schedule, stage, 4, 8, 2)
        assert len(set(order)) == len(order) == 2 * 8 * (2 if schedule == Schedule.INTERLEAVED else 1)
        for place, turn in enumerate(order):
            if not turn.forward:
                assert turn._replace(forward=True) in order[:place]


def test_interleaving_needs_a_multiple_of_the_stages() -> None:
    with pytest.raises(DiagError, match="6 micro-batches do not divide by 4 stages"):
        turns(Schedule.INTERLEAVED, 0, 4, 6, 2)


def test_the_bubble() -> None:
    """2104.04473: (p - 1) / m of the ideal time; of the whole step then (p - 1) / (m + p - 1)."""
    assert bubble(8, 16) == 7 / 23
    assert bubble(8, 16, chunks=2) == 7 / 39
    assert bubble(1, 16) == 0


# -- links -------------------------------------------------------------------------------------------------------------


def test_neighbours_of_the_last_axis_are_neighbours_on_a_host() -> None:
    axes, cluster = topology_of("dp=4,tp=4,pp=2,cp=2"), cluster_of(64, "H100")
    assert [stride(axes, axis) for axis in ("tp", "cp", "dp", "pp")] == [1, 4, 8, 32]
    assert bandwidth_of(axes, "tp", cluster) == bandwidth_of(axes, "cp", cluster) == cluster.within
    assert bandwidth_of(axes, "dp", cluster) == bandwidth_of(axes, "pp", cluster) == cluster.across


def test_what_each_axis_sends() -> None:
    """A block of llama-3-8b, 4,096 tokens in 16 bits: an activation of 33,554,432 bytes."""
    activation = 4096 * 4096 * 2
    cluster = cluster_of(8, "H100")
    axes = topology_of("tp=4")
    (tensor,) = axis_traffic(cut(SHAPE, 4), axes, cluster, 4096, 2, 1)
    assert tensor.bytes == SHAPE.layers * 10 * activation * 3 // 4
    (context,) = axis_traffic(SHAPE, topology_of("cp=2"), cluster, 4096, 2, 3)
    assert context.bytes == 3 * SHAPE.layers * 3 * (2 * 1024 * 2 * 2048)
    (stages,) = axis_traffic(SHAPE, topology_of("pp=2"), cluster, 4096, 2, 3)
    assert stages.bytes == 3 * 2 * activation
    assert axis_traffic(SHAPE, topology_of("dp=8"), cluster, 4096, 2, 1) == []


def test_the_states_are_shared_by_dp_and_cp_and_the_rest_is_cut() -> None:
    found = planned("dp=4,tp=8,pp=2", micro_batches=4)
    sharded = next(row for row in found.rows if row.need.strategy.name == "ZeRO-3")
    part = shares(LLAMA, topology_of("tp=8,pp=2"))[sharded.stage]
    assert sharded.need.shards == 4
    assert sharded.need.states.total == pytest.approx(16 * part.size.parameters / 4, abs=4)
    assert planned("dp=2,cp=4,tp=8").rows[3].need.shards == 8
    assert sharded.peak == sharded.need.total + sharded.outside


def test_hybrid_sharding_by_its_own_axes() -> None:
    found = planned("dp_replicate=16,dp_shard=4")
    row = next(row for row in found.rows if row.need.strategy.name == "hybrid")
    assert row.need.shards == 4
    copy = 2 * LLAMA.parameters
    assert row.traffic.shards == pytest.approx(3 * copy * 3 / 4)
    assert row.traffic.replicas == pytest.approx(2 * copy / 4 * 15 / 16)


def test_where_data_parallelism_alone_does_not_fit_other_axes_are_named() -> None:
    """65,536 tokens' logits alone take 118 GB where nobody cuts them, however many ranks share the states."""
    found = planned(None, 8, length=65_536, checkpointing=Checkpointing.FULL)
    assert found.chosen is None
    assert found.reasons[0].startswith("no number of GPUs is enough")
    named = found.reasons[-1]
    assert named.startswith("these 8 GPUs are enough with --topology ")
    topology = named.split("--topology ")[1].split(" ")[0]
    assert planned(topology, 8, length=65_536, checkpointing=Checkpointing.FULL).chosen is not None


def test_axes_that_memory_does_not_need_are_told() -> None:
    said = "everything fits on one GPU: tensor, pipeline and context parallelism are not needed for memory"
    assert said in planned("dp=4,tp=2", 8, "gpt2-large", length=1024).reasons
    # One GPU would not hold the activations that these eight share.
    assert said not in planned("dp=1,tp=4,cp=2", 8, "gpt2-large", length=65_536).reasons


MIXTRAL = PRESETS["mixtral-8x7b"]
_OF_EXPERTS = 32 * 8 * 3 * 4096 * 14_336  # layers, experts, matrices


@pytest.mark.parametrize("expert", [2, 4, 8])
def test_a_rank_holds_its_part_of_the_experts(expert: int) -> None:
    (part,) = shares(size_of("mixtral-8x7b"), topology_of(f"dp=8,ep={expert}"))
    rest = MIXTRAL.parameters - _OF_EXPERTS
    assert part.size.parameters == rest + _OF_EXPERTS // expert
    assert part.size.shape is not None
    assert part.size.shape.of_experts == _OF_EXPERTS // expert
    # Ranks with the same experts are 8 / ep: fully sharded, all states are on 8 ranks, however they are divided.
    states = {
        strategy.name: need(part.size, MIXED, strategy, 8, 8, expert=expert).states.total for strategy in STRATEGIES
    }
    assert states["DDP"] == 16 * (rest + _OF_EXPERTS // expert)
    assert states["ZeRO-3"] == pytest.approx(16 * MIXTRAL.parameters / 8, rel=1e-6)
    assert states["ZeRO-1"] == pytest.approx(4 * (rest + _OF_EXPERTS // expert) + 12 * MIXTRAL.parameters / 8, rel=1e-6)


def test_experts_are_divided_by_stages_and_matrices_as_well() -> None:
    parts = shares(size_of("mixtral-8x7b"), topology_of("dp=4,tp=2,pp=8,ep=4"))
    held = [part.size.shape.of_experts for part in parts if part.size.shape is not None]
    assert held == [_OF_EXPERTS // 8 // 2 // 4] * 8


def test_tokens_go_to_their_experts_and_come_back() -> None:
    """Two experts a token of 4096 elements in 16 bits; of eight ranks, seven are others; forward and backward."""
    assert routed(MIXTRAL, 1000, 2, 8) == 4 * 1000 * 2 * 4096 * 2 * 7 // 8
    cluster = cluster_of(16, "H100")
    (within,) = axis_traffic(MIXTRAL, topology_of("dp=16,ep=8"), cluster, 1000, 2, 3)
    assert (within.axis, within.bytes, within.across) == ("ep", routed(MIXTRAL, 1000, 2, 8) * 32 * 3, False)
    more = planned("dp=16,ep=8", 16, "mixtral-8x7b")
    assert more.speed is None
    assert [axis.axis for axis in more.rows[0].axes] == ["ep"]


def test_gradients_of_experts_meet_only_ranks_with_the_same_experts() -> None:
    """With as many parts as ranks nobody shares an expert: what is left is the rest of the model."""
    sent = {expert: planned(f"dp=8,ep={expert}", 8, "mixtral-8x7b").rows[0].traffic.shards for expert in (2, 8)}
    rest = MIXTRAL.parameters - _OF_EXPERTS
    assert sent[8] == round(2 * 2 * rest * 7 / 8)
    assert sent[2] == round(2 * 2 * rest * 7 / 8) + round(2 * 2 * _OF_EXPERTS / 2 * 3 / 4)


@pytest.mark.parametrize(
    ("topology", "model", "message"),
    [
        ("dp=12,ep=12", "mixtral-8x7b", "ep=12 does not divide the 8 experts"),
        ("dp=8,ep=4", "llama-3-8b", "llama-3-8b has none"),
        ("dp=8,ep=4", "70B", "has none that are known"),
    ],
)
def test_experts_that_cannot_be_divided_are_refused(topology: str, model: str, message: str) -> None:
    with pytest.raises(DiagError, match=message):
        shares(size_of(model), topology_of(topology))


@pytest.mark.parametrize(("recipe", "bytes_of"), [("mixed-fp32-gradients", (6, 12)), ("fp32", (8, 8))])
def test_megatrons_distributed_optimizer_by_its_own_table(recipe: str, bytes_of: tuple[int, int]) -> None:
    """Megatron Core's guide, Distributed Optimizer: 6 + 12/d and 8 + 8/d bytes a parameter on d ranks."""
    size = size_of("1B")
    kept, divided = bytes_of
    zero_1 = next(strategy for strategy in STRATEGIES if strategy.name == "ZeRO-1")
    for ranks in (2, 8, 64):
        found = need(size, RECIPES[recipe], zero_1, ranks, 8)
        assert found.states.total == pytest.approx(size.parameters * (kept + divided / ranks), rel=1e-6)


def test_megatron_reduces_in_the_buffer_that_holds_the_gradients() -> None:
    zero_1 = next(strategy for strategy in STRATEGIES if strategy.name == "ZeRO-1")
    assert need(LLAMA, RECIPES["mixed-fp32-gradients"], zero_1, 8, 8).buffers == 0
    assert need(LLAMA, MIXED, zero_1, 8, 8).buffers > 0

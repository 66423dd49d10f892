"""The rows of the grid for GPU traces: what is planted, in which jobs, and how strongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.bench.grid.gpu.costs import Change, share_of
from tests.bench.grid.gpu.engine import MS, US
from tests.bench.grid.gpu.job import REPLICATED_OR_SHARDED, Fault, Job, Planted, Recipe
from tests.bench.grid.gpu.plant import planted
from tests.bench.grid.gpu.simulate import without_communication
from tests.copies import replace

TUNING, HELDOUT = "tuning", "heldout"
_HEALTHY_COMMUNICATION = 0.06  # the most that a healthy job leaves exposed


@dataclass(frozen=True)
class Half:
    """What the models, jobs and faults of one half of the grid are drawn from; the halves share nothing."""

    blocks: tuple[int, ...]
    dims: tuple[int, ...]
    worlds: tuple[int, ...]
    large: int
    block_ms: tuple[float, ...]
    shares: tuple[float, ...]
    seed: int


HALVES = {
    TUNING: Half((4, 6), (2048, 3072), (2, 4, 8), 32, (2.0, 4.0), (0.05, 0.10, 0.20, 0.40), 1),
    HELDOUT: Half((5, 9), (2560, 4096), (3, 6, 16), 64, (3.0, 6.5), (0.07, 0.105, 0.14, 0.25, 0.45), 2),
}


def base_job(half: Half, rng: Random, recipes: tuple[Recipe, ...] = REPLICATED_OR_SHARDED, world: int = 0) -> Job:
    """A healthy job of the half: communication fits behind computation."""
    recipe = rng.choice(recipes)
    world = world or rng.choice([w for w in half.worlds if recipe != Recipe.HSDP or (w % 2 == 0 and w > 2)])
    spread = rng.random() < 0.5
    per_node = world // 2 if (recipe == Recipe.HSDP or spread) and world % 2 == 0 else 8 if world > 8 else world
    dim, blocks = rng.choice(half.dims), rng.choice(half.blocks)
    block_ns = round(rng.choice(half.block_ms) * MS)
    size = 2 * 12 * dim * dim
    job = Job(
        recipe=recipe,
        world=world,
        per_node=per_node,
        blocks=blocks,
        dim=dim,
        block_ns=block_ns,
        head_ns=block_ns // 2,
        optimizer_ns=block_ns // 2,
        reshard=rng.random() < 0.6,
        bucket_blocks=1,
        alpha_ns=rng.choice((20, 40)) * US,
        gb_s=size / (rng.choice((0.12, 0.2, 0.3)) * block_ns),
        read_loss=rng.random() < 0.7,
        clip=rng.random() < 0.8,
        numbered=rng.random() < 0.7,
        own_ranges=rng.random() < 0.4,
        seed=rng.randrange(1 << 30),
    )
    job = replace(
        job,
        # What NTP leaves, on every node its own.
        offset_ns=tuple(rng.randrange(-2 * MS, 2 * MS) for _ in range(job.nodes)),
        drift_ppm=tuple(rng.uniform(-10, 10) for _ in range(job.nodes)),
    )
    while share_of(job, without_communication) > _HEALTHY_COMMUNICATION:
        job = replace(job, gb_s=job.gb_s * 1.5, alpha_ns=job.alpha_ns * 2 // 3)
    return job


Make = Callable[[Half, Random, float], Job]


@dataclass(frozen=True)
class Row:
    """``graded``: the share that is asked for matters. ``planted``: what is removed to measure it."""

    id: str
    make: Make
    rid: Change
    graded: bool = True
    recipes: tuple[Recipe, ...] = REPLICATED_OR_SHARDED


def _rid(*kinds: Planted) -> Change:
    return lambda job: job.without(*kinds)


def _with(job: Job, fault: Fault) -> Job:
    return replace(job, faults=(*job.faults, fault))


def add(job: Job, kind: Planted, share: float, ranks: tuple[int, ...] = (), **how: int | bool) -> Job:
    """The job with one more fault that costs this share."""
    first = {Planted.NETWORK: 500, Planted.TAIL: 200 * US}.get(kind, round(share * job.blocks * job.block_ns * 3))

    def plant(job: Job, amount: int) -> Job:
        return _with(job, Fault(kind, amount, ranks, **how))  # type: ignore[arg-type]

    return planted(job, plant, _rid(kind), share, first)


def fault(
    id: str, kind: Planted, *, one: bool = False, recipes: tuple[Recipe, ...] = REPLICATED_OR_SHARDED, **how: int | bool
) -> Row:
    """A row with one fault, on all ranks or on one."""

    def make(half: Half, rng: Random, share: float) -> Job:
        job = base_job(half, rng, recipes)
        job = replace(job, steps=7 if how.get("every") else rng.choice((4, 5)))
        return add(job, kind, share, (rng.randrange(job.world),) if one else (), **how)

    return Row(id, make, _rid(kind))


_SHARDED = (Recipe.FSDP2, Recipe.HSDP)


def _healthy(recipe: Recipe, **how: bool) -> Make:
    def make(half: Half, rng: Random, share: float) -> Job:
        return replace(base_job(half, rng, (recipe,)), **how)  # type: ignore[arg-type]

    return make


def _large(kind: Planted | None) -> Make:
    def make(half: Half, rng: Random, share: float) -> Job:
        job = replace(base_job(half, rng, (Recipe.FSDP2,), half.large), per_node=8, steps=4)
        job = replace(job, offset_ns=tuple(rng.randrange(-2 * MS, 2 * MS) for _ in range(job.nodes)), drift_ppm=())
        return add(job, kind, share, (rng.randrange(job.world),)) if kind else job

    return make


def _hidden_loader(half: Half, rng: Random, share: float) -> Job:
    """The loader takes a good part of a step, while the device has enough to do."""
    job = replace(base_job(half, rng), read_loss=False)
    step = job.blocks * job.block_ns * 3
    return _with(job, Fault(Planted.DATA, round((0.2 + share) * step)))


def _hidden_network(half: Half, rng: Random, share: float) -> Job:
    """Communication takes much of the step, behind the computation."""
    job = base_job(half, rng)
    return add(job, Planted.NETWORK, max(0.01, 0.075 - share_of(job, without_communication)))


def _wrapped(wrap: str) -> Make:
    def make(half: Half, rng: Random, share: float) -> Job:
        job = replace(base_job(half, rng, _SHARDED), wrap=wrap, steps=4)
        if wrap == "root":
            job, gb_s = replace(job, alpha_ns=20 * US), job.gb_s
            return planted(job, lambda j, n: replace(j, gb_s=gb_s * 1000 / n), without_communication, share, 1000)
        small = replace(job, dim=512, blocks=job.blocks + 4, block_ns=job.block_ns // 3, gb_s=100.0)
        return planted(small, lambda j, n: replace(j, alpha_ns=n), without_communication, share, 100 * US)

    return make


def _no_prefetch(how: str) -> Make:
    def make(half: Half, rng: Random, share: float) -> Job:
        job = replace(base_job(half, rng, _SHARDED), prefetch=how, reshard=True, head_ns=MS)
        # All of it could be hidden: gathering and reducing a block take at most nine tenths of its backward.
        ratio = min(0.9, 1.8 * share)
        return replace(job, gb_s=2 * job.block_params / (ratio * job.block_ns), alpha_ns=20 * US)

    return make


def _sockets(half: Half, rng: Random, share: float) -> Job:
    """NCCL found no fast network and took the first interface: a few hundred megabytes a second."""
    return replace(base_job(half, rng), gb_s=rng.choice((0.1, 0.3)), alpha_ns=MS, block_ns=100 * MS, steps=4)


def _pair(first: Planted, second: Planted, parts: tuple[float, float], one: tuple[bool, bool]) -> Make:
    def make(half: Half, rng: Random, share: float) -> Job:
        # Where the host runs ahead, a slow host and a slow device hide each other: neither is the cause alone.
        job = replace(base_job(half, rng), read_loss=True)
        rank = rng.randrange(job.world)
        whole = 0.25 + share / 2
        a, b = (whole * part / sum(parts) for part in parts)
        job = add(job, first, a / (1 - b), (rank,) if one[0] else ())
        return add(job, second, b, (rank,) if one[1] else ())

    return make


def _clocks(kind: Planted | None, one: bool) -> Make:
    def make(half: Half, rng: Random, share: float) -> Job:
        job = base_job(half, rng, world=rng.choice([w for w in half.worlds if w % 2 == 0]))
        job = replace(job, per_node=job.world // 2)
        far = (50 * MS, 3_000 * MS, 7_200_000 * MS)
        job = replace(
            job,
            offset_ns=tuple(rng.choice((-1, 1)) * rng.choice(far) * n for n in range(job.nodes)),
            drift_ppm=tuple(rng.choice((-20.0, 20.0)) * n for n in range(job.nodes)),
        )
        return add(job, kind, share, (rng.randrange(job.world),) if one else ()) if kind else job

    return make


def _nothing(job: Job) -> Job:
    return job


_P = Planted
GPU_ROWS = (
    Row("H0-ddp", _healthy(Recipe.DDP), _nothing, graded=False),
    Row("H0-fsdp2", _healthy(Recipe.FSDP2, reshard=True), _nothing, graded=False),
    Row("H0-fsdp2-no-reshard", _healthy(Recipe.FSDP2, reshard=False), _nothing, graded=False),
    Row("H0-hsdp", _healthy(Recipe.HSDP), _nothing, graded=False),
    Row("H0-large", _large(None), _nothing, graded=False),
    Row("D4-hidden-loader", _hidden_loader, _rid(_P.DATA), graded=False),
    Row("N0-hidden-network", _hidden_network, _rid(_P.NETWORK), graded=False),
    fault("D1-data-all", _P.DATA),
    fault("D2-data-one", _P.DATA, one=True),
    fault("D3-data-bursty", _P.DATA, every=3),
    fault("N1-network", _P.NETWORK),
    Row("N1-sockets", _sockets, without_communication, graded=False),
    fault("N2-link", _P.TAIL, one=True),
    Row("W1-per-linear", _wrapped("linear"), without_communication),
    Row("W2-root-only", _wrapped("root"), without_communication),
    Row("P1-no-prefetch", _no_prefetch("late"), without_communication),
    Row("P1-sync-before-gather", _no_prefetch("sync"), without_communication),
    fault("S1-forward", _P.FORWARD, one=True),
    fault("S3-backward", _P.BACKWARD, one=True),
    fault("S2-rotating", _P.FORWARD, rotate=True),
    Row("S1-large", _large(_P.FORWARD), _rid(_P.FORWARD)),
    fault("L1-launch-bound", _P.TINY),
    fault("L1-launch-bound-one", _P.TINY, one=True),
    fault("L2-item", _P.ITEM),
    fault("K1-checkpoint", _P.CHECKPOINT, every=3),
    fault("K1-checkpoint-one", _P.CHECKPOINT, one=True),
    fault("C1-gc-one", _P.GC, one=True),
    fault("X0-copies", _P.COPY),
    fault("M1-allocator", _P.ALLOCATOR),
    Row("X1-D2-N1-2:1", _pair(_P.DATA, _P.NETWORK, (2, 1), (True, False)), _rid(_P.DATA)),
    Row("X1-D2-N1-1:1", _pair(_P.DATA, _P.NETWORK, (1, 1), (True, False)), _rid(_P.DATA)),
    Row("X1-S1-D1-2:1", _pair(_P.FORWARD, _P.DATA, (2, 1), (True, False)), _rid(_P.FORWARD)),
    Row("X1-S1-D1-1:1", _pair(_P.FORWARD, _P.DATA, (1, 1), (True, False)), _rid(_P.FORWARD)),
    Row("Q1-clocks-healthy", _clocks(None, False), _nothing, graded=False),
    Row("Q1-clocks-D2", _clocks(_P.DATA, True), _rid(_P.DATA)),
    Row("Q1-clocks-S3", _clocks(_P.BACKWARD, True), _rid(_P.BACKWARD)),
    Row("Q1-clocks-N1", _clocks(_P.NETWORK, False), _rid(_P.NETWORK)),
    fault("Q2-missing-other", _P.DATA, one=True),
    fault("Q2-missing-culprit", _P.DATA, one=True),
    fault("Q2-truncated", _P.FORWARD, one=True),
)  # fmt: skip

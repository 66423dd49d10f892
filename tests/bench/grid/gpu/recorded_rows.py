"""Further rows for GPU traces: communication with a cause of its own, what records beside the traces explain, noise.

In the first kind the part that is planted is most of what is exposed: the network is as slow as it takes for the part
to cost what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.bench.grid.gpu.costs import REFERENCE_MFU, Change
from tests.bench.grid.gpu.engine import US
from tests.bench.grid.gpu.job import Fault, Job, Planted, Recipe, Recorded
from tests.bench.grid.gpu.plant import planted
from tests.bench.grid.gpu.rows import Half, Make, Row, add, base_job
from tests.bench.grid.gpu.simulate import without_communication
from tests.bench.grid.truth import WARN
from tests.copies import replace

_P = Planted
_TIMES_SLOWER = 3000  # thousandths: reduce-scatters at a quarter of what the gathers show


def _one_clock(job: Job) -> Job:
    """Records need no help with clocks: rows about them are not about that."""
    return replace(job, per_node=job.world if job.recipe != Recipe.HSDP else job.per_node, offset_ns=(), drift_ppm=())


def _slow_wire(recipes: tuple[Recipe, ...], change: Callable[[Job], Job]) -> Make:
    """The network as slow as it takes for all exposed communication to cost the share."""

    def make(half: Half, rng: Random, share: float) -> Job:
        job = change(_one_clock(replace(base_job(half, rng, recipes), steps=4)))
        gb_s = job.gb_s
        job = replace(job, alpha_ns=20 * US)
        return planted(job, lambda j, n: replace(j, gb_s=gb_s * 1000 / n), without_communication, share, 1000)

    return make


def _bucket(job: Job) -> Job:
    return replace(job, bucket_blocks=job.blocks)


def _every_micro_step(job: Job) -> Job:
    return replace(job, micro_batches=4, recorded=Recorded(memory_free=0.05), reshard=False)


def _wide_reductions(job: Job) -> Job:
    return replace(job, reshard=False, reduce_width=4)


def _late_backward(job: Job) -> Job:
    return replace(job, reshard=True, prefetch="late-backward", recorded=Recorded())


def _slow_reductions(job: Job) -> Job:
    fault = Fault(_P.REDUCE, _TIMES_SLOWER)
    return replace(job, reshard=False, faults=(fault,))


def _longest_batch(half: Half, rng: Random, share: float) -> Job:
    job = _one_clock(replace(base_job(half, rng), steps=8, read_loss=True, recorded=Recorded(longest=True)))
    return add(job, _P.FORWARD, share, rotate=True)


def _hot(half: Half, rng: Random, share: float) -> Job:
    job = _one_clock(base_job(half, rng))
    rank = rng.randrange(job.world)
    return add(replace(job, recorded=Recorded(throttled=(rank,))), _P.FORWARD, share, (rank,))


def _little_use(half: Half, rng: Random, share: float) -> Job:
    """The more is asked for, the less use; up to a tenth it is as usual."""
    job = _one_clock(base_job(half, rng))
    mfu = 0.97 * REFERENCE_MFU if share <= WARN else 0.9 * REFERENCE_MFU * (1 - share)
    return replace(job, recorded=Recorded(mfu=mfu))


def _good_use(half: Half, rng: Random, share: float) -> Job:
    job = _one_clock(base_job(half, rng))
    return replace(job, recorded=Recorded(mfu=rng.uniform(0.34, 0.5)))


def _restless(half: Half, rng: Random, share: float) -> Job:
    """Kernels that vary by 2 to 5 % each, and ranks by half of that from step to step."""
    return replace(base_job(half, rng), jitter=rng.uniform(0.02, 0.05))


def _node(half: Half, rng: Random, share: float) -> Job:
    """All ranks of one of several nodes are slow."""
    recipes = (Recipe.DDP, Recipe.FSDP2)
    job = base_job(half, rng, recipes, rng.choice([world for world in half.worlds if world > 3]))
    per_node = 2
    nodes = job.world // per_node
    job = replace(
        job,
        per_node=per_node,
        clip=True,
        offset_ns=tuple(rng.randrange(-2_000_000, 2_000_000) for _ in range(nodes)),
        drift_ppm=(),
    )
    node = rng.randrange(nodes)
    return add(job, _P.BACKWARD, share, tuple(range(node * per_node, (node + 1) * per_node)))


def _nothing(job: Job) -> Job:
    return job


def _without(*kinds: Planted) -> Change:
    return lambda job: job.without(*kinds)


MORE_ROWS = (
    Row("H0-jitter", _restless, _nothing, graded=False),
    Row("H0-recorded", _good_use, _nothing, graded=False),
    Row("B1-one-bucket", _slow_wire((Recipe.DDP,), _bucket), without_communication),
    Row(
        "G1-sync-every",
        _slow_wire((Recipe.DDP, Recipe.FSDP2), _every_micro_step),
        lambda j: replace(j, reduce_every=False),
    ),
    Row("R1-regather", _slow_wire((Recipe.FSDP2,), _late_backward), lambda j: replace(j, reshard=False)),
    Row("R3-reduce-stall", _slow_wire((Recipe.FSDP2,), _wide_reductions), without_communication),
    Row("N3-low-bandwidth", _slow_wire((Recipe.FSDP2,), _slow_reductions), _without(_P.REDUCE)),
    Row("S2-longest-batch", _longest_batch, _without(_P.FORWARD)),
    Row("S4-throttled", _hot, _without(_P.FORWARD)),
    Row("S5-node", _node, _without(_P.BACKWARD)),
    Row("U1-low-mfu", _little_use, _nothing, graded=False),
)

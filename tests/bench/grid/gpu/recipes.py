"""What DDP, FSDP2 and HSDP do in a step.

FSDP2 as torch 2.13 schedules it: a unit's all-gather waits, in forward, for the copy-out of the unit
before the last one; in backward it is asked for as soon as the unit after it has been copied out. Gradients are reduced
when a unit's backward is done, and the computation waits for the reduction before that one. All-gathers and
reduce-scatters share a communicator, unless set_separate_reduce_scatter_group gives the latter one of their own: then
neither waits for the other, as far as the network sustains both, which is not simulated.
"""

from __future__ import annotations

from tests.bench.grid.gpu.deepspeed import Engine
from tests.bench.grid.gpu.engine import (
    AUTOGRAD,
    COMPUTE_STREAM,
    COPY_IN_STREAM,
    GATHER_STREAM,
    GRADIENT_STREAM,
    MAIN,
    POOL_STREAM,
    REDUCE_STREAM,
    US,
    Program,
    Rank,
)
from tests.bench.grid.gpu.job import BETWEEN, Job, Planted, Recipe
from tests.bench.grid.gpu.loop import CAST, CHUNK_CAT, COPY_OUT, SMALL, Ends, Loop, Steps

_POOL = 32  # streams
_CAST, _HALVED = 400, 600  # elements a nanosecond that a device's memory lets through, of 6 bytes and of 4


def programs(job: Job, ranks: dict[int, Rank]) -> dict[int, Program]:
    """By rank, all that it does."""
    if job.host is not None:
        engines = {rank: Engine(own, job.host) for rank, own in ranks.items()}
        return {rank: Loop(job, own, engines[rank].passes, engines[rank].update).run() for rank, own in ranks.items()}
    recipe = ddp if job.recipe == Recipe.DDP else fsdp2
    return {rank: Loop(job, own, recipe).run() for rank, own in ranks.items()}


def ddp(loop: Loop) -> Steps:
    """Gradients are reduced in buckets while the backward goes on."""
    job, r = loop.job, loop.r
    with r.span("DistributedDataParallel.forward"), loop.own("forward"):
        r.work("aten::embedding", 30 * US)
        r.launch(SMALL, 50 * US, op="aten::embedding")
        slower = loop.planted(Planted.FORWARD) // job.blocks
        for _ in range(job.blocks):
            loop.kernels(job.block_ns, False, slower)
            loop.disturb(job.blocks)
        loop.kernels(job.head_ns, False)
    r.thread = AUTOGRAD
    with r.span("autograd::engine::evaluate_function: NllLossBackward0", "cpu_op"), loop.own("backward"):
        loop.kernels(2 * job.head_ns, True)
        slower = loop.planted(Planted.BACKWARD) // job.blocks
        waiting, reduced = job.root_params, 0
        for i in range(job.blocks):
            loop.kernels(2 * job.block_ns, True, slower)
            waiting += job.block_params
            if loop.reduces and ((i + 1) % job.bucket_blocks == 0 or i + 1 == job.blocks):
                if job.compressed:
                    done = yield from _compressed(loop, waiting, POOL_STREAM + i % _POOL)
                else:
                    done = yield from loop.meet("all_reduce", waiting, loop.everyone, GRADIENT_STREAM)
                reduced, waiting = max(reduced, done), 0
        r.wait_for(reduced)
    r.thread = MAIN


def _compressed(loop: Loop, elements: int, stream: int) -> Ends:
    """One bucket of fp32 gradients as bf16_compress_hook reduces it (ddp_comm_hooks/default_hooks.py): cast and divided
    where the backward runs, all-reduced, and cast back on a stream of the pool, since a future's callback never runs on
    the one it was waited for on (ATen/core/ivalue_inl.h, invokeCallback). When it is cast back."""
    r = loop.r
    r.launch(CAST, 5 * US + elements // _CAST, op="aten::to")
    r.launch(SMALL, 5 * US + elements // _HALVED, op="aten::div_")
    reduced = yield from loop.meet("all_reduce", elements, loop.everyone, GRADIENT_STREAM)
    return r.launch(CAST, 5 * US + elements // _CAST, stream, reduced, op="aten::copy_")


class _Sharded:
    """The parameters of one rank under FSDP2: what is gathered, and which copy-outs its gathering waits for."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.r, self.job = loop, loop.r, loop.job
        self.copied_out: list[int] = []
        self.reduced = 0

    def gather(self, name: str, params: int, after: int) -> Ends:
        r = self.r
        with r.span(f"FSDP::all_gather ({name})" if name else "FSDP::all_gather"):
            ready = r.launch(SMALL, 5 * US + params // 400_000, COPY_IN_STREAM, after, op="fsdp::all_gather_copy_in")
            return (yield from self.loop.meet("all_gather", params, self.loop.shards, GATHER_STREAM, max(ready, after)))

    def copy_out(self, name: str, params: int, gathered: int) -> None:
        r = self.r
        with r.span(f"FSDP::all_gather_copy_out ({name})" if name else "FSDP::all_gather_copy_out"):
            end = r.launch(COPY_OUT, 5 * US + params // 400, after=gathered, op="fsdp::split_with_sizes_copy")
        self.copied_out.append(end)

    def reduce(self, name: str, params: int) -> Steps:
        r, loop = self.r, self.loop
        if not loop.reduces:
            return
        with r.span(f"FSDP::post_backward_reduce ({name})" if name else "FSDP::post_backward_reduce"):
            r.wait_for(self.reduced)  # FSDP::post_backward_rs_wait
            ready = r.launch(
                CHUNK_CAT, 5 * US + params // 400, REDUCE_STREAM, r.free[COMPUTE_STREAM], op="fsdp::chunk_cat"
            )
            free = BETWEEN in loop.job.free_ops and name not in ("", loop.units[0].name)
            self.reduced = yield from loop.meet(
                "reduce_scatter", params, loop.reductions, REDUCE_STREAM, ready, free=free
            )
            if loop.replicas is not None:
                shard = params // len(loop.shards.ranks)
                self.reduced = yield from loop.meet("all_reduce", shard, loop.replicas, GRADIENT_STREAM, self.reduced)


def fsdp2(loop: Loop) -> Steps:
    job, r, units = loop.job, loop.r, loop.units
    sharded = _Sharded(loop)
    with loop.own("forward"):
        yield from _forward(loop, sharded)
    r.thread = AUTOGRAD
    own = job.wrap != "root"  # whether the blocks are units of their own
    with loop.own("backward"):
        with r.span("autograd::engine::evaluate_function: NllLossBackward0", "cpu_op"):
            loop.kernels(2 * job.head_ns, True)
        slower = loop.planted(Planted.BACKWARD) // len(units)
        gathered = 0
        for i in range(len(units) - 1, -1, -1):
            unit = units[i]
            if own and job.reshard:
                with r.span(f"FSDP::pre_backward ({unit.name})"):
                    if i == len(units) - 1 or job.prefetch != "implicit":
                        gathered = yield from sharded.gather(unit.name, unit.params, _asked(loop, sharded, False))
                    sharded.copy_out(unit.name, unit.params, gathered)
                    if i and job.prefetch == "implicit":
                        before = units[i - 1]
                        with r.span(f"FSDP::backward_prefetch for {before.name}"):
                            gathered = yield from sharded.gather(before.name, before.params, sharded.copied_out[-1])
            with r.span("autograd::engine::evaluate_function: MmBackward0", "cpu_op"):
                loop.kernels(2 * unit.forward_ns, True, slower)
            if own:
                yield from sharded.reduce(unit.name, unit.params)
        yield from sharded.reduce("", loop.root_params)
        with r.span("FSDP::root_post_backward_callback"):
            r.wait_for(sharded.reduced)
            r.work("aten::detach", 20 * US)
    r.thread = MAIN


def _forward(loop: Loop, sharded: _Sharded) -> Steps:
    job, r, units = loop.job, loop.r, loop.units
    with r.span("FSDP::root_pre_forward"):
        r.work("aten::_to_copy", 30 * US)
        gathered = yield from sharded.gather("", loop.root_params, r.free[COMPUTE_STREAM])
        sharded.copy_out("", loop.root_params, gathered)
    r.launch(SMALL, 50 * US, op="aten::embedding")
    slower = loop.planted(Planted.FORWARD) // len(units)
    for unit in units:
        if job.wrap != "root":
            with r.span(f"FSDP::pre_forward ({unit.name})"):
                gathered = yield from sharded.gather(unit.name, unit.params, _asked(loop, sharded, True))
                sharded.copy_out(unit.name, unit.params, gathered)
        loop.kernels(unit.forward_ns, False, slower)
        loop.disturb(len(units))
        with r.span(f"FSDP::post_forward ({unit.name})"):
            r.work("aten::view", 8 * US)
    with r.span("FSDP::post_forward"):
        r.work("aten::view", 8 * US)
    loop.kernels(job.head_ns, False)


def _asked(loop: Loop, sharded: _Sharded, forward: bool) -> int:
    """What the gathering of the next unit waits for on the device."""
    r = loop.r
    if loop.job.prefetch == "sync":
        r.synchronise(r.free[COMPUTE_STREAM])
        return r.now
    if loop.job.prefetch == "late" or not forward:  # "late-backward" comes here in the backward only
        return r.free[COMPUTE_STREAM]
    return sharded.copied_out[-2] if len(sharded.copied_out) > 1 else sharded.copied_out[-1]

"""The loop of a training script on one rank: data, the recipe's forward and backward, the optimizer, the loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from tests.bench.grid.gpu.engine import (
    COMPUTE_STREAM,
    GRADIENT_STREAM,
    US,
    Call,
    Group,
    Marked,
    Rank,
    apart,
    groups_of,
    ring_ns,
)
from tests.bench.grid.gpu.job import Job, Planted, Recipe

Steps = Generator[Call, int, None]
Ends = Generator[Call, int, int]

WARM_STEPS = 2  # run before the profiler looks
FIRST_STEP = 10  # the number of the first step that it sees
_NCCL = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_TRAITS = "Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t"
_ATTENTION = "aten::_scaled_dot_product_flash_attention"
_FORWARD = (
    (0.30, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "aten::mm"),
    (0.25, f"void flash_fwd_kernel<{_TRAITS}>, true>(flash::Flash_fwd_params)", f"{_ATTENTION}"),
    (0.35, "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "aten::mm"),
    (0.10, "void at::native::vectorized_elementwise_kernel<4, BinaryFunctor<float, float> >(int, float)", "aten::mul"),
)  # fmt: skip
_BACKWARD = (
    (0.15, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x256x64_cublas", "aten::mm"),
    (0.15, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x256x64_cublas", "aten::mm"),
    (0.30, f"void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{_TRAITS}>, true>(int)", f"{_ATTENTION}_backward"),
    (0.15, "nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_TNN", "aten::mm"),
    (0.15, "nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_NTT", "aten::mm"),
    (0.10, "void at::native::elementwise_kernel<128, 4, silu_backward_kernel>(int)", "aten::silu_backward"),
)  # fmt: skip
_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, float>(float)"
)
COPY_OUT = "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)"
CHUNK_CAT = "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<c10::BFloat16, float>(float)"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda, 4, float>(int, float)"
SMALL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float)"
NORM = "void at::native::reduce_kernel<512, 1, at::native::NormTwoOps<float> >(float)"


@dataclass(frozen=True)
class Unit:
    """What is gathered and reduced together: ``params``, and its forward."""

    name: str
    params: int
    forward_ns: int


class Loop:
    """The training script of one rank. ``recipe``: its forward and backward; ``optimize``: its optimizer, where it is
    not PyTorch's on the device."""

    def __init__(
        self,
        job: Job,
        rank: Rank,
        recipe: Callable[[Loop], Steps],
        optimize: Callable[[Loop], Steps] | None = None,
    ) -> None:
        self.job, self.r, self.recipe, self.step, self.data_end = job, rank, recipe, 0, 0
        self.optimize = optimize or Loop._optimize
        self.reduces = True  # in this micro-batch
        everyone, inside, across = groups_of(job.world, job.per_node if job.recipe == Recipe.HSDP else job.world)
        self.everyone = everyone
        node = rank.rank // job.per_node
        self.shards = inside[node] if job.recipe == Recipe.HSDP else everyone
        self.reductions = apart(self.shards) if job.own_reduce_group else self.shards
        self.replicas = across[rank.rank % job.per_node] if job.recipe == Recipe.HSDP else None
        if job.wrap == "linear":
            parts = (("qkv", 0.25), ("proj", 0.1), ("up", 0.35), ("down", 0.3))
            self.units = [
                Unit(f"layers.{i}.{name}", round(job.block_params * part), round(job.block_ns * part))
                for i in range(job.blocks)
                for name, part in parts
            ]
        else:
            self.units = [Unit(f"layers.{i}", job.block_params, job.block_ns) for i in range(job.blocks)]
        self.root_params = job.root_params + (job.blocks * job.block_params if job.wrap == "root" else 0)

    def planted(self, kind: Planted) -> int:
        return self.job.amount(kind, self.step, self.r.rank)

    def run(self) -> Steps:
        job, r = self.job, self.r
        for self.step in range(WARM_STEPS + job.steps):
            r.recording = self.step >= WARM_STEPS and r.keeps_events
            r.pace = 1 + 0.5 * r.jitter * (2 * r.random.random() - 1)
            number = self.step - WARM_STEPS + FIRST_STEP
            begin = r.now
            r.marked[-1].edges.append(r.mark())
            with r.span(f"ProfilerStep#{number}"), self._own_step(number):
                yield from self._one_step()
            r.step_ends.append(max(r.now, *r.free.values()))
            r.host_steps.append((begin, self.data_end, r.now))
            r.marked[-1].edges.append(r.mark())
            r.marked.append(Marked())
        r.synchronise(max(r.free.values()), "cudaDeviceSynchronize")  # what the profiler does when it stops

    @contextmanager
    def own(self, name: str) -> Iterator[None]:
        """A phase, with diag's own range around it where the job has these."""
        with self.r.span(f"diag.{name}") if self.job.own_ranges else nullcontext(), self.r.phase(name):
            yield

    def _own_step(self, number: int) -> AbstractContextManager[None]:
        return self.r.span(f"diag.step#{number}") if self.job.own_ranges else nullcontext()

    def _one_step(self) -> Steps:
        job, r = self.job, self.r
        waited = r.varied(job.data_ns) + self.planted(Planted.DATA)
        with self.own("data"):
            r.work("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", waited, "user_annotation")
        self.data_end = r.now
        copied = r.varied(job.copy_ns)
        with r.phase("h2d"):
            if extra := self.planted(Planted.COPY):
                r.copy("Memcpy HtoD (Pageable -> Device)", copied + extra, blocking=True)
            else:
                r.copy("Memcpy HtoD (Pinned -> Device)", copied)
        if self.planted(Planted.GC):
            r.marked[-1].pauses.append((r.now, r.now + self.planted(Planted.GC)))
            r.work("Python GC", self.planted(Planted.GC), "python_function")
        for micro in range(job.micro_batches):
            self.reduces = job.reduce_every or micro + 1 == job.micro_batches
            yield from self.recipe(self)
        self._allocate()
        yield from self.optimize(self)
        if job.read_loss:
            r.copy("Memcpy DtoH (Device -> Pageable)", 2 * US)
            r.synchronise(r.free[COMPUTE_STREAM])
            r.work("aten::item", 20 * US)
        if stall := self.planted(Planted.CHECKPOINT):
            with r.phase("checkpoint"):
                r.synchronise(max(r.free.values()), "cudaDeviceSynchronize")
                r.work("diag.checkpoint", stall, "user_annotation")

    def _optimize(self) -> Steps:
        job, r = self.job, self.r
        if job.clip:
            r.launch(NORM, 20 * US, op="aten::linalg_vector_norm")
            yield from self.meet("all_reduce", 1, self.everyone, GRADIENT_STREAM, dtype="Float")
            r.wait_for(r.free[GRADIENT_STREAM])
            r.launch(SMALL, 15 * US, op="aten::_foreach_mul_")
        with r.span("Optimizer.step#AdamW.step"), self.own("optimizer"):
            for _ in range(4):
                r.launch(_ADAM, r.varied(job.optimizer_ns / 4), op="aten::_fused_adamw_")
        r.launch(SMALL, 10 * US, op="aten::zero_")

    def _allocate(self) -> None:
        """The caching allocator gives memory back and asks for it again; cudaFree waits for the device."""
        total = self.planted(Planted.ALLOCATOR)
        if total:
            self.r.call("cudaFree", total // 4, max(self.r.free.values()) + total // 4)
            for _ in range(3):
                self.r.call("cudaMalloc", total // 4)

    # -- what the recipes share ----------------------------------------------------------------------------------------

    def kernels(self, ns: float, backward: bool, slower_ns: int = 0) -> None:
        """The kernels of one layer; ``slower_ns``: what is planted in them."""
        for part, name, op in _BACKWARD if backward else _FORWARD:
            self.r.launch(name, self.r.varied(ns * part) + round(slower_ns * part), op=op)

    def disturb(self, layers: int) -> None:
        """What a bad model does after each of so many layers of the forward."""
        r = self.r
        if total := self.planted(Planted.TINY):
            each = 60 * US
            for _ in range(max(1, round(total / layers / each))):
                r.launch(SMALL, 3 * US, launch_ns=each, op="aten::add")
        if total := self.planted(Planted.ITEM):
            r.copy("Memcpy DtoH (Device -> Pageable)", 2 * US)
            r.synchronise(r.free[COMPUTE_STREAM])
            r.work("aten::item", total // layers)

    def meet(
        self,
        op: str,
        elements: int,
        group: Group,
        stream: int,
        after: int = 0,
        dtype: str = "BFloat16",
        free: bool = False,
    ) -> Ends:
        """One collective of ``elements`` of the full tensor, on ``stream`` behind what the computation has been given
        unless ``after`` says otherwise."""
        job, r = self.job, self.r
        if op == "reduce_scatter" and job.reduce_width == 4:
            dtype = "Float"
        width = 4 if dtype == "Float" else 2
        kernel = {
            "all_gather": "AllGather",
            "reduce_scatter": "ReduceScatter_Sum_bf16",
            "all_reduce": "AllReduce_Sum_f32" if dtype == "Float" else "AllReduce_Sum_bf16",
        }
        names = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_reduce": "allreduce"}
        shard = max(1, elements // len(group.ranks))
        sent, got = {"all_gather": (shard, elements), "reduce_scatter": (elements, shard)}.get(op, (elements, elements))
        ns = r.varied(ring_ns(op, elements * width, len(group.ranks), job.alpha_ns, job.gb_s))
        slower = self.planted(Planted.NETWORK) + (self.planted(Planted.REDUCE) if op == "reduce_scatter" else 0)
        ns = 0 if free or op in job.free_ops else ns + ns * slower // 1000
        tail = self.planted(Planted.TAIL) if elements > 1 else 0
        args = (
            f'"Collective name": "{names[op]}", "In msg nelems": {sent}, "Out msg nelems": {got}, '
            f'"Group size": {len(group.ranks)}, "dtype": "{dtype}", "In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{group.name}", "Process Group Description": "{group.description}", '
            f'"Process Group Ranks": "{_shown(group.ranks)}"'
        )
        return (
            yield from r.collective(
                group, _NCCL.format(kernel[op]), ns, stream, after or r.free[COMPUTE_STREAM], tail, args
            )
        )


def _shown(ranks: tuple[int, ...]) -> str:
    """As torch shortens a long list."""
    text = json.dumps(list(ranks))
    return text if len(ranks) <= 32 else f"[{', '.join(map(str, ranks[:30]))}, ..., {ranks[-1]}]"

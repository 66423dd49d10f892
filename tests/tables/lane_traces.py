"""Two ranks with a GPU each, three steps, as Kineto traces: everything at a time that the test knows."""

from __future__ import annotations

from pathlib import Path

from tests.account.kineto_builder import BASE_NS, KinetoBuilder, Layout, nccl_args

US = 1000
STEP_US = 1000
STEPS = (3, 4, 5)
LATE_US = 100  # how much later rank 1 reaches the collective


FUNCTIONS = ("train.py(3): step", "model.py(7): forward")  # of Python, the second one called by the first


def gpu_trace(
    rank: int,
    names: tuple[str, str] = ("gemm", "ncclDevKernel_AllReduce"),
    base_ns: int = BASE_NS,
    python: bool = False,
) -> KinetoBuilder:
    """Each step: operators that launch a copy of 50 us, a kernel of 300 (400 on rank 1) and an all-reduce until 700.
    ``python``: recorded with stacks, so with FUNCTIONS."""
    made = KinetoBuilder(rank, base_ns=base_ns)
    for i, step in enumerate(STEPS):
        at = i * STEP_US * US
        compute_us = 300 + LATE_US * rank
        made.step(step, at, at + STEP_US * US, "ProfilerStep#")
        made.op("aten::outer", at + 5 * US, at + 90 * US).op("aten::mm", at + 10 * US, at + 60 * US)
        if python:
            made.event("python_function", FUNCTIONS[0], at + 2 * US, at + 95 * US)
            made.event("python_function", FUNCTIONS[1], at + 4 * US, at + 92 * US)
        made.copy(at + 50 * US, at + 100 * US, launch=at + 15 * US)
        made.kernel(at + 100 * US, at + (100 + compute_us) * US, names[0], launch=at + 20 * US)
        made.kernel(
            at + (100 + compute_us) * US, at + 700 * US, names[1], at + 30 * US, 20, **nccl_args("allreduce", 1000, i)
        )
        made.runtime("cudaDeviceSynchronize", at + 100 * US, at + 700 * US)
    return made


def write_gpu_traces(
    folder: Path,
    names: tuple[str, str] = ("gemm", "ncclDevKernel_AllReduce"),
    layout: Layout = "kineto",
    python: bool = False,
) -> Path:
    """A folder with the traces of both ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        gpu_trace(rank, names, python=python).framed().write(folder, f"rank-{rank}.json", compress=True, layout=layout)
    return folder

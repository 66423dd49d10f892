"""Advice that fits: what the traces and the manifest say of a run, and what is not advised because of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from diag.api import open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import Manifest, PhaseRow, RankRecord, StepRecord
from diag.diagnoses.workload import (
    Workload,
    allocator_action,
    allocator_setting,
    launch_action,
    stall_action,
    sync_action,
    workload_of,
)
from diag.rundir.run import open_paths
from diag.traces.kineto_names import AMD, INTEL, NVIDIA
from tests.account.kineto_builder import AUTOGRAD, KinetoBuilder, nccl_args

MS = 1_000_000
NODE = "autograd::engine::evaluate_function: MmBackward0"


def facts_of(folder: Path, build: KinetoBuilder) -> Workload:
    build.write(folder)
    return workload_of(open_paths([folder]))


def plain() -> KinetoBuilder:
    return KinetoBuilder().op("aten::mm", 0, 100).kernel(10, 90, launch=5)


def test_a_trace_of_an_inference(tmp_path: Path) -> None:
    expected = Workload(training=False, loader=False, vendor=NVIDIA)  # by cudaLaunchKernel
    assert facts_of(tmp_path, plain()) == expected


@pytest.mark.parametrize("name", ["## Call CompiledFxGraph fabc ##", "Torch-Compiled Region: 0/0", "CompiledFunction"])
def test_compiled_regions(tmp_path: Path, name: str) -> None:
    assert facts_of(tmp_path, plain().op(name, 200, 300)).compiled


def test_kernels_of_inductor_and_not_those_that_people_write_in_triton(tmp_path: Path) -> None:
    assert facts_of(tmp_path, plain().kernel(200, 300, "triton_red_fused_add_3")).compiled
    assert not facts_of(tmp_path, plain().kernel(200, 300, "triton_attention_fwd")).compiled


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_graphs_that_are_launched(tmp_path: Path, name: str) -> None:
    assert facts_of(tmp_path, plain().runtime(name, 200, 300)).graphs
    assert not facts_of(tmp_path, plain().runtime("cudaGraphDebugDotPrint", 200, 300)).graphs


@pytest.mark.parametrize(
    ("build", "training"),
    [
        (plain().op(NODE, 200, 300, tid=AUTOGRAD), True),
        (plain().op("aten::convolution_backward", 200, 300), True),
        (plain().range("Optimizer.step#AdamW.step", 200, 300), True),
        (plain().kernel(200, 300, "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(x)"), True),
        # A module looks for hooks of a backward in every forward, and a decoder's transposed convolution runs dgrad.
        (plain().event("python_function", "torch/nn/modules/module.py(1): _get_backward_hooks", 200, 300), False),
        (plain().kernel(200, 300, "cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_256x64"), False),
        (KinetoBuilder().kernel(0, 100), None),  # kernels alone do not say
    ],
)
def test_training_or_inference(tmp_path: Path, build: KinetoBuilder, training: bool | None) -> None:
    assert facts_of(tmp_path, build).training is training


def test_a_loader(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert facts_of(tmp_path, plain().range(name, 200, 300)).loader is True


@pytest.mark.parametrize(
    ("device", "call", "vendor"),
    [
        ("AMD Instinct MI300X", "cudaLaunchKernel", AMD),
        ("NVIDIA H100 80GB HBM3", "cudaLaunchKernel", NVIDIA),
        ("Tesla V100-SXM2-32GB", "cudaLaunchKernel", NVIDIA),
        ("Intel(R) Data Center GPU Max 1550", "urEnqueueKernelLaunch", INTEL),
        ("", "hipLaunchKernel", AMD),
        ("", "urEnqueueKernelLaunch", INTEL),
        ("", "somethingElse", ""),
    ],
)
def test_the_maker_of_the_device(tmp_path: Path, device: str, call: str, vendor: str) -> None:
    build = KinetoBuilder().op("aten::mm", 0, 100).kernel(10, 90).runtime(call, 5, 6)
    build.header["deviceProperties"] = [{"id": 0, "name": device}]
    assert facts_of(tmp_path, build).vendor == vendor


def test_a_run_without_traces_is_known_by_its_records(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    manifest = Manifest("run", 0, world_size=1, trainer={"compile": True}, versions={"torch": "2.9.1+rocm6.4"})
    replace_file(layout.manifest, encode(manifest))
    files = layout.rank(0)
    replace_file(files.identity, encode(RankRecord(0, 0, 1, "node", 1, "boot", 0, 0, "Radeon", 0)))
    files.steps.write_bytes(encode(StepRecord(0, 0, 100, [PhaseRow("backward", 0, 50)])))
    assert workload_of(open_paths([tmp_path])) == Workload(compiled=True, training=True, vendor=AMD, torch=(2, 9))


# -- texts -------------------------------------------------------------------------------------------------------------

TRAINING, INFERENCE = Workload(training=True, vendor=NVIDIA), Workload(training=False, vendor=NVIDIA)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            TRAINING,
            'torch.compile (mode="reduce-overhead" records CUDA graphs), fused optimizers (fused=True), larger '
            "micro-batches",
        ),
        (INFERENCE, 'torch.compile (mode="reduce-overhead" records CUDA graphs), larger batches'),
        (
            replace(INFERENCE, compiled=True),
            'CUDA graphs (torch.compile with mode="reduce-overhead", or torch.cuda.graph), larger batches',
        ),
        (
            replace(INFERENCE, graphs=True),
            "torch.compile, more of the step inside the graphs that it launches already, larger batches",
        ),
        (
            replace(INFERENCE, compiled=True, graphs=True),
            "fewer graph breaks and recompilations (TORCH_LOGS=graph_breaks,recompiles lists them), more of the step "
            "inside the graphs that it launches already, larger batches",
        ),
        (
            replace(INFERENCE, vendor=AMD),
            'torch.compile (mode="reduce-overhead" records HIP graphs), larger batches',
        ),
        (replace(INFERENCE, vendor=INTEL), "torch.compile, larger batches"),
    ],
)
def test_what_helps_a_host_that_launches_too_slowly(facts: Workload, text: str) -> None:
    assert launch_action(facts) == f"Launch fewer and larger kernels: {text}."


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (TRAINING, "PYTORCH_CUDA_ALLOC_CONF"),
        (replace(TRAINING, torch=(2, 8)), "PYTORCH_CUDA_ALLOC_CONF"),
        (replace(TRAINING, torch=(2, 13)), "PYTORCH_ALLOC_CONF"),
        (replace(TRAINING, vendor=INTEL), "PYTORCH_ALLOC_CONF"),
        (replace(TRAINING, vendor=AMD, torch=(2, 13)), "PYTORCH_HIP_ALLOC_CONF"),
        (Workload(), "PYTORCH_CUDA_ALLOC_CONF"),
    ],
)
def test_the_allocators_variable(facts: Workload, name: str) -> None:
    assert allocator_setting(facts).startswith(f"{name}=expandable_segments:True")
    assert f"Set {name}=" in allocator_action(facts)


def test_losses_are_printed_in_a_training() -> None:
    assert "printing of losses" in sync_action(TRAINING)
    assert "loss" not in sync_action(INFERENCE)


def test_work_goes_to_a_loader_only_where_there_is_one() -> None:
    assert "DataLoader workers" in stall_action(replace(TRAINING, loader=True))
    assert "DataLoader workers" in stall_action(TRAINING), "nothing says that there is none"
    assert "DataLoader" not in stall_action(replace(TRAINING, loader=False))


@pytest.mark.parametrize("training", [True, False])
def test_a_launch_bound_trace_is_advised_by_what_is_in_it(tmp_path: Path, training: bool) -> None:
    """Kernels of 10 us, launched every 100 us: the device idles nine tenths of each step."""
    build = KinetoBuilder(world_size=1)
    for step in range(4):
        begin = step * MS
        build.step(step, begin, begin + MS)
        for at in range(begin, begin + MS, 100_000):
            build.op("aten::mm", at, at + 50_000).kernel(at + 20_000, at + 30_000, launch=at + 10_000)
        build.runtime("cudaGraphLaunch", begin + 60_000, begin + 70_000)
        if training:
            build.op(NODE, begin + 900_000, begin + 950_000)
    build.write(tmp_path)
    found = next(f for f in open_run(tmp_path).examination.findings if f.id == "launch-bound")
    assert "CUDA graphs" not in found.action
    assert ("fused optimizers" in found.action) is training
    assert ("micro-batches" in found.action) is training


@pytest.mark.parametrize("host", [True, False])
def test_a_late_host_is_not_told_to_look_at_clocks_and_temperature(tmp_path: Path, host: bool) -> None:
    """Rank 1 meets the others 3 ms late in each step of 10: its host launches later, or its kernel takes longer."""
    for rank in (0, 1):
        build = KinetoBuilder(rank=rank)
        for step in range(8):
            begin = step * 10 * MS
            late = 3 * MS * rank
            build.step(step, begin, begin + 10 * MS)
            first = begin + 100_000 + late * host
            ready = begin + 5 * MS + late
            build.op("aten::mm", first - 50_000, first).kernel(first, ready, launch=first - 20_000)
            args = nccl_args("allreduce", 1 << 20, step)
            build.kernel(
                ready, begin + 9 * MS, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", first - 10_000, 20, **args
            )
        build.write(tmp_path, f"rank{rank}.json")
    name = "host-straggler" if host else "compute-straggler"
    found = next(f for f in open_run(tmp_path).examination.findings if f.id == name)
    assert found.ranks == (1,)
    assert ("waits for its host" in found.action) is host
    assert ("clocks and temperature" in found.action) is not host

"""Phases by the ranges of libraries: the innermost wins, and a range around a whole step swallows nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.account import cpu, gpu
from diag.account import trace_ranges as ranges
from diag.model.steps import Detail, Kind, RankStep
from diag.traces.kineto import read_trace
from diag.traces.trace import Trace
from tests.account.kineto_builder import AUTOGRAD, BASE_NS, KinetoBuilder

PL = "[pl][profile]"
NODE = "autograd::engine::evaluate_function: MmBackward0"


def traced(build: KinetoBuilder, folder: Path) -> Trace:
    return read_trace(build.write(folder))


def step_of(build: KinetoBuilder, folder: Path) -> RankStep:
    trace = traced(build, folder)
    source = gpu if trace.has_gpu else cpu
    (step,) = source.partition(trace, source.step_windows(trace), 0)
    assert sum(step.segments.total(kind) for kind in Kind) == step.dur_ns
    return step


def compute(step: RankStep) -> dict[Detail, int]:
    return {d: step.segments.total(Kind.COMPUTE, d) for d in Detail if step.segments.total(Kind.COMPUTE, d)}


def launched_at(*times: int) -> KinetoBuilder:
    """A step of 1000 ns, and for each time a kernel of 10 ns that is launched then and starts at once."""
    build = KinetoBuilder().step(1, 0, 1000, "ProfilerStep#").op("aten::mm", 1, 2)
    for time in times:
        build.kernel(time + 1, time + 11, launch=time)
    return build


def phase_at(build: KinetoBuilder, folder: Path, *phases: Detail) -> None:
    assert compute(step_of(build, folder)) == {phase: 10 * phases.count(phase) for phase in phases}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("DistributedDataParallel.forward", Detail.FORWARD), ("FullyShardedDataParallel.forward", Detail.FORWARD),
        ("CustomFSDP.forward", Detail.FORWARD), ("## forward ##", Detail.FORWARD), ("## forward 12 ##", Detail.FORWARD),
        ("Forward 3", Detail.FORWARD), ("PP:1F0", Detail.FORWARD),
        (f"{PL}[Strategy]DDPStrategy.training_step", Detail.FORWARD),
        ("Backward 3", Detail.BACKWARD), ("PP:1B0", Detail.BACKWARD), ("PP:0W2", Detail.BACKWARD),
        ("## backward ##", Detail.BACKWARD), (f"{PL}[Strategy]DDPStrategy.backward", Detail.BACKWARD),
        ("FullyShardedDataParallel._post_backward_hook", Detail.BACKWARD),
        ("FSDP::post_backward_reduce (blocks.0)", Detail.BACKWARD),
        ("FSDP::root_post_backward_callback", Detail.BACKWARD),
        ("Optimizer.step#AdamW.step", Detail.OPTIMIZER), ("## optimizer 4 ##", Detail.OPTIMIZER),
        (f"{PL}[LightningModule]Net.optimizer_step", Detail.OPTIMIZER), (f"{PL}optimizer_step", Detail.OPTIMIZER),
        ("Optimizer.zero_grad#AdamW.zero_grad", Detail.NONE), (f"{PL}run_training_batch", Detail.NONE),
        ("forward", Detail.NONE), ("my_model.forward", Detail.NONE), ("Forward pass", Detail.NONE),
        ("PP:SEND_F", Detail.NONE),
    ],
)  # fmt: skip
def test_ranges_of_libraries(tmp_path: Path, name: str, phase: Detail) -> None:
    phase_at(launched_at(50).range(name, 40, 60), tmp_path, phase)


def test_lightnings_optimizer_step_encloses_forward_and_backward(tmp_path: Path) -> None:
    build = launched_at(110, 210, 310, 410, 510)
    build.range(f"{PL}run_training_batch", 90, 600).range(f"{PL}[LightningModule]Net.optimizer_step", 100, 500)
    build.range("Optimizer.step#AdamW.step", 105, 450)  # torch's own range encloses the closure, too
    build.range(f"{PL}[Strategy]SingleDeviceStrategy.training_step", 107, 150)
    build.range(f"{PL}[Strategy]SingleDeviceStrategy.backward", 200, 350).op(NODE, 300, 340, AUTOGRAD)
    phases = (Detail.FORWARD, Detail.BACKWARD, Detail.BACKWARD, Detail.OPTIMIZER, Detail.NONE)
    phase_at(build, tmp_path, *phases)


def test_an_optimizer_within_the_backward_stays_one(tmp_path: Path) -> None:
    build = launched_at(110, 210, 310).op(NODE, 100, 150, AUTOGRAD).op(NODE, 200, 400, AUTOGRAD)
    build.range("Optimizer.step#SGD.step", 205, 250, AUTOGRAD)
    phase_at(build, tmp_path, Detail.BACKWARD, Detail.OPTIMIZER, Detail.BACKWARD)


def test_manual_optimization_within_a_training_step(tmp_path: Path) -> None:
    build = launched_at(110, 210, 310, 410).range(f"{PL}[Strategy]DDPStrategy.training_step", 100, 450)
    build.op(NODE, 200, 250, AUTOGRAD).range("Optimizer.step#SGD.step", 300, 350)
    phase_at(build, tmp_path, Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER, Detail.FORWARD)


def test_a_forward_that_is_run_again_is_part_of_the_backward(tmp_path: Path) -> None:
    build = launched_at(110, 210).range("FullyShardedDataParallel.forward", 100, 150)
    build.op(NODE, 200, 300, AUTOGRAD).range("FullyShardedDataParallel.forward", 205, 250, AUTOGRAD)
    phase_at(build, tmp_path, Detail.FORWARD, Detail.BACKWARD)


def test_fsdp2_runs_forward_between_its_hooks(tmp_path: Path) -> None:
    build = launched_at(50, 110, 150, 290, 310, 410).range("FSDP::root_pre_forward", 100, 105)
    build.range("FSDP::pre_forward (blocks.0)", 120, 140).range("FSDP::post_forward (blocks.0)", 180, 190)
    build.range("FSDP::post_forward", 200, 210)
    build.op(NODE, 300, 400, AUTOGRAD).range("FSDP::pre_backward (blocks.0)", 301, 305, AUTOGRAD)
    build.range("FSDP::post_forward (blocks.0)", 350, 360, AUTOGRAD)  # run again by activation checkpointing
    phases = (Detail.NONE, Detail.FORWARD, Detail.FORWARD, Detail.NONE, Detail.BACKWARD, Detail.NONE)
    phase_at(build, tmp_path, *phases)


def test_our_own_forward_goes_before_the_libraries(tmp_path: Path) -> None:
    build = launched_at(110, 210).range("diag.forward", 100, 150).range("DistributedDataParallel.forward", 100, 300)
    phase_at(build, tmp_path, Detail.FORWARD, Detail.NONE)


@pytest.mark.parametrize(
    "name",
    ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "## load_batch ##",
     "enumerate(DataLoader)#_StatefulSingleProcessDataLoaderIter.__next__",
     f"{PL}[_TrainingEpochLoop].train_dataloader_next"],
)  # fmt: skip
def test_waiting_for_data(tmp_path: Path, name: str) -> None:
    build = KinetoBuilder().step(1, 0, 1000, "ProfilerStep#").kernel(0, 100, launch=0).kernel(900, 1000, launch=890)
    step = step_of(build.range(name, 300, 700), tmp_path)
    assert step.segments.total(Kind.DATA) == 400


@pytest.mark.parametrize(
    ("category", "name", "saved"),
    [
        ("user_annotation", "diag.checkpoint", 400), ("user_annotation", f"{PL}save_checkpoint", 400),
        ("user_annotation", f"{PL}[Callback]ModelCheckpoint{{'monitor': None}}.on_save_checkpoint", 400),
        ("user_annotation", f"{PL}[Callback]ModelCheckpoint{{}}.on_train_batch_end", 0),
        ("python_function", "torch/serialization.py(943): save", 400),
        ("python_function", "/usr/lib/python3/torch/distributed/checkpoint/state_dict_saver.py(90): async_save", 400),
        ("python_function", "torch/serialization.py(943): _save", 0), ("python_function", "app/train.py(3): save", 0),
    ],
)  # fmt: skip
def test_saving(tmp_path: Path, category: str, name: str, saved: int) -> None:
    build = KinetoBuilder().step(1, 0, 1000, "ProfilerStep#").kernel(0, 100, launch=0).kernel(900, 1000, launch=890)
    assert step_of(build.event(category, name, 300, 700), tmp_path).segments.total(Kind.CHECKPOINT) == saved


def test_only_the_collector_itself_pauses_for_garbage(tmp_path: Path) -> None:
    build = KinetoBuilder().op("aten::mm", 0, 900).event("python_function", "Python GC", 100, 200)
    build.event("python_function", "torch/_dynamo/convert_frame.py(1): Python GC", 300, 400)
    build.event("gpu_user_annotation", "diag.gc", 500, 600, 7, 0).event("cpu_instant_event", "[memory]", 700, 701)
    trace = traced(build, tmp_path)
    assert (ranges.garbage_collection(trace) - BASE_NS).tolist() == [[100, 200]]
    assert step_of(build, tmp_path).segments.total(Kind.COMPUTE) == 900  # functions of Python are no work


def test_steps_that_compile_are_known(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100).step(2, 100, 200).op("_compile.compile_inner (dynamo_timed)", 20, 60)
    build.range("_compile.<locals>.compile_inner (dynamo_timed)", 150, 160)  # torch 2.0 to 2.5
    build.op("Torch-Compiled Region: 0/0", 210, 290).range("## Call CompiledFxGraph abc ##", 220, 280)
    trace = traced(build, tmp_path)
    assert (ranges.compiling(trace) - BASE_NS).tolist() == [[20, 60], [150, 160]]


def test_code_that_inductor_compiled_computes_on_the_host(tmp_path: Path) -> None:
    build = KinetoBuilder(backend="gloo").step(1, 0, 100).op("Torch-Compiled Region: 0/0", 5, 95)
    build.op("## Call CompiledFxGraph abc ##", 10, 90).op("aten::mm", 20, 40)
    build.op("_c10d_functional::wait_tensor", 50, 70)
    assert compute(step_of(build, tmp_path)) == {Detail.NONE: 60}


def test_pipeline_transfers_of_the_host_are_marked(tmp_path: Path) -> None:
    build = KinetoBuilder(backend="gloo").step(1, 0, 100).op("aten::mm", 0, 10)
    build.gloo("recv", 20, 60).gloo("all_reduce", 50, 70).event("user_annotation", "mpi:send", 80, 90, 3)
    step = step_of(build, tmp_path)
    comm = {d: step.segments.total(Kind.COMM, d) for d in (Detail.P2P, Detail.NONE)}
    assert comm == {Detail.P2P: 30 + 10, Detail.NONE: 20}
    assert [call.op for call in step.collectives] == ["recv", "all_reduce", "send"]


def test_ranges_that_old_profilers_filed_as_operators(tmp_path: Path) -> None:
    build = launched_at(60, 160, 260)
    for begin, name in enumerate(("## forward ##", "## backward ##", "## optimizer ##")):
        build.event("Operator", name, begin * 100 + 50, begin * 100 + 90)
    phase_at(build, tmp_path, Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)
    old = KinetoBuilder(backend="gloo").step(1, 0, 100).op("aten::mm", 0, 10)
    step = step_of(old.event("Operator", "gloo:all_reduce", 20, 60, 3), tmp_path)
    assert (step.segments.total(Kind.COMM), len(step.collectives)) == (40, 1)

"""Whether a trace has the work of the device, and what it lacks if not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.api import open_run
from diag.traces.kineto import read_trace
from diag.traces.trace import DeviceRecord, DeviceWork
from tests.account.kineto_builder import PID, KinetoBuilder

MS = 1_000_000


def host(ops: int = 20, backend: str = "gloo") -> KinetoBuilder:
    made = KinetoBuilder(backend=backend)
    for at in range(ops):
        made.op("aten::mm", at * MS, (at + 1) * MS - 1000)
    return made


def record(folder: Path, made: KinetoBuilder) -> DeviceRecord:
    return read_trace(made.write(folder)).device_record


def is_complete(found: DeviceRecord) -> None:
    """It says what the trace holds and lacks and what to collect, in one line."""
    assert found.holds
    assert found.lacks
    assert found.collect
    assert not found.decides
    assert "\n" not in found.text


def test_kernels(tmp_path: Path) -> None:
    found = record(tmp_path, host().kernel(MS, 2 * MS, launch=1000))
    assert found == DeviceRecord(DeviceWork.RECORDED)
    assert found.decides
    assert found.text == ""


def test_a_run_on_the_cpu_of_a_machine_with_a_gpu(tmp_path: Path) -> None:
    """PyTorch asks for the device and its memory as soon as it is imported with CUDA."""
    made = host().runtime("cudaGetDeviceCount", 0, 10).runtime("cudaDeviceGetStreamPriorityRange", 20, 30)
    assert record(tmp_path, made) == DeviceRecord(DeviceWork.NONE)


@pytest.mark.parametrize("events", [0, 2])
def test_launches_without_kernels(tmp_path: Path, events: int) -> None:
    made = host()
    for at in range(200):
        made.runtime("cudaLaunchKernel", at * 1000, at * 1000 + 500, correlation=1000 + at)
    for at in range(events):
        made.kernel(5 * MS + at, 5 * MS + at + 1, launch=4 * MS)
    found = record(tmp_path, made)
    is_complete(found)
    assert (found.work, found.launches, found.device_events) == (DeviceWork.NOT_RECORDED, 200 + events, events)


def test_some_calls_without_work_of_their_own_are_nothing_lost(tmp_path: Path) -> None:
    """A quarter of the calls of a whole trace: drivers' calls within runtime calls."""
    made = host()
    for at in range(300):
        made.kernel(at * 20_000 + 5000, at * 20_000 + 9000, launch=at * 20_000)
        if at % 3 == 0:
            made.event("cuda_driver", "cuLaunchKernel", at * 20_000, at * 20_000 + 1, correlation=100_000 + at)
    assert record(tmp_path, made).work is DeviceWork.RECORDED


def test_kernels_that_a_range_profiler_replaced(tmp_path: Path) -> None:
    made = host().runtime("cudaLaunchKernel", 0, 500, correlation=7)
    made.event("cuda_profiler_range", "smsp__inst_executed.sum", 0, 500, pid=0)
    found = record(tmp_path, made)
    is_complete(found)
    assert found.work is DeviceWork.NOT_RECORDED
    assert "range profiler" in found.holds


@pytest.mark.parametrize(
    "name",
    [
        "nccl:all_reduce",
        "aten::cudnn_convolution",
        "aten::record_stream",
        "aten::linear_backward",
        "aten::_mps_convolution",
    ],
)
def test_operators_that_only_a_gpu_has(tmp_path: Path, name: str) -> None:
    found = record(tmp_path, host().op(name, 0, 1000))
    is_complete(found)
    assert (found.work, found.launches) == (DeviceWork.NOT_RECORDED, 0)


def test_a_backend_that_only_a_gpu_has(tmp_path: Path) -> None:
    assert record(tmp_path, host(backend="nccl")).work is DeviceWork.NOT_RECORDED
    assert record(tmp_path, host(backend="gloo")).work is DeviceWork.NONE


@pytest.mark.parametrize(("replayed", "work"), [(40, DeviceWork.CAPTURED), (400, DeviceWork.RECORDED)])
def test_the_capture_of_a_graph(tmp_path: Path, replayed: int, work: DeviceWork) -> None:
    """100 launches went into a graph; the others ran."""
    made = host().runtime("hipStreamBeginCapture", 0, 10)
    for at in range(100):
        made.runtime("hipLaunchKernel", at * 1000 + 20, at * 1000 + 500, correlation=1000 + at)
    made.runtime("hipStreamEndCapture", MS, MS + 10)
    for at in range(replayed):
        made.kernel(2 * MS + at * 1000, 2 * MS + at * 1000 + 900, launch=MS + 100 + at)
    found = record(tmp_path, made)
    assert found.work is work
    if work is DeviceWork.CAPTURED:
        is_complete(found)
        assert "100 of 140" in found.holds


def test_an_accelerator_of_another_kind(tmp_path: Path) -> None:
    """Its events run from 0 to 4 and from 3 to 6 ms of 20."""
    made = (
        host()
        .event("mtia_ccp_events", "fc", 0, 4 * MS, 4, 9)
        .event("mtia_ccp_events", "event_wait", 3 * MS, 6 * MS, 5, 9)
    )
    found = record(tmp_path, made.event("mtia_runtime", "runFunction", 0, 1000))
    is_complete(found)
    assert found.work is DeviceWork.NOT_UNDERSTOOD
    assert found.share == pytest.approx(6 * MS / (20 * MS - 1000))
    assert "mtia_ccp_events" in found.holds


@pytest.mark.parametrize("category", ["hpu_op", "privateuse1_op", "mtia_insight", "mtia_runtime"])
def test_other_categories_of_accelerators(tmp_path: Path, category: str) -> None:
    found = record(tmp_path, host().event(category, "x", 0, 4 * MS))
    is_complete(found)
    assert found.work is DeviceWork.NOT_UNDERSTOOD


@pytest.mark.parametrize(("pid", "work"), [(9, DeviceWork.NOT_UNDERSTOOD), (PID, DeviceWork.NONE)])
def test_a_category_that_nobody_knows(tmp_path: Path, pid: int, work: DeviceWork) -> None:
    """On the host it is what a person added; elsewhere it may be a device."""
    found = record(tmp_path, host().event("warp_core_op", "x", 0, 4 * MS, pid=pid))
    assert found.work is work
    if work is DeviceWork.NOT_UNDERSTOOD:
        is_complete(found)
        assert "warp_core_op" in found.holds


@pytest.mark.parametrize("backend", ["xpu", "privateuse1"])
def test_accelerators_whose_kernels_are_called_kernels(tmp_path: Path, backend: str) -> None:
    made = host().kernel(MS, 2 * MS).event(f"{backend}_runtime", "urEnqueueKernelLaunch", 1000, 2000, correlation=1)
    assert record(tmp_path, made).work is DeviceWork.RECORDED


def test_runtime_and_copies_of_an_mlu(tmp_path: Path) -> None:
    """Cambricon's kineto_mlu: a launch, a copy and a synchronising call in categories of its own."""
    made = host().event("kernel", "MLUOpTensor", 2 * MS, 3 * MS, tid=1, pid=0, correlation=1, device=0, stream=1)
    made.event("mlu_memcpy", "Memcpy HtoD", MS, 2 * MS, tid=1, pid=0, correlation=2, device=0, stream=1)
    made.event("mlu_runtime", "cnMemcpyHtoDAsync", 1000, 2000, correlation=2)
    made.event("mlu_runtime", "cnInvokeKernel", 3000, 4000, correlation=1)
    made.event("mlu_runtime", "cnrtSyncDevice", 5000, 3 * MS)
    path = made.write(tmp_path)
    assert read_trace(path).device_record.work is DeviceWork.RECORDED
    result = open_run(path)
    (step,) = result.attribution.steps
    assert (step.parts[0].compute_ns, step.parts[0].exposed_copy_ns) == (MS, MS)
    assert step.parts[0].idle_parts.unknown_ns == 0


@pytest.mark.parametrize(("until", "work"), [(10 * MS, DeviceWork.NOT_UNDERSTOOD), (1000, DeviceWork.NONE)])
def test_ascend_events_without_a_category(tmp_path: Path, until: int, work: DeviceWork) -> None:
    path = host().write(tmp_path)
    document = json.loads(path.read_text())
    document["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "Ascend Hardware"}},
        {"ph": "X", "name": "MatMulV2", "pid": 5, "tid": 2, "ts": 0, "dur": until / 1000},
    ]
    path.write_text(json.dumps(document))
    found = read_trace(path).device_record
    assert found.work is work
    if work is DeviceWork.NOT_UNDERSTOOD:
        is_complete(found)
        assert "Ascend" in found.holds
        assert found.share == pytest.approx(0.5, abs=0.01)

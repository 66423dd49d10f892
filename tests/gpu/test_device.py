"""The questions to a GPU's libraries, and the recorder's calls behind them, against torch's own signatures: where there
is no GPU, a call that torch does not take would be found by nobody else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
import torch.distributed as dist

from diag.collectors import accelerator
from diag.collectors.accelerator import CUDA, Accelerator
from tests.gpu import device

GB = 10**9
STATS = dict.fromkeys(("allocated_bytes.all.peak", "allocated_bytes.all.current", "reserved_bytes.all.peak"), 1 << 20)
FUNCTIONS: dict[str, Any] = {  # of torch.cuda, and what each returns
    "current_stream": type("Stream", (), {"stream_id": 7})(), "get_device_name": "A GPU",
    "get_device_capability": (9, 0), "is_current_stream_capturing": False, "mem_get_info": (70 * GB, 80 * GB),
    "memory_stats": STATS, "reset_peak_memory_stats": None, "synchronize": None, "_sleep": None, "init": None,
    "get_device_properties": type("P", (), {"total_memory": 80 * GB, "uuid": "u", "multi_processor_count": 132})(),
}  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """A device whose module takes exactly what ``torch.cuda`` takes; tensors are the host's."""
    for name, value in FUNCTIONS.items():
        monkeypatch.setattr(torch.cuda, name, create_autospec(getattr(torch.cuda, name), return_value=value))
    event = create_autospec(torch.cuda.Event)
    event.return_value.query.return_value = False
    event.return_value.elapsed_time.return_value = 50.0
    monkeypatch.setattr(torch.cuda, "Event", event)
    snapshot = {"segments": [], "device_traces": [[{"action": "alloc"}]]}
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_snapshot", create_autospec(memory._snapshot, return_value=snapshot))
    monkeypatch.setattr(memory, "_record_memory_history", create_autospec(memory._record_memory_history))
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", lambda observer: None, raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", create_autospec(torch.cuda.CUDAGraph))

    @contextlib.contextmanager
    def captured(*_: object, **__: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "graph", create_autospec(torch.cuda.graph, side_effect=captured))
    monkeypatch.setattr(device, "query_beside_captures", lambda kind: True)
    monkeypatch.setattr(torch, "compile", create_autospec(torch.compile, side_effect=lambda function: function))
    monkeypatch.setattr(accelerator, "_available", lambda: (None, None))
    return Accelerator(torch.device("cuda", 0), CUDA)


def test_every_question_makes_calls_that_torch_takes(
    gpu: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = create_autospec(dist.init_process_group)

    def by_gloo(*_: object, **__: object) -> None:
        connect.side_effect = None
        real("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]

    real, connect.side_effect = dist.init_process_group, by_gloo
    monkeypatch.setattr(dist, "init_process_group", connect)
    monkeypatch.setattr(torch.cuda, "nccl", type("nccl", (), {"version": staticmethod(lambda: (2, 28, 9))}))
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_TIMING"):
        monkeypatch.setenv(name, "")
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"):
        monkeypatch.setenv(name, "2000")
    monkeypatch.setattr(torch, "empty", smaller(torch.empty))
    monkeypatch.setattr(torch, "ones", smaller(torch.ones))
    monkeypatch.setattr(torch, "randn", smaller(torch.randn))
    try:
        answers = device.ask(device.Questions(torch.device("cpu"), gpu, tmp_path), lambda _: None)
    finally:
        dist.destroy_process_group()
    assert {name: one["error"] for name, one in answers.items() if "error" in one} == {}
    assert json.dumps(answers, default=str)
    assert answers["identity"]["answer"]["name"] == "A GPU"
    assert answers["memory"]["answer"]["events"] == 1
    assert answers["window"]["answer"]["kinds"]["cpu_op"]


def smaller(make: Any) -> Any:
    """The same with less of it: what a GPU does in a millisecond takes a CPU seconds."""

    def made(*size: Any, **options: Any) -> torch.Tensor:
        if not all(isinstance(one, int) for one in size):  # a call of torch's own
            return make(*size, **options)  # type: ignore[no-any-return]
        if max(size) > 1 << 33:
            raise torch.OutOfMemoryError("CUDA out of memory")
        tensor: torch.Tensor = make(*(one if one <= 4096 else 64 for one in size), **options)
        return tensor

    return made


def test_what_one_question_raises_keeps_no_other_from_being_asked() -> None:
    class Two:
        def first(self) -> None:
            raise RuntimeError("no kernel image is available")

        def second(self) -> int:
            return 2

    written: list[str] = []
    answers = device.ask(Two(), lambda said: written.append(json.dumps(said)))
    assert answers["first"]["error"] == "RuntimeError: no kernel image is available"
    assert answers["second"]["answer"] == 2
    assert "it ended the process" in written[0], "a question that crashes is named"

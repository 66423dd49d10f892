"""A stand-in for PyTorch's caching allocator that writes snapshots in its format (torch/cuda/memory.py, _snapshot): one
device, blocks of whole segments of 2 MB or more, a ring of the last events."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

Frame = dict[str, Any]

MIB = 1 << 20
_ROUND = 512
_SEGMENT = 2 * MIB
_SITE = "/opt/venv/lib/python3.12/site-packages"


def frame(name: str, filename: str, line: int = 1) -> Frame:
    return {"name": name, "filename": filename, "line": line}


# Innermost first, as torch writes them.
CPP = (
    frame("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc", "CUDACachingAllocator.cpp", 0),
    frame("at::_ops::empty_strided::call(c10::ArrayRef<long>)", "??", 0),
    frame("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0),
)
FORWARD = [
    *CPP,
    frame("forward", f"{_SITE}/torch/nn/modules/linear.py", 125),
    frame("_call_impl", f"{_SITE}/torch/nn/modules/module.py", 1784),
    frame("forward", "/home/me/model.py", 12),
    frame("_call_impl", f"{_SITE}/torch/nn/modules/module.py", 1784),
    frame("main", "/home/me/train.py", 40),
]
BACKWARD = [
    *CPP,
    frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0),
]
OPTIMIZER = [
    *CPP[:2],
    frame("_init_group", f"{_SITE}/torch/optim/adam.py", 180),
    frame("step", f"{_SITE}/torch/optim/adam.py", 240),
    frame("main", "/home/me/train.py", 44),
]


class Allocator:
    """``history``: events that are kept, 0 for none, as without _record_memory_history."""

    def __init__(self, history: int = 1_000_000, device: int = 0) -> None:
        self.history, self.device = history, device
        self.events: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self.requested: dict[int, int] = {}  # of what is live, by address
        self.peak = 0  # of the requested bytes
        self.now_us = 1_700_000_000_000_000
        self._address = 0x7F0000000000

    def alloc(self, size: int, frames: list[Frame]) -> int:
        """The address of a new allocation: in the first free segment that has room, else in a new one."""
        rounded = -(-size // _ROUND) * _ROUND
        block = next(
            (b for s in self.segments for b in s["blocks"] if b["state"] == "inactive" and b["size"] >= rounded), None
        )
        if block is None:
            block = self._grow(rounded, frames)
        self._split(block, rounded)
        block |= {"state": "active_allocated", "requested_size": size, "frames": frames}
        self.requested[block["address"]] = size
        self.peak = max(self.peak, sum(self.requested.values()))
        self._event("alloc", block["address"], size, frames)
        return int(block["address"])

    def free(self, address: int) -> None:
        size = self.requested.pop(address)
        for action in ("free_requested", "free_completed"):
            self._event(action, address, size, [])
        block = next(b for s in self.segments for b in s["blocks"] if b["address"] == address)
        block |= {"state": "inactive", "frames": []}

    def fail(self, size: int, free: int, frames: list[Frame]) -> None:
        self._event("oom", free, size, frames, device_free=free)

    def snapshot(self) -> dict[str, Any]:
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)]
        traces.append(self.events[-self.history :] if self.history else [])
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False", "max_split_size": -1}
        return {
            "segments": self.segments,
            "device_traces": traces,
            "allocator_settings": settings,
            "external_annotations": [],
        }

    def write(self, path: Path, **more: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(self.snapshot() | more, protocol=4))
        return path

    def _grow(self, size: int, frames: list[Frame]) -> dict[str, Any]:
        total = -(-size // _SEGMENT) * _SEGMENT
        block = {"address": self._address, "size": total, "requested_size": 0, "state": "inactive", "frames": []}
        self.segments.append(
            {
                "device": self.device, "address": self._address, "total_size": total, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
                "blocks": [block],
            }
        )  # fmt: skip
        self._address += total
        self._event("segment_alloc", block["address"], total, frames)
        return block

    def _split(self, block: dict[str, Any], size: int) -> None:
        """Makes a block as large as is needed; what is left is a free one behind it."""
        if block["size"] == size:
            return
        blocks = next(s["blocks"] for s in self.segments if any(b is block for b in s["blocks"]))
        at = next(place for place, one in enumerate(blocks) if one is block)
        rest = {"address": block["address"] + size, "size": block["size"] - size, "requested_size": 0}
        blocks.insert(at + 1, {**rest, "state": "inactive", "frames": []})
        block["size"] = size

    def _event(self, action: str, address: int, size: int, frames: list[Frame], **more: Any) -> None:
        self.now_us += 100
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now_us, "frames": frames}
        self.events.append({**event, **more})


def train(steps: int = 2, history: int = 1_000_000, extra: int = 0) -> Allocator:
    """4 MB of parameters and, in each step, 3 MB in the forward, ``extra`` more on top, 2 MB in the backward, and in
    the first step 8 MB of optimizer states, which stay. The peak is in the second backward: 4 + 3 + 2 + 8 MB, and
    extra."""
    allocator = Allocator(history)
    allocator.alloc(4 * MIB, [frame("<module>", "/home/me/train.py", 10)])
    for step in range(steps):
        activations = [allocator.alloc(3 * MIB, FORWARD)]
        if extra:
            activations.append(allocator.alloc(extra, FORWARD))
        gradients = allocator.alloc(2 * MIB, BACKWARD)
        for address in activations:
            allocator.free(address)
        if step == 0:
            allocator.alloc(8 * MIB, OPTIMIZER)
        allocator.free(gradients)
    return allocator

"""Memory of one rank, once a step: the CUDA allocator's peaks where there is a device, the resident size always."""

from __future__ import annotations

import os

import torch

from .proc import ProcFile
from .records import MemoryRecord

_RESIDENT = 1  # field of statm, in pages
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryReader:
    """Peaks are of one step: reading resets them. No call here waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._capacity: int | None = None
        self._statm = ProcFile(lambda: "/proc/self/statm")
        if device.type == "cuda":
            self._capacity = int(torch.cuda.get_device_properties(device).total_memory)
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> MemoryRecord:
        rss = (self._statm.number(_RESIDENT) or 0) * _PAGE  # 0 where the system has no /proc
        if self._device.type != "cuda":
            return MemoryRecord(rss=rss)
        stats = torch.cuda.memory_stats(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return MemoryRecord(
            rss=rss,
            allocated=stats.get("allocated_bytes.all.peak", 0),
            reserved=stats.get("reserved_bytes.all.peak", 0),
            alloc_retries=stats.get("num_alloc_retries", 0),
            ooms=stats.get("num_ooms", 0),
            capacity=self._capacity,
        )

    def close(self) -> None:
        self._statm.close()

"""Samples of one device: clocks, power and throttling about once a second, errors and links every half minute.

What a diagnosis or its evidence reads is sampled, and nothing else. Throughput of PCIe and NVLink is not: a trace has
it by transfer, and NVML takes 20 ms for each direction of PCIe to measure it. Nor is the memory in use: the allocator's
peaks are in the step records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .accelerator import Accelerator
from .records import DeviceHealth, DeviceRecord

T = TypeVar("T")


class DeviceSampler:
    """Reads nothing by itself: a class for each library does. What the device or its driver does not offer stays None.
    ``unavailable``: why nothing can be read."""

    SELDOM_NS = 30 * 10**9  # between two readings of what changes seldom

    def __init__(self, unavailable: str | None = None) -> None:
        self.unavailable = unavailable
        self._due_ns = 0  # the next such reading

    def sample(self, everything: bool = False) -> DeviceRecord:
        """``everything``: what changes seldom as well, whenever it was read last."""
        now = time.monotonic_ns()
        record = DeviceRecord(now, unavailable=self.unavailable)
        if self.unavailable is None:
            self._read(record)
            if everything or now >= self._due_ns:
                self._due_ns = now + self.SELDOM_NS
                record.health = DeviceHealth()
                self._read_seldom(record, record.health)
        return record

    def close(self) -> None:
        pass

    def _read(self, record: DeviceRecord) -> None:
        """What changes from second to second."""

    def _read_seldom(self, record: DeviceRecord, health: DeviceHealth) -> None:
        """ECC errors, and all of ``health``."""


def sampler_of(accelerator: Accelerator | None) -> DeviceSampler:
    """The sampler of a rank's device."""
    if accelerator is None:
        return DeviceSampler("this rank uses no GPU")
    if accelerator.kind.sampler == "NVML":
        from .nvml import NvmlSampler

        uuid = accelerator.uuid
        return NvmlSampler(f"GPU-{uuid}" if uuid is not None else None, accelerator.device.index)
    if accelerator.kind.sampler == "amdsmi":
        from .amd_smi import AmdSmiSampler

        return AmdSmiSampler(accelerator.pci_address)
    return DeviceSampler(accelerator.kind.lacks)


def value_of(read: Callable[[], T]) -> T | None:
    """None where the device does not offer it: the libraries make their classes of errors when they are imported."""
    try:
        return read()
    except Exception:
        return None

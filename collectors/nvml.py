"""Clocks, power, throttling, ECC errors, remapped rows and links of an NVIDIA GPU, from NVML, or why not.

Error counters of NVLink 5 (Blackwell) are other fields of NVML, and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .device_sampler import DeviceSampler, value_of
from .records import DeviceHealth, DeviceRecord

_THROTTLE_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
}
_LINK_ERRORS = {
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": "crc",
    "NVML_NVLINK_ERROR_DL_REPLAY": "replay",
    "NVML_NVLINK_ERROR_DL_RECOVERY": "recovery",
}


class NvmlSampler(DeviceSampler):
    def __init__(self, device_uuid: str | None, device_index: int | None) -> None:
        super().__init__()
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            if device_uuid is not None:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(device_index)
        except ImportError:
            self.unavailable = "nvidia-ml-py is not installed"
        except Exception as error:  # pynvml makes its error classes at import time, so none can be named here
            self.unavailable = _reason(error)

    def close(self) -> None:
        if self._nvml is not None:
            value_of(self._nvml.nvmlShutdown)

    def _read(self, record: DeviceRecord) -> None:
        nvml, handle = self._nvml, self._handle
        record.sm_clock_mhz = value_of(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        record.memory_clock_mhz = value_of(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        record.power_mw = self._get("PowerUsage")
        record.temperature_c = value_of(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        record.utilization_percent = value_of(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        mask = self._get("CurrentClocksEventReasons")
        if mask is None:
            mask = self._get("CurrentClocksThrottleReasons")
        record.throttle_reasons = [
            text for name, text in _THROTTLE_REASONS.items() if (mask or 0) & getattr(nvml, name, 0)
        ]

    def _read_seldom(self, record: DeviceRecord, health: DeviceHealth) -> None:
        health.source = "NVML"
        record.ecc_corrected = self._ecc("CORRECTED")
        record.ecc_uncorrected = self._ecc("UNCORRECTED")
        health.power_limit_mw = self._get("EnforcedPowerLimit")
        self._read_memory(health)
        health.pcie_width = self._get("CurrPcieLinkWidth")
        health.pcie_max_width = self._get("MaxPcieLinkWidth")
        health.pcie_generation = self._get("CurrPcieLinkGeneration")
        health.pcie_max_generation = self._get("MaxPcieLinkGeneration")
        health.pcie_replays = self._get("PcieReplayCounter")
        self._read_links(health)

    def _read_memory(self, health: DeviceHealth) -> None:
        """Rows are remapped from Ampere on; GPUs before it retire pages."""
        rows = self._get("RemappedRows")
        if rows is not None:
            health.remapped_rows_corrected, health.remapped_rows_uncorrected = rows[:2]
            health.remap_pending, health.remap_failed = map(bool, rows[2:])
            return
        causes = [self._retired(cause) for cause in ("MULTIPLE_SINGLE_BIT_ECC_ERRORS", "DOUBLE_BIT_ECC_ERROR")]
        if None not in causes:
            health.retired_pages = sum(count or 0 for count in causes)
        pending = self._get("RetiredPagesPendingStatus")
        health.retire_pending = bool(pending) if pending is not None else None

    def _read_links(self, health: DeviceHealth) -> None:
        links = range(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 0))
        states = _by_link(links, self._link_state)
        if not states:
            return
        health.active_links = sum(state == 1 for state in states)
        for name, text in _LINK_ERRORS.items():
            counts = _by_link(links, partial(self._link_errors, name))
            if counts:
                health.link_errors[text] = counts

    def _link_state(self, link: int) -> int:
        return int(self._nvml.nvmlDeviceGetNvLinkState(self._handle, link))

    def _link_errors(self, name: str, link: int) -> int:
        return int(self._nvml.nvmlDeviceGetNvLinkErrorCounter(self._handle, link, getattr(self._nvml, name)))

    def _get(self, name: str) -> Any:
        """What a function of NVML returns that takes nothing but the device."""
        return value_of(lambda: getattr(self._nvml, f"nvmlDeviceGet{name}")(self._handle))

    def _ecc(self, kind: str) -> int | None:
        nvml = self._nvml
        return value_of(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                self._handle, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
            )
        )

    def _retired(self, cause: str) -> int | None:
        nvml = self._nvml
        return value_of(
            lambda: len(
                nvml.nvmlDeviceGetRetiredPages(self._handle, getattr(nvml, f"NVML_PAGE_RETIREMENT_CAUSE_{cause}"))
            )
        )


def _by_link(links: Iterable[int], read: Callable[[int], int]) -> list[int | None]:
    """Of link 0, 1 and so on to the last that answers; None for those between that do not."""
    found = [value_of(partial(read, link)) for link in links]
    while found and found[-1] is None:
        found.pop()
    return found


def _reason(error: Exception) -> str:
    if type(error).__name__ in {"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"}:
        return "no NVIDIA driver"
    return f"NVML: {error}"

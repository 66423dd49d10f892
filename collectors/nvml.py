"""Clocks, power, temperature, throttling, ECC and link counters of this rank's GPU, from NVML, or why not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from .accelerator import Accelerator
from .records import DeviceRecord

T = TypeVar("T")

_THROTTLE_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
}


class NvmlSampler:
    """Reads one GPU. What this GPU or driver does not offer stays None; without a driver, so does everything."""

    def __init__(self, device_uuid: str | None, device_index: int | None) -> None:
        self.unavailable: str | None = None
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            if device_uuid is not None:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
            elif device_index is not None:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(device_index)
            else:
                self.unavailable = "this rank uses no GPU"
        except ImportError:
            self.unavailable = "nvidia-ml-py is not installed"
        except Exception as error:  # pynvml makes its error classes at import time, so none can be named here
            self.unavailable = _reason(error)

    def sample(self) -> DeviceRecord:
        now = time.monotonic_ns()
        if self.unavailable is not None:
            return DeviceRecord(now, unavailable=self.unavailable)
        nvml, handle = self._nvml, self._handle
        record = DeviceRecord(now)
        record.sm_clock_mhz = _value(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        record.memory_clock_mhz = _value(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        record.power_mw = _value(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        record.temperature_c = _value(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        record.utilization_percent = _value(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        record.memory_used = _value(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        record.throttle_reasons = self._throttle_reasons()
        record.ecc_corrected = self._ecc("CORRECTED")
        record.ecc_uncorrected = self._ecc("UNCORRECTED")
        record.pcie_tx_kb_s = _value(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES))
        record.pcie_rx_kb_s = _value(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES))
        record.nvlink_tx_kib = self._nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")
        record.nvlink_rx_kib = self._nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
        return record

    def close(self) -> None:
        if self._nvml is not None:
            _value(self._nvml.nvmlShutdown)

    def _throttle_reasons(self) -> list[str]:
        mask = _value(lambda: self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        if mask is None:
            mask = _value(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        return [text for name, text in _THROTTLE_REASONS.items() if (mask or 0) & getattr(self._nvml, name, 0)]

    def _ecc(self, kind: str) -> int | None:
        nvml = self._nvml
        return _value(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                self._handle, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
            )
        )

    def _nvlink(self, field_name: str) -> int | None:
        """KiB since the driver was loaded, summed over the links."""
        nvml = self._nvml

        def read() -> int:
            all_links = 0xFFFFFFFF
            value = nvml.nvmlDeviceGetFieldValues(self._handle, [(getattr(nvml, field_name), all_links)])[0]
            if value.nvmlReturn != nvml.NVML_SUCCESS:
                raise OSError
            return int(value.value.ullVal)

        return _value(read)


def sampler_of(accelerator: Accelerator | None) -> NvmlSampler:
    """The sampler of a rank's device; one that has nothing to read where NVML does not know it."""
    if accelerator is None or not accelerator.kind.nvml:
        return NvmlSampler(None, None)
    uuid = accelerator.uuid
    return NvmlSampler(f"GPU-{uuid}" if uuid is not None else None, accelerator.device.index)


def _value(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # "not supported" on this GPU; its class exists only after pynvml was imported
        return None


def _reason(error: Exception) -> str:
    if type(error).__name__ in {"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"}:
        return "no NVIDIA driver"
    return f"NVML: {error}"

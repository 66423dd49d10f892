"""NVML without a driver, without the package, and with a stand-in that knows some of the calls."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from diag.collectors.nvml import NvmlSampler


class NVMLError(Exception):
    """Named like pynvml's; a GPU that does not offer a reading raises it."""


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818  (pynvml's own name)
    pass


def fake_nvml(**calls: object) -> ModuleType:
    module = ModuleType("pynvml")
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0  # type: ignore[attr-defined]
    module.nvmlClocksEventReasonSwPowerCap = 0x4  # type: ignore[attr-defined]
    module.nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # type: ignore[attr-defined]
    module.nvmlInit = module.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByUUID = module.nvmlDeviceGetHandleByIndex = lambda which: which  # type: ignore[attr-defined]
    for name, call in calls.items():
        setattr(module, name, call)
    return module


def test_no_driver_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=refuse))
    assert NvmlSampler("GPU-1", 0).sample().unavailable == "no NVIDIA driver"


def test_no_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlSampler("GPU-1", 0).sample().unavailable == "nvidia-ml-py is not installed"


def test_what_a_gpu_does_not_offer_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_supported(*_arguments: object) -> None:
        raise NVMLError("Not Supported")

    module = fake_nvml(
        nvmlDeviceGetClockInfo=lambda handle, clock: {1: 1980, 2: 2619}[clock],
        nvmlDeviceGetPowerUsage=not_supported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 63,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=97),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=10**9),
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x44,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    sample = NvmlSampler("GPU-1", 0).sample()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c) == (1980, 2619, 63)
    assert (sample.utilization_percent, sample.memory_used) == (97, 10**9)
    assert sample.throttle_reasons == ["power cap", "hardware thermal"]
    assert sample.power_mw is None
    assert sample.ecc_corrected is None
    assert sample.nvlink_tx_kib is None
    assert sample.unavailable is None

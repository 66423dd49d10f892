"""NVML without a driver, without the package, and with a stand-in that knows some of the calls."""

from __future__ import annotations

import inspect
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from diag.collectors import device_sampler
from diag.collectors.device_sampler import NvmlSampler
from diag.collectors.records import DeviceHealth


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
    assert NvmlSampler("1", 0).sample().unavailable == "no NVIDIA driver"


def test_a_part_of_a_gpu_has_another_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(uuid: str) -> str:
        if uuid not in ("GPU-whole", "MIG-part"):
            raise NVMLError("Not Found")
        return uuid

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetHandleByUUID=handle))
    assert [NvmlSampler(uuid, 0)._handle for uuid in ("whole", "part")] == ["GPU-whole", "MIG-part"]
    assert NvmlSampler("gone", 0).sample().unavailable == "NVML: Not Found"


def test_no_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlSampler("1", 0).sample().unavailable == "nvidia-ml-py is not installed"


def test_what_a_gpu_does_not_offer_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_supported(*_arguments: object) -> None:
        raise NVMLError("Not Supported")

    module = fake_nvml(
        nvmlDeviceGetClockInfo=lambda handle, clock: {1: 1980, 2: 2619}[clock],
        nvmlDeviceGetPowerUsage=not_supported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 63,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=97),
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x44,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    sample = NvmlSampler("1", 0).sample()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c) == (1980, 2619, 63)
    assert sample.utilization_percent == 97
    assert sample.throttle_reasons == ["power cap", "hardware thermal"]
    assert sample.power_mw is None
    assert sample.ecc_corrected is None
    assert sample.health == DeviceHealth("NVML")
    assert sample.unavailable is None


def test_rows_links_and_errors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of link 1 NVML does not know the errors, and there is no link 3."""

    def state(_handle: object, link: int) -> int:
        return [1, 1, 0][link]

    def errors(_handle: object, link: int, counter: int) -> int:
        if link == 1:
            raise NVMLError("Not Supported")
        return [10, 0, 12][link] + counter

    module = fake_nvml(
        NVML_NVLINK_MAX_LINKS=36,
        NVML_NVLINK_ERROR_DL_REPLAY=0,
        NVML_NVLINK_ERROR_DL_RECOVERY=1,
        NVML_NVLINK_ERROR_DL_CRC_FLIT=2,
        NVML_MEMORY_ERROR_TYPE_CORRECTED=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: [7, 2][kind],
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetRemappedRows=lambda handle: (3, 1, 1, 0),
        nvmlDeviceGetCurrPcieLinkWidth=lambda handle: 8,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetCurrPcieLinkGeneration=lambda handle: 4,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5,
        nvmlDeviceGetPcieReplayCounter=lambda handle: 21,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkErrorCounter=errors,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    sample = NvmlSampler("1", 0).sample()
    assert (sample.ecc_corrected, sample.ecc_uncorrected) == (7, 2)
    assert sample.health == DeviceHealth(
        source="NVML",
        power_limit_mw=700_000,
        remapped_rows_corrected=3,
        remapped_rows_uncorrected=1,
        remap_pending=True,
        remap_failed=False,
        pcie_width=8,
        pcie_max_width=16,
        pcie_generation=4,
        pcie_max_generation=5,
        pcie_replays=21,
        active_links=2,
        link_errors={"crc": [12, None, 14], "replay": [10, None, 12], "recovery": [11, None, 13]},
    )


def test_an_older_gpu_retires_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_nvml(
        NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS=0,
        NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR=1,
        nvmlDeviceGetRetiredPages=lambda handle, cause: [[0x1000, 0x2000], [0x3000]][cause],
        nvmlDeviceGetRetiredPagesPendingStatus=lambda handle: 1,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    health = NvmlSampler("1", 0).sample().health
    assert health == DeviceHealth("NVML", retired_pages=3, retire_pending=True)


def test_nvml_has_what_is_asked_of_it() -> None:
    """Every function and constant of NVML that the sampler names exists in nvidia-ml-py."""
    pynvml = pytest.importorskip("pynvml")
    source = inspect.getsource(NvmlSampler) + repr((device_sampler._NVML_REASONS, device_sampler._LINK_ERRORS))
    names = set(re.findall(r"\b(?:nvml[A-Z]\w+|NVML_[A-Z_]+[A-Z])\b(?!\{)", source))
    names |= {f"nvmlDeviceGet{name}" for name in re.findall(r'_get\("(\w+)"\)', source)}
    names -= {"nvmlDeviceGet", "NVML_MEMORY_ERROR_TYPE", "NVML_PAGE_RETIREMENT_CAUSE"}
    assert len(names) > 30
    assert {name for name in names if not hasattr(pynvml, name)} == set()

"""amdsmi without a library, and with a stand-in that answers as its documentation says."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from diag.collectors.device_sampler import AmdSmiSampler
from diag.collectors.records import DeviceHealth

ADDRESS = "0000:c1:00.0"


class AmdSmiLibraryException(Exception):  # noqa: N818  (amdsmi's own name)
    """Named like amdsmi's; a GPU that does not offer a reading raises it."""


def fake_amdsmi(**calls: Any) -> SimpleNamespace:
    return SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf=lambda address: address,
        AmdSmiClkType=SimpleNamespace(GFX="GFX", MEM="MEM"),
        AmdSmiTemperatureType=SimpleNamespace(JUNCTION="JUNCTION"),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT="CURRENT"),
        AmdSmiMemoryPageStatus=SimpleNamespace(RESERVED=0, PENDING=1, UNRESERVABLE=2),
        **calls,
    )


def test_what_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AmdSmiLibraryException("driver not loaded")

    assert "PCI address" in str(AmdSmiSampler(None).sample().unavailable)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert AmdSmiSampler(ADDRESS).sample().unavailable == "amdsmi is not installed"
    monkeypatch.setitem(sys.modules, "amdsmi", SimpleNamespace(amdsmi_init=refuse))
    assert AmdSmiSampler(ADDRESS).sample().unavailable == "amdsmi: driver not loaded"


def test_a_gpu_that_offers_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_amdsmi(
        amdsmi_get_clock_info=lambda handle, domain: {"clk": {"GFX": 2100, "MEM": 1300}[domain], "min_clk": 500},
        amdsmi_get_power_info=lambda handle: {"average_socket_power": "N/A", "current_socket_power": 640},
        amdsmi_get_temp_metric=lambda handle, sensor, metric: 71,
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 98, "mm_activity": "N/A"},
        amdsmi_get_violation_status=lambda handle: {
            "active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": 1, "active_vr_thrm": "N/A"
        },
        amdsmi_get_gpu_total_ecc_count=lambda handle: {"correctable_count": 4, "uncorrectable_count": 1},
        amdsmi_get_gpu_bad_page_info=lambda handle: [{"value": 0, "status": 0}, {"value": 1, "status": 1}],
        amdsmi_get_gpu_xgmi_link_status=lambda handle: {"status": ["X", "U", "U", "D"], "total_links": 4},
        amdsmi_get_pcie_info=lambda handle: {
            "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000},
            "pcie_metric": {"pcie_width": 8, "pcie_speed": 16000, "pcie_replay_count": 5},
        },
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    sample = AmdSmiSampler(ADDRESS).sample()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.power_mw) == (2100, 1300, 640_000)
    assert (sample.temperature_c, sample.utilization_percent) == (71, 98)
    assert sample.throttle_reasons == ["power cap", "memory thermal"]
    assert (sample.ecc_corrected, sample.ecc_uncorrected) == (4, 1)
    assert sample.health == DeviceHealth(
        source="amdsmi",
        retired_pages=2,
        retire_pending=True,
        pcie_width=8,
        pcie_max_width=16,
        pcie_generation=4,
        pcie_max_generation=5,
        pcie_replays=5,
        active_links=2,
    )


def test_what_a_gpu_does_not_offer_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_supported(*_arguments: object) -> None:
        raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")

    module = fake_amdsmi(
        amdsmi_get_clock_info=lambda handle, domain: {"clk": "N/A"},
        amdsmi_get_power_info=not_supported,
        amdsmi_get_violation_status=not_supported,
        amdsmi_get_gpu_bad_page_info=lambda handle: "No bad pages found.",
        amdsmi_get_pcie_info=lambda handle: {"pcie_static": {}, "pcie_metric": {"pcie_width": "N/A"}},
        amdsmi_get_gpu_xgmi_link_status=lambda handle: {"status": [], "total_links": 0},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    sample = AmdSmiSampler(ADDRESS).sample()
    assert (sample.sm_clock_mhz, sample.power_mw, sample.throttle_reasons) == (None, None, [])
    assert sample.health == DeviceHealth("amdsmi")

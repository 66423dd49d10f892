"""Clocks, power, throttling, ECC errors, bad pages and links of an AMD GPU, from amdsmi (part of ROCm), or why not.

Written from the library's documentation and the names in its package (7.0.2), and never run on an AMD GPU. Not read:
the power limit, whose unit is not clear, and the state of XGMI's errors, which is not a counter.
"""

from __future__ import annotations

from typing import Any

from .device_sampler import DeviceSampler, value_of
from .records import DeviceHealth, DeviceRecord

# Fields of amdsmi_get_violation_status (MI300 and later), which takes 0.1 s: it waits between two readings.
_THROTTLE_REASONS = {
    "active_ppt_pwr": "power cap",
    "active_prochot_thrm": "hardware thermal",
    "active_socket_thrm": "socket thermal",
    "active_vr_thrm": "voltage regulator thermal",
    "active_hbm_thrm": "memory thermal",
}
_GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}  # of PCIe, by GT/s


class AmdSmiSampler(DeviceSampler):
    def __init__(self, pci_address: str | None) -> None:
        super().__init__()
        self._amdsmi: Any = None
        self._handle: Any = None
        if pci_address is None:
            self.unavailable = "this torch does not report the PCI address by which amdsmi finds a GPU"
            return
        try:
            import amdsmi

            amdsmi.amdsmi_init()
            self._amdsmi = amdsmi
            self._handle = amdsmi.amdsmi_get_processor_handle_from_bdf(pci_address)
        except ImportError:
            self.unavailable = "amdsmi is not installed"
        except Exception as error:  # its library may be missing, and its classes of errors with it
            self.unavailable = f"amdsmi: {error}"

    # Never shut down: the training may use the library as well (torch.cuda.utilization does), and it does not count.

    def _read(self, record: DeviceRecord) -> None:
        smi = self._amdsmi
        record.sm_clock_mhz = self._clock("GFX")
        record.memory_clock_mhz = self._clock("MEM")
        power = self._get("power_info")
        watts = _number(power, "average_socket_power")
        watts = watts if watts is not None else _number(power, "current_socket_power")
        record.power_mw = watts * 1000 if watts is not None else None
        record.temperature_c = value_of(
            lambda: smi.amdsmi_get_temp_metric(
                self._handle, smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
            )
        )
        record.utilization_percent = _number(self._get("gpu_activity"), "gfx_activity")
        status = self._get("violation_status") or {}
        record.throttle_reasons = [text for name, text in _THROTTLE_REASONS.items() if status.get(name) in (True, 1)]

    def _read_seldom(self, record: DeviceRecord, health: DeviceHealth) -> None:
        health.source = "amdsmi"
        errors = self._get("gpu_total_ecc_count")
        record.ecc_corrected = _number(errors, "correctable_count")
        record.ecc_uncorrected = _number(errors, "uncorrectable_count")
        pages = self._get("gpu_bad_page_info")
        if isinstance(pages, list):
            status = self._amdsmi.AmdSmiMemoryPageStatus
            health.retired_pages = len(pages)
            health.retire_pending = any(page.get("status") == status.PENDING for page in pages)
        links = self._get("gpu_xgmi_link_status")
        if links is not None and links["status"]:
            health.active_links = links["status"].count("U")
        pcie = self._get("pcie_info") or {}
        most, now = pcie.get("pcie_static"), pcie.get("pcie_metric")
        health.pcie_width, health.pcie_max_width = _number(now, "pcie_width"), _number(most, "max_pcie_width")
        health.pcie_generation = _generation(_number(now, "pcie_speed"))
        health.pcie_max_generation = _generation(_number(most, "max_pcie_speed"))
        health.pcie_replays = _number(now, "pcie_replay_count")

    def _get(self, name: str) -> Any:
        """What a function of amdsmi returns that takes nothing but the device."""
        return value_of(lambda: getattr(self._amdsmi, f"amdsmi_get_{name}")(self._handle))

    def _clock(self, domain: str) -> int | None:
        smi = self._amdsmi
        found = value_of(lambda: smi.amdsmi_get_clock_info(self._handle, getattr(smi.AmdSmiClkType, domain)))
        return _number(found, "clk")


def _number(found: Any, name: str) -> int | None:
    """A field of a dictionary; None where it is "N/A", as amdsmi says what a GPU does not offer."""
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) else None


def _generation(speed: int | None) -> int | None:
    """``speed``: in MT/s; the documentation says GT/s, and the library's own command divides by 1000."""
    if speed is None:
        return None
    return _GENERATIONS.get(speed / 1000 if speed >= 1000 else speed)

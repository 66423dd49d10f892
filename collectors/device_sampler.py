"""Samples of one device: clocks, power and throttling about once a second, errors and links every half minute.

Only what a diagnosis or its evidence reads is sampled. Throughput of PCIe and NVLink is left out: a trace has it by
transfer, and NVML takes 20 ms for each direction of PCIe to measure it. The memory in use is left out as well: the
allocator's peaks are in the step records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from .accelerator import Accelerator
from .policy import RECORDING
from .records import DeviceHealth, DeviceRecord

T = TypeVar("T")


class DeviceSampler:
    """Base class; the classes of the libraries do the reading. A value that the device or its driver does not offer
    stays None. ``unavailable``: why nothing can be read."""

    SELDOM_NS = 30 * 10**9  # between two readings of values that change seldom

    def __init__(self, unavailable: str | None = None) -> None:
        self.unavailable = unavailable
        self._due_ns = 0  # the next such reading
        self._utilization: deque[int] = deque(
            maxlen=RECORDING.most_utilization_samples
        )  # that ``utilization`` has not returned

    def sample(self, everything: bool = False) -> DeviceRecord:
        """``everything``: also reads the values that change seldom, whenever they were read last."""
        now = time.monotonic_ns()
        record = DeviceRecord(now, unavailable=self.unavailable)
        if self.unavailable is None:
            self._read(record)
            if everything or now >= self._due_ns:
                self._due_ns = now + self.SELDOM_NS
                record.health = DeviceHealth()
                self._read_seldom(record, record.health)
        if record.utilization_percent is not None:
            self._utilization.append(record.utilization_percent)
        return record

    def utilization(self) -> list[int]:
        """The samples of the utilization since the last call, per cent. Any thread may call it."""
        taken = []
        while self._utilization:
            taken.append(self._utilization.popleft())
        return taken

    def close(self) -> None:
        pass

    def _read(self, record: DeviceRecord) -> None:
        """Reads the values that change from second to second."""

    def _read_seldom(self, record: DeviceRecord, health: DeviceHealth) -> None:
        """Reads ECC errors, and all of ``health``."""


def sampler_of(accelerator: Accelerator | None) -> DeviceSampler:
    """The sampler of a rank's device."""
    if accelerator is None:
        return DeviceSampler("this rank uses no GPU")
    if accelerator.kind.sampler == "NVML":
        return NvmlSampler(accelerator.uuid, accelerator.device.index)
    if accelerator.kind.sampler == "amdsmi":
        return AmdSmiSampler(accelerator.pci_address)
    return DeviceSampler(accelerator.kind.lacks)


def value_of(read: Callable[[], T]) -> T | None:
    """None where the device does not offer it. Catches every exception: the libraries create their error classes when
    they are imported."""
    try:
        return read()
    except Exception:
        return None


# -- NVML --------------------------------------------------------------------------------------------------------------
#
# Clocks, power, throttling, ECC errors, remapped rows and links of an NVIDIA GPU, from NVML, or why not.
#
# Error counters of NVLink 5 (Blackwell) are other fields of NVML, and not read.

_NVML_REASONS = {
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
                self._handle = _nvml_handle(pynvml, device_uuid)
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(device_index)
        except ImportError:
            self.unavailable = "nvidia-ml-py is not installed"
        except Exception as error:  # pynvml creates its error classes at import time, so none can be named here
            self.unavailable = _nvml_reason(error)

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
        record.throttle_reasons = [text for name, text in _NVML_REASONS.items() if (mask or 0) & getattr(nvml, name, 0)]

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
        """The result of an NVML function that takes only the device."""
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


def _nvml_handle(nvml: Any, uuid: str) -> Any:
    """Of a GPU; of a part of one (MIG), which torch reports by an id that NVML has under another prefix."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception as error:  # pynvml creates its error classes at import time
        try:
            return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        except Exception:
            raise error from None


def _by_link(links: Iterable[int], read: Callable[[int], int]) -> list[int | None]:
    """The values of links 0, 1, ... up to the last that answers; None for those between that do not."""
    values = [value_of(partial(read, link)) for link in links]
    while values and values[-1] is None:
        values.pop()
    return values


def _nvml_reason(error: Exception) -> str:
    if type(error).__name__ in {"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"}:
        return "no NVIDIA driver"
    return f"NVML: {error}"


# -- amdsmi ------------------------------------------------------------------------------------------------------------
#
# Clocks, power, throttling, ECC errors, bad pages and links of an AMD GPU, from amdsmi (part of ROCm), or why not.
#
# Written from the library's documentation and the names in its package (7.0.2), and never run on an AMD GPU. Not read:
# the power limit, whose unit is not clear, and the state of XGMI's errors, which is not a counter.

# Fields of amdsmi_get_violation_status (MI300 and later), which takes 0.1 s: it waits between two readings.
_AMD_REASONS = {
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
        except Exception as error:  # its library may be missing, and its error classes with it
            self.unavailable = f"amdsmi: {error}"

    # Never shut down: the training may use the library as well (torch.cuda.utilization does), and amdsmi does not count
    # its users.

    def _read(self, record: DeviceRecord) -> None:
        smi = self._amdsmi
        record.sm_clock_mhz = self._clock("GFX")
        record.memory_clock_mhz = self._clock("MEM")
        power = self._get("power_info")
        watts = _amd_number(power, "average_socket_power")
        watts = watts if watts is not None else _amd_number(power, "current_socket_power")
        record.power_mw = watts * 1000 if watts is not None else None
        record.temperature_c = value_of(
            lambda: smi.amdsmi_get_temp_metric(
                self._handle, smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
            )
        )
        record.utilization_percent = _amd_number(self._get("gpu_activity"), "gfx_activity")
        status = self._get("violation_status") or {}
        record.throttle_reasons = [text for name, text in _AMD_REASONS.items() if status.get(name) in (True, 1)]

    def _read_seldom(self, record: DeviceRecord, health: DeviceHealth) -> None:
        health.source = "amdsmi"
        errors = self._get("gpu_total_ecc_count")
        record.ecc_corrected = _amd_number(errors, "correctable_count")
        record.ecc_uncorrected = _amd_number(errors, "uncorrectable_count")
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
        health.pcie_width, health.pcie_max_width = _amd_number(now, "pcie_width"), _amd_number(most, "max_pcie_width")
        health.pcie_generation = _amd_generation(_amd_number(now, "pcie_speed"))
        health.pcie_max_generation = _amd_generation(_amd_number(most, "max_pcie_speed"))
        health.pcie_replays = _amd_number(now, "pcie_replay_count")

    def _get(self, name: str) -> Any:
        """The result of an amdsmi function that takes only the device."""
        return value_of(lambda: getattr(self._amdsmi, f"amdsmi_get_{name}")(self._handle))

    def _clock(self, domain: str) -> int | None:
        smi = self._amdsmi
        clock_info = value_of(lambda: smi.amdsmi_get_clock_info(self._handle, getattr(smi.AmdSmiClkType, domain)))
        return _amd_number(clock_info, "clk")


def _amd_number(fields: Any, name: str) -> int | None:
    """A field of a dictionary; None where it is "N/A", amdsmi's value for what a GPU does not offer."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, int) else None


def _amd_generation(speed: int | None) -> int | None:
    """``speed``: in MT/s; the documentation says GT/s, and the library's own command divides by 1000."""
    if speed is None:
        return None
    return _GENERATIONS.get(speed / 1000 if speed >= 1000 else speed)

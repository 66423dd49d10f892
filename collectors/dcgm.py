"""What DCGM measures of this node's GPUs, as NVIDIA's dcgm-exporter tells it. Standard library only.

The exporter is a process of the cluster's own, and answers at port 9400 in Prometheus' format. Fields that it was not
told to watch are not there, and none is added: profiling fields take the GPU's counters away from Nsight. So ``dcgmi``,
which would watch them, and would be a child process of the training, is not started.

Field names: ``dcgm_fields.h`` of DCGM 4.6, old and new. A name whose unit is not known is left out.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from .policy import RECORDING

ADDRESS_VARIABLE = "DIAG_DCGM_EXPORTER"  # where the exporter answers, host:port or http://host:port/path, or "off"
_ADDRESS = "localhost:9400"

# By the name that a value gets here: by how much DCGM's value is multiplied, and DCGM's names.
_FIELDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "sm_active_ppm": (10**6, ("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO")),
    "tensor_active_ppm": (10**6, ("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO")),
    "dram_active_ppm": (10**6, ("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO")),
    "nvlink_tx_bytes_a_second": (1, ("PROF_NVLINK_TX_BYTES",)),
    "nvlink_rx_bytes_a_second": (1, ("PROF_NVLINK_RX_BYTES",)),
    "nvlink_bytes_a_second": (10**6, ("DEV_NVLINK_BANDWIDTH_TOTAL",)),  # MB/s, whatever the exporter calls it
    "pcie_tx_bytes_a_second": (1, ("PROF_PCIE_TX_BYTES",)),
    "pcie_rx_bytes_a_second": (1, ("PROF_PCIE_RX_BYTES",)),
    "power_mw": (1000, ("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS")),
    "clock_event_reasons": (1, ("DEV_CLOCKS_EVENT_REASONS", "DEV_CLOCK_THROTTLE_REASONS")),  # a bit mask
    "xid": (1, ("DEV_XID_ERRORS", "DEV_XID_ERROR")),  # the number of the last one
    "power_violation_ns": (1, ("DEV_POWER_VIOLATION",)),
    "thermal_violation_ns": (1, ("DEV_THERMAL_VIOLATION",)),
    "sync_boost_violation_ns": (1, ("DEV_SYNC_BOOST_VIOLATION",)),
    "board_limit_violation_ns": (1, ("DEV_BOARD_LIMIT_VIOLATION",)),
    "reliability_violation_ns": (1, ("DEV_RELIABILITY_VIOLATION",)),
    "nvlink_crc_flit_errors": (1, ("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL")),
    "nvlink_crc_data_errors": (1, ("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_DATA_ERROR_TOTAL")),
    "nvlink_replay_errors": (1, ("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_NVLINK_REPLAY_ERROR_TOTAL")),
    "nvlink_recovery_errors": (1, ("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DEV_NVLINK_RECOVERY_ERROR_TOTAL")),
    "pcie_replays": (1, ("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL")),
    "ecc_uncorrected": (1, ("DEV_ECC_DBE_VOL_TOTAL",)),
}
_BY_FIELD = {f"DCGM_FI_{field}": (name, times) for name, (times, fields) in _FIELDS.items() for field in fields}
# DCGM's values that stand for "no value" begin here: of integers, and of all others.
_BLANK_INTEGER, _BLANK = 0x7FFF_FFFF_FFFF_FFF0, float(0x7FFF_FFFF_FFFF)

_LINE = re.compile(r'\w+\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}[ \t]+(\S+)')
_LABEL = re.compile(r'\b(UUID|GPU_I_ID)="((?:[^"\\]|\\.)*)"')


def values_in(text: str, gpus: Collection[str]) -> dict[str, int]:
    """The values of these GPUs, by NVML's ids, in an exporter's text. A part of a GPU (MIG) has the id of its GPU, a
    colon and its number."""
    found: dict[str, int] = {}
    for line in text.split("\n"):  # one at a time: an expression on all of them would keep other threads waiting
        name, times = _BY_FIELD.get(line.partition("{")[0], ("", 0))
        told = _LINE.match(line) if name else None
        if told is None:
            continue
        label = dict(_LABEL.findall(told[1]))
        gpu, part = label.get("UUID", ""), label.get("GPU_I_ID", "")
        value = _value(told[2], times) if gpu in gpus else None
        if value is not None and (part.isdecimal() or not part):
            found[f"dcgm.{gpu}{':' * bool(part)}{part}.{name}"] = value
    return found


def _value(number: str, times: int) -> int | None:
    if number.isdecimal():
        whole = int(number) if len(number) < 20 else _BLANK_INTEGER
        return whole * times if whole < _BLANK_INTEGER else None
    try:
        value = float(number)
    except ValueError:
        return None
    return round(value * times) if 0 <= value < _BLANK else None  # not NaN


class Exporter:
    """Asks this node's exporter. One that does not answer is asked less and less often."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        given = environ.get(ADDRESS_VARIABLE, "") or _ADDRESS
        self._address = given if "//" in given else f"//{given}"
        self.address, self.off = given, given == "off"
        self._pause = self._wait = 0  # readings without an answer that are left out, after the next failure and now

    def read(self, gpus: Collection[str]) -> dict[str, int]:
        """Everything that is known; {} where nothing answers."""
        if self.off or not gpus:
            return {}
        if self._wait:
            self._wait -= 1
            return {}
        try:
            text = self._text()
        except Exception:  # a name that is not known, another protocol, an end in the middle: not known
            self._pause = self._wait = min(2 * self._pause + 1, RECORDING.exporter_longest_pause)
            return {}
        self._pause = 0
        return values_in(text, gpus)

    def names(self) -> set[str]:
        """The names of all values that are told and known, of any GPU. Raises what goes wrong."""
        return {
            _BY_FIELD[name][0] for line in self._text().split("\n") if (name := line.partition("{")[0]) in _BY_FIELD
        }

    def _text(self) -> str:
        import http.client  # only where there are GPUs: it takes milliseconds

        deadline_s = time.monotonic() + RECORDING.exporter_patience_s
        address = urlsplit(self._address)
        connection = http.client.HTTPConnection(
            address.hostname or "localhost", address.port or 9400, timeout=RECORDING.exporter_patience_s
        )
        try:
            connection.request("GET", address.path or "/metrics")
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"HTTP status {response.status}")
            data = b""
            while chunk := response.read1(1 << 16):
                data += chunk
                if len(data) > RECORDING.exporter_bytes or time.monotonic() > deadline_s:
                    raise OSError("too long")
            return data.decode(errors="replace")
        finally:
            connection.close()

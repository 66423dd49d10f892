"""What devices can do at best: dense BF16 (FP16 where there is no BF16) without sparsity, and memory bandwidth.

Sources: science.md 4.4 (torchtitan tools/utils.py, composer speed_monitor.py, nsys-ai hardware.py). Bandwidths of
V100, T4, A10, A6000, L40S, H20, H100 PCIe and NVL, A100 40 GB, MI250X and MI350 are the vendors' data sheets'.
torch's own device_info.py is no source: its H100 row is the sparse figure and its L4 row is wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diag.model.breakdown import DevicePeak

if TYPE_CHECKING:
    from diag.rundir.run import Tables

# (pattern of the name, TFLOP/s, GB/s), special before general; names as the drivers write them.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    (r"GB[23]00", 2500, 8000),
    (r"B[23]00", 2250, 8000),
    (r"H200", 989, 4800),
    (r"H100.*PCIe", 756, 2000),
    (r"H100.*NVL", 835, 3900),
    (r"H[18]00", 989, 3350),
    (r"H20", 148, 4000),
    (r"A[18]00.*40GB|A100-PG509-200", 312, 1555),
    (r"A[18]00", 312, 2039),
    (r"A6000", 155, 768),
    (r"L40S", 362, 864),
    (r"V100", 125, 900),
    (r"A10(?:G)?", 125, 600),
    (r"L4", 121, 300),
    (r"T4", 65, 320),
    (r"4090", 165, 1008),
    (r"MI355X", 2500, 8000),
    (r"MI350X", 2309, 8000),
    (r"MI300X", 1307, 5300),
    (r"MI250X?", 191.5, 1638),  # one of the two dies that a rank sees as its device
)


def peak_of(device: str | None) -> DevicePeak | None:
    """The peak of a device by its name, "NVIDIA H100 80GB HBM3"; None where the table does not know it."""
    for pattern, tflop_s, gb_s in _PEAKS:
        # Whole words: an "RTX A1000" is no A100, an "L40" no L4, an "RTX 6000 Ada" no A6000.
        if device and re.search(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", device):
            return DevicePeak(device, tflop_s, gb_s)
    return None


def device_of(tables: Tables) -> str | None:
    """The accelerator's name, of the first rank that says it."""
    for rank in tables.ranks.values():
        if rank.identity is not None and rank.identity.device != "cpu":
            return rank.identity.device
    return next((name for rank in tables.ranks.values() for trace in rank.traces for name in trace.device_names), None)

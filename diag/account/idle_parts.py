"""The idle time of a device by who could have kept it busy: details of idle time as the fields of ``IdleParts``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diag.model.steps import Detail, IdleParts

_PART_OF = {
    Detail.LAUNCH: "not_launched_ns",
    Detail.AFTER_SYNC: "not_launched_ns",
    Detail.ONCE: "not_launched_ns",
    Detail.GC: "not_launched_ns",
    Detail.IN_LAUNCH: "in_launch_ns",
    Detail.LOADING: "in_launch_ns",
    Detail.NONE: "queued_ns",
    Detail.LATENCY: "queued_ns",
    Detail.DEPENDENCY: "queued_ns",
    Detail.SYNC: "host_call_ns",
    Detail.ALLOCATOR: "host_call_ns",
    Detail.OFFLOAD: "host_call_ns",
    Detail.OUTSIDE: "outside_ns",
}


def part_of(detail: Detail) -> str:
    return _PART_OF.get(detail, "unknown_ns")


def of_device(idle_ns: npt.NDArray[np.int64]) -> bool:
    """Whether idle time, by detail, is that of a traced device. Garbage collection and the time outside of the recorded
    work do not show it: a CPU has them, too."""
    shows = _PART_OF.keys() - {Detail.GC, Detail.OUTSIDE}
    return any(detail in shows for detail in np.flatnonzero(idle_ns).tolist())


def idle_parts(idle_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The idle time of steps by the fields of ``IdleParts``, [steps, fields], from that by detail, [steps, details].
    Details that are not a device's causes count as unknown."""
    fields = IdleParts.__struct_fields__
    shows = [detail in _PART_OF and detail not in (Detail.GC, Detail.OUTSIDE) for detail in Detail]
    device = (idle_ns[:, shows] != 0).any(axis=1)
    parts = np.zeros((len(idle_ns), len(fields)), dtype=np.int64)
    for detail in Detail:
        known = device | (detail == Detail.OUTSIDE)
        parts[:, fields.index(part_of(detail))] += np.where(known, idle_ns[:, detail], 0)
        parts[:, fields.index("unknown_ns")] += np.where(known, 0, idle_ns[:, detail])
    return parts

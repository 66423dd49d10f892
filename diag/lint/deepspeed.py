"""A DeepSpeed configuration as its rules see it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .document import Document
from .lines import Place
from .model import Devices
from .section import Section

STAGES = (0, 1, 2, 3)


class DeepSpeed(Struct, frozen=True):
    """``reader``: who loads it: DeepSpeed itself (None), "Accelerate" or "Transformers", which fill in "auto".
    ``stage`` None: not one of 0 to 3, or "auto"."""

    top: Section
    zero: Section
    stage: int | None
    reader: str | None
    autos: tuple[Place, ...]  # keys whose value is "auto"
    devices: Devices

    @property
    def filled_in(self) -> bool:
        """Whether values that are missing or "auto" come from elsewhere."""
        return self.reader is not None or bool(self.autos)

    @property
    def ranks(self) -> int | None:
        """Ranks with data of their own: GPUs over those that share a sample. None: not told, or they do not divide."""
        shared = self.top.whole("sequence_parallel_size") or 1
        shared *= self.top.within("tensor_parallel").whole("autotp_size") or 1
        gpus = self.devices.gpus
        return gpus // shared if gpus is not None and shared > 0 and gpus % shared == 0 else None

    def enabled(self, key: str) -> bool:
        return self.top.within(key).flag("enabled") is True

    def offload(self, key: str) -> str | None:
        """Where offload_param or offload_optimizer puts its states: "cpu", "nvme" or None."""
        device = self.zero.within(key).word("device")
        return device if device in ("cpu", "nvme") else None


def deepspeed(
    document: Document,
    devices: Devices,
    reader: str | None = None,
    place: Place = (),
    values: dict[str, Any] | None = None,
) -> DeepSpeed:
    """The view of a document, or of ``values`` that stand at ``place`` in it."""
    top = Section(document, place, document.values if values is None else values)
    zero = top.within("zero_optimization")
    if isinstance(top.values.get("zero_optimization"), bool):  # the form of before stages
        stage: int | None = int(top.values["zero_optimization"])
    else:
        stage = zero.whole("stage") if "stage" in zero else 0
    return DeepSpeed(top, zero, stage if stage in STAGES else None, reader, tuple(_autos(top.values, ())), devices)


def _autos(values: dict[str, Any], place: Place) -> list[Place]:
    found: list[Place] = []
    open_tables = [(place, values)]
    while open_tables:
        at, table = open_tables.pop()
        for key, value in table.items():
            if value == "auto":
                found.append((*at, key))
            elif isinstance(value, dict):
                open_tables.append(((*at, key), value))
    return found

"""What the replay offers to choose from and to draw: changes, what they would gain, what collectives cost. Frozen."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from .steps import Risk


class KnobChange(Struct, frozen=True):
    """A setting of one knob. ``memory_delta_bytes``: what it takes more of a device when it is the only change; None
    where that cannot be told. ``finding``: the id of what it is for."""

    id: str
    knob: str
    change: str
    finding: str
    risk: Risk
    memory_delta_bytes: int | None


class Code(Struct, frozen=True):
    """How one change is written, by the name of the API; the run's own first."""

    change: str
    by_api: Mapping[str, str]


class Prospect(Struct, frozen=True):
    """What changes made together would gain: nanoseconds a step (low, likely, high), as a measurement would find it.

    ``refused``: why nothing is predicted, and then the gain is all 0. ``memory_veto``: why the changes do not fit into
    the device, "" where they do or where there is no device to fill. ``headroom_bytes``: what is free of the device
    now, None where nobody recorded it. ``command``: of the bundled trainer; "" where it has no option for one of them.
    """

    changes: tuple[KnobChange, ...]
    step_ns: int
    gain_ns: tuple[int, int, int]
    replay_error: float
    memory_delta_bytes: int | None
    headroom_bytes: int | None
    memory_veto: str = ""
    refused: str = ""
    assumptions: tuple[str, ...] = ()
    command: str = ""
    code: tuple[Code, ...] = field(default=())

    @property
    def new_step_ns(self) -> tuple[int, int, int]:
        """The predicted step: shortest, likely, longest."""
        low, likely, high = self.gain_ns
        return max(0, self.step_ns - high), max(0, self.step_ns - likely), max(0, self.step_ns - low)

    @property
    def gain_share(self) -> float:
        return self.gain_ns[1] / self.step_ns if self.step_ns else 0.0


class CostPoint(Struct, frozen=True):
    """The median transfer of one size; ``error``: of the median, relative. ``bus_gb_s``: None where the operation has
    no bus bandwidth."""

    bytes: float
    ns: float
    error: float
    bus_gb_s: float | None


class CostCurve(Struct, frozen=True):
    """What the replay takes a collective of one group and operation to cost: through the measured ``points``.

    ``line``: sizes within what was measured, each with the transfer (fast, likely, slow) in nanoseconds; ``bus_gb_s``
    of each, slowest first, where the operation has a bus bandwidth. ``borrowed``: some points are other operations', by
    bytes on the wire.
    """

    group: str
    op: str
    ranks: int
    borrowed: bool
    points: tuple[CostPoint, ...]
    line: tuple[tuple[float, float, float, float], ...]
    bus_gb_s: tuple[tuple[float, float, float], ...]

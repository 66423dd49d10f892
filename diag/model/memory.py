"""What device memory is used for, and what would use less. Traces, snapshots and figures use these categories only."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Category(StrEnum):
    """In the order in which they are stacked: what stays for the whole training lies at the bottom."""

    BEFORE = "before the window"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer states"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    COMMUNICATION = "communication buffers"
    OTHER = "other code"
    OUTSIDE = "outside of PyTorch"


MEANING: dict[Category, str] = {
    Category.BEFORE: "Allocated before the recorded history begins, or without a recorded stack.",
    Category.PARAMETERS: "Allocated while modules are built, moved or materialised.",
    Category.OPTIMIZER: "Allocated in the optimizer: its states, and its temporary tensors.",
    Category.GRADIENTS: "Allocated in the backward: gradients of parameters and of activations.",
    Category.ACTIVATIONS: "Allocated in the forward, or recomputed in the backward.",
    Category.COMMUNICATION: "Allocated by collectives, DDP's buckets or FSDP: what is gathered and reduced.",
    Category.OTHER: "Allocated by code outside of the forward, the backward and the optimizer.",
    Category.OUTSIDE: "Used on the device and not reserved by this process's allocator: the CUDA context, NCCL's "
    "buffers, other processes.",
}


class Lower(Struct, frozen=True):
    """What a change does to a peak that fitted. ``peak``: allocated bytes with it, at another moment where that is the
    highest then; None where that is not known. ``frees``: bytes; ``at_most``: it may be less. ``risk``:
    what else it changes; "" for nothing."""

    change: str
    peak: int | None
    frees: int
    at_most: bool
    risk: str = ""


class Lowered(Struct, frozen=True):
    """``changes``: those that free the most first; ``basis``: how that is known, or why there are none; ``allocated``:
    the peak that they lower, in bytes."""

    changes: tuple[Lower, ...]
    basis: str
    allocated: int

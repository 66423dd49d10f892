"""What the kinds of work in the timeline are called, and their colours: parts of a step as on every page, kernels blue
and green, communication from red to orange, the host's phases brown and violet."""

from __future__ import annotations

from collections.abc import Mapping

from diag.app.run_view import Part
from diag.app.theme import Theme
from diag.model.breakdown import KernelKind
from diag.tables.zoom import BACKWARD, CALL, FORWARD, WORK, Category

_PART: Mapping[Category, Part] = {
    Category.COMPUTE: Part.COMPUTE,
    Category.TRANSFER: Part.TRANSFER,
    Category.WAITING: Part.WAITING,
    Category.COMMUNICATION: Part.COMMUNICATION,
    Category.COPY: Part.COPY,
    Category.DATA: Part.DATA,
    Category.CHECKPOINT: Part.CHECKPOINT,
    Category.NOT_LAUNCHED: Part.HOST,
    Category.QUEUED: Part.QUEUED,
    Category.IDLE: Part.IDLE,
}
_WORDS = {
    KernelKind.GEMM: "matrix product",
    KernelKind.FUSED: "fused compute and communication",
    KernelKind.TRITON: "Triton kernel",
    KernelKind.OTHER: "other compute",
}
# Light and dark.
_OWN: Mapping[str, tuple[str, str]] = {
    KernelKind.GEMM: ("#0072b2", "#2a83c4"),
    KernelKind.ATTENTION: ("#3b3fae", "#7f86f2"),
    KernelKind.CONVOLUTION: ("#00507d", "#4aa0d8"),
    KernelKind.ELEMENTWISE: ("#56b4e9", "#9bd4f7"),
    KernelKind.REDUCTION: ("#218c97", "#45c1cc"),
    KernelKind.EMBEDDING: ("#1b7f5c", "#3fbf93"),
    KernelKind.OPTIMIZER: ("#7d8a1e", "#c3cf52"),
    KernelKind.FUSED: ("#8c3b7a", "#c46ab0"),
    KernelKind.TRITON: ("#5b7fd9", "#8fabf2"),
    KernelKind.OTHER: ("#7d8da0", "#93a4b8"),
    "all_reduce": ("#a63c06", "#d1571b"),
    "all_gather": ("#cf6210", "#ef8a3c"),
    "reduce_scatter": ("#8a1f2d", "#e0606e"),
    "all_to_all": ("#c2386b", "#ef7aa5"),
    FORWARD: ("#6b7f3a", "#a9bf6e"),
    BACKWARD: ("#8a5a2b", "#c9935d"),
    CALL: ("#7a5c8e", "#a685bd"),
}


def words(category: Category) -> str:
    """What people read of a part of a step."""
    return _PART[category].value if category in _PART else category.value


def work_words(work: str) -> str:
    """What people read of one of WORK."""
    if work in set(Category):
        return words(Category(work))
    return _WORDS.get(KernelKind(work), work) if work in set(KernelKind) else work.replace("_", "-")


def work_colours(theme: Theme) -> list[str]:
    """By the code of the work."""
    return [_colour(work, theme) for work in WORK]


def _colour(work: str, theme: Theme) -> str:
    if work in _OWN:
        return _OWN[work][theme.name == "dark"]
    if work in set(Category):
        category = Category(work)
        return theme.part[_PART[category]] if category in _PART else theme.host
    return theme.part[Part.COMMUNICATION]

"""What training keeps for each parameter: bytes of parameters, gradients, fp32 copies and optimizer moments.

Published tables disagree because they count with different recipes; `PUBLISHED` says which counts what, so that a
number from one is not held against a number from another.
"""

from __future__ import annotations

from msgspec import Struct

from diag.model.states import BytesPerParameter


class Recipe(Struct, frozen=True):
    """Bytes per parameter where nothing is sharded. ``master``: the fp32 copy that the optimizer updates where the
    parameters are in a 16-bit type; ``moments``: the optimizer's own states. ``computed``: bytes of a parameter when it
    is gathered to compute with, and ``reduced`` of a gradient when it is reduced."""

    name: str
    about: str
    parameters: int
    gradients: int
    master: int
    moments: int
    computed: int
    reduced: int

    @property
    def total(self) -> int:
        return self.each.total

    @property
    def each(self) -> BytesPerParameter:
        return BytesPerParameter(self.parameters, self.gradients, self.master + self.moments)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("mixed", "16-bit parameters and gradients, fp32 copy, Adam (ZeRO's 2 + 2 + 12)", 2, 2, 4, 8, 2, 2),
        Recipe("fsdp-mixed", "fp32 parameters and gradients, computed in bf16 (FSDP)", 4, 4, 0, 8, 2, 4),
        Recipe("fp32", "all in fp32, Adam", 4, 4, 0, 8, 4, 4),
        Recipe("mixed-fp32-gradients", "16-bit parameters, fp32 gradients and copy, Adam (Megatron)", 2, 4, 4, 8, 2, 4),
        Recipe("bf16", "all in bf16, Adam's moments too, no fp32 copy", 2, 2, 0, 4, 2, 2),
        Recipe("mixed-8bit-adam", "as mixed, moments of 8 bits (bitsandbytes)", 2, 2, 4, 2, 2, 2),
        Recipe("mixed-sgd", "as mixed, SGD with momentum", 2, 2, 4, 4, 2, 2),
    )
}


class Published(Struct, frozen=True):
    """A way of counting that published tables use."""

    where: str
    each: BytesPerParameter
    says: str


PUBLISHED = (
    Published(
        "the ZeRO paper's figure 1 (arXiv 1910.02054)",
        BytesPerParameter(2, 2, 12),
        "the 12: fp32 copy 4, Adam's moments 8",
    ),
    Published("Megatron-LM", BytesPerParameter(2, 4, 12), "gradients in fp32"),
    Published(
        "Hugging Face's model memory anatomy",
        BytesPerParameter(6, 4, 8),
        "the fp32 copy is among the weights, the 8 are moments",
    ),
    Published(
        "tables with 8 bytes for optimizer and copy",
        BytesPerParameter(2, 2, 8),
        "moments alone: the fp32 copy is not counted",
    ),
)

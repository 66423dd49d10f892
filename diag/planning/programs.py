"""``diag plan`` for what a program's own options set."""

from __future__ import annotations

import shlex

from diag.model.programs import Concept, Program, Settings

from .shape import Shape

_RECIPE = "mixed-fp32-gradients"  # Megatron's


def shape_of(settings: Settings) -> Shape | None:
    """The model, where the options of Megatron-LM give its numbers. Other programs leave some to a model's own file."""
    whole = settings.whole
    layers, hidden, heads = (whole(one) for one in (Concept.LAYERS, Concept.HIDDEN, Concept.HEADS))
    vocabulary = whole(Concept.VOCABULARY)
    if layers is None or hidden is None or heads is None or vocabulary is None:
        return None
    if settings.program is not Program.MEGATRON:
        return None
    experts, ffn = whole(Concept.EXPERTS) or 1, whole(Concept.FFN) or 4 * hidden
    return Shape(
        "of the script",
        layers,
        hidden,
        heads,
        (whole(Concept.QUERY_GROUPS) or 1) if settings.on(Concept.GROUPED) else heads,
        whole(Concept.HEAD_SIZE) or hidden // heads,
        (whole(Concept.EXPERT_FFN) or ffn) if experts > 1 else ffn,
        vocabulary,
        gated=settings.on(Concept.GATED),
        tied=not settings.on(Concept.UNTIED),
        biases=not settings.on(Concept.UNBIASED),
        experts=experts,
        experts_used=whole(Concept.EXPERTS_USED) or 2,
    )


def plan_command(settings: Settings, gpus: int | None, per_host: int) -> str:
    """``diag plan`` of the same training; "" where the model or the number of GPUs is not known."""
    gpus, per_host = settings.gpus(gpus, per_host)
    shape, data = shape_of(settings), settings.data_parallel(gpus)
    if shape is None or data is None or gpus is None:
        return ""
    sizes = {"pp": settings.size("pp"), "dp": data, "cp": settings.size("cp"), "tp": settings.size("tp")}
    axes = ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1 or axis == "dp")
    given = {
        "--gpus": gpus,
        "--per-host": per_host if per_host != 8 else None,
        "--topology": axes if settings.model_parallel > 1 else None,
        "--batch-size": settings.whole(Concept.MICRO_BATCH),
        "--seq-len": settings.whole(Concept.LENGTH),
        "--micro-batches": settings.micro_batches(gpus),
        "--checkpointing": settings.recompute,
        "--recipe": _RECIPE,
    }
    words = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
    return shlex.join(["diag", "plan", str(shape.parameters), *words])

"""Megatron-LM's scripts, and configurations of NeMo 1, NeMo 2 and verl: what they set, and rules for it in their own
names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from diag.linting.policy import LINTING
from diag.model.axes import bubble
from diag.model.programs import Concept, Program, Scalar, Settings, flat, settings_of, written

from .document import Document
from .model import ERROR, NOTE, WARNING, Devices, Notice, NoticeSeverity, Section

_ARGUMENTS = "megatron/training/arguments.py: validate_args"
_STATE = "megatron/core/parallel_state.py: initialize_model_parallel"
_UNEVEN = ("first-pipeline-num-layers", "last-pipeline-num-layers", "pipeline-model-parallel-layout", "account-for-")

# -- what is set -------------------------------------------------------------------------------------------------------


class Trained(Struct, frozen=True):
    """A configuration with what it sets, and the devices that it is for."""

    document: Document
    settings: Settings
    devices: Devices
    options: dict[str, Any]

    def say(
        self, concept: Concept, severity: NoticeSeverity, text: str, instead: str, source: str = _ARGUMENTS
    ) -> Notice:
        return Section(self.document, (), {}).say(self.settings.key(concept), severity, text, instead, source)

    def written(self, concept: Concept, value: Scalar = True) -> str:
        return written(self.settings.program, concept, value, in_a_file=self.document.syntax != "shell")

    @property
    def gpus(self) -> int | None:
        return self.devices.gpus

    @property
    def data_parallel(self) -> int | None:
        return self.settings.data_parallel(self.gpus)


def trained(document: Document, devices: Devices) -> Trained | None:
    """None where the document is of no program that is known."""
    options = document.values if document.syntax == "shell" else flat(document.values)
    settings = settings_of(options)
    if settings is None:
        return None
    return Trained(document, settings, Devices(*settings.gpus(devices.gpus, devices.per_host)), options)


def world(seen: Trained) -> Iterator[Notice]:
    """Axes that do not divide the GPUs, or span more than a host."""
    parts, tensor = seen.settings.model_parallel, seen.settings.size("tp")
    if not seen.settings.by_megatron:
        return
    if seen.gpus is not None and seen.gpus % parts:
        axes = " x ".join(f"{axis} {seen.settings.size(axis)}" for axis in ("tp", "pp", "cp"))
        yield seen.say(
            Concept.TP, ERROR, f"{axes} = {parts} does not divide {seen.gpus} GPUs: the start is refused.",
            f"sizes whose product divides {seen.gpus}", _STATE,
        )  # fmt: skip
    if tensor > seen.devices.per_host:
        yield seen.say(
            Concept.TP, WARNING,
            f"Over more than the {seen.devices.per_host} GPUs of a host: every layer has its collectives, which then "
            "use the slower links between hosts.", seen.written(Concept.TP, seen.devices.per_host),
            "Megatron-LM (arXiv 2104.04473), takeaway 1",
        )  # fmt: skip


def divisions(seen: Trained) -> Iterator[Notice]:
    """Parts of the model that the axes do not divide."""
    uneven = any(word in str(name).replace("_", "-") for name in seen.options for word in _UNEVEN)
    for concept, axis, by in (
        (Concept.LAYERS, "pp", Concept.PP), (Concept.HEADS, "tp", Concept.TP), (Concept.EXPERTS, "ep", Concept.EP),
    ):  # fmt: skip
        count, size = seen.settings.whole(concept), seen.settings.size(axis)
        if count is not None and count % size and not (axis == "pp" and uneven):
            yield seen.say(
                by, ERROR, f"{size} does not divide the {count} {concept}: refused.", f"a divisor of {count}"
            )


def sequence_parallelism(seen: Trained) -> Iterator[Notice]:
    """Tensor parallelism that repeats the norms' activations on all of its ranks."""
    tensor = seen.settings.size("tp")
    if not seen.settings.by_megatron or tensor == 1 or not seen.settings.off(Concept.SEQUENCE_PARALLEL):
        return
    instead = seen.written(Concept.SEQUENCE_PARALLEL)
    if (seen.settings.whole(Concept.EXPERTS) or 1) > 1:
        yield seen.say(
            Concept.SEQUENCE_PARALLEL, ERROR, "Experts with tensor parallelism need it: the start is refused.", instead
        )
    else:
        yield seen.say(
            Concept.SEQUENCE_PARALLEL, WARNING,
            f"Off: each of the {tensor} tensor-parallel ranks keeps the whole activations of norms and dropout; the "
            "bytes that are sent are the same with it.", instead,
            "Korthikanti et al. (arXiv 2205.05198), section 4.2.2",
        )  # fmt: skip


def data_parallelism(seen: Trained) -> Iterator[Notice]:
    """Optimizer states that every rank keeps, and communication that nothing overlaps."""
    settings, data = seen.settings, seen.data_parallel
    if not settings.by_megatron:
        return
    sharded, reduced = settings.on(Concept.SHARDED_OPTIMIZER), settings.on(Concept.OVERLAP_REDUCE)
    gathered = settings.on(Concept.OVERLAP_GATHER)
    if settings.program is Program.MEGATRON and gathered and not (sharded and reduced):
        missing = [seen.written(one) for one, given in
                   ((Concept.SHARDED_OPTIMIZER, sharded), (Concept.OVERLAP_REDUCE, reduced)) if not given]  # fmt: skip
        yield seen.say(Concept.OVERLAP_GATHER, ERROR, f"Refused without {' and '.join(missing)}.", " ".join(missing))
    if data == 1:
        return
    ranks = f"the {data} data-parallel ranks" if data is not None else "data-parallel ranks"
    if settings.off(Concept.SHARDED_OPTIMIZER):
        kept = f"{6 + 12 / data:.3g}" if data is not None else "6 + 12 / ranks"
        yield seen.say(
            Concept.SHARDED_OPTIMIZER, WARNING,
            f"Off: each of {ranks} keeps all optimizer states, 12 of 18 bytes a parameter (16-bit parameters, fp32 "
            f"gradients). Sharded, {kept} bytes stay; as many bytes are sent.",
            seen.written(Concept.SHARDED_OPTIMIZER), "Megatron-LM, docs/source/api-guide/dist_optimizer",
        )  # fmt: skip
    if settings.off(Concept.OVERLAP_REDUCE):
        yield seen.say(
            Concept.OVERLAP_REDUCE, WARNING, "Off: gradients are reduced after the backward, and nothing overlaps it.",
            seen.written(Concept.OVERLAP_REDUCE), _ARGUMENTS,
        )  # fmt: skip
    elif sharded and settings.off(Concept.OVERLAP_GATHER):
        yield seen.say(
            Concept.OVERLAP_GATHER, NOTE,
            "Off: parameters are gathered after the optimizer's step, and nothing overlaps it.",
            seen.written(Concept.OVERLAP_GATHER), _ARGUMENTS,
        )  # fmt: skip


def batches(seen: Trained) -> Iterator[Notice]:
    """A batch that the ranks do not divide, and one that is too small for the pipeline."""
    settings, data, count = seen.settings, seen.data_parallel, seen.settings.micro_batches(seen.gpus)
    whole, micro = settings.whole(Concept.GLOBAL_BATCH), settings.whole(Concept.MICRO_BATCH)
    if whole is None or micro is None or data is None or settings.program is Program.VERL:
        return
    if count is None:
        each = micro * data
        yield seen.say(
            Concept.GLOBAL_BATCH, ERROR, f"{whole} is no multiple of {micro} x {data} data-parallel ranks: refused.",
            seen.written(Concept.GLOBAL_BATCH, max(1, round(whole / each)) * each),
            "megatron/core/num_microbatches_calculator.py",
        )  # fmt: skip
        return
    stages = settings.size("pp")
    per_stage = settings.whole(Concept.VIRTUAL_LAYERS)
    layers = settings.whole(Concept.LAYERS)
    chunks = settings.whole(Concept.VIRTUAL) or (layers // stages // per_stage if layers and per_stage else 1) or 1
    idle = bubble(stages, count, chunks)
    if stages > 1 and idle > LINTING.bubble_share:
        enough = round((stages - 1) * (1 - LINTING.bubble_share) / LINTING.bubble_share / chunks)
        yield seen.say(
            Concept.GLOBAL_BATCH, WARNING,
            f"{count} micro-batch{'es' * (count != 1)} a step leave {stages} stages idle for {idle:.0%} of it.",
            f"{seen.written(Concept.GLOBAL_BATCH, enough * micro * data)}, or several stages on a rank "
            f"({seen.settings.key(Concept.VIRTUAL)})", "Megatron-LM (arXiv 2104.04473) section 2.2",
        )  # fmt: skip


def recomputation(seen: Trained) -> Iterator[Notice]:
    if seen.settings.by_megatron and seen.settings.recompute == "full":
        yield seen.say(
            Concept.RECOMPUTE, NOTE,
            "Every layer's forward runs twice, a third more computation. Selective recomputation repeats the attention "
            "alone.", seen.written(Concept.RECOMPUTE, "selective"), "Korthikanti et al. (arXiv 2205.05198), section 5",
        )  # fmt: skip


def sharded_engine(seen: Trained) -> Iterator[Notice]:
    """verl with FSDP: sizes that do not divide the ranks, and offloading."""
    settings = seen.settings
    if settings.by_megatron:
        return
    for concept in (Concept.SHARDS, Concept.SP):
        size = settings.whole(concept)
        if size is not None and seen.gpus is not None and seen.gpus % size:
            yield seen.say(
                concept, ERROR, f"{size} does not divide {seen.gpus} GPUs: the device mesh is refused.",
                f"a divisor of {seen.gpus}", "verl/workers/fsdp_workers.py: create_device_mesh",
            )  # fmt: skip
    for concept in (Concept.OFFLOAD_PARAMETERS, Concept.OFFLOAD_OPTIMIZER):
        if settings.on(concept):
            yield seen.say(
                concept, NOTE, "They go to the host and back around every update; worth it only where memory is short.",
                seen.written(concept, False), "verl/workers/fsdp_workers.py: offload_fsdp_model_to_cpu",
            )  # fmt: skip


RULES = (
    world, divisions, sequence_parallelism, data_parallelism, batches, recomputation, sharded_engine,
)  # fmt: skip

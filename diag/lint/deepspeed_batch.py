"""Rules for DeepSpeed's batch sizes, number types and optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from .deepspeed import DeepSpeed
from .model import Notice, Severity

_CONFIG = "deepspeed/runtime/config.py"
_ONE_BIT = {"onebitadam": "OneBitAdam", "zerooneadam": "ZeroOneAdam", "onebitlamb": "OneBitLamb"}


def batch_sizes(seen: DeepSpeed) -> Iterator[Notice]:
    """Batch sizes that do not multiply."""
    top = seen.top
    if seen.enabled("elasticity"):  # which chooses them
        return
    whole, micro = top.whole("train_batch_size"), top.whole("train_micro_batch_size_per_gpu")
    steps, ranks = top.whole("gradient_accumulation_steps"), seen.ranks
    source = f"{_CONFIG}: _batch_assertion"
    for key, number in (("train_batch_size", whole), ("train_micro_batch_size_per_gpu", micro),
                        ("gradient_accumulation_steps", steps)):  # fmt: skip
        if number is not None and number < 1:
            yield top.say(key, Severity.ERROR, f"{number} is no size: DeepSpeed asserts more than 0.",
                          f'"{key}": 1', source)  # fmt: skip
            return
    if whole is None:
        return
    each = (micro or 1) * (steps or 1)
    if ranks is not None and (whole != each * ranks if micro and steps else whole % (each * ranks)):
        parts = " x ".join(
            [f"{micro} a GPU"] * (micro is not None)
            + [f"{steps} accumulated"] * (steps is not None)
            + [f"{ranks} ranks"]
        )
        product = f" = {each * ranks}" if micro or steps else ""
        must = "is not" if micro and steps else "is no multiple of"
        yield top.say(
            "train_batch_size", Severity.ERROR, f"{whole} {must} {parts}{product}: DeepSpeed refuses to start.",
            f'"train_batch_size": {each * ranks}, or leave it out', source,
        )  # fmt: skip
    elif ranks is None and whole % each:
        yield top.say(
            "train_batch_size", Severity.ERROR,
            f"{whole} is no multiple of {each} (a GPU's share of a step), so no number of GPUs fits.",
            f'"train_batch_size": {each} x GPUs, or leave it out', source,
        )  # fmt: skip


def no_batch_size(seen: DeepSpeed) -> Iterator[Notice]:
    """A configuration that says no batch size at all."""
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu")
    if not seen.filled_in and not seen.enabled("elasticity") and not any(key in seen.top for key in sizes):
        yield seen.top.say(
            "train_micro_batch_size_per_gpu", Severity.ERROR,
            "DeepSpeed needs train_batch_size or train_micro_batch_size_per_gpu; only Accelerate and Transformers fill "
            "them in.", '"train_micro_batch_size_per_gpu": 1', f"{_CONFIG}: _set_batch_related_parameters",
        )  # fmt: skip


def two_precisions(seen: DeepSpeed) -> Iterator[Notice]:
    """Precisions that exclude each other."""
    if seen.enabled("fp16") and (seen.enabled("bf16") or seen.enabled("bfloat16")):
        yield seen.top.say(
            "fp16.enabled", Severity.ERROR, "fp16 and bf16 cannot both be on: DeepSpeed refuses to start.",
            '"fp16": {"enabled": false}', f"{_CONFIG}: _initialize_params",
        )  # fmt: skip
    if seen.enabled("amp") and seen.stage:
        yield seen.top.say(
            "amp.enabled", Severity.ERROR, "Apex amp does not work with ZeRO.", '"bf16": {"enabled": true}',
            "deepspeed/runtime/engine.py: Amp and ZeRO are not currently compatible",
        )  # fmt: skip


def full_precision(seen: DeepSpeed) -> Iterator[Notice]:
    """Training in 32 bits, which nobody asked for."""
    kinds = ("fp16", "bf16", "bfloat16", "amp", "torch_autocast", "data_types")
    if not seen.filled_in and not any(seen.enabled(kind) for kind in kinds) and "data_types" not in seen.top:
        yield seen.top.say(
            "bf16", Severity.WARNING,
            "Nothing below 32 bits is on: collectives carry twice the bytes, and matrix units run in fp32 or TF32.",
            '"bf16": {"enabled": true}', "deepspeed/runtime/precision_config.py: both are off by default",
        )  # fmt: skip


def reduced_precision(seen: DeepSpeed) -> Iterator[Notice]:
    """Gradients that are summed in 16 bits on request."""
    kind = seen.top.word("communication_data_type")
    if kind is not None and kind.lower() in ("fp16", "bf16"):
        yield seen.top.say(
            "communication_data_type", Severity.NOTE,
            f"Gradients are summed over the ranks in {kind.lower()}; fp32 costs twice the bytes and loses nothing.",
            '"communication_data_type": "fp32"', f"{_CONFIG}: get_communication_data_type",
        )  # fmt: skip


def optimizer(seen: DeepSpeed) -> Iterator[Notice]:
    """Optimizers and parameters of them that DeepSpeed refuses."""
    section = seen.top.within("optimizer")
    if "max_grad_norm" in section.within("params"):
        yield section.say(
            "params.max_grad_norm", Severity.ERROR, "DeepSpeed refuses it here: clipping is a key of its own.",
            f'"gradient_clipping": {section.within("params").shown("max_grad_norm")}',
            "deepspeed/runtime/engine.py: _configure_basic_optimizer",
        )  # fmt: skip
    kind = (section.word("type") or "").lower()
    if kind in _ONE_BIT and seen.stage:
        yield section.say(
            "type", Severity.ERROR, f"{_ONE_BIT[kind]} does not work with ZeRO.", '"zero_optimization": {"stage": 0}',
            "deepspeed/runtime/engine.py: _configure_basic_optimizer",
        )  # fmt: skip


def activation_checkpointing(seen: DeepSpeed) -> Iterator[Notice]:
    """The section that many take for a switch."""
    if "activation_checkpointing" in seen.top:
        yield seen.top.say(
            "activation_checkpointing", Severity.NOTE,
            "This checkpoints nothing by itself: it sets up deepspeed.checkpointing.checkpoint(), which the model "
            "has to call; Transformers' models do not.",
            "model.gradient_checkpointing_enable()", "Transformers documentation, DeepSpeed: activation checkpointing",
        )  # fmt: skip


RULES = (
    batch_sizes, no_batch_size, two_precisions, full_precision, reduced_precision, optimizer, activation_checkpointing,
)  # fmt: skip

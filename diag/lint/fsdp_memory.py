"""Rules for FSDP's offload, loading, number types and recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from .fsdp import Fsdp
from .model import Notice, Severity


def offload(seen: Fsdp) -> Iterator[Notice]:
    """What offloading to the CPU costs."""
    if not seen.offloads:
        return
    name = "cpu_offload" if seen.has("cpu_offload") else "offload_params"
    text = "Parameters and gradients cross PCIe in every forward and backward, and the optimizer runs on the CPU."
    instead = "remove it if the states fit: diag plan MODEL --gpus N"
    source = "torch.distributed.fsdp: CPUOffload, CPUOffloadPolicy"
    if seen.has(name):
        yield seen.say(name, Severity.WARNING, text, instead, source)
    else:
        yield seen.top.say("fsdp", Severity.WARNING, text, instead, source)


def loading(seen: Fsdp) -> Iterator[Notice]:
    """Loading on rank 0 only, without sending the weights to the others."""
    if seen.flag("cpu_ram_efficient_loading") is True and seen.flag("sync_module_states") is False:
        if seen.version == 2 and seen.tool == "Transformers":
            return  # newer ones do not look at it
        yield seen.say(
            "sync_module_states", Severity.ERROR,
            "With cpu_ram_efficient_loading only rank 0 has weights, so they must be sent: the run is refused.",
            seen.write("sync_module_states", "true") if seen.version == 1 else "remove it",
            "accelerate/utils/launch.py" if seen.tool == "Accelerate" else "transformers/training_args.py",
        )  # fmt: skip


def reduce_precision(seen: Fsdp) -> Iterator[Notice]:
    """Gradients that are summed in 16 bits because the parameters are."""
    if seen.mixed_precision in ("bf16", "fp16"):
        key = "mixed_precision" if seen.tool == "Accelerate" else seen.mixed_precision
        policy = "MixedPrecisionPolicy" if seen.version == 2 else "MixedPrecision"
        kind = "bfloat16" if seen.mixed_precision == "bf16" else "float16"
        yield seen.top.say(
            key, Severity.NOTE,
            f"Accelerate also reduces gradients in {seen.mixed_precision}; a sum over many ranks loses bits that fp32 "
            "keeps, at twice the bytes.",
            f"in code: mixed_precision_policy={policy}(param_dtype=torch.{kind}, reduce_dtype=torch.float32)",
            "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.set_mixed_precision",
        )  # fmt: skip


def full_precision(seen: Fsdp) -> Iterator[Notice]:
    """FSDP in 32 bits, which nobody asked for."""
    if seen.mixed_precision == "no":
        yield seen.top.say(
            "mixed_precision" if seen.tool == "Accelerate" else "bf16", Severity.WARNING,
            "Without mixed precision all-gathers and reduce-scatters carry 32 bits: twice the bytes"
            + ("; unless Accelerator(mixed_precision=...) says otherwise." if seen.tool == "Accelerate" else "."),
            "mixed_precision: bf16" if seen.tool == "Accelerate" else '"bf16": true',
            "torch.distributed.fsdp.MixedPrecisionPolicy: param_dtype is the type of the all-gather",
        )  # fmt: skip


def recomputation(seen: Fsdp) -> Iterator[Notice]:
    """Activation checkpointing in the Trainer and in FSDP."""
    if seen.tool != "Transformers" or seen.top.flag("gradient_checkpointing") is not True:
        return
    if seen.flag("activation_checkpointing") is True:
        yield seen.top.say(
            "gradient_checkpointing", Severity.ERROR,
            "Set here and as activation_checkpointing in fsdp_config: the Trainer refuses both.",
            '"gradient_checkpointing": false', "transformers/trainer.py",
        )  # fmt: skip
    else:
        yield seen.top.say(
            "gradient_checkpointing", Severity.WARNING,
            "With FSDP the Trainer's own checkpointing gathers parameters once more in backward.",
            f'"gradient_checkpointing": false and {seen.write("activation_checkpointing", "true")} in fsdp_config',
            "huggingface/transformers#30404",
        )  # fmt: skip


def single_gpu(seen: Fsdp) -> Iterator[Notice]:
    """FSDP with nobody to share with."""
    if seen.devices.gpus == 1 and not seen.offloads:
        yield seen.say(
            "version", Severity.NOTE, "On one GPU FSDP shards nothing: every state is whole.", "run without FSDP",
            "torch.distributed.fsdp",
        )  # fmt: skip


RULES = (offload, loading, reduce_precision, full_precision, recomputation, single_gpu)

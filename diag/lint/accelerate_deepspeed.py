"""Rules for DeepSpeed within Accelerate's configuration: its own few keys, or a DeepSpeed file beside them."""

from __future__ import annotations

from collections.abc import Iterator

from .accelerate import Accelerate
from .model import Notice, Severity

_PLUGIN = "accelerate/utils/dataclasses.py: DeepSpeedPlugin"
KNOWN = frozenset({
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names",
})  # fmt: skip
# Refused beside a file, even where they agree with it.
_BESIDE_FILE = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip


def beside_file(top: Accelerate) -> Iterator[Notice]:
    """Keys that Accelerate refuses beside a DeepSpeed file."""
    section = top.within("deepspeed_config")
    if top.kind != "DEEPSPEED" or "deepspeed_config_file" not in section:
        return
    source = f"{_PLUGIN}._deepspeed_config_checks"
    for key in _BESIDE_FILE:
        if key in section.values:
            yield section.say(key, Severity.ERROR, "Refused beside deepspeed_config_file: the file has to say it.",
                              "remove it", source)  # fmt: skip
    if top.values.get("mixed_precision") is not None:
        yield top.say("mixed_precision", Severity.ERROR,
                      "Beside deepspeed_config_file it is refused: the file has to say it, as bf16 or fp16.",
                      "remove it", source)  # fmt: skip


def unknown_keys(top: Accelerate) -> Iterator[Notice]:
    """Keys that Accelerate does not pass on."""
    if top.kind == "DEEPSPEED":
        section = top.within("deepspeed_config")
        for key, near in section.unknown(KNOWN):
            yield section.say(key, Severity.ERROR, "Accelerate reads no such key and does not say so: it is ignored.",
                              near or "a DeepSpeed file: deepspeed_config_file: ds.json",
                              "accelerate/utils/launch.py")  # fmt: skip


def stage_of_zero(top: Accelerate) -> Iterator[Notice]:
    """Keys that the stage does not support."""
    section = top.within("deepspeed_config")
    stage = section.whole("zero_stage") if "zero_stage" in section else 2
    if top.kind != "DEEPSPEED" or "deepspeed_config_file" in section:
        return
    if stage not in (0, 1, 2, 3):
        yield section.say("zero_stage", Severity.ERROR, "ZeRO's stages are 0 to 3.", "zero_stage: 3", _PLUGIN)
        return
    if stage < 3:
        if section.word("offload_param_device") in ("cpu", "nvme"):
            yield section.say("offload_param_device", Severity.ERROR,
                              f"Parameters are offloaded at stage 3 only: at stage {stage} they stay on the GPU.",
                              "offload_param_device: none", _PLUGIN)  # fmt: skip
        for key in ("zero3_init_flag", "zero3_save_16bit_model"):
            if section.flag(key):
                yield section.say(key, Severity.NOTE, f"Without effect at stage {stage}.", f"{key}: false", _PLUGIN)
    for part in ("optimizer", "param"):
        path = section.word(f"offload_{part}_nvme_path")
        if section.word(f"offload_{part}_device") == "nvme" and path in (None, "none", "None"):
            yield section.say(f"offload_{part}_nvme_path", Severity.ERROR,
                              "Offload to NVMe without a path fails at the start.",
                              f"offload_{part}_nvme_path: /local_nvme", _PLUGIN)  # fmt: skip
    offloaded = section.word("offload_optimizer_device")
    if offloaded in ("cpu", "nvme") and stage > 0:
        yield section.say("offload_optimizer_device", Severity.WARNING,
                          "Every step copies gradients to the CPU, updates there, and copies parameters back.",
                          "offload_optimizer_device: none, if the states fit: diag plan MODEL --gpus N",
                          "deepspeed/runtime/zero/offload_config.py")  # fmt: skip


def no_overlap(top: Accelerate) -> Iterator[Notice]:
    """What Accelerate's few keys cannot switch on."""
    section = top.within("deepspeed_config")
    stage = section.whole("zero_stage") if "zero_stage" in section else 2
    if top.kind == "DEEPSPEED" and section.values and "deepspeed_config_file" not in section and stage in (1, 2):
        yield section.say(
            "zero_stage", Severity.WARNING,
            f"These keys cannot set overlap_comm, which is off by default at stage {stage}: gradients are reduced "
            "while nothing is computed.",
            'deepspeed_config_file: ds.json, with "overlap_comm": true in its zero_optimization',
            f"{_PLUGIN}; deepspeed/runtime/zero/config.py: overlap_comm_valid",
        )  # fmt: skip


RULES = (beside_file, unknown_keys, stage_of_zero, no_overlap)

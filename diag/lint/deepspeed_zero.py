"""Rules for DeepSpeed's stages and offload: what a stage ignores, what an offload lacks and costs."""

from __future__ import annotations

from collections.abc import Iterator

from .deepspeed import DeepSpeed
from .deepspeed_keys import STAGE_3_ONLY
from .model import Notice, Severity

_CONFIG = "deepspeed/runtime/zero/config.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_DEFAULTS = {"zero_hpz_partition_size": "1", "mics_shard_size": "-1"}


def stage_of_zero(seen: DeepSpeed) -> Iterator[Notice]:
    """A stage that there is not."""
    if "stage" in seen.zero and seen.stage is None and seen.zero.values["stage"] != "auto":
        yield seen.zero.say(
            "stage", Severity.ERROR, f"There is no ZeRO stage {seen.zero.shown('stage')}: stages are 0 to 3.",
            '"stage": 3', _CONFIG,
        )  # fmt: skip


def keys_of_stage_3(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys of stage 3 at a lower one."""
    if seen.stage not in (0, 1, 2):
        return
    for key in seen.zero.values:
        if key in STAGE_3_ONLY and seen.zero.shown(key) not in ("false", "auto", _DEFAULTS.get(key)):
            yield seen.zero.say(
                key, Severity.ERROR,
                f"Ignored: stage {seen.stage} does not shard parameters, and this key is about sharded ones.",
                'remove it, or "stage": 3', _CONFIG,
            )  # fmt: skip


def offload_of_stage(seen: DeepSpeed) -> Iterator[Notice]:
    """Offload that the stage does not support."""
    if seen.stage in (0, 1, 2) and (device := seen.offload("offload_param")):
        yield seen.zero.say(
            "offload_param.device", Severity.ERROR,
            f"Parameters are offloaded at stage 3 only: at stage {seen.stage} they stay on the GPU, whatever {device} "
            "is said here.", '"stage": 3, or remove "offload_param"', _OFFLOAD,
        )  # fmt: skip
    optimizer = seen.zero.within("offload_optimizer")
    if seen.stage == 0 and seen.offload("offload_optimizer"):
        yield seen.zero.say(
            "offload_optimizer.device", Severity.ERROR,
            "The optimizer is offloaded at stages 1 to 3 only; at stage 0 ZeRO is off.", '"stage": 2', _OFFLOAD,
        )  # fmt: skip
    elif seen.stage in (1, 2) and seen.offload("offload_optimizer") == "nvme":
        yield seen.zero.say(
            "offload_optimizer.device", Severity.ERROR,
            f"Only stage 3 writes to NVMe: stage {seen.stage} keeps an offloaded optimizer in CPU memory.",
            '"device": "cpu", or "stage": 3', "deepspeed/runtime/zero/stage_1_and_2.py: any device but none is the CPU",
        )  # fmt: skip
    ratio = optimizer.number("ratio")
    if seen.stage in (1, 2) and ratio is not None and ratio < 1:
        yield optimizer.say(
            "ratio", Severity.ERROR, "Offloading a part of the optimizer fails below stage 3.", '"ratio": 1.0',
            f"{_CONFIG}: offload_ratio_check",
        )  # fmt: skip


def nvme(seen: DeepSpeed) -> Iterator[Notice]:
    """Offload to NVMe without saying where, or with the reader's slow defaults; settings of it without use."""
    used = [key for key in ("offload_param", "offload_optimizer") if seen.offload(key) == "nvme"]
    for key in used:
        if "nvme_path" not in seen.zero.within(key):
            yield seen.zero.say(
                f"{key}.nvme_path", Severity.ERROR, "Offload to NVMe without a path fails at the start.",
                '"nvme_path": "/local_nvme"', "deepspeed/runtime/zero/partition_parameters.py, stage3.py",
            )  # fmt: skip
    if used and "aio" not in seen.top:
        yield seen.top.say(
            "aio", Severity.WARNING,
            "Without this section NVMe is read with one thread, 1 MiB blocks and a queue of 8; ds_nvme_tune measures "
            "what the drive takes.", '"aio": {what ds_nvme_tune prints}', "deepspeed/runtime/swap_tensor/constants.py",
        )  # fmt: skip
    if not used and "aio" in seen.top:
        yield seen.top.say("aio", Severity.NOTE, "Not used: nothing is offloaded to NVMe.", "remove it", _OFFLOAD)


def offload_cost(seen: DeepSpeed) -> Iterator[Notice]:
    """What an offload that works costs."""
    if seen.stage in (1, 2, 3) and seen.offload("offload_optimizer"):
        yield seen.zero.say(
            "offload_optimizer.device", Severity.WARNING,
            "Every step copies gradients to the CPU, updates there, and copies parameters back, while the GPU waits "
            "for what is not overlapped.", 'remove "offload_optimizer" if the states fit: diag plan MODEL --gpus N',
            f"{_OFFLOAD}: computation is offloaded to the CPU regardless of the device",
        )  # fmt: skip
    if seen.stage == 3 and seen.offload("offload_param"):
        yield seen.zero.say(
            "offload_param.device", Severity.WARNING,
            "Each rank's shard crosses PCIe before every all-gather, in forward and again in backward.",
            'remove "offload_param" if a shard of the parameters fits: diag plan MODEL --gpus N', _OFFLOAD,
        )  # fmt: skip


def pageable_offload(seen: DeepSpeed) -> Iterator[Notice]:
    """Offload through memory that cannot be copied asynchronously."""
    for key in ("offload_param", "offload_optimizer"):
        section = seen.zero.within(key)
        if seen.offload(key) and section.flag("pin_memory") is False:
            yield section.say(
                "pin_memory", Severity.WARNING,
                "Copies from and to pageable memory run at a lower bandwidth and do not overlap with compute.",
                '"pin_memory": true', _OFFLOAD,
            )  # fmt: skip


def hpz_partition(seen: DeepSpeed) -> Iterator[Notice]:
    """ZeRO++'s second partition, which is meant to be a host."""
    size, gpus = seen.zero.whole("zero_hpz_partition_size"), seen.devices.gpus
    if seen.stage != 3 or size is None or size <= 1 or gpus is None:
        return
    if gpus <= seen.devices.per_host:
        text, instead = "On one host there is no slower link that hpZ could spare: it only holds a second copy.", "1"
    elif size != seen.devices.per_host:
        text = (
            f"hpZ keeps backward's all-gathers within a host if its size is the GPUs of one, {seen.devices.per_host}."
        )
        instead = str(seen.devices.per_host)
    else:
        return
    yield seen.zero.say(
        "zero_hpz_partition_size", Severity.WARNING, text, f'"zero_hpz_partition_size": {instead}',
        "DeepSpeed tutorials: zeropp, mixed_precision_zeropp",
    )  # fmt: skip


def saved_weights(seen: DeepSpeed) -> Iterator[Notice]:
    """Stage 3 that does not save whole weights."""
    if seen.stage == 3 and not any(key.endswith("weights_on_model_save") for key in seen.zero.values):
        yield seen.zero.say(
            "stage3_gather_16bit_weights_on_model_save", Severity.NOTE,
            "Off by default: save_16bit_model() then saves nothing, and whole weights have to be put together with "
            "zero_to_fp32.py.", '"stage3_gather_16bit_weights_on_model_save": true',
            "deepspeed/runtime/engine.py: save_16bit_model",
        )  # fmt: skip


RULES = (
    stage_of_zero, keys_of_stage_3, offload_of_stage, nvme, offload_cost, pageable_offload, hpz_partition,
    saved_weights,
)  # fmt: skip

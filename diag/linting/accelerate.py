"""Accelerate's configuration: FSDP as it sets it up, and rules for its other keys."""

from __future__ import annotations

from collections.abc import Iterator

from .document import Document
from .fsdp import Fsdp
from .model import ERROR, WARNING, Devices, Notice, NoticeSeverity, Row, Section, keys_of, rule

_CONFIG = "accelerate/commands/config/config_args.py"
_LAUNCH = "accelerate/commands/launch.py: _validate_launch_command"
KNOWN = keys_of("accelerate")
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
# SageMaker's files have fields of their own.
_OTHER_ENVIRONMENT = "AMAZON_SAGEMAKER"
_INNER = {"fsdp_config": ("fsdp_",), "deepspeed_config": ("zero", "offload_")}  # keys that belong into a table


class Accelerate(Section, frozen=True):
    """The whole file, and the devices that it is for."""

    devices: Devices

    @property
    def kind(self) -> str:
        return str(self.values.get("distributed_type", "")).upper()


def accelerate(document: Document, devices: Devices) -> Accelerate:
    """The view. If the number of GPUs is unknown, it is taken from ``num_processes``."""
    top = Accelerate(document, (), document.values, devices)
    processes = top.whole("num_processes")
    if devices.gpus is None and processes is not None and processes > 0:
        return Accelerate(document, (), document.values, Devices(processes, devices.per_host))
    return top


def fsdp_of(top: Accelerate) -> Fsdp | None:
    """FSDP as the file sets it up; None where it sets up something else."""
    if top.kind != "FSDP":
        return None
    section = top.within("fsdp_config")
    prefix = "" if "sharding_strategy" in section.values else "fsdp_"
    version_key = "version" if "version" in section.values else "fsdp_version"
    version = section.whole(version_key)
    strategy = section.values.get(f"{prefix}sharding_strategy")
    precision = top.values.get("mixed_precision", "fp16" if top.flag("fp16") else "no")
    return Fsdp(
        tool="Accelerate",
        section=section,
        top=top,
        version=version if version is not None else 1,
        version_given=version_key in section,
        strategy=str(strategy).upper() if strategy is not None else None,
        strategy_key=f"fsdp_config.{prefix}sharding_strategy",
        options=(),
        mixed_precision="no" if precision in (False, "no", None) else str(precision),
        devices=top.devices,
    )


# fmt: off
kind_of_run = rule(
    Row("distributed_type", ERROR, lambda a: "distributed_type" not in a.values,
        "Accelerate refuses a file without it.", "distributed_type: FSDP", f"{_CONFIG}: process_config"),
)
two_precisions = rule(
    Row("fp16", ERROR, lambda a: a.flag("fp16") and "mixed_precision" in a and a.word("mixed_precision") != "fp16",
        lambda a: f"Ignored when mixed_precision is set: {a.shown('mixed_precision')}.", "remove it",
        f"{_CONFIG}: process_config"),
)
# fmt: on


def unknown_keys(top: Accelerate) -> Iterator[Notice]:
    """Keys that Accelerate refuses."""
    if top.values.get("compute_environment") == _OTHER_ENVIRONMENT:
        return
    for key, near in top.unknown(KNOWN):
        inner = next((table for table, names in _INNER.items() if key.startswith(names)), None)
        yield top.say(
            key, NoticeSeverity.ERROR, "Accelerate refuses a file with a key that it does not know.",
            f"{key} within {inner}" if inner else near or "remove it", f"{_CONFIG}: from_yaml_file",
        )  # fmt: skip


def idle_tables(top: Accelerate) -> Iterator[Notice]:
    """Tables for another kind of run, and the missing table of this kind."""
    tables = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config"}
    for kind, key in tables.items():
        if top.kind != kind and top.within(key).values:
            yield top.say(
                key, NoticeSeverity.ERROR, f"Ignored: distributed_type is {top.shown('distributed_type')}, not {kind}.",
                f"distributed_type: {kind}, or remove it", _LAUNCH,
            )  # fmt: skip
    table = tables.get(top.kind)
    if table and not top.within(table).values:
        defaults = "FSDP1 over the whole model as one unit" if table == "fsdp_config" else "ZeRO-2 without overlap"
        yield top.say(
            table,
            NoticeSeverity.WARNING,
            f"Missing or empty, so the defaults apply: {defaults}.",
            f"{table}: {{...}}",
            _LAUNCH,
        )


def processes(top: Accelerate) -> Iterator[Notice]:
    """Numbers of processes that do not fit the machines."""
    number, machines = top.whole("num_processes"), top.whole("num_machines") or 1
    gpus = top.devices.gpus
    if number is None:
        return
    if gpus is not None and number != gpus:
        yield top.say(
            "num_processes", NoticeSeverity.ERROR, f"It starts {number} processes, one per GPU, and --gpus is {gpus}.",
            f"num_processes: {gpus}", "accelerate launch: one process a GPU",
        )  # fmt: skip
    if top.kind.startswith("MULTI_") and number < 2:
        yield top.say(
            "num_processes", NoticeSeverity.ERROR, f"{top.kind} needs at least 2 processes: the launch is refused.",
            "distributed_type: 'NO'", _LAUNCH,
        )  # fmt: skip
    elif machines > 1 and number % machines:
        each = number // machines
        yield top.say(
            "num_processes", NoticeSeverity.ERROR,
            f"It counts the processes of all machines: {number} over {machines} starts {each} on each, "
            f"{each * machines} in all.",
            f"num_processes: {each * machines}", "accelerate/utils/launch.py: nproc_per_node",
        )  # fmt: skip


def parallelism(top: Accelerate) -> Iterator[Notice]:
    """Axis sizes whose product is wrong, or that have no effect."""
    section = top.within("parallelism_config")
    sizes = {name: section.whole(f"parallelism_config_{name}_size") for name in _SIZES}
    if not section.values:
        return
    inner = top.within("fsdp_config")
    version = inner.whole("fsdp_version") or inner.whole("version") or 1
    source = "accelerate/parallelism_config.py"
    if top.kind != "FSDP" or version != 2:
        yield top.say(
            "parallelism_config", NoticeSeverity.ERROR, "`accelerate launch` refuses it without FSDP2.",
            "distributed_type: FSDP and fsdp_version: 2", _LAUNCH,
        )  # fmt: skip
    product = 1
    for size in sizes.values():
        product *= size or 1
    gpus = top.devices.gpus
    if gpus is not None and product != gpus and (sizes["sp"] or 1) == 1:
        terms = " x ".join(f"{name} {size}" for name, size in sizes.items() if size)
        yield top.say(
            "parallelism_config", NoticeSeverity.ERROR, f"{terms or 'nothing'} is {product}, not {gpus} processes.",
            f"parallelism_config_dp_shard_size: {_rest(gpus, product, sizes['dp_shard'])}", source,
        )  # fmt: skip
    if (sizes["cp"] or 1) > 1 and (sizes["sp"] or 1) > 1:
        yield section.say(
            "parallelism_config_sp_size", NoticeSeverity.ERROR, "cp and sp exclude each other.",
            "parallelism_config_sp_size: 1", source,
        )  # fmt: skip


def _rest(gpus: int, product: int, shard: int | None) -> str:
    others = product // (shard or 1)
    return str(gpus // others) if others and gpus % others == 0 else f"{gpus} over the other sizes"


RULES = (kind_of_run, unknown_keys, idle_tables, processes, two_precisions, parallelism)


# -- accelerate deepspeed ----------------------------------------------------------------------------------------------
#
# Rules for DeepSpeed within Accelerate's configuration: its own few keys, or a DeepSpeed file.

_PLUGIN = "accelerate/utils/dataclasses.py: DeepSpeedPlugin"
DEEPSPEED_KEYS = frozenset({
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names",
})  # fmt: skip
# Refused together with a file, even where they agree with it.
_SET_BY_FILE = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip


def conflicts_with_file(top: Accelerate) -> Iterator[Notice]:
    """Keys that Accelerate refuses together with a DeepSpeed file."""
    section = top.within("deepspeed_config")
    if top.kind != "DEEPSPEED" or "deepspeed_config_file" not in section:
        return
    source = f"{_PLUGIN}._deepspeed_config_checks"
    for key in _SET_BY_FILE:
        if key in section.values:
            yield section.say(key, NoticeSeverity.ERROR, "Not allowed with deepspeed_config_file: set it in that file.",
                              "remove it", source)  # fmt: skip
    if top.values.get("mixed_precision") is not None:
        yield top.say("mixed_precision", NoticeSeverity.ERROR,
                      "Not allowed with deepspeed_config_file: set bf16 or fp16 in that file.",
                      "remove it", source)  # fmt: skip


def unknown_deepspeed_keys(top: Accelerate) -> Iterator[Notice]:
    """Keys that Accelerate does not pass on."""
    if top.kind == "DEEPSPEED":
        section = top.within("deepspeed_config")
        for key, near in section.unknown(DEEPSPEED_KEYS):
            yield section.say(key, NoticeSeverity.ERROR, "Accelerate does not know this key: it is silently ignored.",
                              near or "a DeepSpeed file: deepspeed_config_file: ds.json",
                              "accelerate/utils/launch.py")  # fmt: skip


def stage_of_zero(top: Accelerate) -> Iterator[Notice]:
    """Keys that the stage does not support."""
    section = top.within("deepspeed_config")
    stage = _stage(top)
    if top.kind != "DEEPSPEED" or "deepspeed_config_file" in section:
        return
    if stage is None or stage not in (0, 1, 2, 3):
        yield section.say("zero_stage", NoticeSeverity.ERROR, "ZeRO's stages are 0 to 3.", "zero_stage: 3", _PLUGIN)
        return
    if stage < 3:
        if section.word("offload_param_device") in ("cpu", "nvme"):
            yield section.say("offload_param_device", NoticeSeverity.ERROR,
                              f"Parameters are offloaded at stage 3 only: at stage {stage} they stay on the GPU.",
                              "offload_param_device: none", _PLUGIN)  # fmt: skip
        for key in ("zero3_init_flag", "zero3_save_16bit_model"):
            if section.flag(key):
                yield section.say(
                    key, NoticeSeverity.NOTE, f"Without effect at stage {stage}.", f"{key}: false", _PLUGIN
                )
    for part in ("optimizer", "param"):
        path = section.word(f"offload_{part}_nvme_path")
        if section.word(f"offload_{part}_device") == "nvme" and path in (None, "none", "None"):
            yield section.say(f"offload_{part}_nvme_path", NoticeSeverity.ERROR,
                              "Offload to NVMe without a path fails at the start.",
                              f"offload_{part}_nvme_path: /local_nvme", _PLUGIN)  # fmt: skip
    offloaded = section.word("offload_optimizer_device")
    if offloaded in ("cpu", "nvme") and stage > 0:
        yield section.say("offload_optimizer_device", NoticeSeverity.WARNING,
                          "Every step copies gradients to the CPU, updates there, and copies parameters back.",
                          "offload_optimizer_device: none, if the states fit: diag plan MODEL --gpus N",
                          "deepspeed/runtime/zero/offload_config.py")  # fmt: skip


def _stage(top: Accelerate) -> int | None:
    section = top.within("deepspeed_config")
    return section.whole("zero_stage") if "zero_stage" in section else 2


# fmt: off
no_overlap = rule(
    Row("deepspeed_config.zero_stage", WARNING,
        lambda a: a.kind == "DEEPSPEED" and a.within("deepspeed_config").values
        and "deepspeed_config_file" not in a.within("deepspeed_config") and _stage(a) in (1, 2),
        lambda a: f"These keys cannot set overlap_comm, which is off by default at stage {_stage(a)}: gradient "
        "reduction is not overlapped with the backward.",
        'deepspeed_config_file: ds.json, with "overlap_comm": true in its zero_optimization',
        f"{_PLUGIN}; deepspeed/runtime/zero/config.py: overlap_comm_valid"),
)
# fmt: on

DEEPSPEED_RULES = (conflicts_with_file, unknown_deepspeed_keys, stage_of_zero, no_overlap)

"""A DeepSpeed configuration as its rules see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from diag.words.formatting import size, spaced

from .document import Document, Place
from .model import Devices, Notice, Section, Severity, keys_of

STAGES = (0, 1, 2, 3)


class DeepSpeed(Struct, frozen=True):
    """``reader``: who loads it: DeepSpeed itself (None), "Accelerate" or "Transformers", which fill in "auto".
    ``stage`` None: not one of 0 to 3, or "auto"."""

    top: Section
    zero: Section
    stage: int | None
    reader: str | None
    autos: tuple[Place, ...]  # keys whose value is "auto"
    devices: Devices

    @property
    def filled_in(self) -> bool:
        """Whether values that are missing or "auto" come from elsewhere."""
        return self.reader is not None or bool(self.autos)

    @property
    def ranks(self) -> int | None:
        """Ranks with data of their own: GPUs over those that share a sample. None: not told, or they do not divide."""
        shared = self.top.whole("sequence_parallel_size") or 1
        shared *= self.top.within("tensor_parallel").whole("autotp_size") or 1
        gpus = self.devices.gpus
        return gpus // shared if gpus is not None and shared > 0 and gpus % shared == 0 else None

    def enabled(self, key: str) -> bool:
        return self.top.within(key).flag("enabled") is True

    def offload(self, key: str) -> str | None:
        """Where offload_param or offload_optimizer puts its states: "cpu", "nvme" or None."""
        device = self.zero.within(key).word("device")
        return device if device in ("cpu", "nvme") else None


def deepspeed_of(
    document: Document,
    devices: Devices,
    reader: str | None = None,
    place: Place = (),
    values: dict[str, Any] | None = None,
) -> DeepSpeed:
    """The view of a document, or of ``values`` that stand at ``place`` in it."""
    top = Section(document, place, document.values if values is None else values)
    zero = top.within("zero_optimization")
    if isinstance(top.values.get("zero_optimization"), bool):  # the form of before stages
        stage: int | None = int(top.values["zero_optimization"])
    else:
        stage = zero.whole("stage") if "stage" in zero else 0
    return DeepSpeed(top, zero, stage if stage in STAGES else None, reader, tuple(_autos(top.values, ())), devices)


def _autos(values: dict[str, Any], place: Place) -> list[Place]:
    found: list[Place] = []
    open_tables = [(place, values)]
    while open_tables:
        at, table = open_tables.pop()
        for key, value in table.items():
            if value == "auto":
                found.append((*at, key))
            elif isinstance(value, dict):
                open_tables.append(((*at, key), value))
    return found


# -- deepspeed batch ---------------------------------------------------------------------------------------------------
#
# Rules for DeepSpeed's batch sizes, number types and optimizers.

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


BATCH_RULES = (
    batch_sizes, no_batch_size, two_precisions, full_precision, reduced_precision, optimizer, activation_checkpointing,
)  # fmt: skip


# -- deepspeed keys ----------------------------------------------------------------------------------------------------
#
TOP, ZERO = keys_of("deepspeed.top"), keys_of("deepspeed.zero")

# Of no effect below stage 3.
STAGE_3_ONLY = frozenset({
    "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "stage3_module_granularity_threshold",
    "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential", "zero_hpz_partition_size",
    "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "mics_shard_size",
    "mics_hierarchical_params_gather",
})  # fmt: skip

OFFLOAD_PARAM, OFFLOAD_OPTIMIZER = keys_of("deepspeed.offload_param"), keys_of("deepspeed.offload_optimizer")

# Deprecated keys and what DeepSpeed says to write instead.
DEPRECATED = {
    "cpu_offload": '"offload_optimizer": {"device": "cpu"}',
    "cpu_offload_param": '"offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": '"pin_memory" in "offload_param" and "offload_optimizer"',
    "stage3_gather_fp16_weights_on_model_save": '"stage3_gather_16bit_weights_on_model_save"',
}


# -- deepspeed names ---------------------------------------------------------------------------------------------------
#
# Rules for the names of DeepSpeed's keys: unknown, deprecated, given twice, left to somebody else.

_FORBIDDEN = "deepspeed/runtime/config_utils.py: DeepSpeedConfigModel forbids unknown fields"
_TABLES = (
    (("zero_optimization",), ZERO),
    (("zero_optimization", "offload_param"), OFFLOAD_PARAM),
    (("zero_optimization", "offload_optimizer"), OFFLOAD_OPTIMIZER),
    (("bf16",), keys_of("deepspeed.bf16")),
    (("fp16",), keys_of("deepspeed.fp16")),
)


def unknown_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that DeepSpeed does not know: refused in the tables it checks, ignored at the top."""
    for place, known in _TABLES:
        table = seen.top
        for part in place:
            table = table.within(part)
        for key, near in table.unknown(known):
            yield table.say(
                key, Severity.ERROR, "DeepSpeed does not know this key here and refuses to start.",
                f'"{near}"' if near else "remove it", _FORBIDDEN,
            )  # fmt: skip
    for key, near in seen.top.unknown(TOP):
        if key in ZERO:
            text, instead = (
                "It belongs into zero_optimization; here it is ignored.",
                f'"zero_optimization": {{"{key}"}}',
            )
        else:
            text = "DeepSpeed reads no such key and does not say so: it is ignored."
            instead = f'"{near}"' if near else "remove it"
        sure = key in ZERO or near is not None
        yield seen.top.say(
            key, Severity.ERROR if sure else Severity.WARNING, text, instead,
            "deepspeed/runtime/config.py, constants.py",
        )  # fmt: skip


def deprecated_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that DeepSpeed still takes, with a warning."""
    for key, instead in DEPRECATED.items():
        if key in seen.zero:
            yield seen.zero.say(key, Severity.NOTE, "Deprecated.", instead, "deepspeed/runtime/zero/config.py")
    if isinstance(seen.top.values.get("zero_optimization"), bool):
        yield seen.top.say(
            "zero_optimization", Severity.NOTE, "A bare true or false is the form of before stages: true is stage 1.",
            '"zero_optimization": {"stage": 1}', "deepspeed/runtime/zero/config.py: read_zero_config_deprecated",
        )  # fmt: skip
    if "bfloat16" in seen.top:
        yield seen.top.say("bfloat16", Severity.NOTE, "The old name of bf16.", '"bf16"',
                           "deepspeed/runtime/precision_config.py")  # fmt: skip


def repeated_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that stand twice in one object."""
    for place, _ in seen.top.document.lines.repeated:
        if not seen.top.place or place[: len(seen.top.place)] == seen.top.place:
            yield seen.top.say(
                ".".join(place[len(seen.top.place) :]), Severity.ERROR,
                "Given twice: DeepSpeed refuses the file, while Accelerate and Transformers take the last.",
                "keep one of the two", "deepspeed/runtime/config_utils.py: dict_raise_error_on_duplicate_keys",
            )  # fmt: skip


def comments(seen: DeepSpeed) -> Iterator[Notice]:
    """Hjson, which only DeepSpeed itself reads."""
    if seen.top.document.hjson:
        error = seen.reader is not None
        yield seen.top.say(
            "", Severity.ERROR if error else Severity.NOTE,
            "Comments or trailing commas: DeepSpeed reads them, as Hjson; "
            f"{seen.reader or 'Accelerate or Transformers'} cannot.", "remove them",
            "deepspeed/runtime/config.py: hjson.load; accelerate/utils/deepspeed.py: json.load",
        )  # fmt: skip


def syntax(seen: DeepSpeed) -> Iterator[Notice]:
    """A file in a syntax that is not DeepSpeed's."""
    document = seen.top.document
    if document.syntax != "json" and not seen.top.place:
        yield seen.top.say(
            "", Severity.ERROR, f"DeepSpeed reads JSON (as Hjson), not {document.syntax.upper()}.",
            "the same keys as JSON", "deepspeed/runtime/config.py: hjson.load",
        )  # fmt: skip


def auto_values(seen: DeepSpeed) -> Iterator[Notice]:
    """Values that are left to Accelerate or Transformers, in a file of which nothing says that they read it."""
    if seen.autos and seen.reader is None:
        names = ", ".join(sorted(".".join(place) for place in seen.autos)[:4])
        more = f" and {len(seen.autos) - 4} more" if len(seen.autos) > 4 else ""
        yield seen.top.say(
            ".".join(seen.autos[0]), Severity.NOTE,
            f'"auto" ({names}{more}) is filled in by Accelerate and Transformers only. DeepSpeed by itself takes its '
            "own default for it within zero_optimization, fp16 and bf16, and fails on it in batch sizes.",
            "a number, unless one of the two reads this file",
            "deepspeed/runtime/config_utils.py; transformers/integrations/deepspeed.py: fill_match",
        )  # fmt: skip


NAME_RULES = (unknown_keys, deprecated_keys, repeated_keys, comments, syntax, auto_values)


# -- deepspeed speed ---------------------------------------------------------------------------------------------------
#
# Rules for what DeepSpeed overlaps, and in pieces of which size.

_DEEPSPEED_SPEED_CONFIG = "deepspeed/runtime/zero/config.py"
_DEFAULT_BUCKET = 500_000_000
# 2 MB in 16 bits: pieces at which a collective's time is its latency, not its bytes.
_SMALL_BUCKET = 1_000_000
# A unit of 2 GB in 16 bits that is fetched at once, or parameters of 20 MB that every rank keeps whole.
_HUGE_PREFETCH, _HUGE_PERSISTENT = 1_000_000_000, 10_000_000


def overlap(seen: DeepSpeed) -> Iterator[Notice]:
    """Gradients that are reduced while nothing is computed."""
    said = seen.zero.flag("overlap_comm")
    if (seen.stage in (1, 2) and said is not True) or (seen.stage == 3 and said is False):
        off = "Off" if said is False else f"Off by default at stage {seen.stage} (it is on at stage 3 only)"
        yield seen.zero.say(
            "overlap_comm", Severity.WARNING, f"{off}: gradients are reduced while nothing is computed.",
            '"overlap_comm": true', f"{_DEEPSPEED_SPEED_CONFIG}: overlap_comm_valid",
        )  # fmt: skip


def bucket_memory(seen: DeepSpeed) -> Iterator[Notice]:
    """What overlapped buckets take of the GPU's memory."""
    if seen.stage not in (1, 2) or seen.zero.flag("overlap_comm") is not True:
        return
    numbers = [_bucket(seen, key) for key in ("reduce_bucket_size", "allgather_bucket_size")]
    if None in numbers:  # auto
        return
    count = sum(number for number in numbers if number is not None)
    if count < 2 * _DEFAULT_BUCKET:
        return
    yield seen.zero.say(
        "reduce_bucket_size", Severity.NOTE if count == 2 * _DEFAULT_BUCKET else Severity.WARNING,
        f"Overlapped, these two buckets take about {spaced(size(4.5 * 2 * count))} of each GPU: 4.5 times their "
        "elements, at 2 bytes.", '"reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8',
        "Transformers documentation, DeepSpeed: overlap_comm uses 4.5x the bucket sizes",
    )  # fmt: skip


def _bucket(seen: DeepSpeed, key: str) -> float | None:
    return seen.zero.number(key) if key in seen.zero else float(_DEFAULT_BUCKET)


def small_buckets(seen: DeepSpeed) -> Iterator[Notice]:
    """Buckets at which every collective costs its latency."""
    if not seen.stage:
        return
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        number = seen.zero.number(key)
        if number is not None and number < _SMALL_BUCKET and not (seen.stage == 3 and key == "allgather_bucket_size"):
            yield seen.zero.say(
                key, Severity.WARNING,
                f"{seen.zero.shown(key)} elements a collective are less than 2 MB in 16 bits: many small collectives, "
                "each at the cost of its latency.", f'"{key}": 5e8', f"{_DEEPSPEED_SPEED_CONFIG}: default 5e8",
            )  # fmt: skip


def prefetch(seen: DeepSpeed) -> Iterator[Notice]:
    """Stage 3 that fetches nothing ahead, or too much."""
    if seen.stage != 3:
        return
    key = "stage3_prefetch_bucket_size"
    ahead, live = seen.zero.number(key), seen.zero.number("stage3_max_live_parameters")
    source = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
    if ahead == 0:
        yield seen.zero.say(
            key, Severity.WARNING, "With 0 no parameter is gathered ahead: every all-gather is waited for.",
            f'"{key}": 5e7', source,
        )  # fmt: skip
    elif live is not None and live < (ahead if ahead is not None else 5e7):
        yield seen.zero.say(
            "stage3_max_live_parameters", Severity.WARNING,
            "Fewer parameters may be live than the prefetch bucket holds, so prefetching stops there and all-gathers "
            "are waited for.", '"stage3_max_live_parameters": 1e9', source,
        )  # fmt: skip
    elif ahead is not None and ahead > _HUGE_PREFETCH:
        yield seen.zero.say(
            key, Severity.WARNING,
            f"Up to {spaced(size(2 * ahead))} in 16 bits are gathered ahead, beside the parameters in use.",
            f'"{key}": 5e7', f"{_DEEPSPEED_SPEED_CONFIG}: default 5e7",
        )  # fmt: skip


def persistence(seen: DeepSpeed) -> Iterator[Notice]:
    """Thresholds at which stage 3 gathers every bias, or keeps large parameters whole."""
    key = "stage3_param_persistence_threshold"
    number = seen.zero.number(key)
    if seen.stage != 3 or number is None:
        return
    if number == 0:
        text = "With 0 every bias and norm is sharded and gathered by itself: many small all-gathers."
    elif number >= _HUGE_PERSISTENT:
        text = (
            f"Parameters of up to {seen.zero.shown(key)} elements stay whole on every rank, which stage 3 is to avoid."
        )
    else:
        return
    yield seen.zero.say(key, Severity.WARNING, text, f'"{key}": 1e5', f"{_DEEPSPEED_SPEED_CONFIG}: default 1e5")


def single_gpu(seen: DeepSpeed) -> Iterator[Notice]:
    """ZeRO with nobody to share with."""
    offloaded = seen.offload("offload_optimizer") or seen.offload("offload_param")
    if seen.stage and seen.devices.gpus == 1 and not offloaded:
        yield seen.zero.say(
            "stage", Severity.NOTE,
            f"On one GPU stage {seen.stage} shards nothing: every state is whole, and its hooks and buckets only cost.",
            '"stage": 0', "ZeRO (arXiv 1910.02054): states are divided by the ranks",
        )  # fmt: skip


SPEED_RULES = (overlap, bucket_memory, small_buckets, prefetch, persistence, single_gpu)


# -- deepspeed zero ----------------------------------------------------------------------------------------------------
#
# Rules for DeepSpeed's stages and offload: what a stage ignores, what an offload lacks and costs.

_DEEPSPEED_ZERO_CONFIG = "deepspeed/runtime/zero/config.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_DEFAULTS = {"zero_hpz_partition_size": "1", "mics_shard_size": "-1"}


def stage_of_zero(seen: DeepSpeed) -> Iterator[Notice]:
    """A stage that there is not."""
    if "stage" in seen.zero and seen.stage is None and seen.zero.values["stage"] != "auto":
        yield seen.zero.say(
            "stage", Severity.ERROR, f"There is no ZeRO stage {seen.zero.shown('stage')}: stages are 0 to 3.",
            '"stage": 3', _DEEPSPEED_ZERO_CONFIG,
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
                'remove it, or "stage": 3', _DEEPSPEED_ZERO_CONFIG,
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
            f"{_DEEPSPEED_ZERO_CONFIG}: offload_ratio_check",
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


ZERO_RULES = (
    stage_of_zero, keys_of_stage_3, offload_of_stage, nvme, offload_cost, pageable_offload, hpz_partition,
    saved_weights,
)  # fmt: skip

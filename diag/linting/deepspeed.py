"""A DeepSpeed configuration, and the rules for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from diag.linting.policy import LINTING
from diag.words.formatting import size, spaced

from .document import Document, Place
from .model import ERROR, NOTE, WARNING, Devices, Notice, NoticeSeverity, Row, Section, keys_of, rule

STAGES = (0, 1, 2, 3)


class DeepSpeed(Struct, frozen=True):
    """``reader``: the tool that loads it: DeepSpeed itself (None), "Accelerate" or "Transformers", which fill in
    "auto". ``stage`` None: not one of 0 to 3, or "auto"."""

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
        """Ranks with data of their own: GPUs divided by those that share a sample. None if unknown or not divisible."""
        shared = self.top.whole("sequence_parallel_size") or 1
        shared *= self.top.within("tensor_parallel").whole("autotp_size") or 1
        gpus = self.devices.gpus
        return gpus // shared if gpus is not None and shared > 0 and gpus % shared == 0 else None

    def say(self, key: str, severity: NoticeSeverity, text: str, instead: str, source: str) -> Notice:
        return self.top.say(key, severity, text, instead, source)

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
    """The view of a document, or of ``values`` at ``place`` in it."""
    top = Section(document, place, document.values if values is None else values)
    zero = top.within("zero_optimization")
    if isinstance(top.values.get("zero_optimization"), bool):  # the form from before stages
        stage: int | None = int(top.values["zero_optimization"])
    else:
        stage = zero.whole("stage") if "stage" in zero else 0
    return DeepSpeed(top, zero, stage if stage in STAGES else None, reader, tuple(_autos(top.values, ())), devices)


def _autos(values: dict[str, Any], place: Place) -> list[Place]:
    autos: list[Place] = []
    open_tables = [(place, values)]
    while open_tables:
        at, table = open_tables.pop()
        for key, value in table.items():
            if value == "auto":
                autos.append((*at, key))
            elif isinstance(value, dict):
                open_tables.append(((*at, key), value))
    return autos


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
            yield top.say(key, NoticeSeverity.ERROR, f"{number} is not a valid size: DeepSpeed requires more than 0.",
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
        must = "is not" if micro and steps else "is not a multiple of"
        yield top.say(
            "train_batch_size", NoticeSeverity.ERROR, f"{whole} {must} {parts}{product}: DeepSpeed refuses to start.",
            f'"train_batch_size": {each * ranks}, or leave it out', source,
        )  # fmt: skip
    elif ranks is None and whole % each:
        yield top.say(
            "train_batch_size", NoticeSeverity.ERROR,
            f"{whole} is not a multiple of {each} (a GPU's share of a step), so no number of GPUs fits.",
            f'"train_batch_size": {each} x GPUs, or leave it out', source,
        )  # fmt: skip


_KINDS = ("fp16", "bf16", "bfloat16", "amp", "torch_autocast", "data_types")
_ENGINE = "deepspeed/runtime/engine.py"


def _one_bit(seen: DeepSpeed) -> str | None:
    return _ONE_BIT.get((seen.top.within("optimizer").word("type") or "").lower())


def _sums_in(seen: DeepSpeed) -> str:
    return (seen.top.word("communication_data_type") or "").lower()


# fmt: off
no_batch_size = rule(
    Row("train_micro_batch_size_per_gpu", ERROR,
        lambda d: not d.filled_in and not d.enabled("elasticity") and "train_batch_size" not in d.top
        and "train_micro_batch_size_per_gpu" not in d.top,
        "DeepSpeed needs train_batch_size or train_micro_batch_size_per_gpu; only Accelerate and Transformers fill "
        "them in.", '"train_micro_batch_size_per_gpu": 1', f"{_CONFIG}: _set_batch_related_parameters"),
)
two_precisions = rule(
    Row("fp16.enabled", ERROR, lambda d: d.enabled("fp16") and (d.enabled("bf16") or d.enabled("bfloat16")),
        "fp16 and bf16 cannot both be on: DeepSpeed refuses to start.", '"fp16": {"enabled": false}',
        f"{_CONFIG}: _initialize_params"),
    Row("amp.enabled", ERROR, lambda d: d.enabled("amp") and d.stage,
        "Apex amp does not work with ZeRO.", '"bf16": {"enabled": true}',
        f"{_ENGINE}: Amp and ZeRO are not currently compatible"),
)
full_precision = rule(
    Row("bf16", WARNING,
        lambda d: not d.filled_in and not any(map(d.enabled, _KINDS)) and "data_types" not in d.top,
        "Neither bf16 nor fp16 is on: collectives carry 32 bits, twice the bytes, and matrix products run in fp32 or "
        "TF32.",
        '"bf16": {"enabled": true}', "deepspeed/runtime/precision_config.py: both are off by default"),
)
reduced_precision = rule(
    Row("communication_data_type", NOTE, lambda d: _sums_in(d) in ("fp16", "bf16"),
        lambda d: f"Gradients are summed over the ranks in {_sums_in(d)}; fp32 costs twice the bytes and loses "
        "nothing.",
        '"communication_data_type": "fp32"', f"{_CONFIG}: get_communication_data_type"),
)
optimizer = rule(
    Row("optimizer.params.max_grad_norm", ERROR,
        lambda d: "max_grad_norm" in d.top.within("optimizer").within("params"),
        "DeepSpeed refuses it here: gradient clipping has its own key.",
        lambda d: f'"gradient_clipping": {d.top.within("optimizer").within("params").shown("max_grad_norm")}',
        f"{_ENGINE}: _configure_basic_optimizer"),
    Row("optimizer.type", ERROR, lambda d: _one_bit(d) and d.stage,
        lambda d: f"{_one_bit(d)} does not work with ZeRO.", '"zero_optimization": {"stage": 0}',
        f"{_ENGINE}: _configure_basic_optimizer"),
)
activation_checkpointing = rule(
    Row("activation_checkpointing", NOTE, lambda d: "activation_checkpointing" in d.top,
        "This checkpoints nothing by itself: it sets up deepspeed.checkpointing.checkpoint(), which the model has to "
        "call; Transformers' models do not.", "model.gradient_checkpointing_enable()",
        "Transformers documentation, DeepSpeed: activation checkpointing"),
)
# fmt: on

BATCH_RULES = (
    batch_sizes, no_batch_size, two_precisions, full_precision, reduced_precision, optimizer, activation_checkpointing,
)  # fmt: skip


# -- deepspeed keys ----------------------------------------------------------------------------------------------------
#
TOP, ZERO = keys_of("deepspeed.top"), keys_of("deepspeed.zero")

# Keys without effect below stage 3.
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
# Rules for the names of DeepSpeed's keys: unknown, deprecated, given twice, left to another tool.

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
                key, NoticeSeverity.ERROR, "DeepSpeed does not know this key here and refuses to start.",
                f'"{near}"' if near else "remove it", _FORBIDDEN,
            )  # fmt: skip
    for key, near in seen.top.unknown(TOP):
        if key in ZERO:
            text, instead = (
                "It belongs in zero_optimization; here it is ignored.",
                f'"zero_optimization": {{"{key}"}}',
            )
        else:
            text = "DeepSpeed does not know this key: it is silently ignored."
            instead = f'"{near}"' if near else "remove it"
        sure = key in ZERO or near is not None
        yield seen.top.say(
            key, NoticeSeverity.ERROR if sure else NoticeSeverity.WARNING, text, instead,
            "deepspeed/runtime/config.py, constants.py",
        )  # fmt: skip


def deprecated_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that DeepSpeed still takes, with a warning."""
    for key, instead in DEPRECATED.items():
        if key in seen.zero:
            yield seen.zero.say(key, NoticeSeverity.NOTE, "Deprecated.", instead, "deepspeed/runtime/zero/config.py")
    if isinstance(seen.top.values.get("zero_optimization"), bool):
        yield seen.top.say(
            "zero_optimization", NoticeSeverity.NOTE, "A bare true or false is the deprecated form: true is stage 1.",
            '"zero_optimization": {"stage": 1}', "deepspeed/runtime/zero/config.py: read_zero_config_deprecated",
        )  # fmt: skip
    if "bfloat16" in seen.top:
        yield seen.top.say("bfloat16", NoticeSeverity.NOTE, "The old name of bf16.", '"bf16"',
                           "deepspeed/runtime/precision_config.py")  # fmt: skip


def repeated_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that occur twice in one object."""
    for place, _ in seen.top.document.lines.repeated:
        if not seen.top.place or place[: len(seen.top.place)] == seen.top.place:
            yield seen.top.say(
                ".".join(place[len(seen.top.place) :]), NoticeSeverity.ERROR,
                "Duplicate key: DeepSpeed refuses the file, while Accelerate and Transformers use the last one.",
                "keep one of the two", "deepspeed/runtime/config_utils.py: dict_raise_error_on_duplicate_keys",
            )  # fmt: skip


def _hjson(seen: DeepSpeed) -> str:
    readers = seen.reader or "Accelerate or Transformers"
    return f"Comments or trailing commas: DeepSpeed reads them, as Hjson; {readers} cannot."


_READERS = "deepspeed/runtime/config.py: hjson.load; accelerate/utils/deepspeed.py: json.load"
# fmt: off
comments = rule(
    Row("", NOTE, lambda d: d.top.document.hjson and d.reader is None, _hjson, "remove them", _READERS),
    Row("", ERROR, lambda d: d.top.document.hjson and d.reader is not None, _hjson, "remove them", _READERS),
)
syntax = rule(
    Row("", ERROR, lambda d: d.top.document.syntax != "json" and not d.top.place,
        lambda d: f"DeepSpeed reads JSON (as Hjson), not {d.top.document.syntax.upper()}.", "the same keys as JSON",
        "deepspeed/runtime/config.py: hjson.load"),
)
# fmt: on


def auto_values(seen: DeepSpeed) -> Iterator[Notice]:
    """Values that are left to Accelerate or Transformers, in a file that they are not known to read."""
    if seen.autos and seen.reader is None:
        names = ", ".join(sorted(".".join(place) for place in seen.autos)[:4])
        more = f" and {len(seen.autos) - 4} more" if len(seen.autos) > 4 else ""
        yield seen.top.say(
            ".".join(seen.autos[0]), NoticeSeverity.NOTE,
            f'"auto" ({names}{more}) is filled in by Accelerate and Transformers only. DeepSpeed by itself takes its '
            "own default for it within zero_optimization, fp16 and bf16, and fails on it in batch sizes.",
            "a number, unless one of the two reads this file",
            "deepspeed/runtime/config_utils.py; transformers/integrations/deepspeed.py: fill_match",
        )  # fmt: skip


NAME_RULES = (unknown_keys, deprecated_keys, repeated_keys, comments, syntax, auto_values)


# -- deepspeed speed ---------------------------------------------------------------------------------------------------
#
# Rules for DeepSpeed's overlap of communication and its bucket sizes.

_DEEPSPEED_SPEED_CONFIG = "deepspeed/runtime/zero/config.py"
_DEFAULT_BUCKET = 500_000_000


# fmt: off
overlap = rule(
    Row("zero_optimization.overlap_comm", WARNING,
        lambda d: (d.stage in (1, 2) and d.zero.flag("overlap_comm") is not True)
        or (d.stage == 3 and d.zero.flag("overlap_comm") is False),
        lambda d: ("Off" if d.zero.flag("overlap_comm") is False
                   else f"Off by default at stage {d.stage} (on at stage 3 only)")
        + ": gradient reduction is not overlapped with the backward.", '"overlap_comm": true',
        f"{_DEEPSPEED_SPEED_CONFIG}: overlap_comm_valid"),
)
# fmt: on


def bucket_memory(seen: DeepSpeed) -> Iterator[Notice]:
    """GPU memory that overlapped buckets take."""
    if seen.stage not in (1, 2) or seen.zero.flag("overlap_comm") is not True:
        return
    numbers = [_bucket(seen, key) for key in ("reduce_bucket_size", "allgather_bucket_size")]
    if None in numbers:  # auto
        return
    count = sum(number for number in numbers if number is not None)
    if count < 2 * _DEFAULT_BUCKET:
        return
    yield seen.zero.say(
        "reduce_bucket_size", NoticeSeverity.NOTE if count == 2 * _DEFAULT_BUCKET else NoticeSeverity.WARNING,
        f"Overlapped, these two buckets take about {spaced(size(4.5 * 2 * count))} of each GPU: 4.5 times their "
        "elements, at 2 bytes.", '"reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8',
        "Transformers documentation, DeepSpeed: overlap_comm uses 4.5x the bucket sizes",
    )  # fmt: skip


def _bucket(seen: DeepSpeed, key: str) -> float | None:
    return seen.zero.number(key) if key in seen.zero else float(_DEFAULT_BUCKET)


def small_buckets(seen: DeepSpeed) -> Iterator[Notice]:
    """Buckets so small that every collective is bound by latency."""
    if not seen.stage:
        return
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        number = seen.zero.number(key)
        if (
            number is not None
            and number < LINTING.small_bucket
            and not (seen.stage == 3 and key == "allgather_bucket_size")
        ):
            yield seen.zero.say(
                key, NoticeSeverity.WARNING,
                f"{seen.zero.shown(key)} elements a collective are less than 2 MB in 16 bits: many small collectives, "
                "each at the cost of its latency.", f'"{key}": 5e8', f"{_DEEPSPEED_SPEED_CONFIG}: default 5e8",
            )  # fmt: skip


_PREFETCH, _LIVE = "stage3_prefetch_bucket_size", "stage3_max_live_parameters"
_PERSISTENCE = "stage3_param_persistence_threshold"
_COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"


def _ahead(seen: DeepSpeed) -> float | None:
    return seen.zero.number(_PREFETCH)


def _stops_early(seen: DeepSpeed) -> bool:
    """Whether fewer parameters may be live than are to be gathered ahead."""
    live, ahead = seen.zero.number(_LIVE), _ahead(seen)
    return live is not None and live < (ahead if ahead is not None else 5e7)


# fmt: off
prefetch = rule(
    Row(f"zero_optimization.{_PREFETCH}", WARNING, lambda d: d.stage == 3 and _ahead(d) == 0,
        "With 0 no parameter is prefetched: every all-gather is exposed (not overlapped).", f'"{_PREFETCH}": 5e7',
        _COORDINATOR),
    Row(f"zero_optimization.{_LIVE}", WARNING, lambda d: d.stage == 3 and _ahead(d) != 0 and _stops_early(d),
        "Fewer parameters may be live than the prefetch bucket holds, so prefetching stops there and all-gathers are "
        "exposed.", f'"{_LIVE}": 1e9', _COORDINATOR),
    Row(f"zero_optimization.{_PREFETCH}", WARNING,
        lambda d: d.stage == 3 and (_ahead(d) or 0) > LINTING.huge_prefetch and not _stops_early(d),
        lambda d: f"Up to {spaced(size(2 * (_ahead(d) or 0)))} in 16 bits are gathered ahead, in addition to the "
        "parameters in use.", f'"{_PREFETCH}": 5e7', f"{_DEEPSPEED_SPEED_CONFIG}: default 5e7"),
)
persistence = rule(
    Row(f"zero_optimization.{_PERSISTENCE}", WARNING, lambda d: d.stage == 3 and d.zero.number(_PERSISTENCE) == 0,
        "With 0 every bias and norm is sharded and gathered separately: many small all-gathers.",
        f'"{_PERSISTENCE}": 1e5', f"{_DEEPSPEED_SPEED_CONFIG}: default 1e5"),
    Row(f"zero_optimization.{_PERSISTENCE}", WARNING,
        lambda d: d.stage == 3 and (d.zero.number(_PERSISTENCE) or 0) >= LINTING.huge_persistent,
        lambda d: f"Parameters of up to {d.zero.shown(_PERSISTENCE)} elements stay unsharded on every rank, which "
        "defeats stage 3.", f'"{_PERSISTENCE}": 1e5', f"{_DEEPSPEED_SPEED_CONFIG}: default 1e5"),
)
single_gpu = rule(
    Row("zero_optimization.stage", NOTE,
        lambda d: d.stage and d.devices.gpus == 1 and not d.offload("offload_optimizer")
        and not d.offload("offload_param"),
        lambda d: f"On one GPU stage {d.stage} shards nothing, and its hooks and buckets only add overhead.",
        '"stage": 0', "ZeRO (arXiv 1910.02054): states are divided by the ranks"),
)
# fmt: on

SPEED_RULES = (overlap, bucket_memory, small_buckets, prefetch, persistence, single_gpu)


# -- deepspeed zero ----------------------------------------------------------------------------------------------------
#
# Rules for DeepSpeed's stages and offload: what a stage ignores, what an offload lacks and costs.

_DEEPSPEED_ZERO_CONFIG = "deepspeed/runtime/zero/config.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_DEFAULTS = {"zero_hpz_partition_size": "1", "mics_shard_size": "-1"}


# fmt: off
stage_of_zero = rule(
    Row("zero_optimization.stage", ERROR,
        lambda d: "stage" in d.zero and d.stage is None and d.zero.values["stage"] != "auto",
        lambda d: f"There is no ZeRO stage {d.zero.shown('stage')}: stages are 0 to 3.", '"stage": 3',
        _DEEPSPEED_ZERO_CONFIG),
)
# fmt: on


def keys_of_stage_3(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys of stage 3 at a lower one."""
    if seen.stage not in (0, 1, 2):
        return
    for key in seen.zero.values:
        if key in STAGE_3_ONLY and seen.zero.shown(key) not in ("false", "auto", _DEFAULTS.get(key)):
            yield seen.zero.say(
                key, NoticeSeverity.ERROR,
                f"Ignored: stage {seen.stage} does not shard parameters, and this key only applies to sharded ones.",
                'remove it, or "stage": 3', _DEEPSPEED_ZERO_CONFIG,
            )  # fmt: skip


def _partial(seen: DeepSpeed) -> bool:
    ratio = seen.zero.within("offload_optimizer").number("ratio")
    return ratio is not None and ratio < 1


_PARAM, _OPTIMIZER = "zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device"
# fmt: off
offload_of_stage = rule(
    Row(_PARAM, ERROR, lambda d: d.stage in (0, 1, 2) and d.offload("offload_param"),
        lambda d: f"Parameters are offloaded at stage 3 only: at stage {d.stage} they stay on the GPU, whatever "
        f"{d.offload('offload_param')} is given here.", '"stage": 3, or remove "offload_param"', _OFFLOAD),
    Row(_OPTIMIZER, ERROR, lambda d: d.stage == 0 and d.offload("offload_optimizer"),
        "The optimizer is offloaded at stages 1 to 3 only; at stage 0 ZeRO is off.", '"stage": 2', _OFFLOAD),
    Row(_OPTIMIZER, ERROR, lambda d: d.stage in (1, 2) and d.offload("offload_optimizer") == "nvme",
        lambda d: f"Only stage 3 writes to NVMe: stage {d.stage} keeps an offloaded optimizer in CPU memory.",
        '"device": "cpu", or "stage": 3', "deepspeed/runtime/zero/stage_1_and_2.py: any device but none is the CPU"),
    Row("zero_optimization.offload_optimizer.ratio", ERROR, lambda d: d.stage in (1, 2) and _partial(d),
        "Offloading a part of the optimizer fails below stage 3.", '"ratio": 1.0',
        f"{_DEEPSPEED_ZERO_CONFIG}: offload_ratio_check"),
)
# fmt: on


def nvme(seen: DeepSpeed) -> Iterator[Notice]:
    """Offload to NVMe without a path, or with slow defaults for reading; NVMe settings that are not used."""
    used = [key for key in ("offload_param", "offload_optimizer") if seen.offload(key) == "nvme"]
    for key in used:
        if "nvme_path" not in seen.zero.within(key):
            yield seen.zero.say(
                f"{key}.nvme_path", NoticeSeverity.ERROR, "Offload to NVMe without a path fails at the start.",
                '"nvme_path": "/local_nvme"', "deepspeed/runtime/zero/partition_parameters.py, stage3.py",
            )  # fmt: skip
    if used and "aio" not in seen.top:
        yield seen.top.say(
            "aio", NoticeSeverity.WARNING,
            "Without this section NVMe is read with one thread, 1 MiB blocks and a queue of 8; ds_nvme_tune measures "
            "what the drive sustains.", '"aio": {what ds_nvme_tune prints}',
            "deepspeed/runtime/swap_tensor/constants.py",
        )  # fmt: skip
    if not used and "aio" in seen.top:
        yield seen.top.say("aio", NoticeSeverity.NOTE, "Not used: nothing is offloaded to NVMe.", "remove it", _OFFLOAD)


# fmt: off
offload_cost = rule(
    Row(_OPTIMIZER, WARNING, lambda d: d.stage in (1, 2, 3) and d.offload("offload_optimizer"),
        "Every step copies gradients to the CPU, updates there, and copies parameters back, while the GPU waits for "
        "what is not overlapped.", 'remove "offload_optimizer" if the states fit: diag plan MODEL --gpus N',
        f"{_OFFLOAD}: computation is offloaded to the CPU regardless of the device"),
    Row(_PARAM, WARNING, lambda d: d.stage == 3 and d.offload("offload_param"),
        "Each rank's shard crosses PCIe before every all-gather, in forward and again in backward.",
        'remove "offload_param" if a shard of the parameters fits: diag plan MODEL --gpus N', _OFFLOAD),
)
# fmt: on


def pageable_offload(seen: DeepSpeed) -> Iterator[Notice]:
    """Offload through memory that cannot be copied asynchronously."""
    for key in ("offload_param", "offload_optimizer"):
        section = seen.zero.within(key)
        if seen.offload(key) and section.flag("pin_memory") is False:
            yield section.say(
                "pin_memory", NoticeSeverity.WARNING,
                "Copies from and to pageable memory run at a lower bandwidth and do not overlap with compute.",
                '"pin_memory": true', _OFFLOAD,
            )  # fmt: skip


def hpz_partition(seen: DeepSpeed) -> Iterator[Notice]:
    """ZeRO++'s secondary partition, which should be one host."""
    size, gpus = seen.zero.whole("zero_hpz_partition_size"), seen.devices.gpus
    if seen.stage != 3 or size is None or size <= 1 or gpus is None:
        return
    if gpus <= seen.devices.per_host:
        text, instead = "On one host there is no slower link for hpZ to avoid: it only holds a second copy.", "1"
    elif size != seen.devices.per_host:
        text = (
            f"hpZ keeps backward's all-gathers within a host if its size is the GPUs of one, {seen.devices.per_host}."
        )
        instead = str(seen.devices.per_host)
    else:
        return
    yield seen.zero.say(
        "zero_hpz_partition_size", NoticeSeverity.WARNING, text, f'"zero_hpz_partition_size": {instead}',
        "DeepSpeed tutorials: zeropp, mixed_precision_zeropp",
    )  # fmt: skip


# fmt: off
saved_weights = rule(
    Row("zero_optimization.stage3_gather_16bit_weights_on_model_save", NOTE,
        lambda d: d.stage == 3 and not any(key.endswith("weights_on_model_save") for key in d.zero.values),
        "Off by default: save_16bit_model() then saves nothing, and the full weights have to be consolidated with "
        "zero_to_fp32.py.", '"stage3_gather_16bit_weights_on_model_save": true', f"{_ENGINE}: save_16bit_model"),
)
# fmt: on

ZERO_RULES = (
    stage_of_zero, keys_of_stage_3, offload_of_stage, nvme, offload_cost, pageable_offload, hpz_partition,
    saved_weights,
)  # fmt: skip

"""Transformers' TrainingArguments: FSDP as they set it up, and rules for their other keys."""

from __future__ import annotations

from collections.abc import Iterator

from diag.linting.policy import LINTING

from .deepspeed import DeepSpeed
from .document import Document
from .fsdp import FSDP1_ONLY, STRATEGIES, Fsdp
from .model import ERROR, WARNING, Devices, Notice, NoticeSeverity, Row, Section, keys_of, nearest, rule

KNOWN = keys_of("arguments")  # of versions 4 and 5

# Fields that no other format has: a file with two of these is recognised as TrainingArguments.
TELLING = frozenset({
    "output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "max_steps",
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "weight_decay", "max_grad_norm",
    "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "logging_steps", "save_steps",
    "save_strategy", "eval_strategy", "evaluation_strategy", "report_to", "optim", "seed", "dataloader_num_workers",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "torch_compile", "tf32",
})  # fmt: skip


_ARGUMENTS = "transformers/training_args.py"
_OPTIONS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")


class Arguments(Section, frozen=True):
    """The whole file, and the devices that it is for."""

    devices: Devices

    @property
    def fsdp(self) -> tuple[str, ...]:
        """The words of ``fsdp``, which may be a text or a list; empty for true, false and null."""
        value = self.values.get("fsdp")
        words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        return tuple(str(word).lower() for word in words if str(word).lower() not in ("true", "false"))

    @property
    def uses_fsdp(self) -> bool:
        return bool(self.fsdp) or self.flag("fsdp") is True


def arguments(document: Document, devices: Devices) -> Arguments:
    return Arguments(document, (), document.values, devices)


def fsdp_of(top: Arguments, bare: bool, fsdp_config: Document | None = None) -> Fsdp | None:
    """FSDP as the file sets it up; None where it does not. ``bare``: the file is an fsdp_config by itself;
    ``fsdp_config``: the file that it names as such."""
    if not bare and not top.uses_fsdp:
        return None
    section: Section = top if bare else top.within("fsdp_config")
    if fsdp_config is not None:
        section = Section(fsdp_config, (), fsdp_config.values)
    options = () if bare else top.fsdp
    version_key = "version" if "version" in section.values else "fsdp_version"
    version = section.whole(version_key)
    strategy = next((word.upper() for word in options if word.upper() in STRATEGIES), None)
    if strategy is None:
        for key in ("reshard_after_forward", "fsdp_reshard_after_forward"):
            if section.word(key) in {name for each in STRATEGIES for name in (each, each.lower())}:
                strategy = str(section.values[key]).upper()
    old = bool(options) or any(name in section or f"fsdp_{name}" in section for name in FSDP1_ONLY)
    precision = next((kind for kind in ("bf16", "fp16") if top.flag(kind) is True), None)
    return Fsdp(
        tool="Transformers",
        section=section,
        top=top,
        version=version if version is not None else 1 if old else 2,
        version_given=version is not None,
        strategy=strategy,
        strategy_key="fsdp" if options else "fsdp_config.reshard_after_forward",
        options=options,
        mixed_precision=precision if bare or precision else "no",
        devices=top.devices,
    )


def fsdp_words(top: Arguments) -> Iterator[Notice]:
    """Words of ``fsdp`` that do not exist, that need another one, or that exclude each other."""
    words = top.fsdp
    source = f"{_ARGUMENTS}: _process_fsdp_args"
    for word in words:
        if word not in _OPTIONS:
            near = nearest(word, _OPTIONS)
            yield top.say(
                "fsdp", NoticeSeverity.ERROR, f"There is no option {word!r}.", near or " ".join(_OPTIONS), source
            )
    if words == ("offload",):
        yield top.say("fsdp", NoticeSeverity.ERROR, "offload needs a sharding strategy as well.",
                      '"fsdp": "full_shard offload auto_wrap"', source)  # fmt: skip
    if "full_shard" in words and "shard_grad_op" in words:
        yield top.say("fsdp", NoticeSeverity.ERROR, "full_shard and shard_grad_op exclude each other.",
                      '"fsdp": "full_shard auto_wrap"', source)  # fmt: skip
    if words:
        yield top.say("fsdp", NoticeSeverity.NOTE,
                      "These options are deprecated and removed in Transformers v5.20; fsdp_config covers them all.",
                      '"fsdp": true', source)  # fmt: skip


# fmt: off
idle_fsdp_config = rule(
    Row("fsdp_config", ERROR, lambda a: a.values.get("fsdp_config") and not a.uses_fsdp,
        "Ignored: fsdp is not enabled.", '"fsdp": true', f"{_ARGUMENTS}: _process_fsdp_args"),
)
two_engines = rule(
    Row("fsdp", ERROR, lambda a: a.values.get("deepspeed") and a.uses_fsdp,
        "FSDP and DeepSpeed at once: the Trainer refuses.", "keep one of the two", "transformers/trainer.py"),
)
two_precisions = rule(
    Row("fp16", ERROR, lambda a: a.flag("fp16") and a.flag("bf16"),
        "fp16 and bf16 cannot both be true.", '"fp16": false', f"{_ARGUMENTS}: _validate_args"),
)
data_loading = rule(
    Row("dataloader_prefetch_factor", ERROR,
        lambda a: not a.whole("dataloader_num_workers") and "dataloader_prefetch_factor" in a,
        "Refused without workers.", '"dataloader_num_workers": 4', f"{_ARGUMENTS}: _validate_args"),
    Row("dataloader_num_workers", WARNING, lambda a: a.whole("dataloader_num_workers") == 0,
        "With 0 every batch is loaded by the training process itself, between its steps.",
        '"dataloader_num_workers": 4', f"{_ARGUMENTS}: dataloader_num_workers"),
)
slow_switches = rule(
    Row("torch_empty_cache_steps", WARNING, lambda a: a.whole("torch_empty_cache_steps"),
        "Emptying the allocator's cache costs about 10 % of the speed, by its own documentation.",
        "remove it, unless memory is short", f"{_ARGUMENTS}: torch_empty_cache_steps"),
    Row("ddp_find_unused_parameters", WARNING, lambda a: a.flag("ddp_find_unused_parameters"),
        "DDP then walks the autograd graph in every step; only a model with unused parameters needs it.",
        '"ddp_find_unused_parameters": false', "torch.nn.parallel.DistributedDataParallel"),
    Row("full_determinism", WARNING, lambda a: a.flag("full_determinism"),
        "Slower kernels, for debugging only.", '"full_determinism": false', f"{_ARGUMENTS}: full_determinism"),
)
# fmt: on


def misspelled(top: Arguments) -> Iterator[Notice]:
    """Keys that are nearly a field."""
    for key in top.values:
        near = nearest(key, KNOWN, LINTING.misspelled_ratio) if key not in KNOWN else None
        if near and near not in top.values:
            yield top.say(key, NoticeSeverity.ERROR, "TrainingArguments has no such field.", f'"{near}"', _ARGUMENTS)


RULES = (
    fsdp_words, idle_fsdp_config, two_engines, two_precisions, data_loading, slow_switches, misspelled,
)  # fmt: skip


# -- arguments deepspeed -----------------------------------------------------------------------------------------------
#
# Rules for TrainingArguments and the DeepSpeed configuration that they name: both set some values.

# DeepSpeed's key, the field that has to agree with it, and the field's default.
_SAME: tuple[tuple[str, str, float], ...] = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size", 8),
    ("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
    ("gradient_clipping", "max_grad_norm", 1.0),
    ("optimizer.params.lr", "learning_rate", 5e-5),
    ("optimizer.params.eps", "adam_epsilon", 1e-8),
    ("optimizer.params.weight_decay", "weight_decay", 0.0),
)
_MATCH = "transformers/integrations/deepspeed.py: fill_match"


def mismatches(top: Arguments, inner: DeepSpeed) -> Iterator[Notice]:
    """Values that differ, so that the Trainer refuses to start."""
    for key, field, default in _SAME:
        *tables, last = key.split(".")
        table = inner.top
        for name in tables:
            table = table.within(name)
        theirs = table.number(last)
        mine = top.number(field) if field in top else default
        if theirs is None or mine is None or theirs == mine:
            continue
        shown = top.shown(field) if field in top else f"its default, {default:g}"
        yield table.say(
            last, NoticeSeverity.ERROR,
            f"{table.shown(last)} here, while {field} is {shown}: the Trainer refuses to start.", f'"{last}": "auto"',
            _MATCH,
        )  # fmt: skip


def precision_mismatch(top: Arguments, inner: DeepSpeed) -> Iterator[Notice]:
    """A number type that is on in one and off in the other."""
    for kind in ("bf16", "fp16"):
        theirs, mine = inner.top.within(kind).flag("enabled"), top.flag(kind) is True
        if theirs is not None and theirs != mine and not top.flag(f"{kind}_full_eval"):
            yield inner.top.say(
                f"{kind}.enabled", NoticeSeverity.ERROR,
                f"{'On' if theirs else 'Off'} here and {'on' if mine else 'off'} in TrainingArguments: the Trainer "
                "refuses to start.", f'"{kind}": {{"enabled": "auto"}}', _MATCH,
            )  # fmt: skip


DEEPSPEED_RULES = (mismatches, precision_mismatch)

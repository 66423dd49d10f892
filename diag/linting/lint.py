"""The linter: reads files, recognises their formats and applies the rules of each format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from diag.errors import DiagError
from diag.words.formatting import visible

from . import accelerate, arguments, deepspeed, fsdp, programs, torchtitan
from .accelerate import Accelerate
from .arguments import TELLING
from .deepspeed import DeepSpeed, deepspeed_of
from .document import Document, read
from .fsdp import KNOWN, Fsdp, equivalents
from .model import Devices, Format, Linted, Notice, NoticeSeverity, Translation, Unchecked
from .torchtitan import MOVED, TABLES, Titan, torchtitan_of

# -- recognise ---------------------------------------------------------------------------------------------------------
#
# The format of a file, by its content and not by its name.

_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_ACCELERATE = ("distributed_type", "compute_environment")
_ENGINES = ("fsdp", "fsdp_config", "deepspeed")
_HINT = (
    "diag plan reads DeepSpeed JSON, Accelerate YAML, TrainingArguments, fsdp_config, torchtitan TOML, scripts with "
    "Megatron-LM's arguments, and YAML of NeMo and verl"
)


def recognise(document: Document) -> Format:
    """The format. DiagError for a model's config.json and for unknown formats."""
    if is_model(document.values):
        raise DiagError(
            "a model's config.json, not a training configuration",
            path=document.path,
            hint="give it alone, with --gpus, to plan memory and strategy",
        )
    recognised = _format(document)
    if recognised is None:
        raise DiagError("not a known configuration format", path=document.path, hint=_HINT)
    return recognised


def is_model(values: dict[str, Any]) -> bool:
    """Whether these are the keys of a Hugging Face config.json."""
    return isinstance(values.get("model_type"), str) and not any(key in values for key in (*_ACCELERATE, *_ENGINES))


def _format(document: Document) -> Format | None:
    values = document.values
    program = programs.trained(document, Devices(None, 8))
    if program is not None:
        return Format(str(program.settings.program))
    tables = [key for key, value in values.items() if isinstance(value, dict) and (key in TABLES or key in MOVED)]
    if document.syntax == "toml" and ("parallelism" in tables or len(tables) > 1):
        return Format.TORCHTITAN
    if any(key in values for key in _ACCELERATE):
        return Format.ACCELERATE
    if any(key in values for key in _ENGINES):
        return Format.TRAINING_ARGUMENTS
    if any(key in values for key in _DEEPSPEED) or any(isinstance(values.get(key), dict) for key in ("fp16", "bf16")):
        return Format.DEEPSPEED
    if sum(key in TELLING for key in values) > 1:
        return Format.TRAINING_ARGUMENTS
    if any(key.removeprefix("fsdp_") in KNOWN["Transformers"] - {"version"} for key in values):
        return Format.FSDP_CONFIG
    return None


# -- unchecked ---------------------------------------------------------------------------------------------------------
#
# What a configuration does not show, and what to check instead.


def unchecked_deepspeed(seen: DeepSpeed) -> tuple[Unchecked, ...]:
    unchecked = [
        Unchecked(
            "whether each rank reads its own data",
            "deepspeed.initialize(training_data=...) adds a DistributedSampler, as Accelerate and the Trainer do; "
            "your own DataLoader needs sampler=DistributedSampler(dataset) and set_epoch() every epoch",
        )
    ]
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if seen.devices.gpus is None and all(seen.top.whole(key) for key in sizes):
        whole, micro, steps = (seen.top.whole(key) or 1 for key in sizes)
        if whole % (micro * steps) == 0:
            unchecked.append(
                Unchecked(
                    "whether the batch sizes are consistent",
                    f"they are on {whole // (micro * steps)} GPUs: give --gpus",
                )
            )
    return tuple(unchecked)


def unchecked_accelerate(seen: Accelerate) -> tuple[Unchecked, ...]:
    if seen.kind in ("NO", "FALSE", ""):
        return ()
    return (
        Unchecked(
            "whether each rank reads its own data",
            "Accelerate shards a DataLoader that goes through accelerator.prepare(), as the Trainer's do; one that "
            "does not gives every rank all of the data",
        ),
    )


def unchecked_torchtitan(seen: Titan) -> tuple[Unchecked, ...]:
    unchecked = []
    if seen.devices.gpus is None:
        unchecked.append(
            Unchecked("whether the product of the degrees is the number of GPUs", "give --gpus and --per-host")
        )
    if seen.extended:
        unchecked.append(
            Unchecked("whether tables and keys are spelled right", "the module that adds some is not imported here")
        )
    return tuple(unchecked)


def unchecked_program(seen: programs.Trained) -> tuple[Unchecked, ...]:
    if seen.gpus is None:
        return (Unchecked("whether the axes and the batch fit the number of GPUs", "give --gpus and --per-host"),)
    return ()


def unchecked_file(name: str) -> Unchecked:
    return Unchecked(
        f"what {visible(name[:200])} contains", "the file is not on this machine: run diag plan where it is"
    )


_View = TypeVar("_View")
DEEPSPEED_RULES = (
    *deepspeed.NAME_RULES, *deepspeed.ZERO_RULES, *deepspeed.SPEED_RULES, *deepspeed.BATCH_RULES,
)  # fmt: skip
FSDP_RULES = (*fsdp.VERSION_RULES, *fsdp.SHARDING_RULES, *fsdp.MEMORY_RULES)
ACCELERATE_RULES = (*accelerate.RULES, *accelerate.DEEPSPEED_RULES)
TORCHTITAN_RULES = (*torchtitan.DEGREE_RULES, *torchtitan.TRAINING_RULES)


def lint(paths: Sequence[Path], gpus: int | None = None, per_host: int = 8) -> list[Linted]:
    """The problems of each file, in the order of the paths. DiagError where one cannot be read or has no known format.
    Nothing that a file names is imported or run; a DeepSpeed file that another names is read as well."""
    devices = Devices(gpus, per_host)
    return [_linted(read(path), devices) for path in paths]


def _linted(document: Document, devices: Devices) -> Linted:
    recognised = recognise(document)
    program = programs.trained(document, devices)
    notices, rows, unchecked = _OF_FORMAT[recognised](document, devices)
    order = list(NoticeSeverity)
    ordered = sorted(
        notices, key=lambda notice: (order.index(notice.severity), notice.path != document.path, notice.line or 0)
    )
    settings = program.settings if program is not None else None
    return Linted(document.path, recognised, tuple(dict.fromkeys(ordered)), rows, unchecked, settings)


_LintResult = tuple[list[Notice], tuple[Translation, ...], tuple[Unchecked, ...]]


def _applied(rules: Iterable[Callable[[_View], Iterator[Notice]]], view: _View) -> list[Notice]:
    return [notice for rule in rules for notice in rule(view)]


def _deepspeed(document: Document, devices: Devices) -> _LintResult:
    view = deepspeed_of(document, devices)
    return _applied(DEEPSPEED_RULES, view), (), unchecked_deepspeed(view)


def _accelerate(document: Document, devices: Devices) -> _LintResult:
    view = accelerate.accelerate(document, devices)
    notices = _repeated(view) + _applied(ACCELERATE_RULES, view)
    unchecked = unchecked_accelerate(view)
    fsdp = accelerate.fsdp_of(view)
    name = view.within("deepspeed_config").word("deepspeed_config_file")
    if view.kind == "DEEPSPEED" and name is not None:
        inner, missing = _named(document, name, view.devices, "Accelerate")
        unchecked += missing
        if inner is not None:
            notices += _applied(DEEPSPEED_RULES, inner)
    return _with_fsdp(notices, unchecked, fsdp)


def _arguments(document: Document, devices: Devices) -> _LintResult:
    view = arguments.arguments(document, devices)
    notices = _repeated(view) + _applied(arguments.RULES, view)
    unchecked: tuple[Unchecked, ...] = ()
    value = view.values.get("deepspeed")
    inner = None
    if isinstance(value, dict):
        inner = deepspeed_of(document, devices, "Transformers", ("deepspeed",), value)
    elif isinstance(value, str) and value:
        inner, unchecked = _named(document, value, devices, "Transformers")
    if inner is not None:
        notices += _applied(DEEPSPEED_RULES, inner)
        notices += [notice for rule in arguments.DEEPSPEED_RULES for notice in rule(view, inner)]
    name = view.word("fsdp_config")
    fsdp_file = None
    if name and view.uses_fsdp:
        fsdp_file = _referenced_file(document, name)
        if fsdp_file is None:
            return notices, (), (*unchecked, unchecked_file(name))
    return _with_fsdp(notices, unchecked, arguments.fsdp_of(view, False, fsdp_file))


def _fsdp_config(document: Document, devices: Devices) -> _LintResult:
    view = arguments.arguments(document, devices)
    return _with_fsdp(_repeated(view), (), arguments.fsdp_of(view, True))


def _torchtitan(document: Document, devices: Devices) -> _LintResult:
    view = torchtitan_of(document, devices)
    return _applied(TORCHTITAN_RULES, view), (), unchecked_torchtitan(view)


def _program(document: Document, devices: Devices) -> _LintResult:
    view = programs.trained(document, devices)
    assert view is not None, "recognise has found one"
    return _applied(programs.RULES, view), (), unchecked_program(view)


def _with_fsdp(notices: list[Notice], unchecked: tuple[Unchecked, ...], fsdp: Fsdp | None) -> _LintResult:
    if fsdp is None:
        return notices, (), unchecked
    return notices + _applied(FSDP_RULES, fsdp), equivalents(fsdp), unchecked


def _repeated(view: accelerate.Accelerate | arguments.Arguments) -> list[Notice]:
    """Keys given twice, of which YAML's and JSON's parsers keep the last."""
    return [
        view.say(
            ".".join(place),
            NoticeSeverity.ERROR,
            "Duplicate key: the last one is used.",
            "keep one of the two",
            "YAML and JSON",
        )
        for place, _ in view.document.lines.repeated
    ]


def _named(
    document: Document, name: str, devices: Devices, reader: str
) -> tuple[DeepSpeed | None, tuple[Unchecked, ...]]:
    """The DeepSpeed file that another one names; None where it is not here, which is no error."""
    inner = _referenced_file(document, name)
    if inner is None:
        return None, (unchecked_file(name),)
    if recognise(inner) is not Format.DEEPSPEED:
        raise DiagError(
            f"not a DeepSpeed configuration, although {document.path} refers to it as one",
            path=inner.path,
            hint="refer to the DeepSpeed JSON there",
        )
    return deepspeed_of(inner, devices, reader), ()


def _referenced_file(document: Document, name: str) -> Document | None:
    """A file that another one names: relative to the working directory, as for the tools, else to that file's
    folder."""
    for path in (Path(name), Path(document.path).parent / name):
        try:
            here = path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            return None
        if here:
            return read(path)
    return None


_OF_FORMAT: dict[Format, Callable[[Document, Devices], _LintResult]] = {
    Format.DEEPSPEED: _deepspeed,
    Format.ACCELERATE: _accelerate,
    Format.TRAINING_ARGUMENTS: _arguments,
    Format.FSDP_CONFIG: _fsdp_config,
    Format.TORCHTITAN: _torchtitan,
    Format.MEGATRON: _program,
    Format.NEMO: _program,
    Format.NEMO_2: _program,
    Format.VERL: _program,
}

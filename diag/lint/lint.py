"""The linter: every file read, recognised and put to the rules of its format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from diag.errors import DiagError

from . import accelerate as outer
from . import (
    accelerate_deepspeed,
    arguments_deepspeed,
    deepspeed_batch,
    deepspeed_names,
    deepspeed_speed,
    deepspeed_zero,
    fsdp_memory,
    fsdp_sharding,
    fsdp_versions,
    torchtitan_degrees,
    torchtitan_training,
)
from . import arguments as hf
from .deepspeed import DeepSpeed, deepspeed
from .document import Document, read
from .fsdp import Fsdp
from .fsdp_equivalents import equivalents
from .model import Devices, Format, Linted, Notice, Severity, Translation, Unseen
from .recognise import recognise
from .torchtitan import torchtitan
from .unseen import unseen_accelerate, unseen_deepspeed, unseen_file, unseen_torchtitan

_View = TypeVar("_View")
DEEPSPEED_RULES = (
    *deepspeed_names.RULES, *deepspeed_zero.RULES, *deepspeed_speed.RULES, *deepspeed_batch.RULES,
)  # fmt: skip
FSDP_RULES = (*fsdp_versions.RULES, *fsdp_sharding.RULES, *fsdp_memory.RULES)
ACCELERATE_RULES = (*outer.RULES, *accelerate_deepspeed.RULES)
TORCHTITAN_RULES = (*torchtitan_degrees.RULES, *torchtitan_training.RULES)


def lint(paths: Sequence[Path], gpus: int | None = None, per_host: int = 8) -> list[Linted]:
    """What each file has wrong, in the order of the paths. DiagError where one cannot be read or is none of the formats
    known. Nothing that a file names is imported or run; a DeepSpeed file that another names is read as well."""
    devices = Devices(gpus, per_host)
    return [_linted(read(path), devices) for path in paths]


def _linted(document: Document, devices: Devices) -> Linted:
    found = recognise(document)
    notices, rows, unseen = _OF_FORMAT[found](document, devices)
    order = list(Severity)
    own = sorted(
        notices, key=lambda notice: (order.index(notice.severity), notice.path != document.path, notice.line or 0)
    )
    return Linted(document.path, found, tuple(dict.fromkeys(own)), rows, unseen)


_Found = tuple[list[Notice], tuple[Translation, ...], tuple[Unseen, ...]]


def _applied(rules: Iterable[Callable[[_View], Iterator[Notice]]], view: _View) -> list[Notice]:
    return [notice for rule in rules for notice in rule(view)]


def _deepspeed(document: Document, devices: Devices) -> _Found:
    view = deepspeed(document, devices)
    return _applied(DEEPSPEED_RULES, view), (), unseen_deepspeed(view)


def _accelerate(document: Document, devices: Devices) -> _Found:
    view = outer.accelerate(document, devices)
    notices = _repeated(view) + _applied(ACCELERATE_RULES, view)
    unseen = unseen_accelerate(view)
    fsdp = outer.fsdp_of(view)
    name = view.within("deepspeed_config").word("deepspeed_config_file")
    if view.kind == "DEEPSPEED" and name is not None:
        inner, missing = _named(document, name, view.devices, "Accelerate")
        unseen += missing
        if inner is not None:
            notices += _applied(DEEPSPEED_RULES, inner)
    return _with_fsdp(notices, unseen, fsdp)


def _arguments(document: Document, devices: Devices) -> _Found:
    view = hf.arguments(document, devices)
    notices = _repeated(view) + _applied(hf.RULES, view)
    unseen: tuple[Unseen, ...] = ()
    said = view.values.get("deepspeed")
    inner = None
    if isinstance(said, dict):
        inner = deepspeed(document, devices, "Transformers", ("deepspeed",), said)
    elif isinstance(said, str) and said:
        inner, unseen = _named(document, said, devices, "Transformers")
    if inner is not None:
        notices += _applied(DEEPSPEED_RULES, inner)
        notices += [notice for rule in arguments_deepspeed.RULES for notice in rule(view, inner)]
    name = view.word("fsdp_config")
    other = None
    if name and view.uses_fsdp:
        other = _beside(document, name)
        if other is None:
            return notices, (), (*unseen, unseen_file(name))
    return _with_fsdp(notices, unseen, hf.fsdp_of(view, False, other))


def _fsdp_config(document: Document, devices: Devices) -> _Found:
    view = hf.arguments(document, devices)
    return _with_fsdp(_repeated(view), (), hf.fsdp_of(view, True))


def _torchtitan(document: Document, devices: Devices) -> _Found:
    view = torchtitan(document, devices)
    return _applied(TORCHTITAN_RULES, view), (), unseen_torchtitan(view)


def _with_fsdp(notices: list[Notice], unseen: tuple[Unseen, ...], fsdp: Fsdp | None) -> _Found:
    if fsdp is None:
        return notices, (), unseen
    return notices + _applied(FSDP_RULES, fsdp), equivalents(fsdp), unseen


def _repeated(view: outer.Accelerate | hf.Arguments) -> list[Notice]:
    """Keys given twice, of which YAML's and JSON's parsers keep the last."""
    return [
        view.say(
            ".".join(place), Severity.ERROR, "Given twice: the last counts.", "keep one of the two", "YAML and JSON"
        )
        for place, _ in view.document.lines.repeated
    ]


def _named(document: Document, name: str, devices: Devices, reader: str) -> tuple[DeepSpeed | None, tuple[Unseen, ...]]:
    """The DeepSpeed file that another one names; None where it is not here, as it need not be."""
    inner = _beside(document, name)
    if inner is None:
        return None, (unseen_file(name),)
    if recognise(inner) is not Format.DEEPSPEED:
        raise DiagError(
            f"no DeepSpeed configuration, though {document.path} names it as one",
            path=inner.path,
            hint="name the DeepSpeed JSON there",
        )
    return deepspeed(inner, devices, reader), ()


def _beside(document: Document, name: str) -> Document | None:
    """A file that another names, by the working directory, as the tools take it, else by that file's folder."""
    for path in (Path(name), Path(document.path).parent / name):
        try:
            here = path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            return None
        if here:
            return read(path)
    return None


_OF_FORMAT: dict[Format, Callable[[Document, Devices], _Found]] = {
    Format.DEEPSPEED: _deepspeed,
    Format.ACCELERATE: _accelerate,
    Format.TRAINING_ARGUMENTS: _arguments,
    Format.FSDP_CONFIG: _fsdp_config,
    Format.TORCHTITAN: _torchtitan,
}

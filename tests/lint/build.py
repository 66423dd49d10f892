"""Configurations as text, and what a rule says about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from diag.linting import accelerate as outer
from diag.linting import arguments as hf
from diag.linting.deepspeed import DeepSpeed, deepspeed_of
from diag.linting.document import Document, parse
from diag.linting.fsdp import Fsdp
from diag.linting.lint import lint
from diag.linting.model import Devices, Linted, Notice
from diag.linting.torchtitan import Titan, torchtitan_of

Expected = tuple[str, str, str]  # key, severity, words of the text


class Case(NamedTuple):
    """A configuration and what one rule is to say of it; nothing where ``expected`` is empty."""

    values: dict[str, Any]
    expected: tuple[Expected, ...] = ()
    gpus: int | None = None
    reader: str | None = None


def fires(values: dict[str, Any], *expected: Expected, gpus: int | None = None, reader: str | None = None) -> Case:
    return Case(values, expected, gpus, reader)


def silent(values: dict[str, Any], gpus: int | None = None, reader: str | None = None) -> Case:
    return Case(values, (), gpus, reader)


def document(values: dict[str, Any]) -> Document:
    return parse(json.dumps(values, indent=1), "config")


def deepspeed_view(case: Case) -> DeepSpeed:
    return deepspeed_of(document(case.values), Devices(case.gpus, 8), case.reader)


def accelerate_view(case: Case) -> outer.Accelerate:
    return outer.accelerate(document(case.values), Devices(case.gpus, 8))


def arguments_view(case: Case) -> hf.Arguments:
    return hf.arguments(document(case.values), Devices(case.gpus, 8))


def fsdp_view(case: Case) -> Fsdp:
    """Of Accelerate's file where it has a distributed_type, else of TrainingArguments, else of a bare fsdp_config."""
    if "distributed_type" in case.values:
        found = outer.fsdp_of(accelerate_view(case))
    else:
        found = hf.fsdp_of(arguments_view(case), bare="fsdp" not in case.values)
    assert found is not None
    return found


def titan_view(case: Case) -> Titan:
    return torchtitan_of(document(case.values), Devices(case.gpus, 8))


def said(notices: Iterable[Notice]) -> list[tuple[str, str]]:
    return [(notice.key, str(notice.severity)) for notice in notices]


def check(rule: Callable[..., Iterable[Notice]], view: object, case: Case) -> None:
    """The rule says exactly what is expected, with what to write and where that can be read."""
    notices = list(rule(view))
    assert said(notices) == [(key, severity) for key, severity, _ in case.expected]
    for notice, (_, _, words) in zip(notices, case.expected, strict=True):
        assert words in notice.text
        assert notice.instead
        assert notice.source
        assert notice.path == "config"


def every_rule(rules: Iterable[Callable[..., Any]], cases: dict[Any, list[Case]]) -> None:
    """Each rule is there with a case in which it fires and one in which it does not."""
    assert set(cases) == set(rules)
    for rule, own in cases.items():
        assert any(case.expected for case in own), rule.__name__
        assert not all(case.expected for case in own), rule.__name__


def flat(cases: dict[Any, list[Case]]) -> list[tuple[Any, Case]]:
    return [(rule, case) for rule, own in cases.items() for case in own]


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


def linted(path: Path, text: str, gpus: int | None = None) -> Linted:
    path.write_text(text)
    (found,) = lint([path], gpus)
    return found

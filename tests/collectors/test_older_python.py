"""The recorder runs in trainings under Python 3.10, which `diag` itself does not. `make check-types` looks at the names
that the recorder takes from Python; syntax and patterns are looked at here."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.collectors import masking

OLDEST = (3, 10)
RECORDER = Path(masking.__file__).resolve().parent
SOURCES = sorted(RECORDER.rglob("*.py"))


def _as_under_the_oldest() -> ModuleType:
    """The module that masks secrets, as Python 3.10 would load it."""
    spec = importlib.util.spec_from_file_location("diag.collectors.masking_310", masking.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "version_info", (*OLDEST, 0, "final", 0))
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


OLDER = _as_under_the_oldest()


def _unknown(parsed: Any) -> set[str]:
    """What a parsed pattern has that came with Python 3.11."""
    found = {str(operation) for operation, _ in parsed if str(operation) in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP")}
    for _, argument in parsed:
        for inner in argument if isinstance(argument, tuple | list) else [argument]:
            for part in inner if isinstance(inner, list) else [inner]:
                found |= _unknown(part) if isinstance(part, type(parsed)) else set()
    return found


def _patterns(module: ModuleType) -> list[str]:
    return [value.pattern for value in vars(module).values() if isinstance(value, re.Pattern)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(RECORDER)))
def test_its_syntax_is_of_python_3_10(source: Path) -> None:
    ast.parse(source.read_text("utf-8"), feature_version=OLDEST)


def test_no_pattern_of_it_needs_a_later_python() -> None:
    parser = importlib.import_module("re._parser")
    names = (source.relative_to(RECORDER).with_suffix("") for source in SOURCES if "re.compile(" in source.read_text())
    modules = [
        OLDER if name.name == "masking" else importlib.import_module(f"diag.collectors.{'.'.join(name.parts)}")
        for name in names
    ]
    patterns = {pattern for module in modules for pattern in _patterns(module)}
    assert len(patterns) > 30
    assert {pattern for pattern in patterns if _unknown(parser.parse(pattern))} == set()
    assert {len(_unknown(parser.parse(pattern))) for pattern in _patterns(masking)} == {0, 1}  # they would be seen


TEXTS = st.lists(
    st.sampled_from(
        ["--password", "token", "=", ":", " ", ",", '"', "'", "\\", '\\"', "%3D", "%", "[", "]", "S3cr3t", "a", "\n"]
    )
    | st.text(max_size=4),
    max_size=60,
).map("".join)


@given(TEXTS)
def test_it_masks_the_same_under_python_3_10(text: str) -> None:
    assert OLDER.masked(text) == masking.masked(text)
    assert OLDER.masked_arguments(text.split(" ")) == masking.masked_arguments(text.split(" "))

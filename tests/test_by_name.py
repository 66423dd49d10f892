"""What is loaded by its name is there: no import fails where a name is wrong, or its module was renamed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.deferred import ByName, by_name, loaded
from diag.diagnoses.registry import DIAGNOSES
from diag.diagnoses.subject import Diagnosis, Listed

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"""(["'])(diag(?:\.\w+)+:\w+)\1""")


def names() -> set[str]:
    """Every "module:name" in the code, but for those that the registry of diagnoses puts together."""
    texts = (path.read_text("utf-8") for path in (ROOT / "diag").rglob("*.py"))
    return {match[2] for text in texts for match in _NAME.finditer(text)}


@pytest.mark.parametrize("where", sorted(names()))
def test_a_name_is_that_of_a_function(where: str) -> None:
    assert callable(loaded(where))


@pytest.mark.parametrize("listed", DIAGNOSES, ids=lambda listed: listed.id)
def test_a_diagnosis_is_where_the_registry_says(listed: Listed) -> None:
    assert isinstance(listed.diagnosis, Diagnosis)
    if isinstance(listed.cannot_look, ByName):
        assert callable(loaded(listed.cannot_look.where))


def test_a_module_is_loaded_when_its_function_is_called() -> None:
    missing = by_name("diag.nowhere:nothing")
    with pytest.raises(ModuleNotFoundError):
        missing()

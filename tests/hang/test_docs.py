"""The page about the fault classes says what the registry says."""

from __future__ import annotations

from pathlib import Path

from diag.hang.classes import CLASSES
from tests.hang.classes_page import page

PAGE = Path(__file__).parents[2] / "diag" / "hang" / "CLASSES.md"


def test_the_page_is_the_registrys() -> None:
    assert PAGE.read_text() == page(), "python -m tests.hang.classes_page > diag/hang/CLASSES.md"


def test_every_class_has_a_row_with_what_decides_it() -> None:
    rows = {line.split("|")[2].strip(): line.split(" | ") for line in page().splitlines() if line.startswith("| ")}
    for name, fault_class in CLASSES.items():
        assert len(rows[name][3]) > 20, name
        assert fault_class.title in rows[name]

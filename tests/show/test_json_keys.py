"""Every key of ``--json`` has a meaning, in one file, and `diag help json` prints it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diag.show.json_keys import Key, documents, records, undescribed
from tests.command import diag

_ROOT = Path(__file__).parents[2]
_SAMPLES = _ROOT / "sample_traces"


@pytest.mark.parametrize(
    ("document", "arguments"),
    [
        ("analyze", ("analyze", _SAMPLES / "fsdp2-not-overlapped", "--table", "collectives")),
        ("analyze", ("analyze", _SAMPLES / "ddp-straggler-rank0")),
        ("analyze SEVERAL", ("analyze", _SAMPLES / "fsdp2-slow-wire", _SAMPLES / "ddp-healthy")),
        ("history", ("history", _SAMPLES / "fsdp2-not-overlapped")),
        ("compare", ("compare", _SAMPLES / "fsdp2-not-overlapped", _SAMPLES / "fsdp2-slow-wire")),
        ("compare", ("compare", _SAMPLES / "fsdp2-not-overlapped", _SAMPLES / "fsdp2-slow-wire", "--tables")),
        ("check", ("check", _SAMPLES / "ddp-healthy", "--max-step", "1ms", "--max-data-wait", "50%")),
        ("triage", ("triage", _ROOT / "tests/hang/captured/skip-collective-4-ranks")),
        ("triage", ("triage", _ROOT / "tests/hang/captured/sigkill-2-ranks")),
        ("plan", ("plan", "llama-3-8b", "--gpus", "16", "--gpu", "H100", "--topology", "dp=4,tp=4")),
        ("plan", ("plan", "8B")),
    ],
)
def test_every_key_of_a_document_has_a_meaning(document: str, arguments: tuple[object, ...], tmp_path: Path) -> None:
    given = [shutil.copytree(one, tmp_path / one.name) if isinstance(one, Path) else one for one in arguments]
    printed = json.loads(diag(*map(str, given), "--json").stdout)
    assert sorted(set(undescribed(printed, documents()[document]))) == []


def test_a_key_without_a_meaning_is_seen() -> None:
    document = {"run": {"path": "a", "color": "red"}, "steps": [{"step": 1}, {"speed": 2}]}
    assert list(undescribed(document, documents()["analyze"])) == ["run.color", "steps.speed"]


def test_records_that_are_named_exist_and_are_used() -> None:
    keys: list[Key] = [key for of in (*documents().values(), *records().values()) for key in of.values()]
    assert {key.record for key in keys} - {""} == set(records())


def test_help_explains_the_keys() -> None:
    printed = diag("help", "json", "check").stdout
    assert "budgets" in printed
    assert "0: kept; 3: exceeded; 4: cannot be decided." in printed
    assert "diag plan" not in printed
    assert "did you mean check?" in diag("help", "json", "chek").stderr


def test_help_has_the_glossary() -> None:
    assert "counted steps" in diag("help", "glossary").stdout

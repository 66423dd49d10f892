"""The triage on real failures of the bundled trainer, as ``tests/hang/capture.py`` kept them. Faults were injected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CAPTURED = sorted((Path(__file__).parent / "captured").glob("*/truth.json"))


def test_there_are_captured_runs() -> None:
    assert len(CAPTURED) > 20


@pytest.mark.parametrize("truth_file", CAPTURED, ids=lambda path: path.parent.name)
def test_a_real_failure(truth_file: Path, tmp_path: Path) -> None:
    """Class and culprit. The truth file is not among what the triage reads."""
    from diag.hang.api import triage

    truth = json.loads(truth_file.read_text())
    for path in truth_file.parent.rglob("*"):
        if path.is_file() and path != truth_file:
            copy = tmp_path / path.relative_to(truth_file.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    found = triage([tmp_path])
    said = (found.fault_class, sorted({c.rank for c in found.culprits}, key=str), found.headline)
    assert found.fault_class in (truth["fault_class"], *truth["accept"]), said
    right = [sorted(truth["culprits"]), *(sorted(ranks) for ranks in truth["accept_culprits"])]
    assert sorted(c.rank for c in found.culprits if c.rank is not None) in right, said
    assert all(c.rank is not None for c in found.culprits), said

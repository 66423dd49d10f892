"""Run directories of every schema open, and give the verdict that they gave when they were recorded.

``schemas/N`` was recorded by the version of `diag` that wrote schema N: ``diag run --strategy ddp --nproc 2 --steps 24
--inject slow-loader:rank=1,ms=200 --no-trace``. The samples are of schema 1.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import diag
from diag.collectors.layout import RUN_SCHEMA

_SAMPLE = Path(__file__).parents[2] / "sample_traces" / "fsdp2-slow-loader-rank1"
_RECORDED = Path(__file__).with_name("schemas")


@pytest.mark.parametrize("schema", range(1, RUN_SCHEMA + 1))
def test_a_run_of_an_earlier_schema_opens(schema: int, tmp_path: Path) -> None:
    """A new schema needs a run that the version before it wrote."""
    run = tmp_path / "run"
    shutil.copytree(_SAMPLE if schema == 1 else _RECORDED / str(schema), run)
    assert json.loads((run / "manifest.json").read_text())["schema_version"] == schema
    result = diag.open_run(run)
    assert result.verdict.cause == "slow-data-one-rank"
    assert result.verdict.culprit_ranks == (1,)
    assert result.coverage.ranks_used == (0, 1)
    assert not result.coverage.skipped

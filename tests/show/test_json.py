"""The JSON document is what its plain containers say, in ASCII."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from diag.api import Result, open_run
from diag.model import Gap
from diag.model.steps import Coverage
from diag.rundir.lines import read_answer, with_digest
from diag.show.json import fields_of, to_dict, to_json
from tests.copies import replace

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp-straggler-rank0"


def with_skipped(result: Result, *gaps: Gap, **changes: object) -> Result:
    coverage: Coverage = replace(result.coverage, skipped=gaps, **changes)
    return replace(result, coverage=coverage)


def test_any_text_and_number_is_written(tmp_path: Path) -> None:
    result = with_skipped(
        open_run(SAMPLE),
        Gap("µ 🙂 \x9b31m", 'a "quoted"\n text'),
        explained_wait=np.float64(0.25),
        clock_uncertainty_ns=1 << 70,
    )
    text = to_json(result)
    assert text.isascii()
    content = json.loads(json.dumps(to_dict(result)))
    assert json.loads(text) == content
    assert to_json(result, fields=fields_of(result)) == text
    assert json.loads(to_json(result, indent=None, added={"more": [1]})) == {**content, "more": [1]}
    answer = tmp_path / "verdict.json"
    answer.write_bytes(with_digest(to_json(with_skipped(result, clock_uncertainty_ns=1))))
    assert read_answer(answer)[0] is not None


def test_bytes_of_a_log_that_are_no_text_are_written() -> None:
    result = with_skipped(open_run(SAMPLE), Gap("a\udcff", "b"))
    assert json.loads(to_json(result))["coverage"]["skipped"] == [{"path": "a\udcff", "reason": "b"}]

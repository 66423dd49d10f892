"""Every finding that a test of this folder makes can be looked up: its queries return rows of the run that shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import diag.api
import diag.summaries
from diag.model.evidence import query_of
from diag.model.steps import Finding

Kind = tuple[str, tuple[bool, ...]]  # the id of a finding; which items of its evidence are zero

LOOKED_UP = set[Kind]()  # in this process: each once, as frames of a run cost as much as its analysis


@pytest.fixture(autouse=True)
def evidence_is_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[diag.api.Result] = []

    class Result(diag.api.Result, frozen=True, dict=True):
        def __post_init__(self) -> None:
            made.append(self)

    class DurationResult(diag.api.DurationResult, frozen=True, dict=True):
        def __post_init__(self) -> None:
            made.append(self)

    class SummaryResult(diag.summaries.SummaryResult, frozen=True, dict=True):
        def __post_init__(self) -> None:
            made.append(self)

    with monkeypatch.context() as patched:
        patched.setattr(diag.api, "Result", Result)
        patched.setattr(diag.api, "DurationResult", DurationResult)
        patched.setattr(diag.summaries, "SummaryResult", SummaryResult)
        yield
    for result in made:
        for finding in result.examination.findings:
            kind = (finding.id, tuple(not item.value for item in finding.evidence))
            if kind not in LOOKED_UP:
                look_up(result, finding)
                LOOKED_UP.add(kind)


def look_up(result: diag.api.Result, finding: Finding) -> None:
    assert finding.evidence, finding.id
    assert len(result.rows(query_of(finding))), (finding.id, query_of(finding))
    for item in finding.evidence:
        assert item.query is not None, (finding.id, item)
        assert len(result.rows(item.query)), (finding.id, item)

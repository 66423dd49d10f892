"""A rank that computes longer than the others: no setting, but worth its price (science.md 3.2, rule 25)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.advice.case import Candidate, Case
from diag.findings.subject import ranks_text
from diag.model import Risk
from diag.replay.mutations.work import without_straggler


def propose(case: Case) -> Sequence[Candidate]:
    found = case.found("compute-straggler")
    if found is None or not found.ranks:
        return ()
    its = "its" if len(found.ranks) == 1 else "their"
    return [
        Candidate(
            id="straggler",
            finding=found.id,
            knob="a slow rank",
            change=f"make {ranks_text(found.ranks)} as fast as the others, or replace {its} host or device",
            mutation=without_straggler(found.ranks),
            memory_delta_bytes=0,
            risk=Risk.SAFE,
            code={},
        )
    ]

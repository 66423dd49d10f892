"""A rank that computes longer than the others: no setting, but worth its price (science.md 3.2, rule 25)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.diagnoses.subject import ranks_text
from diag.model.steps import Risk
from diag.replay.mutations.work import without_straggler

from ..case import Candidate, Case

_CHANGES = {"compute-straggler": "make", "stalled-rank": "remove what blocks", "contended-host": "give cores to"}
_BEHIND = {
    "compute-straggler": " as fast as the others, or replace {its} host or device",
    "stalled-rank": "",
    "contended-host": ", or move {its} neighbours elsewhere",
}


def propose(case: Case) -> Sequence[Candidate]:
    found = case.found("compute-straggler", "stalled-rank", "contended-host")
    if found is None or not found.ranks:
        return ()
    its = "its" if len(found.ranks) == 1 else "their"
    return [
        Candidate(
            id="straggler",
            finding=found.id,
            knob="straggler",
            change=f"{_CHANGES[found.id]} {ranks_text(found.ranks)}{_BEHIND[found.id].format(its=its)}",
            mutation=without_straggler(found.ranks),
            memory_delta_bytes=0,
            risk=Risk.SAFE,
            code={},
        )
    ]

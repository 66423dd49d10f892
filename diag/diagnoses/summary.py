"""What the summaries of all ranks can answer: who holds the run up, in which phase, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from diag.account.frontier import Frontier
from diag.collectors.records import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, PHASES_AND_REST, STILL
from diag.model.steps import Attribution, Evidence, Finding
from diag.rundir.run import Tables
from diag.rundir.summaries import Summaries

from . import DIAGNOSES, Examination, ask, checkpoint_stall, exposed_communication, slow_data, straggler
from .comm_parts import not_recorded
from .phases import phases_alone
from .shares import Cost, noise_of
from .subject import MENTION, Subject, a_step

_NOT_TOLD = "the ranks' summaries do not tell, a profiler window does (diag trace)"
_SHOWN = 4  # ranks at either end

# Columns of a summary that are what ``Parts`` calls by these names.
_FIELDS = {
    "data_wait_ns": (DATA,),
    "exposed_copy_ns": (H2D,),
    "compute_ns": (FORWARD, BACKWARD, OPTIMIZER),
    "exposed_comm_ns": tuple(phase + STILL for phase in PHASES_AND_REST),
}


class _SummarySubject(Subject, frozen=True):
    """``means``: of each rank, milliseconds a step of each field: nobody makes parts of ten thousand ranks."""

    means: Mapping[str, Mapping[int, float]] = {}

    def per_rank(self, field: str) -> tuple[Evidence, ...]:
        """Of a large job the two ends of the range."""
        values = self.means[field]
        shown = sorted(values, key=lambda rank: -values[rank])
        if len(shown) > 2 * _SHOWN:
            shown = [*shown[:_SHOWN], *shown[-_SHOWN:]]
        return tuple(Evidence("summaries", f"rank == {rank}, mean of {field}", values[rank], "ms") for rank in shown)


def examine_summary(found: Summaries, frontier: Frontier, attribution: Attribution, tables: Tables) -> Examination:
    """Asks the diagnoses that the phases of the steps answer; the others are named, with the reason."""
    phases = phases_alone(frontier, found.on_device, noise_of(tables))
    subject = _SummarySubject(attribution, tables, phases.shares, True, means=_means(found, frontier.numbers))
    answers = ask(
        subject,
        (_ANSWERED.get(diagnosis.id) or replace(diagnosis, cannot_look=lambda _: _NOT_TOLD) for diagnosis in DIAGNOSES),
    )
    return Examination(*answers, phases.shares, phases)


def _communication(subject: Subject) -> list[Finding]:
    if subject.shares.share(Cost.COMM) < MENTION:
        return []
    cost = a_step(subject.shares.cost(Cost.COMM))
    return [
        subject.costing(
            Cost.COMM,
            id="exposed-communication",
            title=f"Exposed communication takes {cost}: even the rank that waits least stands still for it",
            action="Record a profiler window of a few ranks (`diag trace`) to see which collectives, and why.",
            evidence=subject.per_rank("exposed_comm_ns"),
        )
    ]


_COMMUNICATION = replace(exposed_communication.DIAGNOSIS, find=_communication, cannot_look=not_recorded)
_ANSWERED = {
    diagnosis.id: diagnosis
    for diagnosis in (slow_data.DIAGNOSIS, straggler.DIAGNOSIS, checkpoint_stall.DIAGNOSIS, _COMMUNICATION)
}


def _means(found: Summaries, numbers: Sequence[int]) -> dict[str, dict[int, float]]:
    places = np.flatnonzero(np.isin(found.numbers, numbers))
    means = {}
    for field, columns in _FIELDS.items():
        total = sum((found.column(name)[:, places].mean(axis=1) for name in columns), start=np.zeros(len(found.ranks)))
        means[field] = dict(zip(found.ranks, np.round(total / 1000, 3).tolist(), strict=True))
    return means

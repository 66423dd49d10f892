"""Parts of the exposed communication that have a cause of their own: which diagnosis has which nanoseconds.

Each diagnosis claims collectives that no other one claims: gathers of the forward, gathers of the backward, reductions
of all micro-batches but the last, those of the last one. ``exposed_communication`` asks them, and has what is left.
"""

from __future__ import annotations

from msgspec import Struct

from diag.model.steps import Detail, Evidence
from diag.tables.phased import REDUCTIONS, PhasedCall

from .comm_cause import cause_of, phased_of
from .shares import Cost
from .subject import MENTION, Subject

TELLING = 1 << 10  # bytes: a loss or a norm is no part of the model


class Claim(Struct, frozen=True):
    """``part``: of the exposed communication, 0 to 1."""

    id: str
    part: float
    title: str
    action: str
    evidence: tuple[Evidence, ...]


class Calls(Struct, frozen=True):
    """The collectives of the steps that count, and what nothing hid of all of them together."""

    rows: tuple[PhasedCall, ...]
    exposed_ns: int
    rank_steps: int

    def part(self, ns: int) -> float:
        return min(1.0, ns / self.exposed_ns) if self.exposed_ns else 0.0

    def ms_per_step(self, ns: int) -> float:
        """The mean over ranks and steps."""
        return round(ns / max(1, self.rank_steps) / 1e6, 3)


def calls_of(subject: Subject) -> Calls:
    rows = subject.once(phased_of)
    return Calls(rows, sum(row.exposed_ns for row in rows), len({(row.rank, row.step) for row in rows}))


def is_reduction(call: PhasedCall) -> bool:
    """Of gradients."""
    return call.of_data and call.op in REDUCTIONS and call.phase == Detail.BACKWARD and call.bytes >= TELLING


def last_reductions(subject: Subject, op: str | None = None) -> list[PhasedCall]:
    """The reductions of gradients in the last micro-batch that has any; those of one operation, where one is given."""
    rows = [call for call in subject.once(calls_of).rows if op in (None, call.op) and is_reduction(call)]
    last = max((call.micro for call in rows), default=0)
    return [call for call in rows if call.micro == last]


def worth_asking(subject: Subject) -> bool:
    if subject.shares.share(Cost.COMM) < MENTION or not subject.attribution.aligned or subject.phases_alone:
        return False
    return subject.once(cause_of).refinable


def cannot_look(subject: Subject) -> str:
    """Why no part of the communication can be told from the rest; "" where it can."""
    if (reason := not_recorded(subject)) or len(subject.attribution.ranks) < 2:
        return reason or "one rank was recorded, and waiting is not told from transfer"
    if subject.phases_alone or not subject.attribution.aligned:
        return "waiting for other ranks is not told from transfer"
    return ""


def not_recorded(subject: Subject) -> str:
    """Why nothing is known of communication; "" where something is."""
    if subject.tables.world_size == 1:
        return "the run has one rank"
    if not subject.attribution.comm_known:
        return "it runs on the device, and no profiler window was recorded"
    if subject.phases_alone and Cost.COMM not in subject.shares.cost_ns:
        return "no collective was recorded, and the time in them is a part of forward and backward here"
    return ""

"""Ranks of the job and of its process groups: two numberings, equal only where lines show it.

NCCL, torch's process groups and DDP number the members of a group from 0. A line of rank 4 may call it rank 1 of its
group. torch orders the members of a group by their rank in the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diag.ended.model import Culprit
from diag.hang.job import JobLogs
from diag.hang.model import grouped


@dataclass(frozen=True)
class Member:
    """A process that prints its number in a group. ``rank``: in the job, None where the line does not show it."""

    number: int
    rank: int | None


class Numbering:
    """What the members of groups that print one kind of message show about their ranks in the job."""

    def __init__(self, printers: Iterable[Member]) -> None:
        pairs = {(printer.number, printer.rank) for printer in printers if printer.rank is not None}
        self._ranks = grouped((number, rank) for number, rank in pairs if rank is not None)
        self.differs = any(number != rank for number, rank in pairs)  # a group is not the job
        # A member with as many ranks before it as members: these are the same.
        self._equal_up_to = -1 if self.differs else max((number for number, _ in pairs), default=-1)

    def proven(self, number: int, printer: Member) -> int | None:
        """The rank in the job of a member of the printer's group; None where no line shows it."""
        if number == printer.number:
            return printer.rank
        if printer.rank is None:
            return None
        if number <= self._equal_up_to or printer.number == printer.rank > number:
            return number
        after = number > printer.number
        possible = {rank for rank in self._ranks.get(number, ()) if (rank > printer.rank) is after}
        return possible.pop() if len(possible) == 1 else None

    def likely(self, number: int, printer: Member) -> int | None:
        """As ``proven``, or the number itself where no line shows that the two numberings differ."""
        rank = self.proven(number, printer)
        return number if rank is None and not self.differs else rank


def member_culprit(job: JobLogs, number: int, rank: int | None, host: str = "") -> Culprit:
    """The culprit for a member of a group whose name is not known."""
    return job.of_rank(rank, host) if rank is not None else Culprit(peer=f"rank {number} of its group")

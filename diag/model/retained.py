"""Which steps of a run are known, and how well, where its oldest records were removed."""

from __future__ import annotations

from msgspec import Struct


class KeptSpan(Struct, frozen=True):
    """Steps around an incident, from ``first`` to ``last``, whose records were kept. ``why``: as in ``KeptLine``.
    ``begin_ns`` and ``end_ns``: of these steps, by the clock of the rank; None where that is not known."""

    first: int
    last: int
    why: str
    begin_ns: int | None = None
    end_ns: int | None = None


class Retained(Struct, frozen=True):
    """Numbers of steps. All records of the steps from ``first`` to ``last`` are there; of those from ``phases_from``
    on, the phases of each step, and of those from ``sums_from`` on, sums over several; None without any. ``kept``: of
    the steps before ``first``, those around incidents of which all records are there."""

    first: int
    last: int
    phases_from: int | None
    sums_from: int | None
    kept: tuple[KeptSpan, ...] = ()

    @property
    def begin(self) -> int:
        """The first step of which anything is known."""
        return min(number for number in (self.first, self.phases_from, self.sums_from) if number is not None)

    @property
    def steps(self) -> int:
        """The number of steps of which anything is known."""
        return self.last + 1 - self.begin

"""Who said so: the members that programs report as missing, behind or lost, and those that the same reports show to
have come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)  # how a source names members: a rank, or a host


@dataclass(frozen=True, slots=True)
class Report(Generic[N]):
    """``names``: who did not come, by the program that counts; ``came``: who did, or waits, with the member that
    prints the report."""

    names: tuple[N, ...] = ()
    came: tuple[N, ...] = ()


@dataclass(frozen=True)
class Said(Generic[N]):
    """``named``: each once, in the order of the reports; ``waiting``: those that came and that no report names."""

    named: tuple[N, ...]
    waiting: tuple[N, ...]


def who_said_so(reports: Iterable[Report[N]]) -> Said[N]:
    """A member that any report names counts as named, also where another shows it waiting: it came too late."""
    listed = list(reports)
    named = dict.fromkeys(name for report in listed for name in report.names)
    came = dict.fromkeys(name for report in listed for name in report.came if name not in named)
    return Said(tuple(named), tuple(came))

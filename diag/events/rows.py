"""The row of the table: what one process did in one collective."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NewType, TypeVar

JobRank = NewType("JobRank", int)  # in the job
GroupRank = NewType("GroupRank", int)  # in one process group or communicator: another number, unless a line shows it

M = TypeVar("M", bound=int)  # how a source numbers processes: JobRank, GroupRank, or a place in a list of its own


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was read: a line of a file (from 1; 0 for a dump, whose ``text`` names the entry)."""

    path: str
    line: int
    text: str  # as read; the renderer must escape it


class Did(StrEnum):
    LAUNCHED = "launched"  # it called the collective; whether that has ended is unknown
    FINISHED = "finished"
    WAITS = "waits"  # it called the collective, which has not ended on it


@dataclass(frozen=True, slots=True)
class Call:
    """What all members of a group must agree on in one collective. A field that a source does not have, or that may
    differ between members, keeps its default on all of them."""

    op: str = ""
    root: int | None = None
    sizes: Hashable = ()
    types: Hashable = ()


NO_CALL = Call()


@dataclass(frozen=True, slots=True)
class Event(Generic[M]):
    """``number``: of the collective in its group, in the order of the calls."""

    who: M
    number: int
    call: Call = NO_CALL
    did: Did = Did.LAUNCHED
    group: Hashable = ""
    source: Source | None = None

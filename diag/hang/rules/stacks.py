"""Stacks of py-spy and faulthandler: who is in a collective, and who is not."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from diag.hang.case import Case, distinct
from diag.hang.model import Clue, Line, Role, Stack
from diag.hang.signatures.base import NAMES_AN_EFFECT

_FAULTHANDLER = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+?)\s*$')
_PYSPY = re.compile(r"^\s+(?P<name>[\w.<>~ ]+?) \((?P<file>[^():]+):(?P<line>\d+)\)\s*$")
_THREAD = re.compile(r"^\s*(?:Current thread|Thread) (?P<id>0x[0-9a-f]+|\d+)(?P<rest>.*)$")
_COLLECTIVE = ("torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py", "_functional_collectives")
_MOST_FRAMES = 12


@dataclass(frozen=True)
class ThreadStack:
    rank: int
    main: bool
    frames: tuple[str, ...]  # innermost first
    first: Line

    @property
    def in_collective(self) -> bool:
        return any(words in frame for frame in self.frames for words in _COLLECTIVE)


def stacks_of(case: Case) -> tuple[ThreadStack, ...]:
    """The main thread of every rank whose stack was printed, the last one printed."""
    found: dict[int, ThreadStack] = {}
    by_rank: dict[tuple[str, int | None], list[Line]] = defaultdict(list)
    for line in case.logs.lines:
        if line.source == "stack":
            by_rank[line.path, case.rank_of(line)].append(line)
    for (_, rank), lines in by_rank.items():
        if rank is None:
            continue
        threads = _threads(rank, lines)
        mains = [thread for thread in threads if thread.main] or threads[-1:]
        if mains:
            found[rank] = mains[-1]
    return tuple(found[rank] for rank in sorted(found))


def _threads(rank: int, lines: list[Line]) -> list[ThreadStack]:
    found: list[ThreadStack] = []
    begin: Line | None = None
    frames: list[str] = []
    for line in [*lines, None]:
        text = line.text if line is not None else ""
        begins = line is None or _THREAD.match(text) is not None
        if begins and begin is not None and frames:
            # faulthandler prints the main thread last, and calls the current one "Current thread".
            main = '"MainThread"' in begin.text or "Current thread" in begin.text
            found.append(ThreadStack(rank, main, tuple(frames[:_MOST_FRAMES]), begin))
        if begins:
            begin, frames = line, []
            continue
        frame = _FAULTHANDLER.match(text) or _PYSPY.match(text)
        if frame is not None and line is not None:
            begin = begin or line
            frames.append(f"{frame['name'].strip()} ({frame['file']}:{frame['line']})")
    return found


def clues(case: Case) -> list[Clue]:
    """Ranks outside of any collective while most of the others are in one."""
    stacks = case.once(stacks_of)
    inside = [stack for stack in stacks if stack.in_collective]
    outside = [stack for stack in stacks if not stack.in_collective]
    if not inside or not outside or len(outside) > len(inside):
        return []
    note = f"Rank {outside[0].rank} is in {outside[0].frames[0]}, {len(inside)} others are in a collective."
    evidence = tuple(stack.first.evidence for stack in (*outside[:3], inside[0]))
    culprits = distinct([case.of_rank(stack.rank) for stack in outside])
    victims = tuple(stack.rank for stack in inside)
    return [Clue("missing_rank", Role.ROOT, culprits, evidence, NAMES_AN_EFFECT, note, victims)]


def shown(case: Case, culprits: set[int]) -> tuple[Stack, ...]:
    """The stacks of the culprits, and one of those who wait."""
    stacks = case.once(stacks_of)
    guilty = [Stack(s.rank, "culprit", s.frames, s.first.evidence) for s in stacks if s.rank in culprits]
    others = [
        Stack(s.rank, "a typical victim", s.frames, s.first.evidence)
        for s in stacks
        if s.rank not in culprits and s.in_collective
    ]
    return (*guilty[:4], *others[:1])

"""The block that torchrun prints at the end: which rank failed, where, with which exit code."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from diag.hang.case import Case
from diag.hang.model import Culprit, Line
from diag.hang.text.clocks import at_ns

_BEGIN = re.compile(r"Root Cause \(first observed failure\)|^\s*\[\d+\]:\s*$|^Failures:")
_FIELD = re.compile(r"^\s{1,6}(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_RANK = re.compile(r"(\d{1,9})(?: \(local_rank: (\d{1,9})\))?")
_EXIT = re.compile(r"(-?\d{1,9})(?: \(pid: (\d{1,9})\))?")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")
_REACH = 12  # lines of one failure, without its traceback


@dataclass(frozen=True)
class Block:
    """One failure. ``root``: the launcher calls it the first one; it is the first that *it* saw."""

    rank: int | None
    local_rank: int | None
    host: str
    pid: int | None
    exitcode: int | None
    root: bool
    path: str
    first: int
    last: int
    evidence: Line
    time_ns: int | None = None  # when the launcher saw it


def blocks_of(case: Case) -> tuple[Block, ...]:
    """Every failure that a launcher listed, in order."""
    found: list[Block] = []
    fields: dict[str, str] = {}
    lines: list[Line] = []
    root = False
    for line in case.logs.lines:
        text = line.text
        match = _FIELD.match(text)
        new = lines and (line.path != lines[-1].path or line.number - lines[-1].number > _REACH)
        if lines and (new or (match is not None and match["name"] in fields)):
            found += _block(fields, lines, root)
            fields, lines, root = {}, [], root and not new
        if "Root Cause (first observed failure)" in text:
            found += _block(fields, lines, root)
            fields, lines, root = {}, [], True
        elif match is not None:
            fields[match["name"]] = match["value"]
            lines.append(line)
    return tuple(found + _block(fields, lines, root))


def _block(fields: dict[str, str], lines: list[Line], root: bool) -> list[Block]:
    if not lines or not {"exitcode", "rank"} & set(fields):
        return []
    rank, ended = _RANK.match(fields.get("rank", "")), _EXIT.match(fields.get("exitcode", ""))
    evidence = next((line for line in lines if "exitcode" in line.text), lines[0])
    return [
        Block(
            rank=int(rank[1]) if rank else None,
            local_rank=int(rank[2]) if rank and rank[2] else None,
            host=fields.get("host", "").strip().partition(".")[0],
            pid=int(ended[2]) if ended and ended[2] else None,
            exitcode=int(ended[1]) if ended else None,
            root=root,
            path=lines[0].path,
            first=lines[0].number,
            last=lines[-1].number,
            evidence=evidence,
            time_ns=evidence.time_ns if evidence.time_ns is not None else _time(fields.get("time", "")),
        )
    ]


def _time(text: str) -> int | None:
    """``2026-01-01_00:00:00``, in the time zone of its host."""
    match = _TIME.match(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    return at_ns(year, month, day, hour, minute, second, "")


def speaker_of(case: Case, line: Line) -> Culprit:
    """Who printed a line, also where only the launcher knows: by the pid of a process that it saw end, by the local
    rank, and a nameless exception by the only process of that launcher which ended as one with an exception does."""
    found = case.culprit(line)
    if found.rank is not None:
        return found
    rank = _rank_by_launcher(case, line, found.host)
    if rank is None:
        return found
    known = case.of_rank(rank)
    return known if known.host else replace(known, host=found.host)


def _rank_by_launcher(case: Case, line: Line, host: str) -> int | None:
    speaker = line.speaker
    here = [block for block in case.once(blocks_of) if _of_launcher(case, block, line, host)]
    if speaker.pid is not None:
        ranks = {block.rank for block in here if block.pid == speaker.pid and block.rank is not None}
        return ranks.pop() if len(ranks) == 1 else None
    if speaker.local_rank is not None:
        beside = case.once(_ranks_of_local).get((line.path, speaker.local_rank), set())
        numbered = {
            b.rank - b.local_rank + speaker.local_rank for b in here if b.rank is not None and b.local_rank is not None
        }
        ended = [b for b in here if (b.exitcode or 0) > 0 and b.local_rank == speaker.local_rank]
        raised = {b.rank for b in ended if b.rank is not None}
        ranks = beside or numbered if len(beside or numbered) == 1 else raised
        return next(iter(ranks)) if len(ranks) == 1 else None
    if line.source in ("nccl", "kernel", "launcher"):
        return None
    ends = {block.rank for block in here if block.exitcode is not None and block.exitcode > 0}
    return ends.pop() if len(ends) == 1 else None


def _of_launcher(case: Case, block: Block, line: Line, host: str) -> bool:
    """Whether the launcher that printed a block started the process that printed a line."""
    if host and block.host:
        return block.host == host
    return block.path == line.path or (bool(host) and case.host_of_path(block.path) == host)


def _ranks_of_local(case: Case) -> dict[tuple[str, int], set[int]]:
    """By file and local rank the ranks that lines bear beside it."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for line in case.logs.lines:
        if line.speaker.local_rank is not None and line.speaker.rank is not None:
            found[line.path, line.speaker.local_rank].add(line.speaker.rank)
    return found

"""What the dumps say about the cause of a hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diag.hang.model import Clue, Culprit, Evidence, Role, Stack

from .board import Board, lay_out
from .mismatch import Mismatch, find_mismatches
from .record import Dump, Dumps
from .waits import Waits, follow
from .wording import call_text, entry_of, listed, state_of

# -- coverage ----------------------------------------------------------------------------------------------------------
#
# What the dumps cover, a sentence each.


def coverage(board: Board, waits: Waits, dumps: Dumps, found: bool) -> tuple[str, ...]:
    """How many dumps of how many ranks, what they lack, and why there is no cause where there is none."""
    said = [
        f"Flight Recorder dumps of {len(board.dumps)} of {board.world_size} ranks (their number: {board.world_from})."
    ]
    if lost := sorted(rank for rank in {lost.rank for lost in dumps.unreadable} if rank is not None):
        said.append(f"The dumps of {listed(lost)} are empty or cannot be read.")
    if gone := sorted(board.unknown - set(lost)):
        said.append(f"There is no dump of {listed(gone)}.")
    sources = Counter(dump.rank_from for dump in board.dumps.values())
    if sources["the file name"]:
        said.append(f"The rank of {sources['the file name']} dumps is taken from the file name.")
    said += _limits(board)
    if not found:
        said.append(_why_nothing(board, waits))
    return tuple(said)


def _limits(board: Board) -> list[str]:
    said = []
    if cut := [rank for rank, dump in board.dumps.items() if dump.entries and not dump.whole]:
        said.append(f"The recorders of {len(cut)} ranks no longer hold their first entries.")
    if any(dump.backend == "gloo" for dump in board.dumps.values()):
        said.append("gloo records no sends and receives, and marks failed collectives like finished ones.")
    pending = {op.group for ops in board.pending.values() for op in ops}
    if unsure := sorted(pending & board.unsure):
        said.append(
            f"No dump lists the members of {', '.join(f'group {name}' for name in unsure[:5])}: taken from who called."
        )
    return said


def _why_nothing(board: Board, waits: Waits) -> str:
    if not any(board.pending.values()):
        return "No rank waits in a collective: the dumps show no hang."
    if waits.stuck:
        return (
            f"All members have come to {entry_of(board, waits.stuck[0])} with the same call, and it does not finish: "
            "no rank is missing. Look at the devices and the network."
        )
    if waits.silent:
        return f"The waiting ends at ranks without a dump: {listed(waits.silent)}. Their dumps are needed."
    return "Ranks wait, and the dumps do not show for whom."


# -- stacks ------------------------------------------------------------------------------------------------------------
#
# Stacks of the culprits, and of one rank that waits for them, to be read side by side.

_CULPRITS = 8


def stacks_of(board: Board, waits: Waits, clues: Iterable[Clue]) -> tuple[Stack, ...]:
    """Of the culprits of the first clue: where each made its last call. Then of a typical victim: where it waits. A
    dump has no stack of this moment: after its last call a rank has gone on."""
    for clue in clues:
        culprits = [culprit.rank for culprit in clue.culprits if culprit.rank is not None]
        shown = [_culprit_by_stack(board, waits, rank) for rank in culprits[:_CULPRITS] if rank in board.dumps]
        victim = _typical(board, waits, culprits)
        return (*shown, *([_victim(board, victim)] if victim is not None else []))
    return ()


def _culprit_by_stack(board: Board, waits: Waits, rank: int) -> Stack:
    dump = board.dumps[rank]
    where = Evidence(dump.path, 0, f"rank {rank}: {state_of(board, waits, rank)}")
    if not dump.entries:
        what = "hung in Python outside any collective" if dump.last_called else "hung in Python before any collective"
        return Stack(rank, f"culprit: no entries: {what}", (), where)
    op = waits.stopped[rank][0] if rank in waits.stopped else dump.last
    assert op is not None
    return Stack(rank, f"culprit: {entry_of(board, op)}{_without(op.frames)}", op.frames, where)


def _typical(board: Board, waits: Waits, culprits: list[int]) -> int | None:
    """The first rank that waits for a culprit itself, else any that waits."""
    for culprit in culprits:
        for meeting in waits.waited_for.get(culprit, ()):
            for rank in meeting.waiters:
                if rank not in culprits:
                    return rank
    return next((rank for rank, ops in sorted(board.pending.items()) if ops and rank not in culprits), None)


def _victim(board: Board, rank: int) -> Stack:
    op = board.pending[rank][0]
    text = f"waits in {entry_of(board, op)}"
    evidence = Evidence(board.dumps[rank].path, 0, f"rank {rank}: {text}")
    return Stack(rank, f"a typical victim: {text}{_without(op.frames)}", op.frames, evidence)


def _without(frames: tuple[str, ...]) -> str:
    return "" if frames else " (the dump has no stacks)"


_SURE = 0.9


@dataclass(frozen=True)
class FlightFindings:
    """``stacks``: of the culprits, and of one rank that waits for them. ``gaps``: (path, what could not be read)."""

    clues: tuple[Clue, ...]
    stacks: tuple[Stack, ...]
    coverage: tuple[str, ...]
    gaps: tuple[tuple[str, str], ...]


def clues_of(dumps: Dumps, world_size: int | None = None) -> FlightFindings:
    """The causes that the dumps show, the strongest first; none where everything agrees. ``world_size``: where it is
    known from elsewhere, for dumps that do not list the members of their groups (gloo)."""
    if not dumps.dumps:
        text = (f"No Flight Recorder dump could be read: {len(dumps.unreadable)} found.",) if dumps.unreadable else ()
        return FlightFindings((), (), text, dumps.gaps)
    board = lay_out(dumps, world_size)
    waits = follow(board)
    mismatches = find_mismatches(board)
    clues = [_mismatch_clue(board, mismatch) for mismatch in mismatches]
    # Who never came to the disputed call is missing from something else.
    disputed = {rank for mismatch in mismatches if mismatch.pending for rank in mismatch.odd}
    clues += [clue for clue in _waiting_clues(board, waits, dumps) if not disputed & {c.rank for c in clue.culprits}]
    clues.sort(key=lambda clue: -clue.confidence)
    return FlightFindings(
        tuple(clues), stacks_of(board, waits, clues), coverage(board, waits, dumps, bool(clues)), dumps.gaps
    )


def _waiting_clues(board: Board, waits: Waits, dumps: Dumps) -> list[Clue]:
    clues = []
    if waits.roots:
        clues.append(_clue(board, waits, waits.roots, _confidence(board, waits, waits.roots), _roots_note(waits)))
    if waits.silent and (clue := _silent_clue(board, waits, dumps)):
        clues.append(clue)
    if waits.circle and (clue := _circle_clue(board, waits)):
        clues.append(clue)
    if waits.behind:
        note = (
            f"{listed(waits.behind)} did not call what a peer called that waits in the same collectives, so that wait "
            "does not explain it. It may also be the only one that reads a result back there."
        )
        clues.append(_clue(board, waits, waits.behind, 0.35, note))
    return clues


def _confidence(board: Board, waits: Waits, culprits: tuple[int, ...]) -> float:
    """Lower for partial sets, many suspects and a single group."""
    sure = _SURE
    if board.unknown:
        sure *= max(0.4, len(board.dumps) / (len(board.dumps) + len(board.unknown))) ** 0.5
    if len(culprits) > max(2, board.world_size // 8):
        sure *= 0.6
    if len({op.group for ops in board.pending.values() for op in ops}) == 1:
        sure *= 0.95
    if any(meeting.op.group in board.unsure for rank in culprits for meeting in waits.waited_for.get(rank, ())):
        sure *= 0.95
    return round(sure, 2)


def _clue(board: Board, waits: Waits, culprits: tuple[int, ...], confidence: float, note: str) -> Clue:
    shown = culprits[:8]
    return Clue(
        fault_class="missing_rank",
        role=Role.ROOT,
        culprits=tuple(_culprit(board, waits, rank) for rank in culprits),
        evidence=tuple(e for rank in shown for e in (*_own(board, waits, rank), *_waiter(board, waits, rank))),
        confidence=confidence,
        note=note,
        victims=_victims(board, culprits),
        from_dumps=True,
    )


def _victims(board: Board, culprits: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, ops in board.pending.items() if ops and rank not in culprits))


def _culprit(board: Board, waits: Waits, rank: int) -> Culprit:
    dump = board.dumps.get(rank)
    meetings = waits.waited_for.get(rank, ())
    group = board.groups[meetings[0].op.group] if meetings else None
    return Culprit(rank=rank, host=dump.host if dump else "", process_group=(group.desc or group.name) if group else "")


def _own(board: Board, waits: Waits, rank: int) -> tuple[Evidence, ...]:
    dump = board.dumps.get(rank)
    return (Evidence(dump.path, 0, f"rank {rank}: {state_of(board, waits, rank)}"),) if dump else ()


def _waiter(board: Board, waits: Waits, rank: int) -> tuple[Evidence, ...]:
    """Who waits for it, in what."""
    for meeting in waits.waited_for.get(rank, ())[:1]:
        waiter = meeting.waiters[0]
        others = f" and {len(meeting.waiters) - 1} more" if len(meeting.waiters) > 1 else ""
        text = f"rank {waiter}{others}: waits in {entry_of(board, meeting.op)} for rank {rank}"
        return (Evidence(board.dumps[waiter].path, 0, text),)
    return ()


def _roots_note(waits: Waits) -> str:
    parts = []
    if waits.absent:
        itself = "was in no collective itself" if len(waits.absent) == 1 else "were in no collective themselves"
        parts.append(f"{listed(waits.absent)} did not call what others wait in, and {itself}")
    if waits.stopped:
        parts.append(
            f"{listed(waits.stopped)} did not finish collectives that peers in them finished: the device, or the "
            "thread that watches it, stopped"
        )
    return "; ".join(parts) + "."


def _silent_clue(board: Board, waits: Waits, dumps: Dumps) -> Clue | None:
    """Ranks without a dump that others wait for: gone, or their file was not given. Many say nothing."""
    if len(waits.silent) > max(2, board.world_size // 8) or 2 * len(board.dumps) < board.world_size:
        return None
    empty = {lost.rank: lost for lost in dumps.unreadable}
    text = "left a dump that cannot be read" if waits.silent[0] in empty else "left no dump"
    note = f"{listed(waits.silent)} {text}, and others wait for it; all members that left one have come to that call."
    clue = _clue(board, waits, waits.silent, round(0.7 / len(waits.silent) ** 0.5, 2), note)
    lost = tuple(Evidence(empty[r].path, 0, f"rank {r}: {empty[r].why}") for r in waits.silent if r in empty)
    return replace(clue, evidence=(*lost, *clue.evidence))


def _circle_clue(board: Board, waits: Waits) -> Clue | None:
    """Ranks that wait for each other: their calls are not in one order. Where a collective lacks one rank only, that
    rank has left it out or not come to it, and goes first. Receives may be posted ahead: among sends and receives the
    rank whose calls ended first is more likely to stand elsewhere."""
    ring = waits.circle
    shares = {rank: _lacks_only(waits, rank) for rank in ring}
    if max(shares.values()) > 0.5:
        first = max(ring, key=lambda rank: (shares[rank], -rank))
        note = f"{listed(ring)} wait for each other; rank {first} alone keeps the others waiting in a collective."
        return replace(_clue(board, waits, (first,), 0.7, note), fault_class="desync")
    if any(op.p2p for rank in ring for op in board.pending[rank]):
        late = [rank for rank in ring if rank in waits.waited_for]
        if not late:
            return None  # all have called what the others wait in: which of them stands still is not to be seen
        first = min(late, key=lambda rank: (_last_call_ns(board.dumps[rank]), rank))
        note = (
            f"{listed(ring)} wait for each other, in part in sends and receives, which may be posted ahead; "
            f"the calls of rank {first} end first."
        )
        return _clue(board, waits, (first,), 0.3, note)
    note = f"{listed(ring)} wait for each other in different groups: their calls are not in one order."
    return replace(_clue(board, waits, ring, 0.6 if len(ring) <= 4 else 0.4, note), fault_class="desync")


def _lacks_only(waits: Waits, rank: int) -> float:
    """The greatest share of members that wait in a collective of three or more for this rank alone."""
    shares = [
        len(waiting) / (len(waiting) + 1)
        for meeting in waits.meetings
        if not meeting.op.p2p and {*meeting.missing, *meeting.held_up} == {rank} and not meeting.unknown
        for waiting in [set(meeting.waiters) - {rank}]
    ]
    return max(shares, default=0.0)


def _last_call_ns(dump: Dump) -> int:
    return dump.last.created_ns if dump.last else 0


def _mismatch_clue(board: Board, mismatch: Mismatch) -> Clue:
    group = board.groups[mismatch.group]
    calls: dict[str, list[int]] = {}
    for rank, signature in sorted(mismatch.calls.items()):
        calls.setdefault(call_text(signature), []).append(rank)
    said = "; ".join(
        f"{listed(tuple(ranks))}: {text}" for text, ranks in sorted(calls.items(), key=lambda c: len(c[1]))
    )
    note = f"Collective #{mismatch.number} of {group.title} is not the same on all ranks ({said})."
    if mismatch.tied:
        note += " As many call the one as the other: which of them is wrong cannot be told from the dumps."
    elif mismatch.shift:
        what = f"left out {mismatch.shift}" if mismatch.shift > 0 else f"made {-mismatch.shift} too many"
        note += f" {listed(mismatch.odd)} {what}: with that, the later calls agree again."
    elif set(mismatch.odd) == set(mismatch.broken_law):
        size = len(board.members[mismatch.group])
        note += f" What {listed(mismatch.odd)} puts in and out does not fit a group of {size}."
    confidence = (0.5 if mismatch.tied else 0.9) * (1 if mismatch.pending else 0.6)
    if board.unknown:
        confidence *= 0.9
    odd, usual = mismatch.odd, tuple(rank for rank in mismatch.calls if rank not in mismatch.odd)
    return Clue(
        fault_class=mismatch.fault_class,
        role=Role.ROOT,
        culprits=tuple(
            Culprit(rank=rank, host=board.dumps[rank].host, process_group=group.desc or group.name) for rank in odd
        ),
        evidence=tuple(
            Evidence(
                board.dumps[rank].path,
                0,
                f"rank {rank}: #{mismatch.number} of {group.title} is {call_text(mismatch.calls[rank])}",
            )
            for rank in (*odd[:8], *usual[:1])
        ),
        confidence=round(confidence, 2),
        note=note,
        victims=_victims(board, odd),
        from_dumps=True,
    )

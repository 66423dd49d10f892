"""The cause of a hang from the dumps: ranks whose calls do not agree, and ranks that others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from diag.ended.model import Clue, Culprit, Source
from diag.events.differs import By, Difference, Known, who_differs
from diag.events.operations import keeps_law, kind_of
from diag.events.policy import COLLECTIVES
from diag.events.rows import Call, Event, JobRank
from diag.hang.flight.board import Board, CallShape, Dumps, RecordedOp, lay_out
from diag.hang.flight.waits import OpWaits, follow
from diag.hang.model import Stack
from diag.hang.policy import HANG_DUMPS
from diag.words.formatting import begun, counted, spaced

# -- Collectives in which the members of a group do not agree: the first of each group ---------------------------------
#
# Compared is what must be equal for the library: operation, number of elements (not the shape) and types. An
# all-to-all's sizes, a gather's outputs and a scatter's inputs may differ and are not compared.

_Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``pending``: a rank waits in it or in a later one of the group. ``calls``: as recorded, of all ranks that made
    it."""

    group: str
    number: int
    difference: Difference[JobRank]
    pending: bool
    calls: dict[int, CallShape]

    @property
    def odd(self) -> tuple[JobRank, ...]:
        return self.difference.odd


def find_mismatches(board: Board) -> list[Mismatch]:
    """The first mismatch of each group: later ones follow from it."""
    codes: dict[Call, int] = {}
    meaning = np.array([codes.setdefault(_call(shape), len(codes)) for shape in board.shapes] + [-1], dtype=np.int32)
    calls = tuple(codes)
    groups = ((name, members) for name, members in board.members.items() if len(members) > 1)
    mismatches = (_in_group(board, name, members, meaning, calls) for name, members in groups)
    return [mismatch for mismatch in mismatches if mismatch is not None]


def _call(shape: CallShape) -> Call:
    kind = kind_of(shape.op)
    op = shape.op if kind.startswith("coalesced") else kind
    inputs = 0 if kind in ("scatter", "all_to_all") else shape.input_numel
    outputs = 0 if kind in ("gather", "all_to_all") else shape.output_numel
    types = () if kind in ("scatter", "gather") else tuple(sorted(set(shape.dtypes)))
    if kind.endswith("_v") or "gather_v" in kind or "scatter_v" in kind:
        inputs = outputs = 0
    return Call(op, sizes=(inputs, outputs), types=types)


def _in_group(
    board: Board, name: str, members: tuple[int, ...], meaning: _Table, calls: Sequence[Call]
) -> Mismatch | None:
    ranks = [rank for rank in members if rank in board.dumps and name in board.dumps[rank].histories]
    histories = [board.dumps[rank].histories[name] for rank in ranks]
    if len(ranks) < 2:
        return None
    last = max(h.last for h in histories)
    first = max(min(h.first for h in histories), last - HANG_DUMPS.most_numbers_compared)
    table = np.full((len(ranks), last - first + 1), -1, dtype=np.int32)
    for row, history in zip(table, histories, strict=True):
        codes = meaning[np.frombuffer(history.shapes, dtype=np.int32)][max(0, first - history.first) :]
        start = max(0, history.first - first)
        row[start : start + len(codes)] = codes
    most = table.max(axis=0)
    differing = ((table != most) & (table >= 0)).any(axis=0)
    if not differing.any():
        return None
    column = int(differing.argmax())
    rows = {JobRank(rank): row for rank, row in zip(ranks, table, strict=True)}
    met = [Event(rank, first + column, calls[row[column]]) for rank, row in rows.items() if row[column] >= 0]
    made: dict[int, CallShape] = {event.who: _recorded(board, event.who, name, event.number) for event in met}
    lawless = {
        JobRank(rank)
        for rank, shape in made.items()
        if not keeps_law(shape.op, shape.input_numel, shape.output_numel, len(members))
    }

    def since(rank: JobRank) -> list[int | None]:
        codes = rows[rank][column : column + COLLECTIVES.calls_compared_after].tolist()
        return [code if code >= 0 else None for code in codes]

    difference = who_differs(met, known=Known(lawless=lawless), since=since)
    assert difference is not None
    pending = any(
        op.group == name and not op.p2p and op.number >= first + column for ops in board.pending.values() for op in ops
    )
    return Mismatch(name, first + column, difference, pending, made)


def _recorded(board: Board, rank: int, name: str, number: int) -> CallShape:
    history = board.dumps[rank].histories[name]
    return board.shapes[history.shapes[number - history.first]]


# -- Ranks, calls and states in words ----------------------------------------------------------------------------------


def listed(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 3 and 5``, ``ranks 0 to 7``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    spans: list[tuple[int, int]] = []
    for rank in ordered:
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    texts = [t for a, b in spans for t in ([f"{a} to {b}"] if b - a > 1 else [str(r) for r in range(a, b + 1)])]
    if len(texts) > HANG_DUMPS.calls_shown:
        texts = [*texts[: HANG_DUMPS.calls_shown - 1], f"{len(ordered)} in all"]
    return f"ranks {', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else f"ranks {texts[0]}"


def entry_of(board: Board, op: RecordedOp) -> str:
    """``all_reduce #57 of group 35 (TENSOR_MODEL_PARALLEL_GROUP)``."""
    return f"{_title(board, op)} of {board.groups[op.group].title}"


def _title(board: Board, op: RecordedOp) -> str:
    members = board.members.get(op.group, ())
    if op.src is not None and op.dst is not None and max(op.src, op.dst) < len(members):
        return f"{op.name} from rank {members[op.src]} to {members[op.dst]}"
    return op.title


def call_text(shape: CallShape) -> str:
    """``all_reduce of 4096x5120 BFloat16``."""
    sizes = " + ".join("x".join(map(str, size)) or "a scalar" for size in shape.input_sizes[:3])
    if len(shape.input_sizes) > 3:
        sizes += f" + {len(shape.input_sizes) - 3} more"
    return " ".join(filter(None, (shape.op, sizes and f"of {sizes}", "/".join(sorted(set(shape.dtypes))))))


def state_of(board: Board, waits: OpWaits, rank: JobRank) -> str:
    """A rank's last call, from its own dump."""
    dump = board.dumps[rank]
    if rank in waits.stopped:
        first = waits.stopped[rank][0]
        return f"did not finish {entry_of(board, first)}, which its peers finished"
    if not dump.entries:
        called = ", ".join(f"#{number} of group {name}" for name, number in list(dump.last_called.items())[:3])
        if called:
            return f"no entries pending: hung in Python, outside any collective (last called: {called})"
        return "no entries: hung in Python before any collective"
    if dump.last is None:
        return "no entries that can be read"
    state = "finished" if not any(op.record_id == dump.last.record_id for op in board.pending[rank]) else "pending"
    return f"last call: {entry_of(board, dump.last)}, {state}"


# -- Coverage, a sentence each -----------------------------------------------------------------------------------------


def coverage(board: Board, waits: OpWaits, dumps: Dumps, has_cause: bool) -> tuple[str, ...]:
    """How many ranks have a dump, what the dumps lack, and why no cause is found."""
    sentences = [
        f"Flight Recorder dumps of {len(board.dumps)} of {board.world_size} ranks (number of ranks "
        f"from {board.world_from})."
    ]
    if lost := sorted(rank for rank in {lost.rank for lost in dumps.unreadable} if rank is not None):
        sentences.append(f"The dumps of {listed(lost)} are empty or cannot be read.")
    if gone := sorted(board.unknown - set(lost)):
        sentences.append(f"There is no dump of {listed(gone)}.")
    sources = Counter(dump.rank_from for dump in board.dumps.values())
    if sources["the file name"]:
        sentences.append(
            f"The rank of {spaced(counted(sources['the file name'], 'dump'))} is taken from the file name."
        )
    sentences += _limits(board)
    if not has_cause:
        sentences.append(_why_nothing(board, waits))
    return tuple(sentences)


def _limits(board: Board) -> list[str]:
    sentences = []
    if cut := [rank for rank, dump in board.dumps.items() if dump.entries and not dump.whole]:
        recorders = (
            "recorder of 1 rank no longer holds its"
            if len(cut) == 1
            else (f"recorders of {len(cut)} ranks no longer hold their")
        )
        sentences.append(f"The {recorders} first entries.")
    if any(dump.backend == "gloo" for dump in board.dumps.values()):
        sentences.append("gloo records no sends and receives, and marks failed collectives like finished ones.")
    pending = {op.group for ops in board.pending.values() for op in ops}
    if unsure := sorted(pending & board.unsure):
        sentences.append(
            f"No dump lists the members of {', '.join(f'group {name}' for name in unsure[:5])}: taken from the ranks "
            "that called."
        )
    return sentences


def _why_nothing(board: Board, waits: OpWaits) -> str:
    if not any(board.pending.values()):
        return "No rank waits in a collective: the dumps show no hang."
    if waits.stuck and waits.stuck[0].group in board.unsure:  # a rank without a dump may be one of them
        return (
            f"All ranks whose dumps are here, and that are known to be in the group, called "
            f"{entry_of(board, waits.stuck[0])} with the same arguments, and it does not finish."
        )
    if waits.stuck:
        return (
            f"All members called {entry_of(board, waits.stuck[0])} with the same arguments, and it does not finish: "
            "no rank is missing. Look at the devices and the network."
        )
    if waits.silent:
        return f"The waiting ends at ranks without a dump: {listed(waits.silent)}. Their dumps are needed."
    return "Ranks wait, and the dumps do not show for whom."


def stacks_of(board: Board, waits: OpWaits, clues: Iterable[Clue]) -> tuple[Stack, ...]:
    """The stacks of the first clue's culprits at their last call, and of a typical victim where it waits. A dump has no
    stack of the hang itself: after its last call a rank has gone on."""
    for clue in clues:
        culprits = [JobRank(culprit.rank) for culprit in clue.culprits if culprit.rank is not None]
        shown = [
            _culprit_by_stack(board, waits, rank)
            for rank in culprits[: HANG_DUMPS.culprits_named]
            if rank in board.dumps
        ]
        victim = _typical(board, waits, culprits)
        return (*shown, *([_victim(board, victim)] if victim is not None else []))
    return ()


def _culprit_by_stack(board: Board, waits: OpWaits, rank: JobRank) -> Stack:
    dump = board.dumps[rank]
    where = Source(dump.path, 0, f"rank {rank}: {state_of(board, waits, rank)}")
    if not dump.entries:
        state = "hung in Python outside any collective" if dump.last_called else "hung in Python before any collective"
        return Stack(rank, f"culprit: no entries: {state}", (), where)
    op = waits.stopped[rank][0] if rank in waits.stopped else dump.last
    assert op is not None
    then = "" if rank in waits.stopped or op in dump.pending else ", when it made its last call, not where it is now"
    return Stack(rank, f"culprit{then}: {entry_of(board, op)}{_without(op.frames)}", op.frames, where)


def _typical(board: Board, waits: OpWaits, culprits: list[JobRank]) -> JobRank | None:
    """The first rank that waits for a culprit itself, else any that waits."""
    for culprit in culprits:
        for pending_call in waits.waited_for.get(culprit, ()):
            for rank in pending_call.waiters:
                if rank not in culprits:
                    return rank
    return next((JobRank(r) for r, ops in sorted(board.pending.items()) if ops and r not in culprits), None)


def _victim(board: Board, rank: int) -> Stack:
    op = board.pending[rank][0]
    text = f"waits in {entry_of(board, op)}"
    evidence = Source(board.dumps[rank].path, 0, f"rank {rank}: {text}")
    return Stack(rank, f"a typical victim: {text}{_without(op.frames)}", op.frames, evidence)


def _without(frames: tuple[str, ...]) -> str:
    return "" if frames else " (the dump has no stacks)"


@dataclass(frozen=True)
class FlightFindings:
    """``stacks``: of the culprits, and of one rank that waits for them. ``gaps``: (path, what could not be read)."""

    clues: tuple[Clue, ...] = ()
    stacks: tuple[Stack, ...] = ()
    coverage: tuple[str, ...] = ()
    gaps: tuple[tuple[str, str], ...] = ()


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
    # Clues for other ranks stay: a rank that never came to the disputed call is missing for another reason.
    disputed = {rank for mismatch in mismatches if mismatch.pending for rank in mismatch.odd}
    clues += [clue for clue in _waiting_clues(board, waits, dumps) if not disputed & {c.rank for c in clue.culprits}]
    clues.sort(key=lambda clue: -clue.confidence)
    return FlightFindings(
        tuple(clues), stacks_of(board, waits, clues), coverage(board, waits, dumps, bool(clues)), dumps.gaps
    )


def _waiting_clues(board: Board, waits: OpWaits, dumps: Dumps) -> list[Clue]:
    clues = []
    if waits.roots:
        clues.append(_clue(board, waits, waits.roots, _confidence(board, waits, waits.roots), _roots_note(waits)))
    if waits.silent and (clue := _silent_clue(board, waits, dumps)):
        clues.append(clue)
    if waits.circle and (clue := _circle_clue(board, waits)):
        clues.append(clue)
    if waits.late:
        note = (
            f"{begun(listed(waits.late))} did not make a call that was made by a peer waiting in the same "
            "collectives, so waiting there does not explain it. It may also be the only rank that reads a result back "
            "there."
        )
        clues.append(_clue(board, waits, waits.late, 0.35, note))
    return clues


def _confidence(board: Board, waits: OpWaits, culprits: tuple[JobRank, ...]) -> float:
    """Lower for partial sets, many suspects and a single group."""
    confidence = HANG_DUMPS.rank_behind
    if board.unknown:
        confidence *= max(0.4, len(board.dumps) / (len(board.dumps) + len(board.unknown))) ** 0.5
    if len(culprits) > max(2, board.world_size // 8):
        confidence *= 0.6
    if len({op.group for ops in board.pending.values() for op in ops}) == 1:
        confidence *= 0.95
    if any(
        pending_call.op.group in board.unsure for rank in culprits for pending_call in waits.waited_for.get(rank, ())
    ):
        confidence *= 0.95
    return round(confidence, 2)


def _clue(board: Board, waits: OpWaits, culprits: tuple[JobRank, ...], confidence: float, note: str) -> Clue:
    shown = culprits[:8]
    return Clue(
        fault_class="missing_rank",
        culprits=tuple(_culprit(board, waits, rank) for rank in culprits),
        evidence=tuple(
            e for rank in shown for e in (*_state_evidence(board, waits, rank), *_waiter(board, waits, rank))
        ),
        confidence=confidence,
        note=note,
        victims=_victims(board, culprits),
        from_dumps=True,
    )


def _victims(board: Board, culprits: tuple[JobRank, ...]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, ops in board.pending.items() if ops and rank not in culprits))


def _culprit(board: Board, waits: OpWaits, rank: JobRank) -> Culprit:
    dump = board.dumps.get(rank)
    pending_calls = waits.waited_for.get(rank, ())
    group = board.groups[pending_calls[0].op.group] if pending_calls else None
    return Culprit(rank=rank, host=dump.host if dump else "", process_group=(group.desc or group.name) if group else "")


def _state_evidence(board: Board, waits: OpWaits, rank: JobRank) -> tuple[Source, ...]:
    dump = board.dumps.get(rank)
    return (Source(dump.path, 0, f"rank {rank}: {state_of(board, waits, rank)}"),) if dump else ()


def _waiter(board: Board, waits: OpWaits, rank: JobRank) -> tuple[Source, ...]:
    """Evidence of a rank that waits for this one."""
    for pending_call in waits.waited_for.get(rank, ())[:1]:
        waiters = [waiter for waiter in pending_call.waiters if waiter != rank]
        others = f" and {len(waiters) - 1} more" if len(waiters) > 1 else ""
        text = f"rank {waiters[0]}{others}: waits in {entry_of(board, pending_call.op)} for rank {rank}"
        return (Source(board.dumps[waiters[0]].path, 0, text),)
    return ()


def _roots_note(waits: OpWaits) -> str:
    parts = []
    if waits.absent:
        itself = "was in no collective itself" if len(waits.absent) == 1 else "were in no collective themselves"
        parts.append(f"others wait in it, and {listed(waits.absent)} {itself}")
    if waits.stopped:
        parts.append(
            f"{listed(waits.stopped)} did not finish collectives that peers in them finished: the device, or the "
            "thread that watches it, stopped"
        )
    return begun("; ".join(parts)) + "."


def _silent_clue(board: Board, waits: OpWaits, dumps: Dumps) -> Clue | None:
    """A clue for ranks without a dump that others wait for. None where many lack one: their dumps were not
    collected."""
    if len(waits.silent) > max(2, board.world_size // 8) or 2 * len(board.dumps) < board.world_size:
        return None
    empty = {lost.rank: lost for lost in dumps.unreadable}
    text = "left a dump that cannot be read" if waits.silent[0] in empty else "left no dump"
    note = f"{begun(listed(waits.silent))} {text}, and others wait; all members with a dump have made that call."
    clue = _clue(board, waits, waits.silent, round(0.7 / len(waits.silent) ** 0.5, 2), note)
    lost = tuple(Source(empty[r].path, 0, f"rank {r}: {empty[r].why}") for r in waits.silent if r in empty)
    return replace(clue, evidence=(*lost, *clue.evidence))


def _circle_clue(board: Board, waits: OpWaits) -> Clue | None:
    """A clue for ranks that wait for each other. Where a collective lacks one rank only, that rank has left it out.
    Receives may be posted ahead: among sends and receives the rank whose calls ended first is the likelier culprit."""
    ring = waits.circle
    shares = {rank: _lacks_only(waits, rank) for rank in ring}
    if max(shares.values()) > 0.5:
        first = max(ring, key=lambda rank: (shares[rank], -rank))
        note = (
            f"{begun(listed(ring))} wait for each other; rank {first} alone keeps the others waiting in a collective."
        )
        return replace(_clue(board, waits, (first,), 0.7, note), fault_class="desync")
    if any(op.p2p for rank in ring for op in board.pending[rank]):
        late = [rank for rank in ring if rank in waits.waited_for]
        if not late:
            return None  # all have called what the others wait in: the dumps do not show which of them stalls
        first = min(late, key=lambda rank: (last.created_ns if (last := board.dumps[rank].last) else 0, rank))
        note = (
            f"{begun(listed(ring))} wait for each other, in part in sends and receives, which may be posted ahead; "
            f"the calls of rank {first} end first."
        )
        return _clue(board, waits, (first,), 0.3, note)
    note = f"{begun(listed(ring))} wait for each other in different groups: their calls are in different orders."
    return replace(_clue(board, waits, ring, 0.6 if len(ring) <= 4 else 0.4, note), fault_class="desync")


def _lacks_only(waits: OpWaits, rank: JobRank) -> float:
    """The greatest share of members that wait in a collective of three or more for this rank alone."""
    shares = [
        len(waiting) / (len(waiting) + 1)
        for pending_call in waits.pending_calls
        if not pending_call.op.p2p
        and {*pending_call.missing, *pending_call.held_up} == {rank}
        and not pending_call.unknown
        for waiting in [set(pending_call.waiters) - {rank}]
    ]
    return max(shares, default=0.0)


def _mismatch_clue(board: Board, mismatch: Mismatch) -> Clue:
    group = board.groups[mismatch.group]
    calls: dict[str, list[int]] = {}
    for rank, shape in sorted(mismatch.calls.items()):
        calls.setdefault(call_text(shape), []).append(rank)
    calls_text = "; ".join(
        f"{listed(tuple(ranks))}: {text}" for text, ranks in sorted(calls.items(), key=lambda c: len(c[1]))
    )
    note = f"Collective #{mismatch.number} of {group.title} is not the same on all ranks ({calls_text})."
    difference = mismatch.difference
    if difference.open:
        note += " Equally many ranks make either call: the dumps do not show which one is wrong."
    elif difference.shift:
        did = f"left out {difference.shift}" if difference.shift > 0 else f"made {-difference.shift} too many"
        note += f" {begun(listed(mismatch.odd))} {did}: with that, the later calls agree again."
    elif difference.by is By.LAW:
        size = len(board.members[mismatch.group])
        note += f" The input and output sizes of {listed(mismatch.odd)} do not fit a group of {size}."
    confidence = difference.confidence * (1 if mismatch.pending else 0.6)
    if board.unknown:
        confidence *= 0.9
    odd, usual = mismatch.odd, tuple(rank for rank in mismatch.calls if rank not in mismatch.odd)
    return Clue(
        fault_class=difference.fault_class,
        culprits=tuple(
            Culprit(rank=rank, host=board.dumps[rank].host, process_group=group.desc or group.name) for rank in odd
        ),
        evidence=tuple(
            Source(
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

"""A training that stands still, by the heartbeats that its ranks sent when they were asked where they are."""

from __future__ import annotations

from collections.abc import Mapping

from diag.collectors.records import CHECKPOINT, EVALUATION, HANG
from diag.hang.model import Clue, Evidence, Role
from diag.hang.rundir.read import Rank, Rundir
from diag.words.formatting import listing, spaced

_CLASSES = {CHECKPOINT: "slow_rank_checkpoint", EVALUATION: "slow_rank_eval"}
_SURE = 0.9
_SILENT = 0.7  # a process that does not answer: stopped, swapping, or the interpreter's lock is held


def clues(run: Rundir) -> list[Clue]:
    """Who is elsewhere while others wait in a collective."""
    if run.asked is None or run.asked[1] != HANG:
        return []
    number = run.asked[0]
    silent = {rank for rank, one in run.ranks.items() if _is_silent(one, number)}
    waiting = {rank for rank, one in run.ranks.items() if rank not in silent and _waits(one)}
    away = {rank for rank in run.ranks if rank not in waiting}
    if not waiting or not away:
        return []
    needed = _waited_for(run.ranks, waiting) & away or away
    by_class: dict[str, list[int]] = {}
    for rank in sorted(needed):
        by_class.setdefault(_class(run.ranks[rank]), []).append(rank)
    victims = tuple(sorted(waiting))
    return [
        Clue(
            fault_class=fault,
            role=Role.ROOT,
            culprits=tuple(run.ranks[rank].culprit for rank in ranks),
            evidence=(*(_evidence(run.ranks[rank]) for rank in ranks[:4]), _evidence(run.ranks[victims[0]])),
            confidence=_SILENT if ranks[0] in silent else _SURE,
            note=_note(run.ranks, ranks[0], victims, ranks[0] in silent),
            victims=victims,
        )
        for fault, ranks in by_class.items()
    ]


def _is_silent(one: Rank, number: int) -> bool:
    """It had a heartbeat and did not answer; one that failed or is done has its last word there."""
    return one.beat is not None and one.answered < number and not one.beat.done and not one.beat.failed


def _waits(one: Rank) -> bool:
    """In a collective; or it was until the collective timed out."""
    if one.beat is None:
        return False
    return "imed out" in one.error if one.beat.failed else one.beat.in_collective


def _waited_for(ranks: Mapping[int, Rank], waiting: set[int]) -> set[int]:
    """Those that have not called what others wait in; of these, that wait elsewhere, those that they wait for; ..."""
    reached: set[int] = set()
    todo = sorted(waiting)
    while todo:
        one = ranks[todo.pop()]
        if one.beat is None:
            continue
        finished = dict(one.beat.finished)
        for group, number in one.beat.started:
            if number <= finished.get(group, -1):
                continue
            for member in one.groups.get(group, ()):
                other = ranks.get(member)
                if other is None or member in reached:
                    continue
                if other.beat is None or dict(other.beat.started).get(group, -1) < number:
                    reached.add(member)
                    todo.append(member)
    return reached


def _class(one: Rank) -> str:
    return _CLASSES.get(_phase(one), "missing_rank")


def _phase(one: Rank) -> str:
    return (one.failed_in or one.beat.phase) if one.beat is not None else "setup"


def _note(ranks: Mapping[int, Rank], rank: int, victims: tuple[int, ...], silent: bool) -> str:
    one = ranks[rank]
    waiting = spaced(listing(victims))
    wait = "waits" if len(victims) == 1 else "wait"
    if silent:
        return (
            f"Rank {rank} did not answer while {waiting} {wait} in a collective: its process is stopped or swapping, "
            "or a thread keeps the interpreter's lock"
        )
    if one.beat is None:
        return f"Rank {rank} has sent no heartbeat, {waiting} {wait} in a collective"
    if one.beat.done:
        return f"Rank {rank} had finished its training, {waiting} {wait} in a collective that it did not call"
    seconds = (one.beat_ns - one.beat.phase_since_ns) / 1e9 if one.beat.phase_since_ns else 0.0
    since = f", for {seconds:.0f} s" if seconds >= 1 else ""
    return f"Rank {rank} is in its {_phase(one)} phase{since}, and in no collective; {waiting} {wait} in one"


def _evidence(one: Rank) -> Evidence:
    beat = one.beat
    if beat is None:
        return Evidence(str(one.folder), 0, f"rank {one.culprit.rank}: no heartbeat.json")
    last = [f"#{number} of group {group} called" for group, number in beat.started]
    last += [f"#{number} of group {group} finished" for group, number in beat.finished]
    text = f"rank {one.culprit.rank}: step {beat.step}, phase {beat.phase}, {', '.join(last) or 'no collective yet'}"
    return Evidence(str(one.folder / "heartbeat.json"), 0, text)

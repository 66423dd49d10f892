"""One answer for a training that its launcher restarted: why it failed at first, and how it went on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diag.hang.model import Triage

_OPEN = ("undetermined", "healthy", "cascade_store_lost")  # name no cause
_MOST_EVIDENCE = 2


def reported(attempts: Sequence[Triage | None]) -> int:
    """The attempt to report: the first whose cause is known, else the first with a guess, else the first that left
    anything. ``None``: of an attempt that left nothing to read. ValueError where all are."""
    there = [number for number, found in enumerate(attempts) if found is not None]
    if not there:
        raise ValueError("no attempt left anything")

    def rank(number: int) -> tuple[int, int]:
        found = attempts[number]
        assert found is not None
        return (0 if found.fault_class not in _OPEN else 1 if found.guesses else 2), number

    return min(there, key=rank)


def with_others(attempts: Sequence[Triage | None]) -> Triage:
    """The answer of the attempt to report, with what the others were. ValueError as above."""
    chosen = reported(attempts)
    found = attempts[chosen]
    assert found is not None
    sentences = [_before(attempts[:chosen])] if chosen else []
    evidence = list(found.evidence)
    again: list[int] = []
    for number, other in enumerate(attempts[chosen + 1 :], chosen + 1):
        if other is not None and _is_same(other, found):
            again.append(number)
        else:
            sentences.append(_after(number, other))
        evidence += other.evidence[:_MOST_EVIDENCE] if other is not None and other.culprits else ()
    if again:
        sentences.insert(bool(chosen), f"After {_restarts(again)} it failed again, in the same way.")
    first = found.headline if found.headline.endswith((".", "!")) else f"{found.headline}."
    return replace(found, headline=" ".join((first, *sentences)), evidence=tuple(dict.fromkeys(evidence)))


def _is_same(other: Triage, found: Triage) -> bool:
    """The same fault of the same ranks, in the same words: one attempt may only have left more about how it ended."""
    ranks = [[culprit.rank for culprit in one.culprits] for one in (other, found)]
    short, long = sorted((one.headline.rstrip(".") for one in (other, found)), key=len)
    return other.fault_class == found.fault_class and ranks[0] == ranks[1] and long.startswith(short)


def _before(attempts: Sequence[Triage | None]) -> str:
    words = "the first attempt" if len(attempts) == 1 else f"the first {len(attempts)} attempts"
    which = "the first restart" if len(attempts) == 1 else f"restart {len(attempts)}"
    return f"That was after {which}: the records of {words} name no cause."


def _after(number: int, other: Triage | None) -> str:
    if other is None:
        return f"After restart {number} it left nothing to read."
    if other.fault_class == "healthy":
        return f"After restart {number}: {other.headline}"
    if other.fault_class in _OPEN:
        return f"After restart {number} no cause is known: {other.headline}"
    return f"After restart {number} it failed in another way: {other.headline}"


def _restarts(numbers: Sequence[int]) -> str:
    return f"restart{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"

"""A triage in words: who, and sentences with what is known of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diag.hang.model import Clue, Culprit, Guess
from diag.words.formatting import listing, spaced

if TYPE_CHECKING:
    from diag.hang.signatures.base import FaultClass

_MOST = 8


def who(culprits: Sequence[Culprit]) -> str:
    """``rank 3 on gpu004 (GPU 1)``, ``ranks 0, 1 on gpu004``, ``host gpu004``; "" for nobody."""
    if len(culprits) == 1:
        return _one(culprits[0])
    links = {frozenset((c.host or "", c.peer)) for c in culprits if c.peer and c.host}
    if len(links) == 1 and len(culprits) == 2:
        return "the link between " + " and ".join(sorted(next(iter(links))))
    ranks = sorted({c.rank for c in culprits if c.rank is not None})
    hosts = list(dict.fromkeys(c.host for c in culprits if c.host))
    if ranks and len(ranks) == len(culprits):
        where = f" on {', '.join(hosts[:_MOST])}" if hosts else ""
        return spaced(listing(ranks)) + where
    if hosts:
        more = f" and {len(hosts) - _MOST} more" if len(hosts) > _MOST else ""
        return f"host{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:_MOST])}{more}"
    return ", ".join(dict.fromkeys(_one(c) for c in culprits if _one(c)))


def _one(culprit: Culprit) -> str:
    parts = [f"GPU {culprit.gpu}"] if culprit.gpu is not None else []
    parts += [culprit.bus_id if parts else f"GPU {culprit.bus_id}"] if culprit.bus_id else []
    parts += [f"adapter {culprit.nic}"] if culprit.nic else []
    device = ", ".join(parts)
    beside = f" ({device})" if device else ""
    if culprit.rank is not None:
        return f"rank {culprit.rank}" + (f" on {culprit.host}" if culprit.host else "") + beside
    if culprit.host:
        return f"host {culprit.host}{beside}"
    return culprit.peer or device


def headline(fault_class: FaultClass, clue: Clue) -> str:
    """The class, who, and what was seen, in one or two sentences."""
    title = fault_class.title[0].upper() + fault_class.title[1:]
    name = who([replace(c, peer=c.peer) for c in clue.culprits])
    note = clue.note.rstrip(".")
    return f"{title}{f': {name}' if name else ''}." + (f" {note}." if note else "")


_NAMES_AN_EXCEPTION = re.compile(r"\brais(?:ed|ing) [A-Z]")


def steps(fault_class: FaultClass, culprits: Sequence[Culprit], note: str = "") -> tuple[str, ...]:
    """What to do next, with the names filled in. ``note``: what was seen, in a sentence: what it names already is not
    to be looked for."""
    ranks = sorted({c.rank for c in culprits if c.rank is not None})
    hosts = list(dict.fromkeys(c.host for c in culprits if c.host))
    known = {
        "who": who(culprits) or "the rank that differs",
        "where": who(culprits) or "the host of the process that printed it",
        "host": ", ".join(hosts[:_MOST]) or "the host of the process that printed it",
        "there": ", ".join(hosts[:_MOST]) or "its host",
        "rank_words": spaced(listing(ranks)) if ranks else "the rank at fault",
    }
    unnamed = () if _NAMES_AN_EXCEPTION.search(note) else fault_class.if_unnamed
    return tuple(step.format_map(known) for step in (*fault_class.next_steps, *unnamed))


def guess_words(guess: Guess) -> str:
    """``missing_rank, rank 3 on node1, 30%: It did not ..``"""
    name = who(guess.culprits)
    return f"{guess.fault_class}{f', {name}' if name else ''}, {guess.confidence:.0%}: {guess.note}"

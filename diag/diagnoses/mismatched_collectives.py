"""Ranks that reduce or gather tensors of different sizes in what the library counts as one collective: a bug that gives
wrong sums or a hang, not a slow step."""

from __future__ import annotations

from collections import Counter

import numpy as np

from diag.events.vote import vote
from diag.model.axes import group_words
from diag.model.query import By, Query
from diag.model.steps import Evidence, Finding, MatchedCollective, Severity
from diag.words import sentences

from .subject import Diagnosis, Subject, ranks_text

# All ranks pass tensors of one size to these. An all-to-all, a send, a scatter may differ from rank to rank.
_EQUAL_SIZES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})


def find(subject: Subject) -> list[Finding]:
    """At most one finding. Only collectives that the library numbered are compared: where they are matched by counting,
    a call that is missing from a trace would look the same."""
    every = subject.attribution.collectives
    known = np.where(every.size > 0, every.size, np.iinfo(np.int64).max)
    differ = every.by(every.size, np.maximum) > every.by(known, np.minimum)
    compared = every.take(every.with_op(*_EQUAL_SIZES) & ~every.inferred & differ)
    culprits = {c.key: different for c in compared if (different := _culprits(c))}
    if not culprits:
        return []
    ranks = tuple(sorted({rank for sizes in culprits.values() for rank in sizes}))
    (group, number, op), first = next(iter(culprits.items()))
    members = next(c.ranks for c in compared if c.key == (group, number, op))
    axis = subject.attribution.axes.of(members) if subject.attribution.axes.several else None
    title = sentences.SIZES_DIFFER(
        len(culprits),
        calls=len(culprits),
        ranks=ranks_text(ranks),
        group=sentences.OF_THE_GROUP(group=group_words(axis, members)) if axis is not None else "",
    )
    return [
        Finding(
            id="mismatched-collectives",
            title=title,
            severity=Severity.CRITICAL,
            confidence=0.9,
            ranks=ranks,
            evidence=(
                Evidence(
                    "with different sizes",
                    float(len(culprits)),
                    "collectives",
                    Query(
                        "meetings",
                        {"sizes_differ": True, "inferred": False, "op": sorted(_EQUAL_SIZES)},
                        by=By.COUNT,
                    ),
                ),
                *(
                    Evidence(
                        f"{op} {number} of group {group or '?'}, rank {rank}",
                        float(size),
                        "bytes",
                        Query("meetings", {"group": group, "number": number}),
                    )
                    for rank, size in sorted(first.items())
                ),
            ),
            action="Compare the shapes that the ranks pass there: data-dependent shapes, an uneven last batch, "
            "parameters that one rank does not use.",
        )
    ]


def _culprits(collective: MatchedCollective) -> dict[int, int]:
    """Bytes by rank, for ranks that differ from most of the others; empty where all agree or too few are known."""
    if len({*collective.sizes} - {0}) < 2:
        return {}
    known = {rank: size for rank, size in zip(collective.ranks, collective.sizes, strict=True) if size}
    found = vote(Counter(known.values()))
    return {rank: size for rank, size in known.items() if size != found.usual or not found.clear}


DIAGNOSIS = Diagnosis(
    find,
    needs="sequence numbers of the library in the collectives of two ranks.",
    means={
        "mismatched-collectives": (
            "Ranks pass different sizes to one collective: the result is wrong, or the job hangs."
        ),
    },
)

"""Pauses of Python's garbage collector on the critical path."""

from __future__ import annotations

from diag.model.steps import Finding

from .costs import Cost
from .subject import Column, Diagnosis, Subject, in_ms, mean_ns


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    ranks = shares.at_fault(Cost.GC)
    paused = mean_ns(subject.charged(Cost.GC, ranks))
    return [
        subject.costing(
            Cost.GC,
            id="gc-pause",
            title=f"Python's garbage collector stops the training: {in_ms(paused)} {subject.per}",
            action="Call gc.freeze() after setting up, then gc.disable(), and gc.collect() every few hundred steps on "
            "all ranks together.",
            ranks=ranks,
        )
    ]


DIAGNOSIS = Diagnosis(
    "garbage-collection",
    "garbage collection pauses",
    find,
    reads=(Column.PIECES,),
    costs=(Cost.GC,),
    needs="pauses of the garbage collector in the records or in a trace.",
    means={
        "gc-pause": "Python's garbage collector stops the training.",
    },
)

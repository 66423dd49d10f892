"""Pauses of Python's garbage collector on the critical path."""

from __future__ import annotations

from diag.words.sentences import Sentence

from .costs import Cost
from .rules import rule

DIAGNOSIS = rule(
    Cost.GC,
    id="gc-pause",
    title=Sentence("Python's garbage collector stops the training: {cost}"),
    action="Call gc.freeze() after setting up, then gc.disable(), and gc.collect() every few hundred steps on all "
    "ranks together.",
    needs="pauses of the garbage collector in the records or in a trace.",
    means="Python's garbage collector stops the training.",
)

"""A diagnosis that is a declaration: one cost, one title, one remedy. What needs reasoning is a function instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from diag.model.steps import Evidence, Finding
from diag.words.sentences import OneOrMany, Sentence

from .costs import Cost
from .subject import Column, Diagnosis, Subject


def rule(
    cost: Cost,
    *,
    id: str,
    question: str,
    title: Sentence | OneOrMany,
    action: str | Callable[[Subject], str],
    needs: str,
    means: str,
    finding: str = "",
    reads: tuple[Column, ...] = (),
    evidence: Callable[[Subject], Iterable[Evidence]] = lambda _: (),
    cannot_look: Callable[[Subject], str] = lambda _: "",
) -> Diagnosis:
    """The diagnosis of a cost that is worth a mention. ``title`` has the field ``cost``; of two forms, the first is for
    a run of one rank. The finding has the id ``finding``, by default that of the diagnosis, and names the ranks that
    others wait for because of the cost."""
    name = finding or id

    def find(subject: Subject) -> list[Finding]:
        ranks = subject.shares.at_fault(cost)
        form = title if isinstance(title, Sentence) else title.one if len(subject.shares.ranks) == 1 else title.many
        printed = form(cost=subject.each(subject.charged(cost, ranks)))
        advised = action if isinstance(action, str) else action(subject)
        return [subject.costing(cost, name, printed, advised, evidence(subject), ranks)]

    return Diagnosis(id, question, find, cannot_look, reads=reads, costs=(cost,), needs=needs, means={name: means})

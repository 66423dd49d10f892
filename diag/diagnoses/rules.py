"""A diagnosis that is a declaration: one cost, one title, one remedy. What needs reasoning is a function instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from diag.model.steps import Evidence, Finding
from diag.words.sentences import OneOrMany, Sentence

from .costs import Cost
from .subject import Diagnosis, Subject


def rule(
    cost: Cost,
    *,
    id: str,
    title: Sentence | OneOrMany,
    action: str | Callable[[Subject], str],
    needs: str,
    means: str,
    evidence: Callable[[Subject], Iterable[Evidence]] = lambda _: (),
) -> Diagnosis:
    """The diagnosis of a cost that is worth a mention. ``title`` has the field ``cost``; of two forms, the first is for
    a run of one rank. The finding has the id ``id``, and names the ranks that others wait for because of the cost."""

    def find(subject: Subject) -> list[Finding]:
        ranks = subject.shares.at_fault(cost)
        form = title if isinstance(title, Sentence) else title.one if len(subject.shares.ranks) == 1 else title.many
        printed = form(cost=subject.each(subject.charged(cost, ranks)))
        advised = action if isinstance(action, str) else action(subject)
        return [subject.costing(cost, id, printed, advised, evidence(subject), ranks)]

    return Diagnosis(find, needs=needs, means={id: means})

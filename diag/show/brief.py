"""A result to paste: as the text of an issue, in Markdown, and as a short message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diag.show import page as shown
from diag.show.memory import Failure
from diag.show.page import Advised, Page
from diag.show.policy import PAGE
from diag.words.formatting import NBSP, visible
from diag.words.table import Table


def as_issue(page: Page, advised: Advised, version: str) -> str:
    """Markdown: the verdict, the ranks, findings with their evidence, advice, and what was recorded."""
    parts = [
        f"### {_escaped(_first(page))}",
        *(_escaped(text) for text in _more(page)),
        " · ".join(f"{metric.label} **{_escaped(metric.in_a_line)}**" for metric in page.metrics),
        _table(page.ranks),
        *_findings(page),
        *_advice(advised),
        f"<details><summary>Run</summary>\n\n{_facts(page)}\n\n</details>",
        f"diag {version}",
    ]
    return _plain("\n\n".join(filter(None, parts))) + "\n"


def as_message(page: Page, advised: Advised) -> str:
    """A few lines of plain text: what it is, whose fault, what to try first."""
    lines = [_first(page), *_more(page)[:2]]
    if page.verdict.action:
        lines.append(f"{shown.TO_DO}: {page.verdict.action}")
    lines += [f"{shown.ADVICE}: {change.title} ({change.saves})" for change in advised.changes[:1]]
    return _plain("\n".join(visible(line) for line in lines if line)) + "\n"


def _first(page: Page) -> str:
    """What comes first: memory that ran out, then how the run ended, then the verdict."""
    failure = _failure(page)
    if failure is not None:
        return failure.text.partition(". ")[0]
    return page.outcome.headline if page.outcome is not None else page.verdict.headline


def _failure(page: Page) -> Failure | None:
    """The failed allocation of which most is known."""
    return max(page.failures, key=lambda failure: (bool(failure.fits), bool(failure.room)), default=None)


def _more(page: Page) -> list[str]:
    failure, outcome = _failure(page), page.outcome
    lines = [f"{failure.room} {failure.fits}".strip()] if failure is not None else []
    if outcome is not None:
        lines += [outcome.headline] if failure is not None else []
        lines += [outcome.action, f"{shown.UNTIL_THEN}: {page.verdict.headline}"]
    elif failure is not None:
        lines.append(page.verdict.headline)
    return [*filter(None, lines), " · ".join(page.verdict.facts), page.since, page.incomplete]


def _table(table: Table, titled: bool = True) -> str:
    known = table.known()
    rows = [
        [f"**{cell}**" if place in known.at_fault else cell for cell in (_escaped(text) for text in row)]
        for place, row in enumerate(known.texts())
    ]
    head = [_escaped(heading) for heading in known.headings]
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    title = [f"{_escaped(known.title)}\n"] if titled else []
    return "\n".join([*title, *(f"| {' | '.join(line)} |" for line in lines)])


def _findings(page: Page) -> Sequence[str]:
    if not page.findings:
        return ()
    items = []
    for card in page.findings[: PAGE.most_notebook_findings]:
        action = f"\n  {_escaped(card.action)}" if card.action else ""
        facts = _escaped(" · ".join(card.facts))
        items.append(f"- **{_escaped(card.title)}** ({facts}){action}")
    evidence = page.findings[0].evidence
    table = f"<details><summary>{evidence.title}</summary>\n\n{_table(evidence, titled=False)}\n\n</details>"
    return (f"**{shown.FINDINGS}**", "\n".join(items), table if evidence.rows else "")


def _advice(advised: Advised) -> Sequence[str]:
    if not advised.changes:
        return ()
    items = []
    for number, change in enumerate(advised.changes, start=1):
        price = _escaped("; ".join((change.gain, *change.price)))
        how = change.how.replace("```", "'''")
        code = "\n".join(f"   {line}" for line in f"```\n{how}\n```".splitlines()) if how else ""
        items.append(f"{number}. {_escaped(change.title)}: {price}" + (f"\n\n{code}" if code else ""))
    return (f"**{shown.ADVICE}**", "\n".join(items))


def _facts(page: Page) -> str:
    return "\n".join(f"- {_escaped(fact)}" for fact in (*page.facts, page.recorded, *page.versions) if fact)


def _escaped(text: str) -> str:
    """The text on one line, so that names in it become no markup; code stays in backticks."""
    words = visible(text).replace("\n", " ")
    pieces = re.split(r"(`[^`]*`)", words)
    return "".join(
        piece if place % 2 else re.sub(r"([\\*_\[\]<>|#~!@$])", r"\\\1", piece) for place, piece in enumerate(pieces)
    )


def _plain(text: str) -> str:
    return text.replace(NBSP, " ")

"""A result as HTML for a notebook: verdict, ranks as SVG and as a table, findings and advice, without scripts.

Only inline styles, and colours that can be read on light and dark backgrounds: notebooks strip style sheets, and a
cell's output does not know the theme. Every text goes through ``_text``.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from diag.api import Result
from diag.model.steps import Outcome, Severity
from diag.show import page as shown
from diag.show import svg
from diag.show.page import UNTIL_THEN, Card, Change, advice_of, page_of
from diag.show.parts import LIGHT_PARTS, Part, mean_parts
from diag.show.policy import PAGE
from diag.show.ranks import STALLS_TITLE
from diag.words.formatting import visible_lines
from diag.words.table import TENTHS_OF_MS, Column, Table
from diag.words.wording import pieces

# White on each of them has a contrast of 4.5 or more, and each stands out from white and from black.
_BADGE = {Severity.HEALTHY: "#1a7f4b", Severity.WARN: "#a65d00", Severity.CRITICAL: "#c0322b"}
_GREY = "#667085"
_LINE = "1px solid rgba(128,128,128,.4)"
_CELL = "padding:2px 10px 2px 0;text-align:right;background:transparent"
_FAINT = "opacity:.75"


def to_html(result: Result) -> str:
    """One ``<div>``. Runs the replay behind the advice."""
    page, advised = page_of(result), advice_of(result)
    more = len(page.findings) - PAGE.most_notebook_findings
    parts = [
        _line(" · ".join(page.facts), _FAINT),
        *(_line(failure, "font-weight:600") for failure in page.out_of_memory),
        *_outcome(page.outcome),
        f"<div>{_badge(page.verdict.severity.words, _BADGE[page.verdict.severity])} "
        f"{_badge(page.verdict.bottleneck, _GREY)}</div>",
        f'<div style="margin:.4em 0;font-size:1.15em;font-weight:600">{_text(page.verdict.headline)}</div>',
        _line(page.since) if page.since else "",
        _line(" · ".join(page.verdict.facts)),
        _line(page.incomplete, "font-weight:600") if page.incomplete else "",
        _line(" · ".join(f"{metric.label} {metric.in_a_line}" for metric in page.metrics), _FAINT),
        _bars(result, page.ranks),
        _table(page.ranks),
        _stalls(page.stall_lines),
        *(_finding(finding) for finding in page.findings[: PAGE.most_notebook_findings]),
        _line(f"… and {more} more findings", _FAINT) if more > 0 else "",
        _advice(advised.changes),
        *(_line(reason, _FAINT) for reason in advised.not_predicted),
        _line(page.basis, _FAINT),
    ]
    return f'<div style="max-width:60em;line-height:1.45">{"".join(parts)}</div>'


def _text(text: object) -> str:
    """Escapes markup in names, so that it is shown, not interpreted; control characters become visible escapes."""
    return html.escape(visible_lines(str(text)), quote=True)


def _line(text: str, style: str = "") -> str:
    return f'<div style="margin:.2em 0;{style}">{_text(text)}</div>'


def _outcome(outcome: Outcome | None) -> list[str]:
    if outcome is None:
        return []
    return [
        f"<div>{_badge(Severity.CRITICAL.words, _BADGE[Severity.CRITICAL])}</div>",
        f'<div style="margin:.4em 0;font-size:1.15em;font-weight:600">{_text(outcome.headline)}</div>',
        _line(outcome.action) if outcome.action else "",
        _line(f"{UNTIL_THEN}:", _FAINT),
    ]


def _prose(text: str) -> str:
    return "".join(f"<code>{_text(part)}</code>" if typed else _text(part) for part, typed in pieces(text))


def _badge(text: str, colour: str) -> str:
    style = f"background:{colour};color:#fff;border-radius:4px;padding:1px 8px;font-size:.85em;font-weight:600"
    return f'<span style="{style}">{_text(text)}</span>'


def _table(table: Table) -> str:
    head = "".join(
        _cell("th", table.heading(column), f"border-bottom:{_LINE}", f' scope="col"{_meaning(column)}')
        for column in table.columns
    )
    rows = []
    for place, (first, *cells) in enumerate(table.texts()):
        at_fault = place in table.at_fault
        style = "font-weight:700" if at_fault else ""
        header = _cell("th", f"{first}, at fault" if at_fault else first, style or "font-weight:400", ' scope="row"')
        rows.append(f"<tr>{header}{''.join(_cell('td', cell, style) for cell in cells)}</tr>")
    caption = f'<caption style="text-align:left;caption-side:top;{_FAINT}">{_text(table.title)}</caption>'
    return (
        '<table style="border-collapse:collapse;font-size:inherit;margin:.6em 0">'
        f"{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"{_line(table.more, _FAINT) if table.more else ''}"
    )


def _bars(result: Result, table: Table) -> str:
    """A bar for each rank of the table, with the parts of its mean step."""
    means = mean_parts(result.attribution)
    ranks = [rank for rank in (row[0] for row in table.rows) if rank in means]
    if not ranks:
        return ""
    used = [part for part in Part if any(means[rank][part] for rank in ranks)]
    culprits = result.verdict.culprit_ranks
    rows = [_bar(rank, means[rank], used, rank in culprits) for rank in ranks]
    end = max(sum(means[rank].values()) for rank in ranks)
    legend = "".join(
        f'<span style="display:inline-block;margin-right:1em"><span style="display:inline-block;width:.7em;height:.7em;'
        f'background:{LIGHT_PARTS[part]};margin-right:.3em"></span>{_text(part.value)}</span>'
        for part in used
    )
    return f'<div style="margin:.4em 0">{legend}</div>{svg.rows_over(rows, 0, end, table.title)}'


def _bar(rank: int, means: Mapping[Part, float], used: Sequence[Part], at_fault: bool) -> svg.Row:
    begins = accumulate((means[part] for part in used), initial=0.0)
    pieces = tuple(
        (begin, begin + means[part], LIGHT_PARTS[part], f"{part.value}: {TENTHS_OF_MS.text(means[part])}")
        for part, begin in zip(used, begins, strict=False)
    )
    name = f"rank {rank}, at fault" if at_fault else f"rank {rank}"
    return svg.Row(name, pieces, TENTHS_OF_MS.text(sum(means.values())), at_fault)


def _meaning(column: Column) -> str:
    """The meaning of the column, as a tooltip."""
    return f' title="{_text(column.meaning)}"' if column.meaning else ""


def _stalls(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<div><b>{STALLS_TITLE}</b></div><ul>{items}</ul>" if items else ""


def _cell(tag: str, text: str, style: str, attributes: str = "") -> str:
    return f'<{tag}{attributes} style="{_CELL};{style}">{_text(text)}</{tag}>'


def _finding(finding: Card) -> str:
    colour = _GREY if finding.severity == Severity.HEALTHY else _BADGE[finding.severity]
    title = f"<div>{_badge(finding.badge, colour)} <b>{_text(finding.title)}</b></div>"
    action = f"<div><b>{shown.TO_DO}:</b> {_prose(finding.action)}</div>" if finding.action else ""
    return (
        f'<div style="border-left:3px solid {colour};padding-left:.8em;margin:.6em 0">{title}'
        f"{_line(' · '.join(finding.facts), _FAINT)}{action}</div>"
    )


def _advice(changes: Iterable[Change]) -> str:
    items = [
        f'<li style="margin:.4em 0"><b>{_text(change.title)}</b>'
        f"<div>{_prose('; '.join((change.gain, *change.price)))}</div>{_how(change)}</li>"
        for change in changes
    ]
    return f"<div><b>{shown.ADVICE}</b></div><ol>{''.join(items)}</ol>" if items else ""


def _how(change: Change) -> str:
    style = (
        f"white-space:pre-wrap;border:{_LINE};border-radius:4px;padding:4px 8px;margin:.2em 0;background:transparent"
    )
    return f'<pre style="{style}">{_text(change.how)}</pre>' if change.how else ""

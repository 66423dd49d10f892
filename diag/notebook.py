"""What a notebook shows of a result: verdict, ranks, findings and advice as HTML without scripts.

Only inline styles, and colours that can be read on light and dark ground: notebooks strip style sheets, and nothing
tells a cell's output which theme it is in. Every text goes through ``_text``.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from diag.model.steps import Advice, Coverage, Finding, Recommendation, Severity, Verdict
from diag.words.formatting import visible_lines
from diag.words.rank_table import MEANINGS, STALLS_TITLE, RankTable
from diag.words.wording import (
    basis,
    class_name,
    finding_badge,
    finding_facts,
    gain,
    incomplete,
    not_predicted,
    pieces,
    price,
    sentence,
    verdict_facts,
)

MOST_FINDINGS = 8

# White on each of them has a contrast of 4.5 or more, and each stands out from white and from black.
_BADGE = {Severity.HEALTHY: "#1a7f4b", Severity.WARN: "#a65d00", Severity.CRITICAL: "#c0322b"}
_GREY = "#667085"
_LINE = "1px solid rgba(128,128,128,.4)"
_CELL = "padding:2px 10px 2px 0;text-align:right;background:transparent"
_FAINT = "opacity:.75"


def to_html(
    facts: Sequence[str],
    verdict: Verdict,
    steps: str,
    ranks: RankTable,
    stalls: Sequence[str],
    findings: Sequence[Finding],
    recommendation: Recommendation,
    coverage: Coverage,
) -> str:
    """One ``<div>``. ``facts``: what was run; ``steps``: how many count, of how many; ``stalls``: a line each."""
    sure = verdict_facts(verdict, steps)
    missing = incomplete(coverage)
    parts = [
        _line(" · ".join(facts), _FAINT),
        f"<div>{_badge(verdict.severity.value, _BADGE[verdict.severity])} "
        f"{_badge(class_name(verdict.bottleneck), _GREY)}</div>",
        f'<div style="margin:.4em 0;font-size:1.15em;font-weight:600">{_text(verdict.headline)}</div>',
        _line(" · ".join(sure)),
        _line(missing, "font-weight:600") if missing else "",
        _ranks(ranks, verdict.culprit_ranks),
        _stalls(stalls),
        *(_finding(finding) for finding in findings[:MOST_FINDINGS]),
        _line(f"… and {len(findings) - MOST_FINDINGS} more findings", _FAINT) if len(findings) > MOST_FINDINGS else "",
        _advice(recommendation.advice),
        *(_line(reason, _FAINT) for reason in not_predicted(recommendation.not_advised) if not recommendation.advice),
        _line(basis(coverage), _FAINT),
    ]
    return f'<div style="max-width:60em;line-height:1.45">{"".join(parts)}</div>'


def _text(text: object) -> str:
    """Markup of others is shown, never followed; control characters are escapes."""
    return html.escape(visible_lines(str(text)), quote=True)


def _line(text: str, style: str = "") -> str:
    return f'<div style="margin:.2em 0;{style}">{_text(text)}</div>'


def _prose(text: str) -> str:
    return "".join(f"<code>{_text(part)}</code>" if typed else _text(part) for part, typed in pieces(text))


def _badge(text: str, colour: str) -> str:
    style = f"background:{colour};color:#fff;border-radius:4px;padding:1px 8px;font-size:.85em;font-weight:600"
    return f'<span style="{style}">{_text(text)}</span>'


def _ranks(table: RankTable, culprits: Sequence[int]) -> str:
    head = "".join(
        _cell("th", name, f"border-bottom:{_LINE}", f' scope="col"{_meaning(name)}')
        for name in ("rank", *table.columns)
    )
    rows = []
    for rank, cells in table.rows:
        guilty = rank in culprits
        name = f"{rank}, at fault" if guilty else str(rank)
        style = "font-weight:700" if guilty else ""
        first = _cell("th", name, style or "font-weight:400", ' scope="row"')
        rows.append(f"<tr>{first}{''.join(_cell('td', cell, style) for cell in cells)}</tr>")
    more = _line(f"… and {table.left_out} more ranks", _FAINT) if table.left_out else ""
    caption = f'<caption style="text-align:left;caption-side:top;{_FAINT}">{_text(table.title)}</caption>'
    return (
        '<table style="border-collapse:collapse;font-size:inherit;margin:.6em 0">'
        f"{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
    )


def _meaning(column: str) -> str:
    """What a column means, as a tooltip."""
    return f' title="{_text(MEANINGS[column])}"' if column in MEANINGS else ""


def _stalls(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<div><b>{STALLS_TITLE}</b></div><ul>{items}</ul>" if items else ""


def _cell(tag: str, text: str, style: str, attributes: str = "") -> str:
    return f'<{tag}{attributes} style="{_CELL};{style}">{_text(text)}</{tag}>'


def _finding(finding: Finding) -> str:
    colour = _GREY if finding.severity == Severity.HEALTHY else _BADGE[finding.severity]
    title = f"<div>{_badge(finding_badge(finding), colour)} <b>{_text(finding.title)}</b></div>"
    action = f"<div><b>What to do:</b> {_prose(finding.action)}</div>" if finding.action else ""
    return (
        f'<div style="border-left:3px solid {colour};padding-left:.8em;margin:.6em 0">{title}'
        f"{_line(' · '.join(finding_facts(finding)), _FAINT)}{action}</div>"
    )


def _advice(advice: Iterable[Advice]) -> str:
    items = [
        f'<li style="margin:.4em 0"><b>{_text(sentence(item.change))}</b>'
        f"<div>{_prose('; '.join((gain(item), *price(item))))}</div>{_how(item)}</li>"
        for item in advice
    ]
    return f"<div><b>Try first</b></div><ol>{''.join(items)}</ol>" if items else ""


def _how(advice: Advice) -> str:
    how = advice.command or next(iter(advice.code.values()), "")
    style = (
        f"white-space:pre-wrap;border:{_LINE};border-radius:4px;padding:4px 8px;margin:.2em 0;background:transparent"
    )
    return f'<pre style="{style}">{_text(how)}</pre>' if how else ""

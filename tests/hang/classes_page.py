"""The fault classes as a page: ``python -m tests.hang.classes_page > diag/hang/CLASSES.md``."""

from __future__ import annotations

from diag.ended.precedence import EXPLAINS
from diag.hang.classes import CLASSES, NEVER_ROOTS
from diag.hang.classes.base import FaultClass, LogPattern
from diag.hang.model import Role

_HEAD = """# What `diag triage` can say

Generated from the registry in `diag/hang/classes`. Where several classes match, the one with the smaller priority is
the root; within a priority, [one explains the other](#what-explains-what). A line is evidence for its class if it has
the text shown; what a rule concludes from several lines is said beside it. Names in braces are filled in.
"""
_MOST_TEXTS = 20  # of a pattern
_BLANKS = {
    "who": "the culprit",
    "where": "the culprit",
    "host": "the host",
    "there": "the host",
    "rank_words": "the rank",
    "waited": "",
    "py_spy": "`py-spy dump` of its process",
    "py_spy_native": "`py-spy dump --native` of its process",
    "mlxlink": "`mlxlink`",
    "ssh": "ssh without a password",
    "nc": "`nc -vz`",
    "ss": "`ss -ltnp`",
}


def page() -> str:
    """The whole page, in order of priority, then of the registry."""
    rows = ["| P | class | it says | what decides | what to do next |", "|---|---|---|---|---|"]
    rows += [_row(found) for found in sorted(CLASSES.values(), key=lambda found: found.priority)]
    never = ["| text | why it is no cause | printed by |", "|---|---|---|"]
    for found in NEVER_ROOTS:
        never += [f"| {_cell(_texts(s))} | {_cell(s.says)} | {_cell(s.printed_by)} |" for s in found.patterns.values()]
    graph = [f"- {', '.join(g.causes)} → {', '.join(g.effects)}: {g.because}." for g in EXPLAINS]
    graph = ["## What explains what", "", *graph, ""]
    return "\n".join([_HEAD, *rows, "", *graph, "## Never a cause", "", *never, ""])


def decides(found: FaultClass) -> list[str]:
    """What shows the class: its rule, and the texts of its log patterns with who prints them."""
    rule = [found.rule] if found.rule else []
    roots = [pattern for pattern in found.patterns.values() if pattern.role == Role.ROOT]
    return rule + [f"{_texts(pattern)} ({pattern.printed_by})" for pattern in roots]


def next_steps(found: FaultClass) -> list[str]:
    """What to do next, with names in braces where the answer fills them in."""
    blanks = {name: blank and f"{{{blank}}}" for name, blank in _BLANKS.items()}
    special = [f"Where a line has `{literals[0]}`: {step}" for literals, own in found.if_read.items() for step in own]
    return [step.format_map(blanks) for step in (*found.next_steps, *found.if_unnamed, *special)]


def _row(found: FaultClass) -> str:
    cells = (_cell("<br>".join(texts)) for texts in (decides(found), next_steps(found)))
    return f"| {found.priority} | {found.id} | {found.title} | {' | '.join(cells)} |"


def _texts(pattern: LogPattern) -> str:
    shown = [f"`{anchor}`" for anchor in pattern.anchors[:_MOST_TEXTS]]
    more = len(pattern.anchors) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")

"""The answer of an analysis in ten rows: what was run, the verdict and its cost, what to do, the ranks that matter, how
much was looked for, and where more is. Nothing is cut: a part that has no room is left out, or has fewer pieces, and
stands behind the options that the last row names.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum, auto

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from diag import policy
from diag.api import DurationResult, Result
from diag.model.steps import Coverage, Severity
from diag.show import page as shown
from diag.show.fitting import fitting, headed, print_together, rows_of, sentences_of, together, warning
from diag.show.memory import snapshots_sentence
from diag.show.page import RISK, Card, Change, Page, advice_of, page_of, ranks_of
from diag.show.policy import PAGE
from diag.show.screen import Screen
from diag.words import sentences
from diag.words.formatting import counted, masked, spaced, visible
from diag.words.places import in_command
from diag.words.places import shown as name_of
from diag.words.table import Column, Table
from diag.words.terminal import report_console
from diag.words.wording import per_whole

COLOUR = {Severity.HEALTHY: "green", Severity.WARN: "yellow", Severity.CRITICAL: "red"}
BETWEEN_FACTS = " · "


class Part(StrEnum):
    """What stands behind the answer. It is printed if it is asked for."""

    EVIDENCE = "evidence"
    CHECKED = "checked"
    TABLES = "tables"


class _Place(IntEnum):
    """From the top of the screen to its end."""

    HEAD = auto()
    WHO = auto()
    TO_DO = auto()
    ADVICE = auto()
    ALSO = auto()
    RANKS = auto()
    WARNINGS = auto()


def print_answer(result: Result, console: Console | None = None, paths: Sequence[str] = ()) -> None:
    """``paths``: what was opened, for the commands that show more."""
    console = console or report_console()
    page = page_of(result, PAGE.ranks_that_matter)
    screen = Screen(console)
    for line in head(result, page, facts_in_a_row(console, page.facts)):
        screen.put(_Place.HEAD, line)
    ends = _Ends(console, result.coverage, page, paths)
    screen.left -= ends.rows
    action = sentences_of(page.verdict.action) if page.verdict.action else []
    rows_to_do = rows_of(console, point(shown.TO_DO, action[0]).plain) if action else 0
    screen.left -= rows_to_do
    numbers, missing, named = _put_who(screen, page), bool(result.coverage.skipped), result.verdict.culprit_ranks
    if missing:  # which may change the answer; a note says how to take it
        _put_warnings(screen, result, page)
    screen.put_if_room(_Place.WHO, numbers)
    if not missing:
        _put_warnings(screen, result, page)
    others = others_of(page)
    for card in page.further:  # before what makes the step a little shorter
        screen.put_if_room(_Place.ALSO, point(shown.ALSO, title_and_share(card)))
    if named:
        _put_ranks(screen, result)
    _put_advice(screen, advice_of(result).changes)
    screen.left -= ends.rows_in_full(screen.left)
    if not named:
        _put_ranks(screen, result)
    for heading, card in [other for other in others if other[1] not in page.further][: PAGE.most_other_findings]:
        screen.put_if_room(_Place.ALSO, point(heading, title_and_share(card)))
    if snapshots := snapshots_sentence(result.tables.snapshots):
        screen.put_if_room(_Place.WARNINGS, Text(spaced(snapshots)))
    if action:
        screen.left += rows_to_do
        text = fitting(console, action, min(screen.left, max(rows_to_do, PAGE.rows_to_do)), before=f"{shown.TO_DO}: ")
        screen.put(_Place.TO_DO, point(shown.TO_DO, text))
    screen.print()
    ends.print()


# -- the parts ---------------------------------------------------------------------------------------------------------


def head(result: Result, page: Page, facts: str) -> list[Text]:
    """What was run, how it ended, and the verdict."""
    alarm = f"bold {COLOUR[Severity.CRITICAL]}"
    lines = [Text(spaced(facts), "dim")]
    lines += [Text(spaced(visible(failure)), alarm) for failure in page.out_of_memory]
    lines += [Text(spaced(f"{card.title}. {card.action}"), alarm) for card in page.urgent]
    verdict = Text(spaced(page.verdict.headline), f"bold {COLOUR[page.verdict.severity]}")
    if page.outcome is not None:
        command = f"The evidence: diag triage {visible(in_command(str(result.tables.root)))}"
        lines.append(Text(spaced(page.outcome.headline), alarm))
        lines.append(Text(spaced(f"{page.outcome.action} {command}".strip())))
        verdict = Text.assemble((f"{shown.UNTIL_THEN}: ", "dim"), verdict)
    return [*lines, verdict, *([Text(spaced(page.since))] if page.since else [])]


def others_of(page: Page) -> list[tuple[str, Card]]:
    """The findings that the headline does not name, each with its heading."""
    cards = [card for card in page.findings if card.title.lower() not in page.verdict.headline.lower()]
    cards = [card for card in cards if card not in page.urgent]
    # Of a healthy run, whose headline has its share.
    largest = bool(cards) and cards[0].action == page.verdict.action
    return [(shown.LARGEST if largest and not place else shown.ALSO, card) for place, card in enumerate(cards)]


def title_and_share(card: Card) -> str:
    return f"{card.title} ({card.share})" if card.share else card.title


def point(heading: str, text: str) -> Text:
    return headed(heading, spaced(text))


def facts_in_a_row(console: Console, known: Sequence[str], before: str = "") -> str:
    """As much of what was run as fits in one row, behind ``before``. The last two facts say which steps, and of which
    run: they stay longer than those in the middle."""
    facts = [visible(spaced(fact)) for fact in known]
    for tail in (2, 1):
        for kept in range(len(facts) - 2, 0, -1):
            row = before + BETWEEN_FACTS.join((*facts[:kept], *facts[-2:][:tail]))
            if rows_of(console, row) == 1:
                return row
    return before + fitting(console, facts, 1, BETWEEN_FACTS, before)


_NAMES_THE_STEP = re.compile(r"(?:% of|-bound,) \d\S* \S+ a (?:step|window)\b")


def numbers_of(console: Console, page: Page) -> list[str]:
    """The metrics; without the step time where there is no room and the headline begins with it."""
    values = [spaced(f"{metric.label} {metric.in_a_line}") for metric in page.metrics]
    whole, rest = BETWEEN_FACTS.join(values), BETWEEN_FACTS.join(values[1:])
    named = _NAMES_THE_STEP.search(spaced(page.verdict.headline))
    return values[1:] if named and rows_of(console, whole) > rows_of(console, rest) else values


def _put_who(screen: Screen, page: Page) -> Text:
    """Who is at fault and how sure that is, with the numbers in the same row where there is room. The doubt is left out
    where it takes another row. Returns the numbers that have no row yet."""
    console, facts = screen.console, spaced(page.verdict.facts_in_short)
    if rows_of(console, facts) > 1:
        facts = spaced(replace(page.verdict, doubt="").facts_in_short)
    numbers = numbers_of(console, page)
    row = together(console, Text(facts), Text(BETWEEN_FACTS.join(numbers), "dim"))
    if row is not None:
        screen.put(_Place.WHO, row)
        return Text()
    if facts:
        screen.put(_Place.WHO, Text(facts))
    return Text(fitting(console, numbers, 1, BETWEEN_FACTS), "dim")


def _put_warnings(screen: Screen, result: Result, page: Page) -> None:
    """Data that is missing, then notes, as many as have room; and how many more there are. That thresholds differ is
    always said, and the first of what is missing before how many more there are."""
    console, room, changed = screen.console, min(screen.left, PAGE.rows_of_warnings), policy.notes()
    for note in changed:
        screen.put(_Place.WARNINGS, warning(note))
    texts = [[f"{visible(_in_run(gap.path, result))}: {visible(gap.reason)}"] for gap in result.coverage.skipped]
    texts += [spaced(note).split("; ") for note in page.notes[len(changed) :]]
    for number, pieces in enumerate(texts):
        more = len(texts) - number - 1
        first_gap = number == 0 and bool(result.coverage.skipped)
        allowed = room - (bool(more) and not first_gap)
        text = warning(fitting(console, pieces, max(1, allowed), "; ", "! "))
        rows = rows_of(console, text.plain)
        if rows > allowed:
            count = warning(sentences.MORE_NOTES(notes=counted(more + 1, "note")))
            if not screen.put_if_room(_Place.WARNINGS, count) and first_gap:
                screen.put(_Place.WARNINGS, count)  # nothing else says that data is missing
            return
        screen.put(_Place.WARNINGS, text)
        room -= rows


def _in_run(path: str, result: Result) -> str:
    """Without the folder that the first row names."""
    return path.removeprefix(f"{result.tables.root}/")


def _put_ranks(screen: Screen, result: Result) -> None:
    """The ranks that matter, as many as there is room for."""
    if (rows := min(len(result.coverage.ranks_used), PAGE.ranks_that_matter, screen.left - 1)) > 0:
        screen.put_table(_Place.RANKS, _in_short(result, ranks_of(result, rows)))


def _in_short(result: Result, ranks: Table) -> Table:
    """The table of ranks without a row for its title, as the first heading says what the numbers are, and without how
    many more ranks there are, as the first row of the answer says how many."""
    no_step = isinstance(result, DurationResult) or len(result.attribution.steps) == 1
    per = "" if no_step else f" {per_whole(result.attribution)}"
    first = Column("rank", label=f"ms{per}", weight=0)
    rows = tuple((f"rank {row[0]}", *row[1:]) for row in ranks.rows)
    return replace(ranks, title="", left_out=0, columns=(first, *ranks.columns[1:]), rows=rows)


def _put_advice(screen: Screen, changes: Iterable[Change]) -> None:
    """The change with the largest gain."""
    for change in [change for change in changes if change.how][:1]:
        doubt = () if change.sure else (sentences.TUNE_MEASURES_IT(),)
        pieces = (f"{change.title}: {change.saves}", RISK[change.risk], *doubt, change.memory)
        rows = max(1, min(screen.left, PAGE.rows_of_advice))
        text = fitting(screen.console, pieces, rows, "; ", f"{shown.ADVICE}: ")
        screen.put_if_room(_Place.ADVICE, point(shown.ADVICE, text))


# -- the end -----------------------------------------------------------------------------------------------------------


class _Ends:
    """How much was looked for, and the commands that show more: at least a row, and two where there is room."""

    def __init__(self, console: Console, coverage: Coverage, page: Page, paths: Sequence[str]) -> None:
        self._console = console
        self._more = more_of(console, tuple(Part), paths)
        self._checked, self._in_short = causes_ruled_out(page, coverage)
        self._whole = False
        self.rows = int(bool(self._more or self._checked))

    def rows_in_full(self, left: int) -> int:
        """How many of ``left`` rows it takes to say all."""
        alone = not self._more or together(self._console, Text(self._checked), Text(self._more)) is not None
        rows = 0 if alone or not self._checked else rows_of(self._console, self._checked)
        self._whole = rows <= left
        return rows if self._whole else 0

    def print(self) -> None:
        checked, more = self._checked, self._more
        if not self._whole:
            both = ((self._in_short, more), (self._in_short, sentences.MORE_WITHOUT_A_PATH()), ("", more))
            texts = (texts for texts in both if together(self._console, *map(Text, texts)) is not None)
            checked, more = next(texts, ("", more))
        print_together(self._console, checked, "dim", more, "dim", command=True)


def causes_ruled_out(page: Page, coverage: Coverage) -> tuple[str, str]:
    """How much was looked for, with the commonest reason why the rest was not; and the same in short."""
    reasons, causes = Counter(item.reason for item in coverage.not_looked), counted(len(page.not_found), "cause")
    if not reasons:
        return (sentences.CAUSES_RULED_OUT(causes=causes) if page.not_found else "",) * 2
    commonest, _ = reasons.most_common(1)[0]
    more = len(reasons) - 1
    why = commonest if not more else sentences.AND_MORE_REASONS(reason=commonest, more=counted(more, "more reason"))
    told = {"causes": causes, "unseen": reasons.total()}
    return sentences.CAUSES_RULED_OUT_OR_UNSEEN(**told, why=why), sentences.RULED_OUT_OR_UNSEEN(**told)


def more_of(console: Console, rest: Sequence[str], paths: Sequence[str]) -> str:
    """The commands that show more; "" if all is shown, or nothing names what was opened. ``rest``: the other
    options."""
    if not paths or not rest:
        return ""
    dashboard = command_of("dashboard", paths)
    more = sentences.MORE_BEHIND_THE_ANSWER(options=" ".join(f"--{part}" for part in rest), dashboard=dashboard)
    return more if rows_of(console, more) == 1 else sentences.MORE_IN_SHORT(dashboard=dashboard)


def command_of(name: str, paths: Sequence[str]) -> str:
    named = [visible(masked(name_of(path))) for path in paths[: PAGE.most_job_paths]]
    return shlex.join(["diag", name, *named]) + (" ..." if len(paths) > len(named) else "")

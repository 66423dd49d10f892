"""Two runs side by side, as text and as JSON: in which part of the step they differ, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum, auto
from typing import NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from diag import policy
from diag.api import Result, describe_run
from diag.collectors.layout import SCHEMA_VERSION
from diag.diagnoses.compare import Comparison, Difference, difference_of, resamples_of
from diag.diagnoses.costs import Cost
from diag.diagnoses.shares import PART_NAMES
from diag.model import Gap
from diag.show.policy import PAGE
from diag.tables import of_runs
from diag.tables.by_step import exposed_by_step
from diag.tables.of_runs import KERNELS, NamedTime, NamedTimes
from diag.words import comparison as comparison_words
from diag.words import sentences
from diag.words.formatting import counted, duration, relative, short_name, signed_duration, spaced, visible
from diag.words.table import (
    HUNDREDTHS_OF_MS,
    MEAN_COUNT,
    TEXT_RIGHT,
    Cell,
    Column,
    Table,
    Unit,
    table_of,
)
from diag.words.terminal import report_console
from diag.words.wording import run_facts, sentence

from .answer import COLOUR, facts_in_a_row
from .fitting import headed, warning
from .screen import Screen
from .table import print_table
from .text import print_gaps

_OF_THE_PATH = "critical path, ms a step"
WITHIN_NOISE = "within noise"


def differences_by_name(*results: Result) -> tuple[NamedTimes, ...]:
    """The time of collectives, kernels and modules in each of these runs, those that differ most first. Reads traces
    again."""
    return of_runs.differences_by_name(
        [result.breakdowns for result in results], [exposed_by_step(result.attribution) for result in results]
    )


class Change(NamedTuple):
    """The difference of one name between two runs, nanoseconds a step: low, likely and high, and how much of it is
    waiting and transfer; None where that is not known step by step."""

    ns: tuple[int, int, int] | None
    waiting_ns: float | None
    transfer_ns: float | None


def change_of(row: NamedTime) -> Change:
    """Of a row of two runs."""
    if len(row.of_steps) != 2 or None in row.of_steps:
        return Change(None, None, None)
    before, after = (each for each in row.of_steps if each is not None)
    picks = resamples_of(len(before.exposed_ns), len(after.exposed_ns))
    ns = difference_of(before.exposed_ns, after.exposed_ns, picks)
    if before.transfer_ns is None or after.transfer_ns is None:
        return Change(ns, None, None)
    transfer = float(after.transfer_ns.mean() - before.transfer_ns.mean())
    return Change(ns, float(after.exposed_ns.mean() - before.exposed_ns.mean()) - transfer, transfer)


def to_json(comparison: Comparison, before: Result, after: Result, by_name: Sequence[NamedTimes] | None = None) -> str:
    """The document. ``difference_ns``: (low, likely, high)."""
    named = {} if by_name is None else {"by_name": [_named_times(times) for times in by_name]}
    content = {
        "schema_version": SCHEMA_VERSION,
        **policy.as_dict(),
        "before": describe_run(before),
        "after": describe_run(after),
        "comparison": {
            "comparable": not comparison.not_comparable,
            "not_comparable": list(comparison.not_comparable),
            "before_ns": comparison.before_ns,
            "after_ns": comparison.after_ns,
            "difference_ns": list(comparison.ns),
            "sure": comparison.sure,
            "steps": list(comparison.steps),
            "host_load": [to_builtins(load) for load in comparison.loads],
            "parts": [
                {
                    "part": part.kind.name.lower(),
                    "before_ns": part.before_ns,
                    "after_ns": part.after_ns,
                    "difference_ns": list(part.ns),
                    "sure": part.sure,
                }
                for part in comparison.parts
            ],
            "notes": list(comparison.notes),
        },
        "verdicts": [to_builtins(result.verdict) for result in (before, after)],
        **named,
    }
    return json.dumps(content, indent=1)


def _named_times(times: NamedTimes) -> dict[str, object]:
    return {
        "of": times.of,
        "what": times.what,
        "rows": [
            {
                "name": row.name,
                "before_ns": row.ns[0],
                "after_ns": row.ns[1],
                "before_calls": row.calls[0],
                "after_calls": row.calls[1],
                "difference_ns": change_of(row).ns,
            }
            for row in times.rows
        ],
    }


def print_comparison(
    comparison: Comparison,
    before: Result,
    after: Result,
    console: Console | None = None,
    by_name: Sequence[NamedTimes] = (),
    evidence: bool = True,
) -> None:
    """The difference in a sentence, the parts in a table, what differs below them, both verdicts, and what else
    differs. Without ``evidence`` and ``by_name`` in ten rows."""
    console = report_console(console)
    if not evidence and not by_name:
        _print_in_short(comparison, before, after, console)
        return
    for row in _head(comparison, before, after, console):
        console.print(row)
    console.print()
    shown = worth_a_row(comparison)
    print_table(console, comparison_table(shown), _styles(shown))
    for times in by_name:
        named = named_table(times, ("before", "after"), PAGE.most_named_differences)
        console.print()
        print_table(console, named)
    console.print()
    for verdict in _verdicts(before, after):
        console.print(verdict)
    console.print()
    steps = " and ".join(f"{count:,}" for count in comparison.steps)
    console.print(Text(comparison_words.HOW_RUNS_COMPARE(steps=steps), "dim"))
    for note in policy.notes():
        console.print(warning(visible(note)))
    for note in comparison.notes:
        console.print(Text(f"{visible(sentence(note))}.", "dim"))
    print_gaps(console, _gaps(before, after))


class _Place(IntEnum):
    HEAD = auto()
    PARTS = auto()
    VERDICTS = auto()
    NOTES = auto()


def _print_in_short(comparison: Comparison, before: Result, after: Result, console: Console) -> None:
    """In ten rows: the difference, the verdict of the run that is compared, and the parts that differ most."""
    screen = Screen(console)
    for row in _head(comparison, before, after, console):
        screen.put(_Place.HEAD, row)
    for note in policy.notes():
        screen.put(_Place.NOTES, warning(visible(note)))
    if count := len(_gaps(before, after)) + len(comparison.notes):
        screen.put(_Place.NOTES, warning(sentences.MORE_NOTES_ON_BOTH(notes=counted(count, "note"))))
    screen.left -= 1
    screen.put_if_room(_Place.VERDICTS, _verdicts(before, after)[1])
    shown = worth_a_row(comparison)
    if len(shown.parts) > screen.left - 2:  # without the step as a whole, which the headline has
        most = sorted(shown.parts, key=lambda part: -abs(part.ns[1]))[: max(0, screen.left - 1)]
        shown = replace(shown, parts=tuple(part for part in shown.parts if part in most))
    table = comparison_table(shown)
    if shown.parts:
        rows = table.rows[: screen.left - 1]
        screen.put_table(_Place.PARTS, replace(table, rows=rows), _styles(shown))
    screen.print()
    console.print(Text(sentences.MORE_BEHIND_THE_COMPARISON(), "dim"))


def _head(comparison: Comparison, before: Result, after: Result, console: Console) -> list[Text]:
    """Which runs, why they may not be compared, and the difference."""
    rows = []
    for name, result in (("before", before), ("after", after)):
        known = run_facts(describe_run(result), result.coverage)
        rows.append(Text(facts_in_a_row(console, known, f"{name:<8}"), "dim"))
    if comparison.not_comparable:
        rows.append(Text("Not the same work, so a comparison may mislead:", "bold yellow"))
        rows += [Text(f"  {visible(reason)}") for reason in comparison.not_comparable]
    colour = "red" if comparison.ns[1] > 0 else "green"
    unsure = not comparison.sure or comparison.not_comparable
    return [*rows, Text(spaced(headline(comparison)), "bold" if unsure else f"bold {colour}")]


def _verdicts(before: Result, after: Result) -> tuple[Text, Text]:
    first, second = (
        headed(name, Text(visible(spaced(verdict.headline)), COLOUR[verdict.severity]))
        for name, verdict in (("Before", before.verdict), ("After", after.verdict))
    )
    return first, second


def _gaps(before: Result, after: Result) -> list[Gap]:
    """Of both runs, each once."""
    return list(dict.fromkeys((*before.coverage.skipped, *after.coverage.skipped)))


def worth_a_row(comparison: Comparison) -> Comparison:
    """Without the parts that are next to nothing in both runs."""
    return replace(comparison, parts=tuple(part for part in comparison.parts if _is_worth_a_row(comparison, part)))


def _is_worth_a_row(comparison: Comparison, part: Difference) -> bool:
    """False for a part that is next to nothing in both runs."""
    least = PAGE.least_part_share
    return part.before_ns >= least * comparison.before_ns or part.after_ns >= least * comparison.after_ns


def headline(comparison: Comparison) -> str:
    """How much longer or shorter the step is, and which parts make the difference."""
    low, likely, high = comparison.ns
    told = {
        "before": duration(comparison.before_ns),
        "after": duration(comparison.after_ns),
        "likely": signed_duration(likely),
        "low": signed_duration(low),
        "high": signed_duration(high),
    }
    if not comparison.sure:
        text, moved = comparison_words.SAME_STEP_TIME(**told), _moved(comparison)
        return f"{text} {comparison_words.PARTS_CHANGED_IN_SAME_STEP(parts=_named(moved))}" if moved else text
    ratio = 1 + likely / comparison.before_ns if comparison.before_ns else 1.0
    if ratio >= 2:
        text = comparison_words.STEP_IS_TIMES_AS_LONG(times=relative(ratio), **told)
    else:
        of_sign = comparison_words.STEP_IS_LONGER if likely > 0 else comparison_words.STEP_IS_SHORTER
        text = of_sign(share=f"{abs(ratio - 1):.0%}", **told)
    makers, against = _makers(comparison), _named(_against(comparison))
    busier = _busier(comparison)
    if not makers:
        return f"{text} {busier}" if busier else text
    if against:
        text += f" {comparison_words.DIFFERENCE_IS_IN_PART_OFFSET(parts=_named(makers), others=against)}"
    else:
        text += f" {comparison_words.DIFFERENCE_IS_IN(parts=_named(makers))}"
    if not busier and makers[0].kind is Cost.CONTENTION:
        busier = comparison_words.OTHERS_MAY_USE_THE_CORES()
    return f"{text} {busier}" if busier else text


_OWN_THREADS = ("worker", "thread")  # in names of settings of threads or processes that the run starts itself


def _busier(comparison: Comparison) -> str:
    """That the host was busier in the run with the longer steps; "" where it was not."""
    first, second = comparison.loads
    if first is None or second is None or not comparison.sure:
        return ""
    sides = ("after", second, "before", first) if comparison.ns[1] > 0 else ("before", first, "after", second)
    longer, busy, shorter, calm = sides
    more = busy.runnable >= PAGE.busier_by * calm.runnable and busy.runnable > busy.cores
    if not more or any(word in setting.name for setting in comparison.settings for word in _OWN_THREADS):
        return ""
    names = [setting.name for setting in comparison.settings if setting.of_both]
    several = "the settings that differ" if names else "the run itself"
    return comparison_words.HOST_WAS_BUSIER(
        longer=longer,
        busy=f"{busy.runnable:.0f}",
        cores=counted(busy.cores, "core"),
        calm=f"{calm.runnable:.0f}",
        shorter=shorter,
        settings=" and ".join(names) if 0 < len(names) <= PAGE.most_settings_named else several,
    )


def _named(parts: list[Difference]) -> str:
    return " and ".join(f"{PART_NAMES[part.kind]} ({signed_duration(part.ns[1])})" for part in parts)


def _moved(comparison: Comparison) -> list[Difference]:
    """The parts that surely changed by a share of the step that is worth a name, largest first."""
    least = PAGE.named_change_share * comparison.before_ns
    moved = [part for part in comparison.parts if part.sure and abs(part.ns[1]) >= least]
    return sorted(moved, key=lambda part: -abs(part.ns[1]))


def _makers(comparison: Comparison) -> list[Difference]:
    """The sure parts with the sign of the whole difference, largest first, until they explain most of it."""
    sign = 1 if comparison.ns[1] > 0 else -1
    same = sorted(
        (part for part in comparison.parts if part.sure and sign * part.ns[1] > 0), key=lambda p: -sign * p.ns[1]
    )
    chosen, sum_ns = [], 0
    for part in same:
        if sum_ns >= PAGE.named_parts_share * abs(comparison.ns[1]):
            break
        chosen.append(part)
        sum_ns += abs(part.ns[1])
    return chosen


def _against(comparison: Comparison) -> list[Difference]:
    """The parts that surely changed the other way, if that is not small compared with the whole difference."""
    sign = 1 if comparison.ns[1] > 0 else -1
    return [
        p for p in comparison.parts if p.sure and -sign * p.ns[1] > (1 - PAGE.named_parts_share) * abs(comparison.ns[1])
    ]


def named_table(times: NamedTimes, runs: Sequence[str], most: int | None = None) -> Table:
    """Times by name, a column for each run, and of two runs their difference; at most ``most`` rows."""
    rows = times.rows[:most]
    columns: dict[Column, Sequence[object]] = {
        Column("name", label=times.noun, long=True, weight=0): [
            Cell(row.name, short_name(row.name).removeprefix("aten::")) if times.of == KERNELS else row.name
            for row in rows
        ]
    }
    for place, run in enumerate(runs):
        columns[Column(f"run_{place}_ns", HUNDREDTHS_OF_MS, label=f"time, {visible(run)}", weight=6)] = [
            row.ns[place] for row in rows
        ]
    if len(runs) == 2:
        columns[Column("difference_ns", _DIFFERENCE, label="difference", weight=9)] = [
            (row.ns[1] or 0.0) - (row.ns[0] or 0.0) for row in rows
        ]
        columns |= _of_changes([change_of(row) for row in rows])
    for place, run in enumerate(runs):
        columns[Column(f"run_{place}_calls", MEAN_COUNT, label=f"calls, {visible(run)}", weight=3)] = [
            row.calls[place] for row in rows
        ]
    missing = [runs[place] for place in times.missing]
    note = f"Not recorded in {' and '.join(missing)}." if missing else ""
    title = f"{sentence(times.what)}: mean milliseconds of a rank's step"
    return table_of(times.of, title, columns, (note,), symbol="ms", left_out=len(times.rows) - len(rows))


def _of_changes(changes: Sequence[Change]) -> dict[Column, Sequence[object]]:
    """Their intervals, and what of them is waiting and transfer; no column that has nothing."""
    columns: dict[Column, Sequence[object]] = {}
    if any(change.ns for change in changes):
        columns[Column("interval", TEXT_RIGHT, label="95% interval", weight=7)] = [
            None if change.ns is None else f"{_DIFFERENCE.text(change.ns[0])} to {_DIFFERENCE.text(change.ns[2])}"
            for change in changes
        ]
    if any(change.transfer_ns is not None for change in changes):
        for column, values in (
            (Column("waiting_ns", _DIFFERENCE, label="of which waiting", weight=5), [each[1] for each in changes]),
            (Column("transfer_ns", _DIFFERENCE, label="of which transfer", weight=5), [each[2] for each in changes]),
        ):
            columns[column] = values
    return columns


def comparison_table(comparison: Comparison) -> Table:
    """The parts of the step before and after, and the whole step last."""
    whole = ("step", comparison.before_ns, comparison.after_ns, comparison.ns, "")
    rows = [(PART_NAMES[part.kind], part.before_ns, part.after_ns, part.ns, _sure(part)) for part in comparison.parts]
    parts, before, after, differences, sure = zip(*rows, whole, strict=True)
    return table_of(
        "comparison",
        "",
        {
            Column("part", label=_OF_THE_PATH, weight=0): parts,
            Column("before_ns", HUNDREDTHS_OF_MS, label="before", weight=8): before,
            Column("after_ns", HUNDREDTHS_OF_MS, label="after", weight=8): after,
            Column("difference_ns", _DIFFERENCE, label="difference", weight=9): [
                likely for _, likely, _ in differences
            ],
            Column("interval", TEXT_RIGHT, label="95% interval", weight=6): [
                f"{_DIFFERENCE.text(low)} to {_DIFFERENCE.text(high)}" for low, _, high in differences
            ],
            Column("sure", label="", weight=7): sure,
        },
        symbol="ms",
    )


_DIFFERENCE = Unit("ns", lambda ns: f"{ns / 1e6:+,.2f}", symbol="ms", per=1e6, format="%+.2f")


def _sure(part: Difference) -> str:
    return ("longer" if part.ns[1] > 0 else "shorter") if part.sure else WITHIN_NOISE


def _styles(comparison: Comparison) -> dict[tuple[int, str], str]:
    """Longer is worse, and shorter better, only where the steps are the same work."""
    better = {True: "red", False: "green"} if not comparison.not_comparable else {}
    of_parts = {
        (place, "sure"): better.get(part.ns[1] > 0, "") if part.sure else "dim"
        for place, part in enumerate(comparison.parts)
    }
    return {**of_parts, (len(comparison.parts), ""): "bold"}

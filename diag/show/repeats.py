"""Groups of runs that repeat one another, in words and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from diag.diagnoses.repeats import Interval, Repeats, difference_of
from diag.words import comparison as comparison_words
from diag.words.formatting import counted, duration, signed_duration
from diag.words.table import TENTHS_OF_MS, TEXT, TEXT_RIGHT, Column, Table, table_of


def repeats_sentence(before: Repeats, after: Repeats) -> str:
    """How the means of two groups differ; "" unless both have repeats."""
    found, first, second = difference_of(before, after), before.mean_ns, after.mean_ns
    if found is None or first is None or second is None:
        return ""
    told = {
        "before": f"{duration(first[1])} with {before.name} ({counted(len(before.runs), 'run')})",
        "after": f"{duration(second[1])} with {after.name} ({counted(len(after.runs), 'run')})",
        "difference": signed_duration(found[1]),
        "interval": f"{signed_duration(found[0])} to {signed_duration(found[2])}",
    }
    if not is_sure(found):
        return comparison_words.REPEATS_DO_NOT_DIFFER(**told)
    share = f"{abs(second[1] / first[1] - 1):.0%}"
    longer = "longer" if found[1] > 0 else "shorter"
    return comparison_words.REPEATS_DIFFER(share=share, longer=longer, **told)


def spread_sentence(of: Repeats) -> str:
    """How much runs that repeat one another differ; "" of a single one."""
    mean = of.mean_ns
    if mean is None:
        return ""
    return comparison_words.REPEATS_VARY(
        runs=counted(len(of.runs), "run"),
        low=duration(min(of.ns)),
        high=duration(max(of.ns)),
        mean=duration(mean[1]),
        interval=_within(mean),
    )


def is_sure(found: Interval) -> bool:
    """Whether the interval excludes zero."""
    return found[0] > 0 or found[2] < 0


def repeats_table(groups: Sequence[Repeats]) -> Table:
    """A row for each group."""
    means = [group.mean_ns for group in groups]
    return table_of(
        "repeats",
        "Means of repeated runs",
        {
            Column("settings", weight=0): [group.name for group in groups],
            Column("runs", TEXT, long=True): [", ".join(group.runs) for group in groups],
            Column("step_ns", TENTHS_OF_MS, "Mean of the runs' mean counted steps.", label="step time"): [
                sum(group.ns) / len(group.ns) for group in groups
            ],
            Column("interval", TEXT_RIGHT, "By Student's t, from how much the runs differ.", "95% interval"): [
                None if mean is None else _within(mean) for mean in means
            ],
            Column("range", TEXT_RIGHT, "The shortest and the longest run.", "range"): [
                None if mean is None else f"{duration(min(group.ns))} to {duration(max(group.ns))}"
                for group, mean in zip(groups, means, strict=True)
            ],
        },
        symbol="ms",
    )


def _within(mean: Interval) -> str:
    return f"{duration(mean[0])} to {duration(mean[2])}"

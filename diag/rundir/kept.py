"""The full detail of the steps around incidents, which a run keeps when its streams lose it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.layout import MOST_NS, RankLayout, RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import DeviceStepRecord, KeptLine
from diag.model import Gap
from diag.model.retained import KeptSpan
from diag.words.formatting import rank_ranges

from .columns import StepsBuilder
from .lines import read_lines
from .step_lines import RowsReader
from .tables import Only, RankTables, Tables


class _Step(Struct):
    """When a step began and ended."""

    begin_ns: int
    end_ns: int


class _Head(Struct):
    """A line without the other records in it."""

    first: int
    last: int
    why: str
    steps: list[_Step] = []


def kept_spans(files: RankLayout) -> tuple[KeptSpan, ...]:
    """What a rank has kept, in order of steps. What cannot be read is left out."""
    heads, _ = read_lines(files.kept, _Head, files.run)
    found = [_span(head) for head in heads if 0 <= head.first <= head.last < MOST_NS]
    return _joined(sorted(found, key=lambda span: span.first))


def _joined(spans: list[KeptSpan]) -> tuple[KeptSpan, ...]:
    """The spans, those that are only the rest of another incident's with the span that they follow or precede: a rank
    keeps each step once, and of an incident within a kept span only what that lacks, in which nothing happened."""
    joined: list[KeptSpan] = []
    for span in spans:
        at = next((at for at, other in enumerate(joined) if other.last + 1 == span.first), None)
        shorter = min(span, joined[at], key=_steps_of) if at is not None else span
        if at is None or _steps_of(shorter) > RECORDING.kept_around:
            joined.append(span)
            continue
        before = joined[at]
        why = before.why if shorter is span else span.why
        joined[at] = KeptSpan(before.first, span.last, why, before.begin_ns, span.end_ns)
    return tuple(joined)


def _steps_of(span: KeptSpan) -> int:
    return span.last + 1 - span.first


def _span(head: _Head) -> KeptSpan:
    if not head.steps:
        return KeptSpan(head.first, head.last, head.why)
    begin_ns, end_ns = min(step.begin_ns for step in head.steps), max(step.end_ns for step in head.steps)
    return KeptSpan(head.first, head.last, head.why, begin_ns, end_ns)


def with_kept(tables: Tables, only: Only) -> Tables | None:
    """The run with the full records of these steps, of the ranks that have kept all of them; None if too few have."""
    layout = RunLayout(tables.root)
    gaps = list(tables.gaps)
    ranks: dict[int, RankTables] = {}
    for rank, of_rank in tables.ranks.items():
        kept = _of_rank(layout.rank(rank), of_rank, only, gaps)
        if kept is not None:
            ranks[rank] = kept
    without = [rank for rank, of_rank in tables.ranks.items() if len(of_rank.steps) and rank not in ranks]
    if len(ranks) <= len(without):
        return None
    if without:
        text = f"{rank_ranges(without)}: the full records of steps {only.first:,} to {only.last:,} are not kept"
        gaps.append(Gap(str(layout.ranks_folder), text))
    return replace(tables, ranks=ranks, gaps=tuple(gaps), store=None)


def _of_rank(files: RankLayout, of_rank: RankTables, only: Only, gaps: list[Gap]) -> RankTables | None:
    lines, unreadable = read_lines(files.kept, KeptLine, files.run)
    lines = sorted(
        (one for one in lines if one.first <= only.last and one.last >= only.first), key=lambda one: one.first
    )
    steps, rows = StepsBuilder(), RowsReader()
    on_device: list[DeviceStepRecord] = []
    left = set(range(only.first, only.last + 1))
    for line in lines:  # of two incidents close to each other, both may have a step
        here = {record.step for record in line.steps} & left
        left -= here
        steps.add([record for record in line.steps if record.step in here])
        rows.take([each for each in line.collectives if each.step in here])
        on_device += [each for each in line.device_steps if each.step in here]
    if left:
        return None
    gaps += unreadable
    read = rows.read(files.kept, ())
    return replace(
        of_rank,
        steps=steps.built().sorted_by("step"),
        rows=read.rows,
        groups={**of_rank.groups, **read.groups},
        traces=(),
        device_steps=tuple(sorted(on_device, key=lambda record: record.step)),
        unread=None,
    )

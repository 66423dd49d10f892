"""What the report says, as data: every text that comes from a run is in here, so that all of them can be redacted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diag.app import drawings
from diag.app.drawings import Drawing
from diag.app.facts import Metric, RankValues, metrics, rank_values, shown_rank
from diag.app.run_view import RunView
from diag.model.steps import Advice, Evidence, Finding, Gap
from diag.show.details import IdleTable, StallTable, idle_table, stall_table
from diag.words.wording import (
    MOST_GAPS,
    basis,
    class_name,
    evidence_row,
    finding_badge,
    finding_facts,
    gain,
    incomplete,
    price,
    run_facts,
    sentence,
    verdict_facts,
    versions,
)

MOST_TABLE_RANKS = 64

Row = tuple[str, ...]


class Command(str):
    """A command to type, in which every word may be somebody's."""

    __slots__ = ()


class RunName(str):
    """What a person called the run."""

    __slots__ = ()


@dataclass(frozen=True)
class Card:
    """A finding. ``tone``: its severity's name, "minor" where it is not worth a warning."""

    tone: str
    title: str
    facts: tuple[str, ...]
    action: str
    evidence: tuple[Row, ...]


@dataclass(frozen=True)
class Change:
    """A piece of advice. ``code``: (API, text)."""

    title: str
    gain: str
    facts: tuple[str, ...]
    command: Command
    code: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    evidence: tuple[Row, ...]


@dataclass(frozen=True)
class Verdict:
    """The answer. ``tone``: the severity's name."""

    tone: str
    bottleneck: str
    headline: str
    facts: tuple[str, ...]
    why: str
    action: str


@dataclass(frozen=True)
class Section:
    """Words and figures under one heading."""

    text: str
    figures: tuple[Drawing, ...]


@dataclass(frozen=True)
class Page:
    """From top to bottom. ``not_advised``: what else was considered, and why not. ``replay_error``: of the replay that
    the gains come from, 0.02 is 2 %."""

    title: RunName
    facts: tuple[str, ...]
    versions: tuple[str, ...]
    incomplete: str
    verdict: Verdict
    metrics: tuple[Metric, ...]
    differences: Section
    time: Section
    values: RankValues
    idle: IdleTable | None
    stalls: StallTable
    waiting: Section
    memory: Section
    findings: tuple[Card, ...]
    advice: tuple[Change, ...]
    not_advised: tuple[str, ...]
    replay_error: float | None
    basis: str
    notes: tuple[str, ...]
    not_found: tuple[str, ...]
    not_looked: tuple[str, ...]
    gaps: tuple[Gap, ...]
    more_gaps: int
    command: Command

    @property
    def figures(self) -> tuple[Drawing, ...]:
        return (*self.differences.figures, *self.time.figures, *self.waiting.figures, *self.memory.figures)


def page_of(view: RunView, command: str) -> Page:
    """The dashboard's first page as it opens. ``command``: what makes this report."""
    result, rank = view.result, shown_rank(view)
    coverage, advised = result.coverage, result.recommendation
    waiting_text, waiting = drawings.of_waiting(view)
    differences_text, differences = drawings.of_differences(view)
    memory_text, memory = drawings.of_memory(view, rank)
    return Page(
        title=RunName(result.tables.root.resolve().name),
        facts=tuple(run_facts(view.run, coverage)),
        versions=tuple(versions(view.run)),
        incomplete=incomplete(coverage),
        verdict=_verdict(view),
        metrics=metrics(view),
        differences=Section(differences_text, (differences,) if differences is not None else ()),
        time=Section("", (drawings.of_ranks(view), drawings.of_steps(view, rank))),
        values=rank_values(view, MOST_TABLE_RANKS),
        idle=idle_table(result.attribution, rank),
        stalls=stall_table(result.attribution),
        waiting=Section(waiting_text, (waiting,) if waiting is not None else ()),
        memory=Section(memory_text, memory),
        findings=tuple(_card(finding) for finding in result.examination.findings),
        advice=tuple(_change(advice) for advice in advised.advice),
        not_advised=tuple(sentence(reason) for reason in advised.not_advised),
        replay_error=advised.replay_error,
        basis=basis(coverage),
        notes=tuple(f"{sentence(note)}." for note in coverage.notes),
        not_found=result.examination.not_found,
        not_looked=tuple(map(str, coverage.not_looked)),
        gaps=coverage.skipped[:MOST_GAPS],
        more_gaps=max(0, len(coverage.skipped) - MOST_GAPS),
        command=Command(command),
    )


def _verdict(view: RunView) -> Verdict:
    verdict, cause = view.result.verdict, view.result.cause
    return Verdict(
        tone=verdict.severity.value,
        bottleneck=class_name(verdict.bottleneck),
        headline=verdict.headline,
        facts=tuple(verdict_facts(verdict, view.steps_counted)),
        why=view.result.why,
        action=cause.action if cause is not None else "",
    )


def _card(finding: Finding) -> Card:
    return Card(
        tone=finding_badge(finding),
        title=finding.title,
        facts=tuple(finding_facts(finding)),
        action=finding.action,
        evidence=_rows(finding.evidence),
    )


def _change(advice: Advice) -> Change:
    return Change(
        title=sentence(advice.change),
        gain=gain(advice),
        facts=(*price(advice), f"for {advice.finding}"),
        command=Command(advice.command),
        code=tuple(advice.code.items()),
        assumptions=advice.assumptions,
        evidence=_rows(advice.evidence),
    )


def _rows(evidence: Sequence[Evidence]) -> tuple[Row, ...]:
    return tuple(evidence_row(item) for item in evidence)

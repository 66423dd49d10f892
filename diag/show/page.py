"""The page of a result in words: the model that text, notebook, HTML report and dashboard draw.

A front end chooses what to draw and how. It computes no numbers and has no texts of its own, so that all of them show
the same number in the same words. ``page_of`` is cheap; ``advice_of`` replays the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import ndiff

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag import policy
from diag.account.durations import Durations
from diag.account.stalls import stalled_steps
from diag.api import DurationResult, Result, describe_run
from diag.deferred import by_name
from diag.diagnoses.compare import reasons_against
from diag.diagnoses.costs import Cost, class_of
from diag.diagnoses.phases import HostWait, host_wait
from diag.model import Gap
from diag.model.accounts import Attribution
from diag.model.evidence import query_of
from diag.model.history import History
from diag.model.query import Query
from diag.model.steps import Advice, Bottleneck, Coverage, Evidence, Finding, Knob, Outcome, Risk, Severity, Verdict
from diag.show.memory import Failure, action_of, failures_of
from diag.show.policy import PAGE
from diag.show.ranks import duration_rank_table, idle_table, rank_table, stall_lines, stall_table
from diag.tables.tokens import token_rate, tokens_of
from diag.words import sentences
from diag.words.formatting import (
    NBSP,
    UNKNOWN,
    counted,
    duration,
    listing,
    measured,
    moment,
    printed_alike,
    relative,
    share,
    size,
)
from diag.words.table import NUMBER, Cell, Column, Table, table_of
from diag.words.wording import (
    class_name,
    doubts,
    incomplete,
    largest_doubt,
    per_whole,
    run_facts,
    sentence,
    steps_counted,
)

# Of a run with steps enough to have changed.
_since: Callable[[History], str] = by_name("diag.words.history:since")
_not_counted: Callable[[Mapping[int, tuple[int, int | None]]], str] = by_name("diag.words.history:not_counted")
# Headings and captions.
TIME, WAITING, MEMORY = "Where the time goes", "Who waits", "Memory"
FINDINGS, ADVICE, COVERAGE = "Findings", "Try first", "Coverage"
WORST_STEP, COLLECTIVES, HANG = "The worst step", "Collectives", "Where the ranks are"
TO_DO, ASSUMPTIONS = "What to do", "Assumptions"
LARGEST, ALSO = "Largest finding", "Also found"
NOT_FOUND, NOT_LOOKED = "Looked for, not found", "Could not look for"
UNTIL_THEN = "The steps before that"
CONFIDENCE = "Confidence"
NOTHING_FOUND = "No finding costs 5% of the step or more."
EVERYTHING_FOUND = "Everything that was looked for was found."
EVERYTHING_LOOKED_FOR = "All causes were looked for."
STEP_TIME, EXPOSED_COMM, DATA_WAIT, HOST_WAIT = "Step time", "Exposed comm.", "Data wait", "Host wait"
TOKENS_PER_S, MFU = "Tokens per second", "MFU"
CRITICAL_PATH = (
    "A step lasts as long as its critical path: the chain of work and transfers, over all ranks, in which each had to "
    "wait for the one before."
)
BEFORE_AND_AFTER = "Before and after"


class Command(str):
    """A command to type; redaction treats each of its words as a possible name."""

    __slots__ = ()


class RunName(str):
    """The name of a run, chosen by a user."""

    __slots__ = ()


class Metric(Struct, frozen=True):
    """One of the numbers at the top. ``help``: its definition. ``against``: the signed difference to a baseline, or
    what it is of profiled steps; "" without either. ``more_is``: "good" or "bad"; "neither" if the baseline is not the
    same work."""

    label: str
    value: str
    help: str
    against: str = ""
    more_is: str = "bad"

    @property
    def in_a_line(self) -> str:
        """The value, and what it is against."""
        return f"{self.value} ({self.against})" if self.against else self.value


class VerdictShown(Struct, frozen=True):
    """The answer, with what to do about its cause. ``doubt``: what lowers the confidence most, "" if nothing does.
    ``also``: what to do about the second cause of a mixed run. ``unprofiled``: of a run of which profiled steps alone
    count, what the class takes of the others, in words; "" where that is not known."""

    severity: Severity
    bottleneck: str
    headline: str
    facts: tuple[str, ...]
    why: str = ""
    action: str = ""
    doubt: str = ""
    also: str = ""
    unprofiled: str = ""

    @property
    def facts_in_short(self) -> str:
        """The facts in one line, the confidence with what lowers it most."""
        facts = [
            f"{fact} ({self.doubt})" if self.doubt and fact.startswith(CONFIDENCE) else fact for fact in self.facts
        ]
        return "; ".join((*facts[:1], *(f"{fact[:1].lower()}{fact[1:]}" for fact in facts[1:]))) + "." if facts else ""


class Place(Struct, frozen=True):
    """Where to look at a finding: the rank, and the step in which it costs most. If a trace covers any step, only
    traced steps are considered."""

    rank: int
    step: int


class Card(Struct, frozen=True):
    """A finding. ``badge``: its severity, "minor" if that is below a warning. ``cost``: the first of the ``facts``, ""
    if the finding costs no time by itself; ``share``: its part of the step alone. ``evidence``: the numbers that can be
    looked up, one a row. ``place``: None if the finding costs no time or the steps were not recorded. ``rows``: what it
    rests on, as ``run.evidence`` returns it."""

    severity: Severity
    badge: str
    title: str
    cost: str
    facts: tuple[str, ...]
    action: str
    evidence: Table
    place: Place | None = None
    rows: Query | None = None
    share: str = ""


class Change(Struct, frozen=True):
    """A piece of advice. ``saves``: the predicted gain in a few words; ``gain``: the same with its interval. ``sure``:
    the whole interval is a gain. ``code``: (API, text). ``diffs``: (API, lines in the format of `diff`) if the code
    replaces other code."""

    title: str
    saves: str
    gain: str
    sure: bool
    memory: str
    risk: Risk
    finding: str
    command: Command
    code: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    evidence: Table
    diffs: tuple[tuple[str, str], ...] = ()

    @property
    def price(self) -> tuple[str, str]:
        """The cost of the change: memory and risk."""
        return self.memory, RISK[self.risk]

    @property
    def how(self) -> str:
        """The command, else the code of the first API."""
        return self.command or (self.code[0][1] if self.code else "")


class Advised(Struct, frozen=True):
    """Changes to try. ``basis``: how the gains were predicted, and with what error; "" without changes.
    ``not_predicted``: the reasons if nothing could be predicted; ``left_out``: all changes that were considered and
    left out."""

    changes: tuple[Change, ...]
    basis: str
    not_predicted: tuple[str, ...]
    left_out: tuple[str, ...]


class Page(Struct, frozen=True):
    """Everything but the advice, from top to bottom. ``outcome``: how a run failed, if it did; it comes first, and the
    verdict is then about the steps recorded until that moment. ``since``: since when a step takes as long as it does,
    and because of what, and which steps stalled and are not counted; "" where neither is so. ``failures``: allocations
    that failed, whether or not that ended the run. ``recorded``: when the run was recorded, "" if it is not known.
    ``rank``: the one shown in detail, at fault or named by the first finding that names one. ``stall_lines``: the
    longest stalls, a line each. ``further``: of the ``findings``, critical ones that are no cause of the verdict and
    cost time of their own. ``not_looked``: questions and the reason that they share. ``gaps``: at most MOST_GAPS of
    ``all_gaps``."""

    title: RunName
    facts: tuple[str, ...]
    versions: tuple[str, ...]
    incomplete: str
    verdict: VerdictShown
    metrics: tuple[Metric, ...]
    rank: int
    ranks: Table
    idle: Table | None
    stalls: Table
    stall_lines: tuple[str, ...]
    findings: tuple[Card, ...]
    basis: str
    notes: tuple[str, ...]
    not_found: tuple[str, ...]
    not_looked: tuple[str, ...]
    gaps: tuple[Gap, ...]
    all_gaps: int
    recorded: str = ""
    outcome: Outcome | None = None
    since: str = ""
    failures: tuple[Failure, ...] = ()
    further: tuple[Card, ...] = ()

    @property
    def out_of_memory(self) -> tuple[str, ...]:
        """Each failed allocation in a few sentences."""
        return tuple(failure.sentence for failure in self.failures)

    @property
    def beside(self) -> list[Card]:
        """Findings that cost no time, and that the headline does not name."""
        named = self.verdict.headline.lower()
        return [
            card
            for card in self.findings
            if card.severity is not Severity.HEALTHY and not card.cost and card.title.lower() not in named
        ]

    @property
    def urgent(self) -> list[Card]:
        """Critical findings that cost no time, so no cost puts them first."""
        return [card for card in self.beside if card.severity is Severity.CRITICAL]


def page_of(result: Result, most_ranks: int | None = None) -> Page:
    """The page of a result, without advice. ``most_ranks``: the most rows in the table of ranks."""
    coverage, attribution, run = result.coverage, result.attribution, describe_run(result)
    culprits = result.verdict.culprit_ranks
    shown = np.unique(attribution.steps.parts.rank).tolist()
    named = (*culprits, *(rank for finding in result.examination.findings for rank in finding.ranks))
    rank = next((rank for rank in named if rank in shown), shown[0] if shown else 0)
    whole = "window" if attribution.undivided else "step"
    found = result.examination.findings
    cards = tuple(_card(each, place_of(result, each, rank), whole, action_of(result, each)) for each in found)
    return Page(
        title=RunName(result.tables.root.resolve().name),
        facts=tuple(run_facts(run, coverage)),
        versions=tuple(f"{name} {version}" for name, version in run["versions"].items()),
        incomplete=incomplete(coverage),
        verdict=replace(
            verdict_of(
                result.verdict,
                steps_counted(attribution, result.tables.retained),
                why=result.why,
                action=action_of(result, result.cause) if result.cause is not None else "",
                bound="straggler" if len(result.causes) == 1 and result.causes[0].outside_of_work else "",
            ),
            also=" ".join(action_of(result, finding) for finding in result.causes[1:]),
            unprofiled=_unprofiled(result),
        ),
        metrics=metrics_of(result),
        rank=rank,
        ranks=ranks_of(result, most_ranks),
        idle=idle_table(attribution, rank),
        stalls=stall_table(attribution),
        stall_lines=stall_lines(attribution),
        findings=cards,
        basis=" ".join(filter(None, (_basis(coverage), doubts(result.verdict)))),
        notes=(*policy.notes(), *(f"{sentence(note)}." for note in coverage.notes)),
        not_found=result.examination.not_found,
        not_looked=_not_looked(coverage),
        gaps=coverage.skipped[: PAGE.most_gaps],
        all_gaps=len(coverage.skipped),
        recorded=_recorded(result),
        outcome=result.outcome,
        since=" ".join(filter(None, (_changed(result), _stalled(result)))),
        failures=failures_of(result.failed_allocations),
        further=tuple(card for finding, card in zip(found, cards, strict=True) if finding in result.further),
    )


def _changed(result: Result) -> str:
    return _since(result.history) if result.may_have_changed else ""


def _stalled(result: Result) -> str:
    stalled = stalled_steps(result.attribution)
    return _not_counted(stalled) if stalled else ""


def ranks_of(result: Result, most: int | None = None) -> Table:
    """The table of at most ``most`` ranks: those at fault, then those that the others wait for."""
    culprits = result.verdict.culprit_ranks
    if isinstance(result, DurationResult):
        return duration_rank_table(result.durations, culprits, most)
    return rank_table(result.attribution, culprits, result.scheduled, most, _charged_ns(result))


def _recorded(result: Result) -> str:
    manifest = result.tables.manifest
    return moment(manifest.created_unix_ns) if manifest is not None and manifest.created_unix_ns > 0 else ""


def _charged_ns(result: Result) -> Mapping[int, int]:
    """How long the others wait for each rank because of the finding that names the culprits, the verdict's cause. Empty
    without culprits."""
    return result.cause.charged_ns if result.cause is not None and result.verdict.culprit_ranks else {}


def verdict_of(verdict: Verdict, steps: str = "", why: str = "", action: str = "", bound: str = "") -> VerdictShown:
    """The verdict in words. ``steps``: how many of how many steps count. ``bound``: what holds the step up, if that is
    not the name of the class. Without an answer there is no confidence."""
    facts = []
    if verdict.culprit_ranks:
        where = f" on {', '.join(verdict.culprit_hosts)}" if verdict.culprit_hosts else ""
        facts.append(f"At fault: {listing(verdict.culprit_ranks)}{where}")
    if verdict.bottleneck != Bottleneck.UNDETERMINED or verdict.culprit_ranks:
        facts.append(f"{CONFIDENCE} {share(verdict.confidence)}")
    if steps:
        facts.append(steps if facts else sentence(steps))
    return VerdictShown(
        verdict.severity,
        bound or class_name(verdict.bottleneck),
        verdict.headline,
        tuple(facts),
        why,
        action,
        largest_doubt(verdict),
    )


def _unprofiled(result: Result) -> str:
    waits = host_waits(result) if result.verdict.bottleneck == Bottleneck.HOST else None
    longer = result.examination.longer
    if waits is None or longer is None:
        return ""
    steps = counted(longer.others, "step")
    return sentences.WITHOUT_PROFILER(share=share(waits.outside), step=duration(longer.untraced_ns), steps=steps)


def host_waits(result: Result) -> HostWait | None:
    """How long devices wait for their hosts with the profiler and without; None where that is hardly different."""
    waits = host_wait(result.attribution, result.tables, result.examination.longer)
    return waits if waits is not None and waits.counts else None


def place_of(result: Result, finding: Finding, otherwise: int = 0) -> Place | None:
    """Where to look at a finding. ``otherwise``: the rank if the finding names none."""
    shares = result.examination.shares
    rank = min(finding.ranks, default=otherwise)
    shown = set(shares.numbers) & (result.attribution.detailed or set(shares.numbers))
    steps = result.attribution.steps.of_numbers(shown)
    parts, owner = steps.parts, steps.of_part
    recorded = steps.step[owner[parts.rank == rank]].tolist()
    if finding.bottleneck is None or not finding.cost_ns_per_step or not recorded:
        return None
    costs = [cost for cost in Cost if class_of(cost, shares.on_device) == finding.bottleneck]
    blamed = [series for cost in costs for of, series in shares.blame_ns.get(cost, {}).items() if of == rank]
    spent = np.sum(blamed if any(map(np.any, blamed)) else [shares.cost(cost) for cost in costs], axis=0)
    cost_of = dict(zip(shares.numbers, spent.tolist(), strict=True))
    in_trace = owner[(parts.rank == rank) & parts.from_source("trace")]
    traced = steps.step[in_trace].tolist()
    return Place(rank, max(traced or recorded, key=cost_of.__getitem__))


def _card(finding: Finding, place: Place | None, whole: str, action: str) -> Card:
    """``whole``: what its share is of."""
    cost = part = f"{share(finding.share)} of the {whole}" if finding.cost_ns_per_step else ""
    if cost and not printed_alike(finding.title_ns, finding.cost_ns_per_step):
        cost += f", {duration(finding.cost_ns_per_step)}"
    ranks = listing(finding.ranks) if finding.ranks else ""
    facts = (cost, ranks, f"confidence {share(finding.confidence)}", finding.id)
    return Card(
        severity=finding.severity,
        badge="minor" if finding.severity == Severity.HEALTHY else finding.severity.words,
        title=finding.title,
        cost=cost,
        facts=tuple(fact for fact in facts if fact),
        action=action,
        evidence=_evidence(finding.evidence, finding.cost_ns_per_step),
        place=place,
        rows=query_of(finding),
        share=part,
    )


def _evidence(evidence: tuple[Evidence, ...], cost_ns: float = 0) -> Table:
    """``cost_ns``: of a finding, a step: it is written beside its share, the first number."""
    texts = [measured(item.value, item.unit) for item in evidence]
    if evidence and cost_ns and evidence[0].unit == "share":
        texts[0] += f" = {duration(cost_ns)}"
    return table_of(
        "evidence",
        f"Evidence: {counted(len(evidence), 'number')}",
        {
            Column("rows", label="what"): [item.filter for item in evidence],
            Column("value", NUMBER): [Cell(item.value, value) for item, value in zip(evidence, texts, strict=True)],
            Column("table", label="in Python"): [f"run.{item.table}" for item in evidence],
        },
    )


RISK = {
    Risk.SAFE: "safe",
    Risk.MEMORY: "takes memory",
    Risk.NUMERICS: "changes numerical results",
    Risk.CORRECTNESS: "may change what the model learns",
}


def advice_of(result: Result) -> Advised:
    """The changes to try first, with gains that a replay of the steps predicts."""
    advised, findings = result.recommendation, {finding.id: finding for finding in result.examination.findings}
    basis = sentences.GAINS_ARE_PREDICTED()
    if advised.replay_error is not None:
        basis = sentences.GAINS_ARE_PREDICTED_WITHIN(error=f"{advised.replay_error:.1%}")
    return Advised(
        changes=tuple(
            _change(advice, findings.get(advice.finding), per_whole(result.attribution)) for advice in advised.advice
        ),
        basis=basis if advised.advice else "",
        not_predicted=tuple(f"{sentence(reason)}." for reason in advised.not_advised if advised.refused),
        left_out=tuple(map(sentence, advised.not_advised)),
    )


def saves(advice: Advice) -> str:
    low, likely, _ = advice.predicted_gain_ns
    return f"{'saves' if low > 0 else 'may save'} {duration(likely)}, {share(advice.gain_share)}"


def _change(advice: Advice, finding: Finding | None, per: str = "a step") -> Change:
    low, likely, high = advice.predicted_gain_ns
    delta = advice.memory_delta_bytes
    if delta is None:
        memory = "memory not known"
    elif delta:
        memory = (sentences.MORE_MEMORY if delta > 0 else sentences.LESS_MEMORY)(size=size(abs(delta)))
    else:
        memory = "no more memory"
    return Change(
        title=sentence(advice.change),
        saves=saves(advice),
        gain=(sentences.SAVES if low > 0 else sentences.MAY_SAVE)(
            likely=duration(likely),
            per=per,
            share=share(advice.gain_share),
            low=duration(low),
            high=duration(high),
            against=against_cost(advice.predicted_gain_ns[1], finding, advice.knob == Knob.STRAGGLER),
        ),
        sure=low > 0,
        memory=memory,
        risk=advice.risk,
        finding=advice.finding,
        command=Command(advice.command),
        code=tuple(advice.code.items()),
        diffs=tuple((api, _diff(before, advice.code[api])) for api, before in advice.before.items()),
        assumptions=advice.assumptions,
        evidence=_evidence(advice.evidence),
    )


def _diff(before: str, after: str) -> str:
    """All lines of both texts, removed ones with a leading "-" and added ones with a leading "+"."""
    lines = ndiff(before.splitlines(), after.splitlines())
    return "\n".join(line.rstrip() for line in lines if not line.startswith("?"))


def against_cost(gain: float, finding: Finding | None, of_rank: bool) -> str:
    """Why a gain differs from the cost of the finding, as the end of a sentence; "" if it does not. ``of_rank``: it is
    that of a rank like the others."""
    if finding is None or not finding.cost_ns_per_step:
        return ""
    cost = finding.cost_ns_per_step
    if abs(gain - cost) <= PAGE.equal_gain_and_cost_share * cost:
        return ""
    if gain < cost:
        why = (sentences.ANOTHER_RANK_IS_LAST if of_rank else sentences.A_PART_IS_REMOVED)()
        return sentences.LESS_THAN_THE_FINDING(cost=duration(cost), why=why)
    every = sentences.EVERY_CAUSE_IS_REMOVED(ranks=listing(finding.ranks))
    return sentences.MORE_THAN_THE_FINDING(cost=duration(cost), why=every if of_rank else sentences.OTHER_COSTS_FALL())


def _basis(coverage: Coverage) -> str:
    """The ranks that the answer rests on, and how well their clocks agree."""
    total = len(coverage.ranks_used) + len(coverage.ranks_missing)
    clock = coverage.clock_uncertainty_ns
    told = {"used": len(coverage.ranks_used), "ranks": counted(total, "rank")}
    if len(coverage.ranks_used) <= 1:  # nothing to align
        return sentences.RANKS_USED(**told)
    if clock is None:
        return sentences.RANKS_NOT_ALIGNED(**told)
    if not clock:
        return sentences.RANKS_OF_ONE_CLOCK(**told)
    if not coverage.clock_drift_ppm:
        return sentences.RANKS_ALIGNED(**told, uncertainty=duration(clock))
    drift = f"{coverage.clock_drift_ppm:.1f}"
    return sentences.RANKS_ALIGNED_AFTER_DRIFT(**told, uncertainty=duration(clock), drift=drift)


def _not_looked(coverage: Coverage) -> tuple[str, ...]:
    by_reason: dict[str, list[str]] = {}
    for item in coverage.not_looked:
        by_reason.setdefault(item.reason, []).append(item.question)
    return tuple(f"{', '.join(questions)}: {reason}" for reason, questions in by_reason.items())


class _Number(Struct, frozen=True):
    """``value``: computes the number from a result, None if it is not known. ``points``: the number is a share, and
    differences are given in percentage points."""

    label: Callable[[Result], str]
    value: Callable[[Result], float | None]
    text: Callable[[float], str]
    help: Callable[[Result], str]
    more_is: str = "bad"
    points: bool = False


def metrics_of(result: Result, baseline: Result | None = None) -> tuple[Metric, ...]:
    """The numbers of the counted steps, with the differences to those of a baseline."""
    if isinstance(result, DurationResult):
        return _of_durations(result.durations)
    comparable = baseline is None or not reasons_against(baseline.tables, result.tables)
    shown = []
    for number in _NUMBERS:
        value = number.value(result)
        before = number.value(baseline) if baseline is not None else None
        if value is None and before is None:
            continue
        shown.append(
            Metric(
                number.label(result),
                UNKNOWN if value is None else number.text(value),
                number.help(result),
                "" if value is None or before is None else _difference(number, value, before),
                number.more_is if comparable else "neither",
            )
        )
    return tuple(shown) if baseline is not None else _without_profiler(result, shown)


def _without_profiler(result: Result, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Metrics of profiled steps as they are without the profiler, which makes a step longer; where that is not known,
    which steps they are of."""
    longer = result.examination.longer
    if longer is None:
        return tuple(metrics)
    waits, numbers = host_waits(result), numbers_of(result)
    times = longer.traced_ns / longer.untraced_ns
    known = {STEP_TIME: duration(longer.untraced_ns)}
    known |= {name: f"{times * (numbers.get(name) or 0.0):,.0f}" for name in (TOKENS_PER_S,)}
    known |= {MFU: share(times * (numbers.get(MFU) or 0.0))}
    known |= {HOST_WAIT: f"about {share(waits.outside)}"} if waits is not None else {}
    plain = f"Without the profiler, from the median of {counted(longer.others, 'step')} that it did not record. "
    return tuple(
        replace(
            metric,
            value=known.get(metric.label, metric.value),
            against=f"{metric.value} profiled" if metric.label in known else "profiled",
            help=(plain if metric.label in known else "") + metric.help,
            more_is="neither",
        )
        if metric.value != UNKNOWN and metric.label != _memory_label(result)
        else metric
        for metric in metrics
    )


def numbers_of(result: Result) -> Mapping[str, float | None]:
    """The same metrics as numbers, by label: nanoseconds, tokens per second, shares, bytes; None if one is unknown."""
    if isinstance(result, DurationResult):
        return {}
    return {number.label(result): number.value(result) for number in _NUMBERS}


def _of_durations(account: Durations) -> tuple[Metric, ...]:
    waits = float(account.wait_ns.sum() / account.busy_ns.sum()) if account.busy_ns.any() else 0.0
    busy = UNKNOWN if account.share is None else share(account.share)
    return (
        Metric(
            "Collectives", f"{account.complete:,}", "Collectives that were recorded on all ranks of their communicator."
        ),
        Metric(
            "In collectives",
            busy,
            "Time of a rank in collectives, overlapped with computation or not, as a share of what the records "
            "span. Mean over the ranks.",
        ),
        Metric("Waiting", share(waits), "Waiting for the last rank to arrive, as a share of the time in collectives."),
    )


def _difference(number: _Number, value: float, before: float) -> str:
    change = value - before
    amount = f"{abs(change) * 100:.1f}{NBSP}points" if number.points else number.text(abs(change))
    of_before = f" ({relative(value / before, 1)})" if before and not number.points else ""
    return f"{'-' if change < 0 else '+'}{amount}{of_before}"  # Streamlit takes the direction from a leading minus


def _step_label(result: Result) -> str:
    return "Window" if result.attribution.undivided else STEP_TIME


def _step_help(result: Result) -> str:
    """The definition of step time; it agrees with the glossary's."""
    attribution, median = result.attribution, duration(float(np.median(result.examination.shares.dur_ns)))
    if attribution.undivided:
        return "From the first to the last recorded work, without start-up."
    inside = (
        "All of them were recorded by a profiler, which makes steps longer"
        if attribution.in_windows
        else ("Warm-up and steps in profiler windows do not count")
    )
    return (
        "Mean of the counted steps, each from the begin of its critical path to the last rank's end: a rank that "
        "begins earlier, and waits, does not make it longer. "
        f"{inside}. The headline, shares and gains are of this mean; the median is {median}."
    )


def _tokens_per_second(result: Result) -> float | None:
    tokens = tokens_of(result.tables, result.attribution)
    if isinstance(tokens, str):
        return None
    return token_rate(sum(tokens), int(result.attribution.counted.dur_ns.sum())) or None


def _peak_bytes(result: Result) -> float | None:
    peak = result.peak_memory
    return None if peak is None or result.from_summaries else float(peak.bytes)


def _memory_help(result: Result) -> str:
    peak = result.peak_memory
    if peak is None:
        return "The largest peak of all ranks and steps. Not recorded here."
    return f"{peak.definition} The largest of all ranks: rank {peak.rank}'s."


def _memory_label(result: Result) -> str:
    peak = result.peak_memory
    if peak is None or not peak.on_device:
        return "Peak memory"
    return "Peak reserved" if peak.capacity is None else f"Reserved, of {size(peak.capacity)}"


def _share_of(result: Result, cost: Cost) -> float | None:
    """The cost as ``diag check`` and the findings measure it; None if it could not be looked for."""
    return None if result.examination.unseen(cost) else result.examination.shares.share(cost)


def _of_own_step(attribution: Attribution, field: str) -> str:
    """The share of the ranks' own steps that a field of ``Parts`` takes, over all ranks and counted steps."""
    parts = attribution.counted.parts
    total = int(parts.dur_ns.sum())
    return share(int(parts.column(field).sum()) / total if total else 0.0)


def _communication_help(result: Result) -> str:
    own = _of_own_step(result.attribution, "exposed_comm_ns")
    return (
        "Exposed communication on the critical path, as a share of the step. Waiting for a slower rank counts with "
        f"what makes that rank slow. With that waiting, the ranks spend {own} of their own steps in communication."
    )


def _data_help(result: Result) -> str:
    own = _of_own_step(result.attribution, "data_wait_ns")
    return (
        "Waiting for the data loader on the critical path, as a share of the step, also where all ranks wait for one "
        f"rank's loader. The ranks spend {own} of their own steps on it."
    )


def _host_help(result: Result) -> str:
    own = _of_own_step(result.attribution, "idle_parts.by_host_ns")
    return (
        "Idle time of the device on the critical path, as a share of the step, because the host launches late, "
        f"synchronises or allocates memory. The devices idle for it in {own} of the ranks' own steps."
    )


_NUMBERS = (
    _Number(_step_label, lambda result: float(result.examination.shares.dur_ns.mean()), duration, _step_help),
    _Number(
        lambda _: TOKENS_PER_S,
        _tokens_per_second,
        "{:,.0f}".format,
        lambda _: (
            "Tokens of all ranks in the counted steps, over the time of these steps. Unknown where not every "
            "rank counts its tokens, or ranks share them (tensor parallelism)."
        ),
        more_is="good",
    ),
    _Number(
        lambda _: MFU,
        lambda result: result.mfu.value,
        share,
        lambda result: f"Model FLOPs utilisation: {result.mfu.basis}.",
        more_is="good",
        points=True,
    ),
    _Number(
        lambda _: EXPOSED_COMM, lambda result: _share_of(result, Cost.COMM), share, _communication_help, points=True
    ),
    _Number(lambda _: DATA_WAIT, lambda result: _share_of(result, Cost.DATA), share, _data_help, points=True),
    _Number(
        lambda _: HOST_WAIT,
        lambda result: _share_of(result, Cost.HOST) if result.on_device else None,
        share,
        _host_help,
        points=True,
    ),
    _Number(
        _memory_label,
        _peak_bytes,
        size,
        _memory_help,
    ),
)

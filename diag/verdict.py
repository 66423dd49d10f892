"""One answer from many findings (science.md 2.7), with the confidence that the data allows, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from diag.findings import Examination, low_mfu, pipeline_bubble
from diag.findings.culprits import Series
from diag.findings.shares import CLASS_OF, Cost, Shares, costs_of
from diag.findings.stages import Stages
from diag.findings.subject import LEAST_FOR_BLOCKS, STAGES_ALONE, WARN, resampled, severity
from diag.ingest.run import Tables
from diag.model import Attribution, Bottleneck, Coverage, Finding, Severity, StepAccount, Verdict

_CLASSES = (Bottleneck.DATA, Bottleneck.HOST, Bottleneck.COMMUNICATION, Bottleneck.COMPUTE)

# Two causes whose shares differ by less than this are one "mixed" answer.
TIE = 0.05
_INTERVAL = 2.5  # per cent on either side: two causes whose order is within it are of equal weight, too
_NO_COMMUNICATION_DATA = 0.6  # the most that can be said for sure where communication was not recorded
_NOT_ALIGNED = 0.6  # ... and where waiting could not be told from transfer
_UNSEEN = 0.6  # ... and where ranks that nobody saw may be whom the others waited for
_COARSE = 0.5  # ... and where the stages are all there is, with communication somewhere in them
_DOUBTED = 0.6  # ... and where two accounts of the run contradict each other
_LATE_AT_LEAST = 0.5  # who was late is known, whatever the reason
_BASIS = " This rests on the durations of the stages alone: no collectives tie the ranks' timelines together."
_EXPLAINED = 0.8  # of the waiting for late ranks (science.md 2.6); below it the confidence is no more than the part


def judge(attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables) -> Verdict:
    """The run's verdict. The largest removable cost decides; without one the run is bound by its computation."""
    shares = examination.shares
    if not len(shares.dur_ns) or shares.dur_ns.sum() <= 0:
        return _undetermined("no complete step was recorded", "let the training run for some steps more")
    shares, findings = faults_first(shares), examination.findings
    if Cost.BUBBLE not in shares.cost_ns:
        findings = tuple(finding for finding in findings if finding.id != pipeline_bubble.ID)
    by_class = _by_class(shares)
    removable = {name: float(series.sum() / shares.dur_ns.sum()) for name, series in by_class.items()}
    drawn = {name: resampled(series, shares.dur_ns) for name, series in by_class.items()}
    bottleneck, share = classify(removable)
    if bottleneck != Bottleneck.COMPUTE or share >= WARN:
        bottleneck = _unless_by_chance(bottleneck, removable, drawn, len(shares.dur_ns))
    stages = examination.stages if examination.stages is not None and examination.stages.alone else None
    most = max(removable.values()) if stages is not None else removable[Bottleneck.DATA]
    if not attribution.comm_known and most < WARN:
        return _undetermined(
            "the device's work was not recorded", "record a profiler window (diag run --trace), then ask again"
        )
    cause = _cause(findings, bottleneck)
    if cause is not None and cause.id == pipeline_bubble.ID:  # what is out of order comes first here, too
        cause = _cause([finding for finding in findings if finding.id != pipeline_bubble.ID], bottleneck) or cause
    level = severity(share)
    if level == Severity.HEALTHY and (slow := _low_use(findings)) is not None:
        cause, share, level = slow, slow.share, slow.severity
    confidence = min(
        _margin(drawn, bottleneck),
        low_mfu.CONFIDENCE if cause is not None and cause.id == low_mfu.ID else 1.0,
        _enough(len(shares.dur_ns)),
        _covered(coverage, cause),
        _UNSEEN if coverage.ranks_missing and _waits(bottleneck, cause, shares) else 1.0,
        1.0 if attribution.comm_known else _NO_COMMUNICATION_DATA,
        _resting_on(stages) if stages is not None else _alignment(attribution, tables, share, shares),
        _DOUBTED if examination.doubts else 1.0,
    )
    culprits = _culprits(cause, findings) if cause is not None and level != Severity.HEALTHY else ()
    headline = _headline(bottleneck, level, share, cause, findings, shares, stages)
    if stages is not None:
        headline += _BASIS
    return Verdict(
        bottleneck=bottleneck,
        severity=level,
        cause=cause.id if cause is not None else "",
        share=round(share, 4),
        confidence=round(min(0.99, confidence), 2),
        culprit_ranks=culprits,
        culprit_hosts=_hosts(tables, culprits),
        headline=headline,
    )


def faults_first(shares: Shares) -> Shares:
    """Without the bubble of a pipeline where anything else is worth a warning: the bubble is in the schedule that was
    chosen, the rest is out of order."""
    if Cost.BUBBLE not in shares.cost_ns:
        return shares
    rest = replace(shares, cost_ns={cost: ns for cost, ns in shares.cost_ns.items() if cost != Cost.BUBBLE})
    worst = max(float(series.sum()) for series in _by_class(rest).values())
    return rest if worst >= WARN * float(shares.dur_ns.sum()) else shares


def classify(removable: Mapping[Bottleneck, float]) -> tuple[Bottleneck, float]:
    """The class of a step or a run, and the share that decided it, from the removable share of each class."""
    ordered = sorted(removable.items(), key=lambda item: -item[1])
    top, share = ordered[0]
    if share < WARN:
        return Bottleneck.COMPUTE, share
    if len(ordered) > 1 and ordered[1][1] >= WARN and share - ordered[1][1] < TIE:
        return Bottleneck.MIXED, share
    return top, share


def step_bottleneck(step: StepAccount, on_device: bool) -> Bottleneck:
    """The class of one step, by the rule of the run."""
    if step.dur_ns <= 0:
        return Bottleneck.UNDETERMINED
    removable = dict.fromkeys(_CLASSES, 0.0)
    for cost, ns in costs_of(step, on_device).items():
        removable[CLASS_OF[cost]] += ns / (step.dur_ns + step.unexplained_ns)
    return classify(removable)[0]


def classes_of(shares: Shares) -> dict[int, Bottleneck]:
    """The class of each step that counts and took any time, by the rule of the run."""
    by_class = _by_class(shares)
    return {
        step: classify({name: float(series[at] / shares.dur_ns[at]) for name, series in by_class.items()})[0]
        for at, step in enumerate(shares.numbers)
        if shares.dur_ns[at]
    }


def _by_class(shares: Shares) -> dict[Bottleneck, Series]:
    found: dict[Bottleneck, Series] = {name: np.zeros_like(shares.dur_ns) for name in _CLASSES}
    for cost in Cost:
        found[CLASS_OF[cost]] = found[CLASS_OF[cost]] + shares.cost(cost)
    return found


def _unless_by_chance(
    bottleneck: Bottleneck, removable: Mapping[Bottleneck, float], drawn: Mapping[Bottleneck, Series], steps: int
) -> Bottleneck:
    """ "Mixed" where both of the top two classes are worth a warning and other steps might have them the other way
    round."""
    first, second, *_ = sorted(removable, key=lambda name: -removable[name])
    if steps < LEAST_FOR_BLOCKS or removable[second] < WARN:
        return bottleneck
    return Bottleneck.MIXED if np.percentile(drawn[first] - drawn[second], _INTERVAL) <= 0 else bottleneck


def _margin(drawn: Mapping[Bottleneck, Series], bottleneck: Bottleneck) -> float:
    """How often the same class comes out over resampled steps; of a mixed run, how often both classes are worth a
    warning."""
    if bottleneck == Bottleneck.MIXED:
        return float((np.sort(np.stack(list(drawn.values())), axis=0)[-2] >= WARN).mean())
    rounds = len(next(iter(drawn.values())))
    same = sum(classify({name: float(drawn[name][i]) for name in drawn})[0] == bottleneck for i in range(rounds))
    return same / rounds


def _covered(coverage: Coverage, cause: Finding | None) -> float:
    """The part of the ranks that were seen, and of the waiting whose reason is known where a late rank is the cause."""
    ranks = len(coverage.ranks_used) / max(1, len(coverage.ranks_used) + len(coverage.ranks_missing))
    explained = coverage.explained_wait
    if cause is None or not cause.ranks or explained is None or explained >= _EXPLAINED:
        return ranks
    return min(ranks, max(explained, _LATE_AT_LEAST))


def _waits(bottleneck: Bottleneck, cause: Finding | None, shares: Shares) -> bool:
    """Whether much of the answer is time in collectives: a transfer begins when the last rank comes, and that may be
    one that was not seen."""
    if bottleneck in (Bottleneck.COMMUNICATION, Bottleneck.MIXED):
        return cause is None or cause.id != "slow-link"
    return shares.share(Cost.COMM) >= WARN


def _alignment(attribution: Attribution, tables: Tables, share: float, shares: Shares) -> float:
    """How small what the clocks may be off by is against what the verdict is about."""
    if _alone(tables):
        return 1.0
    if not attribution.aligned:
        return _NOT_ALIGNED
    effect = max(share, WARN) * float(shares.dur_ns.mean())
    return max(_NOT_ALIGNED, 1 - (attribution.clock_uncertainty_ns or 0) / effect) if effect else _NOT_ALIGNED


def _resting_on(stages: Stages) -> float:
    return STAGES_ALONE if stages.frontier.communication_known else _COARSE


def _enough(steps: int) -> float:
    """Few steps prove little, however alike they are: the rule of succession."""
    return (steps + 1) / (steps + 2)


def _low_use(findings: Sequence[Finding]) -> Finding | None:
    """Computation that is slow by itself: what a run is bound by where nothing else costs time (science.md 2.7)."""
    return next((finding for finding in findings if finding.id == low_mfu.ID), None)


def _cause(findings: Sequence[Finding], bottleneck: Bottleneck) -> Finding | None:
    for finding in findings:
        if finding.bottleneck is not None and bottleneck in (finding.bottleneck, Bottleneck.MIXED):
            return finding
    return None


def _culprits(cause: Finding, findings: Sequence[Finding]) -> tuple[int, ...]:
    """The ranks at fault: those of the cause; and where all hosts hold their devices up, the one that does so most."""
    if cause.ranks or cause.bottleneck != Bottleneck.HOST:
        return cause.ranks
    of_hosts = (f for f in findings if f.bottleneck == Bottleneck.HOST and f.ranks and f.severity != Severity.HEALTHY)
    return next((finding.ranks for finding in of_hosts), ())


def _headline(
    bottleneck: Bottleneck,
    level: Severity,
    share: float,
    cause: Finding | None,
    findings: Sequence[Finding],
    shares: Shares,
    stages: Stages | None,
) -> str:
    # The mean: the share is of it, and so are the milliseconds of a finding.
    step = f"{float(shares.dur_ns.mean()) / 1e6:.0f} ms a step"
    if stages is not None and (level == Severity.HEALTHY or cause is None):
        unseen = "" if stages.frontier.communication_known else "; communication is not told from computation"
        return f"No stage and no rank stands out, {step}{unseen}."
    if level == Severity.HEALTHY or cause is None:
        return f"Healthy: compute-bound, {step}; nothing removable costs more than {max(share, 0.0):.0%} of it."
    if bottleneck == Bottleneck.MIXED:
        first, second = [f for f in findings if f.bottleneck is not None][:2]
        return f"Mixed: {_lower(first.title)}; and {_lower(second.title)}."
    return f"{bottleneck.value.capitalize()}-bound ({share:.0%} of {step}): {_lower(cause.title)}."


def _lower(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # "DDP reduces ..." stays


def _undetermined(why: str, next_step: str) -> Verdict:
    headline = f"Undetermined: {why}. Next: {next_step}."
    return Verdict(Bottleneck.UNDETERMINED, Severity.WARN, "", 0.0, 0.0, (), (), headline)


def _hosts(tables: Tables, ranks: Sequence[int]) -> tuple[str, ...]:
    hosts = (tables.ranks[rank].host for rank in ranks if rank in tables.ranks)
    return tuple(dict.fromkeys(host for host in hosts if host))


def _alone(tables: Tables) -> bool:
    return (tables.world_size or 1) == 1

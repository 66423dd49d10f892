"""One answer from many findings (science.md 2.7), with the confidence that the data allows, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diag.findings import Examination
from diag.findings.culprits import Series
from diag.findings.shares import CLASS_OF, Cost, Shares, costs_of
from diag.findings.subject import WARN, resampled, severity
from diag.ingest.run import Tables
from diag.model import Attribution, Bottleneck, Coverage, Finding, Severity, StepAccount, Verdict

# Two causes whose shares differ by less than this are one "mixed" answer.
TIE = 0.05
_NO_COMMUNICATION_DATA = 0.6  # the most that can be said for sure where communication was not recorded
_NOT_ALIGNED = 0.6  # ... and where waiting could not be told from transfer


def judge(attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables) -> Verdict:
    """The run's verdict. The largest removable cost decides; without one the run is bound by its computation."""
    shares = examination.shares
    if not len(shares.dur_ns) or shares.dur_ns.sum() <= 0:
        return _undetermined("no complete step was recorded", "let the training run for some steps more")
    by_class = _by_class(shares)
    removable = {name: float(series.sum() / shares.dur_ns.sum()) for name, series in by_class.items()}
    bottleneck, share = classify(removable)
    if not attribution.comm_known and removable[Bottleneck.DATA] < WARN:
        return _undetermined(
            "the device's work was not recorded", "record a profiler window (diag run --trace), then ask again"
        )
    cause = _cause(examination.findings, bottleneck)
    level = severity(share)
    confidence = min(
        _margin(by_class, shares.dur_ns, bottleneck),
        _enough(len(shares.dur_ns)),
        len(coverage.ranks_used) / max(1, len(coverage.ranks_used) + len(coverage.ranks_missing)),
        1.0 if attribution.comm_known else _NO_COMMUNICATION_DATA,
        1.0 if attribution.aligned or _alone(tables) else _NOT_ALIGNED,
    )
    culprits = cause.ranks if cause is not None and level != Severity.HEALTHY else ()
    return Verdict(
        bottleneck=bottleneck,
        severity=level,
        cause=cause.id if cause is not None else "",
        share=round(share, 4),
        confidence=round(min(0.99, confidence), 2),
        culprit_ranks=culprits,
        culprit_hosts=_hosts(tables, culprits),
        headline=_headline(bottleneck, level, share, cause, examination.findings, shares),
    )


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
    removable = dict.fromkeys((Bottleneck.DATA, Bottleneck.COMMUNICATION, Bottleneck.COMPUTE), 0.0)
    for cost, ns in costs_of(step, on_device).items():
        removable[CLASS_OF[cost]] += ns / step.dur_ns
    return classify(removable)[0]


def _by_class(shares: Shares) -> dict[Bottleneck, Series]:
    found: dict[Bottleneck, Series] = {
        name: np.zeros_like(shares.dur_ns) for name in (Bottleneck.DATA, Bottleneck.COMMUNICATION, Bottleneck.COMPUTE)
    }
    for cost in Cost:
        found[CLASS_OF[cost]] = found[CLASS_OF[cost]] + shares.cost(cost)
    return found


def _margin(by_class: Mapping[Bottleneck, Series], dur_ns: Series, bottleneck: Bottleneck) -> float:
    """How often the same class comes out over resampled steps."""
    drawn = {name: resampled(series, dur_ns) for name, series in by_class.items()}
    rounds = len(next(iter(drawn.values())))
    same = sum(classify({name: float(drawn[name][i]) for name in drawn})[0] == bottleneck for i in range(rounds))
    return same / rounds


def _enough(steps: int) -> float:
    """Few steps prove little, however alike they are: the rule of succession."""
    return (steps + 1) / (steps + 2)


def _cause(findings: Sequence[Finding], bottleneck: Bottleneck) -> Finding | None:
    for finding in findings:
        if finding.bottleneck is not None and bottleneck in (finding.bottleneck, Bottleneck.MIXED):
            return finding
    return None


def _headline(
    bottleneck: Bottleneck,
    level: Severity,
    share: float,
    cause: Finding | None,
    findings: Sequence[Finding],
    shares: Shares,
) -> str:
    step = f"{float(np.median(shares.dur_ns)) / 1e6:.0f} ms a step"
    if level == Severity.HEALTHY or cause is None:
        return f"Healthy: compute-bound, {step}; nothing removable costs more than {max(share, 0.0):.0%} of it."
    if bottleneck == Bottleneck.MIXED:
        first, second = [f for f in findings if f.bottleneck is not None][:2]
        return f"Mixed: {_lower(first.title)}; and {_lower(second.title)}."
    name = {Bottleneck.COMPUTE: "Compute", Bottleneck.COMMUNICATION: "Communication", Bottleneck.DATA: "Data"}
    return f"{name[bottleneck]}-bound ({share:.0%} of {step}): {_lower(cause.title)}."


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _undetermined(why: str, next_step: str) -> Verdict:
    headline = f"Undetermined: {why}. Next: {next_step}."
    return Verdict(Bottleneck.UNDETERMINED, Severity.WARN, "", 0.0, 0.0, (), (), headline)


def _hosts(tables: Tables, ranks: Sequence[int]) -> tuple[str, ...]:
    hosts = (tables.ranks[rank].host for rank in ranks if rank in tables.ranks)
    return tuple(dict.fromkeys(host for host in hosts if host))


def _alone(tables: Tables) -> bool:
    return (tables.world_size or 1) == 1

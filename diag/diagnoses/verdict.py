"""One answer from many findings (docs/concepts/verdict.md), with the confidence that the data allows, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, sqrt

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account.rank_steps import RankSteps
from diag.account.stalls import stalled_steps
from diag.deferred import by_name
from diag.diagnoses.confidence import Features, Rule, weighed
from diag.diagnoses.policy import COMPUTE, CONFIDENCE, FINDINGS, HOST_TIME, STRAGGLER, VERDICT
from diag.model.accounts import Attribution, StepAccounts
from diag.model.steps import STARTUP_DETAILS, Bottleneck, Coverage, Finding, Kind, Severity, Verdict
from diag.rundir.tables import Tables
from diag.words import sentences
from diag.words.formatting import share as printed
from diag.words.wording import per_whole

from . import Examination, ids
from .costs import REMOVABLE, Cost, class_of
from .culprits import Series, t95
from .durations import CollectivesAccount
from .durations import find as find_late
from .phases import PhaseAccount
from .shares import Shares
from .subject import in_ms, resampled, severity
from .timelines import shares_of_steps

_UNSEEN_WAITS = "the waits of some collectives were not recorded: they would count as computation"
_WINDOW = "record a profiler window (diag run --trace), then analyse again"
_WINDOW_OF_RUN = "record a profiler window (`diag run --trace`)"
_INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000"
_COMPETING = (*REMOVABLE, Bottleneck.UNDETERMINED)
_STRAGGLER = "Straggler"
_OF_DEVICES = (Bottleneck.COMMUNICATION, Bottleneck.COMPUTE, Bottleneck.MIXED)
# Of a run that is bound by loading.
_of_first_batch: Callable[[Attribution, Tables], bool] = by_name("diag.diagnoses.slow_data:of_first_batch")


def judge(attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables) -> Verdict:
    """The run's verdict. The largest removable cost decides; without one the run is compute-bound. Ranks that do not
    communicate come first: what bounds each of them is reported after that."""
    verdict = _judge(attribution, examination, coverage, tables)
    if (account := examination.collectives) is not None:
        undetermined = verdict.bottleneck == Bottleneck.UNDETERMINED and not verdict.culprit_ranks
        if undetermined or _costs_more(account, verdict):
            verdict = _by_collectives(account, tables)
    alone = next((finding for finding in examination.findings if finding.id == ids.RANKS_TRAIN_ALONE), None)
    if alone is None:
        return _unless_in_danger(verdict, examination.findings)
    return replace(
        verdict,
        severity=alone.severity,
        cause=alone.id,
        confidence=alone.confidence,
        culprit_ranks=(),
        culprit_hosts=(),
        headline=sentences.EACH_RANK_BY_ITSELF(finding=alone.title, verdict=_lower(verdict.headline)),
    )


def _unless_in_danger(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """A run that is not slow is no healthy one where something else endangers it, such as a device that is nearly full.
    That is said first, and no rank is at fault for the step. It is as severe as its finding."""
    if verdict.severity != Severity.HEALTHY:
        return verdict
    found = (finding for finding in findings if finding.id in ids.DANGERS)
    danger = min(found, key=lambda finding: finding.severity != Severity.CRITICAL, default=None)
    if danger is None:
        return verdict
    return replace(
        verdict,
        severity=danger.severity,
        cause=danger.id,
        confidence=danger.confidence,
        headline=sentences.IN_DANGER(finding=danger.title, verdict=_lower(verdict.headline)),
        doubts=(),
    )


class _Answer(Struct, frozen=True):
    """What the run's costs say, before how sure it is. ``removable``: share of each class; ``quiet``: fraction of the
    time without any operator, on a CPU."""

    bottleneck: Bottleneck
    severity: Severity
    share: float
    cause: Finding | None
    shares: Shares
    removable: Mapping[Bottleneck, float]
    quiet: float
    phases: PhaseAccount | None


def _judge(attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables) -> Verdict:
    answer = _answer(attribution, examination, tables)
    if isinstance(answer, Verdict):
        return answer
    cause, level, share, shares = answer.cause, answer.severity, answer.share, answer.shares
    findings = _findings(examination, shares)
    culprits = cause.ranks if cause is not None and level != Severity.HEALTHY else ()
    per = f" {per_whole(attribution)}"
    headline = _headline(answer.bottleneck, level, share, cause, findings, shares, answer.phases, per)
    if cause is not None and level != Severity.HEALTHY and answer.bottleneck != Bottleneck.MIXED:
        delayed = _delayed_by_host(cause, findings)
        headline += f" {delayed.title}." if delayed is not None else ""
    if level == Severity.HEALTHY and answer.quiet >= FINDINGS.warning_share:
        headline += f" {sentences.NO_OPERATOR_RUNS(share=f'{answer.quiet:.0%}')}"
    if answer.phases is not None:
        headline += f" {sentences.BY_PHASES_ALONE}"
    confidence, doubts = weighed(
        _features(answer, attribution, examination, coverage, tables),
        _rules(answer, attribution, examination, coverage, tables),
    )
    if len(coverage.ranks_used) == 1:  # of several: there is no second clock that could agree or not
        one = "only one rank was recorded, and nothing shows when the others were ready"
        doubts = tuple(replace(doubt, name=one) if doubt.name == "clock" else doubt for doubt in doubts)
    return Verdict(
        bottleneck=answer.bottleneck,
        severity=level,
        cause=cause.id if cause is not None else "",
        share=round(share, 4),
        confidence=confidence,
        culprit_ranks=culprits,
        culprit_hosts=_hosts(tables, culprits),
        headline=headline,
        doubts=doubts,
    )


def evidence_of(
    attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables
) -> tuple[Features, tuple[Rule, ...]] | None:
    """What the confidence of the run's verdict is computed from; None where the verdict is left open."""
    answer = _answer(attribution, examination, tables)
    if isinstance(answer, Verdict):
        return None
    rules = _rules(answer, attribution, examination, coverage, tables)
    return _features(answer, attribution, examination, coverage, tables), rules


def _answer(attribution: Attribution, examination: Examination, tables: Tables) -> Verdict | _Answer:
    """The answer, or the verdict that leaves it open."""
    shares = examination.shares
    if not len(shares.dur_ns) or shares.dur_ns.sum() <= 0:
        return _undetermined("no complete step was recorded", "let the training run for more steps")
    if (nothing := _nothing_to_judge(attribution, shares, tables)) is not None:
        return nothing
    shares = faults_first(shares)
    findings = _findings(examination, shares)
    by_class = _by_class(shares)
    removable = {name: float(series.sum() / shares.dur_ns.sum()) for name, series in by_class.items()}
    shared = next((finding for finding in findings if finding.id == ids.SHARED_GPU), None)
    if shared is not None and max(removable[name] for name in REMOVABLE) < FINDINGS.warning_share:
        return _unexplained(shared, removable[Bottleneck.UNDETERMINED])
    drawn = {name: resampled(series, shares.dur_ns) for name, series in by_class.items()}
    unexplained = removable[Bottleneck.UNDETERMINED]
    bottleneck, share = classify(removable)
    if bottleneck != Bottleneck.UNDETERMINED and (bottleneck != Bottleneck.COMPUTE or share >= FINDINGS.warning_share):
        bottleneck = _unless_by_chance(bottleneck, removable, drawn, len(shares.dur_ns))
    phases = examination.phases if examination.phases is not None and examination.phases.alone else None
    most = max(removable.values()) if phases is not None else removable[Bottleneck.DATA]
    if not attribution.comm_known and most < FINDINGS.warning_share:
        return _undetermined("the device's work was not recorded", _WINDOW)
    cause = _cause(findings, bottleneck)
    if cause is not None and cause.id == ids.PIPELINE_BUBBLE:  # faults come first here, too
        cause = _cause([finding for finding in findings if finding.id != ids.PIPELINE_BUBBLE], bottleneck) or cause
    if bottleneck == Bottleneck.COMPUTE and not _waits_known(attribution):
        return _undetermined(_UNSEEN_WAITS, _WINDOW)
    level = severity(share)
    if level == Severity.HEALTHY and (slow := _low_use(findings)) is not None:
        cause, share, level = slow, slow.share, slow.severity
    if bottleneck == Bottleneck.UNDETERMINED:
        return _unexplained(shared or cause, unexplained)
    if level == Severity.HEALTHY and (idle := _too_idle(attribution, shares)) is not None:
        return idle
    quiet = 0.0 if shares.on_device else _idle(attribution, shares)
    return _Answer(bottleneck, level, share, cause, shares, removable, quiet, phases)


def _findings(examination: Examination, shares: Shares) -> tuple[Finding, ...]:
    """The findings about ``shares``, which may be without the pipeline bubble."""
    if Cost.BUBBLE in shares.cost_ns:
        return examination.findings
    return tuple(finding for finding in examination.findings if finding.id != ids.PIPELINE_BUBBLE)


def _costs_more(account: CollectivesAccount, verdict: Verdict) -> bool:
    """Whether ranks that the verdict does not name cost more than what it says: where waits on the devices were not
    recorded, it knows only what the hosts do."""
    late = find_late(account)
    return bool(late) and late[0].share > verdict.share and late[0].ranks != verdict.culprit_ranks


def _by_collectives(account: CollectivesAccount, tables: Tables) -> Verdict:
    """Who is late, where nothing else is known of the steps: the account of the collectives explains that much."""
    busy, no_late_rank = account.durations.share, "no rank arrives last much more often than the others"
    if finding := next(iter(find_late(account)), None):
        cost = f", and {printed(finding.share)} of the wall-clock time" if account.durations.wall_ns else ""
        return Verdict(
            Bottleneck.UNDETERMINED,
            finding.severity,
            finding.id,
            finding.share,
            finding.confidence,
            finding.ranks,
            _hosts(tables, finding.ranks),
            f"{finding.title}{cost}. The cause of the delay is not recorded.",
        )
    if busy is None:
        return _undetermined(f"{no_late_rank}; the share of communication is not recorded", f"set {_INTERVAL}")
    if busy < FINDINGS.warning_share:
        return _undetermined(f"communication is {printed(busy)} of the time, and {no_late_rank}", _WINDOW_OF_RUN, busy)
    in_collectives = f"{printed(busy)} of the time is in collectives, and {no_late_rank}"
    hidden = "how much of it overlaps with computation is not recorded"
    return _undetermined(f"{in_collectives}; {hidden}", _WINDOW_OF_RUN, busy)


def stalls_decide(verdict: Verdict, attribution: Attribution) -> bool:
    """Whether the stalls that an account does not count, and this verdict on it does not see, are nearly all that costs
    time; or half of it, where no rank is at fault otherwise. The answer then rests on the account that counts them."""
    stalled_ns = sum(ns for ns, _ in stalled_steps(attribution).values())
    cost_ns = verdict.share * float(attribution.counted.dur_ns.sum())
    most = STRAGGLER.nearly_all_waiting_share if verdict.culprit_ranks else STRAGGLER.half_of_waiting_share
    return stalled_ns >= most * (stalled_ns + cost_ns)


def agreeing(examination: Examination, verdict: Verdict) -> Examination:
    """The finding that the verdict rests on comes first, with the verdict's severity and confidence, so that they do
    not differ. A mixed verdict rests on two findings, and a healthy or undetermined one on none: these keep theirs."""
    leading = [finding for finding in examination.findings if finding.id == verdict.cause]
    rest = [finding for finding in examination.findings if finding.id != verdict.cause]
    if verdict.bottleneck not in (Bottleneck.MIXED, Bottleneck.UNDETERMINED) and verdict.severity != Severity.HEALTHY:
        leading = [replace(f, severity=verdict.severity, confidence=verdict.confidence) for f in leading]
    return replace(examination, findings=(*leading, *rest))


def _too_idle(attribution: Attribution, shares: Shares) -> Verdict | None:
    """For a run in which nothing costs much, and a device that may not be busy."""
    if not attribution.idle_known:
        return _undetermined(
            "nothing else stands out, but how long the devices were idle was not recorded",
            "let NVML sample their utilization (nvidia-ml-py), or record a profiler window (diag run --trace)",
        )
    idle = _idle(attribution, shares)
    if idle < (VERDICT.idle_share if shares.on_device else VERDICT.idle_share_on_cpu):
        return None
    why = f"no operator runs for {idle:.0%} of the time"
    if shares.on_device:
        why = f"the device is idle for {idle:.0%} of the time, and no single cause takes a tenth of it"
    if attribution.by_events:
        return _undetermined(why, _WINDOW, idle)
    marked = "record several marked steps (prof.step()) after the warm-up, with Python stacks (with_stack=True)"
    return _undetermined(why, marked, idle)


def faults_first(shares: Shares) -> Shares:
    """The shares without the pipeline bubble, if anything else is worth a warning: the bubble comes with the chosen
    schedule, the rest are faults."""
    if Cost.BUBBLE not in shares.cost_ns:
        return shares
    rest = replace(shares, rows=tuple(row for row in shares.rows if row.cost != Cost.BUBBLE))
    worst = max(rest.of_class(name) for name in REMOVABLE) * float(shares.dur_ns.sum())
    return rest if worst >= FINDINGS.warning_share * float(shares.dur_ns.sum()) else shares


def classify(shares: Mapping[Bottleneck, float]) -> tuple[Bottleneck, float]:
    """The class of a step or a run, and the share that decided it, from the share of each class. Unexplained time
    decides where it is more than any class, and too much to call the rest healthy."""
    (name,), share = _classified({name: np.array([of]) for name, of in shares.items()})
    return name, float(share[0])


def _classified(shares: Mapping[Bottleneck, Series]) -> tuple[list[Bottleneck], Series]:
    """``classify`` of each value."""
    unexplained = shares.get(Bottleneck.UNDETERMINED, np.zeros(1))
    names = [name for name in shares if name in REMOVABLE]
    table = np.stack([shares[name] for name in names])
    order = np.argsort(-table, axis=0, kind="stable")
    top, second = np.take_along_axis(table, order, axis=0)[[0, min(1, len(names) - 1)]]
    warns = top >= FINDINGS.warning_share
    tied = (len(names) > 1) & (second >= FINDINGS.warning_share) & (top - second < VERDICT.tie_share)
    unknown = unexplained >= np.where(warns, top, VERDICT.idle_share)
    others = (Bottleneck.UNDETERMINED, Bottleneck.COMPUTE, Bottleneck.MIXED)
    codes = np.select([unknown, ~warns, tied], [len(names), len(names) + 1, len(names) + 2], order[0])
    every = (*names, *others)
    return [every[code] for code in codes.tolist()], np.where(unknown, unexplained, top)


def bottlenecks_of(steps: StepAccounts, on_device: bool) -> dict[int, Bottleneck]:
    """The class of each step, by the rule of the run and by its own account."""
    classes = classes_of(shares_of_steps(steps, (), on_device))
    return {step: classes.get(step, Bottleneck.UNDETERMINED) for step in steps.step.tolist()}


def classes_of(shares: Shares) -> dict[int, Bottleneck]:
    """The class of each step that counts and took any time, by the rule of the run."""
    took = np.flatnonzero(shares.dur_ns)
    by_class = {name: series[took] / shares.dur_ns[took] for name, series in _by_class(shares).items()}
    return dict(zip((shares.numbers[at] for at in took.tolist()), _classified(by_class)[0], strict=True))


def _by_class(shares: Shares) -> dict[Bottleneck, Series]:
    by_class: dict[Bottleneck, Series] = {name: np.zeros_like(shares.dur_ns) for name in _COMPETING}
    for cost in Cost:
        name = class_of(cost, shares.on_device)
        by_class[name] = by_class[name] + shares.cost(cost)
    return by_class


def _unless_by_chance(
    bottleneck: Bottleneck, removable: Mapping[Bottleneck, float], drawn: Mapping[Bottleneck, Series], steps: int
) -> Bottleneck:
    """ "Mixed" where both of the top two classes are worth a warning and other steps might reverse their order."""
    first, second, *_ = sorted(REMOVABLE, key=lambda name: -removable[name])
    if steps < STRAGGLER.least_steps_for_blocks or removable[second] < FINDINGS.warning_share:
        return bottleneck
    return (
        Bottleneck.MIXED
        if np.percentile(drawn[first] - drawn[second], VERDICT.percentile_of_order) <= 0
        else bottleneck
    )


def _features(
    answer: _Answer, attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables
) -> Features:
    shares = answer.shares
    missing = len(coverage.ranks_missing) / max(1, len(coverage.ranks_used) + len(coverage.ranks_missing))
    unseen_waits = missing if _waits(answer.bottleneck, answer.cause, shares) else 0.0
    open_waits = unseen_waits > 0 and answer.cause is not None and answer.cause.id in ids.OPEN_WAITS
    by_phases = answer.phases is not None and not _on_device_clocks(answer.phases, shares)
    return Features(
        noise=_noise(answer) ** 2,
        close_cause=_close_cause(answer, examination) ** 2,
        one_or_all=_one_or_all(answer) ** 2,
        mixed=float(answer.bottleneck == Bottleneck.MIXED),
        unseen_waits=unseen_waits,
        open_waits=float(open_waits),
        phases_mixed=float(answer.phases is not None and not answer.phases.frontier.communication_known),
        unseen_pauses=float(by_phases and answer.cause is not None and answer.cause.id == ids.COMPUTE_STRAGGLER),
        hosts_next=_hosts_next(answer) ** 2,
        clock=_clock(attribution, tables, answer),
    )


def _of_work(attribution: Attribution, steps: StepAccounts) -> float:
    """Four kernels prove little; the pauses between four hundred are as many observations. 1 where there is no
    device."""
    counted = steps.numbers
    pieces = np.sort(RankSteps.of(attribution.rank_steps).of_steps(counted).pieces)
    most = int(pieces[len(pieces) - min(len(counted), len(pieces)) :].sum())
    return most / (most + CONFIDENCE.pieces_for_half) if most else 1.0


def _distance(removable: Mapping[Bottleneck, float]) -> float:
    """How much a share may change before ``classify``, or the severity, says something else."""
    first, second, *_ = sorted((removable.get(name, 0.0) for name in REMOVABLE), reverse=True)
    warning, tie = FINDINGS.warning_share, VERDICT.tie_share
    edges = [abs(first - warning)]
    edges.append(abs((first if first >= warning else VERDICT.idle_share) - removable[Bottleneck.UNDETERMINED]))
    if first >= warning:
        mixed = second >= warning and first - second < tie
        apart = (tie - (first - second), second - warning) if mixed else (warning - second, first - second - tie)
        edges.append(min(apart) if mixed else max(*apart, 0.0))
    return min(edges)


def _noise(answer: _Answer) -> float:
    """How likely the error of the largest share is to change the answer: the half-width of its 95 % interval, and what
    no number of steps makes more exact."""
    error, freedom = CONFIDENCE.share_error, len(answer.shares.dur_ns) - 1
    if freedom < 1:
        error += CONFIDENCE.noise_of_one_step
    else:
        first = max(REMOVABLE, key=lambda name: answer.removable[name])
        cost_ns = _by_class(answer.shares)[first]
        error += t95(freedom) * float(np.std(cost_ns / answer.shares.dur_ns.mean(), ddof=1)) / sqrt(freedom + 1)
    return error / (error + _distance(answer.removable))


def _close_cause(answer: _Answer, examination: Examination) -> float:
    if answer.cause is None or not answer.cause.share or answer.bottleneck == Bottleneck.MIXED:
        return 0.0
    others = [f.share for f in examination.findings if f.bottleneck == answer.bottleneck and f.id != answer.cause.id]
    return min(1.0, max(others, default=0.0) / answer.cause.share)


def _one_or_all(answer: _Answer) -> float:
    """Where ranks wait for late ranks, one rank or all may be the reason, and both cost something: what the other
    explanation costs, over the one that the answer names."""
    cause, shares = answer.cause, answer.shares
    if cause is None or answer.bottleneck == Bottleneck.MIXED or cause.id not in ids.ONE_OR_ALL:
        return 0.0
    of_one = max(0.0, shares.beyond_typical(Cost.STRAGGLER, cause.ranks))
    of_all = max(0.0, float(shares.cost(Cost.STRAGGLER).mean()) - of_one)
    named, other = (of_one, of_all) if cause.id == ids.COMPUTE_STRAGGLER else (of_all, of_one)
    return min(1.0, other / named) if named else float(other > 0)


def _hosts_next(answer: _Answer) -> float:
    """The part of a cost of the devices that the hosts' own work would take in its place: where a host waits for its
    loader while its device works, a faster device waits for the loader. Where that wait is short, a host that seems to
    launch for long may be blocked by its device, which is no doubt."""
    hosts = answer.phases.hosts if answer.phases is not None else None
    if hosts is None or answer.severity == Severity.HEALTHY or answer.bottleneck not in _OF_DEVICES:
        return 0.0
    by_class = _by_class(answer.shares)
    costs = REMOVABLE if answer.bottleneck == Bottleneck.MIXED else (answer.bottleneck,)
    cost_ns = np.sum([by_class[name] for name in costs if name in _OF_DEVICES], axis=0)
    left_ns = np.maximum(0.0, answer.shares.dur_ns - hosts.spent)
    taken_ns = np.minimum(np.maximum(0.0, cost_ns - left_ns), hosts.hidden)
    return float(taken_ns.sum() / cost_ns.sum()) if cost_ns.any() else 0.0


def _clock(attribution: Attribution, tables: Tables, answer: _Answer) -> float:
    if _alone(tables) or answer.phases is not None:  # durations of phases need no common clock
        return 0.0
    effect = max(answer.share, FINDINGS.warning_share) * float(answer.shares.dur_ns.mean())
    if not attribution.aligned or not effect:
        return 1.0
    return min(1.0, (attribution.clock_uncertainty_ns or 0) / effect)


def _rules(
    answer: _Answer, attribution: Attribution, examination: Examination, coverage: Coverage, tables: Tables
) -> tuple[Rule, ...]:
    """Bounds by what the records can show at all; no case has more of it to learn from."""
    cause = answer.cause
    rules = [Rule(f"not recorded: {what}", most) for what, most in _unrecorded(answer, attribution, coverage, tables)]
    if len(answer.shares.dur_ns) < CONFIDENCE.least_steps:
        rules.append(Rule("few steps may not be like the others", CONFIDENCE.unless_sure))
    if (most := _of_work(attribution, attribution.counted)) < 1:
        rules.append(Rule("little work on the device", most))
    whole, startup = _startup(attribution.counted)
    if startup > CONFIDENCE.startup_share * whole:
        rules.append(Rule("most of the window is start-up", 1 - startup / whole))
    if coverage.ranks_missing:
        rules.append(Rule("ranks that were not recorded may be at fault", CONFIDENCE.unless_sure))
    if examination.doubts:
        rules.append(Rule("two accounts of the run differ", CONFIDENCE.if_accounts_differ))
    if cause is not None and (most := _without_cases(cause)) < 1:
        rules.append(Rule("no case of this kind was fitted", most))
    return tuple(rules)


def _without_cases(cause: Finding) -> float:
    if cause.id == ids.EXPERT_IMBALANCE:
        return cause.confidence
    kinds = {
        ids.LOW_MFU: COMPUTE.confidence_of_low_mfu,
        ids.CODE_BETWEEN_PHASES: HOST_TIME.confidence_of_code_between_phases,
    }
    return kinds.get(cause.id, 1.0)


def _unrecorded(
    answer: _Answer, attribution: Attribution, coverage: Coverage, tables: Tables
) -> Iterator[tuple[str, float]]:
    """What the answer is about and the records lack, each with the bound of the confidence."""
    bottleneck, cause, shares, explained = answer.bottleneck, answer.cause, answer.shares, coverage.explained_wait
    if not attribution.comm_known:
        yield "communication", CONFIDENCE.without_communication
    if not attribution.idle_known:
        yield "idle time of the devices", CONFIDENCE.without_idle
    if not _waits_known(attribution):
        yield "some waits for collectives", CONFIDENCE.without_some_waits
    if answer.phases is not None and attribution.by_events:
        # The driver counts a kernel that only communicates as work: a late rank may have waited for its host.
        yield "anything but phases", CONFIDENCE.of_coarse_phases
    if answer.severity == Severity.HEALTHY and _idle_beneath(attribution, answer.share):
        yield "idle time beneath collectives", CONFIDENCE.of_coarse_phases
    if bottleneck in (Bottleneck.HOST, Bottleneck.MIXED) and attribution.by_events:
        waited = shares.share(Cost.HOST) + shares.share(Cost.HOST_STRAGGLER)
        if waited:
            # What the hosts' own records explain is no copy.
            copies = min(waited, CONFIDENCE.uncounted_copies_share) / max(waited, answer.removable[Bottleneck.HOST])
            most = max(CONFIDENCE.if_idle_may_be_copies, 1 - copies)
            yield "copies in the idle time", most
    if bottleneck == Bottleneck.COMPUTE and answer.quiet:
        yield "the time without operators", 1 - answer.quiet
    if bottleneck == Bottleneck.DATA and _of_first_batch(attribution, tables):
        yield "a batch after the first", CONFIDENCE.of_first_batch
    if cause is not None and cause.ranks and explained is not None and explained < CONFIDENCE.explained_wait_share:
        yield "why ranks are late", max(explained, CONFIDENCE.of_late_rank)


def _on_device_clocks(phases: PhaseAccount, shares: Shares) -> bool:
    """Whether the phases are those of the devices, whose waiting for collectives and for their hosts is apart."""
    return shares.on_device and phases.frontier.communication_known


def _idle_beneath(attribution: Attribution, share: float) -> bool:
    """Whether the run would not be healthy were its devices idle all the time that collectives may hide."""
    counted = attribution.counted.numbers
    steps = RankSteps.of(attribution.rank_steps).of_steps(counted)
    beneath = int(steps.beneath_ns.sum()) / max(1, int(steps.dur_ns.sum()))
    return beneath > 0 and share + beneath >= FINDINGS.warning_share


def _waits(bottleneck: Bottleneck, cause: Finding | None, shares: Shares) -> bool:
    """Whether much of the answer is time in collectives: a transfer begins when the last rank arrives, and that may be
    a rank that was not recorded."""
    if bottleneck in (Bottleneck.COMMUNICATION, Bottleneck.MIXED):
        return cause is None or cause.id != ids.SLOW_LINK
    return shares.share(Cost.COMM) >= FINDINGS.warning_share


def _waits_known(attribution: Attribution) -> bool:
    return bool(RankSteps.of(attribution.rank_steps).waits_known.all())


def _low_use(findings: Sequence[Finding]) -> Finding | None:
    """The finding of low MFU: it bounds a run where nothing else costs time (docs/concepts/verdict.md)."""
    return next((finding for finding in findings if finding.id == ids.LOW_MFU), None)


def _cause(findings: Sequence[Finding], bottleneck: Bottleneck) -> Finding | None:
    of_class = (f for f in findings if f.bottleneck is not None and f.bottleneck == bottleneck)
    return next(iter(_both(findings) if bottleneck == Bottleneck.MIXED else of_class), None)


def _delayed_by_host(cause: Finding, findings: Sequence[Finding]) -> Finding | None:
    """Where the cause is common to all ranks: the finding of a rank that its host delays, if it costs at least half as
    much. The headline adds it with its rank; the verdict's culprits are those of the cause alone."""
    if cause.ranks:
        return None
    of_hosts = (f for f in findings if f.bottleneck == Bottleneck.HOST and f.ranks and f.severity != Severity.HEALTHY)
    return next(
        (finding for finding in of_hosts if finding.share >= VERDICT.least_delayed_rank_share * cause.share), None
    )


def _both(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.bottleneck in REMOVABLE][:2]


def _up(share: float) -> float:
    """Rounded up to a whole per cent: "no more than" a share that is printed as 5% is wrong for 5.2%."""
    return ceil(round(100 * max(share, 0.0), 6)) / 100


def _headline(
    bottleneck: Bottleneck,
    level: Severity,
    share: float,
    cause: Finding | None,
    findings: Sequence[Finding],
    shares: Shares,
    phases: PhaseAccount | None,
    per: str,
) -> str:
    # The mean step: the share and the milliseconds of a finding refer to it.
    step = f"{in_ms(float(shares.dur_ns.mean()))}{per}"
    if phases is not None and (level == Severity.HEALTHY or cause is None):
        known = phases.frontier.communication_known
        return (sentences.NOTHING_STANDS_OUT if known else sentences.NOTHING_STANDS_OUT_UNSEPARATED)(step=step)
    if level == Severity.HEALTHY:
        return sentences.HEALTHY(step=step, most=f"{_up(share):.0%}")
    if cause is None:
        return sentences.NO_DIAGNOSIS(bound=bottleneck.value.capitalize(), share=f"{share:.0%}", step=step)
    if bottleneck == Bottleneck.MIXED:
        first, second = _both(findings)
        return sentences.MIXED(first=_lower(first.title), second=_lower(second.title))
    # A rank that is late outside of its operators does not compute longer.
    bound = _STRAGGLER if cause.outside_of_work else f"{bottleneck.value.capitalize()}-bound"
    # The largest cause may belong to another class in a part of the steps.
    told = {"bound": bound, "share": printed(max(share, cause.share)), "step": step, "finding": _lower(cause.title)}
    if cause.share >= share or printed(share) == printed(cause.share):
        return sentences.BOUND(**told)
    return sentences.BOUND_BY_SEVERAL(**told, largest=printed(cause.share))


def _lower(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # "DDP reduces ..." stays


def _undetermined(why: str, next_step: str, share: float = 0.0, cause: str = "") -> Verdict:
    headline = sentences.UNDETERMINED(why=why, next_step=next_step)
    return Verdict(Bottleneck.UNDETERMINED, Severity.WARN, cause, round(share, 4), 0.0, (), (), headline)


def _unexplained(cause: Finding | None, share: float) -> Verdict:
    if cause is None:
        return _undetermined("idle time of the device has no known cause", "record several steps (prof.step())", share)
    return _undetermined(_lower(cause.title), _lower(cause.action).rstrip("."), share, cause.id)


def _nothing_to_judge(attribution: Attribution, shares: Shares, tables: Tables) -> Verdict | None:
    """For a run with traces only: they lack the device's work, or hold hardly any work, or only start-up."""
    steps = attribution.counted
    parts = steps.parts
    if not parts.from_source("trace").all():
        return None
    records = [trace.device_record for rank in tables.ranks.values() for trace in rank.traces]
    unread = next((record for record in records if not record.decides), None)
    if unread is not None:
        return _undetermined(f"the trace holds {unread.holds}, but not {unread.lacks}", unread.collect)
    whole, startup = _startup(steps)
    record_again = (
        "record several steps after the warm-up (schedule(skip_first=10, wait=1, warmup=1, active=3), prof.step())"
    )
    if shares.on_device and startup > VERDICT.startup_share * whole:
        return _undetermined(
            f"{startup / 1e6:,.0f} of {whole / 1e6:,.0f} ms are no part of a step: time before the first and after the "
            "last work of the device, or start-up (creating contexts, loading code, compiling)",
            record_again,
            startup / whole,
        )
    busy = int((parts.dur_ns - parts.idle_ns).sum())
    pieces = int(RankSteps.of(attribution.rank_steps).pieces.sum())
    if busy < (VERDICT.least_work_ns if shares.on_device else VERDICT.least_work_on_cpu_ns) or (
        shares.on_device and pieces < VERDICT.few_pieces
    ):
        return _undetermined(f"the window contains only {busy / 1e3:.1f} us of work", record_again)
    return None


def _startup(steps: StepAccounts) -> tuple[int, int]:
    """The time of the steps, and what of it is no part of a step, in ns."""
    return int(steps.dur_ns.sum()), int(steps.spent()[Kind.IDLE, list(STARTUP_DETAILS)].sum())


def _idle(attribution: Attribution, shares: Shares) -> float:
    """The fraction of the judged time in which a device was idle for any reason; on a CPU with traces only, in which no
    operator ran."""
    steps = attribution.counted
    if not shares.on_device and not steps.parts.from_source("trace").all():
        return 0.0
    idle = steps.spent()[Kind.IDLE]
    return float(idle.sum() - idle[list(STARTUP_DETAILS)].sum()) / float(shares.dur_ns.sum())


def _hosts(tables: Tables, ranks: Sequence[int]) -> tuple[str, ...]:
    hosts = (tables.ranks[rank].host for rank in ranks if rank in tables.ranks)
    return tuple(dict.fromkeys(host for host in hosts if host))


def _alone(tables: Tables) -> bool:
    return (tables.world_size or 1) == 1

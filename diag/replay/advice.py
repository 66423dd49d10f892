"""Advice: the three best changes, and the gain of any combination of changes (``WhatIf``).

The knobs propose changes, which are replayed. Combined changes are made one after the other, and each is proposed anew
for the run that the previous ones leave: with two blocks in one unit, a prefetched unit is larger, too."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diag.collectors.masking import masked_arguments
from diag.diagnoses import Examination
from diag.model.accounts import Attribution
from diag.model.breakdown import Code, CostCurve, CostPoint, KnobChange, Prospect
from diag.model.steps import Advice, Evidence, Knob, Recommendation
from diag.replay.policy import ADVICE, REPLAY
from diag.rundir.tables import Tables
from diag.tables.bandwidth import bus_factor

from .case import Api, Candidate, Case, Setting, capacity, headroom, sizes_of
from .costs import Curve, Level, Range
from .knobs import KNOBS
from .mutations import in_turn
from .predict import Baseline, baseline, gain
from .program import Refusal
from .suppose import Supposition, mutation_of


def recommend(
    attribution: Attribution,
    tables: Tables,
    examination: Examination,
    replayed: Callable[[], Baseline | Refusal] | None = None,
) -> Recommendation:
    """At most three changes for the costs of this run. Pure. ``replayed``: returns the run's baseline where it exists
    already."""
    base = replayed() if replayed is not None else baseline(attribution, tables)
    if isinstance(base, Refusal):
        return Recommendation(not_advised=(f"nothing was predicted: {base.reason}",), refused=True)
    if base.error > REPLAY.replay_error:
        refused = f"nothing was predicted: the replayed steps differ from the measured ones by {base.error:.1%}"
        return Recommendation((), (refused,), base.error, refused=True)
    case = Case(attribution, tables, examination, base.program, sizes_of(base.program))
    advised: list[Advice] = []
    not_advised: list[str] = []
    for candidate in (proposal for propose in KNOBS.values() for proposal in propose(case)):
        advice = _advice_or_refusal(case, base, candidate)
        if isinstance(advice, str):
            not_advised.append(f"{candidate.change}: {advice}")
        else:
            advised.append(advice)
    best = _best_of_each(advised)
    return Recommendation(tuple(best[: ADVICE.most_changes_advised]), tuple(not_advised), base.error)


def _advice_or_refusal(case: Case, base: Baseline, candidate: Candidate) -> Advice | str:
    """The candidate with its prediction, or why it is not advised."""
    veto = memory_veto(candidate.memory_delta_bytes, case.tables)
    if veto:
        return veto
    worth_ns = ADVICE.least_gain_share * case.step_ns
    predicted = gain(base, candidate.mutation, worth_ns)
    if predicted.refused:
        return predicted.refused
    low, likely, high = predicted.expected_ns_per_step
    step_ns = case.step_ns if predicted.step_ns else 0.0
    share = likely / step_ns if step_ns else 0.0
    if likely < worth_ns or not step_ns:
        return f"would change the step by {-share:+.1%}"
    settings = dict(candidate.settings) if case.takes(candidate.settings) else {}
    code = {api.value: text for api, text in code_for(case, candidate.code).items()}
    return Advice(
        id=candidate.id,
        finding=candidate.finding,
        knob=candidate.knob,
        change=candidate.change,
        predicted_gain_ns=(low, likely, high),
        memory_delta_bytes=candidate.memory_delta_bytes,
        risk=candidate.risk,
        command=command_for(case, settings),
        gain_share=round(share, 4),
        code=code,
        before={api: candidate.before[Api(api)] for api in code if api in candidate.before},
        settings=settings,
        assumptions=(*predicted.assumptions, *candidate.also),
        evidence=(
            Evidence("error of the replay without changes", round(base.error, 4), "share"),
            Evidence("mean step, end to end", round(predicted.step_ns / 1e6, 3), "ms"),
        ),
    )


def memory_veto(delta: int | None, tables: Tables) -> str:
    """Why a change does not fit into the device's memory; "" where it does, or where there is no device to fill."""
    if delta is None:
        return "how much memory it takes is unknown" if tables.on_device else ""
    if delta <= 0 or not tables.on_device:
        return ""
    left = headroom(tables)
    if left is None:
        return "it takes more device memory, and how much is free was not recorded"
    reserve = ADVICE.free_memory_share * capacity(tables)
    if delta > left - reserve:
        reserve_text = f"{reserve / 1e6:,.0f} MB must stay free"
        return f"takes {delta / 1e6:,.0f} MB more device memory; {left / 1e6:,.0f} MB are free, of which {reserve_text}"
    return ""


def _best_of_each(advised: Iterable[Advice]) -> list[Advice]:
    """For each knob, only the setting with the largest gain; among settings with about the same gain, the most modest
    one (they are proposed in that order)."""
    of_knob: dict[Knob, list[Advice]] = {}
    for advice in advised:
        of_knob.setdefault(advice.knob, []).append(advice)
    best = []
    for settings in of_knob.values():
        most = max(advice.gain_share for advice in settings)
        best.append(min((a for a in settings if a.gain_share >= most - ADVICE.nearly_equal_gain_share), key=_cost))
    return sorted(best, key=lambda a: (-a.predicted_gain_ns[1], a.id))


def _cost(advice: Advice) -> tuple[int, int]:
    numbers = [value for value in advice.settings.values() if isinstance(value, int)]
    return advice.memory_delta_bytes or 0, sum(numbers)


def code_for(case: Case, code: Mapping[Api, str]) -> dict[Api, str]:
    """The run's own API first; no code for sharded training if the run uses DDP, and the reverse."""
    run_api = case.api
    if run_api == Api.DDP:
        return {api: text for api, text in code.items() if api in (Api.DDP, Api.PYTORCH, Api.HF_TRAINER)}
    rest = {api: text for api, text in code.items() if api != Api.DDP}
    return dict(sorted(rest.items(), key=lambda item: item[0] != run_api))


def command_for(case: Case, settings: Mapping[str, Setting]) -> str:
    """The bundled trainer's command with these settings, secrets masked; "" where something else was trained."""
    manifest = case.manifest
    if manifest is None or not settings or not manifest.argv or manifest.argv[0] != "run":
        return ""
    return "diag " + shlex.join(masked_arguments(changed_arguments(manifest.argv, settings)))


def changed_arguments(arguments: Iterable[str], settings: Mapping[str, Setting]) -> list[str]:
    """The command line with some options replaced, and without its run directory, which exists already."""
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in settings.items()}
    dropped = {*flags, "--out"}
    remaining: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in dropped:
            skip = True
        elif argument.partition("=")[0] not in dropped:
            remaining.append(argument)
    return [*remaining, *(part for flag, value in flags.items() for part in (flag, value))]


# -- what-if: any combination of changes -------------------------------------------------------------------------------


# A new sharding group is not one whose costs were measured, so every other change comes before it.
_ORDER = sorted(KNOBS, key=lambda knob: knob == Knob.GROUP)
_PACE = "the loader is as fast as in the measured steps: where other changes shorten them, ranks may wait for it again"


class WhatIf(Struct, frozen=True, eq=False):
    """The changes of one run, and what they gain. ``refused``: why nothing can be predicted."""

    changes: tuple[KnobChange, ...]
    refused: str = ""
    _base: Baseline | None = None
    _case: Case | None = None
    _known: dict[frozenset[str] | Supposition, Prospect] = field(default_factory=dict)

    @property
    def replay_error(self) -> float | None:
        """The error of the replay of the unchanged steps."""
        return self._base.error if self._base is not None else None

    def predict(self, chosen: Collection[str]) -> Prospect:
        """The prospect of these changes (by id) together; it refuses changes that are not offered."""
        key = frozenset(chosen)
        if key not in self._known:
            self._known[key] = self._predicted(key)
        return self._known[key]

    def suppose(self, supposed: Supposition) -> Prospect:
        """The prospect of a supposition. Its command is "": it is no setting."""
        if supposed not in self._known:
            self._known[supposed] = self._supposed(supposed)
        return self._known[supposed]

    def _supposed(self, supposed: Supposition) -> Prospect:
        base, case = self._base, self._case
        if base is None or case is None:
            return Prospect((), 0, (0, 0, 0), 0.0, None, None, refused=self.refused)
        step_ns = round(case.step_ns)
        if supposed.nothing:
            return Prospect((), step_ns, (0, 0, 0), base.error, 0, headroom(case.tables))
        predicted = gain(base, mutation_of(supposed))
        return Prospect(
            (),
            step_ns,
            predicted.expected_ns_per_step,
            base.error,
            0,
            headroom(case.tables),
            refused=predicted.refused or "",
            assumptions=predicted.assumptions,
        )

    def _predicted(self, chosen: frozenset[str]) -> Prospect:
        nothing = Prospect(tuple(c for c in self.changes if c.id in chosen), 0, (0, 0, 0), 0.0, None, None)
        if self._base is None or self._case is None:
            return replace(nothing, refused=self.refused)
        nothing = replace(
            nothing,
            step_ns=round(self._case.step_ns),
            replay_error=self._base.error,
            headroom_bytes=headroom(self._case.tables),
        )
        if unknown := sorted(chosen - {change.id for change in self.changes}):
            return replace(nothing, refused=f"not offered for this run: {', '.join(unknown)}")
        if not chosen:
            return replace(nothing, memory_delta_bytes=0)
        composed = _composed(self._base, self._case, nothing.changes)
        if isinstance(composed, Refusal):
            return replace(nothing, refused=composed.reason)
        return _prospect(self._base, self._case, composed, nothing)


def what_if(base: Baseline | Refusal, attribution: Attribution, tables: Tables, examination: Examination) -> WhatIf:
    """The changes that this run offers. Pure; each prediction is made once, when it is first needed."""
    if isinstance(base, Refusal):
        return WhatIf((), base.reason)
    if base.error > REPLAY.replay_error:
        return WhatIf((), f"the replayed steps differ from the measured ones by {base.error:.1%}", base)
    case = Case(attribution, tables, examination, base.program, sizes_of(base.program))
    offered = (candidate for knob in _ORDER for candidate in KNOBS[knob](case))
    return WhatIf(tuple(_change(candidate) for candidate in offered), "", base, case)


def nothing_offered(reason: str) -> WhatIf:
    """Of a run that cannot be replayed."""
    return WhatIf((), reason)


def _change(candidate: Candidate) -> KnobChange:
    return KnobChange(
        id=candidate.id,
        knob=candidate.knob,
        change=candidate.change,
        finding=candidate.finding,
        risk=candidate.risk,
        memory_delta_bytes=candidate.memory_delta_bytes,
    )


def _composed(base: Baseline, case: Case, changes: Collection[KnobChange]) -> list[Candidate] | Refusal:
    """The candidates in order, each for the run that the previous ones leave."""
    candidates: list[Candidate] = []
    settings: dict[str, Setting] = {}
    for change in changes:
        candidate = next((c for c in KNOBS[change.knob](case) if c.id == change.id), None)
        if candidate is None:
            return Refusal(f"this change does not apply once the others are made: {change.change}")
        for name, value in candidate.settings.items():
            if settings.setdefault(name, value) != value:
                return Refusal(f"two of the changes set {name.replace('_', ' ')}, to {settings[name]} and to {value}")
        candidates.append(candidate)
        if len(candidates) == len(changes):
            break
        mutated = candidate.mutation(case.program, base.costs, Level.LIKELY)
        if isinstance(mutated, Refusal):
            return mutated
        case = replace(case, program=mutated.program, sizes=sizes_of(mutated.program))
    knobs = [candidate.knob for candidate in candidates]
    twice = next((knob for knob in knobs if knobs.count(knob) > 1), None)
    return candidates if twice is None else Refusal(f"two of the changes set the same knob, {twice}")


def _prospect(base: Baseline, case: Case, candidates: list[Candidate], nothing: Prospect) -> Prospect:
    predicted = gain(base, in_turn(*(candidate.mutation for candidate in candidates)))
    deltas = [candidate.memory_delta_bytes for candidate in candidates]
    delta = None if None in deltas else sum(known for known in deltas if known is not None)
    paced = (_PACE,) if len(candidates) > 1 and any(c.knob == Knob.LOADER for c in candidates) else ()
    also = tuple(sentence for candidate in candidates for sentence in candidate.also)
    settings = {name: value for candidate in candidates for name, value in candidate.settings.items()}
    return replace(
        nothing,
        gain_ns=predicted.expected_ns_per_step,
        memory_delta_bytes=delta,
        memory_veto=memory_veto(delta, case.tables),
        refused=predicted.refused or "",
        assumptions=tuple(dict.fromkeys((*predicted.assumptions, *also, *paced))),
        command=command_for(case, settings) if all(candidate.settings for candidate in candidates) else "",
        code=tuple(
            Code(c.change, {api.value: text for api, text in code_for(case, c.code).items()}) for c in candidates
        ),
    )


# -- curves ------------------------------------------------------------------------------------------------------------
#
# The fitted costs as data that can be drawn: points and curves by group and operation.


def curves_of(base: Baseline) -> tuple[CostCurve, ...]:
    """One for each group and operation with a measured transfer of known size, sorted by name."""
    members: dict[tuple[str, str], int] = {}
    for collective in base.program.collectives():
        key = collective.group, collective.op
        members[key] = max(members.get(key, 0), len(collective.ranks))
    return tuple(
        _drawable(group, op, curve, members[group, op], base.program.gloo)
        for (group, op), curve in sorted(base.costs.curves.items())
    )


def _drawable(group: str, op: str, curve: Curve, ranks: int, gloo: bool) -> CostCurve:
    factor = bus_factor(op, ranks, gloo)
    sizes = _sizes([point.bytes for point in curve.points])
    line = [(size, curve.at(size)) for size in sizes]
    return CostCurve(
        group=group,
        op=op,
        ranks=ranks,
        borrowed=curve.borrowed,
        points=tuple(
            CostPoint(p.bytes, p.ns, p.error, factor * p.bytes / p.ns if factor and p.ns else None)
            for p in curve.points
        ),
        line=tuple((size, *ns_range) for size, ns_range in line),
        bus_gb_s=tuple(_bus(factor, size, ns_range) for size, ns_range in line) if factor else (),
    )


def _sizes(measured: Sequence[float]) -> list[float]:
    """From the smallest to the largest measured size, evenly in the logarithm, and the measured sizes themselves."""
    first, last = measured[0], measured[-1]
    between = np.geomspace(first, last, ADVICE.samples_of_curve)[1:-1].tolist() if last > first else []
    return sorted({*measured, *between})


def _bus(factor: float, size: float, ns_range: Range) -> tuple[float, float, float]:
    slow, likely, fast = (factor * size / ns for ns in reversed(ns_range))
    return slow, likely, fast

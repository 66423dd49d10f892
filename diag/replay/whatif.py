"""What any combination of the proposed changes would gain: all knobs' settings to choose from, replayed together.

``recommend`` picks the best three; here the reader picks. Changes are made one after the other, and each is proposed
anew for the run as those before it leave it: two blocks in one unit make the unit that is gathered ahead larger, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diag.diagnoses import Examination
from diag.model.prospect import Code, CostCurve, CostPoint, KnobChange, Prospect
from diag.model.steps import Attribution
from diag.rundir.run import Tables
from diag.tables.collectives import bus_factor

from .case import Candidate, Case, Setting, headroom, sizes_of
from .costs import Curve, Level, Range
from .knobs import REGISTRY
from .mutations import in_turn
from .predict import MAX_ERROR, Baseline, gain
from .program import Refusal
from .recommend import code_for, command_for, memory_veto

# Its groups are no longer those whose costs were measured, so every other change comes before it.
_LAST = "sharding group"
_ORDER = sorted(REGISTRY, key=lambda knob: knob == _LAST)
_LOADER = "data loader"
_PACE = (
    "the loader is as fast as beside the measured steps: where other changes shorten them, it may be waited for again"
)


class WhatIf(Struct, frozen=True, eq=False):
    """The changes of one run, and what they gain. ``refused``: why nothing can be predicted."""

    changes: tuple[KnobChange, ...]
    refused: str = ""
    _base: Baseline | None = None
    _case: Case | None = None
    _known: dict[frozenset[str], Prospect] = field(default_factory=dict)

    @property
    def replay_error(self) -> float | None:
        """How far the replay of the unchanged steps is off."""
        return self._base.error if self._base is not None else None

    def predict(self, chosen: Collection[str]) -> Prospect:
        """All these changes (their ids) together; of one that is not offered the prospect says so."""
        key = frozenset(chosen)
        if key not in self._known:
            self._known[key] = self._predicted(key)
        return self._known[key]

    def _predicted(self, chosen: frozenset[str]) -> Prospect:
        nothing = Prospect(tuple(c for c in self.changes if c.id in chosen), 0, (0, 0, 0), 0.0, None, None)
        if self._base is None or self._case is None:
            return replace(nothing, refused=self.refused)
        nothing = replace(
            nothing,
            step_ns=self._base.step_ns,
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
        return _told(self._base, self._case, composed, nothing)


def what_if(base: Baseline | Refusal, attribution: Attribution, tables: Tables, examination: Examination) -> WhatIf:
    """What can be changed in this run. Pure; predictions are made when they are asked for, once each."""
    if isinstance(base, Refusal):
        return WhatIf((), base.reason)
    if base.error > MAX_ERROR:
        return WhatIf((), f"the replay misses the measured steps by {base.error:.1%}", base)
    case = Case(attribution, tables, examination, base.program, sizes_of(base.program))
    offered = (candidate for knob in _ORDER for candidate in REGISTRY[knob](case))
    return WhatIf(tuple(_change(candidate) for candidate in offered), "", base, case)


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
    """The candidates in the order in which they are made, each for the run that the ones before it leave."""
    found: list[Candidate] = []
    settings: dict[str, Setting] = {}
    for change in changes:
        candidate = next((c for c in REGISTRY[change.knob](case) if c.id == change.id), None)
        if candidate is None:
            return Refusal(f"beside the other changes there is nothing left for this one to do: {change.change}")
        for name, value in candidate.settings.items():
            if settings.setdefault(name, value) != value:
                return Refusal(f"two of the changes set {name.replace('_', ' ')}: to {settings[name]} and to {value}")
        found.append(candidate)
        if len(found) == len(changes):
            break
        mutated = candidate.mutation(case.program, base.costs, Level.LIKELY)
        if isinstance(mutated, Refusal):
            return mutated
        case = replace(case, program=mutated.program, sizes=sizes_of(mutated.program))
    knobs = [candidate.knob for candidate in found]
    twice = next((knob for knob in knobs if knobs.count(knob) > 1), None)
    return found if twice is None else Refusal(f"two of the changes are settings of one knob, {twice}")


def _told(base: Baseline, case: Case, candidates: list[Candidate], nothing: Prospect) -> Prospect:
    predicted = gain(base, in_turn(*(candidate.mutation for candidate in candidates)))
    deltas = [candidate.memory_delta_bytes for candidate in candidates]
    delta = None if None in deltas else sum(known for known in deltas if known is not None)
    paced = (_PACE,) if len(candidates) > 1 and any(c.knob == _LOADER for c in candidates) else ()
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

_SAMPLES = 48  # of a curve: it bends at its points only, and of these there are few


def curves_of(base: Baseline) -> tuple[CostCurve, ...]:
    """One a group and operation of which a transfer of known size was measured, by their names."""
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
        line=tuple((size, *found) for size, found in line),
        bus_gb_s=tuple(_bus(factor, size, found) for size, found in line) if factor else (),
    )


def _sizes(measured: Sequence[float]) -> list[float]:
    """From the smallest to the largest measured size, evenly in the logarithm, and the measured ones themselves."""
    first, last = measured[0], measured[-1]
    between = np.geomspace(first, last, _SAMPLES)[1:-1].tolist() if last > first else []
    return sorted({*measured, *between})


def _bus(factor: float, size: float, found: Range) -> tuple[float, float, float]:
    slow, likely, fast = (factor * size / ns for ns in reversed(found))
    return slow, likely, fast

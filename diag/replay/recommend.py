"""Which changes to make first: all knobs' proposals replayed, those without memory or gain left out, the best three."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping

from diag.collectors.text import masked_arguments
from diag.diagnoses import Examination
from diag.model.steps import Advice, Attribution, Evidence, Recommendation, Severity
from diag.replay.predict import MAX_ERROR, Baseline, baseline, gain
from diag.replay.program import Refusal
from diag.rundir.run import Tables

from .case import Api, Candidate, Case, Setting, headroom, sizes_of
from .knobs import REGISTRY

MOST = 3
# A gain below this is within what two equal runs differ by, and not worth anybody's time.
LEAST_SHARE = 0.02
_NEARLY = 0.05  # of the step: among settings of one knob that gain about the same, the most modest is advised
# Of a device's capacity stays free: the allocator rounds up and fragments.
RESERVE = 0.05


def recommend(
    attribution: Attribution,
    tables: Tables,
    examination: Examination,
    replayed: Callable[[], Baseline | Refusal] | None = None,
) -> Recommendation:
    """At most three changes for what costs this run time. Pure. ``replayed``: gives the run's baseline where somebody
    has it already; a healthy run needs none."""
    if not any(f.severity != Severity.HEALTHY and f.bottleneck is not None for f in examination.findings):
        return Recommendation()
    base = replayed() if replayed is not None else baseline(attribution, tables)
    if isinstance(base, Refusal):
        return Recommendation(not_advised=(f"nothing was predicted: {base.reason}",))
    if base.error > MAX_ERROR:
        refused = f"nothing was predicted: the replay of the steps misses them by {base.error:.1%}"
        return Recommendation((), (refused,), base.error)
    case = Case(attribution, tables, examination, base.program, sizes_of(base.program))
    advised: list[Advice] = []
    not_advised: list[str] = []
    for candidate in (found for propose in REGISTRY.values() for found in propose(case)):
        told = _told(case, base, candidate)
        if isinstance(told, str):
            not_advised.append(f"{candidate.change}: {told}")
        else:
            advised.append(told)
    best = _best_of_each(advised)
    return Recommendation(tuple(best[:MOST]), tuple(not_advised), base.error)


def _told(case: Case, base: Baseline, candidate: Candidate) -> Advice | str:
    """The candidate with its prediction; why not, where it is no advice."""
    veto = memory_veto(candidate.memory_delta_bytes, case.tables)
    if veto:
        return veto
    predicted = gain(base, candidate.mutation)
    if predicted.refused:
        return predicted.refused
    low, likely, high = predicted.expected_ns_per_step
    share = likely / predicted.step_ns if predicted.step_ns else 0.0
    if share < LEAST_SHARE:
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
        settings=settings,
        assumptions=(*predicted.assumptions, *candidate.also),
        evidence=(
            Evidence("replay", "unmodified steps against measured ones, error", round(base.error, 4), "share"),
            Evidence("replay", "mean step", round(predicted.step_ns / 1e6, 3), "ms"),
        ),
    )


def memory_veto(delta: int | None, tables: Tables) -> str:
    """Why a change does not fit into the device's memory; "" where it does, or where there is no device to fill."""
    left = headroom(tables)
    if delta is None:
        return "how much memory it takes cannot be told" if tables.on_device else ""
    if delta <= 0 or not tables.on_device:
        return ""
    if left is None:
        return "how much device memory is free was not recorded, and it takes more"
    capacity = max(s.memory.capacity or 0 for t in tables.ranks.values() for s in t.steps if s.memory is not None)
    if delta > left - RESERVE * capacity:
        kept = f"{RESERVE * capacity / 1e6:,.0f} MB of them must stay so"
        return f"takes {delta / 1e6:,.0f} MB more device memory, and {left / 1e6:,.0f} MB are free; {kept}"
    return ""


def _best_of_each(advised: Iterable[Advice]) -> list[Advice]:
    """Of one knob only the setting that gains most; of several that gain about the same, the most modest one: they
    are proposed in that order."""
    of_knob: dict[str, list[Advice]] = {}
    for advice in advised:
        of_knob.setdefault(advice.knob, []).append(advice)
    best = []
    for settings in of_knob.values():
        most = max(advice.gain_share for advice in settings)
        best.append(min((a for a in settings if a.gain_share >= most - _NEARLY), key=_cost))
    return sorted(best, key=lambda a: (-a.predicted_gain_ns[1], a.id))


def _cost(advice: Advice) -> tuple[int, int]:
    numbers = [value for value in advice.settings.values() if isinstance(value, int)]
    return advice.memory_delta_bytes or 0, sum(numbers)


def code_for(case: Case, code: Mapping[Api, str]) -> dict[Api, str]:
    """What is told of the run's own API first; of DDP and of sharded training nothing that is the other's."""
    own = case.api
    if own == Api.DDP:
        return {api: text for api, text in code.items() if api in (Api.DDP, Api.PYTORCH, Api.HF_TRAINER)}
    rest = {api: text for api, text in code.items() if api != Api.DDP}
    return dict(sorted(rest.items(), key=lambda item: item[0] != own))


def command_for(case: Case, settings: Mapping[str, Setting]) -> str:
    """The bundled trainer's command with these settings, secrets masked; "" where something else was trained."""
    manifest = case.manifest
    if manifest is None or not settings or not manifest.argv or manifest.argv[0] != "run":
        return ""
    return "diag " + shlex.join(masked_arguments(changed_arguments(manifest.argv, settings)))


def changed_arguments(arguments: Iterable[str], settings: Mapping[str, Setting]) -> list[str]:
    """The command line with some options set anew, and without its run directory, which is taken already."""
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in settings.items()}
    dropped = {*flags, "--out"}
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in dropped:
            skip = True
        elif argument.partition("=")[0] not in dropped:
            kept.append(argument)
    return [*kept, *(part for flag, value in flags.items() for part in (flag, value))]

"""How a run that failed ended: by the answer of ``diag triage`` that is kept in its directory, else by its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from diag.collectors.files import replace_file
from diag.collectors.layout import MOST_RANKS, RunLayout
from diag.collectors.masking import masked
from diag.collectors.records import Manifest, RankRecord
from diag.ended.policy import ENDED
from diag.model.steps import Outcome
from diag.rundir.lines import read_record
from diag.rundir.runs import RunState, newest_change
from diag.words.formatting import NBSP, counted

from .model import FAULTS, FULL, HEALTHY, NAME_NO_CAUSE, Clue, headline
from .out_of_memory import look_at_snapshot, out_of_memory_lines
from .precedence import FIRST, Place, place_of
from .read import read_run
from .rundir import clues_of, needs_triage
from .state import ended_well, look_at_stacks, standing

READ_MORE = "`diag triage` also reads its logs and dumps, which may show more."


def outcome_of(
    state: RunState,
    manifest: Manifest,
    steps: int | None,
    known: Mapping[int, RankRecord] | None = None,
    listed: Mapping[int, frozenset[str]] | None = None,
) -> Outcome | None:
    """How a run ended that failed, left no end or makes no progress; None for any other run. ``steps``: number of
    recorded steps; None leaves it out. ``known`` and ``listed``: as in ``read_run``."""
    layout = RunLayout(state.path)
    if (state.live and not state.stuck) or (manifest.exit_code == 0 and not needs_triage(layout)):
        return None
    account = _kept(layout) or _by_records(layout, state, known, listed)
    if account.cause == HEALTHY:
        return None
    return replace(account, ended=_ended(account, manifest, state, steps), exit_code=manifest.exit_code)


def _ended(account: Outcome, manifest: Manifest, state: RunState, steps: int | None) -> str:
    after = f" after {counted(steps, 'step').replace(NBSP, ' ')}" if steps else " before a step was recorded"
    after = "" if steps is None else after
    fault = FAULTS.get(account.cause)
    if state.headline:
        known = account.cause and account.why
        stuck = "The training is stuck" if state.stuck else "The training stopped without recording its end"
        return stuck if known else state.headline.rstrip(".")
    if fault is not None and fault.outside and not account.ranks:
        return ""  # the account begins with it
    if manifest.ended_by:
        return f"The training ended{after}"
    if manifest.exit_code is not None:
        verb = "failed" if manifest.exit_code else "ended"
        return f"The training {verb}{after} (exit code {manifest.exit_code})"
    return f"The training stopped{after} without recording its end"


# -- The answer of a triage, which has also read logs and dumps --------------------------------------------------------


class _Verdict(Struct):
    fault_class: str
    confidence: float
    headline: str


class _Culprit(Struct):
    rank: int | None = None


class _Kept(Struct):
    verdict: _Verdict
    culprits: list[_Culprit] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)


def keep(layout: RunLayout, answer: str) -> None:
    """Keeps the answer of a triage, the JSON document of its contract, in the run's directory. OSError if it cannot be
    written."""
    replace_file(layout.hang, answer.encode() + b"\n", private=True)


def _kept(layout: RunLayout) -> Outcome | None:
    """The kept answer; None if there is none that is newer than the records."""
    try:
        if layout.hang.stat().st_mtime_ns < newest_change(layout.root):
            return None
    except OSError:
        return None
    kept, _ = read_record(layout.hang, _Kept, layout.root, ENDED.kept_triage_bytes)
    if kept is None or not kept.verdict.fault_class.isidentifier():
        return None
    fault_class, known = kept.verdict.fault_class, kept.verdict.fault_class not in NAME_NO_CAUSE
    ranks = {culprit.rank for culprit in kept.culprits if culprit.rank is not None}
    if not all(0 <= rank < MOST_RANKS for rank in ranks):
        return None
    return Outcome(
        "",
        None,
        _sentence(kept.verdict.headline),
        fault_class if known or fault_class == HEALTHY else "",
        min(max(kept.verdict.confidence, 0.0), 1.0) if known else 0.0,
        tuple(sorted(ranks)),
        masked(kept.next_steps[0]) if kept.next_steps else "",
    )


# -- The records alone -------------------------------------------------------------------------------------------------


def _by_records(
    layout: RunLayout,
    state: RunState,
    known: Mapping[int, RankRecord] | None,
    listed: Mapping[int, frozenset[str]] | None,
) -> Outcome:
    try:
        run = read_run(layout, state, known, listed)
    except OSError as error:
        return Outcome("", None, _sentence(f"The ranks cannot be listed: {error.strerror}"), action=READ_MORE)
    well = ended_well(run)
    best = min(clues_of(run), key=lambda clue: (_place(clue), -clue.confidence), default=None)
    sure = _confidence(best) if best is not None else 0.0
    unsure = sure < (ENDED.sure_enough_of_a_good_end if well is not None else ENDED.sure_enough)
    if unsure and well is not None:
        return Outcome("", None, well.headline, HEALTHY)
    suspects = run.ranks if best is None or unsure else best.ranks
    full = out_of_memory_lines(layout, (rank for rank in suspects if rank not in run.ranks or run.ranks[rank].reports))
    if best is None or unsure:
        if not full:
            why = "" if run.stuck else _sentence(standing(run).headline)
            return Outcome("", None, why, action=look_at_stacks(run) or READ_MORE)
        best, sure = Clue(FULL, tuple(run.ranks[rank].culprit for rank in full), (), ENDED.raised), ENDED.raised
    elif FAULTS[best.fault_class].ending and full and set(full) == best.ranks:
        best = dataclasses.replace(best, fault_class=FULL)
    action = look_at_snapshot([layout], best.ranks) if best.fault_class == FULL else look_at_stacks(run)
    return Outcome(
        "",
        None,
        _sentence(headline(FAULTS[best.fault_class], best)),
        best.fault_class,
        sure,
        tuple(sorted(best.ranks)),
        action or READ_MORE,
    )


def _place(clue: Clue) -> Place:
    fault = FAULTS[clue.fault_class]
    return FIRST if clue.comes_first else place_of(fault.id, fault.priority, clue.confidence < ENDED.weak)


def _confidence(clue: Clue) -> float:
    nobody = not clue.ranks and not clue.hosts and not FAULTS[clue.fault_class].outside
    return round(clue.confidence * (ENDED.no_culprit_factor if nobody else 1.0), 2)


def _sentence(text: str) -> str:
    text = masked(text).rstrip(".")
    return text if text.endswith("…") else f"{text}."

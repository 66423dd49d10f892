"""Pipeline ranks that are idle until the first micro-batch reaches them, and after their last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.account.pipeline import Pipeline, pipeline_of
from diag.model.axes import bubble
from diag.model.programs import Concept, Settings
from diag.model.query import Query
from diag.model.steps import Evidence, Finding

from .costs import Cost
from .ids import PIPELINE_BUBBLE as ID
from .subject import Diagnosis, Subject, settings_of_run

_SETTINGS = Query("facts", {"key": [f"trainer.{name}" for name in ("pipeline_schedule", "micro_batches")]})
_ONE_STAGE_A_RANK = ("gpipe", "1f1b")
_SEVERAL = ("interleaved",)


def find(subject: Subject) -> list[Finding]:
    account = subject.once(pipeline)
    if account is None:
        return []
    trainer = subject.tables.manifest.trainer if subject.tables.manifest is not None else {}
    ideal, count = ideal_share(len(account.stages), trainer), len(account.stages)
    cost = subject.each(subject.shares.cost(Cost.BUBBLE))
    waited = Evidence(
        "waiting for other stages, mean over all ranks",
        round(account.waited_share, 4),
        "share",
        Query("steps", subject.counted),
    )
    formula = [Evidence(f"bubble of {_setup(count, trainer)}", round(ideal, 4), "share", _SETTINGS)] if ideal else []
    return [
        subject.costing(
            Cost.BUBBLE,
            id=ID,
            title=f"The schedule leaves the {count} pipeline stages idle: {cost}",
            action=_action(count, trainer, subject.once(settings_of_run)),
            evidence=(waited, *formula),
        )
    ]


def pipeline(subject: Subject) -> Pipeline | None:
    return pipeline_of(subject.attribution, subject.shares.numbers)


def ideal_share(stages: int, trainer: Mapping[str, Any]) -> float | None:
    """The bubble of the schedule that the trainer used; None where the schedule or the number of micro-batches is
    not known."""
    batches, each = trainer.get("micro_batches"), trainer.get("stages_per_rank") or 1
    if not (isinstance(batches, int) and isinstance(each, int) and batches > 0 and each > 0):
        return None
    schedule = trainer.get("pipeline_schedule")
    if schedule in _ONE_STAGE_A_RANK:
        return bubble(stages, batches)
    return bubble(stages, batches, each) if schedule in _SEVERAL else None


def _setup(ranks: int, trainer: Mapping[str, Any]) -> str:
    """``1f1b, 4 ranks, 8 micro-batches``."""
    each = trainer.get("stages_per_rank") or 1
    several = f", {each} stages a rank" if each != 1 else ""
    return f"{trainer['pipeline_schedule']}, {ranks} ranks, {trainer['micro_batches']} micro-batches{several}"


def _action(ranks: int, trainer: Mapping[str, Any], program: Settings | None) -> str:
    if program is not None and program.by_megatron:
        return (
            f"{program.program}: a larger {program.key(Concept.GLOBAL_BATCH)} (more micro-batches a step), or "
            f"{program.key(Concept.VIRTUAL)} (several stages on a rank), which sends more messages."
        )
    batches, now = trainer.get("micro_batches"), ""
    if isinstance(batches, int) and (here := ideal_share(ranks, trainer)) is not None:
        more = max(4 * ranks, 2 * batches)
        then = ideal_share(ranks, {**trainer, "micro_batches": more})
        now = f" (the ideal bubble is {here:.0%} with {batches}, {then:.0%} with {more})"
    several = trainer.get("pipeline_schedule") in _SEVERAL
    interleave = "more stages a rank" if several else "several stages a rank (ScheduleInterleaved1F1B)"
    return (
        f"More micro-batches a step{now}: ScheduleGPipe keeps the activations of all of them, Schedule1F1B of no more "
        f"than there are stages. Or {interleave}, which sends more messages; or fewer, larger stages."
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="on a GPU a profiler window, because messages between stages run on the device.",
    means={
        ID: (
            "Pipeline stages have no micro-batch to work on. The finding gives the least that any stage waits, with "
            "what the schedule costs at best."
        ),
    },
)

"""Checkpoint saves that block the training."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from diag.collectors.records import CheckpointRecord
from diag.collectors.strategies import named
from diag.model.query import By, Query
from diag.model.steps import Evidence, Finding

from .costs import Cost
from .subject import Diagnosis, Subject, in_ms, rounded_ms

_NOT_RECORDED = "Save asynchronously (torch.distributed.checkpoint.async_save with its own group), or less often."
_IN_FOREGROUND = (
    "Save asynchronously (--checkpoint-async; in other trainings torch.distributed.checkpoint.async_save with its own "
    "group), or less often."
)
_BY_ENGINE = "Save less often, or to a faster disk: DeepSpeed's engine saves in the foreground."
_DISK_BEHIND = (
    "Save less often, or to a faster disk: the previous checkpoint was still being written when the next one was due."
)
_COPYING = "Save less often: checkpoints are already written in the background; only copying the state blocks."

_SAVING = Query("costs", {"cost": Cost.CHECKPOINT.words, "rank": None, "cost_ns >=": 1}, by=By.COUNT)
_WRITTEN = Query("checkpoints", {"failed": ""})


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    ranks = shares.at_fault(Cost.CHECKPOINT)
    saved = shares.cost(Cost.CHECKPOINT)
    saving = saved[saved > 0]
    each = float(subject.charged(Cost.CHECKPOINT, ranks).sum()) / len(saving)
    records = [record for tables in subject.tables.ranks.values() for record in tables.checkpoints]
    return [
        subject.costing(
            Cost.CHECKPOINT,
            id="checkpoint-stall",
            title=f"Checkpoints stop the training: {in_ms(each)} in {len(saving)} of {len(saved)} steps",
            action=_action(records, subject.tables.manifest.strategy if subject.tables.manifest else None),
            evidence=[
                Evidence("steps with a checkpoint", float(len(saving)), "steps", _SAVING),
                *_evidence([record for record in records if not record.failed]),
            ],
            ranks=ranks,
            title_ms=rounded_ms(each),
        )
    ]


def _action(records: list[CheckpointRecord], strategy: str | None) -> str:
    if not records:
        return _NOT_RECORDED
    if not all(record.asynchronous for record in records):
        kind = named(strategy)
        return _BY_ENGINE if kind is not None and kind.by_engine else _IN_FOREGROUND
    waited = sum(record.waited_ns for record in records)
    return _DISK_BEHIND if 2 * waited > sum(record.blocking_ns for record in records) else _COPYING


def _evidence(records: list[CheckpointRecord]) -> Iterable[Evidence]:
    """Size and write speed of the checkpoints, and their blocking and background time."""
    if not records:
        return
    by_step: dict[int, list[CheckpointRecord]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    size = mean(sum(record.bytes for record in ranks) for ranks in by_step.values())
    # The slowest rank counts: the other ranks' shards are of no use without its own.
    writing = mean(max(_writing_ns(record) for record in ranks) for ranks in by_step.values())
    stopped = mean(max(record.blocking_ns for record in ranks) for ranks in by_step.values())
    yield Evidence("size of a checkpoint, all ranks", round(size / 1e6, 3), "MB", _WRITTEN)
    if writing > 0:
        yield Evidence("write bandwidth", round(size * 1e3 / writing, 1), "MB/s", _WRITTEN)
    yield Evidence("training blocked", round(stopped / 1e6, 3), "ms", _WRITTEN)
    waited = mean(max(record.waited_ns for record in ranks) for ranks in by_step.values())
    if waited > 0:
        yield Evidence("training blocked by the previous checkpoint", round(waited / 1e6, 3), "ms", _WRITTEN)
    background = mean(max(record.background_ns for record in ranks) for ranks in by_step.values())
    if background > 0:
        yield Evidence("background write time", round(background / 1e6, 3), "ms", _WRITTEN)


def _writing_ns(record: CheckpointRecord) -> int:
    return record.background_ns or record.blocking_ns - record.waited_ns


DIAGNOSIS = Diagnosis(
    find,
    needs="the phases of the steps, or `checkpoints.jsonl`.",
    means={
        "checkpoint-stall": "Saving a checkpoint stops the training.",
    },
)

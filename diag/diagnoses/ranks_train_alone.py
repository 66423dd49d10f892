"""Ranks of one job that do not communicate: each trains its own model, and none waits for another."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from diag.diagnoses.policy import STRAGGLER
from diag.model.accounts import Attribution
from diag.model.query import Query
from diag.model.steps import Evidence, Finding, Severity
from diag.rundir.tables import RankTables, Tables

from .subject import Column, Diagnosis, Subject

ID = "ranks-train-alone"


def find(subject: Subject) -> list[Finding]:
    if not train_alone(subject.attribution, subject.tables):
        return []
    ranks, steps = len(subject.attribution.ranks), Query("steps", subject.counted)
    rows = sum(int((_group_sizes(rank_tables) == 1).sum()) for rank_tables in subject.tables.ranks.values())
    return [
        Finding(
            id=ID,
            title=f"The {ranks} ranks do not communicate: they exchange no gradients and no parameters, so "
            "each trains a model of its own",
            severity=Severity.CRITICAL,
            confidence=STRAGGLER.confidence_of_ranks_alone_with_trace
            if any(rank_tables.traces for rank_tables in subject.tables.ranks.values())
            else STRAGGLER.confidence_of_ranks_alone,
            evidence=(
                Evidence("in groups of more than one rank, counted steps", 0.0, "calls", steps),
                Evidence("in groups of one rank", float(rows), "calls", steps),
                Evidence("counted steps", float(len(subject.shares.numbers)), "steps", steps),
            ),
            action="Wrap the model (DistributedDataParallel, fully_shard, or accelerator.prepare), or call the "
            "collectives yourself. With FSDP's HYBRID_SHARD pass a device mesh. If the ranks are meant to be "
            "independent trainings, record each as a run of its own.",
        )
    ]


def cannot_look(subject: Subject) -> str:
    tables = subject.tables
    if tables.world_size == 1 or len(subject.attribution.ranks) < 2:
        return "only one rank was recorded; communication needs two"
    if not _recorded(tables):
        return "collectives were not recorded"
    return ""


def train_alone(attribution: Attribution, tables: Tables) -> bool:
    """Whether the ranks of a world above one trained for some steps without a collective or message between two of
    them. Communication in an evaluation is not part of a counted step."""
    counted = attribution.counted.numbers
    if len(attribution.ranks) < 2 or not _recorded(tables) or len(counted) < STRAGGLER.least_steps_of_ranks_alone:
        return False
    ranks = [rank_tables for rank_tables in tables.ranks.values() if rank_tables.steps]
    if len(ranks) < 2 or any(step.source == "trace" and not step.comm_known for step in attribution.rank_steps):
        return False
    if any(_exchanges(rank_tables, counted) for rank_tables in ranks):
        return False
    steps = (step for step in attribution.rank_steps if step.step in counted)
    if any(call.group_size != 1 and call.start_ns >= step.begin_ns for step in steps for call in step.collectives):
        return False
    # Collectives that C++ or compiled code issues for a wrapper have no row if they could not be timed.
    strategy = tables.manifest.strategy if tables.manifest is not None else None
    return strategy in (None, "", "none") or any((_group_sizes(rank_tables) == 1).any() for rank_tables in ranks)


def _exchanges(rank_tables: RankTables, counted: Collection[int]) -> bool:
    """Whether this rank called a collective of a group with others in a counted step."""
    starts = rank_tables.rows.start_ns[_group_sizes(rank_tables) > 1]
    steps = rank_tables.steps.of_numbers(counted)
    if not len(starts) or not steps:
        return False
    at = np.searchsorted(steps.begin_ns, starts, side="right") - 1
    return bool(np.any((at >= 0) & (starts < steps.end_ns[at])))


def _group_sizes(rank_tables: RankTables) -> npt.NDArray[np.int64]:
    """Of the group of each row; 2 where its ranks are not known."""
    rows = rank_tables.rows
    sizes = np.array([len(rank_tables.groups.get(name, (0, 1))) for name in rows.names], dtype=np.int64)
    return sizes[rows.group]


def _recorded(tables: Tables) -> bool:
    if tables.manifest is None or (tables.world_size or 1) < 2:
        return False
    settings = tables.manifest.collector.get("settings")
    return isinstance(settings, dict) and settings.get("collectives") is True


DIAGNOSIS = Diagnosis(
    ID,
    "ranks without communication",
    find,
    cannot_look,
    reads=(Column.CALLS,),
    needs="two ranks or more, and recorded collectives.",
    means={
        ID: (
            "Ranks of one job exchanged nothing: each trains a model of its own. This finding comes before every other."
        ),
    },
)

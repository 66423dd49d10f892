"""What a run must hold for a finding to be looked for, beyond the columns that its diagnosis reads. A function returns
why the run does not show the problem, "" where it may: ``diag.diagnoses.registry`` has the one that is asked before the
module of a finding is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from diag.account.rank_steps import RankSteps
from diag.deferred import by_name
from diag.diagnoses.policy import FINDINGS, STRAGGLER
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.steps import NotLooked
from diag.rundir.tables import RankTables, Tables
from diag.words.wording import fused_words, per_whole

from .costs import Cost
from .subject import Column, Subject, gpus_of, ranks_not_comparable, shared_words

ONE_RANK = "the run has one rank"
WAITS_FOR_HOST = (Cost.HOST, Cost.QUEUED, Cost.ONCE)
STRAGGLING = (Cost.STRAGGLER, Cost.HOST_STRAGGLER)
_FUSED = "communication inside fused kernels"

# Where the answer is in the data of one finding, and this run may hold it.
_unrecognised: Callable[[Subject], str] = by_name("diag.diagnoses.unseen_communication:unrecognised")
_memory_unknown: Callable[[Subject], str] = by_name("diag.diagnoses.memory_pressure:cannot_look")


def between_phases(subject: Subject) -> str:
    if subject.shares.on_device:
        return "the run is on a GPU, whose idle time shows it"
    known = any(len(tables.steps.cpu.name) for tables in subject.tables.ranks.values())
    return "" if subject.scheduling.ranks and known else "the CPU time of the training's thread was not recorded"


def contention(subject: Subject) -> str:
    return "" if subject.scheduling.ranks else "the system does not report how long threads wait for a core"


def idle_devices(subject: Subject) -> str:
    if any(tables.traces for tables in subject.tables.ranks.values()):
        return ""
    if not subject.attribution.comm_known:
        return "no profiler window was recorded"
    if subject.attribution.idle_known or any(subject.shares.cost(cost).any() for cost in WAITS_FOR_HOST):
        return ""
    if subject.once(gpus_of).not_alone:
        return "no profiler window was recorded, and the utilization of a GPU is that of all its processes"
    return "no profiler window was recorded, and no samples of the device's utilization"


def messages_of_stages(subject: Subject) -> str:
    if subject.attribution.axes.stages() and not subject.attribution.comm_known:
        return "messages between stages run on the device, and no profiler window was recorded"
    return ""


def blocked_time(subject: Subject) -> str:
    known = any((tables.steps.on_cpu_ns[:1] != UNKNOWN).any() for tables in subject.tables.ranks.values())
    if not subject.scheduling.ranks or not known:
        return "the CPU time of the training's thread was not recorded"
    if subject.shares.on_device and len(subject.shares.ranks) < 2:
        return "a host that waits for its device is blocked as well, and there is no other rank to compare with"
    return ""


def comparable_ranks(subject: Subject) -> str:
    # Beside summaries, the calls of a few ranks may have been read: they are not all of them.
    if Column.CALLS not in subject.lacks and subject.once(ranks_alone):
        return "the ranks do not communicate, so no rank waits for another"
    sharing = subject.once(gpus_of)
    if sharing.ranks and not any(subject.shares.share(cost) >= FINDINGS.mention_share for cost in STRAGGLING):
        return shared_words(sharing)
    return ranks_not_comparable(subject)


def gpus(subject: Subject) -> str:
    return "" if subject.once(gpus_of).gpus else "which GPU each rank uses was not recorded"


def sequence_numbers(subject: Subject) -> str:
    inferred = subject.attribution.collectives.inferred.all()
    return "no collective of two ranks carries the library's sequence number" if inferred else ""


def cannot_tell_parts(subject: Subject) -> str:
    """Why the exposed communication cannot be divided into parts; "" where it can."""
    if subject.tables.world_size == 1:
        return ONE_RANK
    if (reason := not_recorded(subject)) or len(subject.attribution.ranks) < 2:
        return reason or "only one rank was recorded, so waiting cannot be separated from transfer"
    if subject.phases_alone or not subject.attribution.aligned:
        return "waiting for other ranks cannot be separated from transfer"
    return ""


def not_recorded(subject: Subject) -> str:
    """Why nothing is known about the communication; "" where something is."""
    if subject.tables.world_size == 1 and not subject.shares.share(Cost.COMM):
        return ONE_RANK
    if not subject.attribution.comm_known:
        return "communication runs on the device, and no profiler window was recorded"
    if subject.phases_alone and Cost.COMM not in subject.shares.cost_ns:
        return "collectives were not recorded; their time counts as forward and backward"
    return ""


def micro_batches(subject: Subject) -> int | None:
    recorded = {int(rank.steps.micro_batches.max()) for rank in subject.tables.ranks.values() if rank.steps}
    manifest = subject.tables.manifest
    configured = manifest.trainer.get("micro_batches") if manifest is not None else None
    return max(recorded) if recorded else configured if isinstance(configured, int) else None


def recorded_collectives(subject: Subject) -> str:
    tables = subject.tables
    if tables.world_size == 1 or len(subject.attribution.ranks) < 2:
        return "only one rank was recorded; communication needs two"
    if not _recorded(tables):
        return "collectives were not recorded"
    return ""


def ranks_alone(subject: Subject) -> bool:
    """``train_alone``, for ``Subject.once``."""
    return train_alone(subject.attribution, subject.tables)


def train_alone(attribution: Attribution, tables: Tables) -> bool:
    """Whether the ranks of a world above one trained for some steps without a collective or message between two of
    them. Communication in an evaluation is not part of a counted step."""
    counted = attribution.counted.numbers
    if len(attribution.ranks) < 2 or not _recorded(tables) or len(counted) < STRAGGLER.least_steps_of_ranks_alone:
        return False
    ranks = [rank_tables for rank_tables in tables.ranks.values() if rank_tables.steps]
    steps = RankSteps.of(attribution.rank_steps)
    if len(ranks) < 2 or (steps.from_source("trace") & ~steps.comm_known).any():
        return False
    if any(_exchanges(rank_tables, counted) for rank_tables in ranks):
        return False
    steps = steps.of_steps(counted)
    alone = np.array([group.size == 1 for group in steps.calls.groups], dtype=np.bool_)
    if (steps.begun & ~alone[steps.calls.group[steps.places]]).any():
        return False
    # Collectives that C++ or compiled code issues for a wrapper have no row if they could not be timed.
    strategy = tables.manifest.strategy if tables.manifest is not None else None
    return strategy in (None, "", "none") or any((group_sizes(rank_tables) == 1).any() for rank_tables in ranks)


def _exchanges(rank_tables: RankTables, counted: Collection[int]) -> bool:
    """Whether this rank called a collective of a group with others in a counted step."""
    starts = rank_tables.rows.start_ns[group_sizes(rank_tables) > 1]
    steps = rank_tables.steps.of_numbers(counted)
    if not len(starts) or not steps:
        return False
    at = np.searchsorted(steps.begin_ns, starts, side="right") - 1
    return bool(np.any((at >= 0) & (starts < steps.end_ns[at])))


def group_sizes(rank_tables: RankTables) -> npt.NDArray[np.int64]:
    """Of the group of each row; 2 where its ranks are not known."""
    rows = rank_tables.rows
    sizes = np.array([len(rank_tables.groups.get(name, (0, 1))) for name in rows.names], dtype=np.int64)
    return sizes[rows.group]


def _recorded(tables: Tables) -> bool:
    if tables.manifest is None or (tables.world_size or 1) < 2:
        return False
    settings = tables.manifest.collector.get("settings")
    return isinstance(settings, dict) and settings.get("collectives") is True


def inside_fused(attribution: Attribution) -> tuple[NotLooked, ...]:
    """The communication inside kernels that also compute, which cannot be examined; empty where there are none."""
    counted = attribution.counted
    parts = counted.parts
    fused = int(parts.fused_ns.sum())
    return (NotLooked(_FUSED, fused_words(fused / len(parts), per_whole(attribution))),) if fused else ()


def communication(subject: Subject) -> str:
    reason = not_recorded(subject)
    on_gpu = any(trace.has_gpu for of_rank in subject.tables.ranks.values() for trace in of_rank.traces)
    return reason or (_unrecognised(subject) if on_gpu else "")


def parts_and(asked: Callable[[Subject], str]) -> Callable[[Subject], str]:
    """``cannot_tell_parts``, and what a part of the communication asks for where communication is worth a mention."""

    def unseen(subject: Subject) -> str:
        worth = subject.shares.share(Cost.COMM) >= FINDINGS.mention_share
        return asked(subject) if worth else cannot_tell_parts(subject)

    return unseen


def memory_and_parts(subject: Subject) -> str:
    return _memory_unknown(subject) or cannot_tell_parts(subject)


def micro_batches_and_parts(subject: Subject) -> str:
    unknown = micro_batches(subject) is None
    return "the number of micro-batches was not recorded" if unknown else cannot_tell_parts(subject)

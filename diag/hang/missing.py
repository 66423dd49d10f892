"""What is not there: which logs and dumps would tell more, and how to have them next time."""

from __future__ import annotations

from diag.hang.case import Case
from diag.words.formatting import listing, spaced

NCCL_LOGS = "Next run: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log."
DUMPS = (
    "Next run: TORCH_FR_BUFFER_SIZE=2000 (alias TORCH_NCCL_TRACE_BUFFER_SIZE) TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_FR_DUMP_TEMP_FILE=/shared/fr_rank_, and give the dumps of all ranks."
)
DETAIL = "Next run: TORCH_DISTRIBUTED_DEBUG=DETAIL checks that all ranks make the same calls (slow, for finding out)."
STACKS = "While it stands still: `py-spy dump --pid PID` of every rank, into files that are given as well."


def ranks_not_read(case: Case) -> tuple[int, ...]:
    """Ranks of a world of known size of which nothing was read; empty where the size is not known."""
    world = case.logs.world_size
    if world is None:
        return ()
    read = set(case.by_rank) | {line.speaker.rank for line in case.logs.lines}
    return tuple(rank for rank in range(world) if rank not in read)


def what_to_collect(case: Case, dumps_read: bool, timed_out: bool) -> tuple[str, ...]:
    """Sentences, the cheapest first."""
    found = []
    absent = ranks_not_read(case)
    if absent:
        found.append(f"Give the logs of {spaced(listing(absent))}: nothing of theirs was read.")
    elif case.logs.world_size is None:
        found.append("Give the logs of all ranks: nothing that was read says how many there are.")
    if case.logs.deduplicated:
        found.append("Ray left lines out: RAY_DEDUP_LOGS=0, or the workers' own log files.")
    if not case.logs.communicators or not any(m.calls for c in case.logs.communicators for m in c.members):
        found.append(NCCL_LOGS)
    if not dumps_read:
        found.append(DUMPS)
    if timed_out:
        found.append(DETAIL)
    found.append(STACKS)
    return tuple(found)

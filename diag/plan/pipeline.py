"""Pipeline schedules: how many micro-batches a stage holds at once, and in which order they come.

GPipe (arXiv 1811.06965): all forwards, then all backwards. 1F1B (PipeDream-flush, arXiv 2104.04473, section 2.2): a
backward as soon as one is there. Interleaved (2104.04473, section 2.2.2): each rank has ``chunks`` parts of the model
that are no neighbours.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from diag.errors import DiagError


class Schedule(StrEnum):
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class Turn(NamedTuple):
    """One pass of a rank: of which micro-batch, through which of its chunks."""

    forward: bool
    micro_batch: int
    chunk: int


def in_flight(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Micro-batches whose activations of the stage's layers are alive at once.

    1F1B: as many as stages lie behind it, itself included. Interleaved, Korthikanti et al. (2205.05198, section 4.2.3):
    1 + (p - 1) / (p v) of p on the first stage; counted here by the schedule itself.
    """
    if schedule == Schedule.GPIPE or stages == 1:
        return float(micro_batches) if stages > 1 else 1.0
    alive = most = 0
    for turn in turns(schedule, stage, stages, micro_batches, chunks):
        alive += 1 if turn.forward else -1
        most = max(most, alive)
    return most / chunks


def turns(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Turn]:
    """What a rank does, in order. DiagError where the interleaved schedule cannot be."""
    if schedule == Schedule.INTERLEAVED and micro_batches % stages:
        hint = f"give a multiple of {stages} micro-batches, or --schedule 1f1b"
        raise DiagError(
            f"--schedule interleaved: {micro_batches} micro-batches do not divide by {stages} stages", hint=hint
        )
    chunks = chunks if schedule == Schedule.INTERLEAVED else 1
    total = micro_batches * chunks
    ahead = {
        Schedule.GPIPE: total,
        Schedule.ONE_F_ONE_B: stages - stage - 1,
        # Megatron-LM's warm-up: two for each stage behind it, and all but one chunk of the first micro-batches.
        Schedule.INTERLEAVED: 2 * (stages - stage - 1) + (chunks - 1) * stages,
    }[schedule]
    ahead = min(ahead, total)
    forwards = [_turn(True, number, stages, chunks) for number in range(total)]
    backwards = [_turn(False, number, stages, chunks) for number in range(total)]
    found = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        found += [forward, backward]
    return found + backwards[total - ahead :]


def _turn(forward: bool, number: int, stages: int, chunks: int) -> Turn:
    """Groups of as many micro-batches as stages pass one chunk after the other."""
    if chunks == 1:
        return Turn(forward, number, 0)
    chunk = number // stages % chunks
    micro_batch = number // (stages * chunks) * stages + number % stages
    return Turn(forward, micro_batch, chunk if forward else chunks - 1 - chunk)

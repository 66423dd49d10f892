"""Whether a training that has not ended makes progress: from heartbeats and the ends of the step records alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from diag.collectors.layout import RankLayout
from diag.collectors.records import CHECKPOINT, EVALUATION, FAILED
from diag.rundir.policy import SILENCE
from diag.words.formatting import elapsed, listing

from .lines import last_steps, read_heartbeat

BUSY_PHASES = (CHECKPOINT, EVALUATION)  # long by nature, and often on one rank alone


class Standstill(Struct, frozen=True):
    """Why a training does not make progress, with durations in ns by rank. ``still_ns``: since the last step ended;
    None while steps still end, or without any. ``silent``: since the last heartbeat of a process that sends none any
    more, the longest first. ``raised``: ranks whose training raised, and the exception's name. ``busy``: ranks in a
    checkpoint or an evaluation."""

    still_ns: int | None
    silent: dict[int, int]
    raised: dict[int, str]
    busy: dict[int, str]

    @property
    def stalled(self) -> bool:
        """Whether nothing that was announced explains it."""
        return bool(self.silent or self.raised or not self.busy)

    @property
    def words(self) -> str:
        """``no step for 2 min (rank 1 silent for 2 min)``."""
        reasons = [
            f"rank {rank} silent for {elapsed(ns)}"
            for rank, ns in list(self.silent.items())[: SILENCE.most_ranks_named]
        ]
        if len(self.silent) > SILENCE.most_ranks_named:
            reasons.append(f"{len(self.silent) - SILENCE.most_ranks_named:,} more ranks silent")
        for states in (self.raised, self.busy):
            for state in dict.fromkeys(states.values()):
                in_it = listing(
                    [rank for rank, its_state in states.items() if its_state == state], SILENCE.most_ranks_named
                )
                reasons.append(f"{in_it} {f'raised {state}' if states is self.raised else f'in its {state}'}")
        if self.still_ns is None:
            return ", ".join(reasons)
        still = f"no step for {elapsed(self.still_ns)}"
        return f"{still} ({', '.join(reasons)})" if reasons else still


def standstill_of(ranks: Mapping[int, RankLayout], now_ns: int) -> Standstill | None:
    """What keeps a training that has not ended from making progress; None if steps end as usual and every process sends
    heartbeats, or if nothing is known. Each rank's own heartbeat counts: one process that lives keeps no other alive.

    Cheap while all is well: a look at each heartbeat's time, and the end of one rank's steps. ``now_ns``: Unix time.
    """
    ages = {rank: now_ns - heard for rank, files in ranks.items() if (heard := _written_ns(files)) is not None}
    still_ns = _still_ns(ranks, ages)
    if still_ns is None and all(age < SILENCE.silent_s * 1e9 for age in ages.values()):
        return None
    silent, raised, busy = {}, {}, {}
    for rank, age in ages.items():
        beat, _ = read_heartbeat(ranks[rank])
        if beat is None or beat.done:
            continue
        age = min(age, now_ns - beat.unix_ns)  # by the rank's clock or the storage's, whichever is later
        if beat.phase.startswith(FAILED):
            raised[rank] = beat.phase.removeprefix(FAILED)
        elif age >= (SILENCE.silent_s if still_ns is None else SILENCE.least_still_s) * 1e9:
            silent[rank] = age
        elif beat.phase in BUSY_PHASES:
            busy[rank] = beat.phase
    if still_ns is None and not silent:
        return None
    longest_first = dict(sorted(silent.items(), key=lambda entry: -entry[1]))
    return Standstill(still_ns, longest_first, raised, busy)


def _written_ns(files: RankLayout) -> int | None:
    try:
        return files.heartbeat.stat().st_mtime_ns
    except OSError:
        return None


def _still_ns(ranks: Mapping[int, RankLayout], ages: Mapping[int, int]) -> int | None:
    """Time since the last step of the first rank that still trains, if that is much longer than its steps take."""
    for rank, age in ages.items():
        beat, _ = read_heartbeat(ranks[rank])
        if beat is None or beat.done:
            continue
        ends = [step.end_ns for step in last_steps(ranks[rank].steps)]
        periods = sorted(after - before for before, after in pairwise(ends) if after > before)
        if not periods:
            return None  # nothing shows how long its steps take; the first one may be compiled
        much_longer = max(
            SILENCE.least_still_s * 1e9, SILENCE.still_steps * periods[len(periods) // 2], 2 * periods[-1]
        )
        still_ns = beat.monotonic_ns - ends[-1] + age
        return still_ns if still_ns >= much_longer else None
    return None

"""The state of a run in words: since when it is stuck, who is behind where, and who waits. Pure functions."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from diag.rundir.policy import SILENCE
from diag.words.formatting import elapsed, listing, spaced

from .states import Judged, RankState, Standstill, State


def moment_words(unix_ns: int) -> str:
    """``12:03:04 UTC``, with the date where it is not today."""
    moment = datetime.fromtimestamp(unix_ns / 1e9, UTC)
    today = datetime.fromtimestamp(time.time(), UTC).date()
    return f"{moment:%H:%M:%S} UTC" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def since_words(still: Standstill, timed: bool = True) -> str:
    """``no step since 12:03:04 UTC (41 s), in step 63``. ``timed``: how long that was, beside when."""
    words = f"no step since {moment_words(still.since_unix_ns)}" if still.since_unix_ns else "no step has ended"
    if timed and still.still_ns is not None:
        words += f" ({elapsed(still.still_ns)})"
    return words + (f", in step {still.last_step + 1:,}" if still.last_step is not None else "")


def stuck_words(judged: Judged) -> str:
    """Since when, which rank is behind where, and who waits for it: ``no step since 12:03:04 UTC (41 s), in step 63;
    rank 1 is silent for 42 s, its last heartbeat came from forward of step 63; rank 0 waits for it in all_reduce
    #626``."""
    if judged.standstill is None:
        return ""
    texts = [since_words(judged.standstill)]
    culprits = behind_ranks(judged)
    shown = culprits[: SILENCE.most_ranks_named]
    texts += [f"rank {rank.rank} {where_words(rank)}" for rank in shown]
    if len(culprits) > len(shown):
        texts.append(f"{len(culprits) - len(shown):,} more ranks are behind")
    waiting = [rank for rank in judged.ranks if rank.state is State.WAITING and rank not in culprits]
    for words in dict.fromkeys(rank.waits_in for rank in waiting):
        named = [rank.rank for rank in waiting if rank.waits_in == words]
        them = ("it" if len(culprits) == 1 else "them") if culprits else ""
        texts.append(
            f"{spaced(listing(named))} wait{'s' if len(named) == 1 else ''} {f'for {them} ' if them else ''}in {words}"
        )
    idle = [rank for rank in judged.ranks if rank.state is State.TRAINING or rank.state is State.STARTING]
    for words in dict.fromkeys(blocked_words(rank) for rank in idle if not culprits):
        named = [rank.rank for rank in idle if blocked_words(rank) == words]
        if words:
            texts.append(f"{spaced(listing(named))} wait{'s' if len(named) == 1 else ''} {words}")
    if waiting and not culprits:
        in_circle = len(waiting) > 1 and all(rank.waits_for for rank in waiting)
        open_words = "they wait for each other, and no recorded order of their calls shows which one left it"
        texts.append(open_words if in_circle else "no rank is known to be behind")
    return "; ".join(texts)


def where_words(rank: RankState, timed: bool = True) -> str:
    """``is silent for 42 s, its last heartbeat came from forward of step 63``, ``is in forward for 40 s``.
    ``timed``: for how long."""
    if rank.raised:
        return f"raised {rank.raised}"
    if rank.state is State.UNKNOWN:
        return "left no heartbeat"
    between = rank.phase.startswith("between")
    place = rank.phase if between else f"in {rank.phase}"
    of_step = f"{', before' if between else ' of'} step {rank.step:,}" if rank.step >= 0 else ""
    if rank.state is State.STUCK:
        silent = f"silent for {elapsed(rank.silent_ns)}" if timed else "silent"
        return f"is {silent}, its last heartbeat came from {rank.phase}{of_step}"
    if rank.state is State.FINISHED:
        return "has finished its training"
    if rank.skipped:
        return f"{rank.skipped}, and waits in {rank.waits_in}"
    if rank.waits_in:
        return f"waits in {rank.waits_in}"
    since = (
        f"{',' if between and of_step else ''} for {elapsed(rank.in_it_ns)}"
        if timed and rank.in_it_ns is not None
        else ""
    )
    words = f"is {place}{of_step}{since}"
    blocked = blocked_words(rank)
    return f"{words}, {'blocked ' if rank.blocked_in else ''}{blocked}" if blocked else words


def blocked_words(rank: RankState) -> str:
    """``in flock /data/lock, at train.py:57 in load``; "" where neither is known."""
    texts = [f"in {rank.blocked_in}"] if rank.blocked_in else []
    return ", ".join([*texts, f"at {rank.line}"] if rank.line else texts)


def behind_ranks(judged: Judged) -> list[RankState]:
    """The ranks that the others of a stuck run wait for, as far as it is known: those that raised, else those that are
    silent, else those that are in no collective while others wait in one, else those that have left out a call."""
    for states in (
        [rank for rank in judged.ranks if rank.raised],
        [rank for rank in judged.ranks if rank.state in (State.STUCK, State.UNKNOWN)],
    ):
        if states:
            return states
    waiting = [rank for rank in judged.ranks if rank.state is State.WAITING]
    needed = {rank for waits in waiting for rank in waits.waits_for}
    away = [rank for rank in judged.ranks if rank.state is not State.WAITING]
    if waiting and away:
        open_ones = [rank for rank in away if rank.state is not State.FINISHED]
        return [rank for rank in away if rank.rank in needed] or open_ones or away
    return [rank for rank in waiting if rank.skipped]


def headline_of(judged: Judged) -> str:
    """The first line about a run that is stuck, or was when its records end; "" for any other run."""
    if judged.state is State.STUCK:
        return f"The training is stuck: {stuck_words(judged)}."
    if judged.was is State.STUCK:
        as_of = moment_words(judged.as_of_ns)
        return f"The records end at {as_of} without an end of the training, which was stuck: {stuck_words(judged)}."
    return ""

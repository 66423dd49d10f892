"""Which ranks are culprits of a delay. A rank is named only if chance does not explain that it was late so often."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.diagnoses.policy import STRAGGLER
from diag.rundir.policy import SILENCE

Series = npt.NDArray[np.float64]  # one value a step


class Culprits(Struct, frozen=True):
    """``ranks``: the culprits, worst first; () where the delay moves from rank to rank, or too few steps show it.
    ``share``: cost of all late ranks, as a fraction of all steps. ``steps``: (steps in which a suspect, or without
    suspects the most frequent rank, was the latest; steps affected). ``chance``: probability of that if all ranks are
    equally likely to be late, from how often or from how evenly it was late, whichever is stronger. ``suspects``: the
    culprits, or the ranks that would be if chance did not explain it as well. ``moves``: ranks other than the worst are
    late as well, more often or more evenly than by chance. Without ``ranks`` and ``moves`` it is undecided which rank
    is late."""

    ranks: tuple[int, ...]
    share: float
    steps: tuple[int, int]
    chance: float
    suspects: tuple[int, ...] = ()
    moves: bool = False
    late_ns: tuple[tuple[int, float], ...] = ()  # (rank, mean a step that others waited for it)
    # Places of the few steps with nearly all of the delay, where the culprit stood still: who it was is measured.
    stood_still: tuple[int, ...] = ()


def find_culprits(late_ns: Mapping[int, Series], dur_ns: Series, ranks: int, noise_ns: int | Series = 0) -> Culprits:
    """``late_ns[rank]``: per step, how long others waited for the rank. ``ranks``: how many could have been late.
    ``noise_ns``: a rank that is later than the others by less in a step is not late; one number, or one a step."""
    total = float(dur_ns.sum())
    if not late_ns or total <= 0:
        return Culprits((), 0.0, (0, 0), 1.0)
    names = sorted(late_ns)
    late = table_of([late_ns[rank] for rank in names])
    means = sorted(zip(names, late.mean(axis=1).tolist(), strict=True), key=lambda pair: -pair[1])
    return replace(
        _proven_culprits(names, late, dur_ns, ranks, noise_ns), late_ns=tuple(means[: STRAGGLER.most_ranks_named])
    )


def table_of(series: Collection[Series]) -> Series:
    """One in each row, as ``np.stack`` makes it in two to three times the time where they are of thousands of ranks."""
    return np.concatenate(list(series)).reshape(len(series), -1)


def _proven_culprits(
    names: Sequence[int], late: Series, dur_ns: Series, ranks: int, noise_ns: int | Series
) -> Culprits:
    total = float(dur_ns.sum())
    worst_each = late.max(axis=0)
    share = float(worst_each.sum()) / total
    if (stood_still := _standstill(late, dur_ns)) is not None:
        worst, places = stood_still
        times = len(places)
        return Culprits((names[worst],), share, (times, times), STRAGGLER.chance, (names[worst],), stood_still=places)
    least = np.maximum(STRAGGLER.affected_step_share * dur_ns, noise_ns)
    affected = worst_each > least
    count = int(affected.sum())
    each = late[:, affected].sum(axis=1)  # a rank that is late by no more than noise is not late
    beyond = each - typical(each, ranks)
    most_often = int((affected & (late >= worst_each)).sum(axis=1).max())
    # Ranks that cost enough, and at least half as much as the worst, are tested together: without those that are hardly
    # later than a typical rank, where there is one.
    suspects = np.flatnonzero((each >= STRAGGLER.least_delay_share * total) & (each >= each.max() / 2))
    if len(suspects) <= ranks / 2:
        suspects = suspects[beyond[suspects] >= beyond.max() / 2]
    if not len(suspects) or not count:
        return Culprits((), share, (most_often, count), 1.0, moves=_others_too(late, [each.argmax()], least, ranks))
    leads = int((affected & (late[suspects].max(axis=0) >= worst_each)).sum())
    chance = at_least(leads, count, len(suspects) / max(ranks, 2))
    even = _steadily(late, suspects, affected) * max(ranks, 2)
    proven = chance <= STRAGGLER.chance or even <= STRAGGLER.chance_if_steady
    lasting = (
        (late[suspects] > STRAGGLER.affected_step_share * dur_ns)[:, affected].mean(axis=1)
        >= STRAGGLER.affected_steps_share
    ).all()
    alone = len(suspects) <= ranks / 2
    worst_first = tuple(names[i] for i in sorted(suspects.tolist(), key=lambda i: -float(each[i])))
    if alone and _most_of_waiting(late, each, beyond, suspects) and _by_time(late, suspects) <= STRAGGLER.chance:
        return Culprits(worst_first, share, (leads, count), min(chance, even, STRAGGLER.chance), worst_first)
    if not (alone and bool(lasting) and leads / count >= STRAGGLER.affected_steps_share):
        moves = _others_too(late, [each.argmax()], least, ranks)
        return Culprits((), share, (most_often, count), min(chance, even), moves=moves)
    if proven:
        return Culprits(worst_first, share, (leads, count), min(chance, even), worst_first)
    moves = _others_too(late, suspects, least, ranks)
    return Culprits((), share, (leads, count), min(chance, even), worst_first, moves)


def _standstill(late: Series, dur_ns: Series) -> tuple[int, tuple[int, ...]] | None:
    """The rank for which the others waited far longer than any step takes, in few steps, and in all of these; and their
    places. Nothing but these steps may matter: whether it is always this rank is no question then. Longer than that is
    as of a stall in ``diag.history``."""
    worst = late.max(axis=0)
    most_ns = SILENCE.stall_ns(float(np.median(dur_ns)))
    places = np.flatnonzero(worst >= most_ns)
    few = len(places) <= STRAGGLER.few_steps_share * len(dur_ns)
    if not len(places) or not few or worst[places].sum() < STRAGGLER.nearly_all_waiting_share * worst.sum():
        return None
    ranks = late[:, places].argmax(axis=0)
    others = np.delete(late[:, places], ranks[0], axis=0)
    alone = not len(others) or bool((2 * others.max(axis=0) < worst[places]).all())
    return (int(ranks[0]), tuple(places.tolist())) if alone and (ranks == ranks[0]).all() else None


def typical(each: Series, ranks: int) -> float:
    """How late a rank is by chance alone: the median of the less late half of ``ranks``, of which those without a value
    are never late. At most half of the ranks are culprits, so this half has none."""
    of_all = np.sort(np.concatenate([each, np.zeros(max(0, ranks - len(each)))]))
    return float(np.median(of_all[: max(1, len(of_all) // 2)]))


def _most_of_waiting(late: Series, each: Series, beyond: Series, suspects: npt.NDArray[np.intp]) -> bool:
    """Whether the suspects are waited for most: by all of the time, or by the time beyond a typical rank, where this is
    the larger part."""
    if each[suspects].sum() >= STRAGGLER.waiting_share * late.sum():
        return True
    of_suspects = beyond[suspects].sum()
    most = of_suspects >= STRAGGLER.waiting_share * np.maximum(beyond, 0).sum()
    return bool(most and of_suspects >= STRAGGLER.half_of_waiting_share * late.sum())


def _others_too(late: Series, suspects: Sequence[np.intp] | npt.NDArray[np.intp], least: Series, ranks: int) -> bool:
    """Whether ranks other than the suspects are late as well: by half as much or more, in more steps than by chance; or
    instead of the suspects, by a steady amount. ``least``: lateness that counts, by step."""
    others, worst = np.delete(late, suspects, axis=0).max(axis=0, initial=0.0), late.max(axis=0)
    affected = worst > least
    as_late = int((others > np.maximum(least, worst / 2)).sum())
    often = at_least(as_late, int(affected.sum()), STRAGGLER.another_rank_by_chance) <= STRAGGLER.chance
    instead = bool((others >= worst)[affected].any())
    return often or (instead and _by_variation(worst[affected]) * max(ranks, 2) <= STRAGGLER.chance_if_steady)


def _steadily(late: Series, suspects: npt.NDArray[np.intp], affected: npt.NDArray[np.bool_]) -> float:
    """The probability that the suspects' lead over the other ranks is nothing but variation."""
    others = np.delete(late, suspects, axis=0)
    lead = late[suspects].min(axis=0) - (others.max(axis=0) if len(others) else 0.0)
    return _by_variation(lead[affected])


def _by_time(late: Series, suspects: npt.NDArray[np.intp]) -> float:
    """The probability that ranks waited so much longer for the suspects than for the others, if the sign of the
    difference is random in each block of steps: a two-sided sign-flip test. Blocks as in ``subject.Drawn``."""
    others = np.delete(late, suspects, axis=0)
    lead = late[suspects].min(axis=0) - (others.max(axis=0) if len(others) else 0.0)
    length = round(len(lead) ** (1 / 3)) if len(lead) >= STRAGGLER.least_steps_for_blocks else 1
    blocks = np.add.reduceat(lead, np.arange(0, len(lead), length))
    blocks = blocks[blocks != 0]
    if not len(blocks):
        return 1.0
    if len(blocks) <= STRAGGLER.blocks_for_all_signs:
        signs = 1 - 2 * (np.arange(2 ** len(blocks))[:, None] >> np.arange(len(blocks)) & 1)
    else:
        signs = np.random.default_rng(0).choice((-1, 1), size=(STRAGGLER.random_signs, len(blocks)))
    as_much = (signs * np.abs(blocks)).sum(axis=1) >= blocks.sum() * (1 - 1e-12)
    return min(1.0, 2 * float(as_much.mean()))


def _by_variation(values: Series) -> float:
    """The probability that the mean of the values is above zero by chance: Student's t-test.

    Counting steps proves nothing about two ranks in four steps (one in sixteen), and a profiler window has no more.
    But random delays are not 16 ms four times to within one per cent. The test uses two degrees of freedom, for which
    there is a formula; more of them would only make it surer.
    """
    if len(values) < STRAGGLER.least_steps_if_steady or values.mean() <= 0:
        return 1.0
    spread = float(values.std(ddof=1)) / float(np.sqrt(len(values)))
    t = float(values.mean()) / spread if spread else np.inf
    return float(0.5 * (1 - 1 / np.sqrt(1 + 2 / t**2)))


_T95 = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31)  # by degrees of freedom, from 1


def t95(free: int) -> float:
    """The half-width of a 95 % interval in standard errors, by Student's t with so many degrees of freedom."""
    return _T95[free - 1] if free <= len(_T95) else 2.1


def at_least(successes: int, tries: int, probability: float) -> float:
    """The probability of that many successes or more: the binomial tail. By logarithms, as the binomials of a thousand
    tries are more than a float holds."""
    if successes <= 0 or probability >= 1.0:
        return 1.0
    if successes > tries or probability <= 0.0:
        return 0.0
    fewer = tries - successes
    log_odds = log(probability) - log1p(-probability)
    first = _log_ways(tries, successes) + successes * log(probability) + fewer * log1p(-probability)
    counts = np.arange(successes, tries)
    terms = first + np.cumsum(np.log((tries - counts) / (counts + 1)) + log_odds)
    return min(1.0, exp(first) + float(np.exp(terms).sum()))


def of_any(most: int, chosen: int, chance: float) -> float:
    """What a probability of certain members is at most for any so many of ``most``, which were chosen afterwards."""
    return exp(min(0.0, _log_ways(most, chosen) + log(chance))) if chance else 0.0


def _log_ways(most: int, chosen: int) -> float:
    return lgamma(most + 1) - lgamma(chosen + 1) - lgamma(most - chosen + 1)

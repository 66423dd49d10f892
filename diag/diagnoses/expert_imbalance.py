"""Whether a rank that computes longer than the others of its expert-parallel group does so because it received more
tokens, or is slow itself.

For each dispatch and rank, what the rank received is compared with how long it then computed. Compute time is at most
proportional to the load, so a rank that received hardly more than the others is slow itself, however well load and time
correlate. Otherwise the time per token is measured: within each rank, where the loads change from dispatch to dispatch
(so that a rank that is always slower than the others does not count); where they do not, across the other ranks. If
neither is possible, the load is the reason only if the rank computes as long per token as the others do, and is no
slower than they are after balanced all-to-alls.

The diagnosis of stragglers finds which ranks are late, and asks this module why: two diagnoses would count the same
waiting twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.rank_steps import RankSteps
from diag.diagnoses.policy import EXPERT_IMBALANCE, STRAGGLER
from diag.model import UNKNOWN
from diag.model.query import Query
from diag.model.steps import Evidence, Finding
from diag.tables.all_to_alls import Exchange, by_group, exchanges, received_bytes, uneven
from diag.words import sentences

from .costs import Cost
from .culprits import at_least, t95
from .ids import EXPERT_IMBALANCE as ID
from .subject import Subject, in_ms, ranks_text

Series = npt.NDArray[np.float64]


_SAME = (0.85, 1.1)  # time per token relative to the others'


class Reason(StrEnum):
    LOAD = "load"
    ITSELF = "itself"
    OPEN = "open"


class ExpertLoad(Struct, frozen=True):
    """``ranks``: the late ranks, () where they change. ``over_mean``: what they received over the mean of the group.
    ``imbalance``: the most that a rank received over the mean, averaged over dispatches. ``explained``: the fraction of
    their lateness that the load explains, with the half-width of its 95 % interval; None where only its upper bound
    ``at_most`` is known. ``balanced_ns``: how much shorter a step would be if all ranks received the same.
    ``measured``: the time per token was measured, not only compared. ``dispatches``: how many count; ``often``: where
    the late rank changes, in how many of them the rank that received most computed longest."""

    reason: Reason
    ranks: tuple[int, ...]
    over_mean: float
    imbalance: float
    explained: tuple[float, float] | None
    at_most: float
    balanced_ns: float
    measured: bool
    dispatches: int
    often: int = 0


class _Table(Struct, frozen=True):
    """Dispatches of one group, [dispatches, ranks]. ``load``: received over the mean at the same place in the step;
    ``own_ns``: computation after the dispatch; ``usual_ns``: its mean at that place, by dispatch."""

    ranks: tuple[int, ...]
    steps: int
    load: Series
    own_ns: Series
    usual_ns: Series

    def gain_ns(self, slope: float) -> float:
        """How much shorter a step would be if all ranks received the mean. ``slope``: the fraction of the computation
        that is proportional to the load."""
        beyond = self.load.max(axis=1) - self.load.mean(axis=1)
        return slope * float((self.usual_ns * beyond).sum()) / self.steps


def sizes_unknown(subject: Subject, ranks: tuple[int, ...]) -> bool:
    """Whether these ranks call all-to-alls, and the received size of none is known."""
    steps = RankSteps.of(subject.attribution.rank_steps)
    exchanged = received_bytes(steps.take(np.isin(steps.rank, ranks)))
    return bool(len(exchanged)) and bool((exchanged == UNKNOWN).all())


def of_late_ranks(subject: Subject, ranks: tuple[int, ...]) -> ExpertLoad | None:
    """Why these ranks are late; None where they are in no group that exchanges tokens, or too little of it is known."""
    late = subject.shares.blame_ns.get(Cost.STRAGGLER, {})
    answers = []
    for (_, members), group_exchanges in by_group(subject.once(_exchanges)):
        suspects = tuple(rank for rank in ranks if rank in members)
        if suspects and len(suspects) < len(members):
            late_ns = float(np.mean([late[rank].mean() if rank in late else 0.0 for rank in suspects]))
            answers.append((set(suspects), _of_group(subject, group_exchanges, suspects, late_ns)))
    # Ranks may exchange equal parts in other groups as well (sequence parallelism), which is no evidence of their load.
    known = [(covered, answer) for covered, answer in answers if answer is None or answer.dispatches]
    answers = known if set(ranks) == set().union(*(covered for covered, _ in known)) else answers
    judged = [answer for _, answer in answers if answer is not None]
    if not judged or len(judged) < len(answers) or set(ranks) != set().union(*(covered for covered, _ in answers)):
        return None
    reasons = {answer.reason for answer in judged}
    worst = max(judged, key=lambda answer: answer.over_mean)
    reason = reasons.pop() if len(reasons) == 1 else Reason.OPEN
    return replace(
        worst,
        reason=reason,
        ranks=ranks,
        at_most=max(answer.at_most for answer in judged),
        balanced_ns=max(answer.balanced_ns for answer in judged),
        measured=all(answer.measured for answer in judged),
        dispatches=sum(answer.dispatches for answer in judged),
    )


def of_changing_ranks(subject: Subject) -> ExpertLoad | None:
    """The load as the reason why the late rank changes; None where that is not proven. ``ranks``: those that receive
    most, if they are always the same, one in each group."""
    groups = by_group(uneven(subject.once(_exchanges)))
    tables = [
        table
        for _, group_exchanges in groups
        if (table := _table(group_exchanges)) is not None and len(table.load) >= EXPERT_IMBALANCE.least_dispatches
    ]
    most_ns = max((_longest_ns(table) for table in tables), default=0.0)
    waited_for = [
        table for table in tables if _longest_ns(table) >= EXPERT_IMBALANCE.group_lateness_share * most_ns > 0
    ]
    answers = [_changing(table, float(subject.shares.cost(Cost.STRAGGLER).mean())) for table in waited_for]
    proven = [answer for answer in answers if answer is not None]
    if not proven or len(proven) < len(answers):
        return None
    worst = max(proven, key=lambda answer: answer.balanced_ns)
    always = tuple(sorted(rank for answer in proven for rank in answer.ranks))
    return replace(worst, ranks=always if all(answer.ranks for answer in proven) else ())


def _changing(table: _Table, late_ns: float) -> ExpertLoad | None:
    """The same for one group. ``late_ns``: how long all ranks waited for late ones, a step."""
    slope, error = _within(table)
    rows, longest = np.arange(len(table.load)), table.own_ns.argmax(axis=1)
    load_ns = float((table.usual_ns * _beyond_others(table.load, longest)).sum()) / table.steps
    slope, seen_ns = min(max(slope, 0.0), 1.0), max(1.0, _longest_ns(table))
    explained, half = slope * load_ns / seen_ns, error * load_ns / seen_ns
    often = int((table.load[rows, longest] >= table.load.max(axis=1)).sum())
    # Among many ranks, the one that computes longest may be one that happened to be disturbed.
    proven = (
        often >= STRAGGLER.affected_steps_share * len(rows)
        and at_least(often, len(rows), 1 / len(table.ranks)) <= STRAGGLER.chance
    )
    if (
        not proven
        or explained - half < EXPERT_IMBALANCE.interval_beyond
        or not 0 < half <= EXPERT_IMBALANCE.interval_half_width
        or slope * load_ns < EXPERT_IMBALANCE.lateness_after_dispatches_share * late_ns
    ):
        return None
    counts = np.bincount(table.load.argmax(axis=1), minlength=len(table.ranks))
    always = (
        (table.ranks[int(counts.argmax())],)
        if counts.max() >= EXPERT_IMBALANCE.always_most_loaded_share * len(rows)
        else ()
    )
    imbalance = float(table.load.max(axis=1).mean() / table.load.mean())
    return ExpertLoad(
        reason=Reason.LOAD,
        ranks=always,
        over_mean=imbalance,
        imbalance=imbalance,
        explained=(min(1.0, explained), half),
        at_most=1.0,
        balanced_ns=table.gain_ns(slope),
        measured=True,
        dispatches=len(rows),
        often=often,
    )


def _longest_ns(table: _Table) -> float:
    """How much longer than the others the slowest rank computes, summed over a step's dispatches."""
    return float(_beyond_others(table.own_ns, table.own_ns.argmax(axis=1)).sum()) / table.steps


def _beyond_others(values: Series, chosen: npt.NDArray[np.intp]) -> Series:
    """By dispatch, the value of the chosen rank beyond the median of the others."""
    rows, others = np.arange(len(values)), np.ones(values.shape, dtype=np.bool_)
    others[rows, chosen] = False
    beyond: Series = values[rows, chosen] - np.median(values[others].reshape(len(values), -1), axis=1)
    return beyond


def _exchanges(subject: Subject) -> list[Exchange]:
    return exchanges(subject.attribution, frozenset(subject.shares.numbers))


def _of_group(
    subject: Subject, group_exchanges: Sequence[Exchange], suspects: tuple[int, ...], late_ns: float
) -> ExpertLoad | None:
    """None where the computation is known after too few dispatches. ``late_ns``: how long others waited for the
    suspects, a step."""
    unequal = uneven(group_exchanges)
    ranks = group_exchanges[0].ranks
    late = np.isin(ranks, suspects)
    received = np.sum([exchange.received for exchange in unequal or group_exchanges], axis=0)
    over_mean = float(received[late].mean() / received.mean()) if received.any() else 1.0
    over_others = float(received[late].mean() / max(1.0, float(np.median(received[~late])))) - 1
    imbalance = float(np.mean([exchange.imbalance for exchange in unequal or group_exchanges]))
    # If all that the others computed were proportional to what they received.
    most_ns = max(0.0, over_others) * _computed_ns(subject, tuple(r for r in ranks if r not in suspects))
    at_most = min(1.0, most_ns / late_ns) if late_ns > 0 else 1.0
    answer = ExpertLoad(Reason.OPEN, suspects, over_mean, imbalance, None, at_most, 0.0, False, len(unequal))
    if late_ns > 0 and at_most <= EXPERT_IMBALANCE.unexplained_lateness_share:
        return replace(answer, reason=Reason.ITSELF)
    table = _table(unequal)
    if table is None or len(table.load) < max(
        EXPERT_IMBALANCE.least_dispatches, EXPERT_IMBALANCE.known_dispatches_share * len(unequal)
    ):
        return None if not unequal else answer
    return _judged(answer, table, late, late_ns, _elsewhere(group_exchanges, unequal, late))


def _judged(
    answer: ExpertLoad, table: _Table, late: npt.NDArray[np.bool_], late_ns: float, elsewhere: tuple[float, float]
) -> ExpertLoad:
    """The answer from the dispatches. ``elsewhere``: how much longer than the others the suspects compute after
    balanced all-to-alls, and how long the others compute there, a step."""
    seen_ns = _beyond(table.own_ns, late, table.steps)
    load_ns = _beyond(table.usual_ns[:, None] * table.load, late, table.steps)
    if seen_ns < EXPERT_IMBALANCE.lateness_after_dispatches_share * late_ns:  # it is late somewhere else
        return (
            replace(answer, reason=Reason.ITSELF)
            if elsewhere[0] >= EXPERT_IMBALANCE.lateness_after_dispatches_share * late_ns
            else answer
        )
    whole_ns = max(seen_ns, late_ns)
    part_of_slope = max(0.0, load_ns) / whole_ns
    slope, error = _slope(table, late, EXPERT_IMBALANCE.interval_half_width / part_of_slope if part_of_slope else 0.0)
    half = error * part_of_slope
    if load_ns > 0 and half <= EXPERT_IMBALANCE.interval_half_width:
        slope = min(max(slope, 0.0), 1.0)
        part = slope * load_ns / whole_ns
        answer = replace(answer, explained=(min(1.0, part), half), measured=True)
        if part >= EXPERT_IMBALANCE.explained_by_load and part - half >= EXPERT_IMBALANCE.interval_beyond:
            return replace(answer, reason=Reason.LOAD, balanced_ns=table.gain_ns(slope))
        itself = part <= EXPERT_IMBALANCE.not_explained_by_load and part + half <= EXPERT_IMBALANCE.interval_beyond
        return replace(answer, reason=Reason.ITSELF) if itself else answer
    if load_ns <= EXPERT_IMBALANCE.unexplained_lateness_share * whole_ns:
        return replace(answer, reason=Reason.ITSELF)
    return _compared(answer, table, late, seen_ns, load_ns, elsewhere)


def _compared(
    answer: ExpertLoad,
    table: _Table,
    late: npt.NDArray[np.bool_],
    seen_ns: float,
    load_ns: float,
    elsewhere: tuple[float, float],
) -> ExpertLoad:
    """The answer without a measured time per token. The load is the reason if the suspects compute as long per token as
    the others do, and are no slower elsewhere."""
    others_ns = float(np.median(table.own_ns[:, ~late], axis=1).sum()) / table.steps
    slower, slower_elsewhere = seen_ns / max(1.0, others_ns), elsewhere[0] / max(1.0, elsewhere[1])
    if slower_elsewhere > EXPERT_IMBALANCE.slowdown_elsewhere_share * slower:
        return answer
    needed = seen_ns / load_ns  # the part of the computation that would have to be proportional to the load
    if not _SAME[0] <= needed <= _SAME[1]:
        return answer
    return replace(answer, reason=Reason.LOAD, balanced_ns=table.gain_ns(min(needed, 1.0)))


def _table(group_exchanges: Sequence[Exchange]) -> _Table | None:
    known = [(exchange, exchange.own_ns) for exchange in group_exchanges if exchange.own_ns is not None]
    if not known:
        return None
    received = np.array([exchange.received for exchange, _ in known])
    own_ns = np.array([compute_ns for _, compute_ns in known])
    usual_ns, load = np.zeros(len(known)), np.zeros_like(received)
    places = np.array([exchange.place for exchange, _ in known])
    for place in np.unique(places):
        at = places == place
        usual_ns[at] = own_ns[at].mean()
        load[at] = received[at] / max(1.0, float(received[at].mean()))
    steps = len({exchange.step for exchange, _ in known})
    return _Table(known[0][0].ranks, steps, load, own_ns, usual_ns)


def _beyond(values: Series, late: npt.NDArray[np.bool_], steps: int) -> float:
    """The mean of the late ranks beyond the median of the others, summed over the dispatches of a step."""
    return float((values[:, late].mean(axis=1) - np.median(values[:, ~late], axis=1)).sum()) / steps


def _slope(table: _Table, late: npt.NDArray[np.bool_], precise: float) -> tuple[float, float]:
    """The fraction of the computation that is proportional to the load, and the half-width of its 95 % interval. From
    the other ranks if it is at most ``precise``, since the time per token of a late rank may differ; else from all."""
    fits = _within(table, ~late), _across(table, late)
    best = min(fits, key=lambda fit: fit[1])
    return best if best[1] <= precise else min((*fits, _within(table)), key=lambda fit: fit[1])


def _within(table: _Table, chosen: npt.NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """The same from how load and computation change from dispatch to dispatch within each of the chosen ranks. The
    error allows for heteroscedasticity (HC1)."""
    time = table.own_ns / np.maximum(1.0, table.usual_ns)[:, None]
    columns = chosen if chosen is not None else np.ones(len(table.ranks), dtype=np.bool_)
    load, time = (_centred(values[:, columns], table.usual_ns) for values in (table.load, time))
    weight = table.usual_ns[:, None] * np.ones_like(load)
    square = float((weight * load**2).sum())
    free = load.size - load.shape[0] - load.shape[1]
    if square <= 1e-9 * float(weight.sum()) or free < EXPERT_IMBALANCE.least_dispatches:
        return 0.0, np.inf
    slope = float((weight * load * time).sum()) / square
    left = time - slope * load
    error = float(np.sqrt(((weight * load * left) ** 2).sum() * load.size / free)) / square
    return slope, t95(free) * error


def _centred(values: Series, weight: Series) -> Series:
    """The values minus each dispatch's mean over the ranks, then minus each rank's mean over the dispatches."""
    of_dispatch = values - values.mean(axis=1, keepdims=True)
    centred: Series = of_dispatch - np.average(of_dispatch, axis=0, weights=np.maximum(weight, 1.0))
    return centred


def _across(table: _Table, late: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """The same from a line through the means of the ranks that are not late, at least three."""
    load = table.load[:, ~late].mean(axis=0)
    time = (table.own_ns / np.maximum(1.0, table.usual_ns)[:, None])[:, ~late].mean(axis=0)
    free = len(load) - 2
    square = float(((load - load.mean()) ** 2).sum())
    if free < 1 or square <= 1e-6:
        return 0.0, np.inf
    slope = float(((load - load.mean()) * time).sum()) / square
    left = time - time.mean() - slope * (load - load.mean())
    return slope, t95(free) * float(np.sqrt((left**2).sum() / free / square))


def _elsewhere(
    group_exchanges: Sequence[Exchange], unequal: Sequence[Exchange], late: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """After the other all-to-alls: how much longer the late ranks compute than the others, and how long the others do,
    nanoseconds a step."""
    places = {(exchange.step, exchange.place) for exchange in unequal}
    spent = [e.own_ns for e in group_exchanges if e.own_ns is not None and (e.step, e.place) not in places]
    if not spent:
        return 0.0, 0.0
    steps = len({exchange.step for exchange in group_exchanges})
    spent_ns = np.array(spent)
    return _beyond(spent_ns, late, steps), float(np.median(spent_ns[:, ~late], axis=1).sum()) / steps


def _computed_ns(subject: Subject, ranks: tuple[int, ...]) -> float:
    """How long these ranks compute in a step; the median of their means."""
    parts = subject.parts
    of_ranks = [(parts.compute_ns + parts.idle_ns)[parts.rank == rank] for rank in ranks]
    means = [np.mean(spent_ns) for spent_ns in of_ranks if len(spent_ns)]
    return float(np.median(means)) if means else 0.0


def finding(subject: Subject, load: ExpertLoad, evidence: Sequence[Evidence] = ()) -> Finding:
    """``expert-imbalance``: the load is the reason why these ranks, or changing ones, are late."""
    cost = subject.each(subject.charged(Cost.STRAGGLER, load.ranks))
    if load.ranks:
        names, times = ranks_text(load.ranks), f"{load.over_mean:.2f}"
        title = sentences.RANKS_RECEIVE_MORE(len(load.ranks), ranks=names, times=times, cost=cost)
    else:
        title = sentences.ANOTHER_RANK_RECEIVES_MORE(cost=cost)
    result = subject.costing(
        Cost.STRAGGLER,
        id=ID,
        title=title,
        action="Balance the tokens over the experts: an auxiliary load-balancing loss or a bias on the router's "
        "scores, a capacity factor that drops or reroutes what is too much, popular experts placed on different ranks, "
        "or redundant copies of them. If all ranks received the same, a step would be about "
        f"{in_ms(load.balanced_ns)} shorter. All-to-alls of embeddings (torchrec): place the tables so that all ranks "
        "receive as much.",
        evidence=(*evidence, *evidence_of(load, subject.per)),
        ranks=load.ranks,
    )
    return (
        result
        if load.measured
        else replace(result, confidence=min(result.confidence, EXPERT_IMBALANCE.confidence_without_time_per_token))
    )


def itself_words(load: ExpertLoad) -> str:
    """The words after "is slower than the others", where the load is not the reason."""
    pronoun = "it" if len(load.ranks) == 1 else "they"
    if load.over_mean <= EXPERT_IMBALANCE.others_load:
        return f", although {pronoun} received no more tokens than the others in the all-to-alls"
    part = f"at most {load.at_most:.0%}" if load.explained is None else f"about {max(0.0, load.explained[0]):.0%}"
    return f"; {pronoun} received {load.over_mean:.2f} times the mean in the all-to-alls, which explains {part} of it"


SIZES_UNKNOWN = (
    " Whether the late rank received more tokens in the all-to-alls is not known: their sizes were not recorded. "
    "`diag run` records those of torch.distributed, and profilers from torch 2.2 on those of NCCL; kernels of other "
    "libraries (DeepEP) carry none: log the tokens that each rank receives."
)


def open_title(load: ExpertLoad, cost: str) -> str:
    """The title of a finding that leaves open whether the load is the reason."""
    part = ""
    if load.explained is not None:
        part = sentences.LOAD_EXPLAINS(share=f"{min(1.0, load.explained[0]):.0%}")
    names, times = ranks_text(load.ranks).capitalize(), f"{load.over_mean:.2f}"
    return sentences.LOAD_OR_THE_RANK(len(load.ranks), ranks=names, times=times, part=part, cost=cost)


def open_action(load: ExpertLoad) -> str:
    names = ranks_text(load.ranks)
    return (
        f"Record more steps, in which the router sends different numbers of tokens to {names}, or place popular "
        "experts on another rank for some steps, and analyse again: a delay that follows the tokens is load imbalance. "
        f"Meanwhile compare clocks, temperature and other processes of {names} with those of the others."
    )


def evidence_of(load: ExpertLoad, per: str) -> tuple[Evidence, ...]:
    """The numbers behind the answer; the rows are in the table of all-to-alls."""
    rows, own = Query("all_to_alls"), Query("all_to_alls", {"rank": list(load.ranks)})
    evidence = [Evidence("most received over the mean, dispatches", round(load.imbalance, 3), "", rows)]
    if load.ranks:
        quantity = f"{ranks_text(load.ranks)}, received over the mean of the group"
        evidence.append(Evidence(quantity, round(load.over_mean, 3), "", own))
    if load.often:
        quantity = f"the rank that received most computed longest, of {load.dispatches} dispatches"
        evidence.append(Evidence(quantity, float(load.often), "dispatches", rows))
    if load.explained is not None:
        part, half = load.explained
        quantity = f"lateness explained by the load (± {half:.0%})"
        evidence.append(Evidence(quantity, round(part, 3), "share", rows))
    else:
        evidence.append(Evidence("lateness explained by the load, at most", round(load.at_most, 3), "share", rows))
    if load.reason == Reason.LOAD:
        saved = round(load.balanced_ns / 1e6, 3)
        evidence.append(Evidence("saved if all ranks received the same", saved, f"ms {per}", rows))
    return tuple(evidence)

"""Whether a rank that computes longer than the others of its expert-parallel group does so because it received more
tokens, or by itself.

What a rank received in a dispatch is compared with how long it then computed, dispatch by dispatch and rank by rank.
Time that follows the load is at most proportional to it. So a rank that received hardly more than the others is late by
itself, however that fits. Else the time per token is measured: where the loads change from dispatch to dispatch, within
each rank, so that a rank that is always slower than the others does not count; where they do not, over the other ranks.
Without either, the load is the reason only if the rank computes as long per token as the others do, and is no slower
than they are behind all-to-alls that are balanced.

The diagnosis of stragglers finds who is late, and asks here why: two diagnoses would count the same waiting twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.match import ALL_TO_ALL
from diag.model.steps import Evidence, Finding
from diag.tables.all_to_alls import Exchange, by_group, exchanges, uneven

from .culprits import MAX_CHANCE, PERSISTENT, at_least
from .shares import Cost
from .subject import Subject, a_step, in_ms, ranks_text

Series = npt.NDArray[np.float64]

ID = "expert-imbalance"

_HARDLY = 0.3  # of the lateness: what the load explains at most of a rank that is late by itself
_MOSTLY, _LITTLE = 0.7, 0.35  # the part that the load explains, from where on it is the reason, and up to where not
_HALF = 0.5  # on the same side of it lies the whole 95 % interval
_PRECISE = 0.3  # half of that interval: a wider one decides nothing
_T95 = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31)  # Student's t by degrees of freedom, from 1
_SEEN = 0.5  # of the lateness: less of it behind the dispatches is lateness of another kind
_KNOWN = 0.8  # of the dispatches: the computation behind them is known
_SAME = (0.85, 1.1)  # time per token over the others'
_ALIKE = 0.2  # of how much slower it is behind the dispatches: as much elsewhere is none
_LEAST = 4  # dispatches
_ALWAYS = 0.9  # of the dispatches: a rank that receives most in them is always the one
_AS_MUCH = 0.25  # of the lateness in the worst group: a group with less is not what the ranks wait for


class Reason(StrEnum):
    LOAD = "load"
    ITSELF = "itself"
    OPEN = "open"


class ExpertLoad(Struct, frozen=True):
    """``ranks``: those that are late, () where they change. ``over_mean``: what they received over the mean of the
    group. ``imbalance``: the most that a rank received over the mean, the mean of the dispatches. ``explained``: the
    part of their lateness that the load explains, with half of its 95 % interval; None where only its upper bound
    ``at_most`` is known. ``balanced_ns``: by how much a step would be shorter if all ranks received the same.
    ``measured``: the time per token was measured, not only compared. ``dispatches``: how many count; ``often``: of
    ranks that change, in how many of them the one that received most computed longest."""

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
    """Dispatches of one group, [dispatches, ranks]. ``load``: received over the mean of its place in the step;
    ``own_ns``: computation behind it; ``usual_ns``: its mean, by dispatch."""

    ranks: tuple[int, ...]
    steps: int
    load: Series
    own_ns: Series
    usual_ns: Series

    def gain_ns(self, slope: float) -> float:
        """By how much a step would be shorter if all ranks received the mean. ``slope``: the part of the computation
        that is proportional to the load."""
        beyond = self.load.max(axis=1) - self.load.mean(axis=1)
        return slope * float((self.usual_ns * beyond).sum()) / self.steps


def sizes_unknown(subject: Subject, ranks: tuple[int, ...]) -> bool:
    """Whether these ranks call all-to-alls and nothing says how much they receive in them."""
    calls = (call for step in subject.attribution.rank_steps if step.rank in ranks for call in step.collectives)
    exchanged = [call.received_bytes for call in calls if call.op == ALL_TO_ALL]
    return bool(exchanged) and all(size is None for size in exchanged)


def of_late_ranks(subject: Subject, ranks: tuple[int, ...]) -> ExpertLoad | None:
    """Why these ranks are late; None where they are in no group that exchanges tokens, or too little of it is known."""
    late = subject.shares.blame_ns.get(Cost.STRAGGLER, {})
    answers = []
    for (_, members), own in by_group(subject.once(_exchanges)):
        suspects = tuple(rank for rank in ranks if rank in members)
        if suspects and len(suspects) < len(members):
            late_ns = float(np.mean([late[rank].mean() if rank in late else 0.0 for rank in suspects]))
            answers.append((set(suspects), _of_group(subject, own, suspects, late_ns)))
    # Ranks may exchange equal parts in other groups as well (sequence parallelism), which says nothing of their load.
    told = [(who, answer) for who, answer in answers if answer is None or answer.dispatches]
    answers = told if set(ranks) == set().union(*(who for who, _ in told)) else answers
    judged = [answer for _, answer in answers if answer is not None]
    if not judged or len(judged) < len(answers) or set(ranks) != set().union(*(who for who, _ in answers)):
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
    """The load as the reason why now this rank is late, now that; None where it is not proven. ``ranks``: those that
    receive most, where these are always the same, one in each group."""
    groups = by_group(uneven(subject.once(_exchanges)))
    tables = [table for _, own in groups if (table := _table(own)) is not None and len(table.load) >= _LEAST]
    most_ns = max((_longest_ns(table) for table in tables), default=0.0)
    waited_for = [table for table in tables if _longest_ns(table) >= _AS_MUCH * most_ns > 0]
    found = [_changing(table, float(subject.shares.cost(Cost.STRAGGLER).mean())) for table in waited_for]
    proven = [answer for answer in found if answer is not None]
    if not proven or len(proven) < len(found):
        return None
    worst = max(proven, key=lambda answer: answer.balanced_ns)
    always = tuple(sorted(rank for answer in proven for rank in answer.ranks))
    return replace(worst, ranks=always if all(answer.ranks for answer in proven) else ())


def _changing(table: _Table, late_ns: float) -> ExpertLoad | None:
    """The same of one group. ``late_ns``: how long all ranks waited for late ones, a step."""
    slope, error = _within(table)
    rows, longest = np.arange(len(table.load)), table.own_ns.argmax(axis=1)
    load_ns = float((table.usual_ns * _beyond_others(table.load, longest)).sum()) / table.steps
    slope, seen_ns = min(max(slope, 0.0), 1.0), max(1.0, _longest_ns(table))
    explained, half = slope * load_ns / seen_ns, error * load_ns / seen_ns
    often = int((table.load[rows, longest] >= table.load.max(axis=1)).sum())
    # Of many ranks the one that computes longest is also the one that happened to be disturbed.
    proven = often >= PERSISTENT * len(rows) and at_least(often, len(rows), 1 / len(table.ranks)) <= MAX_CHANCE
    if not proven or explained - half < _HALF or not 0 < half <= _PRECISE or slope * load_ns < _SEEN * late_ns:
        return None
    counts = np.bincount(table.load.argmax(axis=1), minlength=len(table.ranks))
    always = (table.ranks[int(counts.argmax())],) if counts.max() >= _ALWAYS * len(rows) else ()
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
    """How much longer the rank computes that computes longest than the others, summed over a step's dispatches."""
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
    subject: Subject, own: Sequence[Exchange], suspects: tuple[int, ...], late_ns: float
) -> ExpertLoad | None:
    """None where the computation behind too few dispatches is known. ``late_ns``: how long others waited for the
    suspects, a step."""
    telling = uneven(own)
    ranks = own[0].ranks
    late = np.isin(ranks, suspects)
    received = np.sum([found.received for found in telling or own], axis=0)
    over_mean = float(received[late].mean() / received.mean()) if received.any() else 1.0
    over_others = float(received[late].mean() / max(1.0, float(np.median(received[~late])))) - 1
    imbalance = float(np.mean([found.imbalance for found in telling or own]))
    # If all that the others computed were proportional to what they received.
    most_ns = max(0.0, over_others) * _computed_ns(subject, tuple(r for r in ranks if r not in suspects))
    at_most = min(1.0, most_ns / late_ns) if late_ns > 0 else 1.0
    answer = ExpertLoad(Reason.OPEN, suspects, over_mean, imbalance, None, at_most, 0.0, False, len(telling))
    if late_ns > 0 and at_most <= _HARDLY:
        return replace(answer, reason=Reason.ITSELF)
    table = _table(telling)
    if table is None or len(table.load) < max(_LEAST, _KNOWN * len(telling)):
        return None if not telling else answer
    return _judged(answer, table, late, late_ns, _elsewhere(own, telling, late))


def _judged(
    answer: ExpertLoad, table: _Table, late: npt.NDArray[np.bool_], late_ns: float, elsewhere: tuple[float, float]
) -> ExpertLoad:
    """The answer from the dispatches. ``elsewhere``: how much longer the suspects compute than the others behind the
    balanced all-to-alls, and how long the others do, a step."""
    seen_ns = _beyond(table.own_ns, late, table.steps)
    load_ns = _beyond(table.usual_ns[:, None] * table.load, late, table.steps)
    if seen_ns < _SEEN * late_ns:  # it is late somewhere else
        return replace(answer, reason=Reason.ITSELF) if elsewhere[0] >= _SEEN * late_ns else answer
    whole_ns = max(seen_ns, late_ns)
    part_of_slope = max(0.0, load_ns) / whole_ns
    slope, error = _slope(table, late, _PRECISE / part_of_slope if part_of_slope else 0.0)
    half = error * part_of_slope
    if load_ns > 0 and half <= _PRECISE:
        slope = min(max(slope, 0.0), 1.0)
        part = slope * load_ns / whole_ns
        answer = replace(answer, explained=(min(1.0, part), half), measured=True)
        if part >= _MOSTLY and part - half >= _HALF:
            return replace(answer, reason=Reason.LOAD, balanced_ns=table.gain_ns(slope))
        itself = part <= _LITTLE and part + half <= _HALF
        return replace(answer, reason=Reason.ITSELF) if itself else answer
    if load_ns <= _HARDLY * whole_ns:
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
    """Without a measured time per token: as long per token as the others, and no slower than they are elsewhere."""
    others_ns = float(np.median(table.own_ns[:, ~late], axis=1).sum()) / table.steps
    slower, slower_elsewhere = seen_ns / max(1.0, others_ns), elsewhere[0] / max(1.0, elsewhere[1])
    if slower_elsewhere > _ALIKE * slower:
        return answer
    needed = seen_ns / load_ns  # the part of the computation that would have to be proportional to the load
    if not _SAME[0] <= needed <= _SAME[1]:
        return answer
    return replace(answer, reason=Reason.LOAD, balanced_ns=table.gain_ns(min(needed, 1.0)))


# -- numbers -----------------------------------------------------------------------------------------------------------


def _table(found: Sequence[Exchange]) -> _Table | None:
    known = [(exchange, exchange.own_ns) for exchange in found if exchange.own_ns is not None]
    if not known:
        return None
    received = np.array([exchange.received for exchange, _ in known])
    own_ns = np.array([own for _, own in known])
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
    """The part of the computation that is proportional to the load, and half of its 95 % interval: of the other ranks,
    where that is ``precise``, for the time per token of a late rank may be its own; else of all ranks."""
    fits = _within(table, ~late), _across(table, late)
    best = min(fits, key=lambda fit: fit[1])
    return best if best[1] <= precise else min((*fits, _within(table)), key=lambda fit: fit[1])


def _within(table: _Table, chosen: npt.NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """The same from how load and computation change from dispatch to dispatch within each of the chosen ranks. The
    error allows for dispatches that vary unequally (HC1)."""
    time = table.own_ns / np.maximum(1.0, table.usual_ns)[:, None]
    columns = chosen if chosen is not None else np.ones(len(table.ranks), dtype=np.bool_)
    load, time = (_centred(values[:, columns], table.usual_ns) for values in (table.load, time))
    weight = table.usual_ns[:, None] * np.ones_like(load)
    square = float((weight * load**2).sum())
    free = load.size - load.shape[0] - load.shape[1]
    if square <= 1e-9 * float(weight.sum()) or free < _LEAST:
        return 0.0, np.inf
    slope = float((weight * load * time).sum()) / square
    left = time - slope * load
    error = float(np.sqrt(((weight * load * left) ** 2).sum() * load.size / free)) / square
    return slope, _t95(free) * error


def _centred(values: Series, weight: Series) -> Series:
    """Without what a dispatch has more of on all ranks, and without what a rank always has more of."""
    of_dispatch = values - values.mean(axis=1, keepdims=True)
    centred: Series = of_dispatch - np.average(of_dispatch, axis=0, weights=np.maximum(weight, 1.0))
    return centred


def _across(table: _Table, late: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """The same from the means of the ranks that are not late: a line through them, at least three."""
    load = table.load[:, ~late].mean(axis=0)
    time = (table.own_ns / np.maximum(1.0, table.usual_ns)[:, None])[:, ~late].mean(axis=0)
    free = len(load) - 2
    square = float(((load - load.mean()) ** 2).sum())
    if free < 1 or square <= 1e-6:
        return 0.0, np.inf
    slope = float(((load - load.mean()) * time).sum()) / square
    left = time - time.mean() - slope * (load - load.mean())
    return slope, _t95(free) * float(np.sqrt((left**2).sum() / free / square))


def _t95(free: int) -> float:
    return _T95[free - 1] if free <= len(_T95) else 2.1


def _elsewhere(
    own: Sequence[Exchange], telling: Sequence[Exchange], late: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """Behind the other all-to-alls: how much longer the late ranks compute than the others, and how long these do,
    nanoseconds a step."""
    places = {(found.step, found.place) for found in telling}
    spent = [e.own_ns for e in own if e.own_ns is not None and (e.step, e.place) not in places]
    if not spent:
        return 0.0, 0.0
    steps = len({found.step for found in own})
    spent_ns = np.array(spent)
    return _beyond(spent_ns, late, steps), float(np.median(spent_ns[:, ~late], axis=1).sum()) / steps


def _computed_ns(subject: Subject, ranks: tuple[int, ...]) -> float:
    """How long these ranks compute in a step; the median of their means."""
    spent: dict[int, list[int]] = defaultdict(list)
    for parts in subject.parts():
        if parts.rank in ranks:
            spent[parts.rank].append(parts.compute_ns + parts.idle_ns)
    return float(np.median([np.mean(own) for own in spent.values()])) if spent else 0.0


# -- words -------------------------------------------------------------------------------------------------------------

_NO_MORE = 1.02  # times the mean: the others receive as much
_COMPARED = 0.7  # upper bound of the confidence where the time per token was not measured


def finding(subject: Subject, load: ExpertLoad, evidence: Sequence[Evidence] = ()) -> Finding:
    """``expert-imbalance``: the load is the reason why these ranks, or changing ones, are late."""
    cost = a_step(subject.charged(Cost.STRAGGLER, load.ranks))
    if load.ranks:
        receive, compute = ("receives", "computes") if len(load.ranks) == 1 else ("receive", "compute")
        title = (
            f"Expert imbalance: {ranks_text(load.ranks)} {receive} {load.over_mean:.2f} times the mean in the "
            f"all-to-alls and {compute} longer for it, and the others wait: {cost}"
        )
    else:
        title = (
            "Expert imbalance: the ranks wait for the one that receives most in the all-to-alls, a different one from "
            f"dispatch to dispatch: {cost}"
        )
    found = subject.costing(
        Cost.STRAGGLER,
        id=ID,
        title=title,
        action="Balance the tokens over the experts: an auxiliary load-balancing loss or a bias on the router's "
        "scores, a capacity factor that drops or reroutes what is too much, popular experts placed on different ranks, "
        "or redundant copies of them. If all ranks received the same, a step would take about "
        f"{in_ms(load.balanced_ns)} less. All-to-alls of embeddings (torchrec): place the tables so that all ranks "
        "receive as much.",
        evidence=(*evidence, *evidence_of(load)),
        ranks=load.ranks,
    )
    return found if load.measured else replace(found, confidence=min(found.confidence, _COMPARED))


def itself_words(load: ExpertLoad) -> str:
    """What follows "is slower than the others": the load is not the reason."""
    own = "it" if len(load.ranks) == 1 else "they"
    if load.over_mean <= _NO_MORE:
        return f", although {own} received no more tokens than the others in the all-to-alls"
    part = f"at most {load.at_most:.0%}" if load.explained is None else f"about {max(0.0, load.explained[0]):.0%}"
    return f"; {own} received {load.over_mean:.2f} times the mean in the all-to-alls, which explains {part} of it"


SIZES_UNKNOWN = (
    " Whether it received more tokens in the all-to-alls than the others is not known: their sizes were not recorded. "
    "`diag run` records those of torch.distributed, and profilers from torch 2.2 on those of NCCL; kernels of other "
    "libraries (DeepEP) carry none: log the tokens that each rank receives."
)


def open_title(load: ExpertLoad, cost: str) -> str:
    """Of a finding that leaves open whether the load is the reason."""
    who, one = ranks_text(load.ranks).capitalize(), len(load.ranks) == 1
    part = ""
    if load.explained is not None:
        part = f", which explains about {min(1.0, load.explained[0]):.0%} of the lateness"
    be, reason = ("is", "the rank itself is slow") if one else ("are", "the ranks themselves are slow")
    return (
        f"{who} {be} slower than the others and received {load.over_mean:.2f} times the mean in the all-to-alls{part}; "
        f"whether the load is the reason or {reason} is not decided: {cost}"
    )


def open_action(load: ExpertLoad) -> str:
    who = ranks_text(load.ranks)
    return (
        f"Let it train for more steps, in which the router sends other numbers of tokens to {who}, or place popular "
        "experts on another rank for some steps, and ask again: a lateness that moves with the tokens is the load's. "
        f"Meanwhile compare clocks, temperature and other processes of {who} with those of the others."
    )


def evidence_of(load: ExpertLoad) -> tuple[Evidence, ...]:
    """The numbers behind the answer; the rows are in the table of all-to-alls."""
    found = [Evidence("all_to_alls", "most received over the mean, dispatches", round(load.imbalance, 3), "")]
    if load.ranks:
        what = f"{ranks_text(load.ranks)}, received over the mean of the group"
        found.append(Evidence("all_to_alls", what, round(load.over_mean, 3), ""))
    if load.often:
        what = f"the rank that received most computed longest, of {load.dispatches} dispatches"
        found.append(Evidence("all_to_alls", what, float(load.often), "dispatches"))
    if load.explained is not None:
        part, half = load.explained
        what = f"lateness explained by the load (± {half:.0%})"
        found.append(Evidence("all_to_alls", what, round(part, 3), "share"))
    else:
        found.append(
            Evidence("all_to_alls", "lateness explained by the load, at most", round(load.at_most, 3), "share")
        )
    if load.reason == Reason.LOAD:
        saved = round(load.balanced_ns / 1e6, 3)
        found.append(Evidence("all_to_alls", "saved if all ranks received the same", saved, "ms a step"))
    return tuple(found)

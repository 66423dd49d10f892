"""A rank that computes longer than the others, so that they wait for it. It is always the same one, or it changes from
step to step, or neither is proven."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.blame import median_of_others
from diag.account.rank_steps import RankSteps
from diag.collectors.records import SYNCHRONISING
from diag.diagnoses.policy import COSTS, FINDINGS, STRAGGLER
from diag.model import UNKNOWN
from diag.model.keys import Key
from diag.model.query import By, Query, Value
from diag.model.steps import CollectiveCall, Detail, Evidence, Finding, Kind
from diag.tables.module_excess import ModuleExcess, module_excess
from diag.traces.kineto_names import P2P_OPS
from diag.words import sentences

from . import expert_imbalance
from .costs import Cost
from .culprits import Culprits, Series, at_least, of_any
from .expert_imbalance import ExpertLoad, Reason
from .hidden_waits import hidden_ns
from .ids import COMPUTE_IMBALANCE, COMPUTE_STRAGGLER
from .stalled_rank import no_loader
from .subject import (
    Diagnosis,
    Subject,
    in_ms,
    late_ranks_text,
    mean_ns,
    ranks_text,
    times_last,
    waited_for,
)
from .throttled_device import throttled_ranks

# -- last arrivals -----------------------------------------------------------------------------------------------------
#
# Which ranks come last to their collectives, counted over collectives (docs/concepts/clocks.md).
#
# The kernels of an all-reduce, all-gather, reduce-scatter, all-to-all or barrier end on all ranks at about the same
# time, so that the rank with the shortest one came last, and the others waited for it as much longer as theirs are.
# That needs no common clock, and in one step there are hundreds of them. A broadcast, a reduce, a send and a receive do
# not end together. Nor do the kernels of a rank that shares its device: where the clocks are precise enough to show
# which rank started last, and it is another one, no rank is named.


Times = npt.NDArray[np.int64]


class LastArrivals(Struct, frozen=True):
    """``ranks``: those that arrived last more often than by chance, worst first; ``last``: (collectives in which one of
    them did, collectives with a late rank). ``waited_ns``: how long the median other rank waited for them in all steps;
    ``part``: fraction of the waiting for any rank."""

    ranks: tuple[int, ...]
    last: tuple[int, int]
    waited_ns: int
    part: float
    chance: float

    def evidence(self, steps: int, per: str) -> list[Evidence]:
        names, were = ranks_text(self.ranks), "were" if len(self.ranks) > 1 else "was"
        often, of = self.last
        rows = Query("calls", {"rank": list(self.ranks)})
        waited = round(self.waited_ns / max(1, steps) / 1e6, 3)
        return [
            Evidence(
                f"collectives in which {names} {were} last, of {of} with a late rank",
                float(often),
                "collectives",
                rows,
            ),
            Evidence(f"waiting for {names}, median of the other ranks", waited, f"ms {per}", rows),
        ]


def last_arrivals(subject: Subject) -> LastArrivals | None:
    """None where no rank stands out, or where it is unknown: on a CPU a call's duration includes other work."""
    if not subject.shares.on_device:
        return None
    collectives = _complete(subject)
    ranks = subject.attribution.ranks
    place = {rank: i for i, rank in enumerate(ranks)}
    late = np.zeros((len(collectives), len(ranks)), dtype=np.int64)
    for i, members in enumerate(collectives.values()):
        durations_ns = np.array([call.end_ns - call.start_ns for call in members.values()], dtype=np.int64)
        waited = np.maximum(median_of_others(durations_ns[:, None])[:, 0] - durations_ns, 0)
        least = max(
            STRAGGLER.spread_of_kernel_ends_ns, round(STRAGGLER.spread_of_kernel_ends_share * int(durations_ns.min()))
        )
        # Ranks that arrive before the last one wait for it, too.
        last = (durations_ns <= durations_ns.min() + least) & (waited > least)
        late[i, [place[rank] for rank in members]] = np.where(last, waited, 0)
    worst = late.max(axis=1, initial=0)
    has_late = worst > 0
    total = late.sum(axis=0)
    if not has_late.any():
        return None
    # All ranks that cost at least half as much waiting as the worst are tested together: at most half of the ranks.
    suspects = np.flatnonzero(total >= total.max() / 2)
    if len(suspects) > len(ranks) / 2:
        return None
    leading = has_late & (late[:, suspects].max(axis=1) >= worst)
    often, of = int(leading.sum()), int(has_late.sum())
    part = float(worst[leading].sum()) / float(worst.sum())
    # The factor: whichever ranks were the worst would have been suspected.
    chance = of_any(len(ranks), len(suspects), at_least(often, of, len(suspects) / len(ranks)))
    waited_ns = int(worst[leading].sum())
    counted = min(often / of, part) >= STRAGGLER.affected_steps_share and chance <= STRAGGLER.chance
    # The count of few large collectives proves nothing; nearly all of the waiting, and a large part of the time, does.
    weighed = (
        part >= STRAGGLER.nearly_all_waiting_share
        and often > 1
        and waited_ns >= FINDINGS.critical_share * float(subject.shares.dur_ns.sum())
    )
    if not (counted or weighed):
        return None
    names = tuple(ranks[i] for i in sorted(suspects.tolist(), key=lambda i: -int(total[i])))
    keys = [key for key, leads in zip(collectives, leading.tolist(), strict=True) if leads]
    if not _clocks_agree(subject, keys, frozenset(names)):
        return None
    return LastArrivals(names, (often, of), waited_ns, part, chance)


def _complete(subject: Subject) -> dict[Key, dict[int, CollectiveCall]]:
    """The collectives of the counted steps that every member recorded, with the same size on all."""
    usable = set(subject.shares.numbers)
    by_key: dict[Key, dict[int, CollectiveCall]] = defaultdict(dict)
    steps = RankSteps.of(subject.attribution.rank_steps).of_steps(usable)
    for step in steps.take(steps.from_source("trace")):
        for call in step.collectives:
            if call.op in SYNCHRONISING:
                by_key[call.key].setdefault(step.rank, call)
    world = subject.tables.world_size
    return {
        key: members
        for key, members in by_key.items()
        if len(members) > 1
        and len(members) == (next(iter(members.values())).group_size or world)
        and len({call.bytes for call in members.values()}) == 1
    }


def _clocks_agree(subject: Subject, keys: list[Key], suspects: frozenset[int]) -> bool:
    """Whether, by the clocks, these ranks started last as well; true where the clocks are not precise enough."""
    clock = subject.attribution.clock_uncertainty_ns
    if not subject.attribution.aligned or clock is None:
        return True
    asked, met = frozenset(keys), subject.attribution.collectives
    known = met.key_columns.keys()
    of_these = np.array([key in asked for key in known], dtype=np.bool_)
    started = met.last_arriver[of_these & (met.by(met.wait_ns, np.maximum) > 2 * clock)]
    same = int(np.isin(started, list(suspects)).sum())
    return not len(started) or same >= STRAGGLER.shortest_kernels_share * len(started)


# -- slow modules ------------------------------------------------------------------------------------------------------
#
# The modules of the model in which a late rank loses its time, as evidence for the finding that it is late.


def evidence_of(subject: Subject, ranks: tuple[int, ...]) -> list[Evidence]:
    """One line a module, if at most three of them explain half of the ranks' lateness; else none. Re-reads the traces,
    so call it only for a finding that was made."""
    blame_ns = subject.shares.blame_ns.get(Cost.STRAGGLER, {})
    late_ns = float(np.mean([blame_ns[rank].mean() for rank in ranks if rank in blame_ns] or [0.0]))
    if subject.phases_alone or late_ns <= 0:
        return []
    traced = subject.attribution.traced.step.tolist()
    modules = _largest_excesses(module_excess(subject.attribution, subject.tables, ranks, traced), late_ns)
    window = set(traced).isdisjoint(subject.shares.numbers)
    names, late = (
        ranks_text(ranks),
        "in the profiler windows" if window else f"of +{late_ns / 1e6:.3g} ms {subject.per}",
    )
    return [
        Evidence(
            f"{e.module}: extra time of {names} over the {_others(e.others)}, {late}",
            round(e.ns / 1e6, 3),
            "ms",
            Query("modules", {"name": e.module}),
        )
        for e in modules
    ]


def _others(count: int) -> str:
    return "other rank" if count == 1 else f"median of {count} others"


def _largest_excesses(excesses: Sequence[ModuleExcess], late_ns: float) -> Sequence[ModuleExcess]:
    """The fewest modules, the largest first, that explain enough."""
    explained = 0
    for count, excess in enumerate(excesses[: STRAGGLER.most_modules_named], start=1):
        explained += excess.ns
        if explained >= STRAGGLER.explained_by_modules_share * late_ns:
            return excesses[:count]
    return ()


# -- token balance -----------------------------------------------------------------------------------------------------
#
# Whether the late rank of a step is the one with most tokens in it.


def longest_batch_last(subject: Subject) -> tuple[int, int] | None:
    """(steps in which the latest rank had most tokens, affected steps with unequal tokens), if that is most of them
    and not by chance; else None."""
    shares = subject.shares
    tokens = {
        rank: {
            step: tokens
            for step, tokens in zip(of_rank.steps.step.tolist(), of_rank.steps.tokens.tolist(), strict=True)
            if tokens
        }
        for rank, of_rank in subject.tables.ranks.items()
    }
    late = shares.blame_ns.get(Cost.STRAGGLER, {})
    hits = steps = 0
    chance = 0.0
    for i, number in enumerate(shares.numbers):
        counts = {rank: of_rank[number] for rank, of_rank in tokens.items() if number in of_rank}
        by_rank = {rank: float(series[i]) for rank, series in late.items()}
        latest = max(by_rank, key=lambda rank: by_rank[rank], default=None)
        if latest is None or by_rank[latest] <= max(
            STRAGGLER.affected_step_share * float(shares.dur_ns[i]), shares.noise.late_ns
        ):
            continue
        if (
            latest not in counts
            or len(counts) < 2
            or max(counts.values()) < STRAGGLER.unequal_tokens * min(counts.values())
        ):
            continue
        most = [rank for rank, count in counts.items() if count == max(counts.values())]
        steps += 1
        hits += latest in most
        chance += len(most) / len(counts)
    if not steps or hits < STRAGGLER.affected_steps_share * steps:
        return None
    return (hits, steps) if at_least(hits, steps, float(np.clip(chance / steps, 0, 1))) <= STRAGGLER.chance else None


# How the waiting for slower ranks is explained: by the same ranks in every step, or by all ranks in turn.

_INPUT = " No batch came from a torch DataLoader: reading and preparing the input counts as forward here."
_WHERE = {Detail.FORWARD: "forward", Detail.BACKWARD: "backward", Detail.OPTIMIZER: "the optimizer"}


def find(subject: Subject) -> list[Finding]:
    return [*_of_hosts(subject), *_of_work(subject)]


def _of_work(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.STRAGGLER) < FINDINGS.mention_share:
        return []
    culprits = _culprits(subject, Cost.STRAGGLER)
    cost = subject.each(subject.charged(Cost.STRAGGLER, culprits.ranks)) + subject.in_few_steps(culprits)
    if subject.once(throttled_ranks):
        return []  # a known reason: diag.diagnoses.throttled_device has these nanoseconds
    if shares.unexplained > COSTS.unexplained_wait_share:
        return [_for_no_known_reason(subject, culprits, cost, shares.unexplained)]
    if culprits.ranks:
        load = expert_imbalance.of_late_ranks(subject, culprits.ranks)
        if load is not None and load.reason == Reason.LOAD:
            return [expert_imbalance.finding(subject, load, _counted(subject, culprits))]
        if load is not None and load.reason == Reason.OPEN:
            return [_load_or_itself(subject, culprits, cost, load)]
        if not _mostly_theirs(subject, culprits.ranks):
            return [_changing_rank(subject, culprits, subject.each(shares.cost(Cost.STRAGGLER)))]
        return [_always_the_same(subject, culprits, cost, load)]
    longest = longest_batch_last(subject)
    if longest is not None:
        return [_longer_batches(subject, cost, *longest)]
    changing = expert_imbalance.of_changing_ranks(subject)
    if changing is not None:
        return [expert_imbalance.finding(subject, changing)]
    return [_changing_rank(subject, culprits, cost) if culprits.moves else _uncertain_rank(subject, culprits, cost)]


def _culprits(subject: Subject, cost: Cost) -> Culprits:
    """By how often a rank is late in steps; where these are too few, by how often in collectives. All lateness in one
    step may have one reason, so collectives count only where no step contradicts them."""
    culprits, last = subject.shares.culprits(cost), subject.once(last_arrivals)
    if culprits.ranks or culprits.moves or last is None or culprits.steps[0] < culprits.steps[1]:
        return culprits
    late = {rank: float(series.sum()) for rank, series in subject.shares.blame_ns.get(cost, {}).items()}
    if not late or max(late, key=lambda rank: late[rank]) not in last.ranks:
        return culprits
    return replace(culprits, ranks=last.ranks, suspects=last.ranks, chance=last.chance)


def _mostly_theirs(subject: Subject, ranks: tuple[int, ...]) -> bool:
    """Whether these ranks cost more, beyond a typical rank, than what makes all ranks late in turn."""
    whole_ns = float(subject.shares.cost(Cost.STRAGGLER).mean())
    return subject.shares.beyond_typical(Cost.STRAGGLER, ranks) >= STRAGGLER.half_of_waiting_share * whole_ns


def _hidden(subject: Subject, by_rank: Mapping[int, Series]) -> Evidence:
    mean_ms = round(float(sum(ns.mean() for ns in by_rank.values())) / 1e6, 3)
    late: dict[str, Value] = {"cost": Cost.STRAGGLER.words, "rank": list(by_rank)}
    rows = Query("costs", late, "hidden_ns", By.SUM, per=("step",))
    return Evidence("waiting that hides behind computation, by replay", mean_ms, f"ms {subject.per}", rows)


def _counted(subject: Subject, culprits: Culprits, cost: Cost = Cost.STRAGGLER) -> list[Evidence]:
    """How often these ranks were last: in steps, and in collectives where that was counted for them."""
    leads, affected = culprits.steps
    evidence = [times_last(cost, culprits.ranks, leads, affected)]
    last = subject.once(last_arrivals)
    if last is not None and last.ranks == culprits.ranks:
        evidence += last.evidence(len(subject.shares.numbers), subject.per)
    return evidence


def _of_hosts(subject: Subject) -> list[Finding]:
    """Ranks whose devices had nothing to run, because their hosts launched later than the others' did."""
    shares = subject.shares
    if shares.share(Cost.HOST_STRAGGLER) < FINDINGS.mention_share or subject.once(throttled_ranks):
        return []
    culprits, last = _culprits(subject, Cost.HOST_STRAGGLER), subject.once(last_arrivals)
    cost = subject.each(subject.charged(Cost.HOST_STRAGGLER, culprits.ranks)) + subject.in_few_steps(culprits)
    if culprits.ranks:
        names = ranks_text(culprits.ranks)
        count, who = len(culprits.ranks), names.capitalize()
        title = sentences.HOSTS_LAUNCH_LATER(count, ranks=who, cost=cost)
        if last and last.ranks == culprits.ranks:
            of = {"count": last.last[0], "calls": last.last[1]}
            title = sentences.HOSTS_LAUNCH_LATER_MOSTLY(count, ranks=who, cost=cost, **of)
        evidence = [*_counted(subject, culprits, Cost.HOST_STRAGGLER), *_waiting(subject, culprits.ranks)]
        where = subject.host_of(culprits.ranks[0])
        place = f"of {names}" + (f" ({where})" if where else "")
    else:
        title = f"The ranks wait for each other, because their hosts launch kernels at unequal speed: {cost}"
        leads, affected = culprits.steps
        evidence, place = [times_last(Cost.HOST_STRAGGLER, (), leads, affected)], "of the last rank"
    return [
        subject.costing(
            Cost.HOST_STRAGGLER,
            id="host-straggler",
            title=title,
            action=f"The device {place} waits for its host: look there for other processes, CPU affinity (numactl), "
            "and Python code, locks or I/O that the other ranks do not run (py-spy dump on the process).",
            evidence=(*evidence, *subject.per_rank("compute_ns"), *subject.per_rank("idle_ns")),
            ranks=culprits.ranks,
        )
    ]


def _load_or_itself(subject: Subject, culprits: Culprits, cost: str, load: ExpertLoad) -> Finding:
    """The rank received more tokens in all-to-alls, and it is undecided whether that is why it is late."""
    return subject.costing(
        Cost.STRAGGLER,
        id="straggler-cause-unknown",
        title=expert_imbalance.open_title(load, cost),
        action=expert_imbalance.open_action(load),
        evidence=(*_counted(subject, culprits), *expert_imbalance.evidence_of(load, subject.per)),
        ranks=culprits.ranks,
    )


def _always_the_same(subject: Subject, culprits: Culprits, cost: str, load: ExpertLoad | None) -> Finding:
    """``load``: what the ranks received in all-to-alls, which is not why they are late; None where it is not known."""
    ranks = culprits.ranks
    place, inside = _place(subject, ranks)
    evidence, own = _counted(subject, culprits), Query("steps", {**subject.counted, "rank": list(ranks)})
    if inside is not None:
        evidence.append(Evidence(f"extra time in {place}, inside operators", round(inside, 3), "share", own))
    evidence += _waiting(subject, ranks)
    evidence += expert_imbalance.evidence_of(load, subject.per) if load is not None else ()
    evidence += evidence_of(subject, ranks)
    if hidden := hidden_ns(subject.shares):
        evidence.append(_hidden(subject, hidden))
    evidence += subject.per_rank("compute_ns" if subject.phases_alone else _waits(subject))
    finding = subject.costing(
        Cost.STRAGGLER,
        id=COMPUTE_STRAGGLER,
        title=sentences.RANKS_ARE_SLOWER(
            len(ranks),
            ranks=ranks_text(ranks).capitalize(),
            others=_than(subject, ranks),
            place=place,
            load=expert_imbalance.itself_words(load) if load is not None else "",
            cost=cost,
        ),
        action=_action(subject, ranks, inside)
        + (_INPUT if place == "forward" and no_loader(subject) else "")
        + (expert_imbalance.SIZES_UNKNOWN if expert_imbalance.sizes_unknown(subject, ranks) else ""),
        evidence=evidence,
        ranks=ranks,
    )
    return replace(finding, outside_of_work=_outside_of_operators(subject, inside))


def _changing_rank(subject: Subject, culprits: Culprits, cost: str) -> Finding:
    leads, affected = culprits.steps
    return subject.costing(
        Cost.STRAGGLER,
        id=COMPUTE_IMBALANCE,
        title=sentences.SLOWEST_RANK_CHANGES(cost=cost, waits=waited_for(culprits, subject.per, everybody=True)),
        action="Look for work that differs from batch to batch (sequence lengths: bucket them), or for more ranks than "
        "free cores on a host.",
        evidence=[times_last(Cost.STRAGGLER, (), leads, affected)],
    )


def _uncertain_rank(subject: Subject, culprits: Culprits, cost: str) -> Finding:
    """Too few steps to decide whether it is always this rank."""
    leads, affected = culprits.steps
    suspects = culprits.suspects
    _, inside = _place(subject, suspects)
    machine = "" if _host_is_late(inside) else "clocks and temperature, "
    others = _than(subject, suspects)
    last = {"count": leads, "affected": affected, "waits": waited_for(culprits, subject.per, everybody=True)}
    if not affected:
        title = sentences.ONE_RANK_IS_SLOWER(others=others, cost=cost)
    elif suspects:
        names = ranks_text(suspects).capitalize()
        title = sentences.ONE_RANK_IS_SLOWER_MOSTLY(len(suspects), others=others, cost=cost, ranks=names, **last)
    else:
        title = sentences.ONE_RANK_IS_SLOWER_AT_MOST(others=others, cost=cost, **last)
    return subject.costing(
        Cost.STRAGGLER,
        id="straggler-rank-unknown",
        title=title,
        action="Record more steps, with a profiler window of all ranks (`diag trace`), and analyse again. If it is "
        f"always {ranks_text(suspects) if suspects else 'the same rank'}, check the machine there: "
        f"{machine}other processes, CPU affinity; if the slowest rank changes, look for work that differs from batch "
        "to batch.",
        evidence=(
            times_last(Cost.STRAGGLER, suspects, leads, affected),
            *_waiting(subject, suspects),
            *subject.per_rank("compute_ns" if subject.phases_alone else _waits(subject)),
        ),
    )


def _longer_batches(subject: Subject, cost: str, steps: int, affected: int) -> Finding:
    return subject.costing(
        Cost.STRAGGLER,
        id="load-imbalance",
        title=f"The ranks wait for the one with the most tokens, a different one from step to step: {cost}",
        action="Give all ranks the same number of tokens in a step: batch by length (bucketing), pack sequences, or "
        "balance the lengths over the ranks in the sampler.",
        evidence=[times_last(Cost.STRAGGLER, (), steps, affected, "the rank with the most tokens")],
    )


def _for_no_known_reason(subject: Subject, culprits: Culprits, cost: str, unknown: float) -> Finding:
    """The rank is known, but not what it did: an open question is better than a wrong cause."""
    leads, affected = culprits.steps
    late_ranks = late_ranks_text(culprits).capitalize()
    return subject.costing(
        Cost.STRAGGLER,
        id="straggler-cause-unknown",
        title=sentences.RANKS_ARRIVE_LATER(max(1, len(culprits.ranks)), ranks=late_ranks, cost=cost),
        action="Find out what the late rank does where nothing is recorded (between steps: logging, evaluation, "
        "saving): put record_function or collector.phase around it, or take its stacks with py-spy dump.",
        evidence=[
            times_last(Cost.STRAGGLER, (), leads, affected, "the late rank"),
            Evidence(
                "waiting for late ranks, cause not recorded",
                round(unknown, 3),
                "share",
                Query("meetings", subject.counted),
            ),
            *subject.per_rank(_waits(subject)),
        ],
        ranks=culprits.ranks,
    )


def _waits(subject: Subject) -> str:
    """The field of ``Parts`` that holds how long each rank waits, with the transfer where the clocks do not tell."""
    known = subject.means is None and bool((subject.parts.exposed_wait_ns != UNKNOWN).all())
    return "exposed_wait_ns" if known else "exposed_comm_ns"


def _waiting(subject: Subject, ranks: tuple[int, ...]) -> list[Evidence]:
    """For a mesh of several axes: the groups that waited for these ranks, mean per member and step."""
    axes = subject.attribution.axes
    if not axes.several:
        return []
    usable = set(subject.shares.numbers)
    met = subject.attribution.collectives.of_steps(usable)
    met = met.take(np.isin(met.last_arriver, ranks) & ~met.with_op(*P2P_OPS))
    waited: Counter[tuple[int, ...]] = Counter()
    for team, ns in zip(met.team.tolist(), (met.by(met.wait_ns, np.add) // (met.sizes - 1)).tolist(), strict=True):
        waited[met.teams[team]] += ns
    return [
        Evidence(
            f"{axes.words(group)}, waiting for {ranks_text(ranks)}",
            round(ns / len(usable) / 1e6, 3),
            f"ms {subject.per}",
            Query("meetings", {**subject.counted, "last_rank": list(ranks)}),
        )
        for group, ns in waited.most_common(3)
        if axes.of(group) is not None
    ]


def _than(subject: Subject, ranks: tuple[int, ...]) -> str:
    stages = subject.attribution.axes.stages()
    if not stages or not ranks:
        return "the others"
    mates = [rank for rank, stage in stages.items() if rank not in ranks and stage == stages.get(ranks[0])]
    return "the others of its stage" if mates else "usual"


def _place(subject: Subject, ranks: tuple[int, ...]) -> tuple[str, float | None]:
    """The phase with most of the extra time, and the fraction of it inside operators, where a trace shows it."""
    own_work = "its own work" if len(ranks) == 1 else "their own work"
    by_detail: dict[Detail, float] = {}
    for (_, kind, detail), series in subject.shares.blame_detail_ns(ranks).items():
        if kind in (Kind.COMPUTE, Kind.IDLE) and detail not in (Detail.GC, Detail.OFFLOAD):
            by_detail[detail] = by_detail.get(detail, 0.0) + float(series.sum())
    if not by_detail:
        return own_work, None
    main = max(by_detail, key=lambda detail: by_detail[detail])
    return _WHERE.get(main, own_work), _inside_operators(subject, ranks, main)


def _inside_operators(subject: Subject, ranks: tuple[int, ...], detail: Detail) -> float | None:
    """Over steps with a trace on all ranks: only these separate operators from the time between them. On a CPU, how
    much more of both the ranks have in the phase than the median of the others; on a device, what they were late by.
    None where they were not late in these steps as in the counted ones: whatever takes their time came later."""
    inside = outside = 0.0
    steps = subject.attribution.traced
    parts, owner = steps.parts, steps.of_part
    recorded = np.isin(np.arange(len(steps)), owner[~parts.from_source("trace")])
    traced = steps.take(~recorded)
    if subject.shares.on_device:
        blames = traced.blames
        late_ns = np.where(np.isin(blames.rank, ranks) & (blames.detail == detail), blames.ns, 0)
        inside, outside = (float(late_ns[blames.kind == kind].sum()) for kind in (Kind.COMPUTE, Kind.IDLE))
    else:
        inside, outside = _excess_on_cpu(subject, ranks, detail, traced.numbers)
    if inside + outside < STRAGGLER.half_of_waiting_share * len(traced) * _late_ns(subject, ranks, detail):
        return None
    return inside / (inside + outside) if inside + outside else None


def _late_ns(subject: Subject, ranks: tuple[int, ...], detail: Detail) -> float:
    """What these ranks were late by in a phase, nanoseconds a counted step."""
    late = subject.shares.blame_detail_ns(ranks).items()
    of_phase = (series for (_, kind, of), series in late if kind in (Kind.COMPUTE, Kind.IDLE) and of == detail)
    return float(sum(series.mean() for series in of_phase))


def _excess_on_cpu(
    subject: Subject, ranks: tuple[int, ...], detail: Detail, numbers: Collection[int]
) -> tuple[float, float]:
    """In these steps, time inside and outside of operators in the phase: of the ranks, beyond the others' median."""
    spent: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for step in RankSteps.of(subject.attribution.rank_steps).of_steps(numbers):
        own = sum(step.segments.total(kind, detail) for kind in (Kind.COMPUTE, Kind.IDLE))
        outside = step.outside_operators_ns.get(detail)
        # Without records, operators are compute and the rest is idle.
        outside = step.segments.total(Kind.IDLE, detail) if outside is None else outside
        spent[step.step][step.rank] = own - outside, outside
    excess = np.zeros(2)
    for by_rank in spent.values():
        others = [both for rank, both in by_rank.items() if rank not in ranks]
        if others:
            usual = np.median(others, axis=0)
            excess += sum(np.maximum(0.0, np.array(both) - usual) for rank, both in by_rank.items() if rank in ranks)
    return float(excess[0]), float(excess[1])


def _host_is_late(inside: float | None) -> bool:
    """Whether the extra time is mostly outside of the rank's work: its host does something else meanwhile."""
    return inside is not None and inside < 0.5


def _outside_of_operators(subject: Subject, inside: float | None) -> bool:
    """Whether the extra time of a rank on a CPU is mostly outside of operators: it does something else meanwhile."""
    return _host_is_late(inside) and not subject.shares.on_device


def _off_core_ns(subject: Subject, ranks: tuple[int, ...]) -> float:
    """How much longer a step than the others these ranks were blocked or queued, the least of them. Less of it may have
    become a cost of its own: it is not always known that others waited because of it."""
    scheduling = subject.scheduling
    fields = ("blocked_ns", "queued_ns", "frozen_ns")
    return min(sum(float(scheduling.excess(name, rank).mean()) for name in fields) for rank in ranks)


def _little_ns(subject: Subject) -> float:
    """Less than this, a step, is not worth a mention."""
    return FINDINGS.mention_share * mean_ns(subject.shares.dur_ns)


def _action(subject: Subject, ranks: tuple[int, ...], inside: float | None) -> str:
    host = subject.host_of(ranks[0])
    where = f" ({host})" if host else ""
    if _outside_of_operators(subject, inside):
        spends, it_runs = ("spends", "it runs") if len(ranks) == 1 else ("spend", "they run")
        look_for = "Python code, locks, sleeps or I/O"
        if subject.scheduling.knows_blocked(ranks) and _off_core_ns(subject, ranks) < _little_ns(subject):
            spends, look_for = f"{spends} the extra time on a CPU core,", "Python code"
        else:
            spends = f"{spends} the extra time"
        return (
            f"{ranks_text(ranks).capitalize()}{where} {spends} outside of operators: look for {look_for} that only "
            f"{it_runs} (py-spy dump)."
        )
    if not subject.shares.on_device and subject.scheduling.knows_blocked(ranks):
        off_core_ns = _off_core_ns(subject, ranks)
        shard = "does the data shard there contain longer sequences or more work?"
        if off_core_ns >= _little_ns(subject):
            are, compute = ("is", "computes") if len(ranks) == 1 else ("are", "compute")
            return (
                f"{ranks_text(ranks).capitalize()}{where} {compute} longer, and {are} blocked or waiting for a core "
                f"{in_ms(off_core_ns)} a step longer than the others. Look for that first: sleeps, I/O, locks, stopped "
                f"processes, other processes (py-spy dump). Then: {shard}"
            )
        computes = "computes longer, and neither waits for a core nor is blocked"
        if len(ranks) > 1:
            computes = "compute longer, and neither wait for a core nor are blocked"
        return (
            f"{ranks_text(ranks).capitalize()}{where} {computes}: {shard} Otherwise compare clocks and temperature, "
            "memory placement (numactl) and the model of the CPU with those of the others."
        )
    return (
        f"Check the machine of {ranks_text(ranks)}{where}: clocks and temperature, other processes, CPU affinity; does "
        "the data shard there contain longer sequences?"
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="two ranks or more, and clocks that agree or the phases of the steps.",
    means={
        "compute-straggler": "One rank, always the same, computes longer than the others.",
        "compute-imbalance": "The slowest rank changes from step to step.",
        "host-straggler": "A rank's host launches its kernels later than the other hosts, and the other ranks wait.",
        "straggler-rank-unknown": (
            "A rank computes longer than the others, in too few steps to say whether it is always the same one."
        ),
        "straggler-cause-unknown": "A rank is late, and nothing that it recorded says why.",
        "expert-imbalance": (
            "Expert parallelism: the late rank is the one that receives most tokens in the all-to-alls, and its time "
            "follows what it receives. The finding gives the imbalance and the time that balance would save."
        ),
        "load-imbalance": "The late rank is the one with the most tokens in its batches.",
    },
)

"""A rank that computes longer than the others, so that they wait for it: always the same one, or now this, now that; or
neither is proven."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from diag.model.steps import Detail, Evidence, Finding, Kind
from diag.traces.comm_names import P2P_OPS

from . import slow_modules
from .culprits import Culprits
from .last_arrivals import last_arrivals
from .shares import UNEXPLAINED, Cost
from .stalled_rank import no_loader
from .subject import MENTION, Subject, a_step, ranks_text, waited_for, who_is_late
from .throttled_device import throttled_ranks
from .token_balance import longest_batch_last

_INPUT = " No batch came from a torch DataLoader: reading and preparing the input counts as forward here."
_WHERE = {Detail.FORWARD: "forward", Detail.BACKWARD: "backward", Detail.OPTIMIZER: "the optimizer"}


def find(subject: Subject) -> list[Finding]:
    return [*_of_hosts(subject), *_of_work(subject)]


def _of_work(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.STRAGGLER) < MENTION:
        return []
    culprits = _culprits(subject, Cost.STRAGGLER)
    cost = a_step(shares.cost(Cost.STRAGGLER))
    if subject.once(throttled_ranks):
        return []  # a known reason: diag.diagnoses.throttled_device has these nanoseconds
    if shares.unexplained > UNEXPLAINED:
        return [_for_no_known_reason(subject, culprits, cost, shares.unexplained)]
    if culprits.ranks:
        return [_always_the_same(subject, culprits, cost)]
    longest = longest_batch_last(subject)
    if longest is not None:
        return [_longer_batches(subject, cost, *longest)]
    return [_now_this_now_that(subject, culprits, cost) if culprits.moves else _perhaps(subject, culprits, cost)]


def _culprits(subject: Subject, cost: Cost) -> Culprits:
    """By how often a rank is late in the steps; where these are too few to tell, by how often in the collectives. All
    that is late in one step may be so for one reason, so that they count only where no step says otherwise."""
    found, last = subject.shares.culprits(cost), subject.once(last_arrivals)
    late = {rank: float(series.sum()) for rank, series in subject.shares.blame_ns.get(cost, {}).items()}
    if found.ranks or found.moves or last is None or found.steps[0] < found.steps[1]:
        return found
    if not late or max(late, key=lambda rank: late[rank]) not in last.ranks:
        return found
    return replace(found, ranks=last.ranks, suspects=last.ranks, chance=last.chance)


def _counted(subject: Subject, culprits: Culprits) -> list[Evidence]:
    """How often these ranks were last: of the steps, and of the collectives, where that was counted for them."""
    leads, affected = culprits.steps
    late = f"{ranks_text(culprits.ranks)} last, of {affected} affected steps"
    found, last = [Evidence("steps", late, float(leads), "steps")], subject.once(last_arrivals)
    if last is not None and last.ranks == culprits.ranks:
        found += last.evidence(len(subject.shares.numbers))
    return found


def _of_hosts(subject: Subject) -> list[Finding]:
    """Ranks whose devices had nothing to run, because their hosts launched later than the others' did."""
    shares = subject.shares
    if shares.share(Cost.HOST_STRAGGLER) < MENTION or subject.once(throttled_ranks):
        return []
    culprits, last = _culprits(subject, Cost.HOST_STRAGGLER), subject.once(last_arrivals)
    cost = a_step(shares.cost(Cost.HOST_STRAGGLER))
    if culprits.ranks:
        who = ranks_text(culprits.ranks)
        often = (
            f", last in {last.last[0]} of {last.last[1]} collectives" if last and last.ranks == culprits.ranks else ""
        )
        launch = "launches its" if len(culprits.ranks) == 1 else "launch their"
        title = f"{who.capitalize()} {launch} kernels later than the others{often}: {cost}"
        evidence = [*_counted(subject, culprits), *_waiting(subject, culprits.ranks)]
        where = subject.host_of(culprits.ranks[0])
        place = f"of {who}" + (f" ({where})" if where else "")
    else:
        title = f"The ranks wait for each other, because their hosts launch kernels unequally fast: {cost}"
        leads, affected = culprits.steps
        often = f"the most frequent last rank, of {affected} affected steps"
        evidence, place = [Evidence("steps", often, float(leads), "steps")], "of the rank that comes last"
    return [
        subject.costing(
            Cost.HOST_STRAGGLER,
            id="host-straggler",
            title=title,
            action=f"The device {place} waits for its host: look there for other processes, CPU affinity (numactl), "
            "and Python code, locks or I/O that only this rank runs (py-spy dump on its process).",
            evidence=(*evidence, *subject.per_rank("compute_ns"), *subject.per_rank("idle_ns")),
            ranks=culprits.ranks,
        )
    ]


def _always_the_same(subject: Subject, culprits: Culprits, cost: str) -> Finding:
    ranks = culprits.ranks
    place, inside = _place(subject, ranks)
    be = "is" if len(ranks) == 1 else "are"
    evidence = _counted(subject, culprits)
    if inside is not None:
        evidence.append(Evidence("segments", f"extra time in {place}, inside operators", round(inside, 3), "share"))
    evidence += _waiting(subject, ranks)
    evidence += slow_modules.evidence_of(subject, ranks)
    evidence += subject.per_rank("compute_ns" if subject.stages_alone else "exposed_comm_ns")
    return subject.costing(
        Cost.STRAGGLER,
        id="compute-straggler",
        title=f"{ranks_text(ranks).capitalize()} {be} slower than {_than(subject, ranks)} in {place}: {cost}",
        action=_action(subject, ranks, inside) + (_INPUT if place == "forward" and no_loader(subject) else ""),
        evidence=evidence,
        ranks=ranks,
    )


def _now_this_now_that(subject: Subject, culprits: Culprits, cost: str) -> Finding:
    leads, affected = culprits.steps
    return subject.costing(
        Cost.STRAGGLER,
        id="compute-imbalance",
        title=f"The ranks are unequally fast, now this one, now that: {cost}; others waited "
        f"{waited_for(culprits, everybody=True)}",
        action="Look for work that differs from batch to batch (sequence lengths: bucket them), or for more ranks than "
        "free cores on a host.",
        evidence=[
            Evidence("steps", f"the most frequent last rank, of {affected} affected steps", float(leads), "steps")
        ],
    )


def _perhaps(subject: Subject, culprits: Culprits, cost: str) -> Finding:
    """Too few steps tell whether it is always this rank: neither is said then."""
    leads, affected = culprits.steps
    who = ranks_text(culprits.suspects) if culprits.suspects else "the most frequent one"
    _, inside = _place(subject, culprits.suspects)
    machine = "" if _host_is_late(inside) else "clocks and temperature, "
    title = f"A rank is slower than {_than(subject, culprits.suspects)}, not certain which: {cost}"
    if affected:
        title += f". {who.capitalize()} came last in {leads} of {affected} affected steps"
        title += f"; others waited {waited_for(culprits, everybody=True)}"
    return subject.costing(
        Cost.STRAGGLER,
        id="straggler-rank-unknown",
        title=title,
        action="Let it train for more steps, with a profiler window of all ranks among them (diag trace), and ask "
        f"again. If it stays {ranks_text(culprits.suspects) if culprits.suspects else 'one rank'}, look at the machine "
        f"there: {machine}other processes, CPU affinity; if it moves from rank to rank, look for work that differs "
        "from batch to batch.",
        evidence=(
            Evidence("steps", f"{who} last, of {affected} affected steps", float(leads), "steps"),
            *_waiting(subject, culprits.suspects),
            *subject.per_rank("compute_ns" if subject.stages_alone else "exposed_comm_ns"),
        ),
    )


def _longer_batches(subject: Subject, cost: str, steps: int, affected: int) -> Finding:
    return subject.costing(
        Cost.STRAGGLER,
        id="load-imbalance",
        title=f"In each step the ranks wait for the one with most tokens, now this one, now that: {cost}",
        action="Give all ranks as many tokens in a step: batch by length (bucketing), pack sequences, or balance the "
        "lengths over the ranks in the sampler.",
        evidence=[Evidence("steps", f"the rank with most tokens last, of {affected} steps", float(steps), "steps")],
    )


def _for_no_known_reason(subject: Subject, culprits: Culprits, cost: str, unknown: float) -> Finding:
    """The rank is known, what it did is not: better an open question than a wrong cause."""
    leads, affected = culprits.steps
    who = who_is_late(culprits).capitalize()
    late = "arrives" if len(culprits.ranks) < 2 else "arrive"
    return subject.costing(
        Cost.STRAGGLER,
        id="straggler-cause-unknown",
        title=f"{who} {late} later than the others, cause not determined: {cost}",
        action="Find out what the late rank does where nothing is recorded (between steps: logging, evaluation, "
        "saving): put record_function or collector.phase around it, or take its stacks with py-spy dump.",
        evidence=[
            Evidence("steps", f"the late rank last, of {affected} affected steps", float(leads), "steps"),
            Evidence(
                "collectives", "waiting for late ranks that nothing recorded explains", round(unknown, 3), "share"
            ),
            *subject.per_rank("exposed_comm_ns"),
        ],
        ranks=culprits.ranks,
    )


def _waiting(subject: Subject, ranks: tuple[int, ...]) -> list[Evidence]:
    """Of a mesh of several axes: the groups that waited for these ranks, the mean of a member and step."""
    axes = subject.attribution.axes
    if not axes.several:
        return []
    usable = set(subject.shares.numbers)
    waited: Counter[tuple[int, ...]] = Counter()
    for met in subject.attribution.collectives:
        if met.step in usable and met.last_arriver in ranks and met.op not in P2P_OPS:
            waited[met.ranks] += sum(met.wait_ns) // (len(met.ranks) - 1)
    return [
        Evidence("collectives", f"{axes.words(group)}, waiting for it", round(ns / len(usable) / 1e6, 3), "ms a step")
        for group, ns in waited.most_common(3)
        if axes.of(group) is not None
    ]


def _than(subject: Subject, ranks: tuple[int, ...]) -> str:
    """Whom it was compared with (diag.account.peers)."""
    stages = subject.attribution.axes.stages()
    if not stages or not ranks:
        return "the others"
    mates = [rank for rank, stage in stages.items() if rank not in ranks and stage == stages.get(ranks[0])]
    return "the others of its stage" if mates else "it usually is"


def _place(subject: Subject, ranks: tuple[int, ...]) -> tuple[str, float | None]:
    """The phase with most of the extra time, and the part of it inside operators, where a trace tells."""
    own = "its own work" if len(ranks) == 1 else "their own work"
    by_detail: dict[Detail, float] = {}
    for (rank, kind, detail), series in subject.shares.blame_detail_ns.items():
        if rank in ranks and kind in (Kind.COMPUTE, Kind.IDLE) and detail not in (Detail.GC, Detail.OFFLOAD):
            by_detail[detail] = by_detail.get(detail, 0.0) + float(series.sum())
    if not by_detail:
        return own, None
    main = max(by_detail, key=lambda detail: by_detail[detail])
    return _WHERE.get(main, own), _inside_operators(subject, ranks, main)


def _inside_operators(subject: Subject, ranks: tuple[int, ...], detail: Detail) -> float | None:
    """Only steps with a trace tell operators from the Python between them."""
    inside = outside = 0.0
    for step in subject.attribution.usable:
        if all(parts.source == "trace" for parts in step.parts):
            for blame in step.blames:
                if blame.rank in ranks and blame.detail == detail:
                    inside += blame.ns if blame.kind == Kind.COMPUTE else 0
                    outside += blame.ns if blame.kind == Kind.IDLE else 0
    return inside / (inside + outside) if inside + outside else None


def _host_is_late(inside: float | None) -> bool:
    """Whether the extra time lies mostly outside of the rank's work: its host does something else meanwhile."""
    return inside is not None and inside < 0.5


def _action(subject: Subject, ranks: tuple[int, ...], inside: float | None) -> str:
    host = subject.host_of(ranks[0])
    where = f" ({host})" if host else ""
    if _host_is_late(inside) and not subject.shares.on_device:
        return (
            f"{ranks_text(ranks).capitalize()}{where} spends the extra time outside of operators: look for "
            "Python code, locks, sleeps or I/O that only it runs (py-spy dump on its process)."
        )
    if not subject.shares.on_device and subject.scheduling.knows_blocked(ranks):
        return (
            f"{ranks_text(ranks).capitalize()}{where} computes longer, and neither waits for a core nor is blocked: "
            "does its share of the data hold longer sequences or other work? Else compare clocks and temperature, "
            "memory placement (numactl) and the model of the CPU with those of the others."
        )
    return (
        f"Check the machine of {ranks_text(ranks)}{where}: clocks and temperature, other processes, CPU affinity; does "
        "its share of the data hold longer sequences?"
    )

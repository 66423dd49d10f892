"""A rank that computes longer than the others, so that they wait for it: always the same one, or now this, now that."""

from __future__ import annotations

from diag.findings.culprits import find_culprits
from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns, ranks_text, severity
from diag.model import Bottleneck, Detail, Evidence, Finding, Kind

_WHERE = {Detail.FORWARD: "forward", Detail.BACKWARD: "backward", Detail.OPTIMIZER: "the optimizer"}


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    share = shares.share(Cost.STRAGGLER)
    if share < MENTION:
        return []
    late = shares.cost(Cost.STRAGGLER)
    culprits = find_culprits(shares.blame_ns.get(Cost.STRAGGLER, {}), shares.dur_ns, len(shares.ranks))
    cost = f"{mean_ns(late) / 1e6:.0f} ms a step"
    evidence = [Evidence("critical path", "waited for slower ranks, part of all steps", round(share, 4), "share")]
    leads, affected = culprits.steps
    if culprits.ranks:
        place, inside = _place(subject, culprits.ranks)
        title = f"{ranks_text(culprits.ranks).capitalize()} is slower than the others in {place}: {cost}"
        if len(culprits.ranks) > 1:
            title = title.replace(" is slower", " are slower")
        evidence.append(
            Evidence(
                "steps", f"rank == {culprits.ranks[0]} was the last, of {affected} affected", float(leads), "steps"
            )
        )
        if inside is not None:
            evidence.append(
                Evidence("segments", f"its extra time in {place}, inside operators", round(inside, 3), "share")
            )
        return [
            Finding(
                id="compute-straggler",
                title=title,
                severity=severity(share),
                share=share,
                cost_ns_per_step=mean_ns(late),
                confidence=subject.confidence(late),
                ranks=culprits.ranks,
                evidence=(*evidence, *subject.per_rank("exposed_comm_ns")),
                bottleneck=Bottleneck.COMPUTE,
                action=_action(subject, culprits.ranks, inside),
            )
        ]
    return [
        Finding(
            id="compute-imbalance",
            title=f"The ranks are unequally fast, now this one, now that: {cost}",
            severity=severity(share),
            share=share,
            cost_ns_per_step=mean_ns(late),
            confidence=subject.confidence(late),
            ranks=(),
            evidence=(
                *evidence,
                Evidence("steps", f"the most frequent last rank, of {affected} affected", float(leads), "steps"),
            ),
            bottleneck=Bottleneck.COMPUTE,
            action="Look for work that differs from batch to batch (sequence lengths: bucket them), or for more ranks "
            "than free cores on a host.",
        )
    ]


def _place(subject: Subject, ranks: tuple[int, ...]) -> tuple[str, float | None]:
    """The phase with most of the extra time, and the part of it inside operators, where a trace tells."""
    by_detail: dict[Detail, float] = {}
    for (rank, kind, detail), series in subject.shares.blame_detail_ns.items():
        if rank in ranks and kind in (Kind.COMPUTE, Kind.IDLE) and detail != Detail.GC:
            by_detail[detail] = by_detail.get(detail, 0.0) + float(series.sum())
    if not by_detail:
        return "its own work", None
    main = max(by_detail, key=lambda detail: by_detail[detail])
    return _WHERE.get(main, "its own work"), _inside_operators(subject, ranks, main)


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


def _action(subject: Subject, ranks: tuple[int, ...], inside: float | None) -> str:
    host = subject.tables.ranks[ranks[0]].host if ranks[0] in subject.tables.ranks else None
    where = f" ({host})" if host else ""
    if inside is not None and inside < 0.5 and not subject.shares.on_device:
        return (
            f"{ranks_text(ranks).capitalize()}{where} spends the extra time outside of operators: look for "
            "Python code, locks, sleeps or I/O that only it runs (py-spy dump on its process)."
        )
    return (
        f"Check the machine of {ranks_text(ranks)}{where}: clocks and temperature, other processes, CPU affinity; does "
        "its share of the data hold longer sequences?"
    )

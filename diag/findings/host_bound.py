"""A device that waits because its host launches work too slowly, synchronises, or allocates."""

from __future__ import annotations

from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns
from diag.findings.workload import allocator_action, launch_action, sync_action, workload
from diag.model import Detail, Evidence, Finding, Kind

_WHY = {
    Detail.LAUNCH: ("launch-bound", "kernels finish faster than the host launches them", launch_action),
    Detail.SYNC: ("synchronising-calls", "the host waits for the device and then launches late", sync_action),
    Detail.ALLOCATOR: ("allocator-stall", "cudaMalloc and cudaFree run inside the step", allocator_action),
}


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.HOST) < MENTION:
        return []
    lost = dict.fromkeys(_WHY, 0)
    for step in subject.attribution.usable or subject.attribution.steps:
        for detail in lost:
            lost[detail] += step.path.total(Kind.IDLE, detail)
    main = max(lost, key=lambda detail: lost[detail])
    name, why, action = _WHY[main]
    waited = shares.cost(Cost.HOST)
    return [
        subject.costing(
            Cost.HOST,
            id=name,
            title=f"The device is idle because {why}: {mean_ns(waited) / 1e6:.1f} ms a step",
            action=action(subject.once(workload))
            + " The profiler slows launches down: compare with the time of steps without it.",
            evidence=[
                Evidence("critical path", f"idle, {detail.name.lower()}", round(ns / 1e6 / len(waited), 3), "ms a step")
                for detail, ns in lost.items()
            ],
        )
    ]

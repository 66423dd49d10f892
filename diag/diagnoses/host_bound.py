"""A device that is idle although there is work: its host is late, or the recording does not show the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from diag.account.policy import DEVICE_IDLE
from diag.diagnoses.policy import FINDINGS, HOST_TIME
from diag.model.accounts import StepAccounts
from diag.model.query import By, Query
from diag.model.steps import Detail, Evidence, Finding, Kind
from diag.words import sentences

from .costs import Cost
from .subject import Column, Diagnosis, Subject, in_ms, mean_ns
from .workload import allocator_action, launch_action, stall_action, sync_action, workload

_WORDS = {
    Detail.LAUNCH: "not launched",
    Detail.AFTER_SYNC: "not launched, after a synchronising call",
    Detail.SYNC: "inside a synchronising call",
    Detail.ALLOCATOR: "inside an allocator call",
    Detail.IN_LAUNCH: "inside the launch",
    Detail.LATENCY: "from a late launch to its work",
}
LAUNCH_BOUND, STALL, SYNC, ALLOCATOR = "launch-bound", "host-stall", "synchronising-calls", "allocator-stall"
HOST_BOUND, AFTER_LAUNCH = "host-bound", "idle-after-launch"
_ACTION = {LAUNCH_BOUND: launch_action, STALL: stall_action, SYNC: sync_action, ALLOCATOR: allocator_action}
# A pause of so many times the length of a named stall is a stall of its own. The host returns from a synchronising call
# within microseconds, but some milliseconds of Python after it are what the call exposes.
_STALL_TIMES = {Detail.LAUNCH: 1, Detail.AFTER_SYNC: 20}
_ALL_STREAMS = (
    "Record a longer window (several steps between two prof.step() calls) with all streams and processes of this "
    "device, for example with Nsight Systems or rocprof next to the profiler."
)
_WITH_LAUNCHES = (
    "Record several steps between two prof.step() calls with ProfilerActivity.CPU next to the device's, so that the "
    "trace contains the calls that launch the kernels and copies."
)
_PROFILED = " The profiler slows launches down: compare with the time of steps without it."


def find(subject: Subject) -> list[Finding]:
    return [*_late_host(subject), *_unexplained(subject)]


def _late_host(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.HOST) < FINDINGS.mention_share:
        return []
    if _without_pieces(subject):  # how long it was idle is known, not where in a phase, and not why
        return [_late_for_some_reason(subject)]
    waited = shares.cost(Cost.HOST)
    ms = f"{in_ms(mean_ns(waited))} {subject.per}"
    idle = _steps(subject).spent()[Kind.IDLE].tolist()
    lost = {detail: idle[detail] for detail in _WORDS}
    long = {
        detail: _long_pieces(_steps(subject), detail, times * DEVICE_IDLE.named_stall_ns)
        for detail, times in _STALL_TIMES.items()
    }
    by_cause = {
        LAUNCH_BOUND: lost[Detail.LAUNCH] - long[Detail.LAUNCH] + lost[Detail.IN_LAUNCH] + lost[Detail.LATENCY],
        STALL: sum(long.values()),
        SYNC: lost[Detail.SYNC] + lost[Detail.AFTER_SYNC] - long[Detail.AFTER_SYNC],
        ALLOCATOR: lost[Detail.ALLOCATOR],
    }
    cause = max(by_cause, key=lambda name: by_cause[name])
    busy = _busiest(subject, ("not_launched",))
    name = _named(busy, sum(waited))
    title = {
        LAUNCH_BOUND: sentences.IDLE_BY_LAUNCHES(cost=ms),
        STALL: sentences.IDLE_WHILE_HOST_RUNS(cost=ms, name=name)
        if name
        else sentences.IDLE_WHILE_NOTHING_RUNS(cost=ms),
        SYNC: sentences.IDLE_BY_SYNC(cost=ms),
        ALLOCATOR: sentences.IDLE_BY_ALLOCATOR(cost=ms),
    }[cause]
    return [
        subject.costing(
            Cost.HOST,
            id=cause,
            title=title,
            action=_ACTION[cause](subject.once(workload)) + _PROFILED,
            evidence=[
                *(
                    Evidence(
                        f"idle, {_WORDS[detail]}",
                        round(ns / 1e6 / len(waited), 3),
                        f"ms {subject.per}",
                        Query("path", {"kind": "idle", "detail": detail.name.lower()}, "dur_ns", By.SUM, ("step",)),
                    )
                    for detail, ns in lost.items()
                    if ns
                ),
                *_stalls(busy, subject.per, len(waited)),
            ],
        )
    ]


def _without_pieces(subject: Subject) -> bool:
    """Whether the device's idle time is known by phase only: from its events, also those in the ranks' summaries."""
    return subject.attribution.by_events or Column.PIECES in subject.lacks


def _late_for_some_reason(subject: Subject) -> Finding:
    waited = in_ms(mean_ns(subject.shares.cost(Cost.HOST)))
    return subject.costing(
        Cost.HOST,
        id=HOST_BOUND,
        title=f"The device is idle for {waited} {subject.per} before its host has launched the next work",
        action="Record a profiler window (`diag trace`, or `diag run --trace`): it shows whether the launches "
        "themselves, synchronising calls, the allocator or other Python code take the time.",
        evidence=subject.per_rank("idle_ns"),
    )


def _unexplained(subject: Subject) -> list[Finding]:
    """Idle time that no change of the host would remove, as far as the recording shows."""
    shares = subject.shares
    findings = []
    if shares.share(Cost.QUEUED) >= FINDINGS.mention_share and _without_pieces(subject):
        findings.append(
            subject.costing(
                Cost.QUEUED,
                id=AFTER_LAUNCH,
                title=f"The device is idle for {subject.each(shares.cost(Cost.QUEUED))} after its host has "
                "launched the work of a phase; what it waits for is not recorded",
                action="Record a profiler window (`diag trace`, or `diag run --trace`).",
                evidence=subject.per_rank("idle_ns"),
            )
        )
    elif shares.share(Cost.QUEUED) >= FINDINGS.mention_share:
        busy = _busiest(subject, ("queued", "unknown"))
        idle, action = sentences.IDLE_ALTHOUGH_LAUNCHED, _ALL_STREAMS
        if _mostly_without_launch(subject):
            idle, action = sentences.IDLE_WITHOUT_LAUNCH, _WITH_LAUNCHES
        findings.append(
            subject.costing(
                Cost.QUEUED,
                id=AFTER_LAUNCH,
                title=idle(cost=subject.each(shares.cost(Cost.QUEUED))),
                action=action,
                evidence=_stalls(busy, subject.per, len(shares.numbers)),
            )
        )
    if shares.share(Cost.ONCE) >= FINDINGS.mention_share:
        busy = _busiest(subject, ("not_launched",))
        once = in_ms(mean_ns(shares.cost(Cost.ONCE)))
        name = _named(busy, sum(shares.cost(Cost.ONCE)))
        findings.append(
            subject.costing(
                Cost.ONCE,
                id="one-long-stall",
                title=sentences.ONE_STALL_WHILE_HOST_RUNS(cost=once, name=name)
                if name
                else sentences.ONE_STALL_WHILE_NOTHING_RUNS(cost=once),
                action="Mark the steps with prof.step() and record several of them after the warm-up "
                "(schedule(skip_first=10, wait=1, warmup=1, active=3)).",
                evidence=_stalls(busy, subject.per, len(shares.numbers)),
            )
        )
    return findings


def _mostly_without_launch(subject: Subject) -> bool:
    """Whether the trace lacks the launch for more of the unexplained idle time than it holds it for."""
    idle = _steps(subject).spent()[Kind.IDLE]
    return bool(idle[Detail.OTHER] > idle[Detail.DEPENDENCY])


def _steps(subject: Subject) -> StepAccounts:
    return subject.attribution.counted


def _long_pieces(steps: StepAccounts, detail: Detail, least_ns: int) -> int:
    """Nanoseconds of the paths in pieces of this cause that last ``least_ns`` or longer."""
    paths = steps.paths
    dur = paths.lasted_ns
    long = (paths.kind == Kind.IDLE) & (paths.detail == detail) & (dur >= least_ns)
    return int(dur[long].sum())


def _busiest(subject: Subject, parts: Iterable[str]) -> list[tuple[str, int]]:
    """Activity of the host in the long stalls of these parts: name and nanoseconds over all steps, largest first."""
    spent: dict[str, int] = defaultdict(int)
    for stall in chain.from_iterable(_steps(subject).parts.stalls.values()):
        if stall.part in parts and stall.host:
            spent[stall.host] += round(stall.dur_ns * stall.host_share)
    return sorted(spent.items(), key=lambda item: (-item[1], item[0]))[: HOST_TIME.most_stalls_named]


def _named(busy: list[tuple[str, int]], stalled_ns: float) -> str:
    """The host's activity during at least half of the time; "" if no single name covers it."""
    return busy[0][0] if busy and busy[0][1] >= stalled_ns / 2 else ""


def _stalls(busy: list[tuple[str, int]], per: str, steps: int) -> list[Evidence]:
    return [
        Evidence(
            f"host in {name}",
            round(ns / 1e6 / max(1, steps), 3),
            f"ms {per}",
            Query("stalls", {"host": name}, "dur_ns"),
        )
        for name, ns in busy
    ]


DIAGNOSIS = Diagnosis(
    find,
    needs="a run on a GPU with a profiler window, or with samples of its utilization.",
    means={
        HOST_BOUND: (
            "Without a profiler window: the device is idle before its host has launched the next work. A window says "
            "why."
        ),
        LAUNCH_BOUND: "The device waits for many late kernel launches.",
        STALL: "The device waits during long stalls of its host. The finding names what the host did.",
        SYNC: "The device waits because the host waits for it in synchronising calls, such as `.item()`.",
        ALLOCATOR: "The device waits while the host allocates or frees device memory.",
        AFTER_LAUNCH: "The device is idle after its next work was launched. The verdict stays open.",
        "one-long-stall": "One stall in a window that nothing divides into steps. The verdict stays open.",
    },
)

"""The account of the run from the durations of its phases alone, in the same arrays as the account from the timelines.

It needs neither collectives nor clocks, so every run with step records has it. Where the timelines of the ranks are not
connected by collectives, the verdict rests on it; elsewhere it is the second opinion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from diag.account.attribute import Profiled
from diag.account.device_clock import DeviceClocked, outside_windows
from diag.account.frontier import Frontier, frontier
from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, FORWARD, H2D, OPTIMIZER, REST
from diag.diagnoses.policy import COMMUNICATION, FINDINGS
from diag.model.accounts import Attribution, HostsWork
from diag.model.steps import HOST_DETAILS, QUEUED_DETAILS, Bottleneck, Detail, Kind, by_cause
from diag.rundir.tables import Tables

from .cost_rows import CostTable, Side, Source
from .costs import Cost, class_of
from .culprits import Series
from .shares import Noise, Shares

# By phase: the cost of its increments, and the kind and detail of lateness in it. The ranks' own work costs only where
# one of them has more of it than the others.
_LATE_AS = {
    DATA: (Cost.DATA, Kind.DATA, Detail.NONE),
    H2D: (Cost.COPY, Kind.COPY, Detail.NONE),
    CHECKPOINT: (Cost.CHECKPOINT, Kind.CHECKPOINT, Detail.NONE),
    FORWARD: (Cost.STRAGGLER, Kind.COMPUTE, Detail.FORWARD),
    BACKWARD: (Cost.STRAGGLER, Kind.COMPUTE, Detail.BACKWARD),
    OPTIMIZER: (Cost.STRAGGLER, Kind.COMPUTE, Detail.OPTIMIZER),
    REST: (Cost.STRAGGLER, Kind.IDLE, Detail.OTHER),
}
_LAUNCH = Kind.IDLE, Detail.LAUNCH
_ON_HOST = frozenset({DATA, CHECKPOINT})  # the host does these itself, even if it only launches the rest


class PhaseAccount(Struct, frozen=True):
    """``alone``: nothing else compares the ranks, so the verdict rests on this. ``hosts``: what these do while the
    devices work, where both are known of the frontier's steps."""

    frontier: Frontier
    shares: Shares
    alone: bool
    hosts: HostsWork | None = None


def phases_of(
    attribution: Attribution, tables: Tables, clocked: Mapping[int, DeviceClocked], noise: Noise
) -> PhaseAccount | None:
    """None with fewer than two ranks that recorded their steps. ``clocked``: see ``on_device_clocks``."""
    counted = attribution.counted.numbers
    ranks = {rank: device_clocked.tables for rank, device_clocked in clocked.items()} or tables.ranks
    phase_frontier = frontier(ranks, counted, tables.on_device and not clocked, attribution.axes.stages())
    return phases_from(phase_frontier, attribution, tables, clocked, noise)


def phases_from(
    phase_frontier: Frontier | None,
    attribution: Attribution,
    tables: Tables,
    clocked: Mapping[int, DeviceClocked],
    noise: Noise,
) -> PhaseAccount | None:
    """As ``phases_of``, from the frontier of the counted steps, or more than these."""
    if phase_frontier is None:
        return None
    counted = attribution.counted.numbers
    phase_frontier = phase_frontier.of_steps(counted)
    if attribution.detailed is not None:
        counted &= attribution.detailed
    connected = set(attribution.collectives.step.tolist()) & counted
    tied = (
        attribution.comm_known
        if tables.on_device and not clocked
        else len(connected) >= COMMUNICATION.matched_steps_share * len(counted)
    )
    shares = phase_shares(
        phase_frontier, tables.on_device, noise, _idle_of(phase_frontier, attribution) if clocked else None
    )
    return PhaseAccount(phase_frontier, shares, alone=not tied)


def unlike_the_rest(attribution: Attribution, tables: Tables, longer: Profiled | None) -> str:
    """How the steps in profiler windows differ from the others, by events on the devices; "" where they do not.
    ``longer``: what the profiler adds to a step."""
    steps, waiting, loading = outside_windows(tables)
    parts = attribution.usable.parts
    traced = parts.from_source("trace")
    spent_ns = int(parts.dur_ns[traced].sum())
    if not steps or not spent_ns:
        return ""
    for name, inside_ns, outside in (
        ("communication with its waiting", int(parts.exposed_comm_ns[traced].sum()), waiting),
        ("waiting for data", int(parts.data_wait_ns[traced].sum()), loading),
    ):
        inside = inside_ns / spent_ns
        if abs(inside - outside) >= FINDINGS.warning_share:
            return f"{name} is {inside:.0%} of the steps in profiler windows, and {outside:.0%} of {steps:,} others"
    return _idle_with_profiler(attribution, tables, longer)


class HostWait(NamedTuple):
    """In what share of a step the devices wait for their hosts: of the profiled steps, and of others at the most."""

    inside: float
    outside: float

    @property
    def of_profiler(self) -> bool:
        """Whether hardly any of it is left without the profiler, so that the profiled steps are doubted."""
        return self.outside < COMMUNICATION.contradicting_account_share * self.inside

    @property
    def counts(self) -> bool:
        """Whether the devices wait for their hosts without the profiler as well."""
        return self.inside >= FINDINGS.warning_share and not self.of_profiler


def host_wait(attribution: Attribution, tables: Tables, longer: Profiled | None) -> HostWait | None:
    """None without a device, and where the profiler makes a step hardly longer. The profiler makes the host slower, and
    leaves the device's work as it is: without it, a device is idle for as much less as the step is shorter."""
    if longer is None or not tables.on_device:
        return None
    parts = attribution.counted.parts
    idle_ns = float(parts.column("idle_parts.by_host_ns").sum()) / len(parts.rank)
    outside = max(0.0, idle_ns - (longer.traced_ns - longer.untraced_ns)) / longer.untraced_ns
    return HostWait(idle_ns / longer.traced_ns, outside)


def _idle_with_profiler(attribution: Attribution, tables: Tables, longer: Profiled | None) -> str:
    """Whether a device is idle for its host in profiled steps alone. "" where it is idle without the profiler as
    well."""
    waits = host_wait(attribution, tables, longer)
    if waits is None or longer is None or waits.inside < FINDINGS.warning_share or not waits.of_profiler:
        return ""
    return (
        f"the device waits for its host in {waits.inside:.0%} of the profiled steps, and in {waits.outside:.0%} of the "
        f"{longer.others:,} others, which the profiler did not make longer"
    )


class IdleByCause(Struct, frozen=True, eq=False):
    """Idle time of the devices, nanoseconds by step: because of the host, by rank [ranks, steps], and what all ranks
    have of it; and what all have for another reason."""

    by_host: Series
    common: Series
    queued: Series


def _idle_of(phase_frontier: Frontier, attribution: Attribution) -> IdleByCause:
    at = {(step.rank, step.step): by_cause(step.segments)[Kind.IDLE] for step in attribution.rank_steps}

    def idle(details: tuple[Detail, ...]) -> Series:
        each = [
            [at[rank, number][list(details)].sum() for number in phase_frontier.numbers]
            for rank in phase_frontier.ranks
        ]
        return np.array(each, dtype=np.float64)

    by_host = idle(HOST_DETAILS)
    return IdleByCause(by_host, by_host.min(axis=0), idle(QUEUED_DETAILS).min(axis=0))


def _take_from_work(late: Sequence[Series], idle: IdleByCause) -> tuple[Series, Series]:
    """Phases on device clocks include the devices' idle time. A rank with more of it than all ranks have is late
    because of its host, by at most the difference. This is taken from the lateness in the phases, [rank, step], in
    place; what comes back is its sum, and its fraction of the latest rank's lateness in each step: the path goes
    through this rank."""
    whole = sum(late[1:], late[0].copy())
    own = np.minimum(whole, np.maximum(0.0, idle.by_host - idle.common))
    latest, of_host = whole.max(axis=0), np.take_along_axis(own, whole.argmax(axis=0)[None], axis=0)[0]
    left = own.copy()
    for phase in late:
        moved = np.minimum(left, phase)
        phase -= moved
        left -= moved
    own -= left
    return own, np.divide(of_host, latest, out=np.zeros_like(latest), where=latest > 0)


def phase_shares(phase_frontier: Frontier, on_device: bool, noise: Noise, idle: IdleByCause | None = None) -> Shares:
    """``idle``: of the devices, where the phases are theirs."""
    table = CostTable(len(phase_frontier.numbers))
    waiting: list[tuple[Cost, Kind, Detail, Series]] = []  # with how long the others waited, [rank, step]
    for phase, (cost, kind, detail) in _LATE_AS.items():
        increment = phase_frontier.increment(phase).astype(np.float64)
        late_ns = phase_frontier.late(phase)
        some_late = bool(late_ns.any())  # else no table is made, which is large with thousands of ranks
        late = np.ascontiguousarray(late_ns.T, dtype=np.float64) if some_late else np.zeros((1, len(increment)))
        if on_device and phase not in _ON_HOST and not phase_frontier.communication_known:
            table.add(Side.PATH, None, increment, Kind.COMPUTE, detail)
            continue
        spent = increment if cost != Cost.STRAGGLER else np.minimum(late.max(axis=0), increment)
        # Whether the rank on the path is idle between its phases is not known.
        table.add(Side.PATH, cost, spent, Kind.COMPUTE if cost == Cost.STRAGGLER else kind, detail)
        table.add(Side.PATH, None, increment - spent, Kind.COMPUTE, detail)
        if some_late:
            waiting.append((cost, kind, detail, late))
    if phase_frontier.communication_known:
        table.add(Side.PATH, Cost.COMM, phase_frontier.communication_ns.astype(np.float64), Kind.COMM, Detail.NONE)
    part = np.zeros(len(phase_frontier.numbers))
    if idle is not None and (of_work := [late for cost, *_, late in waiting if cost == Cost.STRAGGLER]):
        of_host, part = _take_from_work(of_work, idle)
        waiting.append((Cost.HOST_STRAGGLER, *_LAUNCH, of_host))
    for cost, kind, detail, late in waiting:
        at = np.flatnonzero(late.any(axis=1)).tolist()
        table.add_each(Side.WAITING, cost, {phase_frontier.ranks[place]: late[place] for place in at}, kind, detail)
    if idle is not None:
        launched = table.total(Side.PATH, Cost.STRAGGLER) * part
        table.relabel(Side.PATH, Cost.STRAGGLER, Cost.HOST_STRAGGLER, launched, activity=_LAUNCH)
        table.relabel(Side.PATH, None, Cost.HOST, idle.common, activity=_LAUNCH)
        table.relabel(Side.PATH, None, Cost.QUEUED, idle.queued, activity=(Kind.IDLE, Detail.OTHER))
    return Shares(
        phase_frontier.numbers,
        phase_frontier.dur_ns.astype(np.float64),
        tuple(table.rows()),
        phase_frontier.ranks,
        on_device,
        noise,
        Source.PHASES,
        _sees(phase_frontier, on_device),
    )


def _sees(phase_frontier: Frontier, on_device: bool) -> frozenset[Cost]:
    """On a device, the phases are the host's, which waits for other things than the device does. Where waiting for
    collectives is part of the phases, only the input is told from it."""
    if on_device:
        return frozenset()
    known = phase_frontier.communication_known
    return frozenset(
        cost for cost in Cost if cost.value.in_phases and (known or class_of(cost, False) == Bottleneck.DATA)
    )

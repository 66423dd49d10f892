"""The ranks' summaries on the clocks of their devices: jobs of very many GPUs without a profiler window.

Each rank condensed its own steps by the events on its device (``collectors.device_times``). A step of the device has
the same phases as one of a CPU rank, and the time in which the training's stream was blocked in communication. How long
the device was idle is known from the driver's samples, as in ``account.device_clock``: what they lack beyond the
phases in which nothing is launched is placed where the host had not launched all of the work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from diag.account.policy import DEVICE_CLOCK
from diag.collectors.device_times import NOTHING_LAUNCHED
from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, DEVICE, FORWARD, LAG, OPTIMIZER, STEP, UNLAUNCHED
from diag.model import Gap
from diag.model.accounts import HostsWork, Idle
from diag.rundir.policy import RUN_READING
from diag.rundir.sharing import sharing_by
from diag.rundir.summaries import NS_PER_US, Summaries, together
from diag.words.formatting import rank_ranges

Shares = npt.NDArray[np.float64]


def on_devices(summaries: Summaries) -> Summaries | None:
    """The same steps by the devices' clocks; None where too little is known of them. Ranks without such a record are
    left out where they are few, and so are the steps that any other rank has no record of."""
    spent = summaries.column(DEVICE + STEP)
    if not spent.any() or summaries.waits_seen < DEVICE_CLOCK.nearly_all_waits_share:
        return None
    known = spent > 0
    least = DEVICE_CLOCK.least_known_steps_share
    ranks = np.flatnonzero(known.mean(axis=1) >= least)
    steps = np.flatnonzero(known[ranks].all(axis=0)) if len(ranks) else ranks
    few = RUN_READING.straggling_ranks_share * len(known)
    if len(known) - len(ranks) > few or len(steps) < least * known.shape[1]:
        return None
    lag = summaries.column(LAG)
    begin_us = summaries.begin_us + lag
    if len(ranks) == len(known) and len(steps) == known.shape[1]:
        return replace(summaries, clock=DEVICE, begin_us=begin_us, durations=())  # the waits are known
    kept = tuple(summaries.ranks[at] for at in ranks.tolist())
    gaps = list(summaries.gaps)
    if absent := sorted(set(summaries.ranks) - set(kept)):
        gaps.append(Gap(str(summaries.root), f"{rank_ranges(absent)} did not record times on the device; left out"))
    return replace(
        summaries,
        clock=DEVICE,
        ranks=kept,
        identities=tuple(summaries.identities[at] for at in ranks.tolist()),
        numbers=tuple(summaries.numbers[at] for at in steps.tolist()),
        begin_us=begin_us[np.ix_(ranks, steps)],
        durations=(),
        cells=summaries.cells[:, ranks[:, None], steps],
        utilization=summaries.utilization[ranks] if summaries.utilization is not None else None,
        missing=tuple(sorted({*summaries.missing, *absent})),
        gaps=tuple(gaps),
        memory={rank: of for rank, of in summaries.memory.items() if rank in kept},
    )


def idle_of(summaries: Summaries, places: list[int]) -> Idle | None:
    """In the steps at these places; None where the devices' utilization was not sampled or includes work of other
    processes, or the times are the hosts'."""
    identities = dict(zip(summaries.ranks, summaries.identities, strict=True))
    if summaries.clock != DEVICE or summaries.utilization is None or sharing_by(identities).not_alone:
        return None
    whole = summaries.sums(STEP, places)
    known = sum(summaries.sums(phase, places) for phase in NOTHING_LAUNCHED)
    unlaunched = summaries.column(UNLAUNCHED)[:, together(places)].astype(np.float64)
    room = unlaunched.sum(axis=1)
    idle = (1 - summaries.utilization) * whole - known
    idle = np.where(idle < DEVICE_CLOCK.error_of_driver_samples * whole, 0.0, idle)
    placed = np.minimum(idle, room)
    besides = (idle - placed) / max(1, len(places))
    # While its host launches the rest of a phase, a device works on what is there: about as long in every step.
    free = np.maximum(0.0, unlaunched - ((room - placed) / max(1, len(places)))[:, None])
    whole = free.sum(axis=1)
    late = free * np.divide(placed, whole, out=np.zeros_like(whole), where=whole > 0)[:, None] * NS_PER_US
    return Idle(late, np.broadcast_to(besides[:, None] * NS_PER_US, late.shape))


_OF_HOST = (DATA, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT)


def hosts_work(summaries: Summaries, places: list[int]) -> HostsWork | None:
    """In the steps at these places; None where the times are the hosts' only. A host that runs ahead of its device and
    needs nearly as long for a step holds the step up as soon as its device is faster."""
    if summaries.clock != DEVICE or not places:
        return None
    names = [name for name in _OF_HOST if summaries.has(name, clock="")]
    spent = sum((summaries.sums(name, places, clock="") for name in names), start=np.zeros(len(summaries.ranks)))
    longest = int(np.argmax(spent))
    of_host = {name: summaries.of_rank(name, longest, clock="")[places].astype(np.float64) for name in _OF_HOST}
    hidden = np.maximum(0.0, of_host[DATA] - summaries.of_rank(DATA, longest)[places])
    return HostsWork(sum(of_host.values(), start=np.zeros(len(places))) * NS_PER_US, hidden * NS_PER_US)

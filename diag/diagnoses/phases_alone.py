"""The account of a run of which only the phases of its steps are known, as from the ranks' summaries."""

from __future__ import annotations

import numpy as np

from diag.account.frontier import Frontier
from diag.model.accounts import HostsWork, Idle

from .phases import IdleByCause, PhaseAccount, phase_shares
from .shares import Noise


def phases_alone(
    phase_frontier: Frontier,
    on_device: bool,
    noise: Noise,
    idle: Idle | None = None,
    hosts: HostsWork | None = None,
) -> PhaseAccount:
    """The account of a run that has no other. ``idle``: of the devices, if known; of the frontier's ranks and steps."""
    shares = phase_shares(phase_frontier, on_device, noise, _by_cause(idle) if idle is not None else None)
    return PhaseAccount(phase_frontier, shares, alone=True, hosts=hosts)


def _by_cause(idle: Idle) -> IdleByCause:
    """The median rank instead of the least: the driver's samples are coarse, and the least of thousands is far off."""
    return IdleByCause(idle.late, np.median(idle.late, axis=0), np.median(idle.besides, axis=0))

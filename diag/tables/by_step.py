"""Collectives step by step: how long the ranks wait and transfer in each kind of them, not overlapped with compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.match import SEND_RECV
from diag.account.rank_steps import RankSteps
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.traces.kineto_names import P2P_OPS

from .collectives import axis_of, parts_of
from .passes import phased_calls

Series = npt.NDArray[np.float64]  # one value per counted step


class OfSteps(Struct, frozen=True):
    """Nanoseconds of each counted step, the mean over the ranks. ``transfer_ns``: the part of ``exposed_ns`` after the
    last rank's arrival; None where it is not known, or of groups along several axes of a mesh."""

    exposed_ns: Series
    transfer_ns: Series | None


def exposed_by_step(attribution: Attribution) -> dict[tuple[str, str], OfSteps]:
    """By operation and axis, as in the table of collectives."""
    numbers = np.array(sorted(attribution.counted.numbers), dtype=np.int64)
    every = RankSteps.of(attribution.rank_steps)
    ranks = max(1, len(every.of_steps(frozenset(numbers.tolist())))) / max(1, len(numbers))
    parts = parts_of(every, frozenset(numbers.tolist()))
    groups, names = parts.calls.groups, parts.calls.names
    kinds = sorted({*zip(parts.op.tolist(), parts.group.tolist(), strict=True)})
    axis = {kind: axis_of(names[kind[0]], groups[kind[1]].ranks, attribution.axes) for kind in kinds}
    found: dict[tuple[str, str], Series] = {}
    for op, group in kinds:
        own = (parts.op == op) & (parts.group == group)
        key = SEND_RECV if names[op] in P2P_OPS else names[op], axis[op, group]
        found[key] = found.get(key, 0.0) + _summed(numbers, parts.step[own], parts.exposed_ns[own]) / ranks
    moved = _transfers(attribution, numbers, ranks) if len({of_axis for _, of_axis in found}) == 1 else {}
    return {key: OfSteps(ns, np.minimum(moved[key[0]], ns) if key[0] in moved else None) for key, ns in found.items()}


def _transfers(attribution: Attribution, numbers: npt.NDArray[np.int64], ranks: float) -> dict[str, Series]:
    """By operation, where waiting is separated from transfer."""
    if bool((attribution.counted.parts.exposed_wait_ns == UNKNOWN).any()):
        return {}
    calls = phased_calls(attribution, numbers.tolist())
    found: dict[str, Series] = {}
    for code, name in enumerate(calls.names):
        own, key = calls.op == code, SEND_RECV if name in P2P_OPS else name
        if own.any():
            found[key] = found.get(key, 0.0) + _summed(numbers, calls.step[own], calls.exposed_ns[own]) / ranks
    return found


def _summed(numbers: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], ns: npt.NDArray[np.int64]) -> Series:
    """By step."""
    return np.bincount(np.searchsorted(numbers, steps), ns, len(numbers)).astype(np.float64)

"""The streams of one rank, each with a share of the byte budget of its own, so that none ends because another is large.

    full detail of the newest steps     steps, collectives, device_steps, durations
    and of those around incidents       kept
    each step's phases                  summary
    sums over 50, 1,000, 20,000 steps   sums
    windows and memory snapshots        files of their own; the oldest go

Each stream is written all the time. What is removed of one is therefore still in the next coarser one.
"""

from __future__ import annotations

from typing import NamedTuple

from .budget import Budget, Complaints, LineFile
from .layout import RankLayout
from .policy import RECORDING


class _Share(NamedTuple):
    """Of the byte budget: ``weight`` among those of all streams that the rank has."""

    weight: int
    parts: int = 2
    on_device: bool = False  # only ranks that compute on one have it


_WINDOWS = "windows"
# Of 64 MB, each rank keeps 1,000 steps of 100 collectives in full and the phases of a day of steps of a second, also
# right after the oldest part of a stream was removed: 13 MB of rows, or on a device 9.5 MB and 7 MB of its records;
# 6 MB of phases, or on a device 9.6 MB, and 0.8 MB of sums of durations. Measured: docs/benchmarks/long-runs.md.
_SHARES = {
    "steps": _Share(4, 3),
    "collectives": _Share(28, 4),
    "device_steps": _Share(20, 4, on_device=True),
    "durations": _Share(6, 2, on_device=True),
    "summary": _Share(28, 4),
    "sums_of_50": _Share(8, 3),
    "sums_of_1000": _Share(5),
    "sums_of_20000": _Share(1),
    "kept": _Share(7),
    "device": _Share(3, on_device=True),
    "host": _Share(3),
    "machine": _Share(1),
    "checkpoints": _Share(1),
    "numbers": _Share(1),
    _WINDOWS: _Share(12),
}


def budgets(byte_budget: int, on_device: bool) -> dict[str, Budget]:
    """The budget of each stream of a rank."""
    whole = sum(share.weight for share in _SHARES.values() if on_device or not share.on_device)
    return {name: Budget(byte_budget * share.weight // whole, share.parts) for name, share in _SHARES.items()}


class Streams:
    """The files of one rank's records."""

    def __init__(self, layout: RankLayout, byte_budget: int, on_device: bool, complaints: Complaints) -> None:
        budget_of = budgets(byte_budget, on_device)

        def stream(name: str) -> LineFile:
            return LineFile(getattr(layout, name), budget_of[name], complaints)

        self.windows = budget_of[_WINDOWS]  # of profiler windows and memory snapshots together
        self.steps, self.collectives, self.device_steps = stream("steps"), stream("collectives"), stream("device_steps")
        self.kept, self.most_kept_bytes = stream("kept"), int(RECORDING.kept_share * budget_of["kept"].limit)
        self.durations, self.summary = stream("durations"), stream("summary")
        self.sums = {50: stream("sums_of_50"), 1_000: stream("sums_of_1000"), 20_000: stream("sums_of_20000")}
        self.device, self.host, self.machine = stream("device"), stream("host"), stream("machine")
        self.checkpoints, self.numbers = stream("checkpoints"), stream("numbers")

    def begin_again(self) -> None:
        """For any thread, where the folder was removed: a file that is open would grow unseen."""
        for file in self._files():
            file.removed = True

    def close(self) -> None:
        for file in self._files():
            file.close()

    def _files(self) -> tuple[LineFile, ...]:
        return (
            self.steps, self.collectives, self.device_steps, self.durations, self.summary, *self.sums.values(),
            self.kept, self.device, self.host, self.machine, self.checkpoints, self.numbers,
        )  # fmt: skip

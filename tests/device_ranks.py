"""GPU traces of many ranks made of numbers: who comes last to each collective, and why, is known to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.account.kineto_builder import BASE_NS, KinetoBuilder, nccl_args

US, MS = 1_000, 1_000_000
Extra = Callable[[int, int], int]  # by collective and rank, nanoseconds


def nothing(call: int, rank: int) -> int:
    return 0


@dataclass(frozen=True)
class Ranks:
    """``steps`` (the first is warm-up where there are more than two), in all ``calls`` times ``work_ns`` of kernels and
    then an all-reduce that ends for everybody ``transfer_ns`` after the last rank came. ``host_ns``: how much later
    than its device ran dry a rank's host launches the kernel; ``more_ns``: how much longer its kernel takes;
    ``tail_ns``: how much later its part of the collective ends."""

    ranks: int = 8
    steps: int = 1
    calls: int = 40
    work_ns: int = 2 * MS
    transfer_ns: int = 600 * US
    elements: int = 16 << 20
    host_ns: Extra = nothing
    more_ns: Extra = nothing
    tail_ns: Extra = nothing
    off_ns: Callable[[int], int] = lambda rank: 0  # of the clock of the rank's host
    told: bool = True  # whether the kernels carry their arguments

    def write(self, folder: Path, recorded: Iterable[int] | None = None) -> list[list[int]]:
        """A file for each of the ``recorded`` ranks. What comes back is how long each rank waits in each call."""
        args = {**nccl_args("allreduce", self.elements), "Group size": self.ranks}
        args["Process Group Ranks"] = str(list(range(self.ranks)))
        built = [KinetoBuilder(rank, self.ranks, base_ns=BASE_NS + self.off_ns(rank)) for rank in range(self.ranks)]
        now = [MS] * self.ranks
        waited = []
        edges = [MS]
        for call in range(self.calls):
            for rank, own in enumerate(built):
                begin = now[rank] + 20 * US + self.host_ns(call, rank)
                now[rank] = begin + self.work_ns + self.more_ns(call, rank)
                own.op("aten::mm", begin - 5 * US, begin).kernel(begin, now[rank], launch=begin - 2 * US)
            done = max(now) + self.transfer_ns
            waited.append([max(now) - at for at in now])
            for rank, own in enumerate(built):
                end = done + self.tail_ns(call, rank)
                arguments = {**args, "Seq": call} if self.told else {}
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                own.kernel(now[rank], end, name, launch=now[rank] - MS, stream=20, **arguments)
                now[rank] = end
            if (call + 1) % (self.calls // self.steps) == 0:
                edges.append(max(now))
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.ranks) if recorded is None else recorded:
            built[rank].header["host_name"] = f"node-{rank}" if self.off_ns(rank) else "node-a"
            for step, (begin, end) in enumerate(pairwise(edges)):
                built[rank].step(step, begin, end, "ProfilerStep#")
            built[rank].write(folder, f"rank{rank}.json")
        return waited

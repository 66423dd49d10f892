"""A long training of one rank on a simulated clock, through the writer of the collectors."""

from __future__ import annotations

from pathlib import Path

from diag.collectors.calls import RecordedCall
from diag.collectors.files import Complaints, encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import MemoryRecord, PhaseRow, RankRecord, StepRecord
from diag.collectors.step_lines import StepLines, StepSummary, StepSums, TimerRecords
from diag.collectors.streams import Streams

S = 1_000_000_000
_PHASES = (("data", 0.02), ("forward", 0.31), ("backward", 0.58), ("optimizer", 0.06))


class LongRun:
    """``calls``: collectives in a step, half of them all-gathers and half reduce-scatters."""

    def __init__(
        self, folder: Path, byte_budget: int, calls: int, rank: int = 0, world: int = 2, step_ns: int = S
    ) -> None:
        self.folder, self._calls, self._step_ns, self._world = folder, calls, step_ns, world
        layout = RunLayout(folder)
        files, self.complaints = layout.rank(rank), Complaints(rank)
        self.identity = RankRecord(rank, rank, world, "node-a", 100 + rank, "boot", 1_000 * S, 0, "cpu")
        self._streams = Streams(files, byte_budget, False, self.complaints)
        summary = StepSummary(self._streams.summary, self.identity, 50, StepSums(self._streams.sums))
        self._lines = StepLines(self._streams.steps, self._streams.collectives, summary)
        self._step = 0
        replace_file(files.identity, encode(self.identity))
        if rank == 0:
            update_manifest(layout, run_id="long", world_size=world, backend="gloo", strategy="fsdp2", device="cpu")

    def train(self, steps: int, longer_ns: int = 0) -> None:
        for _ in range(steps):
            self._one(longer_ns)

    def close(self) -> None:
        self._lines.close(TimerRecords([], {}, 0))
        self._streams.close()

    def _one(self, longer_ns: int) -> None:
        step, took_ns = self._step, self._step_ns + longer_ns
        self._step += 1
        begin = getattr(self, "_end_ns", S)
        self._end_ns = begin + took_ns
        phases, at = [], begin
        for name, share in _PHASES:
            until = at + int(took_ns * share)
            phases.append(PhaseRow(name, at, until))
            at = until
        work_ns = took_ns * 9 // 10 // max(1, self._calls)
        calls = []
        for number in range(self._calls):
            start = begin + took_ns // 20 + number * work_ns
            op = "all_gather" if number < self._calls // 2 else "reduce_scatter"
            call = RecordedCall(
                step, "0", step * self._calls + number, op, 436_207_616, "bfloat16", start, False,
                end_ns=start + work_ns // 2, wait_start_ns=start + work_ns // 4, wait_end_ns=start + work_ns // 2,
            )  # fmt: skip
            calls.append(call)
        record = StepRecord(
            step, begin, self._end_ns, phases, tokens=8_192, loss=2.0 + 8.0 / (1 + step / 1000),
            memory=MemoryRecord(60_000_000_000), on_cpu_ns=took_ns // 2, queued_ns=12_345_678,
            cpu={name: (int(took_ns * share) // 2, 1_234_567) for name, share in _PHASES},
        )  # fmt: skip
        groups = {"0": list(range(self._world))} if step == 0 else {}
        self._lines.add(record, TimerRecords([(step, calls)], groups, 0))

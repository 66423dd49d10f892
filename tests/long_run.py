"""A long training of one rank on a simulated clock, through the writer of the collectors."""

from __future__ import annotations

from pathlib import Path
from random import Random

from diag.collectors.budget import Complaints
from diag.collectors.calls import RecordedCall
from diag.collectors.files import encode, replace_file
from diag.collectors.kept import KeptSteps
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import DeviceCall, DeviceStepRecord, MemoryRecord, PhaseRow, RankRecord, StepRecord
from diag.collectors.step_lines import StepLines, StepSummary, StepSums, TimerRecords
from diag.collectors.streams import Streams

S = 1_000_000_000
_PHASES = (("data", 0.02), ("forward", 0.31), ("backward", 0.58), ("optimizer", 0.06))


class LongRun:
    """``calls``: collectives in a step, half of them all-gathers and half reduce-scatters. ``chance``: durations vary
    as measured ones do; without it they are all alike. ``on_device``: as a rank with NCCL records, whose collectives
    are timed on the device alone."""

    def __init__(
        self,
        folder: Path,
        byte_budget: int,
        calls: int,
        rank: int = 0,
        world: int = 2,
        step_ns: int = S,
        first_step: int = 0,
        begin_ns: int = S,
        host: str = "node-a",
        chance: Random | None = None,
        on_device: bool = False,
    ) -> None:
        self._varied = chance.randrange if chance is not None else lambda _most: 0
        self.folder, self._calls, self._step_ns, self._world = folder, calls, step_ns, world
        layout = RunLayout(folder)
        files, self.complaints = layout.rank(rank), Complaints(rank)
        device = "a GPU" if on_device else "cpu"
        self.identity = RankRecord(rank, rank, world, host, 100 + rank, "boot", begin_ns, begin_ns, device)
        self._on_device = on_device
        self._streams = Streams(files, byte_budget, on_device, self.complaints)
        summary = StepSummary(self._streams.summary, self.identity, 50, StepSums(self._streams.sums))
        self._named = False
        self.kept = KeptSteps(
            files, self._streams.kept, self._streams.most_kept_bytes, layout.keep_asked, on_device, layout.is_restart
        )
        self._lines = StepLines(self._streams.steps, self._streams.collectives, summary, self.kept)
        self._step, self._end_ns = first_step, begin_ns
        replace_file(files.identity, encode(self.identity))
        if rank == 0:
            backend = "nccl" if on_device else "gloo"
            update_manifest(layout, run_id="long", world_size=world, backend=backend, strategy="fsdp2", device=device)

    def train(
        self, steps: int, longer_ns: int = 0, waited_ns: int = 0, saved_ns: int = 0, last: str = "checkpoint"
    ) -> None:
        """``longer_ns``: each step takes longer by so much, in its forward; ``waited_ns`` of it the rank waits for
        others, in the last collective of its backward. ``saved_ns``: and then it saves a checkpoint, or is in the phase
        ``last``."""
        for _ in range(steps):
            self._one(longer_ns, waited_ns, saved_ns, last)

    def close(self) -> None:
        self._lines.close(TimerRecords([], {}, 0))
        self._streams.close()

    @property
    def end_ns(self) -> int:
        """Of the last step, on the rank's clock."""
        return self._end_ns

    def pause(self, ns: int) -> None:
        """Time that passes between two steps."""
        self._end_ns += ns

    def _one(self, longer_ns: int, waited_ns: int, saved_ns: int, last: str) -> None:
        varied = self._varied
        step, took_ns = self._step, self._step_ns + varied(1 + self._step_ns // 50)
        self._step += 1
        begin = self._end_ns
        self._end_ns = begin + took_ns + longer_ns + saved_ns
        longer = {"forward": longer_ns - waited_ns, "backward": waited_ns}
        phases, at = [], begin
        for name, share in _PHASES:
            until = at + int(took_ns * share) + longer.get(name, 0) - varied(1 + took_ns // 500)
            phases.append(PhaseRow(name, at, until))
            at = until
        if saved_ns:
            phases.append(PhaseRow(last, self._end_ns - saved_ns, self._end_ns))
        work_ns = took_ns * 9 // 10 // max(1, self._calls)
        calls: list[RecordedCall] = []
        on_device: list[DeviceCall] = []
        for number in range(self._calls):
            op = "all_gather" if number < self._calls // 2 else "reduce_scatter"
            start = begin + took_ns // 20 + number * work_ns + varied(1 + work_ns // 8)
            if number >= self._calls // 2:
                start += longer["forward"]
            end = start + work_ns // 2 + varied(1 + work_ns // 4) + (waited_ns if number == self._calls - 1 else 0)
            waited_from = start + work_ns // 4 + varied(1 + work_ns // 8)
            call = RecordedCall(
                step, "0", step * self._calls + number, op, 436_207_616, "bfloat16", start, self._on_device
            )
            if self._on_device:
                at = (of_call - begin for of_call in (start, end, waited_from, end))
                on_device.append(DeviceCall("0", call.seq, *at, own_stream=True))
            else:
                call.end_ns, call.wait_start_ns, call.wait_end_ns = end, waited_from, end
            calls.append(call)
        record = StepRecord(
            step, begin, self._end_ns, phases, tokens=8_192, loss=2.0 + 8.0 / (1 + step / 1000),
            memory=MemoryRecord(60_000_000_000), on_cpu_ns=took_ns // 2, queued_ns=12_345_678 + varied(10**6),
            cpu={name: (int(took_ns * share) // 2, 1_234_567) for name, share in _PHASES},
        )  # fmt: skip
        groups = {"0": list(range(self._world))} if not self._named else {}
        self._named = True
        if self._on_device:
            since = [PhaseRow(name, start - begin, end - begin) for name, start, end in phases]
            passed = DeviceStepRecord(step, self._end_ns - begin, since, on_device)
            self._streams.device_steps.write(passed)
            self._lines.passed(passed)
        self._lines.add(record, TimerRecords([(step, calls)], groups, 0))
        if step % 10 == 0:  # as the thread of the heartbeats does
            self.kept.look()

"""Two GPU ranks made of kernels, with a planted fault, as a plain folder of traces and as a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.api import open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    WINDOW_ACTIVE,
    CollectiveLine,
    CollectiveRow,
    DeviceCall,
    DeviceStepRecord,
    Manifest,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.steps import Bottleneck, Severity
from diag.tables.rank_means import rank_means
from diag.words.formatting import duration
from tests.account.kineto_builder import BASE_NS, KinetoBuilder, nccl_args
from tests.copies import replace

MS = 1_000_000
COMPUTE, TRANSFER, DATA = 80 * MS, 3 * MS, MS
LOSS = MS // 5  # a small all-reduce, right after the large one, so that everybody enters it together
STEPS = 6
GB = 1 << 30


def trace_of(
    rank: int,
    compute: tuple[int, int],
    data: tuple[int, int],
    transfer: int,
    base_ns: int,
    first_step: int = 0,
    with_loss: bool = True,
) -> tuple[KinetoBuilder, list[tuple[int, int]]]:
    """One rank's trace, and its steps' edges. A step: wait for data, launch, compute, all-reduce gradients and loss."""
    built = KinetoBuilder(rank=rank, base_ns=base_ns)
    now, edges = 10 * MS, []
    arrival = max(c + d for c, d in zip(compute, data, strict=True))
    for step in range(first_step, first_step + STEPS):
        reduced = now + arrival + transfer
        end = reduced + (LOSS if with_loss else 0)
        built.step(step, now, end)
        built.range("diag.data", now, now + data[rank])
        begin = now + data[rank]
        built.op("aten::mm", begin, begin + 40_000)
        launch = begin + 1_000
        built.kernel(begin, begin + compute[rank], launch=launch)
        for seq, (start, done, elems) in enumerate(((begin + compute[rank], reduced, 25_000_000), (reduced, end, 1))):
            if done > start:
                built.kernel(
                    start,
                    done,
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                    launch=launch + 10_000 * (seq + 1),
                    stream=20,
                    **nccl_args("allreduce", elems, seq=2 * step + seq),
                )
        edges.append((now, end))
        now = end
    return built, edges


def write_traces(
    folder: Path,
    compute: tuple[int, int],
    data: tuple[int, int],
    transfer: int,
    off: int = 0,
    with_loss: bool = True,
    world_size: int = 2,
) -> Path:
    for rank in (0, 1):
        built, _ = trace_of(rank, compute, data, transfer, BASE_NS + (off if rank else 0), with_loss=with_loss)
        built.header["host_name"] = f"node-{rank}" if off else "node-a"
        built.header["distributedInfo"]["world_size"] = world_size
        built.write(folder, f"rank{rank}.json", compress=rank == 1)
    return folder


@pytest.mark.parametrize("off", [0, 50 * MS])
@pytest.mark.parametrize(
    ("compute", "data", "transfer", "bottleneck", "culprits"),
    [
        ((COMPUTE, COMPUTE), (DATA, DATA), TRANSFER, Bottleneck.COMPUTE, ()),
        ((COMPUTE, COMPUTE + 50 * MS), (DATA, DATA), TRANSFER, Bottleneck.COMPUTE, (1,)),
        ((COMPUTE, COMPUTE), (60 * MS, DATA), TRANSFER, Bottleneck.DATA, (0,)),
        ((COMPUTE, COMPUTE), (60 * MS, 60 * MS), TRANSFER, Bottleneck.DATA, ()),
        ((COMPUTE, COMPUTE), (DATA, DATA), 60 * MS, Bottleneck.COMMUNICATION, ()),
    ],
    ids=["healthy", "straggler", "slow loader on one", "slow loader on both", "slow wire"],
)
def test_planted_faults_on_gpus(
    tmp_path: Path,
    off: int,
    compute: tuple[int, int],
    data: tuple[int, int],
    transfer: int,
    bottleneck: Bottleneck,
    culprits: tuple[int, ...],
) -> None:
    result = open_run(write_traces(tmp_path, compute, data, transfer, off))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.culprit_ranks) == (bottleneck, culprits)
    assert (verdict.severity == Severity.HEALTHY) == (bottleneck == Bottleneck.COMPUTE and not culprits)
    assert not result.coverage.incomplete
    late = max(c + d for c, d in zip(compute, data, strict=True))
    for step in result.attribution.steps[1:]:
        for parts, own in zip(step.parts, zip(compute, data, strict=True), strict=True):
            assert parts.exposed_wait_ns == pytest.approx(late - sum(own), abs=2 * LOSS)


def test_a_rank_that_is_always_late_is_told_from_a_clock_that_is_off(tmp_path: Path) -> None:
    """Nothing but the one collective in which rank 1 is late ties the clocks, and the bounds leave 50 ms open. But its
    kernels end together: whose is the shorter one came later."""
    straggling = (COMPUTE, COMPUTE + 50 * MS)
    result = open_run(write_traces(tmp_path, straggling, (DATA, DATA), TRANSFER, off=50 * MS, with_loss=False))
    assert result.coverage.clock_uncertainty_ns == 0
    for step in result.attribution.steps[1:]:
        assert [parts.exposed_wait_ns for parts in step.parts] == [50 * MS, 0]
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (1,))


def test_a_rank_that_shares_no_collective_is_kept_and_said(tmp_path: Path) -> None:
    write_traces(tmp_path, (COMPUTE, COMPUTE + 50 * MS), (DATA, DATA), TRANSFER, world_size=3)
    alone = KinetoBuilder(rank=2, world_size=3)
    alone.header["host_name"] = "node-b"
    for step in range(STEPS):
        begin = 5 * MS + step * 90 * MS
        alone.step(step, begin, begin + 90 * MS).kernel(begin + 2_000, begin + 89 * MS, launch=begin + 1_000)
    alone.write(tmp_path, "rank2.json")
    result = open_run(tmp_path)
    assert result.coverage.ranks_used == (0, 1, 2)
    assert result.verdict.culprit_ranks == (1,)
    assert any("rank 2" in reason for reason in map(str, result.coverage.not_looked))
    for step in result.attribution.steps:
        assert [parts.exposed_wait_ns is None for parts in step.parts] == [False, False, True]


def test_traces_without_anything_in_common_are_each_accounted_for(tmp_path: Path) -> None:
    for rank, length in ((0, 40), (1, 60)):
        built = KinetoBuilder(rank=rank)
        built.header["host_name"] = f"node-{rank}"
        for step in range(4):
            begin = 5 * MS + step * length * MS
            built.step(step, begin, begin + length * MS)
            built.kernel(begin + 2_000, begin + (length - 1) * MS, launch=begin + 1_000)
        built.write(tmp_path, f"rank{rank}.json")
    result = open_run(tmp_path)
    assert result.coverage.ranks_used == (0, 1)
    assert result.verdict.confidence <= 0.6
    assert {round(step.dur_ns / MS) for step in result.attribution.usable} == {60}, "the slowest is the path"


def test_without_the_other_rank_waiting_is_not_told_from_transfer(tmp_path: Path) -> None:
    write_traces(tmp_path, (COMPUTE, COMPUTE + 50 * MS), (DATA, DATA), TRANSFER)
    (tmp_path / "rank1.json.gz").unlink()
    result = open_run(tmp_path)
    assert result.coverage.ranks_missing == (1,)
    assert result.verdict.culprit_ranks == ()
    assert result.verdict.confidence <= 0.5
    assert all(parts.exposed_wait_ns is None for step in result.attribution.steps for parts in step.parts)


def run_directory(folder: Path, compute: tuple[int, int], traced: bool) -> RunLayout:
    """The same ranks as ``diag run`` would leave them: host records of every step, and a window in the middle."""
    layout = RunLayout(folder)
    replace_file(layout.manifest, encode(Manifest("gpu", 0, world_size=2, backend="nccl", strategy="ddp")))
    for rank in (0, 1):
        files = layout.rank(rank)
        boot_ns = 7_000_000_000  # the monotonic clock at the trace's zero
        identity = RankRecord(rank, rank, 2, "node-a", 1 + rank, "boot", boot_ns, BASE_NS, "Test GPU", rank)
        replace_file(files.identity, encode(identity))
        built, edges = trace_of(rank, compute, (DATA, DATA), TRANSFER, BASE_NS, first_step=10)
        length = edges[0][1] - edges[0][0]
        records = []
        for step in range(20):
            begin = boot_ns + edges[0][0] + (step - 10) * length
            memory = MemoryRecord(10**9, allocated=60 * GB, reserved=70 * GB, alloc_retries=0, ooms=0, capacity=80 * GB)
            # The host has launched everything after a millisecond, and waits for nothing.
            phases = [PhaseRow("data", begin, begin + DATA), PhaseRow("forward", begin + DATA, begin + 2 * DATA)]
            records.append(StepRecord(step, begin, begin + length, phases, memory=memory))
        files.steps.write_bytes(b"".join(encode(record) for record in records))
        files.collectives.write_bytes(encode(CollectiveLine(0, [], {"0": [0, 1]})))
        if traced:
            built.write(files.folder, files.trace(10).name.removesuffix(".gz"), compress=True)
    return layout


def test_a_run_directory_of_gpus_rests_on_its_window(tmp_path: Path) -> None:
    layout = run_directory(tmp_path, (COMPUTE + 50 * MS, COMPUTE), traced=True)
    result = open_run(layout.root)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (0,))
    assert [step.step for step in result.attribution.usable] == list(range(10, 10 + STEPS))
    assert {parts.source for step in result.attribution.steps for parts in step.parts} == {"trace"}
    assert "memory pressure" in result.examination.not_found


def test_without_a_window_the_verdict_on_gpus_is_undetermined(tmp_path: Path) -> None:
    result = open_run(run_directory(tmp_path, (COMPUTE + 50 * MS, COMPUTE), traced=False).root)
    assert result.verdict.bottleneck == Bottleneck.UNDETERMINED
    assert result.verdict.culprit_ranks == ()
    assert "profiler window" in result.verdict.headline
    assert any("exposed communication" in reason for reason in map(str, result.coverage.not_looked))


def with_device_clock(layout: RunLayout, step_ns: int, blocked_ns: Sequence[int]) -> None:
    """40 steps of each rank by events, in which it waits so long for an all-reduce; eight of them in the window."""
    for rank, blocked in enumerate(blocked_ns):
        files = layout.rank(rank)
        lines, device_steps, steps = [], [], []
        for number in range(40):
            begin = 7_000_000_000 + number * step_ns
            row = CollectiveRow("0", number, "all_reduce", 10**8, "float32", begin, None, None, None)
            lines.append(CollectiveLine(number, [row], {"0": [0, 1]}))
            call = DeviceCall("0", number, step_ns - DATA - blocked, step_ns - DATA)
            device_steps.append(DeviceStepRecord(number, step_ns, [PhaseRow("data", 0, DATA)], [call]))
            window = WINDOW_ACTIVE if 10 <= number < 10 + STEPS else ""
            phases = [PhaseRow("data", begin, begin + DATA)]
            steps.append(StepRecord(number, begin, begin + step_ns, phases, window, tokens=1000))
        files.steps.write_bytes(b"".join(map(encode, steps)))
        files.device_steps.write_bytes(b"".join(map(encode, device_steps)))
        files.collectives.write_bytes(b"".join(map(encode, lines)))


@pytest.mark.parametrize(("waited", "doubted"), [(TRANSFER, False), (40 * MS, True)])
def test_a_window_that_is_unlike_the_other_steps_is_doubted(tmp_path: Path, waited: int, doubted: bool) -> None:
    """Events on the devices say how long the others waited for their all-reduce."""
    layout = run_directory(tmp_path, (COMPUTE, COMPUTE), traced=True)
    with_device_clock(layout, 100 * MS, (waited, waited))
    result = open_run(layout.root)
    said = [note for note in result.coverage.notes if "in profiler windows, and" in note]
    assert bool(said) == doubted
    if doubted:
        assert said == [
            "two measurements of the run disagree: communication with its waiting is 4% of the steps in profiler "
            "windows, and 40% of 32 others"
        ]
        assert result.verdict.confidence <= 0.6


def test_what_the_profiler_adds_to_a_step_is_said(tmp_path: Path) -> None:
    layout = run_directory(tmp_path, (COMPUTE, COMPUTE), traced=True)
    traced_ns = int(open_run(layout.root).attribution.counted.dur_ns.mean())
    with_device_clock(layout, traced_ns // 2, (TRANSFER, TRANSFER))
    said = [note for note in open_run(layout.root).coverage.notes if "the profiler makes a step longer" in note]
    assert len(said) == 1
    assert f"{duration(traced_ns)} with it, {duration(traced_ns // 2)} in" in said[0]
    with_device_clock(layout, traced_ns, (TRANSFER, TRANSFER))
    assert not [note for note in open_run(layout.root).coverage.notes if "the profiler makes" in note]


def test_idle_time_that_the_profiler_brings_is_doubted(tmp_path: Path) -> None:
    """A host that is late in profiled steps alone: without the profiler a step takes what its kernels take."""
    for rank in (0, 1):
        built, now = KinetoBuilder(rank=rank, world_size=2), BASE_NS + 10 * MS
        for step in range(10, 10 + STEPS):
            begin = now
            for _ in range(8):
                built.op("aten::mm", now, now + 10 * MS).kernel(now + 9 * MS, now + 10 * MS, launch=now + 9 * MS - 10)
                now += 10 * MS
            built.step(step, begin, now)
        layout = run_directory(tmp_path, (COMPUTE, COMPUTE), traced=False)
        built.write(layout.rank(rank).folder, layout.rank(rank).trace(10).name.removesuffix(".gz"), compress=True)
    with_device_clock(layout, 80 * MS, (0, 0))
    sure = open_run(layout.root)
    assert sure.verdict.bottleneck == Bottleneck.HOST, sure.verdict.headline
    with_device_clock(layout, 12 * MS, (0, 0))
    result = open_run(layout.root)
    doubts = [note for note in result.coverage.notes if "the device waits for its host in" in note]
    assert len(doubts) == 1, result.coverage.notes
    assert result.verdict.confidence <= 0.6 < sure.verdict.confidence


def test_a_window_of_one_rank_alone_does_not_decide(tmp_path: Path) -> None:
    """The trace of rank 0 was lost: how long it waits is known from its events, as for rank 1."""
    layout = run_directory(tmp_path, (COMPUTE, COMPUTE), traced=True)
    with_device_clock(layout, 100 * MS, (60 * MS, 2 * MS))
    for path in layout.rank(0).folder.glob("trace*"):
        path.unlink()
    result = open_run(layout.root)
    assert result.attribution.by_events
    assert result.verdict.culprit_ranks == (1,), result.verdict.headline
    assert set(rank_means(result.attribution, ["dur_ns"])) == {0, 1}


def test_memory_that_is_nearly_full_is_said(tmp_path: Path) -> None:
    layout = run_directory(tmp_path, (COMPUTE, COMPUTE), traced=True)
    path = layout.rank(1).steps
    full = MemoryRecord(10**9, allocated=70 * GB, reserved=77 * GB, alloc_retries=0, ooms=0, capacity=80 * GB)
    lines = [StepRecord(n, 10**9 * n, 10**9 * n + 5, [], memory=full) for n in range(2)]
    path.write_bytes(path.read_bytes() + b"".join(encode(replace(line, step=90 + line.step)) for line in lines))
    findings = {f.id: f for f in open_run(layout.root).examination.findings}
    assert findings["near-out-of-memory"].ranks == (1,)


def test_steps_that_compile_are_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        built, edges = trace_of(rank, (COMPUTE, COMPUTE), (DATA, DATA), TRANSFER, BASE_NS)
        if rank:
            begin = edges[3][0]
            built.op("entire_frame_compile (dynamo_timed)", begin + MS, begin + 20 * MS)
        built.write(tmp_path, f"rank{rank}.json")
    steps = {step.step: step for step in open_run(tmp_path).attribution.steps}
    assert (steps[3].usable, steps[3].note) == (False, "torch.compile was compiling")
    assert steps[4].usable


def test_ranks_that_reduce_tensors_of_different_sizes(tmp_path: Path) -> None:
    write_traces(tmp_path, (COMPUTE, COMPUTE), (DATA, DATA), TRANSFER)
    assert "mismatched collectives" in open_run(tmp_path).examination.not_found
    path = tmp_path / "rank0.json"
    path.write_text(path.read_text().replace("25000000", "12500000", 2))  # what it sends and receives, once
    findings = {finding.id: finding for finding in open_run(tmp_path).examination.findings}
    assert findings["mismatched-collectives"].ranks == (0, 1), "one against one: either may be wrong"
    assert [(e.value, e.unit) for e in findings["mismatched-collectives"].evidence] == [
        (1, "collectives"), (50e6, "bytes"), (100e6, "bytes"),
    ]  # fmt: skip

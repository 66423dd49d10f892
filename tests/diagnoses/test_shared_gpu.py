"""Ranks that share a GPU: what they do to each other is blamed on no rank, link or program; what their hosts do is."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import Result, analyze, open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    BACKWARD,
    FORWARD,
    CollectiveRow,
    DeviceCall,
    DeviceRecord,
    DeviceStepRecord,
    MachineRecord,
    Manifest,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.diagnoses.costs import Cost
from diag.diagnoses.shares import step_parts
from diag.gate.budgets import EXPOSED_COMM
from diag.gate.check import Unknown, measure
from diag.model.steps import Bottleneck, Severity
from diag.rundir.columns import Rows
from diag.rundir.tables import RankTables, Tables
from diag.words import sentences
from diag.words.formatting import counted
from tests.account.kineto_builder import BASE_NS, KinetoBuilder, nccl_args

MS = 1_000_000
ONE, EACH = ("x", "x"), ("x", "y")  # ids of the ranks' GPUs


def with_late_results(folder: Path, ids: tuple[str, str]) -> Path:
    """Both ranks compute for 60 ms; an all-reduce takes 5 ms on rank 1, and 25 on rank 0."""
    layout = RunLayout(folder)
    replace_file(layout.manifest, encode(Manifest("gpu", 0, world_size=2, backend="nccl", strategy="ddp")))
    for rank in (0, 1):
        files = layout.rank(rank)
        identity = RankRecord(
            rank, rank, 2, "node-a", 1 + rank, "boot", 7_000_000_000, BASE_NS, "Test GPU", 0, device_uuid=ids[rank]
        )
        replace_file(files.identity, encode(identity))
        files.steps.write_bytes(b"")
        built, now = KinetoBuilder(rank=rank), 10 * MS
        for step in range(10, 16):
            reduced, end = now + (65 if rank else 85) * MS, now + 86 * MS
            built.step(step, now, end)
            built.op("aten::mm", now, now + 40_000)
            built.kernel(now + 2_000, now + 60 * MS, launch=now + 1_000)
            for seq, (start, done, elems) in enumerate(((now + 60 * MS, reduced, 25_000_000), (reduced, end, 1))):
                built.kernel(
                    start,
                    done,
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                    launch=now + 10_000 * (seq + 1),
                    stream=20,
                    **nccl_args("allreduce", elems, seq=2 * step + seq),
                )
            now = end
        built.write(files.folder, files.trace(10).name.removesuffix(".gz"), compress=True)
    return folder


def test_turns_on_one_gpu_are_no_slow_link(tmp_path: Path) -> None:
    own = open_run(with_late_results(tmp_path / "own", EACH))
    assert (own.verdict.cause, own.verdict.culprit_ranks) == ("slow-link", (0,))
    assert "the link of rank 1 is faster" in own.examination.findings[0].action
    result = open_run(with_late_results(tmp_path / "one", ONE))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (Bottleneck.UNDETERMINED, "shared-gpu", ())
    assert verdict.headline.startswith("Undetermined: ranks 0, 1 share one GPU: 26 ms a step of communication")
    assert not any(finding.ranks for finding in result.examination.findings)


def test_what_is_open_is_not_ruled_out_and_not_predicted(tmp_path: Path) -> None:
    result = open_run(with_late_results(tmp_path, ONE))
    open_now = {item.question: item.reason for item in result.coverage.not_looked}
    assert open_now["exposed communication"] == open_now["stragglers"] == "ranks 0, 1 share one GPU"
    assert result.recommendation.refused
    assert isinstance(measure(EXPOSED_COMM, result), Unknown)
    shares = result.examination.shares
    assert sum(step_parts(shares).values()) == pytest.approx(shares.dur_ns)
    assert shares.cost(Cost.COMM).sum() == 0 < shares.cost(Cost.SHARING).sum()


# -- without a profiler window -----------------------------------------------------------------------------------------

STEP, STEPS = 100 * MS, 12


def rank_of(
    rank: int,
    arrives_ms: int,
    busy: int = 100,
    asleep: str = "",
    uuid: str = "",
    machine: tuple[MachineRecord, ...] = (),
    world: int = 2,
) -> RankTables:
    """A step of 100 ms with one all-reduce that ends for all ranks at 90. ``asleep``: where its host is blocked until
    the rank arrives; else it launches everything in 10 ms, and waits in the backward."""
    steps, on_device, rows = [], [], []
    for number in range(STEPS):
        begin = STEP * (number + 1)
        forward = arrives_ms - 5 if asleep == FORWARD else 5
        host = [PhaseRow(FORWARD, begin, begin + forward * MS), PhaseRow(BACKWARD, begin + forward * MS, begin + STEP)]
        used = {FORWARD: (5 * MS, 0), BACKWARD: (5 * MS, 0)}
        steps.append(StepRecord(number, begin, begin + STEP, host, on_cpu_ns=10 * MS, queued_ns=0, cpu=used))
        phases = [PhaseRow(FORWARD, 0, max(40, forward) * MS), PhaseRow(BACKWARD, max(40, forward) * MS, STEP)]
        call = DeviceCall("0", number, arrives_ms * MS, 90 * MS, arrives_ms * MS, 90 * MS)
        on_device.append(DeviceStepRecord(number, STEP, phases, [call]))
        at = begin + arrives_ms * MS if asleep else begin + 9 * MS
        rows.append(CollectiveRow("0", number, "all_reduce", 1 << 20, "float32", at, None, None, None))
    return RankTables(
        rank,
        identity=RankRecord(
            rank, rank, world, "a", 1 + rank, "boot", 0, 0, "NVIDIA H100", 0, pid_namespace="p", device_uuid=uuid
        ),
        steps=tuple(steps),
        rows=Rows.of(rows, range(STEPS)),
        groups={"0": list(range(world))},
        device=tuple(DeviceRecord(step.end_ns - 1, utilization_percent=busy) for step in steps),
        device_steps=tuple(on_device),
        machine=machine,
    )


def analysed(*ranks: RankTables) -> Result:
    return analyze(Tables(Path(), None, len(ranks), {own.rank: own for own in ranks}, ()))


def test_a_rank_that_computes_longer_on_one_gpu_is_not_named() -> None:
    own = analysed(rank_of(0, 40, uuid="x"), rank_of(1, 85, uuid="y"))
    assert (own.verdict.cause, own.verdict.culprit_ranks) == ("compute-straggler", (1,))
    result = analysed(rank_of(0, 40, uuid="x"), rank_of(1, 85, uuid="x"))
    assert (result.verdict.bottleneck, result.verdict.culprit_ranks) == (Bottleneck.UNDETERMINED, ())


def test_the_driver_s_count_tells_old_runs_that_share_a_gpu() -> None:
    machine = (MachineRecord(1, {"gpu.GPU-1.processes": 2, "gpu.GPU-2.processes": 0}),)
    result = analysed(rank_of(0, 40, machine=machine), rank_of(1, 85))
    (finding,) = [found for found in result.examination.findings if found.id == "shared-gpu"]
    assert result.verdict.cause == finding.id
    assert finding.confidence < 0.95
    assert [item.value for item in finding.evidence if item.unit in ("ranks", "processes")] == [2, 2]
    assert len(result.evidence(finding)) == 2


def test_a_host_that_sleeps_while_the_other_rank_s_kernels_run_is_found() -> None:
    """The driver says that the GPU is always busy, with the kernels of rank 0, which wait for rank 1."""
    result = analysed(rank_of(0, 40, uuid="x"), rank_of(1, 85, asleep=FORWARD, uuid="x"))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (Bottleneck.HOST, "stalled-rank", (1,))
    assert "blocked in or before forward: 45 ms a step" in verdict.headline  # no loader is recorded
    assert "shared-gpu" in {finding.id for finding in result.examination.findings}


def test_a_host_that_waits_in_the_backward_does_not_sleep() -> None:
    """Both hosts wait there for the device, rank 1 as long as rank 0: that its device is late is not its doing."""
    result = analysed(rank_of(0, 40, uuid="x"), rank_of(1, 85, uuid="x"))
    assert result.examination.scheduling.ranks[1].blocked_ns.mean() == 90 * MS
    assert result.examination.shares.cost(Cost.STALL).sum() == 0


@pytest.mark.parametrize(("ids", "known"), [(EACH, True), (ONE, False)])
def test_the_driver_s_utilization_is_that_of_all_ranks(ids: tuple[str, str], known: bool) -> None:
    """What it lacks is idle time of each of them; that it lacks nothing says nothing of one."""
    idle = analysed(rank_of(0, 85, busy=40, uuid=ids[0]), rank_of(1, 85, busy=40, uuid=ids[1]))
    assert idle.attribution.idle_known == known
    assert idle.verdict.bottleneck == Bottleneck.HOST
    assert idle.verdict.confidence <= (1.0 if known else 0.6)
    busy = analysed(rank_of(0, 88, uuid=ids[0]), rank_of(1, 88, uuid=ids[1]))
    assert (busy.verdict.severity == Severity.HEALTHY) == known
    assert (busy.verdict.bottleneck == Bottleneck.UNDETERMINED) == (not known)


def test_a_rank_with_a_gpu_of_its_own_is_still_blamed() -> None:
    ids = ("x", "x", "y")
    late = [rank_of(rank, 85 if rank == 2 else 40, uuid=ids[rank], world=3) for rank in range(3)]
    assert (analysed(*late).verdict.cause, analysed(*late).verdict.culprit_ranks) == ("compute-straggler", (2,))
    turns = [rank_of(rank, 40 if rank == 2 else 85, uuid=ids[rank], world=3) for rank in range(3)]
    assert (analysed(*turns).verdict.cause, analysed(*turns).verdict.culprit_ranks) == ("shared-gpu", ())


def test_a_process_of_another_job_is_a_note_and_a_warning_where_its_rank_is_late() -> None:
    machine = (MachineRecord(1, {"gpu.GPU-x.processes": 1, "gpu.GPU-y.processes": 4}),)
    late = analysed(rank_of(0, 40, uuid="x", machine=machine), rank_of(1, 85, uuid="y"))
    (finding,) = [found for found in late.examination.findings if found.id == "other-processes-on-gpu"]
    assert finding.title == sentences.OTHERS_USE_THE_GPU(
        1, ranks="rank 1", processes=f"at least {counted(2, 'process', 'processes')}"
    )
    assert finding.severity == Severity.WARN
    assert "start there" in finding.action
    assert late.verdict.culprit_ranks == (1,)
    alike = analysed(rank_of(0, 88, uuid="x", machine=machine), rank_of(1, 88, uuid="y"))
    (finding,) = [found for found in alike.examination.findings if found.id == "other-processes-on-gpu"]
    assert finding.severity == Severity.HEALTHY


def test_contexts_that_ranks_left_on_the_first_gpu_are_said_with_care() -> None:
    machine = (MachineRecord(1, {"gpu.GPU-x.processes": 2, "gpu.GPU-y.processes": 1}),)
    result = analysed(rank_of(0, 88, uuid="x", machine=machine), rank_of(1, 88, uuid="y"))
    (finding,) = [found for found in result.examination.findings if found.id == "other-processes-on-gpu"]
    assert finding.title == sentences.CONTEXTS_ON_THE_GPU(1, ranks="rank 0", processes=counted(1, "process"))
    assert (finding.severity, finding.confidence) == (Severity.HEALTHY, 0.5)
    assert "map_location" in finding.action
    assert result.attribution.idle_known
    assert "shared GPUs" not in result.examination.not_found


def test_each_rank_on_a_gpu_of_its_own_is_looked_for_and_not_found() -> None:
    assert "shared GPUs" in analysed(rank_of(0, 88, uuid="x"), rank_of(1, 88, uuid="y")).examination.not_found
    unknown = analysed(rank_of(0, 88), rank_of(1, 88)).coverage.not_looked
    assert "which GPU each rank uses was not recorded" in {item.reason for item in unknown}

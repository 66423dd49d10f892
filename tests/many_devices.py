"""Jobs of thousands of GPUs made of numbers, as their ranks' summaries have them; what is planted in them is known.

Hosts run ahead and launch; devices run what was launched. In each step a rank waits for its loader, its device computes
forward and backward, meets all others at the end of both, and runs the optimizer; in some steps it saves a checkpoint.
A host that reads the loss waits for the end of its step on the device, another for the end of the step before. Every
edge of a phase is an event: when the host recorded it, and when the device passed it.
"""

from __future__ import annotations

import os
import zlib
from array import array
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diag.collectors.block_sums import chosen
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import (
    BACKWARD,
    BEGIN,
    CALLS_OF_A_SUM,
    CHECKPOINT,
    DATA,
    DEVICE,
    FORWARD,
    LAG,
    OPTIMIZER,
    REST,
    STEP,
    STILL,
    UNLAUNCHED,
    BlockSums,
    CollectiveRow,
    DeviceCall,
    DeviceStepRecord,
    Heartbeat,
    Manifest,
    PhaseRow,
    RankRecord,
    StepRecord,
    SummaryLine,
)
from diag.collectors.step_lines import packed
from diag.rundir.block_sums import BlocksRead
from diag.rundir.summaries import Summaries

US = 1_000  # nanoseconds
PHASES = (DATA, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT)
_MEETINGS = (FORWARD, BACKWARD)

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Devices:
    """Microseconds. ``slow``: by rank, how many times as long its kernels take; ``loading``: by rank, how much longer
    its loader takes than ``loader_us``, of which ``loading_steps`` of the steps have it; ``launching``: by rank, how
    much longer its host launches each phase; ``saving``: by rank, how long a checkpoint takes, every ``saved_every``
    steps. What is for all ranks has the key -1."""

    ranks: int
    steps: int = 100
    forward_us: float = 60_000
    backward_us: float = 120_000
    optimizer_us: float = 8_000
    launch_us: float = 20_000  # of forward and backward
    loader_us: float = 1_000
    transfer_us: float = 3_000  # exposed, in forward and in backward
    units: int = 2  # of the model: the ranks meet after the forward and the backward of each
    jitter: float = 0.003  # of kernels, by step and rank
    spread: float = 0.003  # of kernels, by rank
    slow: dict[int, float] = field(default_factory=dict)
    loading: dict[int, float] = field(default_factory=dict)
    loading_steps: float = 1.0
    launching: dict[int, float] = field(default_factory=dict)
    saving: dict[int, float] = field(default_factory=dict)
    saved_every: int = 10
    reads_loss: bool = True
    sampled: bool = True  # the driver's utilization
    waits_seen: float = 1.0  # part of the calls whose wait an event saw
    timed: bool = False  # the Flight Recorder measured the collectives
    ranks_a_host: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Events:
    """Microseconds, [rank, step]: when the host recorded the edges of the steps and phases, and when the device passed
    them; when it came to each meeting and left it, [unit, rank, step]; how long it had nothing to run. ``busy``: part
    of the time in which a kernel ran, by rank."""

    host: dict[str, tuple[Times, Times]]  # STEP, and phases
    device: dict[str, tuple[Times, Times]]
    came: dict[str, Times]
    left: dict[str, Times]
    busy: Times


def _each(job: Devices, planted: dict[int, float]) -> Times:
    extra = np.full(job.ranks, planted.get(-1, 0.0))
    for rank, more in planted.items():
        if rank >= 0:
            extra[rank] += more
    return extra


def events(job: Devices) -> Events:
    random = np.random.default_rng(job.seed)
    n = job.ranks
    pace = 1 + job.spread * random.standard_normal(n)
    for rank, times in job.slow.items():
        pace[rank] *= times
    loading, launching, saving = (_each(job, planted) for planted in (job.loading, job.launching, job.saving))
    host = {name: (np.zeros((n, job.steps)), np.zeros((n, job.steps))) for name in (STEP, *PHASES)}
    device = {name: (np.zeros((n, job.steps)), np.zeros((n, job.steps))) for name in (STEP, *PHASES)}
    came, left = ({name: np.zeros((job.units, n, job.steps)) for name in _MEETINGS} for _ in range(2))
    now, done, before, idle = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    began = 0.0
    for step in range(job.steps):
        now = np.maximum(now, done if job.reads_loss else before)
        before = done.copy()
        host[STEP][0][:, step] = now
        device[STEP][0][:, step] = done = np.maximum(done, now)
        idle += done - before
        for phase in PHASES:
            if phase == CHECKPOINT and not (saving.any() and step % job.saved_every == job.saved_every - 1):
                continue
            work = host_us = np.zeros(n)
            if phase == DATA:
                host_us = job.loader_us * random.gamma(4, 0.25, n)
                host_us = host_us + loading * (1.0 if random.random() < job.loading_steps else 0.0)
            elif phase == CHECKPOINT:
                now = np.maximum(now, done)  # the state is complete
                host_us = saving * random.normal(1, 0.02, n)
            else:
                usual = {FORWARD: job.forward_us, BACKWARD: job.backward_us, OPTIMIZER: job.optimizer_us}[phase]
                work = usual * pace
                launch = job.launch_us if phase in _MEETINGS else job.launch_us / 10
                host_us = (launch + launching * (phase in _MEETINGS)) * random.normal(1, 0.03, n)
            host[phase][0][:, step], start = now, np.maximum(done, now)
            idle += start - done
            now = now + host_us
            host[phase][1][:, step] = now
            device[phase][0][:, step] = done = start
            units = job.units if phase in _MEETINGS else 1
            for unit in range(units):
                own = work / units * (1 + job.jitter * random.standard_normal(n))
                begun = done
                done = np.maximum(begun + own, host[phase][0][:, step] + host_us * (unit + 1) / units)
                idle += done - begun - own
                if phase in _MEETINGS:
                    came[phase][unit, :, step] = done
                    done = np.full(n, done.max() + job.transfer_us / units * random.normal(1, 0.03))
                    left[phase][unit, :, step] = done
            device[phase][1][:, step] = done
        host[STEP][1][:, step], device[STEP][1][:, step] = now, done
        now = now + 50
    busy = 1 - idle / (device[STEP][1][:, -1] - began)
    return Events(host, device, came, left, busy)


def columns_of(job: Devices, of: Events) -> dict[str, npt.NDArray[np.uint32]]:
    """What the ranks write of it, [rank, step]."""
    begin, end = of.device[STEP]
    told = {STEP: of.host[STEP][1] - of.host[STEP][0], DEVICE + STEP: end - begin, LAG: begin - of.host[STEP][0]}
    rest, late, passed = np.zeros_like(begin), np.zeros_like(begin), begin
    on_host = told[STEP].copy()
    for phase in PHASES:
        start, stop = of.device[phase]
        if not stop.any():
            continue
        there = stop > 0  # a step without the phase
        start = np.where(there, start, passed)
        stop = np.where(there, stop, passed)
        rest += start - passed
        late += np.clip(np.minimum(start, np.where(there, of.host[phase][0], 0)) - passed, 0, None)
        came, left = of.came.get(phase, stop[None]), of.left.get(phase, stop[None])
        still = (left - came).sum(axis=0)
        if phase not in (DATA, CHECKPOINT):
            begun = start
            for unit_came, unit_left in zip(came, left, strict=True):
                late += np.clip(np.minimum(unit_came, of.host[phase][1]) - begun, 0, None)
                begun = unit_left
        told[DEVICE + phase] = stop - start - still
        if phase in of.came:
            told[DEVICE + phase + STILL] = still
        told[phase] = of.host[phase][1] - of.host[phase][0]
        on_host -= told[phase]
        passed = stop
    rest += end - passed
    told |= {DEVICE + REST: rest, REST: on_host, UNLAUNCHED: late}
    return {name: np.maximum(np.rint(values), 0).astype(np.uint32) for name, values in told.items()}


def _samples(job: Devices, of: Events) -> npt.NDArray[np.int64]:
    """Of each device's utilization, per cent: one a second, at least five."""
    seconds = max(5, int(of.device[STEP][1].max() / 1e6))
    random = np.random.default_rng(job.seed + 1)
    drawn = 100 * of.busy[:, None] + random.normal(0, 2, (job.ranks, seconds))
    return np.clip(np.rint(drawn), 0, 100).astype(np.int64)


def block_sums(job: Devices, of: Events, steps: slice) -> list[list[BlockSums]]:
    """What the ranks' Flight Recorders measured, of each rank: the blocks that ended in these steps."""
    if not job.timed:
        return [[] for _ in range(job.ranks)]
    took = np.concatenate([of.left[phase] - of.came[phase] for phase in _MEETINGS])  # [call of a step, rank, step]
    a_step = len(took)
    count = a_step * job.steps // CALLS_OF_A_SUM
    rounded = np.rint(took.transpose(1, 2, 0).reshape(job.ranks, -1) * US)[:, : count * CALLS_OF_A_SUM]
    sums = (rounded.reshape(job.ranks, count, CALLS_OF_A_SUM).sum(axis=2) // US).astype(np.int64)
    ended = [((number + 1) * CALLS_OF_A_SUM - 1) // a_step for number in range(count)]
    numbers = [number for number, step in enumerate(ended) if steps.start <= step < steps.stop]
    level = next(at for at in range(32) if sum(chosen(n, at) for n in numbers) <= RECORDING.most_blocks)
    numbers = [number for number in numbers if chosen(number, level)]
    if not numbers:
        return [[] for _ in range(job.ranks)]
    crc = zlib.crc32(",".join(map(str, range(job.ranks))).encode())
    ends = [divmod(number * CALLS_OF_A_SUM, a_step) for number in (numbers[0], numbers[-1])]
    told = []
    for rank in range(job.ranks):
        begin_ns, end_ns = (
            US * _clock_us(job, rank) + _ns(of.host[_MEETINGS[call // job.units]], rank, step)[0] for step, call in ends
        )
        values = packed((array("I", numbers), array("I", sums[rank, numbers].tolist())))
        told.append([BlockSums("0", job.ranks, crc, len(numbers), begin_ns, end_ns, values)])
    return told


def _clock_us(job: Devices, rank: int) -> int:
    return 10**9 * (1 + rank // job.ranks_a_host)  # each host has its own clock


def identity_of(job: Devices, rank: int) -> RankRecord:
    host = f"node{rank // job.ranks_a_host:04d}"
    local = rank % job.ranks_a_host
    return RankRecord(rank, local, job.ranks, host, 1, host, 0, 0, "NVIDIA H100", local, cpus=4 * job.ranks_a_host)


def manifest_of(job: Devices) -> Manifest:
    return Manifest("many", 0, world_size=job.ranks, backend="nccl", strategy="fsdp2", device="cuda")


def summaries_of(job: Devices) -> Summaries:
    """As ``read_summaries`` gives them."""
    of = events(job)
    columns = columns_of(job, of)
    clocks = np.array([[_clock_us(job, rank)] for rank in range(job.ranks)])
    samples = _samples(job, of)
    return Summaries(
        root=Path("simulated"),
        manifest=manifest_of(job),
        world_size=job.ranks,
        ranks=tuple(range(job.ranks)),
        identities=tuple(identity_of(job, rank) for rank in range(job.ranks)),
        numbers=tuple(range(job.steps)),
        begin_us=clocks + np.rint(of.host[STEP][0]).astype(np.int64),
        columns=tuple(columns),
        cells=np.stack(list(columns.values())),
        waits_known=False,
        marked={},
        memory={},
        missing=(),
        gaps=(),
        from_start=False,
        waits_seen=job.waits_seen,
        utilization=samples.mean(axis=1) / 100 if job.sampled else None,
        durations=tuple(
            tuple(BlocksRead(**{**asdict(sums), "values": b64decode(sums.values)}) for sums in of_rank)
            for of_rank in block_sums(job, of, slice(0, job.steps))
        ),
    )


def write_devices(job: Devices, folder: Path, window: int = 50) -> RunLayout:
    """The run directory, with nothing in it but the manifest and one summary a rank."""
    layout, of = RunLayout(folder), events(job)
    columns, samples = columns_of(job, of), _samples(job, of)
    replace_file(layout.manifest, encode(manifest_of(job)))
    begin_us = np.rint(of.host[STEP][0]).astype(np.int64)
    windows = [slice(first, min(first + window, job.steps)) for first in range(0, job.steps, window)]
    sums = [block_sums(job, of, some) for some in windows]
    for rank in range(job.ranks):
        path = layout.rank(rank).summary
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            for at, some in enumerate(windows):
                first = some.start
                cut = {name: values[rank, some] for name, values in columns.items()}
                cut[BEGIN] = np.diff(begin_us[rank, some], prepend=begin_us[rank, first])
                share = slice(first * samples.shape[1] // job.steps, some.stop * samples.shape[1] // job.steps)
                line = SummaryLine(
                    identity=identity_of(job, rank),
                    first=first,
                    count=some.stop - first,
                    begin_ns=US * (_clock_us(job, rank) + int(begin_us[rank, first])),
                    columns=list(cut),
                    values=packed(array("I", column.tolist()) for column in cut.values()),
                    waits_seen=job.waits_seen,
                    utilization=samples[rank, share].tolist() if job.sampled else [],
                    durations=sums[at][rank],
                )
                file.write(encode(line))
    return layout


def write_signs(layout: RunLayout, job: Devices, unix_ns: int) -> None:
    """Who each rank is, and its heartbeat of this time, as the ranks of a training leave them beside all else."""
    for rank in range(job.ranks):
        files = layout.rank(rank)
        for path, record in (
            (files.identity, identity_of(job, rank)),
            (files.heartbeat, Heartbeat(unix_ns, US * _clock_us(job, rank), job.steps - 1, "between steps")),
        ):
            replace_file(path, encode(record))
            os.utime(path, ns=(unix_ns, unix_ns))


def steps_of(job: Devices, of: Events, rank: int) -> Iterator[StepRecord]:
    """What the collectors see of a rank's steps on the host."""
    for step in range(job.steps):
        phases = [PhaseRow(phase, *_ns(of.host[phase], rank, step)) for phase in _phases(of, rank, step)]
        yield StepRecord(step, *_ns(of.host[STEP], rank, step), phases)


def records_of(
    job: Devices, of: Events, rank: int
) -> Iterator[tuple[StepRecord, DeviceStepRecord, list[CollectiveRow]]]:
    """What the collectors see of a rank: each step on the host and on the device, and its calls."""
    for on_host in steps_of(job, of, rank):
        step = on_host.step
        began, ended = _ns(of.device[STEP], rank, step)
        names = _phases(of, rank, step)
        on_device = [PhaseRow(name, *(at - began for at in _ns(of.device[name], rank, step))) for name in names]
        calls, rows = [], []
        for phase in _MEETINGS:
            for unit in range(job.units):
                number = job.units * len(_MEETINGS) * step + len(calls)
                came, until = (round(float(at[phase][unit, rank, step]) * US) - began for at in (of.came, of.left))
                calls.append(DeviceCall("0", number, came, until, came, until, own_stream=True))
                called = _ns(of.host[phase], rank, step)[0] + unit
                rows.append(CollectiveRow("0", number, "all_reduce", 4, "float32", called, None, None, None))
        yield on_host, DeviceStepRecord(step, ended - began, on_device, calls), rows


def _ns(times: tuple[Times, Times], rank: int, step: int) -> tuple[int, int]:
    return round(float(times[0][rank, step]) * US), round(float(times[1][rank, step]) * US)


def _phases(of: Events, rank: int, step: int) -> list[str]:
    return [phase for phase in PHASES if of.device[phase][1][rank, step] > 0]

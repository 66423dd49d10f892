"""Summaries of jobs of thousands of ranks, made of numbers, with what is planted in them known.

Each step of each rank waits for data, computes forward and backward, meets all others at the end of the backward, and
runs the optimizer. Who comes first stands still until the last one comes, and everybody for the transfer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    BACKWARD,
    BEGIN,
    DATA,
    FORWARD,
    OPTIMIZER,
    REST,
    STEP,
    STILL,
    TOKENS,
    CollectiveLine,
    CollectiveRow,
    HostRecord,
    MachineRecord,
    Manifest,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
    SummaryLine,
)
from diag.collectors.step_lines import packed

USUAL_US = {DATA: 2_000, FORWARD: 100_000, BACKWARD: 200_000, OPTIMIZER: 10_000, REST: 500}
PHASES = tuple(USUAL_US)

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """``extra_us[rank][phase]``: planted, in every step. ``jitter``: standard deviation of every phase, of itself."""

    ranks: int
    steps: int = 100
    window: int = 50
    ranks_a_host: int = 8
    transfer_us: int = 5_000
    jitter: float = 0.005
    extra_us: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    extra_from: int = 0  # the first step with ``extra_us``
    device: str = "cpu"
    seed: int = 0

    def host(self, rank: int) -> str:
        return f"node{rank // self.ranks_a_host:04d}"

    def ranks_of_host(self, number: int) -> range:
        return range(number * self.ranks_a_host, (number + 1) * self.ranks_a_host)


def write_summaries(job: Job, folder: Path) -> RunLayout:
    """The run directory, with nothing in it but the manifest and one summary a rank."""
    layout = RunLayout(folder)
    manifest = Manifest("many", 0, world_size=job.ranks, backend="gloo", strategy="fsdp2", device=job.device)
    replace_file(layout.manifest, encode(manifest))
    random = np.random.default_rng(job.seed)
    since_us = np.zeros(job.steps, dtype=np.int64)
    worked = _worked(job, random)
    arrival = sum(worked[phase] for phase in (DATA, FORWARD, BACKWARD))
    still = arrival.max(axis=0) - arrival + job.transfer_us
    step_us = arrival + still + worked[OPTIMIZER] + worked[REST]
    since_us[1:] = step_us.max(axis=0)[:-1]
    for rank in range(job.ranks):
        columns = {BEGIN: since_us, STEP: step_us[rank], f"{BACKWARD}{STILL}": still[rank]}
        columns |= {phase: worked[phase][rank] for phase in PHASES} | {TOKENS: np.full(job.steps, 512)}
        _write(layout, job, rank, columns)
    return layout


def _worked(job: Job, random: np.random.Generator) -> dict[str, Times]:
    """Microseconds of each phase, rank and step."""
    found = {}
    for phase, usual in USUAL_US.items():
        each = usual * (1 + job.jitter * random.standard_normal((job.ranks, job.steps), dtype=np.float32))
        for rank, extra in job.extra_us.items():
            each[rank, job.extra_from :] += extra.get(phase, 0)
        found[phase] = np.maximum(each, 0).astype(np.int64)
    return found


def _write(layout: RunLayout, job: Job, rank: int, columns: Mapping[str, Times]) -> None:
    host = job.host(rank)
    local, clock_ns = rank % job.ranks_a_host, 10**12 * (rank // job.ranks_a_host)  # each host has its own clock
    identity = RankRecord(rank, local, job.ranks, host, 1, host, 0, 0, job.device, cpus=4 * job.ranks_a_host)
    begin_ns = clock_ns + 1000 * np.cumsum(columns[BEGIN])
    path = layout.rank(rank).summary
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for first in range(0, job.steps, job.window):
            some = slice(first, min(first + job.window, job.steps))
            cut = {name: column[some].copy() for name, column in columns.items()}
            cut[BEGIN][0] = 0
            file.write(
                encode(
                    SummaryLine(
                        identity=identity,
                        first=first,
                        count=some.stop - first,
                        begin_ns=int(begin_ns[first]),
                        columns=list(cut),
                        values=packed(array("I", column.tolist()) for column in cut.values()),
                        waits=some.stop - first,
                        memory=MemoryRecord(rss=10**9),
                    )
                )
            )


def write_beside(layout: RunLayout, job: Job) -> None:
    """What the ranks and hosts of a job with these summaries recorded besides: half an hour of what a host with eight
    GPUs and eight ports counts, and the records of the steps, the same ones for all ranks."""
    for host in range(job.ranks // job.ranks_a_host):
        _count(layout, job, host)
    first = layout.rank(0)
    with first.steps.open("wb") as steps, first.collectives.open("wb") as calls, first.host.open("wb") as samples:
        for step in range(job.steps):
            begin = step * 380_000_000
            phases = [PhaseRow(FORWARD, begin, begin + 10**8), PhaseRow(BACKWARD, begin + 10**8, begin + 3 * 10**8)]
            cpu = {FORWARD: (10**8, 0), BACKWARD: (2 * 10**8, 0)}
            record = StepRecord(step, begin, begin + 379_000_000, phases, on_cpu_ns=3 * 10**8, queued_ns=0, cpu=cpu)
            steps.write(encode(record))
            rows = [
                CollectiveRow(
                    "0", 100 * step + at, "all_gather", 1 << 20, "bfloat16", begin + at, begin + at + 1, None, None
                )
                for at in range(100)
            ]
            calls.write(encode(CollectiveLine(step, rows, {"0": [0, 1]} if not step else {})))
            samples.write(encode(HostRecord(begin, 10**9, runnable=9)))
    for rank in range(1, job.ranks):
        for name in ("steps", "collectives", "host"):
            getattr(layout.rank(rank), name).hardlink_to(getattr(first, name))


_OF_PORT = ("port_xmit_wait", "port_xmit_data", "port_rcv_data", "symbol_error", "np_cnp_sent", "out_of_sequence")
_MORE = tuple(f"counter_{number}" for number in range(20))


def _count(layout: RunLayout, job: Job, host: int) -> None:
    ports = [f"rdma.mlx5_{port}:1.{name}" for port in range(8) for name in (*_OF_PORT, *_MORE)]
    cards = [f"pcie.0000:{card:02x}:00.0.{name}" for card in range(24) for name in ("aer_fatal", "link_width", "aer_x")]
    gpus = [f"gpu.GPU-{host:04d}-{gpu}.{name}" for gpu in range(8) for name in ("memory_used", "nvlink_rcv_errors")]
    others = ["pressure.cpu.some_us", "pressure.io.some_us", "cpu.steal_ns", "cgroup.cpu.throttled_us"]
    names = [*ports, *cards, *gpus, *others]
    grows = [name for name in names if name.endswith(_OF_PORT[:3]) or name in others or name.endswith("memory_used")]
    values = {name: 10**6 * (at + 1) for at, name in enumerate(names)}
    with layout.rank(host * job.ranks_a_host).machine.open("wb") as file:
        for at in range(31):
            values |= {name: values[name] + 10**5 + at for name in grows}
            whole = at % 30 == 0
            changed = values if whole else {name: values[name] for name in grows}
            now_ns = 10**12 * host + (at - 28) * 60 * 10**9
            if now_ns >= 0:
                file.write(encode(MachineRecord(now_ns, changed, whole or now_ns < 60 * 10**9)))

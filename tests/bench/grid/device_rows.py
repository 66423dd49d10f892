"""The fourth family of the grid: the same jobs without any profiler window. What is there is what the collectors always
record of a rank on a GPU: the host's phases, the same phases and the waits for collectives by events on the device's
own clock, and samples of its utilization."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    CollectiveLine,
    CollectiveRow,
    DeviceCall,
    DeviceRecord,
    DeviceStepRecord,
    Manifest,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from tests.account.kineto_builder import BASE_NS
from tests.bench.grid.gpu.engine import Called, Marked, Rank, groups_of
from tests.bench.grid.gpu.job import Job, Recipe
from tests.bench.grid.gpu.recorded import BOOT_NS, DEVICE, strategy_of
from tests.bench.grid.gpu.rows import GPU_ROWS, HALVES, TUNING, Half, Make, Row
from tests.bench.grid.truth import COMMUNICATION, HOST, Answer, Truth
from tests.copies import replace

PREFIX = "dev-"
_STEPS = 16
_OF_ROWS = (
    "H0-ddp", "H0-fsdp2", "H0-fsdp2-no-reshard", "H0-hsdp", "D4-hidden-loader", "N0-hidden-network",
    "D1-data-all", "D2-data-one", "D3-data-bursty", "N1-network", "N1-sockets", "W2-root-only", "P1-no-prefetch",
    "S1-forward", "S3-backward", "S2-rotating", "L1-launch-bound", "L1-launch-bound-one", "L2-item",
    "K1-checkpoint", "K1-checkpoint-one", "C1-gc-one", "X0-copies", "M1-allocator",
    "X1-S1-D1-2:1", "Q1-clocks-healthy", "Q1-clocks-D2", "Q1-clocks-S3",
)  # fmt: skip
_OPS = {"_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "allreduce": "all_reduce"}


def _longer(make: Make) -> Make:
    def made(half: Half, rng: Random, share: float) -> Job:
        return replace(make(half, rng, share), steps=_STEPS)

    return made


DEVICE_ROWS = tuple(
    Row(PREFIX + row.id, _longer(row.make), row.rid, row.graded, row.recipes) for row in GPU_ROWS if row.id in _OF_ROWS
)


def tuned(row: str, share: float) -> Job:
    """The job of a row whose fault costs so much; always the same one."""
    (chosen,) = (one for one in DEVICE_ROWS if one.id == row)
    return chosen.make(HALVES[TUNING], Random(row), share)


# What can be said of a class where its cause takes a window.
_SAID = {
    HOST: frozenset({"host-bound"}),
    COMMUNICATION: frozenset({"exposed-communication", "communication-not-overlapped"}),
}


def without_window(truth: Truth) -> Truth:
    """The answers that are right where no cause beyond the class is recorded."""
    answers = [Answer(a.bottleneck, a.causes | _SAID.get(a.bottleneck, frozenset()), a.culprits) for a in truth.right]
    return replace(truth, right=tuple(answers))


def write_device_run(job: Job, ranks: Sequence[Rank], folder: Path, rng: Random) -> None:
    """The run directory, of which nothing but the profiler windows is missing."""
    layout = RunLayout(folder)
    manifest = Manifest(
        "simulated", 0, world_size=job.world, backend="nccl", strategy=strategy_of(job), device="cuda", exit_code=0
    )
    replace_file(layout.manifest, encode(manifest))
    everyone, inside, across = groups_of(job.world, job.per_node if job.recipe == Recipe.HSDP else job.world)
    groups = {group.name: list(group.ranks) for group in (everyone, *inside, *across)}
    for rank in ranks:
        node, files = rank.rank // job.per_node, layout.rank(rank.rank)
        unix_ns = BASE_NS + (job.offset_ns[node] if job.offset_ns else 0)
        host = f"node-{node}"
        place = rank.rank % job.per_node
        identity = RankRecord(
            rank.rank, place, job.world, host, 4000 + rank.rank, f"boot of {host}", BOOT_NS, unix_ns, DEVICE, place
        )
        replace_file(files.identity, encode(identity))
        pace = 1 + rng.uniform(-20e-6, 20e-6)  # of the device's clock against the host's
        own = {name: members for name, members in groups.items() if rank.rank in members}
        counts: dict[str, int] = defaultdict(int)
        steps, device_steps, lines = [], [], []
        for number, marked in enumerate(rank.marked[:-1]):
            steps.append(_step(number, marked))
            rows = _recorded(job, marked, counts)
            device_steps.append(_device_step(number, marked, rows, pace))
            lines.append(_line(number, rows, own))
        samples = [
            DeviceRecord(
                BOOT_NS + end, utilization_percent=min(100, max(0, round(100 * busy) + rng.choice((-1, 0, 1))))
            )
            for end, busy in _busy(rank)
        ]
        for path, records in (
            (files.steps, steps),
            (files.device_steps, device_steps),
            (files.collectives, lines),
            (files.device, samples),
        ):
            path.write_bytes(b"".join(encode(record) for record in records))


def _step(number: int, marked: Marked) -> StepRecord:
    (begin, _), (end, _) = marked.edges
    return StepRecord(
        step=number,
        begin_ns=BOOT_NS + begin,
        end_ns=BOOT_NS + end,
        phases=[PhaseRow(name, BOOT_NS + a[0], BOOT_NS + b[0]) for name, a, b in marked.phases],
        gc=[(BOOT_NS + begin, BOOT_NS + end) for begin, end in marked.pauses],
    )


@dataclass(frozen=True)
class _Recorded:
    """A call of which the records hold a row. ``reducer``: DDP's makes it, which tells no more than that the last of
    its buckets was waited for; ``asynchronous``: the training's stream waits for it, and no other."""

    called: Called
    seq: int
    op: str
    bytes: int
    dtype: str
    reducer: bool
    asynchronous: bool


def _recorded(job: Job, marked: Marked, counts: dict[str, int]) -> list[_Recorded]:
    """In order; ``counts`` of each group go on."""
    found: dict[tuple[str, int], _Recorded] = {}
    last: dict[str, tuple[str, int]] = {}  # of the reducer's, by group
    for call in marked.calls:
        said = json.loads(f"{{{call.args}}}")
        size = max(said["In msg nelems"], said["Out msg nelems"]) * (4 if said["dtype"] == "Float" else 2)
        reducer = job.recipe == Recipe.DDP and size > 4
        if reducer and call.group in last:
            seq = found.pop(last[call.group]).seq
        else:
            seq, counts[call.group] = counts[call.group], counts[call.group] + 1
        if reducer:
            last[call.group] = call.group, call.number
        op = _OPS[said["Collective name"]]
        found[call.group, call.number] = _Recorded(call, seq, op, size, said["dtype"].lower(), reducer, size <= 4)
    return list(found.values())


def _device_step(number: int, marked: Marked, rows: Sequence[_Recorded], pace: float) -> DeviceStepRecord:
    zero = marked.edges[0][1]

    def since(ns: int) -> int:
        return round((ns - zero) * pace / 500) * 500  # what events resolve

    calls = []
    for row in rows:
        call, wait = row.called, marked.waits.get((row.called.group, row.called.number))
        if row.reducer and wait is not None:
            calls.append(DeviceCall(call.group, row.seq, since(wait[0]), since(wait[1])))
        elif row.asynchronous and wait is not None:
            began, ended = since(wait[0]), since(wait[1])
            calls.append(DeviceCall(call.group, row.seq, min(since(call.start), began), ended, began, ended))
        elif not row.reducer and not row.asynchronous:
            made = DeviceCall(call.group, row.seq, since(call.start), since(call.end), own_stream=True)
            if wait is not None:
                made = made._replace(wait_start_ns=since(wait[0]), wait_end_ns=since(wait[1]))
            calls.append(made)
    phases = [PhaseRow(name, since(a[1]), since(b[1])) for name, a, b in marked.phases]
    return DeviceStepRecord(number, since(marked.edges[1][1]), phases, calls)


def _line(number: int, rows: Sequence[_Recorded], groups: dict[str, list[int]]) -> CollectiveLine:
    called = [
        CollectiveRow(
            row.called.group, row.seq, row.op, row.bytes, row.dtype, BOOT_NS + row.called.host, None, None, None,
            not row.reducer,
        )
        for row in rows
    ]  # fmt: skip
    return CollectiveLine(number, called, groups if number == 0 else {})


def _busy(rank: Rank) -> list[tuple[int, float]]:
    """By step: its end, and the fraction of it in which any kernel ran, as NVML counts."""
    spans = sorted((event.start, event.end) for event in rank.events if event.cat == "kernel")
    found = []
    for marked in rank.marked[:-1]:
        (_, begin), (host_end, end) = marked.edges
        busy, until = 0, begin
        for start, stop in spans:
            if stop > until and start < end:
                busy += min(stop, end) - max(start, until)
                until = min(stop, end)
        found.append((host_end, busy / max(1, end - begin)))
    return found

"""A simulated GPU job as the run directory that the collectors would have left: step records, samples of the devices,
and the traces beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    DATA,
    WINDOW_ACTIVE,
    WINDOW_NONE,
    Manifest,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.collectors.records import DeviceRecord as Sample
from tests.account.kineto_builder import BASE_NS
from tests.bench.grid.gpu.engine import Rank
from tests.bench.grid.gpu.job import Job, Planted, Recipe, Recorded
from tests.bench.grid.gpu.kineto import write_trace
from tests.bench.grid.gpu.loop import FIRST_STEP, WARM_STEPS

BOOT_NS = 7_000_000_000  # what the monotonic clocks show at the traces' zero
DEVICE = "NVIDIA H100 80GB HBM3"
PEAK_FLOPS = 989e12  # dense BF16 of an H100 SXM
_TOKENS, _LONGEST = 4096, 5632  # of a rank in a step
_CAPACITY = 80 << 30


def write_run(job: Job, recorded: Recorded, ranks: Sequence[Rank], step_ns: float, folder: Path) -> list[Path]:
    """The directory; returns each rank's trace."""
    layout = RunLayout(folder)
    model = {}
    if recorded.mfu is not None:  # the arithmetic that uses so much of the peak in steps of this length
        model["flops_per_token"] = recorded.mfu * PEAK_FLOPS * step_ns / 1e9 / _TOKENS
    manifest = Manifest(
        "simulated", 0, world_size=job.world, backend="nccl", strategy=strategy_of(job), device="cuda", model=model
    )
    replace_file(layout.manifest, encode(manifest))
    written = []
    for rank in ranks:
        node, files = rank.rank // job.per_node, layout.rank(rank.rank)
        unix_ns = BASE_NS + (job.offset_ns[node] if job.offset_ns else 0)
        place, host = rank.rank % job.per_node, f"node-{node}"
        identity = RankRecord(
            rank.rank, place, job.world, host, 4000 + rank.rank, f"boot of {host}", BOOT_NS, unix_ns, DEVICE, place
        )
        replace_file(files.identity, encode(identity))
        records, samples = [], []
        for number, span in enumerate(rank.host_steps):
            records.append(_step(job, recorded, rank.rank, number, span))
            samples.append(_sample(recorded, rank.rank, span[0]))
        files.steps.write_bytes(b"".join(encode(record) for record in records))
        files.device.write_bytes(b"".join(encode(sample) for sample in samples))
        written.append(write_trace(job, rank, files.trace(FIRST_STEP)))
    return written


def _step(job: Job, recorded: Recorded, rank: int, number: int, span: tuple[int, int, int]) -> StepRecord:
    begin, data_end, end = (BOOT_NS + at for at in span)
    slow = bool(job.amount(Planted.FORWARD, number, rank))
    reserved = round(_CAPACITY * (1 - recorded.memory_free))
    return StepRecord(
        step=FIRST_STEP - WARM_STEPS + number,
        begin_ns=begin,
        end_ns=end,
        phases=[PhaseRow(DATA, begin, data_end)],
        window=WINDOW_ACTIVE if number >= WARM_STEPS else WINDOW_NONE,
        micro_batches=job.micro_batches,
        tokens=_LONGEST if recorded.longest and slow else _TOKENS,
        memory=MemoryRecord(4 << 30, reserved, reserved, alloc_retries=0, ooms=0, capacity=_CAPACITY),
    )


def _sample(recorded: Recorded, rank: int, at: int) -> Sample:
    hot = rank in recorded.throttled
    return Sample(
        BOOT_NS + at, sm_clock_mhz=1305 if hot else 1980, throttle_reasons=["hardware thermal"] if hot else []
    )


def strategy_of(job: Job) -> str:
    """As the bundled trainer calls it."""
    return {Recipe.DDP: "ddp", Recipe.DEEPSPEED: "deepspeed-zero3"}.get(job.recipe, "fsdp2")

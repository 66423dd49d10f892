"""Every strategy of the bundled trainer with a planted slow loader, straggler and slow wire: on CPU ranks, and as
simulated GPU traces what no CPU can run.

    python -m tests.bench.strategies [--repeats 3] [--markdown FILE] [--synthetic]

Prints a line for each verdict and, with --markdown, writes the tables of what was run on what. With --synthetic only
the simulated ones, and of FILE only their section.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from diag.api import open_run
from tests.bench.grid import gpu_ways
from tests.run.strategy_cases import FAULTS, MORE, OPTIONS, STEPS, WAYS, is_right, planted, record

_PAGE = """# What was run on what

Every way of the bundled trainer, by `python -m tests.bench.strategies`, on CPU ranks with gloo (torch {torch}, two
cores); for each fault {repeats} x {steps} steps. A verdict is right if its class is that of the planted one,
and its rank where the fault has one: the slow loader is on rank 1, the straggler on rank 0, the wire is slow for all.
Losses are equal to one rank's to 2e-4: tests/trainer/test_same_losses.py, which also runs the settings that are not in
this table.

The slow loader of `tp` was recorded more often, on cores that had other work to do as well: right in 68 of 69 runs; and
in 15 of 40 with one or two busy loops beside them, where communication between ranks without a core costs as much as
what was planted. None of the 109 verdicts says that all ranks' loaders are slow, one leaves open whose it is.

Where a pipeline has one rank a stage, no other rank shows what a straggler should have taken: that its stage has more
work than the others is all that can be said (`unbalanced-stages`), and the verdict names the stage's rank. In 18 runs
of 7 steps instead of 9 it does in all. It said of 17 of them that the ranks are slow in turn as long as steps in the
profiler's window, where a trace tells Python from operators, were held against steps that were only recorded.

Nothing here was run on GPUs. What cannot run on a CPU at all has a section of its own, at the end; pinned memory and
copies of offloaded states as such are in synthetic traces (tests/diagnoses/test_offload.py), too.

| way | ranks | options | slow loader | straggler | slow wire |
|---|---|---|---|---|---|
"""

_HEADING = "## Cannot run on a CPU: covered by synthetic traces"
_SYNTHETIC = (
    _HEADING
    + """

DDP's bf16 hook needs NCCL (PyTorch refuses gloo), a separate reduce-scatter group is about NCCL's queues, and offload
to NVMe needs DeepSpeed's compiled I/O. **These traces are synthetic: no run was recorded.** tests/bench/grid/gpu
simulates four ranks with schedules read from the sources of torch 2.13 and DeepSpeed 0.19, and writes what PyTorch's
profiler and our collectors would have left; what a fault costs is measured by simulating the same job without it. Not
simulated: what two communicators that share a wire cost each other, and kernels that share a device; FSDP2's copy into
the buffer of a reduction runs beside the computation here, and in line with it in torch. A real run may differ in ways
that nobody thought of. A verdict is right if class, cause and rank are.

With NVMe all parameters are taken to be on the disk, where DeepSpeed has those beyond `max_in_cpu`, and batches to be
so large that the optimizer takes little of a step. With one small batch, the last row, there is no fault but offload,
and the verdict must say so.

{options}

| way | planted | costs of the step | verdict (share of the step) | |
|---|---|---|---|---|
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--synthetic", action="store_true")
    asked = parser.parse_args()
    if asked.synthetic and asked.markdown is not None:
        recorded = asked.markdown.read_text().partition(_HEADING)[0]
    else:
        recorded = "" if asked.synthetic else _recorded(asked.repeats)
    synthetic = _synthetic()
    if asked.markdown is not None:
        asked.markdown.write_text(recorded + synthetic)


def _recorded(repeats: int) -> str:
    """The page of what CPU ranks ran."""
    rows, right, total = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for ranks, first in WAYS.items():
            ways = [*first, *MORE.get(ranks, [])]
            runs = [
                (Path(folder, f"{ranks}-{place}-{fault}-{repeat}"), way, fault)
                for place, way in enumerate(ways)
                for fault in FAULTS
                for repeat in range(repeats)
            ]
            record(ranks, runs, 900 * repeats)
            found: dict[tuple[str, str], list[bool]] = {}
            for path, way, fault in runs:
                result = open_run(path)
                good = is_right(result, fault)
                found.setdefault((way, fault), []).append(good)
                print(
                    f"{'right' if good else 'WRONG'}  {way}, {planted(way, fault)}: {result.verdict.headline}",
                    flush=True,
                )
            for way in ways:
                cells = [f"{sum(found[way, fault])} of {len(found[way, fault])}" for fault in FAULTS]
                rows.append(f"| {way} | {ranks} | {_options(way)} | {' | '.join(cells)} |")
            right += sum(sum(goods) for goods in found.values())
            total += len(runs)
    print(f"{right} of {total} right")
    page = _PAGE.format(torch=torch.__version__, repeats=repeats, steps=STEPS)
    return page + "\n".join(rows) + f"\n\nRight: {right} of {total}.\n\n"


def _synthetic() -> str:
    """The section of what was simulated."""
    faults = (gpu_ways.HEALTHY, *gpu_ways.FAULTS)
    cases = [(way, fault, gpu_ways.planted(way, fault)) for way in gpu_ways.WAYS for fault in faults]
    cases.append(("deepspeed 3, NVMe, one small batch", gpu_ways.HEALTHY, gpu_ways.EXPOSED))
    rows, right = [], 0
    for way, fault, job in cases:
        with tempfile.TemporaryDirectory() as folder:
            found = gpu_ways.judged(job, Path(folder))
        said, answer = found.said, "right" if found.first_right else "WRONG"
        right += found.first_right
        print(f"{answer}  {way}, {fault}: {said.headline}", flush=True)
        words = [said.bottleneck, *([said.cause] if said.bottleneck != "healthy" else [])]
        words += [f"rank {rank}" for rank in said.culprits]
        costs = f"{found.truth.share:.0%}" if job.faults else "-"
        rows.append(f"| {way} | {fault} | {costs} | {', '.join(words)} ({said.share:.0%}) | {answer} |")
    print(f"{right} of {len(rows)} right")
    options = "\n".join(f"- {way}: `{words}`" for way, words in gpu_ways.OPTIONS.items())
    return _SYNTHETIC.format(options=options) + "\n".join(rows) + f"\n\nRight: {right} of {len(rows)}.\n"


def _options(way: str) -> str:
    """As ``diag run`` takes them."""
    flags = {"tensor_parallel": "tp", "pipeline_parallel": "pp"}
    words = []
    for name, value in OPTIONS[way].items():
        if name == "settings":
            words += [f"--set {setting}" for setting in value]
        elif value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif name not in ("batch_size", "preset"):
            words.append(f"--{flags.get(name, name.replace('_', '-'))} {value}")
    return f"`{' '.join(words)}`"


if __name__ == "__main__":
    main()

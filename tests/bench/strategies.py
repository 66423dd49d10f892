"""Every strategy of the bundled trainer with a planted slow loader, straggler and slow wire, on CPU ranks.

    python -m tests.bench.strategies [--repeats 3] [--markdown FILE]

Prints a line for each verdict and, with --markdown, writes the table of what was run on what.
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
from tests.run.strategy_cases import FAULTS, MORE, OPTIONS, STEPS, WAYS, is_right, planted, record

_PAGE = """# What was run on what

Every way of the bundled trainer, by `python -m tests.bench.strategies`, on CPU ranks with gloo (torch {torch}, two
cores), {repeats} trainings of {steps} steps for each fault. A verdict is right if its class is that of the planted one,
and its rank where the fault has one: the slow loader is on rank 1, the straggler on rank 0, the wire is slow for all.
Losses are equal to one rank's to 2e-4: tests/trainer/test_same_losses.py, which also runs the settings that are not in
this table.

Cannot run on CPU: DDP's bf16 hook (PyTorch refuses gloo), a separate reduce-scatter group (NCCL's queues), pinned
memory and copies of offloaded states as such (synthetic traces: tests/attribution). Not run at all: NVMe offload, which
needs DeepSpeed's compiled I/O. Nothing here was run on GPUs.

| way | ranks | options | slow loader | straggler | slow wire |
|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    rows, right, total = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for ranks, first in WAYS.items():
            ways = [*first, *MORE.get(ranks, [])]
            runs = [
                (Path(folder, f"{ranks}-{place}-{fault}-{repeat}"), way, fault)
                for place, way in enumerate(ways)
                for fault in FAULTS
                for repeat in range(asked.repeats)
            ]
            record(ranks, runs, 900 * asked.repeats)
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
    if asked.markdown is not None:
        page = _PAGE.format(torch=torch.__version__, repeats=asked.repeats, steps=STEPS)
        asked.markdown.write_text(page + "\n".join(rows) + f"\n\nRight: {right} of {total}.\n")


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

"""What a training of weeks leaves at its byte budget: python -m tests.bench.long_runs [--days 30] [--on-device]

One rank of a 32-layer FSDP2 training with steps of a second, on a simulated clock, through the writer of the
collectors. docs/benchmarks/long-runs.md has the figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from diag.collectors.layout import RankLayout, RunLayout, parts_of
from diag.collectors.records import CollectiveLine, StepRecord, SumLine, SummaryLine
from diag.collectors.step_places import complete_from
from diag.rundir.lines import each_line
from tests.long_run import LongRun, S

DAY = 86_400
_AT_ONCE = 10_000  # steps between two looks at the folder


def run(folder: Path, steps: int, calls: int, budget_mb: int, on_device: bool, first: int) -> None:
    training = LongRun(
        folder, budget_mb * 1_000_000, calls, first_step=first, begin_ns=(first + 1) * S, on_device=on_device
    )
    files = RunLayout(folder).rank(0)
    most_bytes = most_files = 0
    least_in_full, least_days = steps, float(steps) / DAY
    began = time.process_time()
    for done in range(0, steps, _AT_ONCE):
        training.train(min(_AT_ONCE, steps - done))
        sizes = [file.stat().st_size for file in files.folder.iterdir()]
        most_bytes, most_files = max(most_bytes, sum(sizes)), max(most_files, len(sizes))
        reached = first + min(done + _AT_ONCE, steps)
        if (begin := complete_from(files)) is not None:
            least_in_full = min(least_in_full, reached - begin)
        if files.streams().get(files.summary.stem):
            least_days = min(least_days, (reached - _first_with_phases(files)) / DAY)
        if done and done % (50 * _AT_ONCE) == 0:
            print(f"{done:,} steps", file=sys.stderr)
    training.close()
    cpu_s = time.process_time() - began
    print(f"steps: {steps:,}, {calls} collectives each; {steps / cpu_s:,.0f} steps a second of CPU")
    print(
        f"most on the disk: {most_bytes / 1e6:.1f} MB in {most_files} files; complaints: {training.complaints.messages}"
    )
    print(
        f"at each of {steps // _AT_ONCE:,} looks: {least_in_full:,} steps or more in full, "
        f"phases of {least_days:.2f} days or more"
    )
    report(files, first + steps)


def _first_with_phases(files: RankLayout) -> int:
    with parts_of(files.summary)[0].open("rb") as file:
        return msgspec.json.decode(file.readline(), type=SummaryLine).first


def report(files: RankLayout, steps: int) -> None:
    first = complete_from(files) or 0
    print(f"in full: {steps - first:,} steps, from {first:,}")
    phases: list[SummaryLine] = []
    each_line(files.summary, SummaryLine, phases.append)
    print(f"phases of each step: {(steps - phases[0].first) / DAY:.2f} days, from {phases[0].first:,}")
    for least, stream in files.sums.items():
        lines: list[SumLine] = []
        each_line(stream, SumLine, lines.append)
        print(f"sums over {least:,}: {(steps - lines[0].first) / DAY:.2f} days, from {lines[0].first:,}")
    numbers: list[int] = []
    each_line(files.steps, StepRecord, lambda record: numbers.append(record.step))
    rows: dict[int, int] = {}
    each_line(files.collectives, CollectiveLine, lambda line: rows.update({line.step: len(line.rows)}))
    print(f"records of steps: {len(numbers):,}, of collectives: {len(rows):,} steps, {min(rows.values())} rows or more")
    for name in ("steps", "collectives", "device_steps", "summary", *(f"sums_of_{least}" for least in files.sums)):
        there = [part for part in parts_of(getattr(files, name)) if part.exists()]
        print(f"  {name}: {sum(part.stat().st_size for part in there) / 1e6:.2f} MB in {len(there)} files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--first-day", type=float, default=0, help="the run has trained for so many days before")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--budget-mb", type=int, default=64)
    parser.add_argument("--on-device", action="store_true", help="the rank computes on a GPU")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    options = parser.parse_args()
    steps = int(options.days * DAY)
    if options.folder is not None:
        run(options.folder, steps, options.calls, options.budget_mb, options.on_device, int(options.first_day * DAY))
        return
    with TemporaryDirectory() as folder:
        run(Path(folder), steps, options.calls, options.budget_mb, options.on_device, int(options.first_day * DAY))


if __name__ == "__main__":
    main()

"""What attaching costs a training that knows nothing of it.

    python -m tests.bench.attach_overhead [--size small] [--size large] [--turns 800] [--launches 2] [--windows 10]

Two gloo ranks under torchrun, one loader worker each. Steps of three modes take turns in one process, in an order drawn
anew for each turn: bare; bare again, the noise; and recorded without profiler windows, by the hooks of ``diag run``,
which are silent in the others. A barrier before and after each step puts what a rank does late into its own step, and
the slowest rank counts. Two processes after each other differ by ten percent without any reason of their own, and the
machine's speed changes from second to second; steps after each other have both in common. What a window costs is
measured in blocks of steps, with one and without, which take turns, too. Records wait for each other half a second of
recorded steps, as they would if no others lay between.

Prints medians, over groups of ``GROUP`` turns, of the ratios to the bare steps, with 95 % bootstrap intervals, in wall
and in CPU time; what a window of three steps costs; and the ratio over a schedule with a window in every ``EVERY``
steps. Goals: 1.005 without windows, 1.02 with. The heartbeat's thread runs through all modes and is not in them: it
takes about a millisecond of CPU a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from tests.bench._paired import paired_ratio
from tests.bench._plain_training import AGAIN, ALWAYS, BARE, BLOCK, SHAPES, TURNS, WINDOW, WITHOUT, Times

SCRIPT = Path(__file__).with_name("_plain_training.py")
EVERY = (200, 1000)  # steps from window to window
GROUP = 20
RANKS = 2

Found = dict[str, list[Times]]


def trained(size: str, turns: int, windows: int) -> list[Found]:
    """What each rank of a launch has measured."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        asked = ["--size", size, "--turns", str(turns), "--windows", str(windows), "--out", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run([*torchrun, str(SCRIPT), *asked], env=environment, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"exit code {ended.returncode}\n{ended.stderr[-2000:]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]


def of_job(ranks: Sequence[Found], mode: str) -> list[Times]:
    """Of each step or block, the slowest rank's seconds, and the mean of the CPU time."""
    rows = zip(*(rank[mode] for rank in ranks), strict=True)
    return [(max(wall for wall, _ in row), mean(cpu for _, cpu in row)) for row in rows]


def grouped(values: Sequence[float]) -> list[float]:
    return [mean(values[at : at + GROUP]) for at in range(0, len(values) - GROUP + 1, GROUP)]


def measure(size: str, turns: int, launches: int, windows: int) -> None:
    begin = time.monotonic()
    jobs = [trained(size, turns, windows) for _ in range(launches)]
    print(f"{size}: {launches} launches of {turns} turns and {windows} windows, {time.monotonic() - begin:.0f} s")
    for place, what in enumerate(("time", "CPU time")):
        steps = {mode: _column([of_job(job, mode) for job in jobs], place) for mode in TURNS}
        blocks = {mode: [row[place] for job in jobs for row in of_job(job, mode)] for mode in (WITHOUT, WINDOW)}
        _say(what, steps, blocks)


def _column(launches: Sequence[Sequence[Times]], place: int) -> list[float]:
    return [one for rows in launches for one in grouped([row[place] for row in rows])]


def _say(what: str, steps: Mapping[str, Sequence[float]], blocks: Mapping[str, Sequence[float]]) -> None:
    bare, always = steps[BARE], steps[ALWAYS]
    added = median(on - off for on, off in zip(always, bare, strict=True))
    print(f"  {what}: {1000 * median(bare):.1f} ms a bare step; recorded {1000 * added:+.2f} ms", end="")
    window = 0.0
    if blocks[WINDOW]:
        window = median(BLOCK * (one - on) for one, on in zip(blocks[WINDOW], blocks[WITHOUT], strict=True))
        print(f", a window of three steps {1000 * window:+.0f} ms", end="")
    print()
    for mode in (AGAIN, ALWAYS):
        print(f"    {mode} / bare: {paired_ratio(steps[mode], bare)}")
    if blocks[WINDOW]:
        for every in EVERY:
            print(f"    a window in {every} steps / bare: {paired_ratio([on + window / every for on in always], bare)}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SHAPES)
    parser.add_argument("--turns", type=int, default=800, help="of a launch: steps of each mode")
    parser.add_argument("--launches", type=int, default=2)
    parser.add_argument("--windows", type=int, default=10, help="of a launch: blocks with one, and as many without")
    given = parser.parse_args()
    for size in given.size or SHAPES:
        measure(size, given.turns, given.launches, given.windows)


if __name__ == "__main__":
    main()

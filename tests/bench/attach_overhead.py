"""What attaching costs a training that knows nothing of it.

    python -m tests.bench.attach_overhead [--size small] [--size large] [--rounds 100] [--steps 8]

Two gloo ranks under torchrun, one loader worker each, train in blocks: bare; bare again, the noise; recorded without
profiler windows; and recorded with one window of three steps. The order turns from round to round. The blocks lie in
one process, since on a shared machine two processes after each other differ by ten percent without any reason of their
own, and they are short, since it changes its speed from second to second; the hooks are those of ``diag run``, and a
block that is not recorded has none of them. Prints medians over the
rounds of the ratios to the bare block, of the mean step and of CPU time a step, with 95 % bootstrap intervals; what a
window costs; and the ratio averaged over a schedule with a window in every ``EVERY`` steps. Goals: 1.005 without
windows, 1.02 with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from tests.bench._paired import paired_ratio
from tests.bench._plain_training import AGAIN, ALWAYS, BARE, SHAPES, WINDOW

SCRIPT = Path(__file__).with_name("_plain_training.py")
EVERY = (200, 1000)  # steps from window to window
RANKS = 2


def trained(size: str, rounds: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """Of each mode, round by round, the ranks' mean of seconds and of CPU seconds a step."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        asked = ["--size", size, "--rounds", str(rounds), "--steps", str(steps), "--out", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run([*torchrun, str(SCRIPT), *asked], env=environment, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"exit code {ended.returncode}\n{ended.stderr[-2000:]}")
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    found = {}
    for mode in ranks[0]:
        rows = zip(*(rank[mode] for rank in ranks), strict=True)
        found[mode] = [(mean(wall for wall, _ in row), mean(cpu for _, cpu in row)) for row in rows]
    return found


def averaged(always: Sequence[float], window: Sequence[float], steps: int, every: int) -> list[float]:
    """A step of a schedule with a window in ``every`` steps, where blocks of ``steps`` have one."""
    return [on + (one - on) * steps / every for on, one in zip(always, window, strict=True)]


def measure(size: str, rounds: int, steps: int) -> None:
    begin = time.monotonic()
    found = trained(size, rounds, steps)
    took = time.monotonic() - begin
    walls, cpus = ({mode: [row[place] for row in rows] for mode, rows in found.items()} for place in (0, 1))
    print(f"{size}: {1000 * mean(walls[BARE]):.1f} ms a step, {rounds} rounds of blocks of {steps}, {took:.0f} s")
    for what, own in (("mean step", walls), ("CPU time", cpus)):
        for mode in (AGAIN, ALWAYS):
            print(f"  {mode} / bare, {what}: {paired_ratio(own[mode], own[BARE])}")
        for every in EVERY:
            scheduled = averaged(own[ALWAYS], own[WINDOW], steps, every)
            print(f"  a window in {every} steps / bare, {what}: {paired_ratio(scheduled, own[BARE])}")
    for what, own in (("time", walls), ("CPU time", cpus)):
        always = median(1000 * (on - off) for on, off in zip(own[ALWAYS], own[BARE], strict=True))
        window = median(1000 * steps * (one - on) for one, on in zip(own[WINDOW], own[ALWAYS], strict=True))
        print(f"  {what}: {always:.2f} ms a step, {window:.0f} ms a window of three steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=8, help="that a block measures")
    given = parser.parse_args()
    for size in given.size or SHAPES:
        measure(size, given.rounds, given.steps)


if __name__ == "__main__":
    main()

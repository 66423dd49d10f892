"""What attaching costs a training that knows nothing of it.

    python -m tests.bench.attach_overhead [--size small] ... [--turns 800] [--launches 2] [--windows 10]

Two gloo ranks under torchrun, one loader worker each. Steps of three modes take turns in one process, in an order drawn
anew for each turn: bare; bare again, the noise; and recorded without profiler windows, by the hooks of ``diag run``,
which are taken out for the others. A barrier before and after each step puts what a rank does late into its own step,
and the slowest rank counts. Two processes after each other differ by ten percent without any reason of their own, and
the machine's speed changes from second to second; steps after each other have both in common. What a window costs is
measured in blocks of steps, with one and without, which take turns, too. What is done after so many seconds (records
are written, the scheduler is asked at every phase, the loader's queue is looked at) is done after as many seconds of
recorded steps, as it would be if no others lay between.

Prints the mean of what a recorded step takes longer than the two bare ones of its turn, as a ratio to theirs, with a
95 % bootstrap interval over the turns, in wall and in CPU time; differences beyond five times their median deviation
are cut to that, on both sides, for other processes have spikes. The median beside it does not see the step, one in 32
of 40 ms each, that writes for the others. Then what a window of three steps costs, the median of the blocks; and the
ratio over a schedule with a window in every ``EVERY`` steps. Goals: 1.005 without windows, 1.02 with. The heartbeat's
thread runs through all modes and is not in them: it takes about a millisecond of CPU a second.
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
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from tests.bench._paired import bootstrap
from tests.bench._plain_training import AGAIN, ALWAYS, BARE, BLOCK, SHAPES, TURNS, WINDOW, WITHOUT, Times

SCRIPT = Path(__file__).with_name("_plain_training.py")
EVERY = (200, 1000)  # steps from window to window
SPIKE = 5  # median deviations
RANKS = 2

Found = dict[str, list[Times]]
Seconds = NDArray[np.float64]


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


def measure(size: str, turns: int, launches: int, windows: int) -> None:
    begin = time.monotonic()
    jobs = [trained(size, turns, windows) for _ in range(launches)]
    print(f"{size}: {launches} launches of {turns} turns and {windows} windows, {time.monotonic() - begin:.0f} s")
    for place, what in enumerate(("time", "CPU time")):
        columns = {mode: np.array([row[place] for job in jobs for row in of_job(job, mode)]) for mode in jobs[0][0]}
        bare, again, always = (columns[mode] for mode in TURNS)
        step = float(np.median(np.concatenate([bare, again])))
        differences = always - (bare + again) / 2
        added = _means(without_spikes(differences))
        print(f"  {what}: {1000 * step:.1f} ms a bare step; recorded {1000 * added[0]:+.2f} ms", end="")
        if windows:
            window = _medians(BLOCK * (columns[WINDOW] - columns[WITHOUT]))
            print(f", a window of three steps {1000 * window[0]:+.0f} ms", end="")
        print()
        _say(f"{AGAIN} / {BARE}", _means(without_spikes(again - bare)), step)
        _say(f"{ALWAYS} / {BARE}", added, step)
        _say(f"{ALWAYS} / {BARE}, the median", _medians(differences), step)
        for every in EVERY if windows else ():
            _say(f"a window in {every} steps / {BARE}", added + window / every, step)


def without_spikes(differences: Seconds) -> Seconds:
    middle = np.median(differences)
    most = SPIKE * np.median(np.abs(differences - middle))
    return np.clip(differences, middle - most, middle + most)


def _means(values: Seconds) -> Seconds:
    """The mean, and behind it those of bootstrap draws."""
    return np.concatenate([[values.mean()], bootstrap(values).mean(axis=1)])


def _medians(values: Seconds) -> Seconds:
    return np.concatenate([[np.median(values)], np.median(bootstrap(values), axis=1)])


def _say(what: str, added: Seconds, step: float) -> None:
    """``added``: seconds a step, and behind them bootstrap draws of them."""
    low, high = 1 + np.percentile(added[1:], [2.5, 97.5]) / step
    print(f"    {what}: {1 + added[0] / step:.4f} [{low:.4f}, {high:.4f}]", flush=True)


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

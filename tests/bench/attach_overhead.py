"""What attaching costs a training that knows nothing of it: attached runs in turn with bare ones of the same script.

    python -m tests.bench.attach_overhead [--size small] [--size large] [--rounds 10] [--steps 100]

Two gloo ranks under torchrun, whose script times its own steps after a warm-up, so that starting does not count. Each
round runs it once bare, once bare again, once recorded without profiler windows, and once as ``diag run`` does by
default, with one window; in an order that turns from round to round. Prints medians over the rounds of the ratio to
the bare run, with 95 % bootstrap intervals: of the fast steps (tenth percentile), the median step, the mean step, and
CPU time. Bare against bare is the noise of this machine. A window costs the same in a run of any length: what it costs
is told by itself, and from how many steps on the mean step is within the goal. Goals: 1.005 without windows, 1.02 with.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from tests.bench._paired import paired_ratio
from tests.bench._plain_training import SHAPES

SCRIPT = Path(__file__).with_name("_plain_training.py")
STEPS = {"small": 150, "large": 40}
GOAL = 1.02  # of the mean step with windows
BARE, AGAIN, ALWAYS, WINDOW = "bare", "bare again", "attached, no windows", "attached, one window"
OPTIONS: dict[str, tuple[str, ...] | None] = {BARE: None, AGAIN: None, ALWAYS: ("--no-trace",), WINDOW: ()}


@dataclass(frozen=True)
class Measured:
    """Seconds of one run. The steps are rank 0's: those of the others end with them. ``cpu``: a step and rank."""

    steps: list[float]
    cpu: float


def measured(mode: str, size: str, steps: int) -> Measured:
    options = OPTIONS[mode]
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*torchrun, str(SCRIPT), "--size", size, "--steps", str(steps), "--times", folder]
        if options is not None:
            out = str(Path(folder, "run"))
            ours = [sys.executable, "-m", "diag", "run", "--auto-traces", "0", *options, "--out", out, "--"]
            command = [*ours, *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{mode}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        if options is not None and not Path(folder, "run", "ranks", "00000", "steps.jsonl").exists():
            sys.exit(f"{mode}: nothing was recorded\n{done.stderr[-2000:]}")
        told = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    return Measured(told[0]["steps_s"], mean(rank["cpu_s"] for rank in told) / steps)


def fast_step(run: Measured) -> float:
    """The tenth percentile, in seconds: what else runs on the machine only ever makes steps longer."""
    return sorted(run.steps)[len(run.steps) // 10]


def window_cost(run: Measured) -> float:
    """Seconds that the window adds to the run: its steps, and what is written after them, above the median step."""
    return sum(run.steps) - len(run.steps) * median(run.steps)


def report(size: str, runs: dict[str, list[Measured]], steps: int, seconds: float) -> None:
    base = median(median(run.steps) for run in runs[BARE])
    count = len(runs[BARE])
    print(f"{size}: {1000 * base:.1f} ms a step bare, {count} rounds of {steps} steps a mode, {seconds:.0f} s in all")
    for mode in (AGAIN, ALWAYS, WINDOW):
        for what, of in (
            ("fast steps", fast_step),
            ("median step", lambda run: median(run.steps)),
            ("mean step", lambda run: mean(run.steps)),
            ("CPU time", lambda run: run.cpu),
        ):
            print(f"  {mode} / bare, {what}: {paired_ratio([*map(of, runs[mode])], [*map(of, runs[BARE])])}")
    # Slow steps that have nothing to do with the window are in all runs.
    cost = median(map(window_cost, runs[WINDOW])) - median(map(window_cost, runs[ALWAYS]))
    always = median(median(a.steps) / median(b.steps) for a, b in zip(runs[ALWAYS], runs[BARE], strict=True))
    spare = (GOAL - always) * base
    if cost <= 0 or spare <= 0:
        what = "a window" if cost <= 0 else f"what is left of {GOAL} for windows"
        print(f"  {what} is less than the noise")
    else:
        print(f"  a window costs {1000 * cost:.0f} ms: within {GOAL} on the mean with one in {cost / spare:,.0f} steps")


def measure(size: str, rounds: int, steps: int) -> None:
    runs: dict[str, list[Measured]] = {mode: [] for mode in OPTIONS}
    modes: Sequence[str] = tuple(OPTIONS)
    begin = time.monotonic()
    for turn in range(rounds):
        at = turn % len(modes)
        for mode in (*modes[at:], *modes[:at]):
            runs[mode].append(measured(mode, size, steps))
    report(size, runs, steps, time.monotonic() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, help=f"timed ones of a run; else {STEPS}")
    given = parser.parse_args()
    for size in given.size or SHAPES:
        measure(size, given.rounds, given.steps or STEPS[size])


if __name__ == "__main__":
    main()

"""What attaching costs a training that knows nothing of it: an attached run and a bare one of the same script, at the
same time.

    python -m tests.bench.attach_overhead [--size small] [--size large] [--rounds 10] [--seconds 20]

Two gloo ranks each, under torchrun. On a shared machine two runs after each other differ by ten percent without any
reason of their own; what else the machine does hits two that run at once alike. So each pair trains at once, the one
started first turning from round to round, and the steps and CPU times that the script itself recorded are compared over
the time in which both were training. Pairs: bare against bare, the noise; recorded without profiler windows; and
recorded with windows of three steps, one in every ``EVERY`` steps. Prints medians over the rounds of the ratios to the
bare run with 95 % bootstrap intervals: of the mean step, and of CPU time a step. Four ranks share the cores, so a step
takes longer than alone, and waiting that CPU work would fill does not show. Goals: 1.005 without windows, 1.02 with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from tests.bench._paired import paired_ratio
from tests.bench._plain_training import SHAPES

SCRIPT = Path(__file__).with_name("_plain_training.py")
EVERY = 200  # steps from window to window
BARE, ALWAYS, WINDOWS = "bare", "attached, no windows", "attached, windows"
OPTIONS: dict[str, tuple[str, ...] | None] = {
    BARE: None,
    ALWAYS: ("--no-trace",),
    WINDOWS: ("--trace-skip", "20", "--trace-active", "3", "--trace-every", str(EVERY)),
}


@dataclass(frozen=True)
class Rank:
    """``at_s``: when each step ended, on the system's clock; ``cpu_s``: the process's CPU time then."""

    at_s: list[float]
    cpu_s: list[float]


def command(mode: str, size: str, seconds: float, folder: Path) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [*torchrun, str(SCRIPT), "--size", size, "--seconds", str(seconds), "--times", str(folder)]
    options = OPTIONS[mode]
    if options is None:
        return script
    diag = [sys.executable, "-m", "diag", "run", "--auto-traces", "0", *options, "--out", str(folder / "run"), "--"]
    return [*diag, *script]


def at_once(modes: tuple[str, str], size: str, seconds: float) -> tuple[list[Rank], list[Rank]]:
    """The ranks of two runs that train at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, str(number)) for number in range(len(modes))]
        started = []
        for mode, own in zip(modes, folders, strict=True):
            own.mkdir()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            pipe = subprocess.PIPE
            asked = command(mode, size, seconds, own)
            started.append(subprocess.Popen(asked, env=environment, stdout=pipe, stderr=pipe, text=True))
        found = []
        for mode, own, process in zip(modes, folders, started, strict=True):
            _, errors = process.communicate()
            if process.returncode:
                sys.exit(f"{mode}: exit code {process.returncode}\n{errors[-2000:]}")
            if OPTIONS[mode] is not None and not (own / "run" / "ranks" / "00000" / "steps.jsonl").exists():
                sys.exit(f"{mode}: nothing was recorded\n{errors[-2000:]}")
            found.append([Rank(**json.loads(path.read_text())) for path in sorted(own.glob("*.json"))])
    return found[0], found[1]


def common(runs: tuple[list[Rank], list[Rank]]) -> tuple[float, float]:
    """From when to when both train."""
    ranks = [*runs[0], *runs[1]]
    return max(rank.at_s[0] for rank in ranks), min(rank.at_s[-1] for rank in ranks)


def costs(ranks: list[Rank], begin: float, end: float) -> tuple[float, float]:
    """Seconds of a mean step, and of CPU time a step and rank, of the steps that lie within; ranks step together."""
    steps, cpu = [], []
    for rank in ranks:
        within = [place for place, at in enumerate(rank.at_s) if begin <= at <= end]
        first, last = within[0], within[-1]
        steps.append((rank.at_s[last] - rank.at_s[first]) / (last - first))
        cpu.append((rank.cpu_s[last] - rank.cpu_s[first]) / (last - first))
    return mean(steps), mean(cpu)


def measure(size: str, rounds: int, seconds: float) -> None:
    found: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {BARE: [], ALWAYS: [], WINDOWS: []}
    begin = time.monotonic()
    for turn in range(rounds):
        for mode in found:
            if turn % 2:
                bare, other = at_once((BARE, mode), size, seconds)
            else:
                other, bare = at_once((mode, BARE), size, seconds)
            both = common((other, bare))
            found[mode].append((costs(other, *both), costs(bare, *both)))
    took = time.monotonic() - begin
    alone = median(bare[0] for pairs in found.values() for _, bare in pairs)
    print(f"{size}: {1000 * alone:.1f} ms a step beside another training, {rounds} rounds, {took:.0f} s", flush=True)
    for mode, pairs in found.items():
        for what, place in (("mean step", 0), ("CPU time", 1)):
            ratio = paired_ratio([other[place] for other, _ in pairs], [bare[place] for _, bare in pairs])
            print(f"  {mode} / bare, {what}: {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20, help="that each run trains")
    given = parser.parse_args()
    for size in given.size or SHAPES:
        measure(size, given.rounds, given.seconds)


if __name__ == "__main__":
    main()

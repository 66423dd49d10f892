"""Are faults of thousands of GPUs found from the ranks' own summaries, and what does that cost?

    python tests/bench/device_summaries.py [--ranks 1024 4096 24576] [--faults 180] [--healthy 200] [--jobs 2]
    python tests/bench/device_summaries.py --cost [--ranks 24576] [--steps 100] [--cores 2] [--repeats 3] [--durations]

Simulated jobs (``tests/many_devices.py``) with one planted fault that costs 13 to 40 % of the step: class, cause and
ranks must be right. Healthy ones must be called healthy. With ``--durations``, no event saw most waits: the ranks of a
slow GPU or node must be right by the Flight Recorder's durations, and of healthy jobs none must be named. Of the larger
sizes every tenth and every fiftieth job is made. ``--cost`` writes the summaries of a job with a slow GPU, and beside
them who each rank is and its heartbeat, runs ``diag analyze --summary`` in a fresh process, and prints its CPU time
(user + system) and the process's peak of memory. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diag.collectors.layout import RunLayout
from diag.rundir.states import LIVE
from tests.bench._measure import Cost, measured, median_of, python
from tests.many_devices import Devices, write_signs

HEALTHY = "healthy"
# When the records were last written. A training's heartbeats go on while it is analysed: those of a time that has not
# come yet do not grow old.
TRAINS_S, LONG_AGO_S = 600.0, -3_600.0
WRITE = """
import sys; from pathlib import Path; from tests.many_devices import Devices, write_devices
ranks, steps, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
more = {"units": 8, "waits_seen": 0.3, "timed": True} if sys.argv[4] == "durations" else {}
write_devices(Devices(ranks, steps=steps, slow={ranks // 3: 1.4}, **more), folder)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--durations", action="store_true", help="no event saw most waits: durations say who is late")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--faults", type=int, default=180)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.cost:
        cost(options)
    else:
        found(options)


def found(options: argparse.Namespace) -> None:
    sizes, faults, healthy = options.ranks or [1_024, 4_096, 24_576], options.faults, options.healthy
    right, of = Counter[str](), Counter[str]()
    sure = 0.0
    with ProcessPoolExecutor(options.jobs) as pool:
        for made in pool.map(partial(_one, sizes, faults, options.durations), range(faults + healthy)):
            of[made.fault] += 1
            right[made.fault] += made.right
            sure += made.confidence
            if not made.right:
                print(
                    f"{made.number} {made.fault}, {made.ranks:,} ranks: {made.headline} [{made.expected}]", flush=True
                )
            if made.number % 20 == 19:
                print(f"{made.number + 1} jobs, {sum(right.values())} right", file=sys.stderr, flush=True)
    for fault in of:
        print(f"{fault}: {right[fault]} of {of[fault]}")
    planted = [name for name in of if name != HEALTHY]
    told = {"faults": sum(of[f] for f in planted), "right": sum(right[f] for f in planted)}
    mean = round(sure / (faults + healthy), 3)
    print(json.dumps({**told, "healthy": of[HEALTHY], "called healthy": right[HEALTHY], "confidence": mean}))


@dataclass(frozen=True)
class Made:
    number: int
    fault: str
    ranks: int
    right: bool
    confidence: float
    headline: str
    expected: str


def _one(sizes: list[int], faults: int, durations: bool, number: int) -> Made:
    """The job of this number, which decides everything about it, and whether the answer is right."""
    from dataclasses import replace

    from tests.bench.confidence.cases import is_right
    from tests.bench.grid.cases import answer
    from tests.bench.planted_devices import FAULTS, SLOW, SLOW_NODE, analysed, truth_for, usual, with_fault

    ranks = sizes[-1] if number % 50 == 49 else sizes[len(sizes) // 2] if number % 10 == 9 else sizes[0]
    rng = Random(f"device summaries {number}")
    job, planted = usual(rng, ranks, tuning=False), FAULTS
    if durations:  # the cause of a delay is not known, and without one nothing is
        job, planted = replace(job, waits_seen=0.3, timed=True), (SLOW, SLOW_NODE)
    if number < faults:
        fault = planted[number % len(planted)]
        job = with_fault(job, fault, rng.uniform(0.15, 0.4), rng)
        result, truth = analysed(job), truth_for(job)
        right, expected = is_right(result, truth), str(truth.right[0])
        if durations:
            named = tuple(sorted(result.verdict.culprit_ranks))
            right = result.verdict.cause == "straggler" and named in truth.right[0].culprits
    else:
        fault = expected = HEALTHY
        result = analysed(job)
        right = not result.verdict.culprit_ranks if durations else answer(result).bottleneck == HEALTHY
    return Made(number, fault, ranks, right, result.verdict.confidence, result.verdict.headline, expected)


def _analysed(folder: Path, job: Devices, repeats: int, from_now_s: float, compiled: str) -> list[Cost]:
    """``from_now_s``: when the records were last written. ``compiled``: where Python keeps the modules, as where it is
    installed; compiling them is no part of the cost."""
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}
    costs = []
    for _ in range(repeats):
        at_s = time.time() + from_now_s
        write_signs(RunLayout(folder), job, int(at_s * 1e9))
        for path in (folder / "manifest.json", *folder.glob("ranks/*/summary.jsonl")):
            os.utime(path, (at_s, at_s))
        costs.append(measured(python("-m", "diag", "analyze", "--summary", str(folder)), kept))
        if costs[-1].failed:
            raise SystemExit(costs[-1].failed)
        state = json.loads((folder / "verdict.json").read_text())["state"]["state"]
        if (state in LIVE) != (from_now_s == TRAINS_S):
            raise SystemExit(f"records of {from_now_s:+.0f} s: the run is called {state}")
    return costs


def cost(options: argparse.Namespace) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    rows = []
    for ranks in options.ranks or [24_576]:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as compiled:
            what = "durations" if options.durations else "events"
            written = measured(python("-c", WRITE, str(ranks), str(options.steps), folder, what))
            if written.failed:
                raise SystemExit(written.failed)
            # While it trains, and an hour after it left no end: then it is asked as well who ended first.
            job = Devices(ranks, steps=options.steps)
            _analysed(Path(folder), job, 1, LONG_AGO_S, compiled)
            costs = _analysed(Path(folder), job, options.repeats, TRAINS_S, compiled)
            ended = median_of(_analysed(Path(folder), job, options.repeats, LONG_AGO_S, compiled))
            culprit = json.loads((Path(folder) / "verdict.json").read_text())["verdict"]["culprit"]
            if culprit is None or culprit["ranks"] != [ranks // 3]:
                raise SystemExit(f"{ranks} ranks: rank {ranks // 3} is late, the verdict names {culprit}")
            size = sum(path.stat().st_size for path in Path(folder).glob("ranks/*/summary.jsonl")) / ranks
            one = median_of(costs)
            rows.append({"ranks": ranks, "cpu_s": one.cpu_s, "wall_s": one.wall_s, "rss_mb": one.rss_mb, "bytes": size})
            rows[-1] |= {"ended_cpu_s": ended.cpu_s, "ended_rss_mb": ended.rss_mb}
            print(
                f"{ranks:6,} ranks: {one.cpu_s:.1f} s of CPU, {one.rss_mb:,.0f} MB, {size:,.0f} bytes a rank; "
                f"without an end {ended.cpu_s:.1f} s, {ended.rss_mb:,.0f} MB",
                flush=True,
            )
    print(json.dumps({"steps": options.steps, "cores": options.cores, "runs": rows}))


if __name__ == "__main__":
    main()

"""Are faults of thousands of GPUs found from the ranks' own summaries, and what does that cost?

    python tests/bench/device_summaries.py [--ranks 1024 4096 24576] [--faults 180] [--healthy 200]
    python tests/bench/device_summaries.py --cost [--ranks 24576] [--steps 100] [--cores 2] [--repeats 3]

Simulated jobs (``tests/many_devices.py``) with one planted fault that costs 13 to 40 % of the step: class, cause and
ranks must be right. Healthy ones must be called healthy. Of the larger sizes every tenth and every fiftieth job is
made. ``--cost`` writes the summaries of a job with a slow GPU, runs ``diag analyze --summary`` in a fresh process, and
prints its CPU time (user + system) and the process's peak of memory. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench._measure import measured, median_of, python

WRITE = """
import sys; from pathlib import Path; from tests.many_devices import Devices, write_devices
ranks, steps, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
write_devices(Devices(ranks, steps=steps, slow={ranks // 3: 1.4}), folder)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--faults", type=int, default=180)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.cost:
        cost(options)
    else:
        found(options.ranks or [1_024, 4_096, 24_576], options.faults, options.healthy)


def found(sizes: list[int], faults: int, healthy: int) -> None:
    from tests.bench.confidence.cases import is_right
    from tests.bench.grid.cases import answer
    from tests.bench.planted_devices import FAULTS, analysed, truth_for, usual, with_fault

    right, of = Counter[str](), Counter[str]()
    said: list[tuple[float, bool]] = []
    for number in range(faults + healthy):
        ranks = sizes[-1] if number % 50 == 49 else sizes[len(sizes) // 2] if number % 10 == 9 else sizes[0]
        rng = Random(f"device summaries {number}")
        job = usual(rng, ranks, tuning=False)
        fault = FAULTS[number % len(FAULTS)] if number < faults else "healthy"
        if number < faults:
            job = with_fault(job, fault, rng.uniform(0.15, 0.4), rng)
        result = analysed(job)
        if number < faults:
            truth = truth_for(job)
            good = is_right(result, truth)
        else:
            good = answer(result).bottleneck == "healthy"
        said.append((result.verdict.confidence, good))
        of[fault] += 1
        right[fault] += good
        if not good:
            expected = truth.right[0] if number < faults else "healthy"
            print(f"{number} {fault}, {ranks:,} ranks: {result.verdict.headline} [{expected}]", flush=True)
    for fault in of:
        print(f"{fault}: {right[fault]} of {of[fault]}")
    planted = [name for name in of if name != "healthy"]
    sure = sum(confidence for confidence, _ in said) / len(said)
    told = {"faults": sum(of[f] for f in planted), "right": sum(right[f] for f in planted)}
    print(
        json.dumps({**told, "healthy": of["healthy"], "called healthy": right["healthy"], "confidence": round(sure, 3)})
    )


def cost(options: argparse.Namespace) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    rows = []
    for ranks in options.ranks or [24_576]:
        with tempfile.TemporaryDirectory() as folder:
            written = measured(python("-c", WRITE, str(ranks), str(options.steps), folder))
            if written.failed:
                raise SystemExit(written.failed)
            costs = [measured(python("-m", "diag", "analyze", "--summary", folder)) for _ in range(options.repeats)]
            if broken := next((one.failed for one in costs if one.failed), None):
                raise SystemExit(broken)
            culprit = json.loads((Path(folder) / "verdict.json").read_text())["verdict"]["culprit"]
            if culprit is None or culprit["ranks"] != [ranks // 3]:
                raise SystemExit(f"{ranks} ranks: rank {ranks // 3} is late, the verdict names {culprit}")
            size = sum(path.stat().st_size for path in Path(folder).glob("ranks/*/summary.jsonl")) / ranks
            one = median_of(costs)
            rows.append({"ranks": ranks, "cpu_s": one.cpu_s, "wall_s": one.wall_s, "rss_mb": one.rss_mb, "bytes": size})
            print(
                f"{ranks:6,} ranks: {one.cpu_s:.1f} s of CPU, {one.rss_mb:,.0f} MB, {size:,.0f} bytes a rank",
                flush=True,
            )
    print(json.dumps({"steps": options.steps, "cores": options.cores, "runs": rows}))


if __name__ == "__main__":
    main()

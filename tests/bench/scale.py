"""What a verdict over thousands of ranks costs: ``diag analyze`` of runs that hold nothing but the ranks' summaries.

    python tests/bench/scale.py [--ranks 1536 6144 24576] [--steps 100] [--repeats 3] [--cores 2] [--keep FOLDER]

Writes synthetic summaries (`tests/many_ranks.py`) with one rank in each job whose forward takes 60 ms longer, then runs
the command in a fresh process bound to so many cores. CPU time is user + system; memory the process's peak. Every
verdict must name the planted rank. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench._measure import Cost, measured, median_of, python

COMMAND = ("-m", "diag", "analyze", "--summary")


def write(ranks: int, steps: int, folder: Path) -> None:
    """In a process of its own: whoever measures must be small."""
    code = (
        "import sys; from pathlib import Path; from tests.many_ranks import Job, write_summaries; "
        "ranks, steps = int(sys.argv[1]), int(sys.argv[2]); "
        "write_summaries(Job(ranks, steps=steps, extra_us={ranks // 3: {'forward': 60_000}}), Path(sys.argv[3]))"
    )
    done = measured(python("-c", code, str(ranks), str(steps), folder))
    if done.failed:
        raise SystemExit(done.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1_536, 6_144, 24_576])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="where the runs are written, and found again")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for ranks in options.ranks:
            folder = (options.keep or Path(temporary)) / f"{ranks}-ranks"
            if not folder.exists():
                write(ranks, options.steps, folder)
            costs = [measured(python(*COMMAND, folder)) for _ in range(options.repeats)]
            broken = next((cost.failed for cost in costs if cost.failed), None)
            if broken:
                raise SystemExit(broken)
            named = json.loads((folder / "verdict.json").read_text())["verdict"]["culprit"]
            if named is None or named["ranks"] != [ranks // 3]:
                raise SystemExit(f"{ranks} ranks: rank {ranks // 3} is late, the verdict names {named}")
            found.append((ranks, median_of(costs), _bytes(folder) / ranks))
            print(_row(*found[-1]), flush=True)
    least, cost, _ = found[0]
    for ranks, more, _ in found[1:]:
        print(f"{ranks / least:.0f} times the ranks: {more.cpu_s / cost.cpu_s:.1f} times the CPU time")
    rows = [{"ranks": r, "wall_s": c.wall_s, "cpu_s": c.cpu_s, "rss_mb": c.rss_mb, "bytes": b} for r, c, b in found]
    print(json.dumps({"steps": options.steps, "cores": options.cores, "runs": rows}))


def _row(ranks: int, cost: Cost, size: float) -> str:
    return (
        f"{ranks:6,} ranks: {cost.wall_s:5.1f} s, {cost.cpu_s:5.1f} s of CPU, {cost.rss_mb:6,.0f} MB, "
        f"{cost.cpu_s / ranks * 1e3:.2f} ms of CPU and {size:,.0f} bytes a rank"
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("ranks/*/summary.jsonl"))


if __name__ == "__main__":
    main()

"""What a verdict over thousands of ranks costs: ``diag analyze`` of runs that hold nothing but the ranks' summaries, or
with ``--records`` of runs in which every step and collective of every rank was recorded.

    python tests/bench/scale.py [--ranks 1536 6144 24576] [--steps 100] [--repeats 3] [--cores 2] [--keep FOLDER]
    python tests/bench/scale.py --beside
    python tests/bench/scale.py --records [--ranks 128 512 1024] [--steps 40] [--ranks-a-host 8] [--hidden]

Writes synthetic summaries (`tests/many_ranks.py`) or records (`tests/simulate.py`: 20 collectives a step), with one
rank in each job whose forward takes 60 ms longer, then runs the command in a fresh process bound to so many cores. CPU
time is user + system; memory the process's peak. Every verdict must name the planted rank. With ``--hidden`` ranks ask
for the result of a collective only after it is there. With ``--beside`` each host has counted, and each rank has
records of its steps, of which few are read. The last line is JSON.
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

COMMAND = ("-m", "diag", "analyze")


SUMMARIES = """
import sys; from pathlib import Path; from tests.many_ranks import Job, write_beside, write_summaries
ranks, steps, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
job = Job(ranks, steps=steps, extra_us={ranks // 3: {"forward": 60_000}})
layout = write_summaries(job, folder)
if sys.argv[6] == "1":
    write_beside(layout, job)
"""
RECORDS = """
import sys; from pathlib import Path; from tests.simulate import MS, Plan, simulate, write_run
ranks, steps, folder, a_host, hidden = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:6])
late = lambda step, rank: {"forward": 60 * MS} if rank == ranks // 3 else {}
asks = lambda step, rank: (1 + (step + 7 * rank) % 5) * MS if hidden else 0
hosts = lambda rank: f"node{rank // a_host:04d}"
write_run(simulate(Plan(ranks, steps, units=9, extra=late, asks_later_ns=asks, hosts=hosts)), folder)
"""


def write(ranks: int, options: argparse.Namespace, folder: Path) -> None:
    """In a process of its own: whoever measures must be small."""
    told = (
        str(ranks),
        str(options.steps),
        folder,
        str(options.ranks_a_host),
        str(int(options.hidden)),
        str(int(options.beside)),
    )
    done = measured(python("-c", RECORDS if options.records else SUMMARIES, *told))
    if done.failed:
        raise SystemExit(done.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", action="store_true", help="all steps and collectives, not the summaries alone")
    parser.add_argument("--hidden", action="store_true", help="of records: collectives that computation hides")
    parser.add_argument("--beside", action="store_true", help="also what ranks and hosts record beside summaries")
    parser.add_argument("--ranks-a-host", type=int, default=8, help="of records: they share a clock")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="where the runs are written, and found again")
    options = parser.parse_args()
    options.ranks = options.ranks or ([128, 512, 1_024] if options.records else [1_536, 6_144, 24_576])
    options.steps = options.steps or (40 if options.records else 100)
    command = (*COMMAND, "--no-summary" if options.records else "--summary")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for ranks in options.ranks:
            folder = (options.keep or Path(temporary)) / f"{ranks}-ranks"
            if not folder.exists():
                write(ranks, options, folder)
            costs = [measured(python(*command, folder)) for _ in range(options.repeats)]
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
    return sum(path.stat().st_size for path in folder.glob("ranks/*/*.jsonl"))


if __name__ == "__main__":
    main()

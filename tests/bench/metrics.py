"""What following a large run costs: CPU time, series and memory of `diag metrics`, first and again, as a summary.

    python -m tests.bench.metrics [--ranks 4096] [--steps 5]

Every rank has the records of one simulated rank: 7 collectives a step. CPU time is user + system of this process; the
second reading finds nothing new. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # run as a script: its own folder is on the path, the checkout is not

from diag.collectors.layout import RunLayout
from diag.export.formats import to_text
from diag.export.run_metrics import RunMetrics
from tests.export.runs import NOW_NS, written


def many_ranks(folder: Path, ranks: int, steps: int) -> Path:
    """A run directory in which every rank's files are copies of the first's."""
    first = written(folder / "one", ranks=1, steps=steps)
    layout = RunLayout(folder / "run")
    files = {source.name: source.read_bytes() for source in first.rank(0).folder.iterdir()}
    for rank in range(ranks):
        own = layout.rank(rank).folder
        own.mkdir(parents=True)
        for name, content in files.items():
            (own / name).write_bytes(content)
    layout.manifest.write_bytes(first.manifest.read_bytes())
    return layout.root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = many_ranks(Path(folder), given.ranks, given.steps)
        followed, cpu_s, series = RunMetrics(run, per_rank=False), [], 0
        for _ in range(2):
            before = time.process_time()
            samples = followed.read(NOW_NS)
            to_text(samples)
            cpu_s.append(round(time.process_time() - before, 2))
            series = len(samples)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        each = len(RunMetrics(run, per_rank=True, only=range(1)).read(NOW_NS))
    print(
        f"{given.ranks:,} ranks of {given.steps} steps: first {cpu_s[0]} s of CPU, again {cpu_s[1]} s, {peak_mb:.0f} MB"
    )
    print(json.dumps({"cpu_s": cpu_s, "series": series, "series_of_one_rank": each, "peak_mb": round(peak_mb)}))


if __name__ == "__main__":
    main()

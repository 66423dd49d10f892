"""How often diag is right: runs with planted faults, simulated or real, diagnosed and scored.

    python -m tests.bench.grid [--half tuning|heldout|both] [--rows S1 D2] [--numbers 4] [--limit 200] [--jobs 2]
    python -m tests.bench.grid --half heldout --numbers 10 --markdown tests/bench/grid/GRID.md
    python -m tests.bench.grid --case heldout/S1-forward/3 [--keep FOLDER]
    python -m tests.bench.grid --real runs.jsonl --limit 5

The truth of a simulated case comes from its schedule (truth.py), never from diag. Thresholds are to be chosen on the
tuning half and reported on the held-out one, whose models, worlds, ranks, shares and seeds are others. ``--real``
trains with the bundled trainer on CPU ranks, a case at a time, and appends to the file; run it again and it goes on.
Ends with the list of wrong answers, a table, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec

if not __package__:  # run as a script: its own folder is on the path, the checkout is not
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.grid.cases import Scored, case_ids, score
from tests.bench.grid.gpu.rows import HALVES
from tests.bench.grid.markdown import document
from tests.bench.grid.report import summary, table, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=(*HALVES, "both"), default="both")
    parser.add_argument("--rows", nargs="*", default=(), help="only rows whose names begin so")
    parser.add_argument("--numbers", type=int, default=4, help="cases of each row and half")
    parser.add_argument("--limit", type=int, help="at most so many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", help="only this one")
    parser.add_argument("--keep", type=Path, help="keep the files of the cases in this folder")
    parser.add_argument("--out", type=Path, help="write every case to this file, one JSON a line")
    parser.add_argument("--from", dest="file", type=Path, help="the cases of such a file, not made again")
    parser.add_argument("--markdown", type=Path, help="write tables and wrong answers to this file")
    parser.add_argument("--real", type=Path, help="real runs on CPU ranks instead; results are appended to this file")
    options = parser.parse_args()
    if options.real is not None:
        from tests.bench.grid.real import run_real

        run_real(options.real, tuple(options.rows), options.limit, options.markdown)
        return
    halves = tuple(HALVES) if options.half == "both" else (options.half,)
    ids = [options.case] if options.case else case_ids(halves, tuple(options.rows), options.numbers)[: options.limit]
    begin = time.perf_counter()
    if options.file is not None:
        cases = [msgspec.json.decode(line, type=Scored) for line in options.file.read_bytes().splitlines()]
    else:
        cases = scored(ids, options.seed, options.keep, options.jobs)
    took = time.perf_counter() - begin
    if options.out is not None:
        options.out.write_text("".join(json.dumps(asdict(case), default=sorted) + "\n" for case in cases))
    if options.markdown is not None:
        options.markdown.write_text(document(cases, halves, options.seed))
    if options.case:
        print(json.dumps(asdict(cases[0]), default=sorted, indent=1))
    print(wrong(cases))
    for half in halves:
        own = [case for case in cases if case.id.startswith(half)]
        if own:
            print(f"\n== {half}")
            print(table(own))
    print(f"\n{len(cases)} cases in {took:.0f} s, {took / len(cases):.2f} s each")
    print(json.dumps({half: summary([c for c in cases if c.id.startswith(half)]) for half in halves}))


def scored(ids: list[str], seed: int, keep: Path | None, jobs: int) -> list[Scored]:
    one = partial(score, seed=seed, keep=keep)
    if jobs == 1:
        return [one(case) for case in ids]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(one, ids))


if __name__ == "__main__":
    main()

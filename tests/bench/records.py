"""What the analysis of a recorded run costs, and what it costs again after the run has grown.

    python tests/bench/records.py [--runs 64x1000 16x400 16x3200 2x15000 1024x40] [--grown 64x1000+100] [--repeats 3]

Writes runs of so many ranks and steps, of 20 collectives each, with one rank whose backward takes 60 ms longer. Eight
ranks are on one host, and share its clock; the training has ended. In a run of two ranks, steps take 2.5 ms and no rank
is late. Each run is analysed in a fresh process without a cache, in turns with the floor: msgspec decodes the same
lines into the records of the collectors, and keeps none of them. Ratios to the floor can be compared although a machine
is busy. CPU time is user + system; memory the process's peak. Every verdict must name the late rank. ``--grown``: the
first steps are analysed, then all of them, with the cache of the first analysis, and all of them once more. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import compileall
import json
import random
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diag.collectors.records import Heartbeat, RankRecord
from tests.bench._measure import Cost, measured, median_of, python

MS = 1_000_000
CALLS = 20
STARTED = 1_700_000_000 * 10**9
ANALYZE = ("-m", "diag", "analyze", "--no-summary")
FLOOR = """
import gc, sys; from pathlib import Path; import msgspec
from diag.collectors.records import CollectiveLine, StepRecord
gc.disable()
for name, kind in (("steps", StepRecord), ("collectives", CollectiveLine)):
    decode = msgspec.json.Decoder(kind).decode_lines
    for file in Path(sys.argv[1]).glob(f"ranks/*/{name}.jsonl"):
        with file.open("rb") as lines:
            while piece := lines.read(1 << 20):
                decode(piece + lines.readline())
"""


def write(folder: Path, ranks: int, steps: int, first: int = 0) -> None:
    """The steps from ``first`` on, behind those that are there."""
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    about = {"schema_version": 2, "run_id": "made", "argv": [], "world_size": ranks, "hosts": {}, "backend": "gloo"}
    (folder / "manifest.json").write_text(json.dumps({**about, "device": "cpu", "exit_code": 0}))
    late, unit, extra = (ranks // 3, 10 * MS, 60 * MS) if ranks > 2 else (0, MS // 10, 0)
    drawn = random.Random(first)
    length = (CALLS + 3) * unit + CALLS * unit // 10 + extra
    for rank in range(ranks):
        of_rank = folder / f"ranks/{rank:05d}"
        of_rank.mkdir(exist_ok=True)
        host = f"node{rank // 8:03d}"
        identity = RankRecord(rank, rank % 8, ranks, host, rank, host, monotonic_ns=0, unix_ns=STARTED, device="cpu")
        (of_rank / "rank.json").write_bytes(msgspec.json.encode(identity))
        ended = Heartbeat(STARTED, monotonic_ns=0, step=steps - 1, phase="done", done=True, steps=steps)
        (of_rank / "heartbeat.json").write_bytes(msgspec.json.encode(ended))
        with (of_rank / "steps.jsonl").open("a") as records, (of_rank / "collectives.jsonl").open("a") as collectives:
            for step in range(first, steps):
                begin = MS + step * length
                at, rows, half = begin + unit, [], 0
                for call in range(CALLS):
                    middle = call == CALLS // 2
                    half = at if middle else half
                    entered = at + unit + (extra if middle and rank == late else drawn.randrange(unit // 50))
                    at += unit + unit // 10 + (extra if middle else 0)
                    op = "all_gather" if call < CALLS // 2 else "reduce_scatter"
                    spans = f"{entered},{at},{entered},{at}"
                    rows.append(f'["0",{step * CALLS + call},"{op}",4000000,"float32",{spans},true,null]')
                groups = json.dumps({"0": list(range(ranks))}) if not step else "{}"
                collectives.write(f'{{"step":{step},"rows":[{",".join(rows)}],"groups":{groups},"dropped":0}}\n')
                edges = (begin, begin + unit, half, at, begin + length)
                names = ("data", "forward", "backward", "optimizer")
                phases = ",".join(f'["{name}",{edges[i]},{edges[i + 1]}]' for i, name in enumerate(names))
                memory = '"memory":{"rss":1000000000}'
                records.write(
                    f'{{"step":{step},"begin_ns":{begin},"end_ns":{begin + length},"phases":[{phases}],{memory}}}\n'
                )


def analyzed(folder: Path, ranks: int, cache: str) -> Cost:
    cost = measured(python(*ANALYZE, folder), {"DIAG_CACHE": cache})
    if cost.failed:
        raise SystemExit(cost.failed)
    culprit = json.loads((folder / "verdict.json").read_text())["verdict"]["culprit"]
    if ranks > 2 and (culprit is None or culprit["ranks"] != [ranks // 3]):
        raise SystemExit(f"{folder.name}: rank {ranks // 3} is late, the verdict names {culprit}")
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", default=["64x1000", "16x400", "16x3200", "2x15000", "1024x40"])
    parser.add_argument("--grown", nargs="*", default=["64x1000+100"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="where the runs are written, and found again")
    options = parser.parse_args()
    for package in ("diag", "collectors"):
        compileall.compile_dir(Path(__file__).resolve().parents[2] / package, quiet=1)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        for name in options.runs:
            ranks, steps = map(int, name.split("x"))
            folder = root / name
            if not folder.exists():
                write(folder, ranks, steps)
            turns = [
                (analyzed(folder, ranks, "off"), measured(python("-c", FLOOR, folder))) for _ in range(options.repeats)
            ]
            cost, floor = (median_of(list(costs)) for costs in zip(*turns, strict=True))
            found[name] = {"cpu_s": cost.cpu_s, "rss_mb": cost.rss_mb, "floors": cost.cpu_s / floor.cpu_s}
            print(
                f"{name}: {cost.cpu_s:.1f} s of CPU, {cost.cpu_s / floor.cpu_s:.1f} floors, {cost.rss_mb:,.0f} MB",
                flush=True,
            )
        for name in options.grown:
            ranks, first, more = map(int, name.replace("+", "x").split("x"))
            folder = Path(temporary) / name
            write(folder, ranks, first)
            before = analyzed(folder, ranks, f"{temporary}/cache")
            write(folder, ranks, first + more, first)
            grown = analyzed(folder, ranks, f"{temporary}/cache")
            again = analyzed(folder, ranks, f"{temporary}/cache")
            found[name] = {"first_s": before.cpu_s, "grown_s": grown.cpu_s, "again_s": again.cpu_s}
            print(
                f"{name}: {before.cpu_s:.1f} s at first, {grown.cpu_s:.1f} s when grown, {again.cpu_s:.1f} s again",
                flush=True,
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()

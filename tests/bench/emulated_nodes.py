"""What a store sees of many nodes, and what a packer costs: python -m tests.bench.emulated_nodes [--nodes 1250]

An hour of simulated time, with the real packer. One node has the full records of 8 ranks, written by the collectors'
writer on a simulated clock: 32-layer FSDP2, steps of a second. Its packer runs in a process of its own, of which CPU
time and memory are measured. Nodes that live through the hour all do the same, so a few stand for them. Every node that
dies is emulated: it comes back after some minutes, with its folder or without, as another node of the run. At the end
the run is read, and each node's records must be there up to its last interval. docs/guides/large-jobs.md has figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import TemporaryDirectory

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.packing import HIDDEN, Packing
from diag.collectors.records import Heartbeat, RankRecord
from diag.rundir.copies import copy_of
from diag.store.packer import Node
from diag.store.stores import Store
from tests.bench._told_packer import INTERVAL_S, CountedStore
from tests.long_run import LongRun

RANKS, HOUR_S = 8, 3_600
# List prices of requests to S3 Standard in us-east-1, dollars. Removing costs nothing.
PRICES = {"write": 0.005 / 1_000, "read": 0.0004 / 1_000, "remove": 0.0}


# -- one node with all its records -------------------------------------------------------------------------------------


def one_node(base: Path, calls: int, intervals: int) -> dict[str, float]:
    address = f"file://{base}/one"
    command = [sys.executable, "-m", "tests.bench._told_packer", str(base / "full"), address]
    ranks = [
        LongRun(base / "full", 1 << 30, calls, rank, RANKS, chance=Random(f"records {rank}")) for rank in range(RANKS)
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as packer:
        assert packer.stdin is not None
        assert packer.stdout is not None
        for number in range(intervals):
            for rank, training in enumerate(ranks):
                training.train(INTERVAL_S)
                beat(RunLayout(base / "full").rank(rank), (number + 1) * INTERVAL_S)
            print("pack", file=packer.stdin, flush=True)
            packer.stdout.readline()
        packer.stdin.close()
        told: dict[str, float] = json.loads(packer.stdout.readline())
    return told


def beat(files: RankLayout, step: int) -> None:
    replace_file(files.heartbeat, encode(Heartbeat(0, 10**9 * step, step, "forward", steps=step)))


@dataclass
class Emulated:
    """A node of the fleet. ``stands_for``: so many that do the same. ``phase_s``: when in its interval it packs."""

    number: int
    folder: Path
    stands_for: int
    phase_s: float
    dies: int = -1  # interval
    returns: int = -1
    empty: bool = False
    node: Node | None = None
    expected: list[dict[str, bytes]] = field(default_factory=list)  # what was there when it packed last

    def start(self, store: Store, nodes: int) -> None:
        for rank in range(RANKS):
            files = RunLayout(self.folder).rank(rank + self.number * RANKS)
            files.folder.mkdir(parents=True, exist_ok=True)
            number, host = self.number * RANKS + rank, f"node{self.number:04d}"
            about = RankRecord(number, rank, nodes * RANKS, host, 100 + rank, host, 1_000, 0, "cpu")
            replace_file(files.identity, encode(about))
        self.node = Node(self.folder, Packing(store.address, INTERVAL_S), store)

    def record(self, interval: int) -> None:
        for files in RunLayout(self.folder).ranks().values():
            beat(files, interval)
            with files.steps.open("ab") as file:
                file.write(b'{"step":%d}\n' % interval)

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and HIDDEN not in path.parts
        }


def fleet(base: Path, nodes: int, deaths: int, samples: int, intervals: int, rng: Random) -> dict[str, object]:
    store = CountedStore(f"file://{base}/fleet")
    each = (nodes - deaths) // samples
    emulated = [Emulated(n, base / "nodes" / str(n), each, rng.uniform(0.2, 1.0) * INTERVAL_S) for n in range(samples)]
    for number in range(samples, samples + deaths):
        one = Emulated(number, base / "nodes" / str(number), 1, rng.uniform(0.2, 1.0) * INTERVAL_S)
        one.dies = rng.randrange(2, intervals - 2)
        one.returns, one.empty = one.dies + rng.randrange(2, 20), rng.random() < 0.5
        emulated.append(one)
    asked: Counter[str] = Counter()
    by_second: Counter[int] = Counter()
    lost: list[str] = []
    began_s = time.process_time()
    for one in emulated:
        one.start(store, nodes)
    for interval in range(intervals):
        for one in emulated:
            if interval == one.returns:
                if one.empty:
                    one.expected.append({})
                    rmtree(one.folder)
                one.start(store, nodes)
            if one.node is None:
                continue
            one.record(interval)
            if interval == one.dies:  # what it recorded in this interval is lost, unless its folder comes back
                one.node = None
                continue
            before = store.asked.copy()
            one.node.interval()
            done = store.asked - before
            for what, count in done.items():
                asked[what] += count * one.stands_for
            for _ in range(one.stands_for):  # others pack at other moments of the interval
                at_s = one.phase_s if one.stands_for == 1 else rng.uniform(0.2, 1.0) * INTERVAL_S
                by_second[int(interval * INTERVAL_S + at_s)] += done.total()
            one.expected = [*one.expected[:-1], one.contents()]
    cpu_s = time.process_time() - began_s
    objects = sum(
        len(list((base / "fleet" / "segments" / folder).iterdir())) * emulated_for
        for folder, emulated_for in _folders(base / "fleet" / "segments", emulated)
    )
    copy = copy_of(store.address, base / "cache")
    assert copy is not None
    stored = sorted(tuple(sorted(_records(node).items())) for node in (copy.parent / "nodes").iterdir())
    wanted = sorted(tuple(sorted(_plain(content).items())) for one in emulated for content in one.expected)
    lost += [str(number) for number, (is_, want) in enumerate(zip(stored, wanted, strict=False)) if is_ != want]
    return {
        "asked": dict(asked), "most_in_a_second": max(by_second.values()), "objects": objects, "cpu_s": cpu_s,
        "emulated": len(emulated), "nodes_in_store": len(stored), "wanted": len(wanted), "wrong": lost,
    }  # fmt: skip


def _folders(segments: Path, emulated: list[Emulated]) -> list[tuple[str, int]]:
    by_node = {one.node._state.node: one.stands_for for one in emulated if one.node is not None}
    return [(folder.name, by_node.get(folder.name, 1)) for folder in segments.iterdir()]


def _plain(content: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in content.items() if name.startswith("ranks/")}


def _records(node: Path) -> dict[str, bytes]:
    return _plain({str(path.relative_to(node)): path.read_bytes() for path in node.rglob("*") if path.is_file()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_250)
    parser.add_argument("--deaths", type=int, default=62, help="nodes that die within the hour and come back")
    parser.add_argument("--samples", type=int, default=12, help="emulated ones of the nodes that live")
    parser.add_argument("--calls", type=int, default=100, help="collectives a step")
    options = parser.parse_args()
    intervals = HOUR_S // INTERVAL_S
    with TemporaryDirectory() as folder:
        base = Path(folder)
        one = one_node(base, options.calls, intervals)
        many = fleet(base, options.nodes, options.deaths, options.samples, intervals, Random("nodes"))
    asked: dict[str, int] = many["asked"]  # type: ignore[assignment]
    total = sum(asked.values())
    minutes = options.nodes * RANKS * HOUR_S / 60
    print(f"{options.nodes:,} nodes of {RANKS} ranks, an hour, a segment every {INTERVAL_S} s")
    print(f"one packer: {one['cpu_s']:.1f} s of CPU in the hour, {1e3 * one['most_s']:.0f} ms at most at a time, "
          f"{one['rss_mb']:.0f} MB; it writes {one['written'] / 1e6:.1f} MB")  # fmt: skip
    by_kind = ", ".join(f"{count / HOUR_S:.1f} {what}" for what, count in asked.items())
    print(f"store: {total / HOUR_S:.0f} operations a second ({by_kind}), {many['most_in_a_second']} in the fullest")
    print(f"store: {total / minutes:.2f} operations a rank and minute")
    print(
        f"store: {one['written'] * options.nodes / HOUR_S / 1e6:.1f} MB a second; {many['objects']:,} files at the end"
    )
    dollars = sum(PRICES[what] * count for what, count in asked.items())
    print(f"requests to S3: {dollars:.2f} dollars an hour, {dollars * 720:,.0f} in 30 days")
    print(f"{options.deaths} nodes died and came back; of {many['wanted']} nodes and lives emulated, "
          f"{many['nodes_in_store']} are in the store, and {len(many['wrong'])} differ from what they had packed")  # type: ignore[arg-type]  # fmt: skip
    print(json.dumps({"one": one, "fleet": many, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()

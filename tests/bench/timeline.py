"""What reading a rank's timeline costs at several zooms: six million events, pixels and bars.

    python tests/bench/timeline.py [--events 6000000] [--repeats 5]

Lays out synthetic events (kernels on two streams, communication, and operators three deep on two threads) as the
dashboard does, then reads windows from the whole run down to a few events: pixels or bars, and the longest names.
Milliseconds are medians. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from diag.account.intervals import Intervals
from diag.tables.zoom import AllRanks, Bars, Category, Lane, RankLanes, by_name, make_lane, pixel_edges, read_lanes

_NAMES = [f"kernel_{i}<float, {i}>" for i in range(2000)]
_MEAN_GAP_NS = 12_000
_ZOOMS = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
_RANKS = 1024


def disjoint(rng: np.random.Generator, count: int, fill: float) -> Intervals:
    """Events one after the other that fill a part of the time."""
    start = np.cumsum(rng.exponential(_MEAN_GAP_NS, count)).astype(np.int64)
    length = (np.diff(start, append=start[-1] + _MEAN_GAP_NS) * rng.random(count) * 2 * fill).astype(np.int64)
    return np.stack((start, start + length), axis=1)


def nested(rng: np.random.Generator, count: int) -> Intervals:
    """Operators, each with two inside."""
    outer = disjoint(rng, count // 3, 0.45) * 3
    half = (outer[:, 0] + outer[:, 1]) // 2
    return np.concatenate((outer, np.stack((outer[:, 0], half), axis=1), np.stack((half, outer[:, 1]), axis=1)))


def lanes_of(events: int) -> list[Lane]:
    rng = np.random.default_rng(0)
    share = events // 8
    made = {
        ("kernels", Category.COMPUTE): np.concatenate([disjoint(rng, share, 0.4) for _ in range(2)]),
        ("communication", Category.COMMUNICATION): disjoint(rng, share, 0.3),
        ("operators, main thread", Category.HOST): nested(rng, 3 * share),
        ("operators, autograd", Category.HOST): nested(rng, 2 * share),
    }
    return [
        make_lane(title, category, found, rng.integers(0, len(_NAMES), len(found)).astype(np.uint32), _NAMES)
        for (title, category), found in made.items()
    ]


def all_ranks(pieces: int) -> AllRanks:
    """Ranks of which each waits so many times."""
    rng = np.random.default_rng(1)
    ranks = {
        rank: RankLanes(rank, (make_lane("waiting", Category.WAITING, disjoint(rng, pieces, 0.4)),), (), 0, ())
        for rank in range(_RANKS)
    }
    return AllRanks(pieces * _MEAN_GAP_NS, ranks, (), ())


def median_ms(repeats: int, work: Callable[[], object]) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begin) * 1000)
    return round(statistics.median(taken), 2)


def zooms(lanes: Sequence[Lane], repeats: int) -> list[dict[str, object]]:
    end = max(int(lane.end_ns.max()) for lane in lanes)
    found = []
    for zoom in _ZOOMS:
        width = max(1, int(end * zoom))
        begin = (end - width) // 2
        rows = read_lanes(lanes, begin, begin + width)
        found.append(
            {
                "window_ms": width / 1e6,
                "events": sum(len(lane.visible(begin, begin + width)) for lane in lanes),
                "bars": sum(len(row.names) for row in rows if isinstance(row, Bars)),
                "read_ms": median_ms(repeats, partial(read_lanes, lanes, begin, begin + width)),
                "names_ms": median_ms(repeats, partial(by_name, lanes, begin, begin + width)),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=6_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    begin = time.perf_counter()
    lanes = lanes_of(options.events)
    built_s = time.perf_counter() - begin
    count = sum(len(lane) for lane in lanes)
    print(f"{count:,} events in {len(lanes)} lanes, made and laid out in {built_s:.1f} s")
    print(f"  {'window ms':>12}{'events':>12}{'bars':>8}{'read ms':>10}{'names ms':>10}")
    rows = zooms(lanes, options.repeats)
    for row in rows:
        told = f"{row['window_ms']:>12,.2f}{row['events']:>12,}{row['bars']:>8,}"
        print(f"  {told}{row['read_ms']:>10.1f}{row['names_ms']:>10.1f}")
    pieces = max(1, options.events // _RANKS)
    ranks = all_ranks(pieces)
    edges = pixel_edges(0, ranks.end_ns, 400)
    shares_ms = median_ms(options.repeats, lambda: ranks.shares(Category.WAITING, edges))
    print(f"{_RANKS} ranks of {pieces:,} pieces, 400 pixels each: {shares_ms:.1f} ms")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "bench": "timeline",
                "cores": os.cpu_count(),
                "events": count,
                "laid_out_s": round(built_s, 2),
                "zooms": rows,
                "ranks": _RANKS,
                "ranks_ms": round(shares_ms, 2),
                "peak_mb": round(peak_mb),
            }
        )
    )


if __name__ == "__main__":
    main()

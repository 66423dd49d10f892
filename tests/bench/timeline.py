"""What the timeline costs at six million events: tiles, searches, and frames in a browser.

    python tests/bench/timeline.py [--events 6000000] [--repeats 5] [--ranks 64] [--seconds 6] [--no-browser]

Lays out synthetic events of one pinned rank (kernels on two streams, communication, and operators three deep on two
threads) as the dashboard does, and the steps of as many ranks as are asked for. Reads tiles from the whole run down to
a few events. Then the dashboard's own canvas draws them in Chromium, asking the dashboard's own tile server, while a
script turns the wheel in every frame, into the run and out again. Milliseconds are medians. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[2]))

from diag.account.intervals import Intervals
from diag.app.server import routes
from diag.app.theme import LIGHT
from diag.app.timeline_data.source import share
from diag.app.timeline_data.work import work_colours, work_words
from diag.app.views import timeline as page
from diag.rundir.tables import RankTables
from diag.tables.tiles import CELLS, Events, Row, lanes_of, rank_cells, read_row, rows_of, search
from diag.tables.zoom import WORK, AllRanks, Category, Lane, RankLanes, StepSpan, make_lane
from diag.timeline import timeline_of
from tests.browser.chromium import PATIENCE_MS, chromium
from tests.ports import free_port

_NAMES = [f"kernel_{i}<float, {i}>" for i in range(2000)]
_MEAN_GAP_NS = 12_000
_ZOOMS = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
_WIDTH = 1200  # of the plot, in pixels
_STEPS = 500


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


def made_lanes(events: int) -> list[Lane]:
    rng = np.random.default_rng(0)
    share = events // 8
    made = {
        ("kernels, stream 7", Category.COMPUTE): disjoint(rng, share, 0.4),
        ("kernels, stream 9", Category.COMPUTE): disjoint(rng, share, 0.4),
        ("communication", Category.COMMUNICATION): disjoint(rng, share, 0.3),
        ("operators, main thread", Category.HOST): nested(rng, 3 * share),
        ("operators, autograd", Category.HOST): nested(rng, 2 * share),
    }
    return [
        make_lane(
            title,
            category,
            found,
            rng.integers(0, len(_NAMES), len(found)).astype(np.uint32),
            _NAMES,
            rng.integers(0, len(WORK), len(found)).astype(np.uint8),
        )
        for (title, category), found in made.items()
    ]


def all_ranks(count: int, end_ns: int) -> AllRanks:
    """Ranks whose steps consist of five categories, 40 pieces a step, of more than 128 ranks fewer."""
    rng = np.random.default_rng(1)
    kinds = (Category.COMPUTE, Category.TRANSFER, Category.WAITING, Category.COPY, Category.DATA)
    ranks = {}
    pieces_of_rank = 40 * _STEPS * 128 // max(count, 128)
    for rank in range(count):
        edges = np.sort(rng.integers(0, end_ns, pieces_of_rank))
        pieces = np.stack((edges[:-1], edges[1:]), axis=1)
        kind = rng.integers(0, len(kinds), len(pieces))
        lanes = tuple(make_lane(one.value, one, pieces[kind == i]) for i, one in enumerate(kinds))
        ranks[rank] = RankLanes(rank, lanes, (), 0, ())
    each = end_ns // _STEPS
    return AllRanks(end_ns, ranks, tuple(StepSpan(i, i * each, (i + 1) * each) for i in range(_STEPS)), ())


def median_ms(repeats: int, work: Callable[[], object]) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begin) * 1000)
    return round(statistics.median(taken), 2)


def zooms(rows: Sequence[Row], end: int, repeats: int) -> list[dict[str, object]]:
    """What the tile in the middle of the run costs at the level that each zoom draws."""
    found = []
    for zoom in _ZOOMS:
        level = max(0, int(np.ceil(np.log2(max(1.0, end * zoom / _WIDTH)))))
        tile = (end // 2) // (CELLS << level)
        read = [read_row(row, level, tile) for row in rows]
        found.append(
            {
                "window_ms": end * zoom / 1e6,
                "level": level,
                "as_events": sum(isinstance(one, Events) for one in read),
                "rows": len(rows),
                "tile_ms": median_ms(repeats, partial(_read_all, rows, level, tile)),
            }
        )
    return found


def _read_all(rows: Sequence[Row], level: int, tile: int) -> None:
    for row in rows:
        read_row(row, level, tile)


# -- browser -----------------------------------------------------------------------------------------------------------

_PAGE = """<!doctype html><meta charset="utf-8"><style>body { margin: 0; padding: 20px }</style><div id="here"></div>
<script type="module">
import draw from "./timeline.js";
const root = document.getElementById("here").attachShadow({ mode: "open" });
const data = DATA;
draw({ data, parentElement: root, setStateValue() {}, setTriggerValue() {} });
window.canvas = root.querySelector("canvas");
</script>"""
_DRAWN = """() => {
    const context = window.canvas && window.canvas.getContext("2d");
    if (!context || !window.canvas.height) return false;
    const { data } = context.getImageData(300, 45, 200, 20);
    const found = new Set();
    for (let i = 0; i < data.length; i += 4) found.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    return found.size > 2;
}"""
# Turns the wheel once a frame, into the run and out again, and pans between; the lengths of all frames in ms.
_DRIVE = """seconds => new Promise(done => {
    const box = window.canvas.getBoundingClientRect(), frames = [];
    const begun = performance.now();
    let last = begun;
    const turn = now => {
        frames.push(now - last);
        last = now;
        const through = (now - begun) / (seconds * 1000);
        if (through >= 1) return done(frames.slice(1));
        const wheel = { bubbles: true, cancelable: true, clientX: box.left + box.width * 0.6, clientY: box.top + 60 };
        const pans = Math.floor(now / 160) % 4 === 3;
        const deltas = pans ? { deltaX: 40, deltaY: 0 } : { deltaY: through < 0.5 ? -120 : 120 };
        window.canvas.dispatchEvent(new WheelEvent("wheel", { ...wheel, ...deltas }));
        requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
})"""
_LANES_HERE = "() => performance.getEntriesByType('resource').some(one => one.name.includes('/rows?'))"
_FETCHES = """() => performance.getEntriesByType("resource").filter(one => one.name.includes("timeline-data"))
    .map(one => [one.name.includes("/rows?") ? "rows" : "ranks", one.duration, one.transferSize])"""


@contextmanager
def serving(result: Any) -> Iterator[str]:
    """The canvas of the run in a page of its own; its address."""
    here = Path(page.__file__).parent
    timeline = timeline_of(result)
    data = {
        "source": share(result),
        "turn": 1,
        "window": [0, timeline.end_ns],
        "pinned": [0],
        "find": "",
        "python": False,
        "begin": 0,
        "end": timeline.end_ns,
        "steps": [[span.step, span.begin_ns, span.end_ns, 0] for span in timeline.steps],
        "ranks": [{"rank": rank, "host": "", "at_fault": False, "about": ""} for rank in timeline.ranks],
        "by_host": False,
        "traced": [],
        "perfetto": "",
        "has_path": True,
        "open": {"rank": 0, "step": None, "label": "Open in Perfetto", "about": "", "together": False},
        "order": "by number",
        "works": [work_words(work) for work in WORK],
        "colours": work_colours(LIGHT),
        "theme": page.canvas_theme(LIGHT),
    }
    served = Starlette(
        routes=[
            *routes(),
            Route("/timeline", lambda _: HTMLResponse(_PAGE.replace("DATA", json.dumps(data)))),
            Route("/timeline.js", lambda _: FileResponse(here / "timeline.js", media_type="text/javascript")),
        ]
    )
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(served, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}/timeline"
    finally:
        server.should_exit = True
        thread.join()


def in_browser(result: Any, seconds: float) -> dict[str, object]:
    """All ranks are drawn at once, however many there are."""
    with serving(result) as address, chromium() as browser:
        visited = browser.new_page(viewport={"width": 1440, "height": 1000})
        begin = time.perf_counter()
        visited.goto(address)
        visited.wait_for_function(_DRAWN, timeout=PATIENCE_MS)
        painted_s = time.perf_counter() - begin
        visited.wait_for_function(_LANES_HERE, timeout=PATIENCE_MS)
        lanes_s = time.perf_counter() - begin
        if (every := visited.get_by_role("button", name="All", exact=True)).count():
            every.click()
        visited.wait_for_timeout(2000)
        rows_drawn = min(len(timeline_of(result).ranks), visited.evaluate("() => window.canvas.clientHeight"))
        frames = sorted(visited.evaluate(_DRIVE, seconds))
        fetches = visited.evaluate(_FETCHES)
    by_kind = {kind: sorted(ms for one, ms, _ in fetches if one == kind) for kind in ("ranks", "rows")}
    return {
        "ranks_drawn": rows_drawn,
        "first_paint_s": round(painted_s, 2),
        "all_lanes_s": round(lanes_s, 2),
        "frames_per_s": round(1000 * len(frames) / sum(frames), 1),
        "frame_median_ms": round(statistics.median(frames), 1),
        "frame_95th_ms": round(frames[int(0.95 * len(frames))], 1),
        "tiles": {kind: len(own) for kind, own in by_kind.items()},
        "tile_median_ms": {kind: round(statistics.median(own), 1) for kind, own in by_kind.items() if own},
    }


def made_result(timeline: AllRanks, lanes: Sequence[Lane]) -> Any:
    """As much of a result as the canvas asks for. The critical path changes its rank ten times a step."""
    edges = np.linspace(0, timeline.end_ns, 10 * len(timeline.steps) + 1).astype(np.int64)
    path = SimpleNamespace(
        rank=np.arange(len(edges) - 1) % len(timeline.ranks), start_ns=edges[:-1], end_ns=edges[1:]
    )  # fmt: skip
    return SimpleNamespace(
        _timeline=timeline,
        _events={rank: tuple(lanes) for rank in timeline.ranks},
        tables=SimpleNamespace(ranks={rank: RankTables(rank) for rank in timeline.ranks}),
        attribution=SimpleNamespace(collectives=(), steps=SimpleNamespace(paths=path)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=6_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--no-browser", action="store_true")
    options = parser.parse_args()
    begin = time.perf_counter()
    lanes = made_lanes(options.events)
    built_s = time.perf_counter() - begin
    count = sum(len(lane) for lane in lanes)
    end = max(int(lane.end_ns.max()) for lane in lanes)
    timeline = all_ranks(options.ranks, end)
    begin = time.perf_counter()
    rows = rows_of(lanes_of(timeline.ranks[0], lanes))
    _read_all(rows, 30, 0)
    rows_s = time.perf_counter() - begin
    print(
        f"{count:,} events in {len(lanes)} lanes, laid out in {built_s:.1f} s, {len(rows)} rows in {rows_s:.1f} s more"
    )
    print(f"  {'window ms':>12}{'level':>7}{'rows':>6}{'as events':>11}{'tile ms':>10}")
    tiles = zooms(rows, end, options.repeats)
    for row in tiles:
        window = f"{row['window_ms']:>12,.2f}{row['level']:>7}{row['rows']:>6}"
        print(f"  {window}{row['as_events']:>11}{row['tile_ms']:>10.1f}")
    level = max(0, int(np.ceil(np.log2(end / _WIDTH))))
    ranks_ms = median_ms(options.repeats, lambda: [rank_cells(one, level, 0) for one in timeline.ranks.values()])
    search_ms = median_ms(options.repeats, lambda: search(rows, "kernel_17"))
    print(f"a tile of {options.ranks} ranks: {ranks_ms:.1f} ms; a search: {search_ms:.1f} ms")
    result = made_result(timeline, lanes)
    seen = in_browser(result, options.seconds) if not options.no_browser else None
    if seen is not None:
        print(f"in Chromium: {json.dumps(seen)}")
    print(
        json.dumps(
            {
                "bench": "timeline",
                "cores": os.cpu_count(),
                "events": count,
                "laid_out_s": round(built_s, 2),
                "rows_s": round(rows_s, 2),
                "zooms": tiles,
                "ranks": options.ranks,
                "ranks_ms": ranks_ms,
                "search_ms": search_ms,
                "browser": seen,
                "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )
    )


if __name__ == "__main__":
    main()

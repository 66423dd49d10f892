"""What a person waits for in the browser until the verdict of many ranks is there. `timeline.py` measures zooming.

    python tests/bench/dashboard.py [--ranks 64 1024] [--follow 60] [--repeats 3] [--keep FOLDER]

Makes runs of that many ranks (40 steps of 20 collectives, beyond 256 ranks 10 steps of 2), analyses them once as
``diag analyze`` does, starts the dashboard, and opens each run in a fresh headless Chromium. Seconds are from the call
of the address until the text is on the page, and until all figures are drawn. "Blocked" is the longest task
on the browser's main thread. Each first visit finds a server that has not opened the run yet. An empty Streamlit page,
measured in the same way, is the peer: what no page can be faster than. "Launch" is of a sample run that was not
analysed before: seconds from the start of ``diag dashboard`` until its address is printed, until the verdict is on the
page and until all is, with the CPU time of its processes until the verdict. ``--follow S`` measures the CPU time of the
server in S seconds in which one page follows a run of two ranks that writes 20 steps a second. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
if not __package__:  # run as a script: its own folder is on the path, the checkout is not
    sys.path.insert(0, str(HERE.parents[1]))

from diag.api import open_run  # noqa: E402
from diag.serve.server import SAMPLES  # noqa: E402
from diag.show.json import save  # noqa: E402
from tests.app.runs import write_run  # noqa: E402
from tests.app.served import dashboard, streamlit  # noqa: E402
from tests.bench._growing import growing  # noqa: E402
from tests.browser.chromium import chromium, visit  # noqa: E402

_STEPS, _CALLS = 40, 20
_SAMPLE = "fsdp2-straggler-rank0"
_STEPS_PER_S = 20.0  # of a run that is followed
_MOST_WHOLE, _MANY = 256, (10, 2)  # ranks; steps and collectives of runs with more
_LONG_TASKS = """
window.longest = 0;
new PerformanceObserver(list => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({type: 'longtask', buffered: true});
"""
_FIGURES_DRAWN = """() => {
    const figures = [...document.querySelectorAll('[data-testid=stPlotlyChart]')];
    return figures.length && figures.every(one => one.querySelector('.main-svg'));
}"""
_EMPTY = "import streamlit as st\nst.title('Nothing')\n"


def visited(browser: Browser, address: str, text: str, settled: bool = True) -> dict[str, float]:
    """Seconds until the text is there and until all is, and the longest task of the main thread."""
    with visit(browser) as found:
        found.page.add_init_script(_LONG_TASKS)
        begin = time.perf_counter()
        found.page.goto(address, wait_until="commit")
        found.page.get_by_text(text).first.wait_for(timeout=300_000)
        first = time.perf_counter() - begin
        if settled:
            _wait_for_all(found.page)
        whole = time.perf_counter() - begin
        found.page.wait_for_timeout(500)
        return {"first_s": first, "whole_s": whole, "blocked_s": _blocked(found.page)}


def _wait_for_all(page: Page) -> None:
    """Until its last text is there, Streamlit has nothing left to do, and every figure is drawn."""
    page.get_by_text("Looked for").first.wait_for(timeout=300_000)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(timeout=300_000)
    page.wait_for_function(_FIGURES_DRAWN, timeout=300_000)


def launched(browser: Browser, run: Path) -> dict[str, float]:
    """From the command to the page, as a person waits for it."""
    headline = open_run(run).verdict.headline
    shutil.rmtree(run / "tables", ignore_errors=True)  # what that left
    begin = time.perf_counter()
    with dashboard(run) as served, visit(browser) as found:
        printed = time.perf_counter() - begin
        found.page.goto(served.at(), wait_until="commit")
        found.page.get_by_text(headline).first.wait_for(timeout=300_000)
        verdict, cpu_s = time.perf_counter() - begin, cpu_of(served.process.pid)
        _wait_for_all(found.page)
        whole = time.perf_counter() - begin
    return {"printed_s": printed, "verdict_s": verdict, "whole_s": whole, "cpu_s": cpu_s}


def followed(browser: Browser, folder: Path, seconds: float) -> dict[str, float]:
    """CPU time of the server in which it follows a run, and what share of a core that is, from half a minute on after
    the page was opened."""
    written = growing(folder / "growing", _STEPS_PER_S, before=3000, most=3000 + int(_STEPS_PER_S * (seconds + 300)))
    with written as run, dashboard(run) as served, visit(browser) as found:
        found.page.goto(served.at())
        found.page.get_by_text("Looked for").first.wait_for(timeout=300_000)
        found.page.wait_for_timeout(30_000)
        begin_s, begin = cpu_of(served.process.pid), time.perf_counter()
        found.page.wait_for_timeout(1000 * seconds)
        spent_s, took_s = cpu_of(served.process.pid) - begin_s, time.perf_counter() - begin
        return {"cpu_s": round(spent_s, 2), "of_a_core": round(spent_s / took_s, 3)}


def cpu_of(pid: int) -> float:
    """Seconds of CPU time of a process and of its children."""
    process = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def _blocked(page: Page) -> float:
    return float(page.evaluate("window.longest")) / 1000


def _median(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in found), 2) for key in found[0]}


@contextlib.contextmanager
def _empty_page(folder: Path) -> Iterator[int]:
    script = folder / "empty.py"
    script.write_text(_EMPTY)
    with streamlit(script) as port:
        yield port


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    with chromium() as browser:
        visited_empty = []
        with _empty_page(folder) as port:
            for _ in range(options.repeats):
                visited_empty.append(visited(browser, f"http://127.0.0.1:{port}", "Nothing", settled=False))
        rows["empty page"] = _median(visited_empty)
        _print("empty page", rows["empty page"])
        shutil.copytree(SAMPLES / _SAMPLE, folder / _SAMPLE, dirs_exist_ok=True)
        rows["launch"] = _median([launched(browser, folder / _SAMPLE) for _ in range(options.repeats)])
        _print("launch, a sample run", rows["launch"])
        for ranks in options.ranks:
            run = folder / f"{ranks}"
            if not run.exists():
                steps, calls = _MANY if ranks > _MOST_WHOLE else (_STEPS, _CALLS)
                write_run(run, ranks, steps, {ranks // 2: 20}, calls=calls)
            begin = time.perf_counter()
            result = open_run(run)
            save(result)
            analysed_s = time.perf_counter() - begin
            again, first = [], []
            for _ in range(options.repeats):
                with dashboard(run) as served:
                    address = served.at()
                    first.append(visited(browser, address, result.verdict.headline))
                    again.append(visited(browser, address, result.verdict.headline))
            rows[f"{ranks} ranks"] = {
                "analysed_s": round(analysed_s, 2),
                "first": _median(first),
                "again": _median(again),
            }
            _print(f"{ranks} ranks, opened first", _median(first))
            _print(f"{ranks} ranks, again", _median(again))
        if options.follow:
            rows["following"] = followed(browser, folder, options.follow)
            _print(f"following, {options.follow:.0f} s", rows["following"])
    return rows


def _print(name: str, row: dict[str, float]) -> None:
    print(
        f"  {name:<28}" + "".join(f"{key.removesuffix('_s'):>10} {value:6.2f} s" for key, value in row.items()),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--follow", type=float, default=60, help="seconds; 0: nothing is followed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, help="where runs and traces are made and left; without: a temporary folder"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {options.repeats}")
        rows = measure(options, folder)
    print(json.dumps({"bench": "dashboard", "cores": os.cpu_count(), **rows}))


if __name__ == "__main__":
    main()

"""What a person waits for in the browser: until the verdict is there, until the page rests, and after each click.

    python tests/bench/dashboard.py [--ranks 64 1024] [--follow 60] [--repeats 3] [--keep FOLDER]

``docs/benchmarks/dashboard.md`` explains the figures; `timeline.py` measures zooming. Makes runs of that many ranks (40
steps of 20 collectives, beyond 256 ranks 10 steps of 2), analyses them once as ``diag analyze`` does, starts the
dashboard, and opens each run in a fresh headless Chromium. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

VIEWS = HERE.parents[1] / "app" / "views"
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
# Looks at the page a hundred times a second. It rests while Streamlit has nothing to do and what is in the window is
# drawn: every figure, and no place of one that is still to come. `answered`: when the awaited text came onto the page.
_WATCH = """
window.watched = {acted: 0, awaited: null, answered: 0, since: 0};
{
  const all = what => [...document.querySelectorAll(what)];
  const shadows = () => all('[data-testid^=stBidiComponent]').map(it => it.shadowRoot).filter(it => it);
  const shown = part => it => {
    const {top, bottom, height} = it.getBoundingClientRect();
    return height > 0 && Math.min(bottom, innerHeight) - Math.max(top, 0) >= part * height;
  };
  const rests = () => all('[data-testid=stApp][data-test-script-state=notRunning]').length > 0
    && !all('[data-testid=stSkeleton]').some(shown(0))
    && !all('[data-testid=stPlotlyChart]').some(it => shown(0)(it) && !it.querySelector('.main-svg'))
    && !shadows().some(it => [...it.querySelectorAll('.later')].some(shown(PART)));
  const text = () => [document.querySelector('[data-testid=stMain]'), ...shadows()].map(it => it?.textContent).join();
  watched.has = awaited => text().includes(awaited);
  setInterval(() => {
    const now = Date.now();
    if (watched.awaited && !watched.answered && watched.has(watched.awaited)) {
      watched.answered = now;
      watched.since = 0; // it rested before the click, too
    }
    watched.since = rests() ? watched.since || now : 0;
  }, 10);
  for (const kind of ['pointerdown', 'keydown'])
    addEventListener(kind, event => { watched.acted = performance.timeOrigin + event.timeStamp; }, true);
}
""".replace("PART", re.findall(r"SEEN = ([\d.]+)", (VIEWS / "lazy.js").read_text())[0])
_WINDOW: dict[str, int] = {"width": 1440, "height": 900}  # the first screen
_RESTS_MS = 500  # so long nothing may come after it
_EMPTY = """import streamlit as st
st.title("Nothing")
if st.button("Ask"):
    st.write("Answered")
"""


class Click(NamedTuple):
    """``answer``: the text that it brings onto the page."""

    name: str
    act: Callable[[Page], None]
    answer: str


def _menu(title: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_test_id("stSidebarNavLink").filter(has_text=title).click()


def _button(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("button", name=name, exact=True).click()


def _option(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("option").filter(has_text=name).first.click()


def _chosen(label: str, option: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("combobox", name=label).first.click()
        page.get_by_role("option", name=option).first.click()

    return act


def _typed(box: str, text: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("textbox", name=box).fill(text)
        page.keyboard.press("Enter")

    return act


def walk(headline: str) -> tuple[Click, ...]:
    """Through every page of a folder of the samples, with the choices that a reader makes there. ``headline``: of
    `_SAMPLE`."""
    return (
        Click("search of the runs", _typed("Search", "no run has this"), "No run matches all search words"),
        Click("search taken back", _typed("Search", ""), "ddp-healthy"),
        Click("a run", _button(_SAMPLE), headline),
        Click("a rank", _option("rank 1"), "Every step of rank 1"),
        Click("a step", _chosen("Step", "12"), "Rank 1, step 12 on the timeline"),
        Click("Timeline", _menu("Timeline"), "In this window"),
        Click("next step", _button("Next step"), "Step 13 in Perfetto"),
        Click("What if", _menu("What if"), "The step would take"),
        Click("Collectives", _menu("Collectives"), "By exposed time"),
        Click("a collective", _chosen("Collective", "reduce-scatter 135"), "17\u00a0calls"),
        Click("Kernels", _menu("Kernels"), "Named by FSDP unit"),
        Click("Input", _menu("Input"), "Every rank"),
        Click("Memory", _menu("Memory"), "Model states"),
        Click("Compare", _menu("Compare"), "The step is"),
        Click("Hang triage", _menu("Hang triage"), "The run ended well"),
        Click("Overview", _menu("Overview"), headline),
        Click("another run", _chosen("Run", "fsdp2-slow-wire"), "fsdp2-slow-wire"),
        Click("Runs", _menu("Runs"), "All numbers"),
    )


def walked(browser: Browser, address: str, until: str, clicks: Sequence[Click]) -> dict[str, dict[str, float]]:
    """By click, seconds until its answer is on the page and until the page rests."""
    with visit(browser, **_WINDOW) as found:
        page = found.page
        page.add_init_script(_WATCH)
        found.open(address, until=until)
        rested(page)
        times = {}
        for click in clicks:
            if page.evaluate("text => watched.has(text)", click.answer):
                raise RuntimeError(f"{click.name}: {click.answer!r} is on the page before the click")
            page.evaluate("text => Object.assign(watched, {awaited: text, answered: 0})", click.answer)
            click.act(page)
            page.wait_for_function("watched.answered", timeout=300_000)
            rest = rested(page)
            acted, answered = page.evaluate("[watched.acted, watched.answered]")
            times[click.name] = {"answered_s": (answered - acted) / 1000, "rest_s": rest - acted / 1000}
    return times


def visited(browser: Browser, address: str, text: str, last: str = "Looked for") -> dict[str, float]:
    """Seconds until the text is there and until the page rests, and the longest task of the main thread."""
    with visit(browser, **_WINDOW) as found:
        found.page.add_init_script(_LONG_TASKS)
        begin = time.time()  # the browser's clock
        first = shown(found.page, address, text) - begin
        rest = rested(found.page, last) - begin
        return {"first_s": first, "rest_s": rest, "blocked_s": _blocked(found.page)}


def shown(page: Page, address: str, text: str) -> float:
    """Opens the address; when the text is on the page, in seconds of the wall clock."""
    page.add_init_script(f"{_WATCH}; watched.awaited = {json.dumps(text)};")
    page.goto(address, wait_until="commit")
    page.wait_for_function("window.watched?.answered", timeout=300_000)
    return float(page.evaluate("watched.answered")) / 1000


def rested(page: Page, last: str = "") -> float:
    """Waits until the page rests, with its last text on it; since when, in seconds of the wall clock."""
    if last:
        page.get_by_text(last).first.wait_for(timeout=300_000)
    page.wait_for_function(f"watched.since && Date.now() - watched.since > {_RESTS_MS}", timeout=300_000)
    return float(page.evaluate("watched.since")) / 1000


def launched(browser: Browser, run: Path) -> dict[str, float]:
    """From the command to the page, as a person waits for it; CPU time of the server, of the browser's main thread, and
    what the server sends over the WebSocket, which other load on the machine changes little."""
    headline = open_run(run).verdict.headline
    shutil.rmtree(run / "tables", ignore_errors=True)  # what that left
    begin = time.time()  # the browser's clock
    with dashboard(run, forked=False) as served, visit(browser, **_WINDOW) as found:
        printed = time.time() - begin
        received: list[int] = []
        found.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
        busy_s = _main_thread(found.page)
        verdict, cpu_s = shown(found.page, served.at(), headline) - begin, cpu_of(served.process.pid)
        rest = rested(found.page, "Looked for") - begin
        server_s, browser_s = cpu_of(served.process.pid), busy_s()
    times = {"printed_s": printed, "verdict_s": verdict, "rest_s": rest, "cpu_s": cpu_s}
    cost = {"server_cpu_s": server_s, "browser_cpu_s": browser_s}
    return {**times, **cost, "messages": len(received), "sent_kb": sum(received) / 1000}


def _main_thread(page: Page) -> Callable[[], float]:
    """Counts from now on; the function returns in how many seconds the main thread of the page's process was busy."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time: by default it is that of the clock

    def busy_s() -> float:
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    return busy_s


def followed(browser: Browser, folder: Path, seconds: float) -> dict[str, float]:
    """CPU time of the server in which it follows a run, and what share of a core that is, from half a minute on after
    the page was opened."""
    written = growing(folder / "growing", _STEPS_PER_S, before=3000, most=3000 + int(_STEPS_PER_S * (seconds + 300)))
    with written as run, dashboard(run, forked=False) as served, visit(browser, **_WINDOW) as found:
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
    return {key: _middle(one[key] for one in found) for key in found[0]}


@contextlib.contextmanager
def _empty_page(folder: Path) -> Iterator[int]:
    script = folder / "empty.py"
    script.write_text(_EMPTY)
    with streamlit(script) as port:
        yield port


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    with chromium() as browser:
        with _empty_page(folder) as port:
            address = f"http://127.0.0.1:{port}"
            empty = _median([visited(browser, address, "Nothing", last="") for _ in range(options.repeats)])
            ask = Click("ask", _button("Ask"), "Answered")
            asked = _median([walked(browser, address, "Nothing", [ask])["ask"] for _ in range(options.repeats)])
        rows["empty page"], rows["empty page, a click"] = empty, asked
        _print("empty page", empty)
        _print("empty page, a click", asked)
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
                with dashboard(run, forked=False) as served:
                    address = served.at()
                    first.append(visited(browser, address, result.verdict.headline))
                    again.append(visited(browser, address, result.verdict.headline))
            rows[f"{ranks} ranks"] = {
                "analysed_s": round(analysed_s, 2),
                "first": _median(first),
                "again": _median(again),
            }
            for name, row in (("opened first", _median(first)), ("again", _median(again))):
                _print(f"{ranks} ranks, {name}", row)
                _print("  times the empty page", _ratios(row, empty), times=True)
        rows["clicks"] = clicked(browser, folder / "samples", options.repeats)
        _print("a click, median", rows["clicks"]["median"])
        _print("  times the empty page", _ratios(rows["clicks"]["median"], asked), times=True)
        if options.follow:
            rows["following"] = followed(browser, folder, options.follow)
            _print(f"following, {options.follow:.0f} s", rows["following"])
    return rows


def clicked(browser: Browser, samples: Path, repeats: int) -> dict[str, Any]:
    """A walk over a folder of the sample runs, each time with a server of its own; the median of all clicks as well."""
    shutil.copytree(SAMPLES, samples, dirs_exist_ok=True)
    clicks = walk(open_run(samples / _SAMPLE).verdict.headline)
    walks = []
    for _ in range(repeats):
        with dashboard(samples, forked=False) as served:
            walks.append(walked(browser, served.at(), "All numbers", clicks))
    rows: dict[str, Any] = {}
    for click in clicks:
        rows[click.name] = _median([one[click.name] for one in walks])
        _print(f"  click: {click.name}", rows[click.name])
    return {**rows, "median": _median(list(rows.values()))}


def _ratios(row: dict[str, float], empty: dict[str, float]) -> dict[str, float]:
    """How many times as long as the empty page it takes, where that was measured of both."""
    return {key: round(value / empty[key], 1) for key, value in row.items() if empty.get(key)}


def _middle(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def _print(name: str, row: dict[str, float], times: bool = False) -> None:
    """``times``: the values are multiples, not what their names end in."""
    texts = []
    for key, value in row.items():
        what, _, unit = key.rpartition("_")
        texts.append(f"  {what or key:>8} {value:6.2f} {'x' if times else unit if what else ''}")
    print(f"  {name:<28}" + "".join(texts), flush=True)


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
        # Users have compiled modules: an installation from a wheel compiles them, and so does the first start.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        with dashboard(SAMPLES / _SAMPLE, forked=False) as served, chromium() as browser:
            visited(browser, served.at(), "Looked for")
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {options.repeats}")
        rows = measure(options, folder)
    print(json.dumps({"bench": "dashboard", "cores": os.cpu_count(), **rows}))


if __name__ == "__main__":
    main()

"""What an analysis costs: diag cold and warm against HolisticTraceAnalysis and the floor, on long traces, many ranks.

    python tests/bench/ingest.py [--events 1000000 5000000] [--ranks 64] [--repeats 1] [--skip hta] [--keep FOLDER]

Makes long traces out of a short real one (`_tiled.py`), plain and gzip, and a folder of many ranks; then runs, each in
a fresh process: ``diag analyze`` with an empty cache, the same again, HTA's load with four of its breakdowns (on the
gzip file), and as the floor an isal inflate with a simdjson parse of the same bytes. CPU time is user + system with all
children; memory is the largest process's peak and, for pools, the sampled peak of all processes together. An event is
an entry of traceEvents, whatever its phase. The last line is JSON.

Needs the extra ``hta`` and ``pip install pysimdjson``; what is missing is left out and said.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import multiprocessing
import os
import platform
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    from tests.bench._measure import Cost, measured, median_of, python
    from tests.bench._tiled import write_ranks, write_tiled
except ModuleNotFoundError:  # run as a script: its own folder is on the path, the checkout is not
    from _measure import Cost, measured, median_of, python
    from _tiled import write_ranks, write_tiled

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[1] / "sample_traces"
SHARED = HERE.parents[2] / "shared" / "traces"
TOOLS = ("diag cold", "diag warm", "hta", "floor")
NEEDS = {"hta": "hta", "floor": "simdjson"}
INCOMPLETE = 4  # diag's exit code where ranks are missing, as they are in a trace of one rank of two


@dataclass(frozen=True)
class Input:
    name: str
    path: Path
    events: int
    mb: float
    tools: tuple[str, ...]


def make_inputs(folder: Path, options: argparse.Namespace) -> list[Input]:
    inputs = []
    for events in options.events:
        plain, packed = folder / f"{events}.json", folder / f"{events}.json.gz"
        count = write_tiled(options.source, events, plain, packed)
        mb = plain.stat().st_size / 1e6
        inputs.append(Input(f"{count / 1e6:.2f}M plain", plain, count, mb, ("diag cold", "diag warm", "floor")))
        inputs.append(Input(f"{count / 1e6:.2f}M gzip", packed, count, mb, TOOLS))
    if options.ranks:
        ranks = folder / "ranks"
        ranks.mkdir(exist_ok=True)
        count = write_ranks(options.rank_sources, ranks, options.ranks, options.rank_copies)
        mb = sum(path.stat().st_size for path in ranks.iterdir()) / 1e6
        inputs.append(Input(f"{options.ranks} ranks gzip", ranks, count, mb, TOOLS))
    return inputs


def compile_own() -> None:
    """pip compiles what it installs, HTA and all that diag needs; a checkout that is installed editable it does not."""
    for package in ("diag", "diag.collectors"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            compileall.compile_dir(folder, quiet=1)


def measure(one: Input, tools: list[str], repeats: int) -> dict[str, list[Cost]]:
    """Of each tool that this input is for, in turns: the machine may be another one a minute later."""
    found: dict[str, list[Cost]] = {tool: [] for tool in TOOLS if tool in tools and tool in one.tools}
    if "diag cold" not in found:  # which leaves what the warm one reads
        found.pop("diag warm", None)
    files = sorted(one.path.iterdir()) if one.path.is_dir() else [one.path]
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for tool, costs in found.items():
                if tool.startswith("diag"):  # cold, then warm
                    costs.append(analyze(one.path, cache))
        if "floor" in found:
            found["floor"].append(measured(python(HERE / "_floor.py", *files)))
        if "hta" in found:
            found["hta"].append(measured(python(HERE / "_hta.py", one.path)))
    return found


def medians(rounds: dict[str, list[Cost]]) -> dict[str, Cost]:
    return {tool: next((c for c in costs if c.failed), None) or median_of(costs) for tool, costs in rounds.items()}


def analyze(path: Path, cache: str) -> Cost:
    return measured(python("-m", "diag", "analyze", path), {"DIAG_CACHE": cache}, ok=(0, INCOMPLETE))


# -- what is printed ---------------------------------------------------------------------------------------------------


def report(one: Input, rounds: dict[str, list[Cost]]) -> None:
    costs = medians(rounds)
    print(f"\n{one.name}: {one.events:,} events, {one.mb:,.0f} MB on disk or unpacked")
    print(f"  {'':<10}{'wall s':>9}{'CPU s':>9}{'RSS MB':>9}{'tree MB':>9}{'at most':>9}{'CPU us/event':>14}")
    for tool, cost in costs.items():
        if cost.failed:
            print(f"  {tool:<10} {cost.failed}")
            continue
        print(
            f"  {tool:<10}{cost.wall_s:>9.2f}{cost.cpu_s:>9.2f}{cost.rss_mb:>9.0f}{cost.tree_mb:>9.0f}"
            f"{cost.tree_most_mb:>9.0f}{cost.cpu_s / one.events * 1e6:>14.2f}"
        )
    for title, ratio in ratios(costs).items():
        above, below = ([cost.cpu_s for cost in rounds[tool]] for tool in title.split(" / "))
        each = sorted(a / b for a, b in zip(above, below, strict=True))
        spread = f"  (cpu {each[0]:.2f} to {each[-1]:.2f} in {len(each)} rounds)" if len(each) > 1 else ""
        print(f"  {title:<22}" + "  ".join(f"{key} {value:.2f}" for key, value in ratio.items()) + spread)


def ratios(costs: dict[str, Cost]) -> dict[str, dict[str, float]]:
    found = {}
    for above, below in (("hta", "diag cold"), ("hta", "diag warm"), ("diag cold", "floor")):
        if above in costs and below in costs and not costs[above].failed and not costs[below].failed:
            a, b = asdict(costs[above]), asdict(costs[below])
            found[f"{above} / {below}"] = {
                key[: key.index("_m")] if key.endswith("_mb") else key[:-2]: a[key] / b[key]
                for key in ("cpu_s", "wall_s", "rss_mb", "tree_mb")
            }
    return found


def growth(results: list[tuple[Input, dict[str, Cost]]]) -> dict[str, dict[str, float]]:
    """How much more one event costs in the largest file than in the smallest of the same form: 1 is linear."""
    found: dict[str, dict[str, float]] = {}
    for form in ("plain", "gzip"):
        group = [(one, costs) for one, costs in results if one.name.endswith(f"M {form}")]
        if len(group) < 2:
            continue
        (small, little), (large, much) = (f(group, key=lambda pair: pair[0].events) for f in (min, max))
        for tool in little.keys() & much.keys():
            if not little[tool].failed and not much[tool].failed and large.events > small.events:
                times = large.events / small.events
                found[f"{tool}, {form}"] = {
                    "cpu": much[tool].cpu_s / little[tool].cpu_s / times,
                    "rss": much[tool].rss_mb / little[tool].rss_mb,
                    "events": times,
                }
    return found


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 5_000_000])
    parser.add_argument("--ranks", type=int, default=64, help="0: no folder of ranks")
    parser.add_argument("--rank-copies", type=int, default=1, help="how often each rank's trace is repeated")
    parser.add_argument("--repeats", type=int, default=1, help="medians of so many rounds of all tools")
    parser.add_argument("--skip", nargs="*", default=[], choices=TOOLS)
    parser.add_argument("--keep", type=Path, help="where the traces are made and left; without: a temporary folder")
    parser.add_argument("--source", type=Path, help="the trace to repeat")
    options = parser.parse_args()
    samples = sorted(SAMPLES.glob("*/ranks/*/trace*.json.gz"))
    shared = SHARED / "ddp_v100_rank1of2" / "df_index_resolver.json.gz"
    options.source = options.source or (shared if shared.exists() else samples[0])
    options.rank_sources = sorted((SHARED / "dlrm_v100_8ranks").glob("*.gz")) or samples[-2:]
    return options


def main() -> None:
    options = options_of()
    tools = [tool for tool in TOOLS if tool not in options.skip]
    for tool, module in NEEDS.items():
        if tool in tools and importlib.util.find_spec(module) is None:
            tools.remove(tool)
            print(f"{tool}: left out, {module} is not installed")
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        compile_own()
        begin = time.perf_counter()
        print(f"{options.source.name} repeated into {folder} ...", flush=True)
        # In a process of its own: this one must stay small, see `_measure.Cost`.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as maker:
            inputs = maker.submit(make_inputs, folder, options).result()
        print(f"made in {time.perf_counter() - begin:.0f} s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        for one in inputs:
            rounds = measure(one, tools, options.repeats)
            results.append((one, medians(rounds)))
            report(one, rounds)
    more = growth(results)
    if more:
        print("\nCPU time an event in the largest file against the smallest (1: linear), and their RSS:")
        for name, ratio in sorted(more.items()):
            print(
                f"  {name:<20}{ratio['cpu']:>6.2f} CPU {ratio['rss']:>6.2f} RSS, {ratio['events']:.1f} times the events"
            )
    print(
        json.dumps(
            {
                "bench": "ingest",
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "source": options.source.name,
                "growth": more,
                "inputs": [
                    {
                        "name": one.name,
                        "events": one.events,
                        "mb": round(one.mb, 1),
                        "costs": {tool: asdict(cost) for tool, cost in costs.items()},
                        "ratios": ratios(costs),
                    }
                    for one, costs in results
                ],
            }
        )
    )


if __name__ == "__main__":
    main()

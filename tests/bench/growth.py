"""What it costs to read inputs of each kind as one of their dimensions doubles: a table of readers and dimensions.

    python tests/bench/growth.py [--only TEXT ...] [--doublings 4] [--times 1] [--seconds 12]

Each row is measured in a process of its own that has read a small input of the kind before. CPU time is user and
system, of the process and those that it started; an exponent is the slope of log(CPU time), or of the peak of memory,
over log(size), of the sizes that took clearly more than the smallest; 1 is linear. Rows above 1.4 are marked, as are
peaks over 800 MB.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import diag.api
import diag.hang.api
import diag.hang.reason
import diag.show.json
import diag.show.text
import diag.tables.snapshots
from diag.cli.main import main as diag
from tests.growing_inputs import INPUTS, Growing

MOST_EXPONENT = 1.4
MOST_BYTES = 800 << 20
_CLEAR_S, _CLEAR_BYTES = 0.1, 20 << 20
_LONGEST_S = 100
_ADDRESSES = 16 << 30


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_bytes() -> int:
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024


def measure(growing: Growing, doublings: int, times: int, most_s: float, out: Path) -> None:
    """Writes sizes, CPU seconds, peak bytes and exit codes of one input."""
    base = growing.size * times
    taken: list[float] = []
    peaks: list[int] = []
    codes: list[object] = []
    with tempfile.TemporaryDirectory() as temporary:
        sizes = [max(2, base // 8), *(base << by for by in range(doublings + 1))]
        folders = [Path(temporary, str(number)) for number in range(len(sizes))]
        if (builder := os.fork()) == 0:  # whoever measures must be small
            for folder, size in zip(folders, sizes, strict=True):
                folder.mkdir()
                growing.build(folder, size)
            os._exit(0)
        os.waitpid(builder, 0)
        for number, descriptor in enumerate((1, 2), start=1):
            os.dup2(os.open(f"{temporary}/std{number}", os.O_WRONLY | os.O_CREAT), descriptor)
        for folder in folders:
            begin = cpu_seconds()
            try:
                if callable(growing.command):
                    growing.command(folder)
                else:
                    sys.argv = ["diag", *growing.arguments(folder)]
                    diag()
                codes.append(0)
            except SystemExit as ended:
                codes.append(ended.code or 0)
            except BaseException as error:
                codes.append(f"{type(error).__name__}: {error}"[:80])
            taken.append(cpu_seconds() - begin)
            peaks.append(peak_bytes())
            if sum(taken) > most_s:
                break
        out.write_text(json.dumps({"sizes": sizes[: len(taken)], "cpu": taken, "peaks": peaks, "codes": codes}))


def in_child(growing: Growing, doublings: int, times: int, most_s: float) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "row")
        if (child := os.fork()) == 0:
            try:
                resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
                resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S, _LONGEST_S))
                measure(growing, doublings, times, most_s, out)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return json.loads(out.read_text()) if out.exists() else None


def exponent(sizes: list[int], cost: list[float] | list[int], clearly: float) -> float:
    """The slope over the last doublings of the cost beyond that of the smallest input; 0.0 where that is nothing."""
    least = min(cost)
    clear = [(size, one - least) for size, one in zip(sizes, cost, strict=True) if one - least > clearly]
    if len(clear) < 2:
        return 0.0
    (small, first), (large, last) = clear[max(0, len(clear) - 3)], clear[-1]
    return math.log(last / first) / math.log(large / small)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--doublings", type=int, default=4)
    parser.add_argument("--times", type=int, default=1, help="every size, so many times larger")
    parser.add_argument("--seconds", type=float, default=12, help="no larger input is tried after so much CPU time")
    options = parser.parse_args()
    os.environ["DIAG_CACHE"] = "off"
    gc.freeze()
    print(
        f"{'reader: dimension':52s} {'from':>9s} {'to':>9s} {'CPU s':>16s} {'exponent':>8s} {'MB':>6s} "
        f"{'exponent':>8s} exit",
        flush=True,
    )
    for growing in INPUTS:
        if not any(text in growing.name for text in options.only):
            continue
        row = in_child(growing, options.doublings, options.times, options.seconds)
        if row is None:
            print(f"{growing.name:52s} killed", flush=True)
            continue
        sizes, cpu = row["sizes"], row["cpu"]
        slope, peak = exponent(sizes, cpu, _CLEAR_S), max(row["peaks"])
        slope_of_memory = exponent(sizes, row["peaks"], _CLEAR_BYTES)
        marks = " <-" * (max(slope, slope_of_memory) > MOST_EXPONENT) + " memory" * (peak > MOST_BYTES)
        ended = row["codes"][-1]
        sizes_and_times = f"{sizes[0]:9,d} {sizes[-1]:9,d} {cpu[0]:7.2f} {cpu[-1]:8.2f}"
        print(
            f"{growing.name:52s} {sizes_and_times} {slope:8.2f} {peak >> 20:6,d} {slope_of_memory:8.2f} {ended}{marks}",
            flush=True,
        )


if __name__ == "__main__":
    main()

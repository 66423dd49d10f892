"""What reading logs costs: MB/s on one core and peak memory of `read_logs`, beside grep -F with the same substrings.

    python tests/bench/triage.py [--mb 1000] [--ranks 1024] [--calls 0.1 0.5] [--repeats 1] [--keep FOLDER]

Makes logs of many ranks in one file: the initialisation of NCCL with NCCL_DEBUG=INFO, then steps with log lines and
progress bars, a share of COLL lines (``--calls``), in the end time-outs of the watchdog and tracebacks. Each is read by
`read_logs` in a fresh process on one core. The floor is ``grep -c -F`` of GNU grep with the anchors, on the same file
and core: it counts lines, and neither parses nor joins. CPU time is user + system; MB are 10^6 bytes. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from diag.hang.classes import anchors

try:
    from tests.bench._measure import Cost, measured, python, repeated
except ModuleNotFoundError:  # run as a script: its own folder is on the path, the checkout is not
    from _measure import Cost, measured, python, repeated

PARTS = list(anchors())  # what the registry of signatures asks for, beside what the reader looks for anyway


def write_log(path: Path, mb: int, ranks: int, calls: float) -> int:
    """The bytes written. The same arguments give the same log."""
    written = 0
    with path.open("wb") as file:
        for lines in _chunks(ranks, calls, mb * 1_000_000):
            written += file.write("\n".join(lines).encode() + b"\n")
    return written


def _chunks(ranks: int, calls: float, size: int) -> Iterator[list[str]]:
    dice = random.Random(0)
    start = list(_init_lines(ranks))
    end = list(_last_lines(ranks))
    yield start
    written = sum(map(len, start)) + sum(map(len, end))
    step = 0
    while written < size:
        step += 1
        lines = []
        for _ in range(4 * ranks):
            rank = dice.randrange(ranks)
            draw = dice.random()
            if draw < calls:
                lines.append(_call(rank, ranks, step))
            elif draw < calls + 0.4 * (1 - calls):
                lines.append(
                    f"{_who(rank)} NCCL INFO Channel {dice.randrange(16):02d}/0 : {rank}[{rank % 8}] -> "
                    f"{(rank + 1) % ranks}[{(rank + 1) % 8}] [send] via NET/IB/{rank % 8}/GDRDMA"
                )
            elif draw < calls + 0.7 * (1 - calls):
                lines.append(
                    f"[rank{rank}]: 2025-11-09 15:39:{step % 60:02d},{dice.randrange(1000):03d} trainer step {step} "
                    f"loss {dice.random():.4f} lr 1.0e-04 grad norm {dice.random():.3f} tokens {dice.randrange(90_000)}"
                )
            else:
                done = dice.randrange(1000)
                lines.append(
                    f"Epoch 3:  {done // 10}%|{'█' * (done // 100)}▏{' ' * (10 - done // 100)}| {done}/1000 "
                    f"[01:02<03:04,  4.21it/s, loss={dice.random():.3f}]{chr(13) if draw < 0.97 else ''}"
                )
        written += sum(map(len, lines)) + len(lines)
        yield lines
    yield end


def _who(rank: int) -> str:
    return f"gpu-node-{rank // 8:03d}:{4000 + rank}:{5000 + rank} [{rank % 8}]"


def _init_lines(ranks: int) -> Iterator[str]:
    for rank in range(ranks):
        who = _who(rank)
        yield f"{who} NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0"
        yield f"{who} NCCL INFO Bootstrap: Using eth0:10.0.{rank // 8 // 250}.{rank // 8 % 250}<0>"
        yield f"{who} NCCL INFO NCCL version 2.27.5+cuda12.9"
        yield f"{who} NCCL INFO Using network IB"
        for comm, (at, size, name) in enumerate(((rank, ranks, 0x1234), (rank % 8, 8, 0x9000 + rank // 8))):
            about = (
                f"ncclCommInitRankConfig comm {0x55000000 + rank * 256 + comm * 16:#x} rank {at} nranks {size} "
                f"cudaDev {rank % 8} nvmlDev {rank % 8} busId {rank % 8 + 1}b000 commId {name:#x}"
            )
            yield f"{who} NCCL INFO {about} - Init START"
            yield f"{who} NCCL INFO {about} - Init COMPLETE"


def _call(rank: int, ranks: int, step: int) -> str:
    return (
        f"{_who(rank)} NCCL INFO AllReduce: opCount {step:x} sendbuff 0x7f{rank:06x}0000 recvbuff 0x7f{rank:06x}0000 "
        f"count 26214400 datatype 9 op 0 root 0 comm {0x55000000 + rank * 256:#x} [nranks={ranks}] stream 0x55a1b2c3d4"
    )


def _last_lines(ranks: int) -> Iterator[str]:
    for rank in range(1, ranks):
        at = f"[rank{rank}]:[E1109 16:09:31.{rank:09d} ProcessGroupNCCL.cpp:685] [Rank {rank}] "
        yield (
            f"{at}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, "
            "NumelIn=26214400, NumelOut=26214400, Timeout(ms)=1800000) ran for 1800085 milliseconds before timing out."
        )
        yield f"[rank{rank}]: Traceback (most recent call last):"
        for frame in range(8):
            yield f'[rank{rank}]:   File "/app/train.py", line {frame + 10}, in step_{frame}'
            yield f"[rank{rank}]:     result = step_{frame + 1}(batch)"
        yield f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp"


READ = """
import os, sys
os.environ["POLARS_MAX_THREADS"] = "1"
from diag.hang.text import read_logs
logs = read_logs([sys.argv[1]], sys.argv[2].split("|"))
assert logs.world_size == int(sys.argv[3]) == len(logs.processes), (logs.world_size, len(logs.processes))
"""


def measure(path: Path, ranks: int, repeats: int) -> dict[str, Cost]:
    from diag.hang.text.gather import STRUCTURAL

    core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    wanted = path.with_suffix(".anchors")
    wanted.write_text("\n".join(dict.fromkeys([*STRUCTURAL, *PARTS])) + "\n")
    reading = [*core, *python("-c", READ, path, "|".join(PARTS), str(ranks))]
    searching = [*core, "grep", "-c", "-F", "-f", str(wanted), str(path)]
    return {
        "read_logs": repeated(repeats, reading),
        "grep -F": repeated(repeats, searching, {"LC_ALL": "C"}),
        "imports": measured([*core, *python("-c", "import diag.hang.text.read")]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--calls", type=float, nargs="*", default=[0.1, 0.5], help="shares of COLL lines, a log each")
    parser.add_argument("--repeats", type=int, default=1, help="medians of so many runs")
    parser.add_argument("--keep", type=Path, help="where the logs are made and left; without: a temporary folder")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for calls in options.calls:
            path = folder / f"calls-{calls}.log"
            size = write_log(path, options.mb, options.ranks, calls) / 1e6
            costs = measure(path, options.ranks, options.repeats)
            print(f"\n{size:,.0f} MB, {options.ranks} ranks, {calls:.0%} COLL lines; load {os.getloadavg()[0]:.1f}")
            print(f"  {'':<12}{'wall s':>9}{'CPU s':>9}{'MB/CPU s':>10}{'RSS MB':>9}")
            for tool, cost in costs.items():
                if cost.failed:
                    print(f"  {tool:<12} {cost.failed}")
                    continue
                rate = f"{size / cost.cpu_s:>10.0f}" if tool != "imports" else " " * 10
                print(f"  {tool:<12}{cost.wall_s:>9.2f}{cost.cpu_s:>9.2f}{rate}{cost.rss_mb:>9.0f}")
            results.append({"mb": size, "calls": calls, "costs": {tool: asdict(cost) for tool, cost in costs.items()}})
            if options.keep is None:
                path.unlink()
    print(json.dumps({"bench": "triage", "cores": os.cpu_count(), "ranks": options.ranks, "inputs": results}))


if __name__ == "__main__":
    main()

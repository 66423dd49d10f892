"""Reads the Flight Recorder dumps of a large job: seconds of CPU and peak memory.

``python tests/bench/flight_recorder.py [ranks] [entries] [folder]`` (256 and 2,000). A mesh of tensor and data parallel
groups with 20 frames an entry; one rank stops in Python. Written as PyTorch's pickler writes it. A folder is filled by
the first call and only read by the next ones: writing takes memory too."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from diag.hang.flight import clues_of, read_dumps
from tests.hang.flight import torch_pickle

FRAMES = 20


def content(rank: int, ranks: int, entries: int, stopped: int) -> dict[str, object]:
    """The last ``entries`` of a long run; ``stopped`` has not made the last 40 calls, and has finished what it made."""
    groups = {
        "0": ("default_pg", list(range(ranks))),
        str(1 + rank // 8): ("TP", list(range(rank // 8 * 8, rank // 8 * 8 + 8))),
        str(1000 + rank % 8): ("DP", list(range(rank % 8, ranks, 8))),
    }
    order = list(groups)
    stacks = [
        [{"name": f"f{depth}", "filename": f"model/part{depth}.py", "line": site} for depth in range(FRAMES)]
        for site in range(30)
    ]
    numbers = dict.fromkeys(groups, 5000)
    made = []
    last = entries - (40 if rank == stopped else 0)
    for index in range(last):
        name = order[1] if index % 10 < 7 else order[2] if index % 10 < 9 else order[0]
        numbers[name] += 1
        pending = index >= entries - 40 and rank != stopped
        op = ("_all_gather_base", "_reduce_scatter_base", "all_reduce")[index % 3]
        size = len(groups[name][1])
        made.append(
            {
                "frames": stacks[index % 30],
                "record_id": 100_000 + index,
                "pg_id": order.index(name),
                "process_group": (name, groups[name][0]),
                "thread_name": "python3",
                "thread_id": "23456",
                "collective_seq_id": numbers[name],
                "p2p_seq_id": 0,
                "op_id": numbers[name],
                "profiling_name": f"nccl:{op}",
                "time_created_ns": 1_758_610_505_947_721_376 + index * 1_000_000 + rank,
                "input_sizes": [[4096 * (size if index % 3 == 1 else 1), 1, 5120]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[4096 * (size if index % 3 == 0 else 1), 1, 5120]],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if pending else "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None if pending else 1_758_610_505_947_721_376 + index * 1_000_001,
                "retired": not pending,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    return {
        "version": "2.10",
        "pg_config": {n: {"name": n, "desc": desc, "ranks": str(members)} for n, (desc, members) in groups.items()},
        "comm_lib_version": "2.27.3",
        "pg_status": {},
        "entries": made,
    }


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    entries = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 3:
            folder = sys.argv[3]
        if not any(Path(folder).iterdir()):
            for rank in range(ranks):
                data = torch_pickle.dumps(content(rank, ranks, entries, stopped=ranks // 3))
                (Path(folder) / f"comm_lib_trace_rank_{rank}").write_bytes(data)
        files = list(Path(folder).iterdir())
        size = sum(path.stat().st_size for path in files)
        start = time.process_time()
        dumps = read_dumps([folder])
        read = time.process_time()
        found = clues_of(dumps)
        end = time.process_time()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    culprits = [culprit.rank for culprit in found.clues[0].culprits]
    print(f"{len(files)} dumps of {entries} entries, {size / 1e6:.0f} MB; culprits {culprits}")
    print(f"read {read - start:.1f} s, reasoned {end - read:.1f} s, peak {peak / 1024:.0f} MB")


if __name__ == "__main__":
    main()

"""Files as NCCL Inspector writes them, from the durations of collectives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MS = 1_000  # microseconds
BYTES = 8 << 20
EPOCH_US = 1_772_585_717_263_338

Record = dict[str, Any]
# Microseconds that a rank's part in the collective of this number takes, in a group of these ranks.
Took = Callable[[int, int, tuple[int, ...]], float]


def header(group: str, rank: int, ranks: int) -> dict[str, Any]:
    return {"id": group, "rank": rank, "n_ranks": ranks, "nnodes": 1}


def metadata(version: str, host: str, pid: int, dumped_us: int = EPOCH_US) -> dict[str, Any]:
    return {
        "inspector_output_format_version": version,
        "git_rev": "standalone-build",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": dumped_us,
        "hostname": host,
        "pid": pid,
    }


def collective(number: int, microseconds: float, op: str = "AllReduce", size: int = BYTES, **more: Any) -> Record:
    return {
        "coll": op,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": microseconds,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": round(size / microseconds / 1000, 6) if microseconds else 0.0,
        "coll_busbw_gbs": 1.0,
        **more,
    }


def lines(
    version: str, about: dict[str, Any], by: dict[str, Any], records: Sequence[dict[str, Any]], **stats: int
) -> str:
    """One dump of a communicator."""
    context = {"header": about, "metadata": by}
    counts = {"coll_records": len(records), "coll_dropped_total": 0, "p2p_records": 0, "p2p_dropped_total": 0, **stats}
    found: list[Record] = [] if version == "v4.0" else [{**context, "dump_stats": counts}]
    found += [{**({} if version == "v4.3" else context), "coll_perf": record} for record in records]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in found)


def write_job(
    folder: Path,
    groups: Mapping[str, tuple[int, ...]],
    took: Took,
    *,
    count: int = 200,
    version: str = "v4.0",
    per_host: int = 4,
    dumps: int = 1,
    wall_us: int = 0,
    first_pid: int = 100,
    epoch_us: int = EPOCH_US,
) -> Path:
    """A file a rank: ``count`` all-reduces of each group, written in so many ``dumps`` that are spread over
    ``wall_us``."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in sorted({rank for ranks in groups.values() for rank in ranks}):
        host = f"node{rank // per_host}"
        text = ""
        for dump in range(dumps):
            dumped_us = epoch_us + wall_us * (dump + 1) // dumps
            for group, ranks in groups.items():
                if rank in ranks:
                    numbers = range(count * dump // dumps, count * (dump + 1) // dumps)
                    records = [collective(number, took(rank, number, ranks)) for number in numbers]
                    about = header(group, ranks.index(rank), len(ranks))
                    text += lines(version, about, metadata(version, host, first_pid + rank, dumped_us), records)
        (folder / f"{host}-pid{first_pid + rank}.log").write_text(text)
    return folder

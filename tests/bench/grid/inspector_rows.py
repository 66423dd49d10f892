"""The third family of the grid: the same jobs as files of NCCL Inspector, which hold durations of collectives only.

What is asked is who is late: the answer is "straggler" with the rank, or "healthy". There are no clocks in the files,
and no steps. Version and interval of the dumps are drawn; so is whether the output is verbose.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.bench.grid.gpu.engine import Rank
from tests.bench.grid.gpu.job import Job
from tests.bench.grid.gpu.rows import GPU_ROWS, Half, Make, Row
from tests.bench.grid.truth import HEALTHY, Answer, Truth
from tests.copies import replace

STRAGGLER = "straggler"
PREFIX = "insp-"
_STEPS = 16
_OF_ROWS = (
    "H0-ddp", "H0-fsdp2", "H0-fsdp2-no-reshard", "H0-hsdp", "H0-large", "D4-hidden-loader", "N0-hidden-network",
    "D1-data-all", "D2-data-one", "N1-network", "S1-forward", "S3-backward", "S2-rotating", "S1-large",
    "L1-launch-bound", "L1-launch-bound-one", "K1-checkpoint-one", "C1-gc-one",
)  # fmt: skip
_NAMES = {"_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter", "allreduce": "AllReduce"}
_VERSIONS = ("v4.0", "v4.0", "v4.2", "v4.3")
_LEAST_BYTES = 8192
_PID = 4000
_EPOCH_NS = 1_700_000_000 * 10**9


def _longer(make: Make) -> Make:
    def made(half: Half, rng: Random, share: float) -> Job:
        job = make(half, rng, share)
        return replace(job, steps=_STEPS if job.world <= 16 else 6)

    return made


INSPECTOR_ROWS = tuple(
    Row(PREFIX + row.id, _longer(row.make), row.rid, row.graded, row.recipes) for row in GPU_ROWS if row.id in _OF_ROWS
)


def inspector_truth(truth: Truth, job: Job) -> Truth:
    """Who is late, by the truth of the job. A planted straggler may be named however little it costs: the files do not
    say how long a step is."""
    late = {ranks for answer in truth.right for ranks in answer.culprits if ranks}
    planted = {fault.ranks for fault in job.faults if fault.ranks}
    answers = [Answer(HEALTHY, frozenset(), ((),))] if any(() in answer.culprits for answer in truth.right) else []
    if late or planted:
        named = Answer(STRAGGLER, frozenset({STRAGGLER}), tuple(sorted(late | planted)))
        answers = [named, *answers] if late else [*answers, named]
    return Truth(tuple(answers), False, truth.share, truth.shares)


def write_inspector(job: Job, ranks: Sequence[Rank], folder: Path, rng: Random) -> list[Path]:
    """One file a process, as the plugin writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    version, verbose = rng.choice(_VERSIONS), rng.random() < 0.3
    interval_ns = rng.choice((0, 100_000_000, 1_000_000_000))  # 0: when the communicator goes
    ids: dict[str, str] = defaultdict(lambda: f"0x{rng.randrange(1 << 60):x}")
    paths = []
    for rank in ranks:
        host = f"node-{rank.rank // job.per_node}"
        path = folder / f"{host}-pid{_PID + rank.rank}.log"
        path.write_text("".join(_lines(job, rank, host, version, verbose, interval_ns, ids)))
        paths.append(path)
    return paths


def _lines(
    job: Job, rank: Rank, host: str, version: str, verbose: bool, interval_ns: int, ids: dict[str, str]
) -> list[str]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    dumps: dict[tuple[int, str], list[dict[str, object]]] = defaultdict(list)
    headers: dict[str, dict[str, object]] = {}
    offset_ns = _EPOCH_NS + (job.offset_ns[rank.rank // job.per_node] if job.offset_ns else 0)
    kernels = sorted((e for e in rank.events if e.cat == "kernel" and e.args), key=lambda event: event.end)
    for event in kernels:
        about = json.loads(f"{{{event.args}}}")
        op, group, size = _NAMES[about["Collective name"]], about["Process Group Name"], about["Group size"]
        counts[group, op] += 1
        mine = min(about["In msg nelems"], about["Out msg nelems"]) * (4 if about["dtype"] == "Float" else 2)
        if mine < _LEAST_BYTES:
            continue
        headers[group] = {
            "id": ids[group], "rank": _place(rank.rank, about["Process Group Ranks"]), "n_ranks": size,
            "nnodes": job.nodes,
        }  # fmt: skip
        microseconds = max(1, round((event.end - event.start) / 1000))
        full = mine if op == "AllReduce" else mine * size
        record: dict[str, object] = {
            "coll": op, "coll_sn": counts[group, op], "coll_msg_size_bytes": mine,
            "coll_exec_time_us": float(microseconds) if version == "v4.0" else microseconds,
            "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": round(full / microseconds / 1000, 6),
        }  # fmt: skip
        if verbose:
            begin, end = ((time + offset_ns) // 1000 for time in (event.start, event.end))
            record["event_trace_ts"] = {"coll_start_ts": begin, "coll_stop_ts": end}
        dumped_ns = (event.end // interval_ns + 1) * interval_ns if interval_ns else kernels[-1].end
        dumps[dumped_ns + offset_ns, group].append(record)
    lines = []
    for (dumped_ns, group), records in dumps.items():
        metadata = {
            "inspector_output_format_version": version, "git_rev": "standalone-build",
            "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": dumped_ns // 1000, "hostname": host,
            "pid": _PID + rank.rank,
        }  # fmt: skip
        context = {"header": headers[group], "metadata": metadata}
        if version != "v4.0":
            stats = {"coll_records": len(records), "coll_dropped_total": 0, "p2p_records": 0, "p2p_dropped_total": 0}
            lines.append({**context, "dump_stats": stats})
        lines += [{**({} if version == "v4.3" else context), "coll_perf": record} for record in records]
    return [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]


def _place(rank: int, ranks: str) -> int:
    """The rank within a group. A long list is shortened, and is that of all ranks."""
    return rank if "..." in ranks else json.loads(ranks).index(rank)

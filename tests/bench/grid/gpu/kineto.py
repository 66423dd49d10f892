"""The events of a simulated rank as the file that the profiler would have written, gzip, on the clock of its node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from isal import igzip

from tests.account.kineto_builder import BASE_NS
from tests.bench.grid.gpu.engine import Event, Rank, apart, groups_of
from tests.bench.grid.gpu.job import Job, Recipe

_ON_DEVICE = ("kernel", "gpu_memcpy")


def write_traces(job: Job, ranks: Sequence[Rank], folder: Path) -> list[Path]:
    """One file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_trace(job, rank, folder / f"rank{rank.rank}.pt.trace.json.gz") for rank in ranks]


def write_trace(job: Job, rank: Rank, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(igzip.compress(text(job, rank).encode(), compresslevel=1))
    return path


def text(job: Job, rank: Rank) -> str:
    """The trace as Kineto prints it: the base time behind the events."""
    node = rank.rank // job.per_node
    ppm = job.drift_ppm[node] if job.drift_ppm else 0.0
    base = BASE_NS + (job.offset_ns[node] if job.offset_ns else 0)
    pid, device = 4000 + rank.rank, rank.rank % job.per_node
    begin = min((e.start for e in rank.events if e.cat not in _ON_DEVICE), default=0)
    lines = [_event(e, pid, device, ppm, job.numbered) for e in rank.events if e.end > begin]
    groups = _groups(job, rank.rank)
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank.rank, "world_size": job.world, "pg_count": len(groups), "pg_config": groups,
        },
        "host_name": f"node-{node}",
    }  # fmt: skip
    before = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    after = f'  "traceName": "trace.json",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {base}'
    return f'\n{{\n{before},\n  "traceEvents": [{",".join(lines)}\n  ],\n{after}\n}}'


def _event(e: Event, pid: int, device: int, ppm: float, numbered: bool) -> str:
    start, end = e.start, e.end
    if ppm:
        start, end = start + round(start * ppm * 1e-6), end + round(end * ppm * 1e-6)
    times = f'"ts": {start / 1000:.3f}, "dur": {(end - start) / 1000:.3f}'
    if e.cat in _ON_DEVICE:
        more = e.args if numbered else e.args.partition(', "Seq"')[0]
        args = f'"device": {device}, "context": 1, "stream": {e.tid}, "correlation": {e.correlation}'
        return (
            f'\n  {{\n    "ph": "X", "cat": "{e.cat}", "name": "{e.name}", "pid": {device}, "tid": {e.tid},'
            f'\n    {times},\n    "args": {{\n      {args}{", " + more if more else ""}\n    }}\n  }}'
        )
    args = f'"cbid": 211, "correlation": {e.correlation}' if e.correlation else '"External id": 1'
    return (
        f'\n  {{\n    "ph": "X", "cat": "{e.cat}", "name": "{e.name}", "pid": {pid}, "tid": {e.tid},\n    {times},'
        f'\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _groups(job: Job, rank: int) -> list[dict[str, object]]:
    """The process groups that this rank is in."""
    everyone, inside, across = groups_of(job.world, job.per_node if job.recipe == Recipe.HSDP else job.world)
    found = [everyone]
    if job.recipe == Recipe.HSDP:
        found += [group for group in (*inside, *across) if rank in group.ranks]
    if job.own_reduce_group:
        found.append(apart(everyone))
    return [
        {
            "pg_name": g.name, "pg_desc": "default_pg" if g.description == "mesh" else g.description,
            "backend_config": "cuda:nccl", "pg_size": len(g.ranks),
            "ranks": list(g.ranks),
        }
        for g in found
    ]  # fmt: skip

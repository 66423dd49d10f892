"""Writes tiny run directories with known numbers, as the collectors would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    CollectiveLine,
    CollectiveRow,
    Manifest,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from tests.account.kineto_builder import KinetoBuilder

MS = 1_000_000
COMPUTE_MS = 60
TRANSFER_MS = 5
QUICK_DATA_MS = 1
TOKENS = 512
RSS = 400_000_000


def write_run(
    root: Path,
    ranks: int = 2,
    steps: int = 12,
    slow_data_ms: Mapping[int, int] | None = None,
    memory: MemoryRecord | None = None,
    missing: tuple[int, ...] = (),
    calls: int = 1,
) -> Path:
    """A data-parallel run on a CPU: every step waits for data, computes, then reduces; ``slow_data_ms`` by rank.
    All ranks leave a step together, as the last to arrive allows. ``calls``: all-reduces a step, in turn."""
    data = {rank: (slow_data_ms or {}).get(rank, QUICK_DATA_MS) for rank in range(ranks)}
    length = max(data.values()) + COMPUTE_MS + TRANSFER_MS
    layout = RunLayout(root)
    root.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        run_id="test",
        created_unix_ns=0,
        world_size=ranks,
        backend="gloo",
        strategy="ddp",
        mesh={"dp": ranks},
        exit_code=0,
    )
    layout.manifest.write_text(json.dumps(asdict(manifest)))
    for rank in sorted(set(range(ranks)) - set(missing)):
        files = layout.rank(rank)
        files.folder.mkdir(parents=True)
        identity = RankRecord(rank, rank, ranks, f"node{rank}", 1000 + rank, "boot", 0, 0, "cpu")
        files.identity.write_text(json.dumps(asdict(identity)))
        step_lines, collective_lines = [], []
        for step in range(steps):
            begin = (1 + step * length) * MS
            loaded = begin + data[rank] * MS
            forward_end = loaded + COMPUTE_MS * MS // 2
            arrived = loaded + COMPUTE_MS * MS
            end = begin + length * MS
            phases = [
                PhaseRow("data", begin, loaded),
                PhaseRow("forward", loaded, forward_end),
                PhaseRow("backward", forward_end, end),
            ]
            record = StepRecord(step, begin, end, phases, tokens=TOKENS, memory=memory or MemoryRecord(rss=RSS + rank))
            last = begin + (length - TRANSFER_MS) * MS  # when the slowest rank arrives
            edges = [arrived, *(last + TRANSFER_MS * MS * (call + 1) // calls for call in range(calls))]
            rows = [
                CollectiveRow("0", step * calls + call, "all_reduce", 4_000_000 // calls, "float32", a, b, a, b)
                for call, (a, b) in enumerate(pairwise(edges))
            ]
            step_lines.append(json.dumps(asdict(record)))
            collective_lines.append(json.dumps(asdict(CollectiveLine(step, rows, {"0": list(range(ranks))}))))
        files.steps.write_text("\n".join(step_lines) + "\n")
        files.collectives.write_text("\n".join(collective_lines) + "\n")
    return root


STALLED_STEPS = 6


def write_stalled_trace(folder: Path, host: str = "resize") -> Path:
    """One rank with a GPU. Each step of 10 ms: a kernel of 2 ms; 4 ms in which nothing is launched, 3.6 of them inside
    ``host``; 0.4 ms inside the launch and 0.6 after it; and a kernel of 3 ms."""
    folder.mkdir(parents=True, exist_ok=True)
    build = KinetoBuilder(world_size=1)
    for step in range(STALLED_STEPS):
        at = step * 10 * MS
        build.step(step, at, at + 10 * MS, "ProfilerStep#")
        build.kernel(at, at + 2 * MS, launch=at)
        build.op(host, at + 24 * MS // 10, at + 6 * MS)
        build.runtime("cudaLaunchKernel", at + 6 * MS, at + 64 * MS // 10, correlation=900 + step)
        build.event("kernel", "gemm", at + 7 * MS, at + 10 * MS, 7, 0, device=0, stream=7, correlation=900 + step)
    return build.write(folder, "rank0.json").parent

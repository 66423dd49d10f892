"""The same run told in another way: clocks that are off, ranks under other numbers, a file that is missing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from diag.api import Result, open_run
from tests.bench.grid.cases import NOT_KEPT, TRACE_ROWS
from tests.bench.grid.gpu.engine import MS, Rank
from tests.bench.grid.gpu.job import Job
from tests.bench.grid.gpu.kineto import write_traces
from tests.bench.grid.gpu.rows import HALVES
from tests.bench.grid.gpu.simulate import simulate
from tests.copies import replace


@dataclass(frozen=True)
class Simulated:
    """A case of traces, ready to be written down in any way."""

    job: Job
    ranks: tuple[Rank, ...]

    def diagnosed(
        self, folder: Path, change: Callable[[Sequence[Path]], None] = lambda paths: None, **job: Any
    ) -> Result:
        """``job``: what is different in how the job is shown, ``change``: in its files."""
        change(write_traces(replace(self.job, **job), self.ranks, folder))
        return open_run(folder, reading=NOT_KEPT)


def simulated(case: str, seed: int = 0) -> Simulated:
    half_name, row_id, number = case.split("/")
    half, rng = HALVES[half_name], Random(f"{seed}/{case}")
    row = next(row for row in TRACE_ROWS if row.id == row_id)
    job = row.make(half, rng, half.shares[int(number) % len(half.shares)])
    return Simulated(job, simulate(job, keep=True).ranks)


def shifted(job: Job, by_ns: int = 50 * MS, ppm: float = 20.0) -> dict[str, Any]:
    """The last node's clock is so much ahead, and gains."""
    steady = (0,) * job.nodes
    offset, drift = job.offset_ns or steady, job.drift_ppm or steady
    return {"offset_ns": (*offset[:-1], offset[-1] + by_ns), "drift_ppm": (*drift[:-1], drift[-1] + ppm)}


def renumbered(number_of: Mapping[int, int]) -> Callable[[Sequence[Path]], None]:
    """Every rank under another number, in its own file and in the groups that the others list."""

    def change(paths: Sequence[Path]) -> None:
        for path in paths:
            text = json.loads(gzip.decompress(path.read_bytes()))
            info = text["distributedInfo"]
            info["rank"] = number_of[info["rank"]]
            for group in info["pg_config"]:
                group["ranks"] = [number_of[rank] for rank in group["ranks"]]
            for event in text["traceEvents"]:
                args = event.get("args", {})
                if listed := args.get("Process Group Ranks"):
                    args["Process Group Ranks"] = json.dumps([number_of[rank] for rank in json.loads(listed)])
            path.write_bytes(gzip.compress(json.dumps(text).encode(), compresslevel=1))

    return change


def without(rank: int) -> Callable[[Sequence[Path]], None]:
    return lambda paths: paths[rank].unlink()

"""Pieces of a recorded run: what each node keeps where no storage is shared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from diag.collectors.layout import RunLayout
from diag.collectors.records import DATA
from diag.rundir.tables import Tables
from tests.simulate import MS, Plan, simulate, write_run

HOUR_NS = 3600 * 10**9


@cache
def simulated(ranks: int, start: int) -> Tables:
    """The loader of rank 3 is slow."""
    return simulate(
        Plan(
            ranks=ranks,
            steps=60,
            extra=lambda step, rank: {DATA: 60 * MS} if rank == 3 else {},
            hosts=lambda rank: f"host-{rank // 2}",
            clock=lambda rank, now: now + start,
        )
    )


def recorded(root: Path, ranks: int = 4, job: str = "", start: int = HOUR_NS) -> RunLayout:
    layout = write_run(simulated(ranks, start), root)
    for rank, files in layout.ranks().items():
        own = {"job": job, "pid": start % 30_000 + rank, "monotonic_ns": start - 10**9 + rank, "unix_ns": start}
        edit(files.identity, **own)
    edit(layout.manifest, job=job)
    return layout


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def split(run: RunLayout, folder: Path, ranks: Sequence[Sequence[int]]) -> list[RunLayout]:
    """Run directories node0, node1, ... with these ranks of the run each; the manifest is in the first."""
    pieces = []
    for number, of_node in enumerate(ranks):
        piece = RunLayout(folder / f"node{number}")
        piece.ranks_folder.mkdir(parents=True)
        for rank in of_node:
            shutil.copytree(run.rank(rank).folder, piece.rank(rank).folder)
        if not number:
            shutil.copy(run.manifest, piece.manifest)
        pieces.append(piece)
    return pieces

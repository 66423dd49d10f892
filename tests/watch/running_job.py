"""A run directory as a job leaves it that is running: heartbeats, step records and a manifest."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import Heartbeat, Manifest, StepRecord
from diag.collectors.settings import CollectorSettings

MS = 1_000_000


def running_job(
    folder: Path, ranks: int = 2, step: int = 100, step_ms: int = 100, settings: CollectorSettings | None = None
) -> RunLayout:
    layout = RunLayout(folder)
    collector = {"settings": asdict(settings or CollectorSettings())}
    replace_file(layout.manifest, encode(Manifest("job", 0, world_size=ranks, collector=collector)))
    for rank in range(ranks):
        beat(layout, rank, step)
        lines = [StepRecord(n, n * step_ms * MS, (n + 1) * step_ms * MS - 1, []) for n in range(step)]
        replace_file(layout.rank(rank).steps, b"".join(encode(line) for line in lines))
    return layout


def beat(layout: RunLayout, rank: int, step: int, age_s: float = 0, **fields: object) -> None:
    now = time.time() - age_s
    told = Heartbeat(int(now * 1e9), 0, step, "forward", steps=step, **fields)  # type: ignore[arg-type]
    replace_file(layout.rank(rank).heartbeat, encode(told))

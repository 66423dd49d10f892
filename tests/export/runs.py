"""Run directories that grow as a training writes them."""

from __future__ import annotations

from pathlib import Path

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import Heartbeat
from diag.export import definitions as of
from diag.export.definitions import Metric, Sample
from tests.simulate import Plan, simulate, write_run

NOW_NS = 1_700_000_000_000_000_000


def written(folder: Path, **plan: object) -> RunLayout:
    """A simulated run with heartbeats that are two seconds old at NOW_NS."""
    layout = write_run(simulate(Plan(**plan)), folder)  # type: ignore[arg-type]
    for files in layout.ranks().values():
        beat = Heartbeat(unix_ns=NOW_NS - 2_000_000_000, monotonic_ns=0, step=0, phase="data")
        replace_file(files.heartbeat, encode(beat))
    return layout


def cut(layout: RunLayout, grown: RunLayout, part: float) -> None:
    """Makes of ``grown`` what ``layout`` was when this part of its lines had been written; a line may be cut."""
    for rank, files in layout.ranks().items():
        own = grown.rank(rank)
        own.folder.mkdir(parents=True, exist_ok=True)
        for source in files.folder.iterdir():
            content = source.read_bytes()
            if source.suffix == ".jsonl":
                content = content[: round(part * len(content))]
            (own.folder / source.name).write_bytes(content)
    grown.manifest.write_bytes(layout.manifest.read_bytes())


def values(samples: list[Sample], metric: Metric, label: str = of.RANK) -> dict[str, float]:
    """By one label. Each of its values must be there once."""
    own = [(sample.labels.get(label, ""), sample.value) for sample in samples if sample.metric is metric]
    assert len(dict(own)) == len(own)
    return dict(own)

"""Run directories of this project: who the ranks are, from manifest.json and rank.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from diag.collectors.layout import RunLayout, world_size_of

from .facts import Facts
from .inputs import STDIN

_MOST_BYTES = 4 << 20


def run_directories(paths: Sequence[str | Path], files: Iterable[str]) -> list[RunLayout]:
    """The runs that the given paths are, and those that the files found below them lie in."""
    roots = {Path(path) for path in paths if str(path) != STDIN}
    for file in files:
        folder = Path(file).parent
        if folder.parent.name == "ranks":
            roots.add(folder.parent.parent)
    return [RunLayout(root) for root in sorted(roots) if RunLayout(root).manifest.is_file()]


def take_run(run: RunLayout, facts: Facts) -> int | None:
    """Puts its ranks to the processes; the world size that it states."""
    about = _read(run.manifest)
    for rank, layout in run.ranks().items():
        record = _read(layout.identity)
        host, pid = record.get("host"), record.get("pid")
        if not isinstance(host, str) or not isinstance(pid, int):
            continue
        heard = facts.process((host.partition(".")[0], pid, ("file", rank)))
        local, device = record.get("local_rank"), record.get("device_index")
        heard.local_rank = local if isinstance(local, int) else None
        heard.device = device if isinstance(device, int) else None
    return world_size_of(about.get("world_size"))


def _read(path: Path) -> dict[str, object]:
    """Nothing where it is missing or damaged: a run that crashed opens all the same."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

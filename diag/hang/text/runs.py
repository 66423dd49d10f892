"""Run directories of this project: who the ranks are, from manifest.json and rank.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from diag.collectors.layout import RankLayout, RunLayout, is_regular, world_size_of
from diag.collectors.reading import read_object

from .facts import Facts
from .gaps import Gaps
from .inputs import STDIN


def run_directories(paths: Sequence[str | Path], files: Iterable[str]) -> list[RunLayout]:
    """The runs that the given paths are, and those that the files found below them lie in."""
    roots = {Path(path) for path in paths if str(path) != STDIN}
    for file in files:
        folder = Path(file).parent
        if folder.parent.name == "ranks":
            roots.add(folder.parent.parent)
    return [RunLayout(root) for root in sorted(roots) if is_regular(RunLayout(root).manifest)]


def ranks_of(run: RunLayout) -> dict[int, RankLayout]:
    """The ranks that left a folder; none where they cannot be listed, which is said of the folder itself."""
    try:
        return run.ranks()
    except OSError:
        return {}


def take_run(run: RunLayout, facts: Facts, gaps: Gaps) -> int | None:
    """Puts its ranks to the processes; the world size that it states. A run that crashed opens all the same: what is
    missing or damaged says nothing."""
    about = read_object(run.manifest, run.root, gaps.say)
    for rank, layout in ranks_of(run).items():
        record = read_object(layout.identity, run.root, gaps.say)
        host, pid = record.get("host"), record.get("pid")
        if not isinstance(host, str) or not isinstance(pid, int):
            continue
        heard = facts.process((host.partition(".")[0], pid, ("file", rank)))
        local, device = record.get("local_rank"), record.get("device_index")
        heard.local_rank = local if isinstance(local, int) else None
        heard.device = device if isinstance(device, int) else None
    return world_size_of(about.get("world_size"))

"""SECURITY.md says of every file of a run directory what it holds."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from diag.collectors.layout import RankLayout, RunLayout

PAGE = Path(__file__).parents[1] / "SECURITY.md"
# They ask a rank for something, or repeat what another file holds.
REQUESTS = frozenset(
    {"asked.json", "trace_asked.json", "keep_asked.json", "exits.json", "verdict.json", "tables", "ranks"}
)


def test_every_file_is_in_the_table() -> None:
    run = RunLayout(Path("run"))
    names = {
        value.name
        for one in (run, run.rank(0))
        for name in vars(type(one))
        if not name.startswith("_") and isinstance(value := getattr(one, name), Path)
    }
    names |= {run.nvidia_smi("node1").name, run.nccl_ras("node1", 1).name, RankLayout.trace(run.rank(0), 10).name}
    names.add(run.rank(0).memory_snapshot("oom", 3).name)
    text = PAGE.read_text()
    patterns = [pattern.rpartition("/")[2] for pattern in re.findall(r"`([^`\n]+)`", text)]
    missing = {name for name in names - REQUESTS if not any(fnmatch(name, pattern) for pattern in patterns)}
    folders = {run.root.name, run.rank(0).folder.name}
    assert {name for name in missing - folders if "flight_recorder" not in name} == set()
    assert "Flight Recorder dumps" in text

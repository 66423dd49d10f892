"""A training that its launcher restarted: what each attempt left is triaged by itself."""

from __future__ import annotations

from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.hang.api import investigate

LOG = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242\n"


def test_the_attempts_are_not_mixed(tmp_path: Path) -> None:
    first = RunLayout(tmp_path / "run")
    for run in (first, first.restart(1)):
        update_manifest(run, world_size=1)
        run.rank(0).folder.mkdir(parents=True)
        run.rank(0).log.write_text(LOG)
        run.rank(0).flight_recorder_asked(0).write_bytes(b"\x80\x04")
    for run in (first, first.restart(1)):
        found = investigate([str(run.root)])
        assert {Path(path).parent for path in found.logs.paths} == {run.rank(0).folder}
        said = [path for path, _ in found.triage.gaps if path]
        assert said
        assert {Path(path).parent for path in said} == {run.rank(0).folder}
    # A folder of that name that is nobody's attempt is looked into.
    other = tmp_path / "logs" / "restart-1"
    other.mkdir(parents=True)
    (other / "log.txt").write_text(LOG)
    assert investigate([str(tmp_path / "logs")]).logs.paths == (str(other / "log.txt"),)

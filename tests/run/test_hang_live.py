"""``diag run`` ends a training that hangs, and says of every hang and crash which rank it comes from, and why.

DIAG_HANG=all: ten times each, on 2 and 4 ranks, every rank in turn; otherwise once on 2 ranks, and those that just die
are those of test_crashes.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.errors import ExitCode
from tests.command import diag, diag_process
from tests.matrix import matrix
from tests.run.hang_live import PLANTED, STEP, run_planted

ALL = os.environ.get("DIAG_HANG") == "all"
RANKS = (2, 4) if ALL else (2,)
REPEATS = 10 if ALL else 1
NAMES = [name for name, planted in PLANTED.items() if ALL or not planted.inject.startswith("die:")]


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", matrix(NAMES, ["hang in the loader"]))
def test_class_and_rank_of_what_was_planted(tmp_path: Path, name: str, ranks: int, repeat: int) -> None:
    planted, culprit = PLANTED[name], (1 + repeat) % ranks
    ended = run_planted(planted, ranks, culprit, tmp_path / "run")
    assert (ended.exit_code, ended.fault_class, ended.ranks) == (planted.exit_code, planted.fault_class, (culprit,)), (
        ended.errors
    )
    assert f"at fault: rank {culprit}" in " ".join(ended.errors.split())
    layout = RunLayout(tmp_path / "run")
    manifest = json.loads(layout.manifest.read_text())
    assert manifest["exit_code"] == planted.exit_code
    if planted.hangs:
        assert "diag: hang: no progress" in ended.errors
        assert manifest["hang"]["away"][0][0] == culprit
        for files in layout.ranks().values():
            assert "most recent call first" in files.stacks.read_text()
        assert {len(list(files.folder.glob("flight_recorder*"))) for files in layout.ranks().values()} == {1}
    else:
        assert manifest["hang"] == {}
    # What was recorded until then is still a run.
    assert diag("analyze", layout.root, "--json").returncode in (ExitCode.OK, ExitCode.DATA_INCOMPLETE)
    assert len(layout.rank(culprit).steps.read_text().splitlines()) == STEP


@pytest.mark.matrix
def test_a_slow_checkpoint_is_waited_for(tmp_path: Path) -> None:
    """Longer than the limit of a hang, and nothing but a line about it."""
    ended = diag_process(
        "run", "--steps", "7", "--no-trace", "--timeout", "60", "--hang-timeout", "3",
        "--inject", "checkpoint-stall:rank=1,ms=5000,every=5", "--out", tmp_path / "run",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "rank 1 is busy with checkpoint" in ended.stderr
    layout = RunLayout(tmp_path / "run")
    assert not layout.hang.exists()
    assert not layout.asked.exists()
    assert not list(layout.root.glob("ranks/*/flight_recorder*")), "a triage of this run must find nothing"
    assert not list(layout.root.glob("ranks/*/stacks.txt"))


@pytest.mark.matrix
def test_a_checkpoint_without_end_is_a_hang_of_that_name(tmp_path: Path) -> None:
    ended = diag_process(
        "run", "--steps", "7", "--no-trace", "--timeout", "120", "--hang-timeout", "3",
        "--inject", "checkpoint-stall:rank=1,ms=600000,every=5", "--out", tmp_path / "run",
    )  # fmt: skip
    assert ended.returncode == ExitCode.HANG, ended.stderr
    found = json.loads(RunLayout(tmp_path / "run").hang.read_text())
    assert found["verdict"]["fault_class"] == "slow_rank_checkpoint"
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]


@pytest.mark.matrix
def test_the_collectives_own_time_out_is_the_same_hang(tmp_path: Path) -> None:
    """A limit beyond it is moved before it; evidence is there also where the process group is first after all."""
    ended = diag_process(
        "run", "--steps", "12", "--no-trace", "--timeout", "8", "--hang-timeout", "600",
        "--inject", "hang:rank=1,step=4,where=collective", "--out", tmp_path / "run",
    )  # fmt: skip
    assert ended.returncode == ExitCode.HANG, ended.stderr
    found = json.loads(RunLayout(tmp_path / "run").hang.read_text())
    assert found["verdict"]["fault_class"] == "missing_rank"
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]

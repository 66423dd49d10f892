"""Planted faults in scripts that crash, that start children, that have a package ``collectors``, that compile: not one
line of them was changed for us."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command import analyze_json, diag

TRAIN = Path(__file__).with_name("train.py")
SLOW_LOADER = ("--slow-loader", "0.05")
STRAGGLER = ("--slow-rank", "1")
pytestmark = pytest.mark.multiproc


def recorded(run: Path, script: Path, *options: str, exit_code: int = 0) -> dict[str, Any]:
    """What ``diag analyze`` says of the script on two ranks."""
    done = diag("run", "--nproc", "2", "--no-trace", "--out", run, script, *options)
    assert done.returncode == exit_code, done.stderr
    assert "training" in done.stdout
    return analyze_json(run)


def with_its_own_collectors(folder: Path) -> Path:
    """A repository with a package of our name, which its script imports."""
    (folder / "collectors").mkdir(parents=True)
    (folder / "collectors" / "__init__.py").write_text("MINE = True\n")
    shutil.copy(TRAIN, folder / "train.py")
    script = folder / "main.py"
    script.write_text(
        "import collectors\nimport train\n\nif __name__ == '__main__' and collectors.MINE:\n    train.main()\n"
    )
    return script


def is_slow_loader(result: dict[str, Any]) -> None:
    assert (result["verdict"]["bottleneck"], result["verdict"]["cause"]) == ("data", "slow-data-all-ranks")


def is_straggler(result: dict[str, Any]) -> None:
    assert (result["verdict"]["bottleneck"], result["verdict"]["cause"]) == ("compute", "compute-straggler")
    assert result["verdict"]["culprit"]["ranks"] == [1]


def test_slow_loader_of_fsdp2_that_crashes(tmp_path: Path) -> None:
    result = recorded(tmp_path, TRAIN, "--strategy", "fsdp2", *SLOW_LOADER, "--crash-at", "20", exit_code=1)
    is_slow_loader(result)
    assert (result["run"]["strategy"], result["run"]["exit_code"], len(result["steps"])) == ("fsdp2", 1, 20)


def test_straggler_of_ddp_that_crashes(tmp_path: Path) -> None:
    result = recorded(tmp_path, TRAIN, *STRAGGLER, "--crash-at", "20", exit_code=1)
    is_straggler(result)
    assert (result["run"]["exit_code"], len(result["steps"])) == (1, 20)


def test_slow_loader_of_one_that_starts_children_and_has_its_own_collectors(tmp_path: Path) -> None:
    script = with_its_own_collectors(tmp_path / "repository")
    result = recorded(tmp_path / "run", script, *SLOW_LOADER, "--children")
    is_slow_loader(result)
    assert len(result["steps"]) == 24


def test_straggler_of_one_that_compiles_starts_children_and_has_its_own_collectors(tmp_path: Path) -> None:
    script = with_its_own_collectors(tmp_path / "repository")
    result = recorded(tmp_path / "run", script, *STRAGGLER, "--children", "--compile")
    is_straggler(result)
    assert len(result["steps"]) == 24

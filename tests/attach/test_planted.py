"""Planted faults in scripts that crash, that start children, that have a package ``collectors``, that compile: not one
line of them was changed for us."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.attach.trainings import TRAIN, is_slow_loader, is_stalled, trained

SLOW_LOADER = ("--slow-loader", "0.15")
STRAGGLER = ("--slow-rank", "1", "--slow-seconds", "0.15")
NO_TRACE = ("--no-trace",)
pytestmark = pytest.mark.matrix


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


def test_slow_loader_of_fsdp2_that_crashes(tmp_path: Path) -> None:
    result = trained(tmp_path, "--strategy", "fsdp2", *SLOW_LOADER, "--crash-at", "20", recording=NO_TRACE, exit_code=1)
    is_slow_loader(result)
    assert (result["run"]["strategy"], result["run"]["exit_code"], len(result["steps"])) == ("fsdp2", 1, 20)


def test_straggler_of_ddp_that_crashes(tmp_path: Path) -> None:
    result = trained(tmp_path, *STRAGGLER, "--crash-at", "20", recording=NO_TRACE, exit_code=1)
    is_stalled(result)
    assert (result["run"]["exit_code"], len(result["steps"])) == (1, 20)


def test_slow_loader_of_one_that_compiles_starts_children_and_has_its_own_collectors(tmp_path: Path) -> None:
    script = with_its_own_collectors(tmp_path / "repository")
    result = trained(tmp_path / "run", *SLOW_LOADER, "--children", "--compile", script=script)
    is_slow_loader(result)
    assert result["run"]["strategy"] == "ddp"
    assert len(result["steps"]) == 24


def test_straggler_of_one_that_compiles_starts_children_and_has_its_own_collectors(tmp_path: Path) -> None:
    script = with_its_own_collectors(tmp_path / "repository")
    options = [*STRAGGLER, "--children", "--compile", "aot_eager"]
    result = trained(tmp_path / "run", *options, script=script, recording=NO_TRACE)
    is_stalled(result)
    assert len(result["steps"]) == 24

"""Which tests are run again, and what is said of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({failing}))
def test_fails(number):
    assert {condition}

def test_passes():
    seen = pathlib.Path("passes")
    assert not seen.exists(), "run again"
    seen.touch()
"""
ONCE = "(seen := pathlib.Path(f'seen{number}')).exists() or seen.touch()"


def ended(folder: Path, module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, "-q", "--rootdir", str(folder), "-p", "no:xdist"]
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("failing", "condition", "code", "said"),
    [
        (2, ONCE, 0, "not reliable: test_one.py::test_fails[1] failed beside other tests, and passed alone"),
        (2, f"({ONCE}) and number", 1, "not reliable: test_one.py::test_fails[1]"),
        (1, "False", 1, "1 failed"),
        (4, ONCE, 1, "4 failed: none is run again"),
    ],
)
def test_what_failed_is_run_again(tmp_path: Path, failing: int, condition: str, code: int, said: str) -> None:
    (tmp_path / "test_one.py").write_text(TESTS.format(failing=failing, condition=condition))
    assert ended(tmp_path, "pytest").returncode == 1
    again = ended(tmp_path, "tests.again")
    assert (again.returncode, said in again.stdout + again.stderr) == (code, True), again.stdout + again.stderr


def test_where_nothing_failed_nothing_is_run(tmp_path: Path) -> None:
    """As after a worker that crashed: what pytest did not finish is no success."""
    (tmp_path / "test_one.py").write_text(TESTS.format(failing=1, condition="True"))
    assert ended(tmp_path, "tests.again").returncode == 1

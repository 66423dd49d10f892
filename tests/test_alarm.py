"""A test that hangs ends the run, also after one that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = """
import sys, pytest
from tests import alarm
alarm.HANGS_AFTER_S = alarm.ONE_ALARM_S = 0.5
sys.exit(pytest.main(["-q", "-p", "tests.alarm", "-p", "no:cacheprovider", "--rootdir", sys.argv[1], sys.argv[1]]))
"""

TESTS = """
import threading
def test_fails(): assert False
def test_passes(): ...
def test_hangs(): threading.Event().wait()
"""


def test_a_test_that_hangs_ends_the_run_and_shows_where(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    run = subprocess.run([sys.executable, "-c", RUN, tmp_path], capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, run.stdout
    assert "Timeout (0:00:01)!" in run.stderr
    assert "in test_hangs" in run.stderr

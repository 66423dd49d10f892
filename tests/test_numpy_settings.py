"""What numpy reads when it is loaded is set before that, and a user's own settings stay."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from diag.cli.reading import set_up_numpy

_COMMANDS = "import sys, diag.cli.main; sys.exit('numpy' in sys.modules)"


def test_the_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "1")
    set_up_numpy()
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["NUMPY_MADVISE_HUGEPAGE"]) == ("4", "1")
    for name in ("OPENBLAS_NUM_THREADS", "NUMPY_MADVISE_HUGEPAGE"):
        monkeypatch.delenv(name)
    set_up_numpy()
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["NUMPY_MADVISE_HUGEPAGE"]) == ("1", "0")


def test_the_commands_are_there_before_numpy_is_loaded() -> None:
    assert subprocess.run([sys.executable, "-c", _COMMANDS], check=False).returncode == 0

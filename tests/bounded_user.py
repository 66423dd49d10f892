"""``python -m tests.bounded_user``: ``diag`` without the powers of root, to whom permissions of files mean nothing.

The process stays root, so that it can read the interpreter's own files, and gives up what overrides permissions: a file
of mode 000 is as unreadable to it as to anybody.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_PR_CAPBSET_DROP = 24
_OVERRIDING = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def diag_bounded(*arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs ``diag`` with the arguments, as ``tests.command.diag`` does, as a user whom permissions bind."""
    command = [sys.executable, "-m", "tests.bounded_user", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
    )


def permissions_bind(folder: Path) -> bool:
    """Whether they can be made to bind here; not without the right to give up powers."""
    locked = folder / "locked"
    locked.touch(mode=0)
    read = f"import tests.bounded_user as b; b.give_up(); b.execute('-c', 'open({str(locked)!r})')"
    return subprocess.run([sys.executable, "-c", read], capture_output=True, check=False).returncode != 0


def give_up() -> None:
    if os.geteuid() == 0:
        for power in _OVERRIDING:
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, power, 0, 0, 0)


def execute(*arguments: str) -> None:
    """In this process's place: only a new program is without the powers."""
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    give_up()
    execute("-m", "diag", *sys.argv[1:])

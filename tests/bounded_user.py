"""``diag`` without the powers of root, to whom permissions of files mean nothing.

The process stays root, so that it can read the interpreter's own files, and gives up what overrides permissions: a file
of mode 000 is as unreadable to it as to anybody.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.forked import run_forked

_VERSION = 0x20080522
_OVERRIDING = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def diag_bounded(*arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs ``diag`` with the arguments, as ``tests.command.diag`` does, as a user whom permissions bind."""
    words = ["diag", *map(str, arguments)]
    code = (
        "import sys, tests.bounded_user as b; b.give_up(); from diag.cli.main import main; sys.argv[0] = 'diag'; main()"
    )
    ended = run_forked(["-c", code, *words[1:]], [os.environ], timeout)
    return subprocess.CompletedProcess(words, ended.exit_code, ended.stdout, ended.stderr)


@cache
def permissions_bind() -> bool:
    """Whether they can be made to bind here; not without the right to give up powers."""
    with TemporaryDirectory() as folder:
        locked = Path(folder, "locked")
        locked.touch(mode=0)
        read = f"import tests.bounded_user as b; b.give_up(); open({str(locked)!r})"
        return run_forked(["-c", read], [os.environ], 120).exit_code != 0


def give_up() -> None:
    """Of this process: it is not to run anything else."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable of the powers 0 to 31, then of the others
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, sets):
        return
    for power in _OVERRIDING:
        for place in range(3):
            sets[place] &= ~(1 << power)
    libc.capset(header, sets)

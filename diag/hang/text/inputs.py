"""Which files the paths of a user mean: files, folders with all that lies below them, "-" for standard input."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.errors import DiagError

from .gaps import Gaps

STDIN = "-"

# Of a run directory of this project, and of profilers: no log, and often large. stacks.txt and error.json are read.
_NO_LOGS = re.compile(
    r"(^|/)(trace-step\d+\.json(\.gz)?|(steps|summary|device_steps|collectives|device)\.jsonl|(heartbeat|verdict|rank|manifest|asked|trace_asked|exits|hang)\.json)$"
    r"|\.(parquet|pt|pth|bin|safetensors|ckpt|npy|npz|so|py|pyc|whl|tar|zip|png|jpg|html|pftrace)$"
)


def files_of(paths: Sequence[str | Path], gaps: Gaps) -> list[str]:
    """Every file that may be a log, in the order given, folders in natural order of names, no file twice."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for given in map(str, paths):
        if given == STDIN:
            found.append(STDIN)
        elif not os.path.lexists(given):
            raise DiagError(f"{given}: no such file or folder", hint="Check the path.", path=given)
        elif Path(given).is_dir():
            found.extend(path for path in _below(given, seen, gaps) if not _NO_LOGS.search(path))
        elif _is_new(given, seen, gaps, any_kind=True):
            found.append(given)
    return found


def _below(folder: str, seen: set[tuple[int, int]], gaps: Gaps) -> Iterator[str]:
    """Links to folders are followed once: a loop ends where it comes back to a folder already seen."""
    folders: set[tuple[int, int]] = set()

    def refused(error: OSError) -> None:
        gaps.say(str(error.filename), f"this folder cannot be read: {error.strerror}")

    for here, below, names in os.walk(folder, followlinks=True, onerror=refused):
        known = _identity(here)
        if known is None or known in folders:
            below.clear()
            continue
        folders.add(known)
        below[:] = sorted((name for name in below if not RunLayout(Path(here, name)).is_restart), key=_natural)
        for name in sorted(names, key=_natural):
            path = f"{here}/{name}" if not here.endswith("/") else here + name
            if _is_new(path, seen, gaps, any_kind=False):
                yield path


def _is_new(path: str, seen: set[tuple[int, int]], gaps: Gaps, any_kind: bool) -> bool:
    try:
        about = Path(path).stat()
    except OSError as error:
        gaps.say(path, f"cannot be read: {error.strerror}")
        return False
    if not stat.S_ISREG(about.st_mode):
        return any_kind  # a pipe that the user names is read; one found in a folder would wait for ever
    key = (about.st_dev, about.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        about = Path(folder).stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _natural(name: str) -> list[tuple[int, str]]:
    """rank10 after rank9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]

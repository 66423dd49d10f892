"""Which files the paths of a user mean: files, folders with all that lies below them, "-" for standard input."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from diag.collectors.layout import RunLayout, is_folder
from diag.collectors.reading import walk
from diag.errors import DiagError, unreadable

from .gaps import Gaps

STDIN = "-"

# Of a run directory of this project, and of profilers: no log, and often large. stacks.txt and error.json are read.
_NO_LOGS = re.compile(
    r"(^|/)(trace-step\d+\.json(\.gz)?|(steps|summary|device_steps|collectives|device|unrecorded)\.jsonl|(heartbeat|verdict|rank|manifest|asked|trace_asked|exits|hang)\.json)$"
    r"|\.(parquet|pt|pth|bin|safetensors|ckpt|npy|npz|so|py|pyc|whl|tar|zip|png|jpg|html|pftrace)$"
)


def files_of(paths: Sequence[str | Path], gaps: Gaps) -> list[str]:
    """Every file that may be a log, in the order given, folders in natural order of names, no file twice."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for given in map(str, paths):
        if given == STDIN:
            found.append(STDIN)
        elif not _is_there(given):
            raise DiagError(f"{given}: no such file or folder", hint="Check the path.", path=given)
        elif is_folder(given):
            found.extend(_below(given, seen, gaps))
        elif _is_new(given, seen, gaps):  # also a pipe: the user names it
            found.append(given)
    return found


def _is_there(given: str) -> bool:
    try:
        Path(given).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(error, given) from error
    return True


def _below(folder: str, seen: set[tuple[int, int]], gaps: Gaps) -> Iterator[str]:
    files = walk(
        folder,
        gaps.say,
        wanted=lambda name: not _NO_LOGS.search(name),
        enter=lambda path: not RunLayout(Path(path)).is_restart,
        follow_folders=True,
    )
    return (path for path in files if _is_new(path, seen, gaps))


def _is_new(path: str, seen: set[tuple[int, int]], gaps: Gaps) -> bool:
    """Whether this file is met for the first time: it may have several names. So is whatever is no regular file."""
    try:
        about = Path(path).stat()
    except OSError as error:
        gaps.say(path, f"cannot be read: {error.strerror}")
        return False
    if not stat.S_ISREG(about.st_mode):
        return True
    key = (about.st_dev, about.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True

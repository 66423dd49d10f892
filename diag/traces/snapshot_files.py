"""Finds snapshots of PyTorch's caching allocator, and the rank that wrote each; ``memory_snapshots`` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from diag.collectors.layout import MOST_RANKS, RANKS, RunLayout, is_folder, run_of
from diag.collectors.reading import open_regular, walk
from diag.traces.policy import TRACE_LIMITS, TRACE_READING

from .text_stream import is_remote, may_be_trace

ENDINGS = (".pickle", ".pkl")
# The first keys, in every pickle protocol: of a snapshot, and of the list of segments that
# ``torch.cuda.memory_snapshot`` returns.
_MARKS = (b"segments", b"device_traces", b"total_size")
# The name of a failed allocation as pickles of each protocol hold it: a whole string, not a part of one ("room").
_FAILED = re.compile(rb"\x03(\0\0\0)?oom|[SV]'?oom'?\n")


def is_snapshot(path: Path | str, run: Path | None = None) -> bool:
    """Whether the file begins like a snapshot. Never raises."""
    try:
        with open_regular(path, run) as file:
            head = file.read(TRACE_READING.snapshot_head_bytes)
    except OSError:
        return False
    return head[:1] == b"\x80" and any(mark in head for mark in _MARKS)


def snapshot_files(paths: Iterable[Path | str], enter: Callable[[str], bool] | None = None) -> list[Path]:
    """The snapshots at these paths and below them, by path: in run directories, those that diag's collectors wrote; in
    other folders, files with a snapshot's ending and first bytes. ``enter``: whether to look into a folder."""
    files: list[Path] = []
    for path in paths:
        layout = RunLayout(Path(path))
        if is_remote(str(path)):
            continue
        if not is_folder(path):
            files += [Path(path)] if is_snapshot(path) else []
        elif layout.is_run():
            ranks = [rank for rank in layout.ranks().values() if enter is None or enter(str(rank.folder))]
            files += [file for rank in ranks for file in rank.memory_snapshots()]
        else:
            names = map(Path, walk(path, wanted=lambda name: name.lower().endswith(ENDINGS), enter=enter))
            files += [file for file in names if is_snapshot(file, run_of(file))]
    return list(dict.fromkeys(files))


def snapshots_alone(paths: Sequence[Path | str]) -> list[Path]:
    """The snapshots at or below the paths; none if there is a run directory or any file that may be a trace, as those
    contain more."""
    if any(is_remote(str(path)) or RunLayout(Path(path)).is_run() for path in paths):
        return []
    files = snapshot_files(paths)
    folders = [str(path) for path in paths if is_folder(path)]
    traces = any(True for folder in folders for _ in walk(folder, wanted=may_be_trace, order=None))
    return [] if traces or any(may_be_trace(str(path)) for path in paths if not is_folder(path)) else files


def mentions_failure(path: Path | str) -> bool:
    """Whether a failed allocation may be among the events: their names are in the file as they are. Never raises."""
    before = b""
    try:
        with open_regular(path, run_of(path)) as file:
            for block in iter(partial(file.read, TRACE_READING.snapshot_block_bytes), b""):
                if _FAILED.search(before + block):
                    return True
                before = block[-TRACE_LIMITS.most_failed_bytes_chars :]
    except OSError:
        pass
    return False


def within_bytes(files: Iterable[Path | str], most: int) -> list[Path | str]:
    """The smallest of these files that have at most this many bytes together."""
    sizes = []
    for file in files:
        with suppress(OSError):
            sizes.append((Path(file).stat().st_size, str(file), file))
    chosen, total = [], 0
    for size, _, file in sorted(sizes, key=lambda item: item[:2]):
        total += size
        if total <= most:
            chosen.append(file)
    return chosen


_NAMED_RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE)


def rank_of(path: str) -> int | None:
    """The rank in a path: of its folder in a run directory, or "rank3" in its name. A number alone may be a step."""
    folder = rank_of_folder(Path(path))
    if folder is not None:
        return folder
    match = _NAMED_RANK.search(Path(path).stem)
    rank = int(match[1]) if match else None
    return rank if rank is None or rank < MOST_RANKS else None


def rank_of_folder(place: Path) -> int | None:
    """The rank whose folder in a run directory the file is in."""
    folder = place.parent
    return int(folder.name) if folder.parent.name == RANKS and re.fullmatch(r"\d{5,7}", folder.name) else None

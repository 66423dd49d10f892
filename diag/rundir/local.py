"""The local run directory of what a command was given: run directories at an address are copied, and pieces of one job
are joined. What is given otherwise, run directories and traces, stays as it is."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from diag.collectors.layout import FIRST_ATTEMPT, RunLayout, is_folder, is_restart_name, names_first, without_first
from diag.collectors.reading import natural
from diag.deferred import by_name
from diag.errors import DiagError
from diag.rundir.policy import RUN_READING
from diag.store.segment_names import FOLDER as SEGMENTS_FOLDER
from diag.store.segment_names import is_node_name
from diag.store.stores import is_remote
from diag.words.places import apart

from .pieces import Grouped, grouped, may_be_piece

# Run directories at an address, and the segments of packers.
_copy_of: Callable[..., Path | None] = by_name("diag.rundir.copies:copy_of")
# Pieces of one job, made one run directory.
joined: Callable[[Sequence[str], Path], Path] = by_name("diag.rundir.joining:joined")


def local_paths(paths: Sequence[Path | str]) -> list[str]:
    """The paths, where an address of run directories is that of their local copy; and the path of the run directory in
    which the pieces of one job are joined, if the paths are those, each with some of the ranks, or a folder that holds
    nothing else. The name under which answers show joined pieces stands for them: "node0 + node1". Other paths,
    and addresses of traces, are returned as they are; ``restart-0``, which names the first attempt, stays at the end.
    DiagError where a store cannot be read, or pieces cannot be joined."""
    if any(names_first(path) for path in paths):
        return [f"{path}/{FIRST_ATTEMPT}" for path in local_paths([without_first(path) for path in paths])]
    names = [_local(name) for path in paths for name in _named(str(path))]
    if len(names) == 1:
        pieces = pieces_in(names[0])
        return [str(joined(pieces, copies_folder()))] if pieces else names
    runs = [name for name in dict.fromkeys(names) if is_run(name)]
    if len(runs) < 2:
        return names
    if len(runs) < len(dict.fromkeys(names)) or len(pieces_of(runs).jobs) > 1:
        return names
    return [str(joined(runs, copies_folder()))]


def _named(path: str) -> list[str]:
    folders = apart(path)
    return folders if folders and all(is_remote(folder) or is_folder(folder) for folder in folders) else [path]


def unpacked(folder: str, lately: bool = False) -> str | None:
    """The local copy of the run that packers wrote into a folder; None if none did. ``lately``: as of ``copy_of``."""
    if not is_folder(f"{folder}/{SEGMENTS_FOLDER}"):
        return None
    copy = _copy_of(folder, copies_folder(), lately)
    return None if copy is None else str(copy)


def packed_at(path: str) -> str:
    """The address or folder to which the packers of a run write: the path itself, or the one above where the path names
    one of the attempts or trainings that are there."""
    above, _, name = path.rstrip("/").rpartition("/")
    there = is_remote(path) or not is_folder(path)
    return above if there and above and (is_restart_name(name) or is_node_name(name)) else path


def _part_of_packed(path: str) -> str | None:
    """The local copy of one of the attempts or trainings at an address, or in a folder, to which packers write."""
    above = packed_at(path)
    if above == path or not (is_remote(above) or is_folder(f"{above}/{SEGMENTS_FOLDER}")):
        return None
    copy = _copy_of(above, copies_folder())
    part = f"{copy}/{path.rstrip('/').rpartition('/')[2]}"
    return part if copy is not None and is_run(part) else None


def _local(path: str) -> str:
    if not is_remote(path):
        return (unpacked(path) if is_folder(path) else _part_of_packed(path)) or path
    from diag.traces.text_stream import may_be_trace

    if "::" in path or may_be_trace(path):  # fsspec's way to open a file within another
        return path

    copy = _copy_of(path, copies_folder())
    return _part_of_packed(path) or path if copy is None else str(copy)


def local_path(path: Path | str) -> Path:
    """The same for one path. DiagError for a name of several folders that are not pieces of one job."""
    return only(local_paths([path]), path)


def only(local: Sequence[str], path: Path | str) -> Path:
    """The one that ``path`` stands for. DiagError where it names several that do not belong together."""
    first, *others = local
    if others:
        raise DiagError("these are not pieces of one job", path=str(path), hint="`diag analyze` with them says why")
    return Path(first)


def pieces_of(runs: Sequence[str], only_incomplete: bool = False) -> Grouped:
    """The run directories by job. ``only_incomplete``: those that have all their ranks are not looked at, which a
    folder of many runs would be slow for."""
    if len(runs) < 2:
        return Grouped([[run] for run in runs], {})
    if not only_incomplete:
        return grouped(runs)
    parts = [run for run in runs if may_be_piece(Path(run))]
    jobs = {job[0]: job for job in grouped(parts).jobs}
    joined_runs = {folder for job in jobs.values() for folder in job[1:]}
    return Grouped([jobs.get(run, [run]) for run in runs if run not in joined_runs], {})


def pieces_in(folder: str) -> list[str]:
    """The run directories in a folder, if they are the pieces of one job and the folder holds no other run."""
    if not is_folder(folder) or is_run(folder):
        return []
    try:
        entries = sorted((str(entry) for entry in Path(folder).iterdir()), key=natural)
    except OSError:
        return []
    runs = [entry for entry in entries if is_run(entry)]
    if not 2 <= len(runs) <= RUN_READING.most_pieces or not all(may_be_piece(Path(run)) for run in runs):
        return []
    jobs = pieces_of(runs).jobs
    return jobs[0] if len(jobs) == 1 else []


def is_run(path: str) -> bool:
    return is_folder(path) and RunLayout(Path(path)).is_run()


@cache
def copies_folder() -> Path:
    """Where local copies are kept: the user's cache. Without one, a folder that is removed when this process ends."""
    from diag.traces.shelf import Shelves

    folder = Shelves.of_user().folder
    if folder is not None:
        return folder
    made = tempfile.mkdtemp(prefix="diag-copies-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)

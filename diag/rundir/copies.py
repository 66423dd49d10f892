"""Local copies of run directories at an address: what is new is fetched, and everything else opens the copy.

A file is fetched again if the store says that it has changed. One that has only grown, by its size and by what was its
end, is fetched from there on.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from diag.collectors.files import replace_file
from diag.collectors.layout import MANIFEST, RANKS, RunLayout
from diag.collectors.reading import read_regular
from diag.errors import DiagError
from diag.rundir.policy import RUN_READING
from diag.store.policy import STORES
from diag.store.stores import Store, Version, own_folder
from diag.words.formatting import masked
from diag.words.places import show_as

_STATE = "copy.json"
_GROWS = (".jsonl", ".txt", ".log")
_LEFT = frozenset(entry.name for entry in (RunLayout(Path()).tables, RunLayout(Path()).verdict))  # of other readers


class _State(msgspec.Struct):
    """What the local copy holds: size and stamp by name."""

    files: dict[str, tuple[int, str]] = {}


def copy_of(address: str, base: Path) -> Path | None:
    """The local copy of the run directory, or the folder of run directories, at an address, brought up to date; None
    if there is none. DiagError where the store cannot be read, or the copy not be written."""
    store = Store(address)
    files = store.files()
    roots = _runs_in(files)
    if not roots:
        return None
    name = address.rstrip("/").rpartition("/")[2] or "run"
    folder = base / "runs" / sha256(address.encode()).hexdigest()[:24]
    try:
        own_folder(folder)
        remove_unused(folder.parent)
        with _alone(folder):
            _update(store, {name: files[name] for name in files if _is_record(name, roots)}, folder, folder / name)
    except OSError as error:
        raise DiagError(
            f"the local copy cannot be written: {error.strerror or error}",
            path=folder,
            hint="DIAG_CACHE names a folder with room for it",
        ) from error
    show_as({folder / name: masked(address.rstrip("/"))})
    return folder / name


def _runs_in(files: Mapping[str, Version]) -> list[str]:
    """The run directories among the files: their names, "" for the folder itself, each with a / behind it otherwise."""
    roots = set()
    for name in files:
        parts = name.split("/")
        if parts[-1] == MANIFEST and RANKS not in parts:
            roots.add("/".join([*parts[:-1], ""]))
        elif RANKS in parts[:-2]:
            roots.add("/".join([*parts[: parts.index(RANKS)], ""]))
    return sorted(roots)


def _is_record(name: str, roots: list[str]) -> bool:
    root = next((root for root in roots if name.startswith(root)), None)
    return root is not None and name[len(root) :].split("/")[0] not in _LEFT


def _update(store: Store, files: Mapping[str, Version], folder: Path, target: Path) -> None:
    state = _State()
    with suppress(OSError, msgspec.MsgspecError):
        state = msgspec.json.decode(read_regular(folder / _STATE, RUN_READING.most_copy_state_bytes), type=_State)
    known, state.files = state.files, {}
    try:
        for name, version in files.items():
            before = known.get(name)
            if before is None or before != (version.size, version.stamp) or not (target / name).exists():
                with suppress(FileNotFoundError):
                    _fetch(store, name, version, target / name, grown=before is not None)
            state.files[name] = version.size, version.stamp
    finally:
        for name in known.keys() - files.keys():
            (target / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for parent in (target / name).relative_to(target).parents:
                    (target / parent).rmdir()
        state.files = {**{name: known[name] for name in known.keys() & files.keys()}, **state.files}
        replace_file(folder / _STATE, msgspec.json.encode(state))


def _fetch(store: Store, name: str, version: Version, path: Path, grown: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if grown and path.exists() else 0
    if name.endswith(_GROWS) and STORES.tail_bytes <= size <= version.size:
        with path.open("r+b") as file:
            file.seek(size - STORES.tail_bytes)
            end = file.read(STORES.tail_bytes)
            data = store.read(name, size - STORES.tail_bytes)
            if data.startswith(end):
                file.write(data[len(end) :])
                return
    replace_file(path, store.read(name))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process writes into the copy."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_unused(copies: Path) -> None:
    """Removes the copies that nobody has opened for long."""
    oldest_s = time.time() - STORES.unused_copy_days * 86_400
    with suppress(OSError), os.scandir(copies) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and _used_s(entry) < oldest_s:
                shutil.rmtree(entry.path, ignore_errors=True)


def _used_s(entry: os.DirEntry[str]) -> float:
    times: list[Any] = [entry.stat().st_mtime]
    for name in (_STATE, "lock"):
        with suppress(OSError):
            times.append((Path(entry.path) / name).stat().st_mtime)
    return float(max(times))

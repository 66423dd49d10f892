"""Local copies of run directories at an address: what is new is fetched, and everything else opens the copy.

A file is fetched again if the store says that it has changed. One that has only grown, by its size and by what was its
end, is fetched from there on.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from diag.collectors.files import own_folder, replace_file
from diag.collectors.layout import DERIVED, MANIFEST, RANKS, RankLayout, RunLayout, is_folder, is_restart_name
from diag.collectors.reading import read_regular
from diag.decoding import json_decoder
from diag.errors import DiagError
from diag.model import DAMAGED, Gap
from diag.rundir.policy import RUN_READING
from diag.store.policy import STORES
from diag.store.segment_names import FOLDER as SEGMENTS_FOLDER
from diag.store.segment_names import is_node_name, missing_of, newest_of, numbers_of
from diag.store.segments import DamagedSegmentError, Entry, decode
from diag.store.stores import Store, Version, is_plain_name, is_remote
from diag.words.formatting import masked, rank_ranges
from diag.words.places import show_as

from .joining import copy_folder, join_attempts, trainings_in
from .lines import LastStep, last_steps

S = TypeVar("S", bound=msgspec.Struct)

_STATE = "copy.json"
_PACKED = "packed"  # of a copy of several runs: the nodes of those that packers wrote
_GROWS = (".jsonl", ".txt", ".log")


class _State(msgspec.Struct):
    """What the local copy holds: size and stamp by name. ``packed``: the runs whose segments are unpacked in it."""

    files: dict[str, tuple[int, str]] = {}
    packed: list[str] = []


def _kept_state(folder: Path, kind: type[S]) -> S:
    """What the last reader noted; nothing where that cannot be read."""
    try:
        return json_decoder(kind).decode(read_regular(folder / _STATE, RUN_READING.most_copy_state_bytes))
    except (OSError, msgspec.MsgspecError):
        return kind()


def copy_of(address: str, base: Path, lately: bool = False) -> Path | None:
    """The local copy of the run directory, or the folder of run directories, at an address, brought up to date; None
    if there is none. ``lately``: a copy that was brought up to date within ``STORES.refresh_s`` is taken as it is.
    DiagError where the store cannot be read, or the copy not be written."""
    folder = copy_folder([address if is_remote(address) else os.path.abspath(address)], base)  # noqa: PTH100
    target = folder / (address.rstrip("/").rpartition("/")[2] or "run")
    if not (lately and is_folder(target) and _age_s(folder / _STATE) < STORES.refresh_s):
        store = Store(address)
        try:
            for _ in range(STORES.most_looks):
                whole = _brought_up(store, folder, target)
                if whole is None:
                    return None
                if whole:
                    break
        except OSError as error:
            raise DiagError(
                f"the local copy cannot be written: {error.strerror or error}",
                path=folder,
                hint="DIAG_CACHE names a folder with room for it",
            ) from error
    show_as({target: masked(address.rstrip("/"))})
    return target


def _brought_up(store: Store, folder: Path, target: Path) -> bool | None:
    """Brings a copy up to date; None if there is nothing to copy. False where a segment was gone when it was to be
    read: its packer has merged it meanwhile."""
    files = store.files()
    packed = _packed_in(files)
    roots = [root for root in _runs_in(files) if not root.startswith(tuple(packed))]
    if not roots and not packed:
        return None
    own_folder(folder)
    remove_unused(folder.parent)
    with _alone(folder):
        if "" in packed:
            return _unpack(store, files, "", packed[""], folder, target)
        _update(store, {name: files[name] for name in files if _is_record(name, roots)}, folder, target, packed)
        of_runs = [
            _unpack(store, files, root, segments, folder / _PACKED / root, target / root)
            for root, segments in packed.items()
        ]
        return all(of_runs)


def _age_s(file: Path) -> float:
    try:
        return abs(time.time() - file.stat().st_mtime)
    except OSError:
        return math.inf


def _packed_in(files: Mapping[str, Version]) -> dict[str, dict[str, list[tuple[int, int, str]]]]:
    """The runs that packers wrote among the files, as of ``_runs_in``: of each, the segments that count."""
    names: dict[str, list[str]] = {}
    for name in files:
        parts = name.split("/")
        if numbers_of(of_run := "/".join(parts[-3:])) is not None:
            names.setdefault(name[: -len(of_run)], []).append(of_run)
    return {root: newest_of(of_run) for root, of_run in sorted(names.items())}


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
    return root is not None and name[len(root) :].split("/")[0] not in DERIVED


def _update(
    store: Store, files: Mapping[str, Version], folder: Path, target: Path, packed: Collection[str] = ()
) -> None:
    """``packed``: the runs in it that packers wrote; of others that were there, what was unpacked is removed."""
    state = _kept_state(folder, _State)
    for root in filter(is_plain_name, {name.rstrip("/") for name in set(state.packed) - set(packed)}):
        shutil.rmtree(target / root, ignore_errors=True)
        shutil.rmtree(folder / _PACKED / root, ignore_errors=True)
    state.packed = list(packed)
    known, state.files = state.files, {}
    try:
        for name, version in files.items():
            before = known.get(name)
            there = before == (version.size, version.stamp) and (target / name).exists()
            if not there and not _fetch(store, name, version, target / name, grown=before is not None):
                continue
            state.files[name] = version.size, version.stamp
    finally:
        for name in known.keys() - files.keys():
            (target / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for parent in (target / name).relative_to(target).parents:
                    (target / parent).rmdir()
        state.files = {**{name: known[name] for name in known.keys() & files.keys()}, **state.files}
        replace_file(folder / _STATE, msgspec.json.encode(state))


def _fetch(store: Store, name: str, version: Version, path: Path, grown: bool) -> bool:
    """False where the file is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if grown and path.exists() else 0
    if name.endswith(_GROWS) and STORES.tail_bytes <= size <= version.size:
        with path.open("r+b") as file:
            file.seek(size - STORES.tail_bytes)
            end = file.read(STORES.tail_bytes)
            data = store.read_if_there(name, size - STORES.tail_bytes)
            if data is not None and data.startswith(end):
                file.write(data[len(end) :])
                return True
    content = store.read_if_there(name)
    if content is not None:
        replace_file(path, content)
    return content is not None


class _File(msgspec.Struct, array_like=True):
    generation: int
    size: int  # -1: removed


class _Lost(msgspec.Struct, array_like=True):
    """Steps of a file that cannot be read: from the one after the last that could, to the last that is known."""

    first: int
    last: int


class _Nodes(msgspec.Struct):
    """What of the segments is in the copy: by node its files, and by name the segments that were read. ``lost``: by
    node and file of steps."""

    files: dict[str, dict[str, _File]] = {}
    read: dict[str, tuple[int, str]] = {}
    gaps: dict[str, str] = {}  # by segment
    lost: dict[str, dict[str, _Lost]] = {}


def _unpack(
    store: Store,
    files: Mapping[str, Version],
    root: str,
    packed: Mapping[str, list[tuple[int, int, str]]],
    folder: Path,
    run: Path,
) -> bool:
    """Applies the segments that are new, and joins the nodes: as a run directory, or a folder of them where they are of
    several jobs. ``root``: where the run is in the store, as of ``_runs_in``. False where a segment was gone."""
    folder.mkdir(parents=True, exist_ok=True)
    state, whole = _kept_state(folder, _Nodes), True
    try:
        for node, segments in packed.items():
            came = False  # a store may list a segment after those that go on where it ends
            for _, _, name in segments:
                version = files[root + name].size, files[root + name].stamp
                if state.read.get(name) == version and not (came and name in state.gaps):
                    continue
                came = True
                if _apply(store, root, name, folder / "nodes" / node, state):
                    state.read[name] = version
                else:
                    whole = False
                for part in _parts_of(name, files, root) if name in state.gaps else ():
                    whole &= _apply(store, root, part, folder / "nodes" / node, state)
    finally:
        current = {name for segments in packed.values() for _, _, name in segments}
        state.read = {name: version for name, version in state.read.items() if name in current}
        state.gaps = {name: reason for name, reason in state.gaps.items() if name in current}
        state.lost = {node: lost for node, lost in state.lost.items() if node in packed and lost}
        replace_file(folder / _STATE, msgspec.json.encode(state))
    at = f"{store.address.rstrip('/')}/{root}"
    last = {segments[-1][2] for segments in packed.values()}  # it may be under way
    gaps = [Gap(masked(f"{at}{name}"), why) for name, why in state.gaps.items() if name not in last]
    for node, numbers in missing_of(packed).items():
        which = ", ".join(map(str, numbers))
        gaps.append(Gap(masked(f"{at}{SEGMENTS_FOLDER}/{node}"), f"segment {which} of this node is missing"))
    for node, lost in state.lost.items():
        gaps.append(Gap(masked(f"{at}{SEGMENTS_FOLDER}/{node}"), _lost_words(lost)))
    nodes = [folder / "nodes" / node for node in packed if is_folder(folder / "nodes" / node)]
    show_as({node: masked(f"{at}{SEGMENTS_FOLDER}/{node.name}") for node in nodes})
    trainings = trainings_in([str(node) for node in nodes])
    if len(trainings) > 1:
        by_name = {_node_of(of[0][0], folder): of for of in trainings}
        for name, attempts in by_name.items():
            join_attempts(attempts, run / name, gaps)
        _keep_only(run, by_name)
        show_as({run / name: masked(f"{at}{name}") for name in by_name})
    else:
        without = [str(node) for node in nodes if not RunLayout(node).ranks()]
        attempts = trainings[0] if trainings else [[]]
        if len(attempts) == 1:
            attempts = [[*attempts[0], *without]] if nodes else []
        join_attempts(attempts, run, gaps)
        for name in filter(is_node_name, packed):
            if not is_restart_name(name):
                shutil.rmtree(run / name, ignore_errors=True)  # of several trainings, of which the others are gone
    show_as({run: masked(at.rstrip("/"))})
    return whole


def _node_of(piece: str, folder: Path) -> str:
    """The name of the node that recorded a piece."""
    return Path(piece).relative_to(folder / "nodes").parts[0]


def _keep_only(run: Path, names: Collection[str]) -> None:
    """Removes what else is in a folder of run directories: it was one itself before another job came."""
    with os.scandir(run) as entries:
        for entry in entries:
            if entry.name not in names:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink(missing_ok=True)


def _parts_of(name: str, files: Mapping[str, Version], root: str) -> list[str]:
    """The segments that a merged one stands for, which are there until it is written to its end."""
    node, first, last = numbers_of(name) or ("", 0, 0)
    folder = f"{root}{SEGMENTS_FOLDER}/{node}/"
    others = {other[len(root) :] for other in files if other.startswith(folder)} - {name}
    return [part for begin, end, part in newest_of(others).get(node, ()) if first <= begin and end <= last]


def _apply(store: Store, root: str, name: str, target: Path, state: _Nodes) -> bool:
    """False where the segment is gone."""
    state.gaps.pop(name, None)
    data = store.read_if_there(root + name)
    if data is None:
        return False
    try:
        segment = decode(data)
    except DamagedSegmentError as error:
        state.gaps[name] = f"{error}; left out"
        return True
    known, lost = state.files.setdefault(target.name, {}), state.lost.setdefault(target.name, {})
    for entry in segment.entries:
        if reason := _apply_entry(entry, target / entry.name, known):
            state.gaps[name] = reason
            _note_lost(entry, target / entry.name, lost)
        else:
            lost.pop(entry.name, None)
    return True


def _note_lost(entry: Entry, path: Path, lost: dict[str, _Lost]) -> None:
    """Notes which steps cannot be read where ``entry`` continues a file of which a part before was lost."""
    if path.name.partition(".")[0] != RankLayout.steps.name.partition(".")[0]:
        return
    decode = json_decoder(LastStep).decode
    for line in reversed(entry.data.splitlines()):
        with suppress(*DAMAGED):
            there = last_steps(path)
            before = lost.get(entry.name)
            first = before.first if before is not None else there[-1].step + 1 if there else 0
            lost[entry.name] = _Lost(first, max(decode(line).step, before.last if before is not None else 0))
            return


def _lost_words(lost: Mapping[str, _Lost]) -> str:
    """``steps 3 to 9 of ranks 0, 1 are missing: ...``, of the files of a node."""
    ranks = sorted({int(rank) for name in lost if (rank := Path(name).parent.name).isdecimal()})
    first, last = min(of.first for of in lost.values()), max(of.last for of in lost.values())
    steps = f"steps {first:,} to {last:,}" if last > first else f"step {first:,}"
    verb = "are" if last > first else "is"
    return f"{steps} of {rank_ranges(ranks)} {verb} missing: they were in a segment that was lost, or continue it"


def _apply_entry(entry: Entry, path: Path, known: dict[str, _File]) -> str:
    """Brings one file up to date; returns why that is not possible, or ""."""
    before = known.get(entry.name)
    if before is not None and entry.generation < before.generation:
        return ""
    if entry.removed:
        path.unlink(missing_ok=True)
        known[entry.name] = _File(entry.generation, -1)
        return ""
    size = before.size if before is not None and before.generation == entry.generation else 0
    if size < 0 or (size and size >= entry.offset + len(entry.data)):
        return ""
    if size < entry.offset:
        return f"continues {entry.name}, of which a part before was lost; left out"
    path.parent.mkdir(parents=True, exist_ok=True)
    if size == 0:
        replace_file(path, entry.data)
    else:
        with path.open("r+b") as file:
            file.seek(size)
            file.write(entry.data[size - entry.offset :])
            file.truncate()
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
    known[entry.name] = _File(entry.generation, entry.offset + len(entry.data))
    return ""


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

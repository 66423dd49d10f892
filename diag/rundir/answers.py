"""Answers kept beside what they are about: an analysis of what has not changed costs the reading of its files.

An answer rests on the content and times of all files below its path, on what was asked, on the thresholds and the
code, and on what is seen of the processes that recorded. Check sums of all of these stand in front of what is kept: if
one differs, the run is analysed again. What is kept is data, with a digest that needs the user's secret where others
may write (``diag.traces.shelf``).

Nothing is kept of what changes while one looks at it: of a run that still trains, of files at an address or behind
links to folders; nor of a path whose analysis takes no longer, or whose files take too long to be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from diag import policy
from diag.collectors.layout import RankLayout, RunLayout, is_folder
from diag.collectors.living import seen_of
from diag.collectors.reading import linked_folders, read_object, walk
from diag.decoding import msgpack_decoder
from diag.deferred import by_name
from diag.model import DAMAGED
from diag.rundir.policy import ANSWERS
from diag.toml import settings_files
from diag.traces.pruning import keep_newest
from diag.traces.shelf import Shelf, Shelves, checksum_of, hash_of_sources

from .delays import delay_ns

if TYPE_CHECKING:
    from diag.collectors.records import Manifest

    from .runs import RunState

# Of a run whose end no launcher recorded: most runs need no look at its heartbeats.
_state_of: Callable[..., RunState] = by_name("diag.rundir.runs:state_of")


class _Kept(Struct, array_like=True):
    """``state``: of the run when it was analysed; empty where that follows from its files. ``written``: the check sum
    of verdict.json, if that belongs to the answer; -1 if it could not be written."""

    state: bytes
    written: int | None
    answer: bytes


class Answers(Struct, frozen=True):
    """The answers to one question about what lies at ``path``. ``key``: check sums of what they rest on."""

    path: Path
    shelf: Shelf
    name: str
    key: bytes

    def load(self) -> bytes | None:
        """The answer that was saved, if it would be the same now; else None."""
        data = self.shelf.load(self.name)
        if data is None or not data.startswith(self.key):
            return None
        try:
            kept = msgpack_decoder(_Kept).decode(data[len(self.key) :])
        except DAMAGED:
            return None
        if kept.written is not None and kept.written != _written(self.path):
            return None
        same = not kept.state or kept.state == _state_bytes(_state_of(self.path, with_answer=False))
        return kept.answer if same else None

    def save(self, answer: bytes, manifest: Manifest | None, state: RunState | None, writes: bool = False) -> None:
        """Keeps the answer, if it rests on nothing but what the key stands for. ``manifest`` and ``state``: of the
        result. ``writes``: verdict.json belongs to the answer, which is not given where that is another one."""
        follows = state is None or (manifest is not None and manifest.exit_code is not None)
        if len(answer) > ANSWERS.most_answer_bytes or (not follows and state is not None and state.live):
            return
        seen = b"" if follows or state is None else _state_bytes(state)
        kept = _Kept(seen, _written(self.path) if writes else None, answer)
        self.shelf.save(self.name, self.key + msgspec.msgpack.encode(kept), private=True)  # it quotes logs
        keep_newest(self.shelf.folder, "answer-", ANSWERS.most_answers)


def answers_on(paths: Sequence[str], asking: Callable[[], object]) -> Answers | None:
    """The answers to what was asked. None where none are kept: of several paths, and of those that this module's text
    names. ``asking``: gives a value whose ``repr`` tells questions apart; it is not called where none are kept."""
    if len(paths) != 1 or not os.path.lexists(paths[0]):
        return None
    layout = RunLayout(Path(paths[0]))
    shelves = Shelves.of_user()
    shelves = shelves.of_run(layout) if layout.is_run() else shelves
    if shelves.folder is None:
        return None
    files = _files(layout.root, shelves.folder)
    if files is None:
        return None
    asked = asking()
    key = blake2b(_code().encode(), digest_size=32)
    where = (paths[0], str(layout.root.resolve()))
    try:
        key.update(repr((where, asked, os.environ.get(policy.INHERITED), _processes(layout))).encode())
        for file in (*files, *map(str, settings_files([layout.root]))):
            status = os.stat(file)  # noqa: PTH116  (as in diag.rundir.runs)
            key.update(repr((file, status.st_size, status.st_mtime_ns, checksum_of(Path(file)))).encode())
    except OSError:  # it cannot be read, or was removed meanwhile
        return None
    shelf = shelves.shelf(f"answers on {layout.root.resolve()}")
    name = f"answer-{blake2b(repr(asked).encode(), digest_size=8).hexdigest()}"
    return Answers(layout.root, shelf, name, key.digest()) if shelf is not None else None


def _files(root: Path, cache_folder: Path) -> list[str] | None:
    """The files that an answer may rest on, in order. None where nothing is kept of them."""
    files, refused = [str(root)], list[str]()
    if is_folder(root):
        if linked_folders(root) or _ranks(root) > ANSWERS.most_files:
            return None
        others = str(cache_folder), str(RunLayout(root).tables)
        found = walk(root, lambda path, _: refused.append(path), enter=lambda path: path not in others, order=None)
        files = sorted(islice(found, ANSWERS.most_files + 1))
        if len(files) > ANSWERS.most_files:
            return None
    with suppress(OSError):
        files = [file for file in files if file != str(RunLayout(root).verdict)]
        size = sum(os.stat(file).st_size for file in files)  # noqa: PTH116  (as in diag.rundir.runs)
        return files if not refused and ANSWERS.least_bytes <= size <= ANSWERS.most_bytes else None
    return None


def _ranks(root: Path) -> int:
    """How many folders of ranks there are, each with a file or more: a look at this one is enough for very many."""
    with suppress(OSError):
        return RunLayout(root).folders()
    return 0


def _processes(layout: RunLayout) -> list[object]:
    """What is seen now of the processes that recorded into a run; empty for what is no run."""
    if not layout.is_run():
        return []
    late_ns = delay_ns(layout)
    return [
        late_ns,
        *((rank, _seen(files, late_ns)) for rank, files in layout.ranks().items()),
    ]


def _seen(files: RankLayout, late_ns: int) -> tuple[object, ...]:
    identity, heartbeat = read_object(files.identity, files.run), read_object(files.heartbeat, files.run)
    return seen_of(files, identity, heartbeat, late_ns)


def _written(path: Path) -> int:
    try:
        return checksum_of(RunLayout(path).verdict)
    except OSError:
        return -1


def _state_bytes(state: RunState) -> bytes:
    return repr((state.judged, state.headline)).encode()


@cache
def _code() -> str:
    """Stands for the code of the analysis."""
    package = Path(__file__).resolve().parents[1]
    folders = (package, (package / "collectors").resolve())  # which is a link in a checkout
    kinds = (".py", ".json", ".toml")
    found = (walk(folder, wanted=lambda name: name.endswith(kinds), fenced=False, order=None) for folder in folders)
    return hash_of_sources(*map(Path, set(chain.from_iterable(found))))

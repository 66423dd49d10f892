"""The packer: a process on each node that writes what the ranks wrote there to a store, one segment an interval.

``python -m diag.store.packer FOLDER``, with ``collectors.packing.Packing`` in the environment. What it has not stored
stays in the folder, so a store that is away costs nothing but time, as long as the ranks keep the records. What it has
stored is noted in the folder, so the next packer goes on there.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from diag.collectors.files import own_folder, replace_file
from diag.collectors.layout import ABOUT_PACKER, DERIVED, RankLayout, RunLayout
from diag.collectors.living import number_runs, recorded_has_ended
from diag.collectors.packing import (
    HIDDEN,
    Packing,
    keep_from_cleaners,
    packer_lock,
    packing_from,
)
from diag.collectors.reading import open_regular, read_object, read_regular, walk
from diag.decoding import msgpack_decoder
from diag.errors import DiagError
from diag.store.policy import SEGMENTS, STORES
from diag.store.requests import NAME as REQUESTS
from diag.store.requests import requests_in
from diag.store.segment_names import name_of, new_node_name
from diag.store.segments import DamagedSegmentError, Entry, Segment, decode, encode, merged, raw_bytes
from diag.store.stores import Store
from diag.words.terminal import say

_DOCUMENTS = (".json",)  # written anew, never continued


class _Sent(msgspec.Struct):
    """What of a file is in the store. ``end``: its last bytes, by which it is known to have grown."""

    inode: int
    size: int
    mtime_ns: int
    generation: int
    end: bytes = b""


class _Stored(msgspec.Struct):
    """A segment in the store. ``level``: how often what is in it was merged."""

    first: int
    last: int
    level: int
    raw_bytes: int


class _State(msgspec.Struct):
    node: str
    last: int = 0  # segment
    generation: int = 0
    files: dict[str, _Sent] = {}
    stored: list[_Stored] = []
    asked: dict[str, str] = {}  # what was handed to the ranks, by file
    tried: set[str] = set()  # the files of a segment that may be stored and is not noted
    unused: list[str] = []  # segments that were merged, and may still be there


class Node:
    """A node's folder and its part of the store."""

    def __init__(self, folder: Path, packing: Packing, store: Store | None = None) -> None:
        self.folder, self._packing = folder, packing
        self._store = store or Store(packing.to)
        self._state_file = folder / HIDDEN / "state"
        self._state = self._kept_state()
        self._newest: dict[str, bytes] = {}  # segments that are merged soon, so that they need not be read again
        self._keep_state()  # a segment may be stored and not noted: the next packer must go on under this name
        replace_file(folder / ABOUT_PACKER, msgspec.json.encode({"interval_s": packing.interval_s}))

    def _kept_state(self) -> _State:
        try:
            content = read_regular(self._state_file, SEGMENTS.most_bytes)
            return msgpack_decoder(_State).decode(content)
        except (OSError, msgspec.MsgspecError):
            return _State(node=new_node_name(socket.gethostname()))

    def interval(self, last: bool = False) -> None:
        """What a packer does in each interval. ``last``: see ``pack``. DiagError where the store does not answer."""
        self.pack(last)
        self.fetch_requests()
        self.merge()

    def pack(self, last: bool = False) -> int:
        """Stores what is new; returns the number of segments. ``last``: also a line that has no end yet. DiagError
        where the store does not take them; nothing is lost, and the next call begins there."""
        written = 0
        while True:
            entries, sent, whole = self._new(last)
            if not entries:
                return written
            number = self._state.last + 1
            # Noted first: a segment may be stored and not noted, and no generation may stand for two contents.
            self._state.generation = max([self._state.generation, *(entry.generation for entry in entries)])
            self._state.tried |= {entry.name for entry in entries}
            self._keep_state()
            data = encode(Segment(self._state.node, number, number, entries))
            name = name_of(self._state.node, number, number)
            self._store.write(name, data)
            self._remember(name, data)
            self._state.last = number
            self._state.files = sent
            self._state.tried = set()
            self._state.stored.append(_Stored(number, number, 0, raw_bytes(entries)))
            self._keep_state()
            written += 1
            if whole:
                return written

    def _new(self, last: bool) -> tuple[list[Entry], dict[str, _Sent], bool]:
        """What changed since the last segment, what will be in the store then, and whether that is all."""
        entries: list[Entry] = []
        known, sent = self._state.files, dict(self._state.files)
        generation = self._state.generation
        left = SEGMENTS.raw_bytes
        there = set()
        whole = True
        for name, path in self._files():
            there.add(name)
            if left <= 0:
                whole = False
                continue
            with contextlib.suppress(OSError), open_regular(path, self.folder, buffering=0) as file:
                about = os.fstat(file.fileno())
                before = known.get(name)
                if before is not None and (before.inode, before.size, before.mtime_ns) == (
                    about.st_ino, about.st_size, about.st_mtime_ns,
                ):  # fmt: skip
                    continue
                offset = self._goes_on_at(name, file.fileno(), about, before)
                if offset == 0 or before is None:
                    generation += 1
                    number = generation
                else:
                    number = before.generation
                end = about.st_size
                data = os.pread(file.fileno(), max(0, min(end - offset, left)), offset)
                cut = offset + len(data) < end
                if name.endswith(".jsonl") and not last and not cut:
                    data = data[: data.rfind(b"\n") + 1]
                    cut = False
                size = offset + len(data)
                if before is not None and offset and not data:
                    continue
                left -= len(data)
                whole = whole and not cut
                entries.append(Entry(name, number, offset, data, about.st_mtime_ns))
                ends = ((before.end if before is not None and offset else b"") + data)[-STORES.tail_bytes :]
                # A file that was not read to its end is looked at again.
                mtime_ns = about.st_mtime_ns if size == end else -1
                sent[name] = _Sent(about.st_ino, size, mtime_ns, number, ends)
        for name in sorted((known.keys() | self._state.tried) - there):
            generation += 1
            entries.append(Entry(name, generation, 0, b"", 0, removed=True))
            sent.pop(name, None)
        return entries, sent, whole

    def _goes_on_at(self, name: str, descriptor: int, about: os.stat_result, before: _Sent | None) -> int:
        """Where the new end of a file begins; 0 for another content."""
        if before is None or before.inode != about.st_ino or about.st_size < before.size:
            return 0
        if name.endswith(_DOCUMENTS) and before.mtime_ns != -1:
            return 0
        start = before.size - len(before.end)
        return before.size if os.pread(descriptor, len(before.end), start) == before.end else 0

    def _files(self) -> Iterator[tuple[str, str]]:
        """Every file that is packed, by its name in the run; those of the run itself first."""
        root = f"{self.folder}/"
        for path in walk(self.folder, enter=lambda path: not Path(path).name.startswith(".")):
            name = path.removeprefix(root)
            if not name.rpartition("/")[2].startswith(".") and name.split("/")[0] not in DERIVED:
                yield name, path

    def _keep_state(self) -> None:
        replace_file(self._state_file, msgspec.msgpack.encode(self._state), private=True)

    def merge(self) -> bool:
        """Merges the newest segments of one level if there are enough; returns whether it did. So their number grows
        with the logarithm of the time. DiagError where the store does not answer."""
        if self._state.unused:
            self._remove_unused()
        stored = self._state.stored
        for level in sorted({one.level for one in stored}):
            group = [one for one in stored if one.level == level][: SEGMENTS.merged_count]
            if len(group) < SEGMENTS.merged_count:
                continue
            if sum(one.raw_bytes for one in group) > SEGMENTS.most_merged_bytes:
                group = group[: max(1, len(group) // 2)]
                if len(group) < 2 or sum(one.raw_bytes for one in group) > SEGMENTS.most_merged_bytes:
                    for one in group:  # large enough as they are
                        one.level += 1
                    continue
            self._merge(group)
            return True
        return False

    def _merge(self, group: list[_Stored]) -> None:
        node = self._state.node
        names = [name_of(node, one.first, one.last) for one in group]
        try:
            whole = merged(decode(self._newest.get(name) or self._store.read_if_there(name) or b"") for name in names)
        except DamagedSegmentError:  # or gone, as where a bucket removes old files: the others stay as they are
            for one in group:
                one.level += 1
            self._keep_state()
            return
        finally:
            for name in names:
                self._newest.pop(name, None)
        self._store.write(name_of(node, whole.first, whole.last), encode(whole))
        one = _Stored(whole.first, whole.last, group[0].level + 1, raw_bytes(whole.entries))
        self._state.stored = sorted(
            [one, *(other for other in self._state.stored if other not in group)], key=lambda other: other.first
        )
        self._state.unused += names
        self._keep_state()
        self._remove_unused()

    def _remember(self, name: str, data: bytes) -> None:
        self._newest[name] = data
        while sum(map(len, self._newest.values())) > SEGMENTS.most_remembered_bytes:
            self._newest.pop(next(iter(self._newest)))

    def _remove_unused(self) -> None:
        self._store.remove(self._state.unused)
        self._state.unused = []
        self._keep_state()

    def fetch_requests(self) -> None:
        """Hands what is asked of the ranks to them, once, and takes back what is no longer asked. DiagError where the
        store does not answer."""
        requests = requests_in(self._store.read_if_there(REQUESTS))
        if requests is None or requests.files == self._state.asked:
            return
        asked = requests.files
        newest = RunLayout(self.folder).newest()
        before, self._state.asked = self._state.asked, asked
        for name, text in asked.items():
            if before.get(name) != text:
                replace_file(newest.root / name, text.encode())
        for name in before.keys() - asked.keys():
            (newest.root / name).unlink(missing_ok=True)
        self._keep_state()

    # -- the node's processes --------------------------------------------------------------------------------------

    def ranks(self) -> list[RankLayout]:
        run = RunLayout(self.folder)
        with contextlib.suppress(OSError):
            return [files for attempt in run.attempts() for files in attempt.ranks().values()]
        return []

    def busy(self) -> bool | None:
        """Whether a rank of this node still records; None if none has begun."""
        ranks = self.ranks()
        return any(map(_records, ranks)) if ranks else None


def _records(files: RankLayout) -> bool:
    identity = read_object(files.identity, files.run)
    return bool(identity) and not recorded_has_ended(files, identity, read_object(files.heartbeat, files.run))


ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Stop:
    """Set by SIGTERM: the run is over."""

    def __init__(self) -> None:
        self.asked = False
        for number in ENDS:
            signal.signal(number, self._ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # the launcher may have sent one already

    def _ask(self, *_: object) -> None:
        self.asked = True


def keep_packing(node: Node, packing: Packing, stop: _Stop, launcher: int = 0) -> int:
    """Packs until the run is over on this node; returns the exit code: 1 if the last records could not be stored.
    ``launcher``: the process that says when it is over; 0: it is when no rank has recorded for a while."""
    began_s = time.monotonic()
    due_s = began_s + random.uniform(0.2, 1.0) * packing.interval_s  # nodes that start together do not write together
    ended_s: float | None = None  # since when nobody records
    flushed = False  # and all of it is stored
    told = ""  # what was said of why records wait
    while True:
        now_s = time.monotonic()
        busy = node.busy()
        if busy:
            ended_s, flushed = None, False
        elif busy is not None and ended_s is None:
            ended_s = due_s = now_s
        over = stop.asked or _is_over(busy, ended_s, began_s, launcher)
        if over or now_s >= due_s:
            due_s = now_s + packing.interval_s
            try:
                if over:
                    node.pack(last=True)
                else:
                    node.interval(last=ended_s is not None)
                flushed = True
                if told:
                    _say(f"{told} can be used again")
                told = ""
            except (DiagError, OSError, ValueError) as error:
                flushed = False
                place, why = _what_fails(error, node.folder)
                if place != told:
                    _say(f"records wait on this node: {why}")
                told = place
        if over and flushed:
            return 0
        waited_s = now_s - (ended_s if ended_s is not None else began_s)
        if over and waited_s > SEGMENTS.patience_s:
            return 1
        time.sleep(min(SEGMENTS.look_s, packing.interval_s))


def _what_fails(error: Exception, folder: Path) -> tuple[str, str]:
    """What cannot be used, and why. A store's errors are DiagErrors, also those of one that is a folder: any other one
    of the system is of the node's own folder, in which the packer notes what it does before it does it."""
    if isinstance(error, OSError):
        place = "the folder on this node"
        return place, f"{place} cannot be used: {error.strerror or error}: {error.filename or folder}"
    return "the store", error.message if isinstance(error, DiagError) else str(error)


def _is_over(busy: bool | None, ended_s: float | None, began_s: float, launcher: int) -> bool:
    if launcher and number_runs(launcher):
        return False
    if busy is None:
        return bool(launcher) or time.monotonic() - began_s > SEGMENTS.start_s
    if launcher:
        return not busy
    return ended_s is not None and time.monotonic() - ended_s > SEGMENTS.linger_s


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        say(f"diag: packer: {text}", err=True)


def main(arguments: list[str]) -> int:
    packing = packing_from()
    if packing is None or not arguments:
        _say("needs a folder, and what `diag run` and `diag attach` set")
        return 2
    stop = _Stop()
    folder = Path(arguments[0])
    launcher = int(arguments[1]) if arguments[1:] else 0
    try:
        own_folder(folder)
        lock = packer_lock(folder)
        if not lock.hold():
            return 0
        keep_from_cleaners(folder)
        return keep_packing(Node(folder, packing), packing, stop, launcher)
    except OSError as error:
        _say(f"nothing is stored: {error.strerror or error}: {error.filename or folder}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

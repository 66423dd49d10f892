"""Where the training's thread is while the training makes no progress: its own line, and the call to the system that it
is blocked in. Nothing here waits for that thread or touches a file of the training."""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
import sysconfig
from pathlib import Path
from time import monotonic_ns
from types import FrameType
from typing import NamedTuple

from .policy import RECORDING

# Calls that a training may be blocked in, by their number on each architecture, and whether their first argument is a
# descriptor.
_CALLS: dict[str, dict[int, tuple[str, bool]]] = {
    "x86_64": {
        0: ("read", True), 1: ("write", True), 2: ("open", False), 7: ("poll", False), 17: ("read", True),
        23: ("select", False), 35: ("sleep", False), 42: ("connect", True), 43: ("accept", True), 44: ("send", True),
        45: ("receive", True), 47: ("receive", True), 61: ("wait for a child", False), 72: ("fcntl", True),
        73: ("flock", True), 74: ("fsync", True), 202: ("futex", False), 230: ("sleep", False), 232: ("poll", False),
        247: ("wait for a child", False), 257: ("open", False), 270: ("select", False), 271: ("poll", False),
        281: ("poll", False),
    },
    "aarch64": {
        22: ("poll", False), 25: ("fcntl", True), 32: ("flock", True), 56: ("open", False), 63: ("read", True),
        64: ("write", True), 67: ("read", True), 72: ("select", False), 73: ("poll", False), 82: ("fsync", True),
        95: ("wait for a child", False), 98: ("futex", False), 101: ("sleep", False), 115: ("sleep", False),
        202: ("accept", True), 203: ("connect", True), 206: ("send", True), 207: ("receive", True),
        212: ("receive", True), 260: ("wait for a child", False),
    },
}  # fmt: skip
# Locks that are polled: a thread that waits for one sleeps between its attempts.
_POLLED_LOCKS = ("torch/utils/file_baton.py", "filelock/_api.py", "portalocker/utils.py")
_OF_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None, ""}
)
_OURS = str(Path(__file__).parent)


class Place(NamedTuple):
    """``line``: "train.py:57 in load", the innermost one of the training's own code. ``call``: "flock /data/lock", as
    far as the system says it. ``since_ns``: since when the thread has hardly run; 0 while it runs. ``missing``: the
    call is over at once unless something outside of the training is missing: a lock that another process holds, the
    other end of a pipe with a name, the job's store."""

    line: str = ""
    call: str = ""
    since_ns: int = 0
    missing: bool = False


class Standing:
    """Looks at one thread, about once a second, from another one."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None  # when the thread's CPU time was last read, and that time
        self._idle_ns = 0

    def moves(self) -> None:
        """The training makes progress."""
        self._before, self._idle_ns = None, 0

    def look(self, ident: int, native_id: int) -> Place:
        from .masking import masked  # not in each process that imports torch

        frame = sys._current_frames().get(ident)
        line, polled = _line_of(frame)
        call, missing = call_of(native_id)
        line, call = masked(line), masked(call)
        since_ns = self._since_ns(native_id)
        return Place(line, "a file lock" if polled else call, since_ns, bool(since_ns) and (polled or missing))

    def _since_ns(self, native_id: int) -> int:
        now_ns, used = monotonic_ns(), _text(Path(f"/proc/self/task/{native_id}/schedstat")).split()
        if not used:
            return 0
        before, self._before = self._before, (now_ns, int(used[0]))
        if before is None:
            return 0
        if int(used[0]) - before[1] > RECORDING.idle_share * (now_ns - before[0]):
            self._idle_ns = 0
        elif not self._idle_ns:
            self._idle_ns = before[0]
        return self._idle_ns


def _line_of(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line of code that is no library's, and whether a lock is polled further in."""
    polled = False
    innermost = frame
    while frame is not None:
        file = frame.f_code.co_filename
        polled = polled or file.endswith(_POLLED_LOCKS)
        if not file.startswith((_OURS, "<", *_OF_LIBRARIES)):
            return _words(frame), polled
        frame = frame.f_back
    return (_words(innermost) if innermost is not None else ""), polled


def _words(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"  # noqa: PTH119


def call_of(native_id: int, proc: Path = Path("/proc/self"), store_port: str | None = None) -> tuple[str, bool]:
    """The call that a thread of this process is blocked in, "" if it runs or the system does not say it; and whether
    something outside is missing. ``store_port``: of the job's store, by default MASTER_PORT."""
    fields = _text(proc / f"task/{native_id}/syscall").split()
    if len(fields) < 3 or not fields[0].isdecimal():
        return "", False
    name, on_file = _CALLS.get(platform.machine(), {}).get(int(fields[0]), ("", False))
    descriptor = int(fields[1], 16) if on_file else _polled(proc, int(fields[1], 16)) if name == "poll" else None
    place = _link(proc / f"fd/{descriptor}") if descriptor is not None else ""
    if descriptor is not None and place.startswith("socket:["):
        peer = _peer(descriptor)
        of_store = bool(peer) and peer.rpartition(":")[2] == (store_port or os.environ.get("MASTER_PORT", "29500"))
        place = f"from the store at {peer}" if of_store else f"from {peer}" if peer else ""
        return f"receive {place}".strip(), of_store
    name = "fcntl lock" if name == "fcntl" else name  # no other command of it blocks
    where = _text(proc / f"task/{native_id}/wchan")  # the kernel's function
    # Pipes without a name are of children of its own.
    in_pipe = name in ("read", "write") and "pipe" in where and place.startswith("/")
    opens_pipe = name == "open" and ("wait_for_partner" in where or "fifo" in where)
    return f"{name} {place}".strip(), in_pipe or opens_pipe or name in ("flock", "fcntl lock")


def _polled(proc: Path, address: int) -> int | None:
    """The first descriptor of those that the thread polls, read where it has put them."""
    try:
        with open(proc / "mem", "rb", buffering=0) as memory:  # noqa: PTH123
            return struct.unpack("=i", os.pread(memory.fileno(), 4, address))[0]  # type: ignore[no-any-return]
    except (OSError, OverflowError, struct.error):  # nothing is there any more
        return None


def _peer(descriptor: int) -> str:
    """``10.0.0.1:29500``, the other end of a TCP connection of this process; "" where it is none. Asks libc: Python's
    socket objects may change the mode of a descriptor, and the system's list of connections is long on a busy host."""
    import ctypes  # not in each process that imports torch

    address = ctypes.create_string_buffer(128)  # a sockaddr_storage
    size = ctypes.c_uint32(len(address))
    try:
        if ctypes.CDLL(None).getpeername(descriptor, address, ctypes.byref(size)) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    family, port = struct.unpack_from("=H", address)[0], struct.unpack_from("!H", address, 2)[0]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, address.raw[4:8])}:{port}"
    if family == socket.AF_INET6:
        return f"{socket.inet_ntop(family, address.raw[8:24]).removeprefix('::ffff:')}:{port}"
    return ""


def _text(path: Path, most_bytes: int = 400) -> str:
    try:
        with open(path) as file:  # noqa: PTH123  (a file of the system's)
            return file.read(most_bytes)
    except (OSError, ValueError):
        return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""

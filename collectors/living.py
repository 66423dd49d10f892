"""Whether the process that wrote a record lives: one answer for recorder, packers, watchers and readers. Standard
library only."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .layout import RankLayout
from .policy import RECORDING

GONE, UNTOLD = "", "?"  # instead of a letter of the system
_STOPPED = "Tt"  # by a signal, or by a debugger


class Recorded(Protocol):
    """The fields of ``records.RankRecord`` that name a process."""

    host: str
    pid: int
    boot_id: str
    pid_namespace: str
    monotonic_ns: int
    unix_ns: int


def boot_id() -> str:
    """Equal in all processes that share one monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def pid_namespace() -> str:
    """Equal in all processes among which a number means one process. Containers have one of their own each, also those
    with the name and the network of their host; "" on a system without them."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def letter_of(process: Recorded) -> str | None:
    """Of a recorded process: GONE, or the letter of its state in /proc (UNTOLD where the system has none). None where
    it cannot be seen from here: it is on another host or in another container, or wrote before this host started
    again."""
    if process.host != socket.gethostname() or process.boot_id not in ("", boot_id()) or _is_elsewhere(process):
        return None
    letter, age_ns = _look(process.pid)
    if letter in (GONE, UNTOLD):
        return letter
    # A process that is younger than the record has the number of the one that wrote it. Without the boot's clock it is
    # the wall clock's time, which may have been set since.
    if process.boot_id and process.monotonic_ns:
        record_ns = time.monotonic_ns() - process.monotonic_ns
    else:
        record_ns = time.time_ns() - process.unix_ns - round(RECORDING.start_tolerance_s * 1e9)
    return letter if age_ns is None or age_ns >= record_ns else GONE


def process_runs(process: Recorded, seen_unix_ns: int | None = None) -> bool | None:
    """Whether the process that wrote a rank.json lives, also if it is stopped; None where it cannot be seen from here.
    ``seen_unix_ns``: its last sign. One that wrote before this host started again is gone; if the sign is young, it is
    of another host with the same name."""
    letter = letter_of(process)
    if letter is not None:
        return letter != GONE
    if seen_unix_ns is None or process.host != socket.gethostname() or _is_elsewhere(process):
        return None
    return False if _is_old(seen_unix_ns) else None


def process_is_stopped(process: Recorded) -> bool:
    """Whether it is seen from here, and a signal or a debugger has stopped it."""
    letter = letter_of(process)
    return letter is not None and letter != GONE and letter in _STOPPED


def number_runs(pid: int) -> bool:
    """Whether any process has this number that is not only waiting to be reaped."""
    return _look(pid)[0] != GONE


def has_ended(done: bool, runs: bool | None, seen_unix_ns: int, late_ns: int = 0) -> bool:
    """Whether a recorded process records no more: its last heartbeat says so (``done``), or it does not live, or where
    that cannot be seen from here (``runs`` None), its last sign is too old. ``late_ns``: by how much that may be
    late."""
    if done or runs is not None:
        return done or not runs
    return _is_old(seen_unix_ns + late_ns)


def is_copied(behind_ns: int, began_ns: int, began_written_ns: int | None) -> bool | None:
    """Whether a heartbeat that is so much older than its file was copied; None if unknown. Clocks of nodes may be
    minutes late or ahead of the storage's: then rank.json differs from its file by as much."""
    if began_written_ns is None or not began_ns:
        return None
    return abs(behind_ns - began_written_ns + began_ns) > RECORDING.gone_s * 1e9


def last_sign_ns(files: RankLayout, sent_ns: int, began_ns: int) -> int:
    """When a process last wrote, Unix ns: by the storage, or by its own clock where its files are copies, or that is
    not known. ``sent_ns`` and ``began_ns``: the times in its heartbeat, 0 without one, and its rank.json."""
    written_ns = files.written_ns(RankLayout.heartbeat)
    if written_ns is None or not sent_ns:
        return sent_ns or began_ns
    copied = is_copied(written_ns - sent_ns, began_ns, files.written_ns(RankLayout.identity))
    return written_ns if copied is False else sent_ns


def _is_elsewhere(process: Recorded) -> bool:
    return process.pid_namespace not in ("", pid_namespace())


def _is_old(unix_ns: int) -> bool:
    return time.time_ns() - unix_ns > RECORDING.gone_s * 1e9


def recorded_has_ended(files: RankLayout, identity: Mapping[str, Any], heartbeat: Mapping[str, Any]) -> bool:
    """``has_ended``, of the fields of a rank.json and a heartbeat.json as they were read; those of a damaged file are
    left out."""
    process = _Fields(identity)
    runs = process_runs(process) if process.pid else None
    seen_ns = last_sign_ns(files, _whole(heartbeat, "unix_ns"), process.unix_ns)
    return has_ended(heartbeat.get("done") is True, runs, seen_ns)


def seen_of(
    files: RankLayout, identity: Mapping[str, Any], heartbeat: Mapping[str, Any], late_ns: int
) -> tuple[str | None, bool, bool]:
    """What this module's answers about a process rest on besides its rank.json and heartbeat.json, which are given:
    whether it is seen, and stopped, and whether its last sign is old, also if that is late."""
    process = _Fields(identity)
    letter = letter_of(process) if process.pid else None
    seen_ns = last_sign_ns(files, _whole(heartbeat, "unix_ns"), process.unix_ns)
    if letter not in (None, GONE, UNTOLD):
        letter = _STOPPED if letter in _STOPPED else "runs"
    return letter, _is_old(seen_ns), _is_old(seen_ns + late_ns)


class _Fields:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.host, self.boot_id, self.pid_namespace = (
            str(fields.get(name) or "") for name in ("host", "boot_id", "pid_namespace")
        )
        self.pid, self.monotonic_ns, self.unix_ns = (
            _whole(fields, name) for name in ("pid", "monotonic_ns", "unix_ns")
        )


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int else 0


def _look(pid: int) -> tuple[str, int | None]:
    """State and age in ns of the process of this number; the age is None where it is not known."""
    if pid <= 0:  # would be a group of processes
        return GONE, None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return GONE, None
    except OSError:  # another user's
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        letter, began = fields[0], int(fields[19])  # of proc(5), the 3rd and the 22nd
    except (OSError, ValueError, IndexError):  # hidden from this user, or a system without /proc
        return UNTOLD, None
    if letter in "ZX":
        return GONE, None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return letter, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (began - 1) * tick_ns

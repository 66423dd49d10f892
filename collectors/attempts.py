"""The folder of this process's attempt, in a run directory that several attempts share. Standard library only.

Every process finds it by itself. Each attempt has a file that only one process can make, with the key of the attempt.
So all processes with this key find the same folder. Where the launcher does not count its attempts, several of them
share a key. Then a rank belongs to the next attempt if its place was taken by a process that has ended, or if a rank
next to it has failed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from time import sleep
from typing import Any

from .files import create_file, encode
from .launchers import attempt_key, names_one_start
from .layout import RankLayout, RunLayout
from .living import recorded_has_ended, seen_of
from .policy import RECORDING
from .reading import read_object
from .records import FAILED, Attempt


def attempt_of(run: RunLayout, rank: int, world_size: int, environ: Mapping[str, str] = os.environ) -> RunLayout:
    """The run directory of the attempt that this rank belongs to; made if it is the first to come. ``world_size``: 0 if
    unknown. OSError where it cannot be made."""
    key = attempt_key(world_size, environ)
    exact = names_one_start(key)
    number = 0
    while True:
        restarts = run.restart_numbers()  # listed once: every rank of a job asks a shared storage here
        ours = [one for one in (run, *map(run.restart, restarts)) if _key_of(one) == key]
        if ours and (exact or not _is_over(ours[-1], rank, world_size)) and not _was_taken(ours[-1].rank(rank)):
            return ours[-1]
        # A folder that another node made may not be listed yet, so a number that was taken is not tried again.
        last = max(restarts, default=0)
        number = max(number, last + 1 if _is_used(run) else 0)
        mine = run.restart(number)
        about = Attempt(key=key, host=socket.gethostname(), unix_ns=time.time_ns())
        if create_file(mine.attempt, encode(about)):
            return mine
        if _key_of(mine) == key and not _was_taken(mine.rank(rank)):
            return mine
        number += 1


def _is_used(run: RunLayout) -> bool:
    """Whether an attempt, or another training, is recorded in the run directory itself."""
    if _key_of(run) is not None:
        return True
    with contextlib.suppress(OSError):
        return bool(run.ranks())
    return True


def _key_of(attempt: RunLayout) -> str | None:
    key = read_object(attempt.attempt, attempt.root).get("key")
    return key if isinstance(key, str) else None


def _was_taken(files: RankLayout) -> bool:
    """Whether a process that has ended recorded this rank. One that runs keeps it."""
    identity = read_object(files.identity, files.run)
    return bool(identity) and _has_ended(files, identity, read_object(files.heartbeat, files.run))


def _is_over(attempt: RunLayout, rank: int, world_size: int) -> bool:
    """Whether a rank that has not begun in this attempt belongs to a later one: another number of ranks trained, or one
    of a few neighbours failed or was killed."""
    for other in dict.fromkeys((0, 1, rank - 1, rank + 1)):
        files = attempt.rank(other) if other >= 0 and other != rank else None
        identity = read_object(files.identity, files.run) if files is not None else {}
        if files is None or not identity:
            continue
        if world_size and identity.get("world_size") != world_size:
            return True
        heartbeat = read_object(files.heartbeat, files.run)
        ended_well = heartbeat.get("done") is True and not str(heartbeat.get("phase", "")).startswith(FAILED)
        if not ended_well and _has_ended(files, identity, heartbeat):
            return True
    return False


def _has_ended(files: RankLayout, identity: Mapping[str, Any], heartbeat: Mapping[str, Any]) -> bool:
    """Whether a rank records no more. A sign that is old by this host's clock is waited for once more: the clock of the
    storage may be late."""
    if not recorded_has_ended(files, identity, heartbeat):
        return False
    seen_from_here = seen_of(files, identity, heartbeat, 0)[0] is not None
    if heartbeat.get("done") is True or seen_from_here:
        return True
    sleep(RECORDING.beats_again_s)
    return read_object(files.heartbeat, files.run).get("unix_ns") == heartbeat.get("unix_ns")

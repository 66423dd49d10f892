"""The rank folders of a run that are of its own job. What reads ranks of a run directory begins here, so that every
number rests on the same ranks. ``diag.rundir.one_job`` decides the same for an analysis, from all records."""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

from msgspec import Struct

from diag.collectors.layout import RANKS, RankLayout, RunLayout, is_regular
from diag.collectors.records import Manifest, RankRecord
from diag.errors import DiagError
from diag.model import Gap
from diag.rundir.policy import JOBS, RUN_READING

from .identity import Life, Strangers, at_other_times, clock_of, strangers
from .lines import last_steps, read_heartbeat, read_identity, read_manifest


class JobRanks(Struct, frozen=True):
    """``files`` and ``identities``: of the ranks of the job, in order of rank; an identity is None if it cannot be
    read, or was not. ``left_out``: the reason, by rank. ``manifest``: None if there is none, or all ranks contradict
    it. ``gaps``: for what is left out, and for damaged identities."""

    files: dict[int, RankLayout]
    identities: dict[int, RankRecord | None]
    left_out: dict[int, str]
    manifest: Manifest | None
    gaps: tuple[Gap, ...]


def job_ranks(layout: RunLayout, *, whole: bool = False, known: Mapping[int, RankRecord] | None = None) -> JobRanks:
    """The ranks of the job that a run directory is of. Cheap to call again: rank.json is read when it has changed.
    ``whole``: the identities of any number of ranks are read. ``known``: identities of ranks of one job, not read again
    where they are of all. OSError where the ranks cannot be listed; DiagError for a file in a newer schema."""
    with _LOCK:
        reader = _READERS.pop(layout.root, None) or _Reader(layout)
        _READERS[layout.root] = reader
        if len(_READERS) > RUN_READING.most_runs_kept:
            _READERS.popitem(last=False)
        return reader.read(whole, known or {})


def of_its_job(say: Callable[[str, str], object] | None = None) -> Callable[[str], bool]:
    """For one walk through folders: whether a folder may be entered. A rank's folder of another job may not; ``say`` is
    called with its path and the reason."""

    @cache
    def left_out(run: Path) -> Mapping[str, str]:
        layout = RunLayout(run)
        with suppress(OSError, DiagError):  # reading the run reports it
            if is_regular(layout.manifest):
                job = job_ranks(layout, whole=True)
                return {layout.rank(rank).folder.name: reason for rank, reason in job.left_out.items()}
        return {}

    def enter(path: str) -> bool:
        folder = Path(path)
        if folder.parent.name != RANKS:
            return True
        reason = left_out(folder.parent.parent).get(folder.name)
        if reason and say is not None:
            say(path, f"{reason}; left out")
        return not reason

    return enter


_Stamp = tuple[int, int, int] | None  # changes with the content of a file; None: there is none


def _stamp(path: Path | str) -> _Stamp:
    try:
        about = os.stat(path)  # noqa: PTH116  (``Path`` costs thousands of ranks more)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


class _Reader:
    """What was read of one run."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._manifest: tuple[_Stamp, Manifest | None] = (None, None)
        self._identities: dict[int, tuple[_Stamp, RankRecord | None, Gap | None]] = {}
        self._answer: JobRanks | None = None
        self._holds_until_s = 0.0  # by the monotonic clock, unless a file changes

    def read(self, whole: bool, known: Mapping[int, RankRecord]) -> JobRanks:
        folders = self._layout.ranks()
        if self._read_manifest():
            self._answer = None
        if known and folders.keys() <= known.keys():
            of_job: dict[int, RankRecord | None] = {rank: known[rank] for rank in folders}
            return self._without(folders, of_job, strangers(of_job, self._manifest[1]), Strangers(), [])
        if len(folders) > RUN_READING.most_identities_read and not whole:
            unread: dict[int, RankRecord | None] = dict.fromkeys(folders)
            return self._without(folders, unread, strangers(unread, self._manifest[1]), Strangers(), [])
        if self._read_identities(folders):
            self._answer = None
        begin_s = time.monotonic()
        if self._answer is not None and begin_s < self._holds_until_s:
            return self._answer
        identities = {rank: identity for rank, (_, identity, _) in self._identities.items()}
        named = strangers(identities, self._manifest[1])
        own = {rank: identity for rank, identity in identities.items() if rank not in named.ranks and identity}
        ends_ns = {rank: _last_sign_ns(folders[rank]) for rank in own}
        lives = [_life(rank, identity, ends_ns[rank]) for rank, identity in own.items() if identity.monotonic_ns > 0]
        # The clocks of hosts may differ.
        timed = at_other_times(lives, None if named.manifest else self._manifest[1], lambda *_: True)
        damaged = [gap for _, _, gap in self._identities.values() if gap is not None]
        self._answer = self._without(folders, identities, named, timed, damaged)
        # The life of a process that trains grows, and shows later that it is of the same job, or of another.
        settled = not timed.ranks and all(life.begin_ns <= ends_ns[life.rank] for life in lives)
        now_s = time.monotonic()
        self._holds_until_s = math.inf if settled else now_s + RUN_READING.pause_over_reading * (now_s - begin_s)
        return self._answer

    def _without(
        self,
        folders: Mapping[int, RankLayout],
        identities: Mapping[int, RankRecord | None],
        named: Strangers,
        timed: Strangers,
        damaged: list[Gap],
    ) -> JobRanks:
        left_out = named.ranks | timed.ranks
        gaps = list(damaged)
        for found in (named, timed):
            gaps += found.gaps(lambda rank: folders[rank].folder, self._layout.manifest)
        return JobRanks(
            files={rank: files for rank, files in folders.items() if rank not in left_out},
            identities={rank: identities[rank] for rank in folders if rank not in left_out},
            left_out=left_out,
            manifest=None if named.manifest else self._manifest[1],
            gaps=tuple(gaps),
        )

    def _read_manifest(self) -> bool:
        """Returns whether it has changed."""
        stamp = _stamp(self._layout.manifest)
        if stamp is not None and stamp == self._manifest[0]:
            return False
        before = self._manifest
        self._manifest = stamp, read_manifest(self._layout)[0]
        return self._manifest != before

    def _read_identities(self, folders: Mapping[int, RankLayout]) -> bool:
        """Returns whether one has changed."""
        before, self._identities = self._identities, {}
        changed = before.keys() != folders.keys()
        for rank, files in folders.items():
            known, stamp = before.get(rank), _stamp(files.text(RankLayout.identity))
            if known is None or known[0] != stamp:
                known, changed = (stamp, *(read_identity(files) if stamp is not None else (None, None))), True
            self._identities[rank] = known
        return changed


def _last_sign_ns(files: RankLayout) -> int:
    beat, _ = read_heartbeat(files)
    return max(
        [step.end_ns for step in last_steps(files.steps)[-1:]] + ([beat.monotonic_ns] if beat else []), default=0
    )


def _life(rank: int, identity: RankRecord, end_ns: int) -> Life:
    """From the start of the process to its last sign."""
    clock, to_unix_ns = clock_of(identity)
    started_ns = identity.monotonic_ns
    if end_ns < started_ns:  # none yet, or those of another process
        return Life(rank, clock, started_ns - JOBS.started_apart_ns, started_ns + JOBS.started_apart_ns, to_unix_ns)
    return Life(rank, clock, started_ns, end_ns, to_unix_ns)


_LOCK = Lock()
_READERS: OrderedDict[Path, _Reader] = OrderedDict()

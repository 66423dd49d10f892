"""Which run directories are pieces of one job: each holds the ranks of one node. ``joining.py`` makes one of them.

Pieces are of one job if nothing contradicts it: their ranks name one job and one number of ranks, and no rank is in two
of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from diag.collectors.layout import RunLayout, is_regular
from diag.collectors.reading import read_object
from diag.collectors.records import Manifest, RankRecord
from diag.model import Gap
from diag.words.formatting import rank_ranges
from diag.words.places import shown

from .lines import read_identity, read_manifest

_ANOTHER_JOB = "another job"
LEFT_OUT = "pieces.json"  # of the joined folder: what was left out when the pieces were joined


class Piece(Struct, frozen=True):
    """``ranks``: the identity of each, None where it cannot be read."""

    folder: Path
    ranks: Mapping[int, RankRecord | None]
    manifest: Manifest | None

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.folder)

    @property
    def jobs(self) -> frozenset[str]:
        names = {identity.job for identity in self.ranks.values() if identity is not None}
        return frozenset(filter(None, {*names, self.manifest.job if self.manifest is not None else ""}))

    @property
    def began_ns(self) -> int:
        """When its first rank started, Unix time."""
        return min((identity.unix_ns for identity in self.ranks.values() if identity is not None), default=0)

    @property
    def worlds(self) -> frozenset[int]:
        sizes = {identity.world_size for identity in self.ranks.values() if identity is not None}
        if not sizes and self.manifest is not None and self.manifest.world_size is not None:
            sizes = {self.manifest.world_size}
        return frozenset(sizes)


def piece_of(folder: Path) -> Piece:
    """Only rank.json and manifest.json are read. DiagError for a newer schema."""
    layout = RunLayout(folder)
    ranks: dict[int, RankRecord | None] = {}
    with contextlib.suppress(OSError):  # opening the run reports it
        ranks = {rank: read_identity(files)[0] for rank, files in layout.ranks().items()}
    return Piece(folder, ranks, read_manifest(layout)[0])


def may_be_piece(folder: Path) -> bool:
    """Whether a run directory lacks ranks, as far as one rank.json and the manifest say."""
    layout = RunLayout(folder)
    try:
        ranks = layout.ranks()
    except OSError:
        return False
    first = next(iter(ranks.values()), None)
    identity = read_identity(first)[0] if first is not None else None
    if identity is not None:
        return len(ranks) < identity.world_size
    manifest, _ = read_manifest(layout)
    return manifest is None or manifest.world_size is None or len(ranks) < manifest.world_size


def apart(left: Piece, right: Piece) -> str:
    """Why two run directories are not pieces of one job; "" if they are, as far as is known."""
    if left.jobs and right.jobs and not left.jobs & right.jobs:
        return f"its ranks name {_ANOTHER_JOB}"
    if left.worlds and right.worlds and not left.worlds & right.worlds:
        mine, theirs = (", ".join(f"{size:,}" for size in sorted(piece.worlds)) for piece in (right, left))
        return f"of a job of {mine} ranks, and the other of {theirs}: {_ANOTHER_JOB}"
    twice = [rank for rank in left.ranks.keys() & right.ranks.keys() if differ(left.ranks[rank], right.ranks[rank])]
    same_job = bool(left.jobs & right.jobs)
    if twice and (not same_job or len(twice) == min(len(left.ranks), len(right.ranks))):
        return f"both hold {rank_ranges(sorted(twice))}, recorded by different processes: a restart or {_ANOTHER_JOB}"
    if not left.ranks or not right.ranks:  # a node that was lost before anything of its ranks was stored
        lacks_ranks = len(left.ranks) + len(right.ranks) < max([0, *left.worlds, *right.worlds])
        same_size = bool(left.worlds & right.worlds)
        return "" if lacks_ranks and (same_job or same_size) else "holds no rank"
    if not same_job and not (left.worlds and right.worlds):
        return "nothing says that they are of one job: no rank.json can be read"
    return ""


def differ(left: RankRecord | None, right: RankRecord | None) -> bool:
    return left is None or right is None or _process(left) != _process(right)


def _process(identity: RankRecord) -> tuple[object, ...]:
    return identity.host, identity.boot_id, identity.pid, identity.monotonic_ns


class Grouped(Struct, frozen=True):
    """``jobs``: the folders of each job, in the order in which they were given. ``reasons``: by the first folder of a
    job, why it is not of the job that began before it."""

    jobs: list[list[str]]
    reasons: dict[str, str]


def grouped(folders: Sequence[str]) -> Grouped:
    """The run directories that are pieces of one job, together. Where a piece could be of several jobs, it is of the
    one that began at the nearest time. DiagError for a newer schema."""
    jobs: list[list[Piece]] = []
    reasons: dict[str, str] = {}
    given = {Path(folder): folder for folder in folders}  # "./a" as it was given
    place = {folder: number for number, folder in enumerate(folders)}
    for piece in sorted((piece_of(Path(folder)) for folder in folders), key=lambda piece: piece.began_ns):
        why = [next(filter(None, (apart(other, piece) for other in job)), "") for job in jobs]
        fitting = [job for job, reason in zip(jobs, why, strict=True) if not reason]
        if fitting:
            min(fitting, key=lambda job: abs(job[0].began_ns - piece.began_ns)).append(piece)
            continue
        if jobs:
            reasons[given[piece.folder]] = f"not the same job as {shown(str(jobs[-1][0].folder))}: {why[-1]}"
        jobs.append([piece])
    in_order = [sorted((given[piece.folder] for piece in job), key=place.__getitem__) for job in jobs]
    of_job = {names[0]: reasons.get(given[job[0].folder], "") for names, job in zip(in_order, jobs, strict=True)}
    return Grouped(sorted(in_order, key=lambda names: place[names[0]]), of_job)


def is_joined(layout: RunLayout) -> bool:
    """Whether this run directory was joined from pieces."""
    return is_regular(layout.at(LEFT_OUT))


def gaps_of_pieces(layout: RunLayout) -> list[Gap]:
    """What was left out when the pieces of this run directory were joined."""
    stored = read_object(layout.at(LEFT_OUT), layout.root).get("gaps", [])
    items = stored if isinstance(stored, list) else []
    return [
        Gap(item["path"], item["reason"])
        for item in items
        if isinstance(item, dict) and all(isinstance(item.get(key), str) for key in ("path", "reason"))
    ]

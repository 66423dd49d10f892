"""Whether the folders of a run directory are of one job.

Folders are copied, renamed and merged by hand, so the name of a folder proves nothing. What contradicts the rest is
left out, with the reason: a folder that another rank wrote, a rank beyond the world, the same process twice, a process
of another job. The wall clocks of two hosts prove nothing either: they may differ by any time. Processes that share a
monotonic clock were started together. ``diag.rundir.one_job`` looks at the records as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field

from diag.collectors.records import Manifest, RankRecord
from diag.model import Gap
from diag.words.formatting import elapsed, number_ranges

T = TypeVar("T")

_ANOTHER_JOB = "another job"


class Strangers(Struct, frozen=True):
    """What is not of the job of the others, with the reason: ``ranks`` by the number of their folder; ``manifest``: ""
    if it is of this job. ``notes``: doubts about ranks that count."""

    ranks: dict[int, str] = field(default_factory=dict)
    manifest: str = ""
    notes: dict[int, str] = field(default_factory=dict)

    def gaps(self, folder_of: Callable[[int], object], manifest_path: object) -> list[Gap]:
        """A gap for each piece that is left out, and for each doubt."""
        gaps = [Gap(str(folder_of(rank)), f"{reason}; left out") for rank, reason in sorted(self.ranks.items())]
        gaps += [Gap(str(folder_of(rank)), note) for rank, note in sorted(self.notes.items())]
        if self.manifest:
            gaps.append(Gap(str(manifest_path), f"{self.manifest}; left out"))
        return gaps


def strangers(identities: Mapping[int, RankRecord | None], manifest: Manifest | None) -> Strangers:
    """The folders whose rank.json contradicts the name of the folder, the manifest or the other ranks, and the manifest
    if all ranks contradict it."""
    out: dict[int, str] = {}
    known: dict[int, RankRecord] = {}
    for rank, identity in sorted(identities.items()):
        if identity is None:
            continue
        if identity.rank != rank:
            out[rank] = f"its rank.json is of rank {identity.rank}: copied or renamed"
        else:
            known[rank] = identity
    wrong_manifest = ""
    world, job = (manifest.world_size, manifest.job) if manifest is not None else (None, "")
    sizes = Counter(identity.world_size for identity in known.values())
    jobs = Counter(identity.job for identity in known.values() if identity.job)
    if world is not None and sizes and world not in sizes:
        wrong_manifest = f"names {world:,} ranks, and rank.json {_numbers(sizes)}: {_ANOTHER_JOB}"
    elif job and jobs and job not in jobs and sum(jobs.values()) == len(known):
        wrong_manifest = f"all ranks are of {_ANOTHER_JOB}"
    if wrong_manifest:
        world, job = None, ""
    world = world if world is not None else _most_common(sizes)
    job = job or _most_common(jobs) or ""
    processes: dict[tuple[object, ...], int] = {}
    for rank, identity in known.items():
        # Containers of one host have equal process ids; no two of them start in the same nanosecond.
        process = identity.host, identity.boot_id, identity.pid, identity.monotonic_ns
        if world is not None and identity.world_size != world:
            out[rank] = f"of a job of {identity.world_size:,} ranks, the others are of {world:,}: {_ANOTHER_JOB}"
        elif world is not None and rank >= world:
            out[rank] = f"there is no rank {rank} among {world:,}"
        elif job and identity.job and identity.job != job:
            out[rank] = f"of {_ANOTHER_JOB} than the other ranks"
        elif identity.monotonic_ns > 0 and (first := processes.setdefault(process, rank)) != rank:
            out[rank] = f"the same process as rank {first}: copied"
    unknown = [rank for rank, identity in identities.items() if identity is None]
    if world is not None:
        out |= {rank: f"there is no rank {rank} among {world:,}" for rank in unknown if rank >= world}
    return Strangers(out, wrong_manifest)


def _most_common(counts: Counter[T]) -> T | None:
    return counts.most_common(1)[0][0] if counts else None


def _numbers(sizes: Iterable[int]) -> str:
    return number_ranges(sorted(sizes))


class Life(Struct, frozen=True):
    """When a rank recorded, on its monotonic clock. ``clock``: processes with equal names share one. ``to_unix_ns``:
    what to add for the wall clock of its host."""

    rank: int
    clock: str
    begin_ns: int
    end_ns: int
    to_unix_ns: int


def clock_of(identity: RankRecord) -> tuple[str, int]:
    """``Life.clock`` and ``Life.to_unix_ns``."""
    return identity.boot_id or identity.host, identity.unix_ns - identity.monotonic_ns


class _Cluster(Struct, frozen=True):
    """Ranks that share a clock and recorded at the same time. The times are Unix time by that host."""

    clock: str
    ranks: tuple[int, ...]
    begin_ns: int
    end_ns: int

    def apart_ns(self, other: _Cluster) -> int:
        return max(0, self.begin_ns - other.end_ns, other.begin_ns - self.end_ns)


def at_other_times(
    lives: Sequence[Life], manifest: Manifest | None, in_step: Callable[[int, int], bool | None]
) -> Strangers:
    """The ranks that recorded at another time than the others of their host. ``in_step``: whether two ranks of
    different hosts trained together, although the clocks of the hosts deny it; None if that is unknown."""
    clusters = _clusters(lives)
    if len(clusters) < 2:
        return Strangers()
    created_ns = manifest.created_unix_ns if manifest is not None else 0

    def order(cluster: _Cluster) -> tuple[int, bool, int]:
        """The job of most ranks comes first; of equal ones the next after the manifest was created."""
        after_ns = cluster.end_ns - created_ns
        return -len(cluster.ranks), after_ns < 0, abs(after_ns)

    main = min(clusters, key=order)
    of_clock: dict[str, list[_Cluster]] = defaultdict(list)
    for cluster in clusters:
        of_clock[cluster.clock].append(cluster)
    reasons: dict[int, str] = {}
    notes: dict[int, str] = {}
    for same_clock in of_clock.values():
        nearest = min(same_clock, key=lambda cluster: (cluster is not main, cluster.apart_ns(main), order(cluster)))
        others = [cluster for cluster in same_clock if cluster is not nearest]
        apart_ns = nearest.apart_ns(main)
        together = in_step(nearest.ranks[0], main.ranks[0]) if apart_ns else True
        if together is False:
            others.append(nearest)
        elif together is None:
            note = f"recorded {elapsed(apart_ns)} from the others by the clock of its host: treated as the same job"
            notes |= dict.fromkeys(nearest.ranks, note)
        for cluster in others:
            reason = f"recorded {elapsed(cluster.apart_ns(main))} from the others: {_ANOTHER_JOB}"
            reasons |= dict.fromkeys(cluster.ranks, reason)
    return Strangers(reasons, "", notes)


def _clusters(lives: Sequence[Life]) -> list[_Cluster]:
    by_clock: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        by_clock[life.clock].append(life)
    clusters = []
    for clock, of_clock in by_clock.items():
        to_unix_ns = of_clock[0].to_unix_ns
        ranks: list[int] = []
        begin_ns = end_ns = 0
        for life in sorted(of_clock, key=lambda life: life.begin_ns):
            if ranks and life.begin_ns > end_ns:
                clusters.append(_Cluster(clock, tuple(ranks), begin_ns + to_unix_ns, end_ns + to_unix_ns))
                ranks = []
            begin_ns, end_ns = (begin_ns, max(end_ns, life.end_ns)) if ranks else (life.begin_ns, life.end_ns)
            ranks.append(life.rank)
        clusters.append(_Cluster(clock, tuple(ranks), begin_ns + to_unix_ns, end_ns + to_unix_ns))
    return clusters

"""Which ranks use one GPU together, and which GPUs have processes that are no ranks of the run.

Processes on one GPU take turns (without MPS, time slices of a few milliseconds): each waits while another runs. Then
how long a kernel takes on one rank says nothing of that rank, and the driver's utilization is that of all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from diag.collectors.records import MachineRecord, RankRecord, split_machine_name

from .tables import Tables

# What this module reads of a machine's records (``diag.collectors.machine``), and how NVML writes a GPU's id there.
_PROCESSES, _PREFIX = "gpu.processes", "GPU-"
_PART = "MIG"  # in the name of a part of a GPU, which has units of its own


def as_nvml(uuid: str) -> str:
    """The id of a GPU as NVML writes it; torch leaves the beginning out."""
    return _PREFIX + uuid.removeprefix(_PREFIX)


class UsedGpu(Struct, frozen=True):
    """``ranks``: those of the run that use it. ``by_id``: whether they reported its id, else the counts say so.
    ``processes``: how many the driver usually counted on it, in ``counter`` of the machine's records; None and "" where
    it was not asked, or does not say on which GPU. ``elsewhere``: how many more ranks of the run are on its machine."""

    ranks: tuple[int, ...]
    name: str
    by_id: bool = True
    processes: int | None = None
    counter: str = ""
    elsewhere: int = 0

    @property
    def shared(self) -> bool:
        return len(self.ranks) > 1

    @property
    def others(self) -> int:
        """How many processes use it besides these ranks."""
        return max(0, (self.processes or 0) - len(self.ranks))

    @property
    def strangers(self) -> int:
        """How many of these can be no ranks of the run: a rank that uses another GPU may hold a context on this one."""
        return max(0, self.others - self.elsewhere)


class Sharing(Struct, frozen=True):
    """The GPUs of a run, as far as it is known which rank uses which."""

    gpus: tuple[UsedGpu, ...] = ()

    @property
    def shared(self) -> tuple[UsedGpu, ...]:
        """The GPUs that several ranks use."""
        return tuple(gpu for gpu in self.gpus if gpu.shared)

    def count(self, ranks: int | None) -> int | None:
        """The number of GPUs that so many ranks use; None where that is not known of each of them."""
        return len(self.gpus) if self.gpus and sum(len(gpu.ranks) for gpu in self.gpus) == ranks else None

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that share their GPU with another rank."""
        return frozenset(rank for gpu in self.shared for rank in gpu.ranks)

    @property
    def not_alone(self) -> frozenset[int]:
        """The ranks whose GPU runs work of others, which its utilization includes."""
        return self.ranks | {rank for gpu in self.gpus if gpu.strangers for rank in gpu.ranks}


def sharing_of(tables: Tables) -> Sharing:
    return sharing_by(tables.identities, {rank: of.machine for rank, of in tables.ranks.items() if of.machine})


def sharing_by(
    identities: Mapping[int, RankRecord], machine: Mapping[int, Sequence[MachineRecord]] | None = None
) -> Sharing:
    """By the ids of the ranks' GPUs; where these were not recorded, by how many processes the driver counts on the GPUs
    of the machine. ``machine``: by rank, what it recorded of its own."""
    machines: dict[str, list[RankRecord]] = defaultdict(list)
    for identity in identities.values():
        if identity.device != "cpu" and _PART not in identity.device:
            machines[identity.boot_id].append(identity)
    gpus: list[UsedGpu] = []
    for ranks in machines.values():
        counts = _counts(records for rank in ranks if (records := machine.get(rank.rank))) if machine else {}
        gpus += _by_id(ranks, counts) if all(rank.device_uuid for rank in ranks) else _by_count(ranks, counts)
    return Sharing(tuple(sorted(gpus, key=lambda gpu: gpu.ranks)))


def _by_id(ranks: Sequence[RankRecord], counts: Mapping[str, Sequence[int]]) -> list[UsedGpu]:
    by_id: dict[str, list[RankRecord]] = defaultdict(list)
    for rank in ranks:
        by_id[rank.device_uuid.removeprefix(_PREFIX)].append(rank)
    return [_used(ranks, of, uuid, counts) for uuid, of in by_id.items()]


def _by_count(ranks: Sequence[RankRecord], counts: Mapping[str, Sequence[int]]) -> list[UsedGpu]:
    """Ranks with one index of their device use one GPU if the driver counts processes on as many GPUs as there are
    indices, and on each as many as there are ranks of an index. The index alone proves nothing: each rank may see one
    GPU only, its own, which then has the index 0."""
    if not counts:
        return []
    by_index: dict[int | None, list[RankRecord]] = defaultdict(list)
    for rank in ranks:
        by_index[rank.device_index].append(rank)
    most = sorted((max(count) for count in counts.values() if max(count)), reverse=True)
    sizes = sorted(map(len, by_index.values()), reverse=True)
    together = len({(rank.host, rank.pid_namespace) for rank in ranks}) == 1 and None not in by_index
    if not together or len(most) != len(sizes) or any(have < own for have, own in zip(most, sizes, strict=True)):
        return []
    used = [uuid for uuid, count in counts.items() if max(count)]
    only = used[0] if len(used) == 1 else ""
    return [_used(ranks, of, only, counts, by_id=False) for of in by_index.values()]


def _used(
    ranks: Sequence[RankRecord],
    own: Sequence[RankRecord],
    uuid: str,
    counts: Mapping[str, Sequence[int]],
    by_id: bool = True,
) -> UsedGpu:
    """The lower median of the counts: a process may come for a moment, and ranks begin at different times."""
    known = counts.get(uuid)
    return UsedGpu(
        tuple(sorted(rank.rank for rank in own)),
        own[0].device,
        by_id,
        sorted(known)[(len(known) - 1) // 2] if known else None,
        f"gpu.{_PREFIX}{uuid}.processes" if known else "",
        len(ranks) - len(own),
    )


def _counts(streams: Iterable[Sequence[MachineRecord]]) -> dict[str, list[int]]:
    """By the id of a GPU: how many processes the driver counted on it in each record."""
    counts: dict[str, list[int]] = defaultdict(list)
    for records in streams:
        last: dict[str, int] = {}
        for record in records:
            for name, value in record.values.items():
                if not name.endswith(".processes"):
                    continue
                device, counter = split_machine_name(name)
                if counter == _PROCESSES and value is not None:
                    last[device.removeprefix(_PREFIX)] = value
                else:
                    last.pop(device.removeprefix(_PREFIX), None)
            for device, count in last.items():
                counts[device].append(count)
    return counts

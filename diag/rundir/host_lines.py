"""What the hosts of a run counted around some steps, of a run whose ranks are too many to be read as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from diag.collectors.layout import MOST_NS, RunLayout, numbered_parts
from diag.collectors.records import MachineRecord, RankRecord
from diag.decoding import json_decoder
from diag.model import DAMAGED
from diag.rundir.policy import RUN_READING

from .each import each_read
from .garbage import without_collections
from .lines import read_end
from .machines import Machine, Rates, machine_of, rates_of


class HostLines:
    """The lines around some steps, of the hosts of a run whose ranks are too many to be read as a whole. Nothing is
    read before it is asked for. ``kept``: by rank, the lines of hosts of which more than the rates was asked for."""

    when = "around these steps"

    def __init__(
        self, layout: RunLayout, ranks: Mapping[int, RankRecord | None], span_ns: Callable[[int], tuple[int, int]]
    ) -> None:
        """``span_ns``: when the steps of a rank began and ended, by its host's clock."""
        self._layout, self._span_ns = layout, span_ns
        self.kept: dict[int, tuple[MachineRecord, ...]] = {}
        self._known: dict[str, Rates | None] = {}
        self._ranks: dict[str, list[int]] = defaultdict(list)
        for rank, identity in sorted(ranks.items()):
            if identity is not None:
                self._ranks[identity.host].append(rank)

    def of(self, host: str) -> Machine:
        records = self._records(host)
        self.kept.update(records)
        return _of_ranks(records)

    def rates(self) -> Mapping[str, Rates]:
        return self._rates_of(list(self._ranks))

    def others(self, hosts: Collection[str]) -> tuple[list[Rates], str]:
        others = [host for host in self._ranks if host not in hosts]
        every = self._known.keys() >= self._ranks.keys()
        some = others if every else others[:: max(1, -(-len(others) // RUN_READING.hosts_compared))]
        rates = list(self._rates_of(some).values())
        return rates, "the other hosts" if len(some) == len(others) else f"{len(rates)} other hosts"

    def _rates_of(self, hosts: Sequence[str]) -> dict[str, Rates]:
        new = [host for host in hosts if host not in self._known]
        with without_collections():
            self._known.update(zip(new, each_read(self._read_rates, new), strict=True))
        return {host: rates for host in hosts if (rates := self._known[host]) is not None}

    def _read_rates(self, host: str) -> Rates | None:
        records = self._records(host)
        return rates_of(_of_ranks(records)) if records else None

    def _records(self, host: str) -> dict[int, tuple[MachineRecord, ...]]:
        """By rank: from the last line before the steps to the first one after them. The first one has all values."""
        found: dict[int, tuple[MachineRecord, ...]] = {}
        for rank in self._ranks.get(host, ()):
            begin_ns, end_ns = self._span_ns(rank)
            begin_ns -= RUN_READING.machine_before_ns
            lines = self._lines(rank, begin_ns, end_ns)
            if lines:
                found[rank] = lines
                if lines[-1].monotonic_ns >= begin_ns:
                    break  # another rank reads when this one no longer does
        return found

    def _lines(self, rank: int, begin_ns: int, end_ns: int) -> tuple[MachineRecord, ...]:
        stream = self._layout.rank(rank).machine
        parts = numbered_parts(stream)
        most = RUN_READING.machine_tail_bytes_at_first
        while parts:
            try:
                data, whole = read_end(stream, most, parts)
            except OSError:
                return ()
            lines = _between(data.split(b"\n")[:-1] if whole else data.split(b"\n")[1:-1], begin_ns, end_ns)
            if lines or whole or most >= RUN_READING.machine_tail_bytes:
                return lines
            most = RUN_READING.machine_tail_bytes
        return ()


class _Head(Struct):
    """A line without its values."""

    monotonic_ns: int
    whole: bool = True


def _of_ranks(records: Mapping[int, Iterable[MachineRecord]]) -> Machine:
    return machine_of((rank, record) for rank, of_rank in records.items() for record in of_rank)


_decode_head = json_decoder(_Head).decode
_decode = json_decoder(MachineRecord).decode


def _between(rows: Sequence[bytes], begin_ns: int, end_ns: int) -> tuple[MachineRecord, ...]:
    """From the last line at or before ``begin_ns`` (without one, the first line) to the first one at or after
    ``end_ns`` (without one, the last line). The first one has all values; () where these are not known, or a line is
    damaged."""
    try:
        heads = [_decode_head(row) for row in rows]
    except DAMAGED:
        return ()
    if not heads:
        return ()
    first = max((at for at, head in enumerate(heads) if head.monotonic_ns <= begin_ns), default=0)
    last = min((at for at, head in enumerate(heads) if head.monotonic_ns >= end_ns), default=len(heads) - 1)
    whole = max((at for at, head in enumerate(heads[: first + 1]) if head.whole), default=None)
    if whole is None:
        return ()
    try:
        lines = [_decode(row) for row in rows[whole : last + 1]]
    except DAMAGED:
        return ()
    if any(value is not None and value >= MOST_NS for line in lines for value in line.values.values()):
        return ()
    values: dict[str, int | None] = {}
    for record in lines[: first - whole + 1]:
        values.update(record.values)
    return (MachineRecord(heads[first].monotonic_ns, values), *lines[first - whole + 1 :])

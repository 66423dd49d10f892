"""What the hosts of a run counted, by the lines that one rank of each host writes (``diag.collectors.machine``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property
from statistics import fmean
from typing import Protocol

from msgspec import Struct, field

from diag.collectors.layout import MOST_NS, RunLayout, numbered_parts
from diag.collectors.records import GPU_ACTIVITY, MachineRecord, RankRecord, split_machine_name
from diag.decoding import json_decoder
from diag.model import DAMAGED
from diag.rundir.policy import RUN_READING

from .each import each_read
from .garbage import without_collections
from .lines import read_end
from .tables import Tables

# A rate by counter, without the device that it is of.
Rates = Mapping[str, float]


class Machine(Struct):
    """What one host recorded: by the name of a value, how much it grew, over how many seconds, and its last value.
    ``ranks``: those that wrote it. ``activity``: the mean over the readings of what GPUs did (``GPU_ACTIVITY``)."""

    ranks: set[int] = field(default_factory=set)
    grew: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    last: dict[str, int] = field(default_factory=dict)
    activity: dict[str, float] = field(default_factory=dict)


class Machines(Protocol):
    """What the hosts of a run counted."""

    @property
    def when(self) -> str:
        """In which time, in words."""

    def of(self, host: str) -> Machine:
        """All of one host; empty where it recorded nothing."""

    def rates(self) -> Mapping[str, Rates]:
        """By host and counter, how fast it grew, a second, on the device of the host on which it grew fastest; {} of a
        host that was read once."""

    def others(self, hosts: Collection[str]) -> tuple[list[Rates], str]:
        """The rates of the other hosts, or of some of very many, and what to call these."""


class _Read(Struct, frozen=True, dict=True):
    """Of lines that are in memory."""

    machines: Mapping[str, Machine]
    when: str = "in this run"

    def of(self, host: str) -> Machine:
        return self.machines.get(host) or Machine()

    def rates(self) -> Mapping[str, Rates]:
        return self._rates

    def others(self, hosts: Collection[str]) -> tuple[list[Rates], str]:
        return [rates for host, rates in self._rates.items() if host not in hosts], "the other hosts"

    @cached_property
    def _rates(self) -> dict[str, Rates]:
        return {host: rates_of(machine) for host, machine in self.machines.items()}


def machines_of(tables: Tables) -> Machines:
    """Of the lines that were read with the run. The rank that reads a host may change, so lines of all its ranks are
    put in the order of its clock."""
    lines: dict[str, list[tuple[int, MachineRecord]]] = defaultdict(list)
    for rank, of_rank in tables.ranks.items():
        if of_rank.host is not None:
            lines[of_rank.host] += [(rank, record) for record in of_rank.machine]
    return _Read({host: machine_of(of_host) for host, of_host in lines.items() if of_host})


def machine_of(lines: Iterable[tuple[int, MachineRecord]]) -> Machine:
    """Of lines of one host, each with the rank that wrote it."""
    machine, first_ns, last_ns = Machine(), None, 0
    measured: dict[str, list[int]] = defaultdict(list)
    for rank, record in sorted(lines, key=lambda line: (line[1].monotonic_ns, line[0])):
        last_ns = record.monotonic_ns
        machine.ranks.add(rank)
        if first_ns is None:
            first_ns = last_ns
            machine.last = {name: value for name, value in record.values.items() if value is not None}
            machine.grew = dict.fromkeys(machine.last, 0)
            _add_activity(measured, machine.last)
            continue
        for name, value in record.values.items():
            before = machine.last.pop(name, None)
            if value is None:
                continue
            machine.last[name] = value
            # A value that is lower was reset or misread.
            grew = max(0, value - before) if before is not None else 0
            machine.grew[name] = machine.grew.get(name, 0) + grew
        _add_activity(measured, machine.last)
    machine.seconds = max(0, last_ns - (first_ns or 0)) / 1e9
    machine.activity = {name: fmean(values) for name, values in measured.items()}
    return machine


def _add_activity(measured: dict[str, list[int]], values: Mapping[str, int]) -> None:
    """The readings are equally far apart, but for the last one."""
    for name, value in values.items():
        if name.startswith("dcgm.") and counter_of(name).endswith(GPU_ACTIVITY):
            measured[name].append(value)


@cache
def counter_of(name: str) -> str:
    """A counter without the device that it is of. Hosts have the same names, so few are kept."""
    return split_machine_name(name)[1]


def rates_of(machine: Machine) -> dict[str, float]:
    if not machine.seconds:
        return {}
    rates = dict.fromkeys(map(counter_of, machine.grew), 0.0)
    for name, by in machine.grew.items():
        if by:
            counter = counter_of(name)
            rates[counter] = max(rates[counter], by / machine.seconds)
    return rates


# -- of very many hosts ------------------------------------------------------------------------------------------------


class _Head(Struct):
    """A line without its values."""

    monotonic_ns: int
    whole: bool = True


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

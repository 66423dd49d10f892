"""What the hosts of a run counted, by the lines that one rank of each host writes (``diag.collectors.machine``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache, cached_property
from statistics import fmean
from typing import Protocol

from msgspec import Struct, field

from diag.collectors.records import GPU_ACTIVITY, MachineRecord, split_machine_name

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

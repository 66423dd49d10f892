"""The faults that can be planted in a run, and their syntax ``NAME:key=value,...``. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .keys import ALL_RANKS, CHOICE, INTEGER, NUMBER, RANK, RANKS, Key, values_of


class FaultError(ValueError):
    """An unknown fault, or a key or value that it does not take. The message lists the valid ones."""


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault: its effect in one line, and its keys."""

    name: str
    help: str
    keys: tuple[Key, ...]

    def usage(self) -> str:
        """``straggler:rank=0,ms=200,phase=forward,rotate=no``: the fault with its defaults, or placeholders."""
        return f"{self.name}:" + ",".join(map(str, self.keys))


_ON_ALL = Key("rank", RANKS, ALL_RANKS, "the affected rank, or all")
_ON_ZERO = Key("rank", RANK, "0", "the affected rank")
_ON_GIVEN = Key("rank", RANK, None, "the affected rank")
_FROM = Key("from", INTEGER, "0", "the first affected step")
_AT_STEP = Key("step", INTEGER, None, "the affected step, counted from 0")

_KINDS = (
    FaultKind("slow-loader", "the dataset takes longer for a batch, inside the loader's process", (
        Key("ms", NUMBER, "300", "added to a batch, milliseconds"), _ON_ALL,
        Key("every", INTEGER, "1", "only every n-th batch", least=1), _FROM,
    )),
    FaultKind("slow-wire", "collectives complete later, as on a slow network", (
        Key("ms", NUMBER, "20", "latency added to a collective, milliseconds"),
        Key("mbps", NUMBER, "200", "bandwidth, megabits of the full tensor a second; 0: unlimited"), _ON_ALL,
    )),
    FaultKind("straggler", "one rank computes longer than the others", (
        _ON_ZERO, Key("ms", NUMBER, "200", "added to a micro-batch, milliseconds"),
        Key("phase", CHOICE, "forward", "where it is slow", ("forward", "backward")),
        Key("rotate", CHOICE, "no", "move to the next rank after every step", ("no", "yes")), _FROM,
        Key("on", CHOICE, "host", "asleep on the host, or in a kernel that keeps its GPU busy", ("host", "device")),
    )),
    FaultKind("stall", "one rank sleeps in its forward or backward, as in a slow read or behind a lock", (
        _ON_ZERO, Key("ms", NUMBER, "200", "added to a micro-batch, milliseconds"),
        Key("phase", CHOICE, "forward", "where it sleeps", ("forward", "backward")), _FROM,
    )),
    FaultKind("slow-device", "every block takes longer, as on a slower device, and leaves the cores free", (
        Key("ms", NUMBER, "20", "added to a block's forward, milliseconds; twice that to its backward"), _ON_ALL,
    )),
    FaultKind("tiny-kernels", "each forward launches many tiny operations", (
        Key("count", INTEGER, "2000", "operations of a forward", least=1), _ON_ALL,
    )),
    FaultKind("item-sync", "each block reads a number back to the host in forward", (_ON_ALL,)),
    FaultKind("checkpoint-stall", "training stops as if saving a checkpoint", (
        Key("ms", NUMBER, "500", "length of a stall, milliseconds"),
        Key("every", INTEGER, "5", "after every n-th step", least=1), _ON_ALL,
    )),
    FaultKind("gc-pause", "Python's garbage collector walks a large heap in forward", (
        _ON_ZERO, Key("objects", INTEGER, "1000000", "objects on the heap", least=1),
        Key("every", INTEGER, "1", "in every n-th step", least=1),
    )),
    FaultKind("skip-collective", "a rank skips one gradient reduction", (_ON_GIVEN, _AT_STEP)),
    FaultKind("mismatched-shape", "a rank reduces half of one gradient tensor", (_ON_GIVEN, _AT_STEP)),
    FaultKind("die", "a rank dies at the beginning of a step", (
        _ON_GIVEN, _AT_STEP, Key("how", CHOICE, "sigkill", "how the rank dies", ("sigkill", "exception", "exit")),
        Key("code", INTEGER, "1", "exit code for how=exit"),
    )),
    FaultKind("hang", "a rank stops for a long time", (
        _ON_GIVEN, _AT_STEP,
        Key("where", CHOICE, "collective", "in the loader, or before a gradient reduction", ("loader", "collective")),
        Key("seconds", NUMBER, "3600", "duration, seconds"),
    )),
)  # fmt: skip

FAULTS: Mapping[str, FaultKind] = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True)
class Fault:
    """A fault with every key filled in. ``rank`` of None means all ranks."""

    name: str
    values: tuple[tuple[str, str], ...]

    def text(self, key: str) -> str:
        return dict(self.values)[key]

    def integer(self, key: str) -> int:
        return int(self.text(key))

    def number(self, key: str) -> float:
        return float(self.text(key))

    @property
    def rank(self) -> int | None:
        return None if self.text("rank") == ALL_RANKS else self.integer("rank")

    def strikes(self, rank: int) -> bool:
        """Whether the fault names this rank. (A rotating straggler moves on to other ranks.)"""
        return self.rank is None or self.rank == rank

    def __str__(self) -> str:
        return f"{self.name}:" + ",".join(f"{key}={value}" for key, value in self.values)


def parse_faults(specs: Iterable[str], world_size: int | None = None) -> tuple[Fault, ...]:
    """Every fault of ``--inject``, in order. FaultError on the first that does not parse."""
    return tuple(parse_fault(spec, world_size) for spec in specs)


def parse_fault(spec: str, world_size: int | None = None) -> Fault:
    """``slow-loader:ms=300,rank=1`` as a Fault with its defaults filled in.

    ``world_size`` None: the rank is not checked. FaultError has the mistake and the valid choices.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in FAULTS:
        raise FaultError(f"unknown fault {name!r}: use {', '.join(FAULTS)}")
    kind = FAULTS[name]
    parts = filter(None, (part.strip() for part in rest.split(",")))
    return Fault(name, values_of(name, kind.keys, parts, kind.usage(), FaultError, world_size))

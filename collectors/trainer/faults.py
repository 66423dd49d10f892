"""The faults that can be planted in a run, and how they are written: ``NAME:key=value,...``. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALL_RANKS = "all"

INTEGER = "integer"
NUMBER = "number"
RANK = "rank"  # one rank
RANKS = "rank or all"
CHOICE = "choice"


class FaultError(ValueError):
    """A fault that does not exist, or a key or value it does not take. The message lists what exists."""


@dataclass(frozen=True)
class Key:
    """One key of a fault. ``default`` of None: the key must be given. ``least`` bounds numbers from below."""

    name: str
    kind: str
    default: str | None
    help: str
    choices: tuple[str, ...] = ()
    least: float = 0


@dataclass(frozen=True)
class FaultKind:
    """What a fault does, in one line, and the keys it takes."""

    name: str
    help: str
    keys: tuple[Key, ...]

    def usage(self) -> str:
        """``straggler:rank=0,ms=200,phase=forward,rotate=no``: the fault with its defaults, or with what to fill in."""
        return f"{self.name}:" + ",".join(
            f"{key.name}={key.kind.upper() if key.default is None else key.default}" for key in self.keys
        )


_ON_ALL = Key("rank", RANKS, ALL_RANKS, "the rank it strikes, or all")
_ON_ZERO = Key("rank", RANK, "0", "the rank it strikes")
_ON_GIVEN = Key("rank", RANK, None, "the rank it strikes")
_AT_STEP = Key("step", INTEGER, None, "the step it strikes in, counted from 0")

_KINDS = (
    FaultKind("slow-loader", "the dataset takes longer for a batch, inside the loader's process", (
        Key("ms", NUMBER, "300", "added to a batch, milliseconds"), _ON_ALL,
        Key("every", INTEGER, "1", "only every n-th batch", least=1),
    )),
    FaultKind("slow-wire", "collectives complete later than they did, as on a slow network", (
        Key("ms", NUMBER, "20", "latency added to a collective, milliseconds"),
        Key("mbps", NUMBER, "200", "bandwidth, megabits of the full tensor a second; 0: unlimited"), _ON_ALL,
    )),
    FaultKind("straggler", "one rank computes longer than the others", (
        _ON_ZERO, Key("ms", NUMBER, "200", "added to a micro-batch, milliseconds"),
        Key("phase", CHOICE, "forward", "where it is slow", ("forward", "backward")),
        Key("rotate", CHOICE, "no", "move to the next rank after every step", ("no", "yes")),
    )),
    FaultKind("tiny-kernels", "each forward launches many tiny operations", (
        Key("count", INTEGER, "2000", "operations of a forward", least=1), _ON_ALL,
    )),
    FaultKind("item-sync", "each block reads a number back to the host in forward", (_ON_ALL,)),
    FaultKind("checkpoint-stall", "training stands still as if saving a checkpoint", (
        Key("ms", NUMBER, "500", "length of a stall, milliseconds"),
        Key("every", INTEGER, "5", "after every n-th step", least=1), _ON_ALL,
    )),
    FaultKind("gc-pause", "Python's garbage collector walks a large heap in forward", (
        _ON_ZERO, Key("objects", INTEGER, "1000000", "objects on the heap", least=1),
        Key("every", INTEGER, "1", "in every n-th step", least=1),
    )),
    FaultKind("skip-collective", "a rank leaves out one gradient reduction", (_ON_GIVEN, _AT_STEP)),
    FaultKind("mismatched-shape", "a rank reduces half of one gradient tensor", (_ON_GIVEN, _AT_STEP)),
    FaultKind("die", "a rank dies at the beginning of a step", (
        _ON_GIVEN, _AT_STEP, Key("how", CHOICE, "sigkill", "the way it dies", ("sigkill", "exception", "exit")),
        Key("code", INTEGER, "1", "exit code for how=exit"),
    )),
    FaultKind("hang", "a rank stops for a long time", (
        _ON_GIVEN, _AT_STEP,
        Key("where", CHOICE, "collective", "in the loader, or before a gradient reduction", ("loader", "collective")),
        Key("seconds", NUMBER, "3600", "how long"),
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
        """Whether this rank is one that the fault names; a rotating straggler names every rank in its turn."""
        return self.rank is None or self.rank == rank

    def __str__(self) -> str:
        return f"{self.name}:" + ",".join(f"{key}={value}" for key, value in self.values)


def parse_faults(specs: Iterable[str], world_size: int | None = None) -> tuple[Fault, ...]:
    """Every fault of ``--inject``, in order. FaultError on the first that does not parse."""
    return tuple(parse_fault(spec, world_size) for spec in specs)


def parse_fault(spec: str, world_size: int | None = None) -> Fault:
    """``slow-loader:ms=300,rank=1`` as a Fault with its defaults filled in.

    ``world_size`` of None leaves the rank unchecked. FaultError says what is wrong and what exists.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in FAULTS:
        raise FaultError(f"unknown fault {name!r}: use {', '.join(FAULTS)}")
    kind = FAULTS[name]
    known = {key.name: key for key in kind.keys}
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if key not in known:
            raise FaultError(f"{name} takes no {key!r}: write {kind.usage()}")
        if not equals or not value:
            raise FaultError(f"{name}: {key} has no value: write {kind.usage()}")
        if key in given:
            raise FaultError(f"{name}: {key} is given twice")
        given[key] = value
    values = []
    for key_spec in kind.keys:
        text = given.get(key_spec.name, key_spec.default)
        if text is None:
            raise FaultError(f"{name} needs {key_spec.name}= ({key_spec.help}): write {kind.usage()}")
        _check(name, key_spec, text, world_size)
        values.append((key_spec.name, text))
    return Fault(name, tuple(values))


def _check(fault: str, key: Key, text: str, world_size: int | None) -> None:
    where = f"{fault}: {key.name}={text}"
    if key.kind == CHOICE:
        if text not in key.choices:
            raise FaultError(f"{where} is unknown: use {' or '.join(key.choices)}")
        return
    if key.kind == RANKS and text == ALL_RANKS:
        return
    if key.kind == NUMBER:
        try:
            number = float(text)
        except ValueError:
            raise FaultError(f"{where} is not a number") from None
        if not key.least <= number < float("inf"):
            raise FaultError(f"{where} must be finite and {key.least:g} or more")
        return
    try:
        integer = int(text)
    except ValueError:
        wanted = "a rank, or all" if key.kind == RANKS else "a whole number"
        raise FaultError(f"{where} is not {wanted}") from None
    if integer < key.least:
        raise FaultError(f"{where} must be {key.least:g} or more")
    if key.kind in (RANK, RANKS) and world_size is not None and integer >= world_size:
        raise FaultError(f"{where}: there are {world_size} ranks, 0 to {world_size - 1}")

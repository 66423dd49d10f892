"""What flows through the reading of Flight Recorder dumps."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import prod

Sizes = tuple[tuple[int, ...], ...]

# Each rank's result needs every rank's part: where one member has finished it, all have come to it. Not so for a send,
# a broadcast (its root may finish alone), or an all-to-all, whose parts may be empty.
_NEEDS_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})


@dataclass(frozen=True, slots=True)
class Signature:
    """What all members of a group must agree on in one collective, as far as a recorder tells."""

    op: str  # without the library: all_reduce, _all_gather_base, coalesced(...)
    input_sizes: Sizes
    output_sizes: Sizes
    dtypes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """One word per collective, whatever its spelling: ``_all_gather_base`` is an all_gather."""
        return kind_of(self.op)

    @property
    def input_numel(self) -> int:
        return sum(prod(size) for size in self.input_sizes)

    @property
    def output_numel(self) -> int:
        return sum(prod(size) for size in self.output_sizes)

    @property
    def text(self) -> str:
        sizes = " ".join("x".join(map(str, size)) or "scalar" for size in self.input_sizes[:4])
        return f"{self.op}({', '.join(filter(None, (sizes, '/'.join(sorted(set(self.dtypes))))))})"


def kind_of(op: str) -> str:
    name = op.lower().strip("_")
    for kind in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce", "broadcast", "barrier"):
        if name.startswith((kind, kind.replace("_", ""))):
            return "barrier" if "barrier" in name else kind
    return name


def needs_all(op: str) -> bool:
    return kind_of(op) in _NEEDS_ALL


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ``ranks``: global, in the order of the group; empty where the dump does not say (gloo)."""

    name: str
    desc: str
    ranks: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"group {self.name}" + (f" ({self.desc})" if self.desc not in ("", "undefined") else "")


@dataclass(frozen=True, slots=True)
class Op:
    """One recorded call. ``number``: collective_seq_id, of a send or receive p2p_seq_id."""

    record_id: int
    group: str
    number: int
    name: str
    signature: int  # index in Dumps.signatures
    created_ns: int
    pending: bool  # not finished, as far as the recorder knows
    timed_out: bool = False
    src: int | None = None  # of a send or receive, within the group
    dst: int | None = None
    frames: tuple[str, ...] = ()

    @property
    def p2p(self) -> bool:
        return self.src is not None

    @property
    def title(self) -> str:
        if self.p2p:
            return f"{self.name} {self.src}->{self.dst}"
        return f"{self.name} #{self.number}"


@dataclass(frozen=True, slots=True)
class History:
    """The collectives of one group that a dump still has, by number. ``first``: the number of the first."""

    first: int
    signatures: array[int]  # -1 where an entry is missing

    @property
    def last(self) -> int:
        return self.first + len(self.signatures) - 1


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's recorder. ``pending``: in the order of the calls."""

    path: str
    rank: int
    rank_from: str  # "the process groups", "the file name"
    host: str
    version: str
    backend: str  # nccl, gloo, ...; empty where no entry says it
    groups: dict[str, Group]
    histories: dict[str, History]
    pending: tuple[Op, ...]
    recent: dict[str, tuple[Op, ...]]  # the last collectives of each group, finished or not
    last: Op | None
    last_called: dict[str, int]  # by group, from the status: where entries are gone
    entries: int
    whole: bool  # no entry was lost since the process began
    pair_counts: dict[tuple[str, str, int, int], int] = field(default_factory=dict)  # (group, send or recv, src, dst)
    newest_ns: int = 0

    def called(self, group: str) -> int | None:
        """The number of its last collective in a group; None where nothing says it."""
        history = self.histories.get(group)
        numbers = [history.last] if history else []
        if group in self.last_called:
            numbers.append(self.last_called[group])
        return max(numbers, default=None)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A dump that is there but tells nothing. ``rank``: from its name."""

    path: str
    rank: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Dumps:
    """All that was read, by rank."""

    dumps: dict[int, Dump]
    unreadable: tuple[Unreadable, ...]
    signatures: tuple[Signature, ...]
    paths: tuple[str, ...]  # of every file that is a dump, read or not
    gaps: tuple[tuple[str, str], ...]

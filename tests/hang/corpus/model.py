"""What a case of the corpus is: files as a user has them, and the truth."""

from __future__ import annotations

from dataclasses import dataclass, field

from diag.hang.classes import CLASSES as REGISTRY

CLASSES = tuple(REGISTRY)
WORDINGS = ("own", "real")  # whose words a case speaks: this package's, or those of real_wordings


@dataclass(frozen=True)
class Blame:
    """A right answer to "who": exactly these ranks, or where there are none, exactly these hosts.

    ``also``: ranks that may stand for their host. An empty blame means: naming nobody is right.
    """

    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    also: frozenset[int] = frozenset()

    @property
    def names_someone(self) -> bool:
        return bool(self.ranks or self.hosts)


@dataclass(frozen=True)
class Case:
    """``blames``: the right answers to "who"; without any, that question is not scored.

    ``accept``: other classes that are right too, each with its reason in ``notes``. ``grammar``: whose lines these are.
    ``owners``: host by rank; ``aliases``: host by address. ``kinds``: the kinds of messages that were said, and whether
    in a real wording.
    """

    id: str
    fault_class: str
    blames: tuple[Blame, ...]
    grammar: str
    files: dict[str, bytes]
    notes: str
    owners: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    accept: tuple[str, ...] = ()
    wordings: str = "own"
    kinds: dict[str, bool] = field(default_factory=dict)

    @property
    def names_culprit(self) -> bool:
        return bool(self.blames) and all(blame.names_someone for blame in self.blames)

    @property
    def culprits(self) -> str:
        """For people: "rank 3", "host gpu01", or "nobody"."""
        first = self.blames[0] if self.blames else Blame()
        named = [f"rank {rank}" for rank in sorted(first.ranks)]
        named += [f"host {host}" for host in sorted(first.hosts)] if not named else []
        return ", ".join(named) or "nobody"

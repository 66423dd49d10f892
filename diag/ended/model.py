"""What the end of a run shows: who is at fault, the evidence for it, and its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diag.ended.policy import ENDED
from diag.events.rows import Source as Source
from diag.words.formatting import begun, listing, spaced

_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}|(?=[^:]*:[^:]*:)[0-9A-Fa-f:.]+(?:%[\w.-]+)?")


@dataclass(frozen=True)
class Culprit:
    rank: int | None = None
    host: str = ""
    gpu: int | None = None
    process_group: str = ""
    peer: str = ""  # the other end of a link, as printed or "rank 3"
    bus_id: str = ""  # of the GPU, as printed
    nic: str = ""  # adapter or interface: "mlx5_0", "eth0"

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPU's address and the adapter, where they are known."""
        return tuple(name for name in (self.bus_id, self.nic) if name)


@dataclass(frozen=True)
class Clue:
    """One source's evidence for a cause. ``fault_class``: an id of ``diag.hang.classes``."""

    fault_class: str
    culprits: tuple[Culprit, ...]
    evidence: tuple[Source, ...]
    confidence: float
    note: str = ""  # one sentence: what was seen and why it means that
    victims: tuple[int, ...] = ()  # ranks that only wait
    time_ns: int | None = None
    from_dumps: bool = False
    rivalled: bool = False  # others report another one of its class, and nothing shows which of them was first
    comes_first: bool = False  # records show that everything else followed from it, whatever its class

    @property
    def ranks(self) -> set[int]:
        return {culprit.rank for culprit in self.culprits if culprit.rank is not None}

    @property
    def hosts(self) -> set[str]:
        return {culprit.host for culprit in self.culprits if culprit.host}


@dataclass(frozen=True)
class Fault:
    """A kind of fault that records alone can show. Of several, ``diag.ended.precedence`` says which is the cause."""

    id: str
    title: str
    priority: int
    ending: bool = False  # a process ended: another fault may explain it, and it may have been a victim
    outside: bool = False  # somebody ended the job from outside


FULL = "cuda_oom"
FAULTS: Mapping[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault("rank_killed_sigkill", "a rank was killed (SIGKILL)", 1, ending=True),
        Fault("rank_killed_sigbus", "a rank died of SIGBUS", 1, ending=True),
        Fault("rank_killed_sigsegv", "a rank crashed", 1, ending=True),
        Fault("rank_killed_exception", "a rank raised an exception", 1, ending=True),
        Fault(FULL, "GPU memory is used up", 2),
        Fault("mismatch_shape", "ranks call a collective with different sizes", 3),
        Fault("mismatch_op", "ranks call different collectives", 3),
        Fault("desync", "ranks are at different collectives", 3),
        Fault("slow_rank_eval", "the others wait while a rank evaluates", 4),
        Fault("slow_rank_checkpoint", "the others wait while a rank saves a checkpoint", 4),
        Fault("missing_rank", "a rank did not join the collective", 4),
        Fault("job_cancelled", "a scheduler or a person ended the job", 5, outside=True),
    )
}
HEALTHY, UNDETERMINED = "healthy", "undetermined"
NAME_NO_CAUSE = frozenset({HEALTHY, UNDETERMINED, "cascade_store_lost"})  # the ids of answers without a cause


def short_host(name: str) -> str:
    """A host's name without its domain; an address unchanged."""
    return name if _ADDRESS.fullmatch(name) else name.partition(".")[0]


class Titled(Protocol):
    """A fault as a headline needs it."""

    @property
    def title(self) -> str: ...

    @property
    def ending(self) -> bool: ...

    @property
    def outside(self) -> bool: ...


def culprit_words(culprits: Sequence[Culprit]) -> str:
    """``rank 3 on gpu004 (GPU 1)``, ``ranks 0, 1 on gpu004``, ``host gpu004``; "" for no culprits."""
    if len(culprits) == 1:
        return _one(culprits[0])
    links = {frozenset((c.host or "", c.peer)) for c in culprits if c.peer and c.host}
    if len(links) == 1 and len(culprits) == 2:
        return "the link between " + " and ".join(sorted(next(iter(links))))
    ranks = sorted({c.rank for c in culprits if c.rank is not None})
    hosts = list(dict.fromkeys(c.host for c in culprits if c.host))
    if ranks and len(ranks) == len(culprits):
        return spaced(listing(ranks)) + (f" on {host_list(hosts)}" if hosts else "")
    if hosts and not (ranks and any(culprit.peer for culprit in culprits)):
        return f"host{'s' if len(hosts) > 1 else ''} {host_list(hosts)}"
    return ", ".join(dict.fromkeys(_one(c) for c in culprits if _one(c)))


def host_list(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - ENDED.most_names} more" if len(hosts) > ENDED.most_names else ""
    return ", ".join(hosts[: ENDED.most_names]) + more


def _one(culprit: Culprit) -> str:
    parts = [f"GPU {culprit.gpu}"] if culprit.gpu is not None else []
    parts += [culprit.bus_id if parts else f"GPU {culprit.bus_id}"] if culprit.bus_id else []
    parts += [f"adapter {culprit.nic}"] if culprit.nic else []
    device = ", ".join(parts)
    suffix = f" ({device})" if device else ""
    if culprit.rank is not None:
        return f"rank {culprit.rank}" + (f" on {culprit.host}" if culprit.host else "") + suffix
    if culprit.host:
        return f"host {culprit.host}{suffix}"
    return culprit.peer or device


_WHO = ("Rank", "The run ", "All ", "The only rank ")  # how notes begin that name who ended


def headline(fault: Titled, clue: Clue) -> str:
    """Class, culprits and what was seen, in one or two sentences."""
    name, note = culprit_words(clue.culprits), clue.note.rstrip(".")
    if fault.ending and name and note.startswith(("It ", "They ")):  # the note already says that the process ended
        who = name if any(culprit.rank is not None for culprit in clue.culprits) else f"a process on {name}"
        return begun(f"{who} {note.partition(' ')[2]}.")
    if (fault.ending or fault.outside) and note.startswith(_WHO):
        return f"{note}."
    return begun(f"{fault.title}{f': {name}' if name else ''}.") + (f" {note}." if note else "")

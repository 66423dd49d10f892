"""Who is who, as it is read: processes as their lines name them, and the communicators of each, by pointer.

A process is known by (host, pid, hint): the hint is a rank that a launcher or the name of the file gives, for pids
repeat between containers with one host name. Whether hints can be trusted is decided at the end, in ``join``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .messages import Event, event_of, nodes_of, variable_of, version_of, world_size_of
from .prefixes import Said

MOST_COMMUNICATORS = 200_000
MOST_VARIABLES = 200

Hint = tuple[str, int]  # what says it ("[rankN]", "mpirun", "srun", "file"), the rank
Who = tuple[str, int | None, Hint | None]


@dataclass(slots=True)
class Own:
    """A communicator as one process knows it."""

    event: Event
    file: int
    line: int  # of its first line
    started: bool = False
    completed: bool = False
    ended: str = ""


@dataclass(slots=True)
class Heard:
    """All that lines of one process said."""

    owns: list[Own] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    local_rank: int | None = None
    device: int | None = None
    files: set[int] = field(default_factory=set)
    last_ns: int | None = None


class Facts:
    def __init__(self) -> None:
        self.heard: dict[Who, Heard] = {}
        self.worlds: Counter[int] = Counter()  # sizes as printed
        self.nodes: dict[int, tuple[int | None, int | None]] = {}  # by file: nodes, processes on each
        self.by_rank: set[Hint] = set()  # hints on lines that name no process
        self.aliases: dict[str, set[str]] = {}  # a host as a launcher calls it: as NCCL does
        self.deduplicated = False
        self.unread_events: Counter[int] = Counter()  # by file
        self.left_out = 0
        self._owns: dict[tuple[Who, str], list[Own]] = {}
        self._same: dict[str, str] = {}  # equal strings of many processes are kept once
        self._communicators = 0

    def process(self, who: Who) -> Heard:
        found = self.heard.get(who)
        if found is None:
            found = self.heard[who] = Heard()
        return found

    def hear(self, said: Said, who: Who, file: int, line: int) -> None:
        """Takes what a line with an anchor of identity says. Only NCCL's own lines count for processes."""
        text = said.text
        if said.source == "nccl":
            # Where somebody cut host and pid off, only what an Init line says can be placed.
            if said.pid is not None or event_of(text) is not None:
                heard = self.process(who)
                heard.files.add(file)
                if said.outer_host and said.outer_host != said.host:
                    self.aliases.setdefault(said.outer_host, set()).add(said.host)
                heard.local_rank = said.local_rank if heard.local_rank is None else heard.local_rank
                if said.time_ns is not None:
                    heard.last_ns = max(heard.last_ns or 0, said.time_ns)
                self._nccl(text, who, heard, file, line)
            return
        if (size := world_size_of(text)) is not None:
            self.worlds[size] += 1
        nodes, each = nodes_of(text)
        if nodes is not None or each is not None:
            before = self.nodes.get(file, (None, None))
            self.nodes[file] = (nodes if nodes is not None else before[0], each if each is not None else before[1])

    def _nccl(self, text: str, who: Who, heard: Heard, file: int, line: int) -> None:
        if variable := variable_of(text):
            if len(heard.env) < MOST_VARIABLES:
                heard.env[self._one(variable[0])] = self._one(variable[1])
        elif " - " in text or "- Init" in text:
            event = event_of(text)
            if event is not None:
                self._event(event, who, heard, file, line)
            elif "Init COMPLETE" in text or "Init START" in text:
                self.unread_events[file] += 1
        elif version := version_of(text):
            heard.version = self._one(version)

    def _event(self, event: Event, who: Who, heard: Heard, file: int, line: int) -> None:
        known = self._owns.setdefault((who, event.comm), [])
        own = next((own for own in reversed(known) if _same(own, event)), None)
        if own is None:
            if self._communicators >= MOST_COMMUNICATORS:
                self.left_out += 1
                return
            self._communicators += 1
            own = Own(event, file, line)
            known.append(own)
            heard.owns.append(own)
        elif event.comm_id and not own.event.comm_id:
            own.event = event
        # Whatever ends was initialised; before 2.18 nothing is printed at the start.
        own.started = True
        if event.what == "Init":
            own.completed |= event.complete
        elif event.complete:
            own.completed, own.ended = True, "destroyed" if event.what == "Destroy" else "aborted"

    def _one(self, text: str) -> str:
        return self._same.setdefault(text, text)


def _same(own: Own, event: Event) -> bool:
    """Whether a line speaks of this communicator: an address is used again after a communicator is gone."""
    if own.event.rank != event.rank or own.event.size != event.size:
        return False
    if event.what != "Init":
        return not own.ended
    if own.event.comm_id and event.comm_id and own.event.comm_id != event.comm_id:
        return False
    return not own.ended and not (own.completed and (event.complete is False))

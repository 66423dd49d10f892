"""The lines that were kept, each with who printed it: as it says itself, else as its process is known."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..model import Line, Process, Speaker
from .gather import Gatherer
from .join import Joined
from .keep import Found
from .prefixes import Said
from .stacks import SOURCES

_CALLS_SHOWN = 4  # of each process and communicator; all that are kept are in its Member
_MOST_CALLS_SHOWN = 20_000


def lines_of(gatherer: Gatherer, joined: Joined, doubtful: set[str]) -> list[Line]:
    """By file and number. A line that continues a block without a prefix of its own has the speaker of the block."""
    makes = _Maker(gatherer, joined, doubtful)
    found: dict[tuple[int, int, bytes], list[Line]] = {}
    for kind, entry in gatherer.keep.entries():
        if isinstance(kind, str) and kind.startswith("block "):
            makes.block += 1
            source = SOURCES.get(kind.removeprefix("block "), "stack")
            opener = makes.lines(entry[0], source, None)
            found[entry[0]] = opener
            for one in entry[1:]:
                found[one] = makes.lines(one, source, opener[0].speaker)
    for _, entry in gatherer.keep.entries():
        for one in entry:
            if one not in found:
                found[one] = makes.lines(one)
    shown = max(1, min(_CALLS_SHOWN, _MOST_CALLS_SHOWN // max(1, len(gatherer.calls))))
    for (file, _, _), calls in gatherer.calls.items():
        for number, raw in list(calls)[-shown:]:
            found.setdefault((file, number, raw), makes.lines((file, number, raw)))
    return [line for key in sorted(found) for line in found[key]]


def rank_of(said: Said, gatherer: Gatherer, file: int, doubtful: set[str]) -> int | None:
    """Global, as the line or the file's name gives it."""
    if said.rank is not None and said.rank_from not in doubtful:
        return said.rank
    return gatherer.names[file].rank if "file" not in doubtful else None


def put_ranks(joined: Joined, lines: list[Line], gatherer: Gatherer, doubtful: set[str]) -> None:
    """Adds the processes of which nothing is known but the rank that their lines bear."""
    seen: dict[int, dict[str, None]] = defaultdict(dict)
    for line in lines:
        if line.speaker.rank is not None and line.speaker.rank not in joined.by_rank:
            seen[line.speaker.rank][line.path] = None
    for file, name in enumerate(gatherer.names):
        if name.rank is not None and name.rank not in joined.by_rank and "file" not in doubtful:
            seen[name.rank][gatherer.files[file]] = None
    for rank in sorted(seen):
        joined.put(Process("", None, rank, paths=tuple(seen[rank])), [])


def put_last_times(joined: Joined, lines: list[Line]) -> None:
    """The last time that a kept line of each process bears."""
    latest: dict[int, int] = {}
    for line in lines:
        if line.time_ns is None:
            continue
        number = joined.find(line.speaker.host, line.speaker.pid, line.speaker.rank)
        if number is not None:
            latest[number] = max(latest.get(number, 0), line.time_ns)
    for number, time_ns in latest.items():
        process = joined.processes[number]
        if process.last_time_ns is None or process.last_time_ns < time_ns:
            joined.processes[number] = replace(process, last_time_ns=time_ns)


class _Maker:
    def __init__(self, gatherer: Gatherer, joined: Joined, doubtful: set[str]) -> None:
        self.block = 0
        self._gatherer, self._joined, self._doubtful = gatherer, joined, doubtful
        self._speakers: dict[Speaker, Speaker] = {}  # equal ones of many lines are kept once
        self._texts: dict[str, str] = {}

    def lines(self, found: Found, source: str = "", heir: Speaker | None = None) -> list[Line]:
        file, number, raw = found
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        return [
            Line(
                path=self._gatherer.files[file],
                number=number,
                raw=said.piece or text,
                text=text if said.text == text else said.text,
                speaker=self._speaker(said, file) if heir is None or said.any else heir,
                source=said.source or source,
                level=self._texts.setdefault(said.level, said.level),
                code=self._texts.setdefault(said.code, said.code),
                time_ns=said.time_ns,
                block=self.block if source else 0,
            )
            for said in self._gatherer.said_by(file, raw)
        ]

    def _speaker(self, said: Said, file: int) -> Speaker:
        rank = rank_of(said, self._gatherer, file, self._doubtful)
        local = said.local_rank if said.local_rank is not None else self._gatherer.names[file].local_rank
        host, pid = self._joined.aliases.get(said.host, said.host), said.pid
        number = self._joined.find(host, pid, rank)
        if number is not None:
            process = self._joined.processes[number]
            host, rank = host or process.host, process.rank if rank is None else rank
            pid = process.pid if pid is None else pid
            local = process.local_rank if local is None else local
        speaker = Speaker(host, pid, rank, local, said.group_rank, said.device)
        return self._speakers.setdefault(speaker, speaker)

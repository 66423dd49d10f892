"""NCCL RAS reports in files, in standard input and in answers that were just fetched."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from tempfile import SpooledTemporaryFile
from types import SimpleNamespace
from typing import IO, TextIO, cast

from diag.collectors.layout import is_regular
from diag.ended.model import Source
from diag.hang.policy import NCCL_RAS
from diag.hang.text.streams import Gaps as UnreportedGaps
from diag.hang.text.streams import TextBlock, blocks_of

from ..model import MOST_RANKS
from ..text.prefixes import NO_PREFIX, file_prefix, read_line
from ..text.streams import STDIN, pieces_of
from .client import Asked
from .report import Comm, Gaps, Level, Member, Report, Row, json_reports

# -- The text of ``ncclras`` and ``ncclras -v``, anywhere in a log, behind any prefixes --------------------------------
#
# The text names ranks only where few differ from the others: at most a quarter of them and ten, with ``-v`` less than
# half of them. It prints counts only where they differ. By version of NCCL:
#
# * 2.24, 2.25: ``different collective operation counts``, ``The missing rank: 21``, UNKNOWN.
# * 2.26 and newer: ``different AllReduce operation counts``, a line a rank with its GPU, process and node, NOCOMM.
# * 2.27.3 can print communicators of no ranks with random numbers (NVIDIA/nccl#1762), which are skipped.

MARKS = ("Communicators... (", ") MISMATCH", ") INCOMPLETE", "unreachable via the RAS network")


_N = r"(\d{1,19})"
_GPU = r"(?P<gpu>\d{1,4})(?: \(NVML \d{1,4}\))?"
_OF_PROCESS = (
    rf" -- (?:GPU {_GPU} managed by process (?P<pid>\d{{1,10}}) on node (?P<host>\S{{1,255}})"
    r"|\[process information not found\])"
)
_STATUS = r"(NOCOMM|UNKNOWN|INIT|RUNNING|FINALIZE|ABORT)"
_VERSION = re.compile(r"NCCL version (\S{1,40}) compiled with CUDA ")
_ASKED = re.compile(r"NCCL RAS report of \S+")  # what diag writes in front of a report that it keeps
_COLLECTED = re.compile(r"Communicators\.\.\. \(\d+\.\d+s\)")
_ROW = re.compile(rf"{_N}\s+{_N}\s+{_N}\s+\d+(?:-\d+)?\s+{_N}\s+{_N}\s+{_STATUS}\s+([A-Z]+(?:,[A-Z]+)*)")
_NUMBERS = re.compile(r"\d{1,9}(?:\s+\d{1,9}){2,4}")
_COMM = re.compile(r"#(\d{1,9})-\d{1,9} \(([0-9a-f]{16})\) (INCOMPLETE|ERROR|MISMATCH)")
_MISSING_PROCESSES = re.compile(rf"Missing communicator data from {_N} job process(?:es)?")
_DEAD = re.compile(rf"{_N} job process(?:es are| is) considered dead \(unreachable via the RAS network\)")
_PROCESS = re.compile(
    r"Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,255}) managing GPUs? (?P<gpu>\d{1,4})[\d, ()A-Z]*"
)
_MISSING_RANKS = re.compile(rf"Missing communicator data from {_N} ranks?")
_LIST = re.compile(r"The (?:missing|unknown) ranks?: ([\d,]{1,2000})")
_ERRORS = re.compile(rf"(Initialization|Asynchronous) errors? on {_N} ranks?")
_STATUSES = "Communicator ranks have different status"
_COUNTS = re.compile(r"Communicator ranks have different (\w{1,40}) operation counts")
_SOME = re.compile(
    rf"{_N} ranks (?:have (?:status {_STATUS}|launched up to operation {_N}|(not) launched any operations)"
    r"|reported (.{1,60}))"
)
_ONE = re.compile(
    rf"Rank (?P<rank>\d{{1,10}})(?: has (?:status (?P<status>\w+)|launched up to operation (?P<count>\d{{1,19}})"
    rf"|(?P<none>not) launched any operations)| reported (?P<error>[A-Za-z ]{{1,60}}?))?(?:{_OF_PROCESS})?"
)
_TIMEOUTS = re.compile(rf"Encountered {_N} communication timeouts? while gathering communicator data")
_BEGIN = "Job summary"
_HEADINGS = ("CUDA runtime version", "Nodes  Processes", "(total)", "=====", "Group ", "#  in group")


@dataclass
class _Growing:
    """A level while its members are read."""

    value: int | str
    number: int
    evidence: Source
    members: list[Member] = field(default_factory=list)

    def level(self) -> Level:
        return Level(self.value, self.number, tuple(self.members), self.evidence)


@dataclass
class _Section:
    """One communicator while it is read."""

    hash: str
    group: int
    evidence: Source
    counts: dict[str, list[_Growing]] = field(default_factory=dict)
    statuses: list[_Growing] = field(default_factory=list)
    unreachable: _Growing | None = None
    init_errors: list[_Growing] = field(default_factory=list)
    async_errors: list[_Growing] = field(default_factory=list)


class _Text:
    """Reads the lines of one process. A report is complete where the next one begins or the file ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.reports: list[Report] = []
        self._reset()

    def _reset(self) -> None:
        self._first: Source | None = None
        self._version = ""
        self._time_ns: int | None = None
        self._asked_ns: int | None = None  # of the line that diag writes in front; NCCL's text has no time
        self._gpus: int | None = None
        self._collected = self._empty = self._whole = False
        self._rows: dict[int, Row] = {}
        self._sections: dict[str, _Section] = {}
        self._absent: _Growing | None = None
        self._dead: _Growing | None = None
        self._timeouts = 0
        self._now: _Section | None = None
        self._into: list[_Growing] | None = None  # where the next levels belong
        self._named: _Growing | None = None  # whose members the next lines name

    def take(self, number: int, raw: str, text: str, time_ns: int | None) -> bool:
        """Whether the line belongs to a report."""
        text = text.strip()
        here = Source(self._path, number, raw)
        if match := _VERSION.match(text):
            asked_ns = self._asked_ns
            self.close()
            self._version, self._time_ns = match[1], asked_ns
        elif _ASKED.match(text):
            self.close()
            self._asked_ns = time_ns
        elif text == _BEGIN:
            if self._collected:
                self.close()
        elif _COLLECTED.match(text):
            if self._collected or self._sections:
                self.close()
            self._collected, self._first = True, here
        elif text in ("Errors", "Warnings"):
            self._whole |= text == "Warnings" and self._collected
            self._now = self._into = self._named = None
        elif not self._content(here, text):
            return text.startswith(_HEADINGS)
        if self._time_ns is None:
            self._time_ns = time_ns
        return True

    def _content(self, here: Source, text: str) -> bool:
        if match := _ROW.fullmatch(text):
            group, comms, _, size, ranks, status, errors = match.groups()
            if len(self._rows) < NCCL_RAS.most_reports:
                self._rows[int(group)] = Row(int(comms), int(size), int(ranks), status, errors, here)
        elif self._now is None and not self._collected and _NUMBERS.fullmatch(text):
            self._gpus = int(text.split()[-1])  # the summary's last row is that of the whole job
            return True
        elif text.startswith("No communicator data collected"):
            self._empty = True
        elif match := _COMM.fullmatch(text):
            self._begin_comm(here, match)
        elif match := _MISSING_PROCESSES.fullmatch(text):
            self._absent = self._named = _Growing("without an answer", int(match[1]), here)
        elif match := _DEAD.fullmatch(text):
            self._dead = self._named = _Growing("considered dead", int(match[1]), here)
        elif match := _TIMEOUTS.fullmatch(text):
            self._timeouts = int(match[1])
        elif match := _PROCESS.fullmatch(text):
            self._name(Member(None, match["host"], int(match["pid"]), int(match["gpu"])))
        elif self._now is not None:
            return self._of_comm(self._now, here, text)
        else:
            return text in ("INCOMPLETE", "DEAD", "TIMEOUT")
        self._first = self._first or here
        return True

    def _begin_comm(self, here: Source, match: re.Match[str]) -> None:
        number, name, _ = match.groups()
        if name not in self._sections and len(self._sections) < NCCL_RAS.most_reports:
            self._sections[name] = _Section(name, int(number), here)
        self._now, self._into, self._named = self._sections.get(name), None, None

    def _of_comm(self, now: _Section, here: Source, text: str) -> bool:
        if match := _MISSING_RANKS.fullmatch(text):
            now.unreachable = self._named = _Growing("", int(match[1]), here)
        elif match := _LIST.fullmatch(text):
            for rank in match[1].split(","):
                self._name(Member(int(rank[:10]) if rank else None))
        elif match := _ERRORS.fullmatch(text):
            self._into = now.init_errors if match[1] == "Initialization" else now.async_errors
        elif text == _STATUSES:
            self._into = now.statuses
        elif match := _COUNTS.fullmatch(text):
            self._into = now.counts.setdefault("" if match[1] == "collective" else match[1], [])
        elif match := _SOME.fullmatch(text):
            number, status, count, _, error = match.groups()
            self._level(_Growing(status or error or int(count or 0), int(number), here))
        elif match := _ONE.fullmatch(text):
            parsed = match.groupdict()
            if parsed["status"] or parsed["count"] or parsed["none"] or parsed["error"]:
                self._level(_Growing(parsed["status"] or parsed["error"] or int(parsed["count"] or 0), 1, here))
            pid, gpu = parsed["pid"], parsed["gpu"]
            self._name(
                Member(int(parsed["rank"]), parsed["host"] or "", int(pid) if pid else None, int(gpu) if gpu else None)
            )
        else:
            return False
        return True

    def _level(self, level: _Growing) -> None:
        if self._into is not None:
            self._into.append(level)
            self._named = level

    def _name(self, member: Member) -> None:
        """Adds a rank or process to those that were last counted."""
        if self._named is not None and len(self._named.members) < self._named.number:
            self._named.members.append(member)

    def close(self) -> None:
        """Finishes the current report."""
        if self._first is not None and (self._collected or self._sections or self._dead or self._absent):
            absent = self._absent.level() if self._absent is not None else None
            dead = self._dead.level() if self._dead is not None else None
            comms = {
                name: comm
                for name, section in self._sections.items()
                if (comm := _comm_of(section, self._rows, absent, dead)) is not None
            }
            self.reports.append(
                Report(
                    evidence=self._first,
                    version=self._version,
                    time_ns=self._time_ns,
                    gpus=self._gpus,
                    whole=self._whole,
                    empty=self._empty,
                    rows=tuple(row for row in self._rows.values() if row.size),
                    comms=comms,
                    absent=absent,
                    dead=dead,
                    timeouts=self._timeouts,
                )
            )
        self._reset()


def _comm_of(section: _Section, rows: Mapping[int, Row], absent: Level | None, dead: Level | None) -> Comm | None:
    """The communicator; None where its numbers are impossible (nccl#1762)."""
    row = rows.get(section.group)
    if rows and (row is None or not 0 < row.size <= MOST_RANKS):
        return None
    most = row.size if row is not None else MOST_RANKS
    levels = [level for of_op in section.counts.values() for level in of_op]
    levels += [
        *section.statuses,
        *section.init_errors,
        *section.async_errors,
        *([section.unreachable] if section.unreachable else []),
    ]
    members = {member.rank: member for level in levels for member in level.members if member.rank is not None}
    if any(level.number > most for level in levels) or any(rank >= most for rank in members):
        return None
    unreachable = section.unreachable.level() if section.unreachable is not None else None
    peers = [peer for level in (dead, absent) if level is not None for peer in level.members]
    if unreachable is not None and unreachable.number == len(unreachable.members) == len(peers) == 1:
        member = replace(peers[0], rank=unreachable.members[0].rank)  # 2.24 and 2.25 print the number alone
        unreachable = replace(unreachable, members=(member,))
    given_up = {(peer.host, peer.pid) for peer in dead.members} if dead is not None else set()
    gone = unreachable.members if unreachable is not None else ()
    return Comm(
        hash=section.hash,
        size=row.size if row is not None else None,
        evidence=section.evidence,
        counts={op: tuple(level.level() for level in of_op) for op, of_op in section.counts.items() if of_op},
        statuses=tuple(level.level() for level in section.statuses),
        unreachable=unreachable,
        dead=frozenset(m.rank for m in gone if m.rank is not None and (m.host, m.pid) in given_up),
        init_errors=tuple(level.level() for level in section.init_errors),
        async_errors=tuple(level.level() for level in section.async_errors),
        members={**members, **{m.rank: m for m in gone if m.rank is not None}},
    )


class _Readers:
    """One reader for each process: several pods may write their reports to one log."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._prefix = NO_PREFIX
        self._readers: dict[tuple[object, ...], _Text] = {}
        self.lines = 0

    def begin(self, head: bytes) -> None:
        self._prefix = file_prefix(head)

    def take(self, number: int, raw: bytes) -> bool:
        taken = False
        for parsed in read_line(raw[: NCCL_RAS.most_line_bytes], of_file=self._prefix):
            key = parsed.speaker()
            reader = self._readers.get(key)
            if reader is None:
                if len(self._readers) >= NCCL_RAS.most_speakers:
                    continue
                reader = self._readers[key] = _Text(self._path)
            taken |= reader.take(
                number, raw[: NCCL_RAS.most_line_bytes].decode(errors="replace"), parsed.text, parsed.time_ns
            )
        self.lines += taken
        return taken

    def reports(self) -> list[Report]:
        for reader in self._readers.values():
            reader.close()
        reports = [report for reader in self._readers.values() for report in reader.reports]
        return sorted(reports, key=lambda report: report.evidence.line)


def text_reports(path: str, pieces: Iterable[bytes], gaps: Gaps) -> list[Report]:
    """The reports in a text. Only lines near a mark are parsed: a report may lie in gigabytes of other lines."""
    readers = _Readers(path)
    before: deque[tuple[int, bytes]] = deque(maxlen=NCCL_RAS.look_back_lines)
    silence = NCCL_RAS.silence_lines  # lines since the last one of a report
    for block in blocks_of(pieces):
        if block.first == 1:
            readers.begin(block.data[: 64 << 10])
        at = 0
        while at < len(block) and readers.lines < NCCL_RAS.most_report_lines:
            if silence >= NCCL_RAS.silence_lines:
                mark = _next_mark(block, at)
                for line in range(max(at, mark - NCCL_RAS.look_back_lines), mark):
                    before.append((block.first + line, block.line(line)))
                at = mark
                if at == len(block):
                    break
                for number, raw in before:
                    readers.take(number, raw)
                before.clear()
            silence = 0 if readers.take(block.first + at, block.line(at)) else silence + 1
            at += 1
    if readers.lines >= NCCL_RAS.most_report_lines:
        gaps[path, f"only the first {NCCL_RAS.most_report_lines:,} lines of NCCL RAS reports are read"] = None
    reports = readers.reports()
    for report in reports:
        if not report.whole and not report.comms:
            gaps[path, f"line {report.evidence.line}: an NCCL RAS report is cut off"] = None
    return reports


def _next_mark(block: TextBlock, at: int) -> int:
    """The line of the next mark, or the number of lines."""
    places = [block.data.find(mark.encode(), int(block.starts[at])) for mark in MARKS]
    places = [place for place in places if place >= 0]
    return int(block.starts.searchsorted(min(places), side="right")) - 1 if places else len(block)


ANCHORS = (*MARKS, '"communicators_count"')  # a file with one of these is read a second time
_PIPE = "may hold an NCCL RAS report, and a pipe cannot be read twice: give it as - (standard input)"

# Lines of the protocol, as `nc` shows them, may precede it.
_JSON_HEAD = re.compile(
    rb'(?:\xef\xbb\xbf)?\s{0,99}(?:(?:SERVER PROTOCOL \d{1,9}|OK)\s{1,99}){0,8}\{[^{}]{0,4000}"communicators'
)


@dataclass(frozen=True)
class Reports:
    """Reports, in chronological order where known."""

    reports: tuple[Report, ...] = ()
    gaps: tuple[tuple[str, str], ...] = ()
    json_paths: frozenset[str] = frozenset()  # files that hold nothing but reports in JSON


def read_reports(
    paths: Iterable[str], asked: Sequence[Asked] = (), from_stdin: IO[bytes] | None = None, named: Collection[str] = ()
) -> Reports:
    """The reports in these files (which hold one of ``ANCHORS``), in ``asked`` and in standard input. ``named``: the
    paths that the user named."""
    gaps: Gaps = {}
    reports: list[Report] = []
    json_paths = set()
    members = 0
    for answer in asked:
        reports += _reports_of(answer.name, [answer.data], gaps)
    for path in dict.fromkeys(paths):
        before = len(reports)
        if members > NCCL_RAS.most_members:
            gaps[path, f"NCCL RAS reports beyond the first {NCCL_RAS.most_members:,} ranks are not read"] = None
            continue
        if path == STDIN:
            if from_stdin is not None:
                from_stdin.seek(0)
                with _standard_input(from_stdin):
                    reports += _reports_of(path, pieces_of(path, UnreportedGaps()), gaps)
        elif is_regular(path):
            reports += _reports_of(path, pieces_of(path, UnreportedGaps(), explicit=path in named), gaps)
        else:  # a pipe: what it held has been read, and a named one would wait for ever
            gaps[path, _PIPE] = None
        members += sum(len(comm.members) for report in reports[before:] for comm in report.comms.values())
        if len(reports) > before and all(report.json for report in reports[before:]):
            json_paths.add(path)
    if len(reports) > NCCL_RAS.most_reports:
        gaps["", f"only the last {NCCL_RAS.most_reports:,} of {len(reports):,} NCCL RAS reports are used"] = None
        reports = reports[-NCCL_RAS.most_reports :]
    if all(report.time_ns is not None for report in reports):
        reports.sort(key=lambda report: report.time_ns or 0)
    return Reports(tuple(reports), tuple(gaps), frozenset(json_paths))


@contextmanager
def overheard(wanted: bool) -> Iterator[IO[bytes] | None]:
    """A copy of standard input while it is read, since a pipe cannot be read twice. None unless wanted."""
    if not wanted:
        yield None
        return
    with SpooledTemporaryFile(8 << 20) as copy:
        source = sys.stdin.buffer

        def read(size: int = -1) -> bytes:
            data = source.read(size)
            if copy.tell() < NCCL_RAS.most_report_bytes:
                copy.write(data)
            return data

        with _standard_input(SimpleNamespace(read=read)):
            yield cast(IO[bytes], copy)


@contextmanager
def _standard_input(buffer: object) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = cast(TextIO, SimpleNamespace(buffer=buffer))
    try:
        yield
    finally:
        sys.stdin = before


def _reports_of(path: str, pieces: Iterable[bytes], gaps: Gaps) -> list[Report]:
    """The reports of one file, JSON or text by its beginning."""
    pieces = iter(pieces)
    head = next(pieces, b"")
    if _JSON_HEAD.match(head[: 16 << 10]):
        return json_reports(path, _joined(head, pieces, path, gaps), gaps)
    return text_reports(path, (piece for some in ([head], pieces) for piece in some), gaps)


def _joined(head: bytes, pieces: Iterator[bytes], path: str, gaps: Gaps) -> bytes:
    data = BytesIO()
    data.write(head)
    for piece in pieces:
        if data.tell() > NCCL_RAS.most_report_bytes:
            most_mib = NCCL_RAS.most_report_bytes >> 20
            gaps[path, f"NCCL RAS reports in JSON of more than {most_mib} MiB are not read: split the file"] = None
            return b""
        data.write(piece)
    return data.getvalue()

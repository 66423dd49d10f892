"""Reads files block by block; Python looks only at lines with anchors."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from diag.hang.policy import HANG_READING
from diag.hang.text.keep import OPENERS, KeptLines, Open, OpenBlocks, Part, RawLine, RawLines, opened
from diag.hang.text.messages import Facts, Hint, ProcessKey
from diag.hang.text.prefixes import FilePrefix, NamedRank, ParsedLine, file_prefix, named, read_line
from diag.hang.text.streams import Gaps, TextBlock, blocks_of, search_of
from diag.hang.text.work import MAY_BE_PROGRESS, MAY_BE_WORK
from diag.rundir.inspector_head import begins_inspector
from diag.store.segments import MAGIC as SEGMENT_MAGIC

from ..wording import EMPTY
from .messages import WORLD_ANCHORS, event_of
from .streams import STDIN, pieces_of, unwrapped

# -- What is kept of a block, and whether a file is a log --------------------------------------------------------------


def raw_of(block: TextBlock, line: int, at: int) -> bytes:
    """A line as read. A long one is cut to its beginning and the text around the hit; a progress bar that was redrawn,
    to its first piece and the one with the hit."""
    start, end = int(block.starts[line]), int(block.starts[line + 1])
    data = block.data
    if end - start <= HANG_READING.long_line_bytes and data.find(b"\r", start, end - 2) < 0:
        return data[start:end].rstrip(b"\r\n")
    begin = data.rfind(b"\r", start, at) + 1 or start
    stop = data.find(b"\r", at, end)
    stop = end if stop < 0 else stop
    if stop - begin > HANG_READING.long_line_bytes:
        begin, stop = (
            max(begin, at - HANG_READING.long_line_bytes // 4),
            min(stop, at + HANG_READING.long_line_bytes // 2),
        )
    piece = data[begin:stop].rstrip(b"\r\n")
    if begin == start:
        return piece
    head = data[start : min(begin, start + 200)].partition(b"\r")[0]
    return head + (b"\r" if data[begin - 1 : begin] == b"\r" else b" [...] ") + piece


def last_matches(pattern: re.Pattern[bytes], block: TextBlock, file: int, before: RawLines, most: int) -> RawLines:
    """The last lines with a pattern, in order. ``before``: those of the blocks in front of this one."""
    found: list[RawLine] = []
    reach = max(0, len(block.data) - HANG_READING.progress_reach_bytes)
    for line in range(len(block) - 1, -1, -1):
        start, end = int(block.starts[line]), int(block.starts[line + 1])
        if len(found) == most or end <= reach:
            break
        hits = [match.start() for match in pattern.finditer(block.data, max(start, reach), end)]
        if hits:
            found.append((file, block.first + line, raw_of(block, line, hits[-1])))
    return (*before, *reversed(found))[-most:]


LAST_LINES = "the last lines"

# Words of lines that say that something went wrong, or that somebody waits.
_TELLING = re.compile(
    rb"(?i)\b(?:\w*error|\w*exception|fail(?:ed|s|ure)?|fatal|abort(?:ed|ing)?|killed|timed? ?out|timeout|stuck|"
    rb"hang(?:s|ing)?|wait(?:s|ing|ed)?|refused|unreachable|unavailable|lost|denied|cannot|unable|crash(?:ed)?|"
    rb"exit(?:ed|s)? with|panic)\b"
)


def is_telling(text: str) -> bool:
    return _TELLING.search(text.encode("utf-8", "replace")) is not None


def last_lines(block: TextBlock, file: int, before: RawLines) -> RawLines:
    """The last lines with such words and the last line that is not blank, in order. ``before``: those of the blocks in
    front of this one."""
    found: list[RawLine] = []
    for line in range(len(block) - 1, max(-1, len(block) - 1 - HANG_READING.telling_reach_lines), -1):
        raw = block.line(line)[: HANG_READING.long_line_bytes].rstrip(b"\r")
        if raw.strip() and (not found or _TELLING.search(raw)):
            found.append((file, block.first + line, raw))
    found.reverse()
    telling = [line for line in (*before, *found[:-1]) if _TELLING.search(line[2])] if found else []
    end = block.first + len(block) - 1
    near = [line for line in telling if end - line[1] < HANG_READING.telling_reach_lines]
    return (*near[-HANG_READING.telling_lines :], *found[-1:]) if found else before


_TEXT_CONTROLS = bytes(range(7, 14)) + b"\x1b\x00"
_NOT_TEXT = bytes(set(range(32)) - set(_TEXT_CONTROLS))
_TRACE = re.compile(rb'\A\s*[{\[].{0,4000}"(?:traceEvents|schemaVersion|schema_version|pg_config|entries)"', re.DOTALL)


MEASURED = "a trace, records of NCCL Inspector or a packer's segment"  # what it is read for elsewhere: no gap


def no_log(data: bytes) -> str:
    """Why a file is not read, or "". NULs alone are no reason: a crash leaves them in logs."""
    head = data[: HANG_READING.head_bytes]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16, which is not read: convert it to UTF-8"
    if _TRACE.match(head) or begins_inspector(head) or head.startswith(SEGMENT_MAGIC):
        return MEASURED
    text = head.replace(b"\0", b"")
    strange = len(text) - len(text.translate(None, _NOT_TEXT))
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x7fELF")) or strange > len(text) // 50:
        return "is not text and was skipped"
    return ""


# -- Substrings that the reader needs, in addition to those that it is asked for ---------------------------------------

CALL = "opCount "
FACTS = (
    "Init START", "Init COMPLETE", "Destroy COMPLETE", "Abort COMPLETE", "cudaDev ", "NCCL version", "NCCL_",
    *WORLD_ANCHORS,
)  # fmt: skip
DEDUPLICATED = "x across cluster]"
KEPT = (
    "Bootstrap", "NET/IB :", "NET/IB:", "NET/Socket :", "NET/Socket:", "NET/Plugin", "NET/OFI", "Using network ",
    "NCCL WARN", "] WARN ", "[PG ", "PG status", "Watchdog caught", "watchdog", "WorkNCCL(", "ProcessGroupNCCL",
    "ProcessGroupGloo", "ProcessGroupWrapper", "CollectiveFingerPrint", "monitoredBarrier", "TCPStore", "socket.cpp",
    "recvValue failed", "flight recorder", "torch.distributed.elastic", "torch/distributed/elastic", "Rendezvous",
    "exitcode", "closing signal", "death signal", "Caught signal", "SIGTERM", "SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT",
    "is setting up NCCL communicator and", "Got completion", "MASTER_ADDR", "Initializing distributed", "srun: ",
    "slurmstepd", "mpirun", "noticed that process rank", "NVRM:", "Out of memory", "oom-kill", "Killed", "OOMKilled",
    "Test NCCL failure", "Exception in thread", "Exception ignored in",
    "frame #",
)  # fmt: skip
# Long messages that terminals wrap, by an anchor: literals near the end of each.
ENDS = {
    "WorkNCCL(": (b" milliseconds", b"blocking wait"),
    "Got completion": (b"vendor",),
    "Watchdog caught": (b" milliseconds",),
    "is setting up NCCL communicator and": (b"got error",),
    "Last enqueued": (b"ast completed",),
    "last enqueued": (b"ast completed",),
    "NVLink SHARP (NVLS) Multicast memory": (b"CUDA error",),
    "message truncated": (b"instead of",),
    "noticed that process rank": (b" signal",),
    "MPI_ABORT was invoked on rank": (b"errorcode", b"Errorcode"),
}
STRUCTURAL = (CALL, *FACTS, DEDUPLICATED, *KEPT, *OPENERS)

_COLOURS = re.compile(rb"\x1b\[[\d;]*m")
# A full date with a time of day: gives the year for time stamps without one ("E1121 22:00:39").
_DATED = re.compile(rb"(?<!\d)(20\d\d)[-/](?:0[1-9]|1[0-2])[-/]\d\d[ T_]\d\d:\d\d:\d\d")

# The driver that prints a kernel message; lines below its name that repeat it belong to the same message.
_STAMP = rb"\[ *\d{1,20}\.\d{6}\] "
_DRIVER = re.compile(rb"(?:(?:<\d>)?" + _STAMP + rb"|[^\n]{8,200}? kernel: ?(?:" + _STAMP + rb")?)(\w{1,40}): ")

# Host and pid, or the rank, or the pid that a line begins with: quick to find, only for the shares of `KeptLines`.
_QUICK = re.compile(
    rb"\[rank(\d+)\]|\[\d+,(\d+)\]<"
    rb"|(?<![^\s:])([^\s:]{1,255}+:\d{1,10}):\d{1,10} [\[N]|pid=(\d+)|^ {0,3}(\d+): |^\[[a-z]+(\d+)\]:"
)


class Gatherer:
    def __init__(self, anchors: Sequence[str], gaps: Gaps) -> None:
        self.files: list[str] = []
        self.names: list[NamedRank] = []
        self.years: list[int] = []
        self._printed: dict[int, int] = {}  # by file the latest year that its beginning prints
        self._prefixes: list[FilePrefix] = []
        self.keep = KeptLines()
        self.facts = Facts()
        self.calls: dict[tuple[int, bytes, bytes], deque[tuple[int, bytes]]] = {}  # (file, host:pid:tid, comm)
        self._gaps = gaps
        self._call_share, self._call_check = (
            HANG_READING.calls_of_each,
            HANG_READING.most_calls // HANG_READING.calls_of_each,
        )
        asked = set(anchors)
        self._search = search_of((*STRUCTURAL, *anchors), bulk="" if CALL in asked else CALL)
        words = self._search.wanted
        self._is_call = [word == CALL for word in words]
        self._is_fact = [word in FACTS for word in words]
        self._keeps = [word in asked or word not in (CALL, *OPENERS, DEDUPLICATED) for word in words]
        self._continues = [word in ENDS for word in words]
        self._opener = [word if word in OPENERS else "" for word in words]
        self._open = OpenBlocks()
        self._file = 0
        self._year = 1970

    def read(self, path: str, explicit: bool = False) -> None:
        """Reads one file; does nothing where it is no text. ``explicit``: the user named it."""
        self._file, self._year = len(self.files), _year_of(path)
        known, cut = False, -1
        bar: RawLines = ()
        work: RawLines = ()
        last: RawLines = ()
        for block in blocks_of(unwrapped(pieces_of(path, self._gaps, explicit))):
            if not known:
                if reason := no_log(block.data):
                    if reason != MEASURED:
                        self._gaps.say(path, reason)
                    return
                known = True
                self.files.append(path)
                self.names.append(named(path))
                if (
                    printed := _year_printed(
                        block.data[: HANG_READING.head_bytes] + block.data[-HANG_READING.head_bytes :], self._year
                    )
                ) is not None:
                    self._printed[self._file] = self._year = printed
                self.years.append(self._year)
                self._prefixes.append(file_prefix(block.data[: HANG_READING.head_bytes]))
            if block.cut and block.first != cut:
                cut = block.first
                self._gaps.say(path, f"line {cut} is longer than {len(block.data) >> 20} MiB and was read in pieces")
            self._take(block)
            bar = last_matches(MAY_BE_PROGRESS, block, self._file, bar, 1)
            work = last_matches(MAY_BE_WORK, block, self._file, work, HANG_READING.work_lines)
            last = last_lines(block, self._file, last)
        if not known:
            if not self._gaps.about(path):
                self._gaps.say(path, EMPTY)
            return
        for open_block in self._open:
            self._close(open_block)
        self._open = OpenBlocks()
        for raw_line in (*bar, *work):
            self.keep.add("the last progress bar", self._file, (raw_line,))
        for raw_line in last:
            self.keep.add(LAST_LINES, self._file, (raw_line,))

    def settle_years(self) -> None:
        """Gives files without a printed year the year of those that print one."""
        if self._printed:
            latest = max(self._printed.values())
            self.years = [self._printed.get(file, min(latest, year)) for file, year in enumerate(self.years)]

    def process_key(self, parsed: ParsedLine) -> ProcessKey:
        """The process that a line names, with a rank from the line or the file name."""
        hint: Hint | None = None
        if parsed.rank is not None:
            hint = (parsed.rank_from, parsed.rank)
        elif (rank := self.names[self._file].rank) is not None:
            hint = ("file", rank)
        return parsed.host, parsed.pid, hint

    def parsed_by(self, file: int, raw: bytes) -> list[ParsedLine]:
        return read_line(raw, self.years[file], self._prefixes[file])

    def _take(self, block: TextBlock) -> None:
        calls_only, hits = self._search.hits(block)
        self._call_lines(block, calls_only)
        at_line = joined = 0
        for line, at, words in hits:
            if line < joined:
                continue
            while self._open and at_line < line:
                self._feed(block, at_line)
                at_line += 1
            at_line = line + 1
            raw = raw_of(block, line, at)
            if (
                len(raw) > HANG_READING.long_line_bytes // 2
                and int(block.starts[line + 1] - block.starts[line]) > HANG_READING.long_line_bytes
            ):
                self._gaps.say(
                    self.files[self._file],
                    f"only a part of lines longer than {HANG_READING.long_line_bytes >> 10} KiB is kept",
                )
            calls = facts = keeps = False
            opener = ""
            for word in words:
                calls |= self._is_call[word]
                facts |= self._is_fact[word]
                keeps |= self._keeps[word]
                opener = self._opener[word] or opener
            if calls:
                self._call_lines(block, [line])
            if any(self._continues[word] for word in words):
                raw = self._whole(raw, block, line)
            raw, joined = _with_continuation(raw, block, line)
            raw_line = (self._file, block.first + line, raw)
            inside = bool(self._open) and self._feed(block, line)
            if opener and not inside:
                inside = self._opens(opener, raw_line)
            if DEDUPLICATED.encode() in raw:
                self.facts.deduplicated = True
            if facts:
                self._fact(block, line, raw)
            if keeps:
                match = _QUICK.search(raw, 0, 300)
                process = match[match.lastindex or 0] if match else self._file
                if match and match.lastindex == 1:
                    self.facts.by_rank.add(("[rankN]", int(match[1])))
                for word in words:
                    if self._keeps[word]:
                        self.keep.add(self._search.wanted[word], process, (raw_line,))
        while self._open and at_line < len(block):
            self._feed(block, at_line)
            at_line += 1

    def _whole(self, raw: bytes, block: TextBlock, line: int) -> bytes:
        """A message with its wrapped end on the next line, which then has no prefix of its own."""
        wanted = [ends for word, ends in ENDS.items() if word.encode() in raw]
        if line + 1 >= len(block) or all(any(e in raw for e in ends) for ends in wanted):
            return raw
        after = self.parsed_by(self._file, block.line(line + 1)[: HANG_READING.long_line_bytes])[0]
        if after.any or not after.text.strip():
            return raw
        plain, rest = _COLOURS.sub(b"", raw), after.text.encode()
        # Help texts are wrapped between words.
        words = plain.rstrip() + b" " + rest.lstrip()
        narrow = len(raw) < HANG_READING.narrowest_terminal
        whole = all(any(e in words for e in ends) for ends in wanted)
        if whole and (narrow or not any(e in plain + rest for e in wanted[0])):
            return words
        return raw if narrow else plain + rest

    def _call_lines(self, block: TextBlock, lines: Iterable[int]) -> None:
        """Adds COLL lines to the last calls of their process and communicator. Nothing is parsed: they may be half of a
        log's lines, and only the last few are used."""
        chosen = np.asarray(lines, np.int64)
        begins, ends = block.starts[chosen].tolist(), block.starts[chosen + 1].tolist()
        data, calls, file = block.data, self.calls, self._file
        for line, begin, end in zip((chosen + block.first).tolist(), begins, ends, strict=True):
            raw = data[begin : min(end, begin + HANG_READING.long_line_bytes)]
            after = raw.find(b" NCCL INFO ")
            comm = raw.rfind(b" comm ") + 6
            if after < 0 or comm < after:
                continue
            if raw[after - 1] == 93:  # "]" of the device
                after = raw.rfind(b" ", 0, after)
            key = (file, raw[raw.rfind(b" ", 0, after) + 1 : after], raw[comm : raw.find(b" ", comm)])
            recent = calls.get(key)
            if recent is None:
                if len(calls) >= self._call_check:
                    self._fewer_calls()
                recent = calls[key] = deque(maxlen=self._call_share)
            recent.append((line, raw))

    def _fewer_calls(self) -> None:
        self._call_check *= 2
        self._call_share = max(1, self._call_share // 2)
        for key, recent in self.calls.items():
            self.calls[key] = deque(recent, maxlen=self._call_share)

    def _fact(self, block: TextBlock, line: int, raw: bytes) -> None:
        for parsed in self.parsed_by(self._file, raw):
            if (
                parsed.source == "nccl"
                and "comm " in parsed.text
                and line + 1 < len(block)
                and not event_of(parsed.text)
            ):
                parsed = self._unwrapped(parsed, block, line)
            self.facts.add_line(parsed, self.process_key(parsed), self._file, block.first + line)
            if parsed.rank is not None and parsed.pid is None:
                self.facts.by_rank.add((parsed.rank_from, parsed.rank))
        if line and not any(parsed.any for parsed in self.parsed_by(self._file, raw)):
            # The end of a message that a terminal wrapped: its beginning has the prefix.
            before = block.line(line - 1)
            if before.find(b" comm ") >= 0 and before.find(b"COMPLETE") < 0:
                joined = before.rstrip(b"\r\n") + raw
                for parsed in self.parsed_by(self._file, joined):
                    self.facts.add_line(parsed, self.process_key(parsed), self._file, block.first + line - 1)

    def _unwrapped(self, parsed: ParsedLine, block: TextBlock, line: int) -> ParsedLine:
        after = self.parsed_by(self._file, block.line(line + 1))[0]
        if not after.any:
            parsed.text += after.text
        return parsed

    def _opens(self, word: str, raw_line: RawLine) -> bool:
        parsed = self.parsed_by(self._file, raw_line[2])[0]
        new = opened(parsed, word)
        if new is None:
            return False
        new.lines.append(raw_line)
        if raw_line[2].endswith(text := parsed.text.encode()):
            new.prefix = raw_line[2].removesuffix(text)
        self._open.add(new)
        if parsed.rank is not None:
            self.facts.by_rank.add((parsed.rank_from, parsed.rank))
        return True

    def _feed(self, block: TextBlock, line: int) -> bool:
        """Whether a line belongs to an open block."""
        raw = block.line(line)[: HANG_READING.long_line_bytes].rstrip(b"\r\n")
        if (framed := self._open.with_frame(raw)) is not None:
            framed.lines.append((self._file, block.first + line, raw))
            return True
        parsed = self.parsed_by(self._file, raw)[0]
        if (open_block := self._open.taking(parsed, block.first + line)) is not None:
            part = open_block.feed(parsed)
            if part is not Part.NO:
                open_block.lines.append((self._file, block.first + line, raw))
            if part is not Part.MORE:
                self._open.remove(open_block)
                self._close(open_block)
            if part is not Part.NO:
                return True
        for followed in self._open.count_foreign():
            self._open.remove(followed)
            self._close(followed)
        return False

    def _close(self, open_block: Open) -> None:
        while len(open_block.lines) > 1 and not open_block.lines[-1][2].strip():
            open_block.lines.pop()
        process = open_block.speaker if any(part not in (None, "") for part in open_block.speaker) else self._file
        self.keep.add(f"block {open_block.kind}", process, tuple(open_block.lines), block=True)


def _with_continuation(raw: bytes, block: TextBlock, line: int) -> tuple[bytes, int]:
    """A kernel message with its further lines, and the number of the line after it. dmesg and journalctl indent these
    below the name of the driver, which the driver repeats."""
    after = line + 1
    kernel = raw.startswith((b"[", b"<")) or b" kernel:" in raw[:300]
    match = _DRIVER.match(raw, 0, 300) if kernel else None
    if match is None:
        return raw, after
    start = b" " * match.start(1) + match[1] + b": "
    while after < min(len(block), line + HANG_READING.most_continued_lines) and (more := block.line(after)).startswith(
        start
    ):
        raw = raw.rstrip(b"\r\n") + b" " + more[len(start) : HANG_READING.long_line_bytes].rstrip(b"\r\n")
        after += 1
    return raw, after


def _year_printed(data: bytes, latest: int) -> int | None:
    """The latest printed year that is not after the file was written: a copied log keeps its own."""
    years = {int(match[1]) for match in _DATED.finditer(data)}
    return max((year for year in years if year <= latest), default=None)


def _year_of(path: str) -> int:
    """The year in which the file was last written, for times without one."""
    try:
        written = time.time() if path == STDIN else Path(path).stat().st_mtime
    except OSError:
        return 1970
    return time.gmtime(max(written, 0)).tm_year

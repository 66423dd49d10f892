"""Opens a step in Perfetto, of one rank or of several on one clock: cuts it out of the traces into a file, and serves
that once to the browser."""

from __future__ import annotations

import os
import secrets
import shutil
import socketserver
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode

import msgspec
import numpy as np
import numpy.typing as npt
from isal import igzip
from msgspec import Struct, field
from msgspec.structs import replace

from diag import processes
from diag.account.cached_steps import windows_of
from diag.account.trace_ranges import host_windows
from diag.api import Result
from diag.collectors.layout import RunLayout
from diag.collectors.reading import open_regular
from diag.errors import DiagError, ExitCode, readable
from diag.model import Gap
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import read_manifest
from diag.rundir.recorded_step import recorded_step
from diag.rundir.run import must_exist, open_paths, with_settings
from diag.tables.policy import TIMELINE
from diag.tables.zoom import RankLanes, clocked_traces
from diag.timeline import timeline_of
from diag.traces import kineto_json
from diag.traces.event_table import exact_ns
from diag.traces.kineto_json import Cutter
from diag.traces.reading import Reading, read_traces
from diag.traces.text_stream import blocks, damaged, is_remote, members, opened
from diag.traces.trace import Trace
from diag.words.formatting import number_ranges, rank_ranges, visible

# -- one rank ----------------------------------------------------------------------------------------------------------
#
# The traces of one rank, without reading those of other ranks unless necessary.

_RECORD = "`diag run` records a few steps with torch.profiler unless it is told --no-trace"


def traces_of(path: Path | str, rank: int, reading: Reading | None = None) -> tuple[Trace, ...]:
    """The traces of a rank in a run directory, or under a path, in order of time. DiagError if there are none."""
    must_exist([str(path)])
    if is_remote(str(path)) or not RunLayout(Path(path)).is_run():
        ranks = open_paths([path], reading).ranks
        traced = [number for number, of_rank in ranks.items() if of_rank.traces]
        if rank not in traced:
            raise _no_trace(path, rank, traced)
        return ranks[rank].traces
    layout = RunLayout(Path(path))
    read_manifest(layout)  # refuses a newer schema
    with readable(layout.ranks_folder):
        job = job_ranks(layout)
        files = {number: rank_layout.traces() for number, rank_layout in job.files.items()}
    if rank in job.left_out:
        raise _of_another_job(layout, rank, job.left_out[rank])
    if not files.get(rank):
        raise _no_trace(path, rank, [number for number, rank_layout in files.items() if rank_layout])
    reading = with_settings(reading or Reading(), [str(path)])
    reading = replace(reading, cache=reading.cache.of_run(layout))
    traces_and_gaps = list(read_traces([str(file) for file in files[rank]], reading))
    traces = tuple(item for item in traces_and_gaps if not isinstance(item, Gap))
    if not traces:
        reason, broken = next((item.reason, item.path) for item in traces_and_gaps if isinstance(item, Gap))
        raise DiagError(reason, path=broken, hint=_RECORD)
    return traces


def _of_another_job(layout: RunLayout, rank: int, reason: str) -> DiagError:
    folder = layout.rank(rank).folder
    return DiagError(f"is not of this job: {reason}", path=folder, hint="move it to the run that it is of")


def _no_trace(path: Path | str, rank: int, traced: Sequence[int]) -> DiagError:
    hint = f"there are traces of {rank_ranges(sorted(traced))}" if traced else _RECORD
    return DiagError(f"there is no trace of rank {rank}", path=path, hint=hint)


# -- trimming ----------------------------------------------------------------------------------------------------------
#
# Reduces a trace to the events of a window, written while the trace is read.
#
# The text of the kept events is not changed. Only one chunk of the file is in memory at a time, for any size.

METADATA = "M"  # names of processes and threads
_EVENTS = "traceEvents"
_NEVER = -(1 << 62)
_Texts = list[msgspec.Raw]


class Trimming(Struct):
    """Cuts the window ``[begin_ns, end_ns)`` out of the trace ``name``, on the file's own clock (without its base
    time). ``events``: number of kept events, without metadata; it is complete when `text` is exhausted."""

    name: str
    begin_ns: int
    end_ns: int
    events: int = 0
    _told: set[str] = field(default_factory=set)
    _empty: bool = True

    def text(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The trace as pieces of valid JSON: metadata, and all events that overlap the window. DiagError for an
        incomplete trace; the pieces before it are then useless."""
        cutter = Cutter(blocks, self.name)
        chunk = cutter.next_chunk()
        if not chunk and not cutter.documents()[1]:  # the key may contain escapes
            yield from self._whole(kineto_json.fields(cutter.header, self.name))
            return
        yield from self._before({} if cutter.is_array else kineto_json.fields(cutter.header + b"]}", self.name))
        while chunk:
            yield self._chosen(*_spans(cutter, b"".join(chunk), self.name))
            chunk = cutter.next_chunk()
        tail = kineto_json.fields(cutter.documents()[1], self.name)
        yield self._chosen(*kineto_json.spans(_inside(tail), self.name))
        yield from self._after(tail)

    def _whole(self, document: dict[str, msgspec.Raw]) -> Iterator[bytes]:
        if _EVENTS not in document:
            kineto_json.document(b"{}", self.name)  # raises the same error as for every reader
        yield from self._before({})
        yield self._chosen(*kineto_json.spans(_inside(document), self.name))
        yield from self._after(document)

    def _before(self, fields: dict[str, msgspec.Raw]) -> Iterator[bytes]:
        yield b"{\n"
        for key, text in self._fields(fields):
            yield b"%b: %b,\n" % (key, text)
        yield b'"traceEvents": [\n'

    def _after(self, fields: dict[str, msgspec.Raw]) -> Iterator[bytes]:
        yield b"\n]"
        for key, text in self._fields(fields):
            yield b",\n%b: %b" % (key, text)
        yield b"\n}\n"

    def _fields(self, fields: dict[str, msgspec.Raw]) -> Iterator[tuple[bytes, bytes]]:
        """The fields of the document other than events, each key once."""
        for key, value in fields.items():
            text = kineto_json.valid(bytes(value))
            if key != _EVENTS and key not in self._told and text is not None:
                self._told.add(key)
                yield msgspec.json.encode(key), text

    def _chosen(self, spans: list[kineto_json.Span], texts: _Texts) -> bytes:
        """The texts of the events to keep, preceded by a comma unless they are the first."""
        metadata = np.array([span.ph == METADATA for span in spans], dtype=np.bool_)
        inside = self._inside_window(spans) & ~metadata
        kept_texts = []
        for i in np.flatnonzero(inside | metadata).tolist():
            text = kineto_json.valid(bytes(texts[i]))
            if text is not None:
                kept_texts.append(text)
                self.events += int(inside[i])
        if not kept_texts:
            return b""
        before = b"" if self._empty else b",\n"
        self._empty = False
        return before + b",\n".join(kept_texts)

    def _inside_window(self, spans: list[kineto_json.Span]) -> npt.NDArray[np.bool_]:
        start = exact_ns(span.ts for span in spans).fill_null(_NEVER).to_numpy()
        dur = exact_ns(span.dur for span in spans).fill_null(0).clip(0, -_NEVER).to_numpy()
        # Events without a duration (marks, arrows, counters) at the begin of the window are inside.
        ends = (start + dur > self.begin_ns) | ((dur == 0) & (start == self.begin_ns))
        overlaps: npt.NDArray[np.bool_] = (start < self.end_ns) & ends & (start != _NEVER)
        return overlaps


def _spans(cutter: Cutter, chunk: bytes, name: str) -> tuple[list[kineto_json.Span], _Texts]:
    """The events of a chunk; the chunk is cut again if the guessed boundary was wrong."""
    try:
        return kineto_json.spans(chunk, name)
    except DiagError as error:
        chunk = cutter.again(chunk)
        if not chunk.strip() and not cutter.closed:
            raise error
        return kineto_json.spans(chunk, name)


def _inside(document: dict[str, msgspec.Raw]) -> bytes:
    """The text between the brackets of the events."""
    text = bytes(document[_EVENTS]).strip()
    return text[1:-1] if text[:1] == b"[" else text


MS = 1_000_000
_COMPRESSION = 2  # of isal's 0 to 3


@dataclass(frozen=True)
class Excerpt:
    """A window to cut out of a file. Nanoseconds on the file's own clock, ``[begin_ns, end_ns)``."""

    path: str  # a file, a URL, or an archive and its member
    rank: int
    begin_ns: int
    end_ns: int
    title: str  # "step 7", or a window
    recorded: bytes = b""  # the whole trace of a step that was not profiled, made from the rank's records
    why: str = ""  # why that was necessary


def step_of(path: Path | str, rank: int, step: int | None, reading: Reading | None = None) -> Excerpt:
    """A step of a rank, None for the first that a trace covers: from its begin on the host to its end on the device.
    A step that no trace covers is made from the rank's records. DiagError if it was not recorded either."""
    try:
        return _profiled(path, rank, step, reading)
    except DiagError as error:
        recorded = _recorded(path, rank, step, error.message) if step is not None else None
        if recorded is None:
            raise
        return recorded


def _recorded(path: Path | str, rank: int, step: int, why: str, at_ns: int = 0) -> Excerpt | None:
    """``at_ns``: when the step begins on the clock of the made trace."""
    if is_remote(str(path)) or not RunLayout(Path(path)).is_run():
        return None
    layout = RunLayout(Path(path))
    read_manifest(layout)  # refuses a newer schema
    with readable(layout.ranks_folder):
        files = job_ranks(layout).files.get(rank)
    if files is None:
        return None
    made = recorded_step(files, rank, step, at_ns)
    if made is None:
        return None
    text, dur_ns = made
    return Excerpt(str(files.steps), rank, at_ns, at_ns + dur_ns, f"step {step}", text, why)


def _profiled(path: Path | str, rank: int, step: int | None, reading: Reading | None) -> Excerpt:
    return _cut(traces_of(path, rank, reading), path, rank, step)


def _cut(traces: Sequence[Trace], path: Path | str, rank: int, step: int | None) -> Excerpt:
    windows = {number: (trace, begin, end) for trace in reversed(traces) for number, begin, end in _windows(trace)}
    step = min(windows, default=None) if step is None else step
    if step is None or step not in windows:
        raise DiagError(
            f"no trace of rank {rank} covers {'a whole step' if step is None else f'step {step}'}",
            path=path,
            hint=f"its traces cover these steps: {number_ranges(sorted(windows))}"
            if windows
            else "give --from and --to",
        )
    trace, begin, end = windows[step]
    return Excerpt(trace.path, rank, begin - trace.base_ns, end - trace.base_ns, f"step {step}")


def window_of(
    path: Path | str, rank: int, from_ms: float | None, to_ms: float | None, reading: Reading | None = None
) -> Excerpt:
    """A window of a rank's trace in milliseconds since its first event; None stands for its begin or end. With several
    traces, the one in which the window begins, or the next one."""
    traces = traces_of(path, rank, reading)
    origin = traces[0].begin_ns
    begin = origin + _ns(from_ms) if from_ms is not None else origin
    trace = next((trace for trace in traces if trace.end_ns > begin), traces[-1])
    end = origin + _ns(to_ms) if to_ms is not None else trace.end_ns + 1
    if end <= begin:
        raise DiagError("the window is empty", hint="give a --to that is later than --from", exit_code=ExitCode.USAGE)
    if begin > trace.end_ns or end <= trace.begin_ns:
        raise DiagError(
            "the window holds no event",
            path=path,
            hint=f"the trace of rank {rank} runs {_covered(traces, origin)} ms after its first event",
        )
    title = f"{_ms(begin - origin)} to {_ms(min(end, trace.end_ns) - origin)} ms"
    return Excerpt(trace.path, rank, begin - trace.base_ns, end - trace.base_ns, title)


def excerpt_text(excerpt: Excerpt) -> Iterator[bytes]:
    """The excerpt as a Kineto trace, piece by piece. DiagError if the trace is damaged."""
    if excerpt.recorded:
        yield excerpt.recorded
        return
    with _source(excerpt.path) as source:
        yield from Trimming(excerpt.path, excerpt.begin_ns, excerpt.end_ns).text(blocks(source, excerpt.path))


def write_excerpt(excerpt: Excerpt, target: Path) -> int:
    """Writes the excerpt as a Kineto trace, compressed if the name ends in .gz; returns the number of its events. The
    file appears when it is complete. DiagError if the trace is damaged or the file cannot be written."""
    if Path(excerpt.path.split("!")[0]).resolve() == target.resolve():
        raise DiagError("this is the trace itself", path=target, hint="give another file", exit_code=ExitCode.USAGE)
    if excerpt.recorded:
        with _replacing(target) as file:
            file.write(excerpt.recorded)
        return excerpt.recorded.count(b'"ph":"X"')
    trimming = Trimming(excerpt.path, excerpt.begin_ns, excerpt.end_ns)
    with _source(excerpt.path) as source, _replacing(target) as file:
        for piece in trimming.text(blocks(source, excerpt.path)):
            file.write(piece)
    return trimming.events


# -- several ranks -----------------------------------------------------------------------------------------------------
#
# One archive with the step of each rank, and a manifest that says how their clocks relate. The manifest's format is
# that of docs/reference/perfetto-manifest.md in github.com/google/perfetto, since version 58.2: a JSON trace has its
# own clock, and ``offset_ns`` is added to its times to get those of the file in ``sync_to``. Perfetto drops what comes
# before the zero of a file's clock, so a step that is made from records does not begin there.

_MANIFEST = "perfetto_manifest.json"


@dataclass(frozen=True)
class Member:
    """A rank's part of an archive. ``zero_ns``: the zero of its file's clock on the clock of the run."""

    excerpt: Excerpt
    machine: str
    zero_ns: int

    @property
    def name(self) -> str:
        return f"rank-{self.excerpt.rank:05}.json"


@dataclass(frozen=True)
class Together:
    """A step of several ranks. ``recorded``: the ranks whose part is made from records; ``left_out``: ranks without
    that step; ``loose``: ranks of unknown clock offset, which begin the step together with the others."""

    step: int
    members: tuple[Member, ...]
    left_out: tuple[int, ...]
    loose: tuple[int, ...]

    @property
    def recorded(self) -> tuple[int, ...]:
        return tuple(member.excerpt.rank for member in self.members if member.excerpt.recorded)

    @property
    def about(self) -> list[str]:
        """What a user must know about it, in sentences."""
        said = []
        if self.recorded:
            made = f"was not profiled on {rank_ranges(self.recorded)}: it is made from its records"
            said.append(f"Step {self.step} {made}, phases and collectives.")
        if self.left_out:
            said.append(f"Step {self.step} was not recorded on {rank_ranges(self.left_out)}.")
        if self.loose:
            said.append(
                f"The clock offset of {rank_ranges(self.loose)} is not known: the step begins there together with the "
                "others."
            )
        return said


def together(result: Result, step: int | None, ranks: Sequence[int] | None = None) -> Together:
    """A step of several ranks, None for all; on one clock. ``step``: None for the first one that traces of most ranks
    cover. DiagError if no rank has it, or the run lacks one of the ranks."""
    timeline, root = timeline_of(result), result.tables.root
    chosen = sorted(timeline.ranks if ranks is None else set(ranks))
    for rank in chosen:
        if rank not in timeline.ranks:
            known = rank_ranges(sorted(timeline.ranks))
            raise DiagError(f"the run has no rank {rank}", path=root, hint=f"it has {known}")
    if step is None:
        covered = [number for rank in chosen for number in timeline.ranks[rank].traced]
        if not covered:
            raise DiagError("no step was profiled", path=root, hint="give --step")
        step = min(set(covered), key=lambda number: (-covered.count(number), number))
    parts = {rank: _member(result, timeline.ranks[rank], step) for rank in chosen}
    members = tuple(member for member in parts.values() if member is not None)
    if not members:
        raise DiagError(f"step {step} was not recorded on any of these ranks", path=root, hint="give another --step")
    left_out = tuple(rank for rank, member in parts.items() if member is None)
    return Together(step, members, left_out, tuple(rank for rank in timeline.loose if parts.get(rank) is not None))


def _member(result: Result, account: RankLanes, step: int) -> Member | None:
    tables, root = result.tables.ranks[account.rank], result.tables.root
    machine = f"rank {account.rank}" + (f" on {visible(tables.host)}" if tables.host else "")
    if step in account.traced:
        excerpt = _cut(tables.traces, root, account.rank, step)
        for trace, clock in clocked_traces(tables, account):
            if trace.path == excerpt.path:
                at = int(clock(np.array([excerpt.begin_ns + trace.base_ns], dtype=np.int64))[0])
                return Member(excerpt, machine, at - excerpt.begin_ns)
    begin_ns = next((each.begin_ns for each in account.steps if each.step == step), None)
    recorded = _recorded(root, account.rank, step, "", TIMELINE.lead_ns) if begin_ns is not None else None
    if begin_ns is None or recorded is None:
        return None
    return Member(recorded, machine, begin_ns + account.moved_ns - TIMELINE.lead_ns)


def manifest_of(members: Sequence[Member]) -> bytes:
    """The manifest that puts the clocks of the members on that of the first one."""
    first, *others = members
    files: list[dict[str, Any]] = [{"path": first.name, "machine": {"name": first.machine}}]
    for member in others:
        clocks = {"sync_to": {"file": first.name}, "offset_ns": member.zero_ns - first.zero_ns}
        files.append({"path": member.name, "machine": {"name": member.machine}, "clocks": clocks})
    return msgspec.json.encode({"perfetto_manifest": {"version": 1, "files": files}})


def write_archive(members: Sequence[Member], target: BinaryIO) -> None:
    """Writes the ZIP archive that Perfetto opens as one timeline. DiagError if a trace is damaged."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_MANIFEST, manifest_of(members))
        for member in members:
            with archive.open(member.name, "w") as file:
                for piece in excerpt_text(member.excerpt):
                    file.write(piece)


def save_archive(members: Sequence[Member], target: Path) -> None:
    """`write_archive` to a file, which appears when it is complete. DiagError if it cannot be written."""
    with _replaced(target) as file:
        write_archive(members, file)


# -- parts of both -----------------------------------------------------------------------------------------------------


def _windows(trace: Trace) -> list[tuple[int, int, int]]:
    """The trace's steps from the begin on the host, which launches their work, to the end on the device."""
    host = {step: (begin, end) for step, begin, end in host_windows(trace)}
    return [
        (step, min(begin, host.get(step, (begin, end))[0]), max(end, host.get(step, (begin, end))[1]))
        for step, begin, end in windows_of(trace)
    ]


def _ns(ms: float) -> int:
    limit = 1e12  # thirty years
    return round(max(-limit, min(limit, ms)) * MS) if ms == ms else 0


def _ms(ns: int) -> str:
    return f"{ns / MS:.3f}"


def _covered(traces: Sequence[Trace], origin: int) -> str:
    spans = [f"from {_ms(trace.begin_ns - origin)} to {_ms(trace.end_ns - origin)}" for trace in traces]
    return " and ".join(spans[:4]) + (f" and {len(spans) - 4} more" if len(spans) > 4 else "")


@contextmanager
def _source(path: str) -> Iterator[BinaryIO]:
    """The bytes of a trace: a file, or a member of an archive."""
    archive, inside, member_name = path.partition("!")
    if not inside or Path(path).is_file():
        with opened(path) as file:
            yield file
        return
    with opened(archive) as file:
        for name, content in members(file, archive):
            if name == member_name and content is not None:
                yield content
                return
    raise damaged(path, "is no longer in the archive")


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces the target when it is complete; compressed if the target's name ends in .gz."""
    with _replaced(target) as plain:
        if target.name.endswith(".gz"):
            with igzip.IGzipFile(fileobj=plain, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed:  # type: ignore[no-untyped-call]
                yield cast(BinaryIO, packed)
        else:
            yield plain


@contextmanager
def _replaced(target: Path) -> Iterator[BinaryIO]:
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as plain:
            yield plain
        part.replace(target)
    except OSError as error:
        raise DiagError(
            f"cannot be written: {error.strerror or error}", path=target, hint="give another --output"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


# -- served to the browser ---------------------------------------------------------------------------------------------
#
# Shows a trace file in https://ui.perfetto.dev: serves it once, on this machine only.
#
# The page runs in the browser and fetches the file from the URL in its link; nothing is uploaded. Its
# Content-Security-Policy allows connections to ``http://127.0.0.1:9001`` and to no other port of this machine
# (github.com/google/perfetto, ui/src/frontend/index.ts, setupContentSecurityPolicy), so its own
# tools/open_trace_in_ui uses that port, too. The form of the link comes from there, ``visStart`` and ``visEnd`` from
# docs/visualization/deep-linking-to-perfetto-ui.md. The page fetches a file from 127.0.0.1 once and keeps it
# (trace_url_handler.ts, loadTraceFromUrl), so the server can stop right after.

ADDRESS = "127.0.0.1"
PORT = 9001
UI = "https://ui.perfetto.dev"
_PATIENCE_S = 30  # timeout of a silent connection
# Chrome asks since version 142 (google/perfetto issue 7425).
_ASKED = "If the browser asks whether ui.perfetto.dev may access this device: allow it, the trace comes from here."


class TraceServer(ThreadingHTTPServer):
    """Serves one file under one URL that cannot be guessed, as other users of the machine can reach the port.
    ``fetched`` is set when a client has received the whole file."""

    daemon_threads = True

    def __init__(self, file: Path, port: int = PORT) -> None:
        self.file = file
        self.fetched = threading.Event()
        self.sent = False
        self.path = f"/{secrets.token_urlsafe(16)}/{file.name}"
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise DiagError(
                f"port {port} on {ADDRESS} cannot be used: {error.strerror}",
                hint="Perfetto's page reads from no other port: end what uses it (another `diag open`, "
                "trace_processor), or write the trace with -o FILE and drop it on the page",
            ) from error
        self.host = f"{ADDRESS}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}{self.path}"

    def server_bind(self) -> None:
        """Skips the reverse DNS lookup of the address, which may block without a name server."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a browser that disconnects."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Sets ``fetched`` when the connection is closed: only then has the client received everything."""
        super().shutdown_request(request)
        if self.sent:
            self.fetched.set()


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        # Another site's page may use a host name that resolves to this address (DNS rebinding), but not 127.0.0.1.
        if self.headers.get("Host") != self.server.host or self.path != self.server.path:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with open_regular(self.server.file) as file:
            self.send_response(HTTPStatus.OK)
            self.send_header("Access-Control-Allow-Origin", UI)
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)
        self.server.sent = True

    def do_POST(self) -> None:
        """Answers the page's first request, for a trace_processor at this port: there is none."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the terminal is the user's."""


def link(url: str, begin_ns: int, end_ns: int) -> str:
    """The URL that opens the trace at ``url`` on the window, in ns of the trace's own clock."""
    view = f"&{urlencode({'visStart': begin_ns, 'visEnd': end_ns})}" if begin_ns >= 0 else ""
    return f"{UI}/#!/?url={url}{view}"


def show(
    file: Path,
    begin_ns: int,
    end_ns: int,
    *,
    open_browser: bool,
    say: Callable[[str], None],
    port: int = PORT,
) -> bool:
    """Serves the file until it has been fetched once; returns whether it was, False after Ctrl-C. DiagError if the port
    is in use."""
    with TraceServer(file, port) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        address = link(server.url, begin_ns, end_ns)
        try:
            say(address)
            say(f"Serving it on {ADDRESS} until it has been fetched once (Ctrl-C ends it). {_ASKED}")
            if open_browser:
                processes.open_in_browser(address)
            server.fetched.wait()
        except KeyboardInterrupt:
            return False
        finally:
            server.shutdown()
        return True

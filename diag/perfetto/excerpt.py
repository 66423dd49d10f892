"""A part of one rank's trace as a file of its own: what other viewers open in a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip

from diag.account.kept_steps import windows_of
from diag.account.trace_steps import host_windows
from diag.errors import DiagError, ExitCode
from diag.rundir.one_rank import traces_of
from diag.rundir.run import number_ranges
from diag.traces.reading import Reading
from diag.traces.sources import opened
from diag.traces.text_stream import blocks, damaged, members
from diag.traces.trace import Trace

from .trimming import Trimming

MS = 1_000_000
_COMPRESSION = 2  # of isal's 0 to 3


@dataclass(frozen=True)
class Excerpt:
    """What to cut out of which file. Nanoseconds on the file's own clock, ``[begin_ns, end_ns)``."""

    path: str  # a file, an address, or an archive and its member
    rank: int
    begin_ns: int
    end_ns: int
    title: str  # "step 7", or a window


def step_of(path: Path | str, rank: int, step: int, reading: Reading | None = None) -> Excerpt:
    """A step of a rank: from its begin on the host to its end on the device. DiagError where no trace covers it."""
    traces = traces_of(path, rank, reading)
    windows = {number: (trace, begin, end) for trace in reversed(traces) for number, begin, end in _windows(trace)}
    if step not in windows:
        raise DiagError(
            f"no trace of rank {rank} covers step {step}",
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
    """A window of a rank's trace in milliseconds since its first event; None: from its begin, to its end. Of several
    traces of a rank, the one in which the window begins, or the next."""
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


def write_excerpt(excerpt: Excerpt, target: Path) -> int:
    """Writes the excerpt as a Kineto trace, gzip where the name ends in .gz; how many events it has. The file is there
    when it is whole. DiagError where the trace is damaged or the file cannot be written."""
    if Path(excerpt.path.split("!")[0]).resolve() == target.resolve():
        raise DiagError("this is the trace itself", path=target, hint="give another file", exit_code=ExitCode.USAGE)
    trimming = Trimming(excerpt.path, excerpt.begin_ns, excerpt.end_ns)
    with _source(excerpt.path) as source, _replacing(target) as file:
        for piece in trimming.text(blocks(source, excerpt.path)):
            file.write(piece)
    return trimming.events


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
    """The bytes of a trace: a file, or an archive's member."""
    archive, inside, wanted = path.partition("!")
    if not inside or Path(path).is_file():
        with opened(path) as file:
            yield file
        return
    with opened(archive) as file:
        for name, content in members(file, archive):
            if name == wanted and content is not None:
                yield content
                return
    raise damaged(path, "is no longer in the archive")


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that takes the target's place when it is written to its end."""
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as plain:
            if target.name.endswith(".gz"):
                with igzip.IGzipFile(fileobj=plain, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed:  # type: ignore[no-untyped-call]
                    yield cast(BinaryIO, packed)
            else:
                yield plain
        part.replace(target)
    except OSError as error:
        raise DiagError(
            f"cannot be written: {error.strerror or error}", path=target, hint="give another --output"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)

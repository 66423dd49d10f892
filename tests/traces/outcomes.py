"""What became of a file: read here, or in a process of its own whose memory is watched.

python -m tests.traces.outcomes read|open|trim PATH ...   # prints one JSON object
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.forked import run_forked
from tests.patience import PATIENCE_S

# Of a process that reads, beyond what libraries take: what breaks the bound must not take the machine with it.
ADDRESS_SPACE = 8 << 30
_SHAPES = ("input_dims", "input_type")
# Words of the machinery, not of a person.
_JARGON = re.compile(r"Traceback|\w(?:Error|Exception)\b|0x[0-9a-f]{6}|<class|object at|\bNone\b")


@dataclass(frozen=True)
class Outcome:
    """``error`` and ``hint`` of a DiagError, else how many events were kept, and what was not. Memory in MB."""

    error: str = ""
    hint: str = ""
    events: int = 0
    names: int = 0
    untimed: int = 0
    gaps: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    peak_mb: float = 0.0  # more than the process had before it opened the file

    @property
    def stated(self) -> bool:
        """Whether it says that something is wrong with the file."""
        return bool(self.error or self.gaps or self.untimed)


def read(path: Path) -> Outcome:
    """``read_trace``; anything but a DiagError comes through."""
    from diag.errors import DiagError
    from diag.traces.kineto import read_trace

    try:
        trace = read_trace(path)
    except DiagError as error:
        return Outcome(error=error.message, hint=error.hint)
    return Outcome(
        events=trace.stored.rows,
        names=len(trace.stored.names),
        untimed=trace.untimed_events,
        gaps=trace.gaps,
    )


def opened(*paths: Path) -> Outcome:
    """``open_run``; the steps' parts must add up."""
    from diag.api import open_run
    from diag.errors import DiagError

    try:
        result = open_run(*paths)
    except DiagError as error:
        return Outcome(error=error.message, hint=error.hint)
    sums_exactly(result)
    gaps = tuple(f"{gap.path}: {gap.reason}" for gap in result.coverage.skipped)
    return Outcome(gaps=gaps, ranks=tuple(result.tables.ranks))


def trimmed(path: Path) -> Outcome:
    """The trace cut down to its first microsecond; ``events``: what was left of it."""
    from diag.errors import DiagError
    from diag.perfetto import Trimming
    from diag.traces.text_stream import blocks

    trimming = Trimming(str(path), 0, 1000)
    try:
        with path.open("rb", buffering=0) as file:
            for _ in trimming.text(blocks(file, str(path))):
                pass
    except DiagError as error:
        return Outcome(error=error.message, hint=error.hint)
    return Outcome(events=trimming.events)


def apart(how: str, *paths: Path, timeout: float = PATIENCE_S) -> Outcome:
    """The same in a process of limited address space. ``timeout`` only guards against a reader that hangs."""
    ended = run_forked(["-m", "tests.traces.outcomes", how, *map(str, paths)], [os.environ], timeout, kind="commands")
    assert ended.exit_code == 0, f"the reader ended with {ended.exit_code}: {ended.stderr[-1500:]}"
    found = json.loads(ended.stdout.splitlines()[-1])
    return Outcome(**{**found, "gaps": tuple(found["gaps"]), "ranks": tuple(found["ranks"])})


def is_plain(outcome: Outcome, path: Path) -> None:
    """An error names the file and says in words of a person, and few of them, what is wrong; it comes with a hint."""
    for text in (outcome.error, *outcome.gaps):
        said = text.replace(str(path.parent), "")
        assert len(said) < 400 + len(path.name)
        assert not _JARGON.search(said.replace(path.name, "")), text
    if outcome.error:
        assert path.name in outcome.error
        assert outcome.hint


def rows(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, codes as text: what two files of the same events have in common. Shapes are kept as JSON
    text, whose blanks mean nothing."""
    from diag.traces.kineto import read_trace

    return rows_of(read_trace(path))


def rows_of(trace: Any) -> list[dict[str, Any]]:
    import polars as pl

    events = trace.events.with_columns(pl.col("name").cast(pl.String), pl.col("cat").cast(pl.String))
    return [
        {**row, "thread": trace.threads[row["thread"]], **{key: json.loads(row[key] or "null") for key in _SHAPES}}
        for row in events.iter_rows(named=True)
    ]


def is_part_of(some: list[dict[str, Any]], whole: list[dict[str, Any]]) -> bool:
    def counted(found: list[dict[str, Any]]) -> Counter[tuple[str, ...]]:
        return Counter(tuple(map(str, row.values())) for row in found)

    return counted(some) <= counted(whole)


def sums_exactly(result: Any) -> None:
    """Every rank's part of every step is cut without gap or overlap, and so is the critical path."""
    for step in result.attribution.steps:
        assert sum(piece.dur_ns for piece in step.path.pieces()) == step.dur_ns
        for parts in step.parts:
            six = (parts.compute_ns, parts.exposed_comm_ns, parts.exposed_copy_ns)
            six += (parts.data_wait_ns, parts.checkpoint_ns, parts.idle_ns)
            assert min(six) >= 0
            assert sum(six) == parts.dur_ns
            if parts.exposed_wait_ns is not None and parts.exposed_transfer_ns is not None:
                assert parts.exposed_wait_ns + parts.exposed_transfer_ns == parts.exposed_comm_ns


def _peak_mb() -> float:
    """Of this process and the largest of its children. Not ru_maxrss of this one, which begins with the parent's."""
    own = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert own is not None
    return max(int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024 / 1e6


def main() -> None:
    import diag.api  # noqa: F401  # what an import takes is not the file's

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE, mapped + ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    how, *paths = sys.argv[1:]
    before = _peak_mb()
    outcome = {"read": read, "open": opened, "trim": trimmed}[how](*map(Path, paths))
    print(json.dumps({**asdict(outcome), "peak_mb": _peak_mb() - before}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Reads the ranks' own summaries of their steps: one small file per rank, from its end, into one table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from operator import methodcaller
from pathlib import Path
from struct import unpack_from
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.layout import MOST_NS, RankLayout, RunLayout, numbered_parts, run_of
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.records import (
    BEGIN,
    DEVICE,
    EVALUATION,
    LAG,
    PHASES_AND_REST,
    STEP,
    STILL,
    TOKENS,
    UNLAUNCHED,
    Manifest,
    MemoryRecord,
    RankRecord,
    SumLine,
    SummaryLine,
)
from diag.decoding import json_decoder
from diag.deferred import by_name
from diag.errors import DiagError, readable
from diag.model import DAMAGED, Gap
from diag.rundir.policy import RUN_READING
from diag.words.formatting import counted, rank_ranges

from .attempts import gaps_of_attempts
from .block_sums import BlocksRead
from .each import each_read
from .identity import Life, at_other_times, clock_of, strangers
from .lines import read_end, read_identity, read_manifest
from .pieces import gaps_of_pieces
from .tables import StepSums

# The lines around a change long ago.
_lines_between: Callable[[type[Any], int, int, Path], Any] = by_name("diag.rundir.between:LinesBetween")

_OF_STEP = (STEP, *PHASES_AND_REST, *(phase + STILL for phase in PHASES_AND_REST))
COLUMNS = (BEGIN, TOKENS, EVALUATION, *_OF_STEP, LAG, UNLAUNCHED, *(DEVICE + name for name in _OF_STEP))
_KNOWN = frozenset(COLUMNS)

_SUMMARY, _NUMBERS = RankLayout.summary.name, RankLayout.numbers.name
_IS_PART = methodcaller("startswith", _SUMMARY.partition(".")[0])

NS_PER_US = 1000  # cells are in microseconds

Words = npt.NDArray[np.uint32]


class Summaries(Struct, frozen=True, eq=False):
    """``cells[column, rank, step]``: of ``columns``, ``ranks`` and ``numbers``; microseconds except for TOKENS. A
    column that is 0 everywhere is left out. ``begin_us[rank, step]``: on the rank's own clock. ``marked``: the steps
    that any rank marked, by mark. ``memory``: the peaks of each line that was read, in order. ``clock``: DEVICE where
    the times of the steps are those of the devices, see ``diag.account.device_summaries``; "" for the hosts'."""

    root: Path
    manifest: Manifest | None
    world_size: int | None
    ranks: tuple[int, ...]
    identities: tuple[RankRecord, ...]
    numbers: tuple[int, ...]
    begin_us: npt.NDArray[np.int64]
    columns: tuple[str, ...]
    cells: Words
    waits_known: bool  # every rank recorded how long it was blocked in collectives
    marked: Mapping[str, frozenset[int]]
    memory: Mapping[int, tuple[MemoryRecord, ...]]
    missing: tuple[int, ...]
    gaps: tuple[Gap, ...]
    from_start: bool  # whether the first of these steps is the first of the run
    clock: str = ""
    waits_seen: float = 0.0  # part of the calls whose wait was observed on the device, of the rank with the least
    utilization: npt.NDArray[np.float64] | None = None  # of each rank's device, 0 to 1; None: not sampled
    durations: tuple[tuple[BlocksRead, ...], ...] = ()  # of each rank's collectives, see ``block_sums``; () if none
    with_numbers: tuple[int, ...] | None = None  # the ranks with a file of losses and norms; None: not looked for
    names: Mapping[int, frozenset[str]] = {}  # of the files of each rank; none of those whose folder was not listed

    def has(self, name: str, clock: str | None = None) -> bool:
        """Whether the column is not 0 everywhere."""
        return self._named(name, self.clock if clock is None else clock) in self.columns

    def column(self, name: str, clock: str | None = None) -> Words:
        """The column's values by rank and step. ``clock``: another one than that of the times."""
        named = self._named(name, self.clock if clock is None else clock)
        if named not in self.columns:
            return np.zeros(self.begin_us.shape, dtype=np.uint32)
        values: Words = self.cells[self.columns.index(named)]
        return values

    def of_rank(self, name: str, at: int, clock: str | None = None) -> Words:
        """The values of the rank at this place."""
        there = self.has(name, clock)
        return self.column(name, clock)[at] if there else np.zeros(len(self.numbers), dtype=np.uint32)

    def sums(self, name: str, places: Sequence[int], clock: str | None = None) -> npt.NDArray[np.float64]:
        """By rank, the sum of the column over the steps at these places."""
        if not self.has(name, clock):
            return np.zeros(len(self.ranks))
        values = self.column(name, clock)[:, together(places)]
        total: npt.NDArray[np.float64] = values.sum(axis=1, dtype=np.uint64).astype(np.float64)
        return total

    def _named(self, name: str, clock: str) -> str:
        return clock + name if name in _OF_STEP else name

    @property
    def on_device(self) -> bool:
        return any(identity.device != "cpu" for identity in self.identities)

    @property
    def waits_apart(self) -> bool:
        """Whether the phases come without the waiting for collectives. On a device the host only launches these: its
        phases do not show any waiting."""
        return self.clock == DEVICE or (self.waits_known and not self.on_device)


def together(places: Sequence[int]) -> slice | Sequence[int]:
    """The places as a slice if they follow each other: of a table, that is no copy."""
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return slice(places[0], places[-1] + 1)
    return places


@dataclass(slots=True)
class SummaryRecord(SummaryLine):
    """A line as it is read: ``values`` are bytes, as many of each column as the line has steps."""

    values: bytes  # type: ignore[assignment]
    durations: list[BlocksRead] = field(default_factory=list)  # type: ignore[assignment]

    @property
    def end(self) -> int:
        """The number after that of its last step."""
        return self.first + self.count

    @property
    def last_begin_ns(self) -> int:
        """When its last step began."""
        if BEGIN not in self.columns:
            return self.begin_ns
        at = 4 * self.count * self.columns.index(BEGIN)
        begins: tuple[int, ...] = unpack_from(f"<{self.count}I", self.values, at)
        return self.begin_ns + NS_PER_US * sum(begins)

    @property
    def whole(self) -> bool:
        """Whether a collector can have written it."""
        sized = self.count > 0 and len(self.values) == 4 * len(self.columns) * self.count
        return sized and 0 <= self.begin_ns < MOST_NS


@dataclass(slots=True)
class _AsWritten(SummaryRecord):
    """A line of which these two are not decoded yet."""

    identity: msgspec.Raw  # type: ignore[assignment]
    columns: msgspec.Raw  # type: ignore[assignment]


class _LineDecoder:
    """Decodes the lines of summaries. All lines of a rank have one identity, and those of most ranks the same columns:
    of thousands of ranks, each is decoded and kept once."""

    def __init__(self) -> None:
        self._line = json_decoder(_AsWritten).decode
        self._identity = json_decoder(RankRecord).decode
        self._columns = lru_cache(maxsize=64)(msgspec.json.Decoder(list[str]).decode)
        self._last: tuple[bytes, RankRecord] | None = None

    def __call__(self, row: bytes | memoryview) -> SummaryRecord:
        line: Any = self._line(row)
        identity = bytes(line.identity)
        if self._last is None or self._last[0] != identity:
            self._last = identity, self._identity(identity)
        line.identity, line.columns = self._last[1], self._columns(bytes(line.columns))
        record: SummaryRecord = line
        return record


class SummaryColumns(Struct, frozen=True, eq=False):
    """A line with its numbers: ``cells[column, step]``, of the columns with these names."""

    record: SummaryRecord
    begin_us: npt.NDArray[np.int64]
    names: list[str]
    cells: Words


class _Read(Struct, frozen=True):
    """The end of one rank's file: lines in order, or why there are none."""

    rank: int
    lines: tuple[SummaryRecord, ...] = ()
    gap: Gap | None = None
    whole: bool = False  # these are all lines of the run
    names: frozenset[str] | None = None  # of its files; None: they were not listed

    @property
    def last(self) -> int:
        return self.lines[-1].end - 1


def read_summaries(
    layout: RunLayout,
    progress: Callable[[int, int, str], None] | None = None,
    most_steps: int | None = None,
) -> Summaries:
    """The newest steps of all ranks that have reached them. DiagError if no rank left a summary."""
    most_steps = RUN_READING.most_summary_steps if most_steps is None else most_steps
    manifest, gap = read_manifest(layout)
    gaps = [*([gap] if gap is not None else []), *gaps_of_attempts(layout), *gaps_of_pieces(layout)]
    with readable(layout.ranks_folder):
        files = layout.ranks()
    for first in list(files.values())[:1]:
        read_identity(first)  # refuses a newer schema; the records of thousands of ranks would take minutes
    steps = min(most_steps, max(RUN_READING.least_summary_steps, RUN_READING.most_summary_cells // max(1, len(files))))
    reads = _read_all(files, steps, progress)
    gaps += [read.gap for read in reads if read.gap is not None]
    reads = [read for read in reads if read.lines]
    if not reads:
        raise DiagError(
            "no rank wrote a summary of its steps",
            path=layout.root,
            hint="leave out --summary; summaries are written from the 50th step on, and not with --no-collect",
        )
    identities_of = {read.rank: read.lines[-1].identity for read in reads}
    named = strangers(identities_of, manifest)
    reads = [read for read in reads if read.rank not in named.ranks]
    manifest = None if named.manifest else manifest
    timed = at_other_times([_life(read) for read in reads], manifest, lambda *_: True)  # clocks differ
    gaps += [*named.gaps(_folder(layout), layout.manifest), *timed.gaps(_folder(layout), layout.manifest)]
    reads = [read for read in reads if read.rank not in timed.ranks]
    if not reads:
        reason = next(iter((named.ranks | timed.ranks).values()))
        raise DiagError(
            f"no summary can be used: {reason}",
            path=layout.root,
            hint="give the run directory as it was recorded",
        )
    numbers = _numbers(reads, steps)
    ranks, reads = {read.rank for read in reads}, [read for read in reads if _covers(read, numbers)]
    if late := ranks - {read.rank for read in reads}:
        names = rank_ranges(sorted(late))
        gaps.append(Gap(str(layout.ranks_folder), f"{names} did not record all of steps {_span(numbers)}; left out"))
    found = _summaries(layout, manifest, manifest.world_size if manifest is not None else None, reads, numbers)
    if absent := sorted(set(found.missing) - late):
        gaps.append(Gap(str(layout.ranks_folder), f"{rank_ranges(absent)} wrote no summary"))
    return replace(found, gaps=tuple(gaps))


def _summaries(
    layout: RunLayout, manifest: Manifest | None, world_size: int | None, reads: Sequence[_Read], numbers: Sequence[int]
) -> Summaries:
    """Of ranks that cover these consecutive steps."""
    ranks = tuple(read.rank for read in reads)
    identities = tuple(read.lines[-1].identity for read in reads)
    world_size = world_size or max(i.world_size for i in identities)
    missing = tuple(sorted(set(range(world_size)) - set(ranks)))
    written = set[str]().union(*{tuple(line.columns) for read in reads for line in read.lines})
    columns = tuple(name for name in COLUMNS if name in written and name != BEGIN)
    cells = np.zeros((len(columns), len(ranks), len(numbers)), dtype=np.uint32)
    begin_us = np.zeros((len(ranks), len(numbers)), dtype=np.int64)
    _fill(cells, begin_us, reads, numbers, columns)
    lines = [line for read in reads for line in read.lines]
    return Summaries(
        root=layout.root,
        manifest=manifest,
        world_size=world_size,
        ranks=ranks,
        identities=identities,
        numbers=tuple(numbers),
        begin_us=begin_us,
        columns=columns,
        cells=cells,
        waits_known=all(any(line.waits for line in read.lines) for read in reads),
        marked=_marked(lines),
        memory={read.rank: memory for read in reads if (memory := _memory(read))},
        missing=missing,
        gaps=(),
        from_start=all(read.whole and read.lines[0].first == numbers[0] for read in reads),
        waits_seen=min(_waits_seen(read) for read in reads),
        utilization=_utilization(reads),
        durations=_durations(reads),
        with_numbers=_with_numbers(reads),
        names={read.rank: read.names for read in reads if read.names is not None},
    )


def step_sums(summaries: Summaries) -> StepSums:
    """Over all ranks."""
    tokens = summaries.column(TOKENS)
    known = (tokens > 0).all(axis=0)
    without = np.flatnonzero(~tokens.any(axis=1))
    on_hosts = summaries.column(STEP, clock="")  # an evaluation is on the host's clock
    evaluation = summaries.column(EVALUATION)
    marked = summaries.marked.get(EVALUATION, frozenset()).intersection(summaries.numbers)
    timed = np.array(summaries.numbers)[evaluation.any(axis=0)]
    return StepSums(
        ranks=len(summaries.ranks),
        numbers=summaries.numbers,
        tokens=np.where(known, tokens.sum(axis=0, dtype=np.int64), 0),
        without_tokens=summaries.ranks[int(without[0])] if len(without) else None,
        evaluation_ns=NS_PER_US * int(evaluation.sum(dtype=np.int64)),
        recorded_ns=NS_PER_US * int(on_hosts.sum(dtype=np.int64)),
        evaluated=marked.union(timed.tolist()),
    )


def read_span(
    layout: RunLayout,
    identities: Mapping[int, RankRecord | None],
    manifest: Manifest | None,
    world_size: int | None,
    numbers: range,
) -> Summaries | None:
    """These steps of the ranks that summarized all of them; None if fewer than two did."""
    reads, lines = [], _lines_between(SummaryRecord, numbers[0], numbers[-1], layout.root)
    for rank, identity in identities.items():
        records = lines.of(layout.rank(rank).summary)
        inside = [
            record
            for record in records
            if record.first <= numbers[-1] and record.end > numbers[0] and record.whole
            if identity is None or is_of(record, identity)
        ]
        if inside and _covers(read := _Read(rank, tuple(inside), whole=True), numbers):
            reads.append(read)
    return _summaries(layout, manifest, world_size, reads, tuple(numbers)) if len(reads) > 1 else None


def read_sums(
    layout: RunLayout,
    identities: Mapping[int, RankRecord],
    manifest: Manifest | None,
    world_size: int | None,
    numbers: range,
    size: int,
) -> Summaries | None:
    """The sums over so many steps that lie in these, as the means of one step for each sum, with the number of its
    first step; None if fewer than two ranks have the same ones. Whether ranks waited is known, but not when."""
    of_rank: dict[int, dict[tuple[int, int], SumLine]] = {}
    near = _lines_between(SumLine, numbers[0], numbers[-1], layout.root)
    for rank in identities:
        lines = near.of(layout.rank(rank).sums[size])
        inside = [line for line in lines if numbers[0] <= line.first and line.last <= numbers[-1] and line.count > 0]
        if inside:
            of_rank[rank] = {(line.first, line.count): line for line in inside}
    common = sorted(set[tuple[int, int]].intersection(*map(set, of_rank.values()))) if of_rank else []
    if len(of_rank) < 2 or not common:
        return None
    lines_of = {rank: [lines[key] for key in common] for rank, lines in of_rank.items()}
    written = {name for lines in lines_of.values() for line in lines for name in line.columns}
    columns = tuple(name for name in COLUMNS if name in written)
    means = [
        [
            [min(line.columns.get(name, 0) // line.count, np.iinfo(np.uint32).max) for line in lines]
            for lines in lines_of.values()
        ]
        for name in columns
    ]
    begins = [[line.begin_ns // NS_PER_US for line in lines] for lines in lines_of.values()]
    return Summaries(
        root=layout.root,
        manifest=manifest,
        world_size=world_size,
        ranks=tuple(lines_of),
        identities=tuple(identities[rank] for rank in lines_of),
        numbers=tuple(first for first, _ in common),
        begin_us=np.array(begins, dtype=np.int64),
        columns=columns,
        cells=np.array(means, dtype=np.uint32),
        waits_known=any(name.endswith(STILL) and not name.startswith(DEVICE) for name in columns),
        marked={},
        memory={},
        missing=(),
        gaps=(),
        from_start=False,
        waits_seen=_waits_seen_of_newest(layout, list(lines_of)) if DEVICE + STEP in columns else 0.0,
    )


def _waits_seen_of_newest(layout: RunLayout, ranks: Sequence[int]) -> float:
    """What sums do not say: of the newest steps of some ranks."""
    some = ranks[:: max(1, len(ranks) // RUN_READING.ranks_checked_for_waits)]
    reads = _read_all({rank: layout.rank(rank) for rank in some}, 1, None)
    return min((_waits_seen(read) for read in reads if read.lines), default=0.0)


def _folder(layout: RunLayout) -> Callable[[int], Path]:
    return lambda rank: layout.rank(rank).folder


def _life(read: _Read) -> Life:
    identity = read.lines[-1].identity
    clock, to_unix_ns = clock_of(identity)
    # From the start of the process: the ends of two files may be of different steps.
    begin_ns = identity.monotonic_ns if identity.monotonic_ns > 0 else read.lines[0].begin_ns
    return Life(read.rank, clock, begin_ns, read.lines[-1].last_begin_ns, to_unix_ns)


def has_summaries(files: Iterable[RankLayout]) -> bool:
    """Whether one of the first ranks left a summary: the others are not checked before they are read."""
    return any(numbered_parts(rank_files.summary) for rank_files in islice(files, 8))


def _read_all(
    files: Mapping[int, RankLayout], steps: int, progress: Callable[[int, int, str], None] | None
) -> list[_Read]:
    reads: list[_Read] = []
    decode = _LineDecoder()
    first = next(iter(files.values()), None)
    run = str(run_of(first.summary)) if first is not None else ""
    tails = each_read(partial(_tail, run=run), list(files.values()))
    alike: dict[frozenset[str], frozenset[str]] = {}  # most ranks have files of the same names
    for done, ((rank, rank_files), tail) in enumerate(zip(files.items(), tails, strict=True), start=1):
        if isinstance(tail, _Tail):
            tail.names = alike.setdefault(tail.names, tail.names)
        reads.append(_decoded(rank, rank_files, tail, steps, decode, run))
        if progress is not None and done % RUN_READING.files_at_once == 0:
            progress(done, len(files), _SUMMARY)
    return reads


class _Tail(Struct):
    """The last bytes of a stream; ``whole``: these are all of its bytes. ``from_start``: and none of it was removed.
    ``names``: of the files in its folder."""

    data: bytes
    whole: bool
    from_start: bool
    names: frozenset[str]

    def rows(self) -> Iterator[memoryview]:
        """Its whole lines, the last one first. What is after the last newline is a truncated line, or nothing."""
        view, end = memoryview(self.data), self.data.rfind(b"\n")
        while end >= 0:
            begin = self.data.rfind(b"\n", 0, end) + 1
            if begin or self.whole:
                yield view[begin:end]
            end = begin - 1


def _tail(files: RankLayout, want: int | None = None, *, run: str) -> _Tail | OSError:
    """Of a rank's summary. Paths are texts: thousands of ranks notice a ``Path`` for each."""
    try:
        names, file = files.names() or frozenset(), files.text(RankLayout.summary)
        alone = _SUMMARY in names and sum(map(_IS_PART, names)) == 1
        parts: Sequence[tuple[int, Path | str]] = [(0, file)] if alone else numbered_parts(files.summary)
        most = RUN_READING.summary_tail_bytes if want is None else want
        data, whole = read_end(file, most, parts, run)
        return _Tail(data, whole, whole and (not parts or parts[0][0] == 0), names)
    except OSError as error:
        return error


def _decoded(
    rank: int,
    files: RankLayout,
    tail: _Tail | OSError,
    steps: int,
    decode: Callable[[bytes | memoryview], SummaryRecord],
    run: str,
) -> _Read:
    """The last lines with this many steps, and one line more, which is needed for ranks that are behind."""
    if isinstance(tail, FileNotFoundError):
        return _Read(rank)
    if isinstance(tail, OSError):
        return _Read(rank, gap=Gap(str(files.summary), f"cannot be read: {tail.strerror}"))
    lines: list[SummaryRecord] = []
    bad = have = 0
    for row in tail.rows():
        try:
            line = decode(row)
        except DAMAGED:
            bad += 1
            continue
        if not line.whole:
            bad += 1
            continue
        if lines and (line.end > lines[-1].first or not _same_process(line, lines[-1])):  # an earlier process's
            break
        lines.append(line)
        have += line.count
        if have >= steps + line.count:
            break
    else:
        if not tail.whole and len(tail.data) < RECORDED_FILES.line_bytes:
            return _decoded(rank, files, _tail(files, 4 * len(tail.data), run=run), steps, decode, run)
    gap = Gap(str(files.summary), f"{counted(bad, 'invalid collector record')}; left out") if bad else None
    from_start = tail.from_start and len(lines) + bad == tail.data.count(b"\n")
    return _Read(rank, tuple(reversed(lines)), gap, from_start, tail.names)


def columns_of(record: SummaryRecord) -> SummaryColumns | None:
    """The numbers of a line; None if it is damaged."""
    if not record.whole:
        return None
    begin_us, cells = _numbers_of([record])
    known = [at for at, name in enumerate(record.columns) if name in _KNOWN]  # without those of a later version
    return SummaryColumns(record, begin_us[0], [record.columns[at] for at in known], cells[0][known])


def _numbers_of(lines: Sequence[SummaryRecord]) -> tuple[npt.NDArray[np.int64], Words]:
    """Of lines with the same columns and as many steps: when these began, in microseconds, [line, step]; and their
    values, [line, column, step]."""
    one = lines[0]
    values: Words = np.frombuffer(b"".join(line.values for line in lines), "<u4")
    cells = values.reshape(len(lines), len(one.columns), one.count)
    begin_us = np.array([line.begin_ns // NS_PER_US for line in lines], dtype=np.int64)[:, None]
    if BEGIN not in one.columns:
        return np.repeat(begin_us, one.count, axis=1), cells
    return begin_us + cells[:, one.columns.index(BEGIN)].cumsum(axis=1, dtype=np.int64), cells


def is_of(record: SummaryLine, identity: RankRecord) -> bool:
    """Whether the process of this identity wrote the line."""
    return (record.identity.pid, record.identity.boot_id) == (identity.pid, identity.boot_id)


def _same_process(line: SummaryLine, other: SummaryLine) -> bool:
    mine, its = line.identity, other.identity
    return mine is its or (mine.pid, mine.monotonic_ns, mine.boot_id) == (its.pid, its.monotonic_ns, its.boot_id)


def _numbers(reads: Sequence[_Read], steps: int) -> tuple[int, ...]:
    """The newest steps that nearly all ranks have, oldest first, without a gap between them."""
    last = int(np.quantile([read.last for read in reads], RUN_READING.straggling_ranks_share, method="lower"))
    firsts = [first for read in reads if read.last >= last and (first := _first(read, last)) <= last]
    first = int(np.quantile(firsts, 1 - RUN_READING.straggling_ranks_share, method="higher"))
    return tuple(range(max(first, last - steps + 1), last + 1))


def _first(read: _Read, last: int) -> int:
    """The first of the consecutive steps up to ``last`` that the rank has; ``last + 1`` if it has none."""
    first = last + 1
    for line in reversed(read.lines):
        if line.first < first <= line.end:
            first = line.first
    return first


def _covers(read: _Read, numbers: Sequence[int]) -> bool:
    return read.last >= numbers[-1] and _first(read, numbers[-1]) <= numbers[0]


def _memory(read: _Read) -> tuple[MemoryRecord, ...]:
    return tuple(line.memory for line in read.lines if line.memory is not None)


def _waits_seen(read: _Read) -> float:
    seen = [line.waits_seen for line in read.lines if line.waits_seen is not None]
    return min(seen, default=0.0)


def _utilization(reads: Sequence[_Read]) -> npt.NDArray[np.float64] | None:
    """Of each rank's device. Of a few ranks it may be unknown: theirs is taken for that of most."""
    samples = [[percent for line in read.lines for percent in line.utilization] for read in reads]
    known = [min(100.0, max(0.0, sum(of_rank) / len(of_rank))) for of_rank in samples if of_rank]
    if len(known) < (1 - RUN_READING.straggling_ranks_share) * len(samples):
        return None
    usual, taken = float(np.median(known)), iter(known)
    return np.array([next(taken) if of_rank else usual for of_rank in samples]) / 100


def _durations(reads: Sequence[_Read]) -> tuple[tuple[BlocksRead, ...], ...]:
    of_ranks = tuple(tuple(blocks for line in read.lines for blocks in line.durations) for read in reads)
    return of_ranks if any(of_ranks) else ()


def _with_numbers(reads: Sequence[_Read]) -> tuple[int, ...] | None:
    if any(read.names is None for read in reads):
        return None
    return tuple(read.rank for read in reads if read.names is not None and _NUMBERS in read.names)


def _fill(
    cells: Words,
    begin_us: npt.NDArray[np.int64],
    reads: Sequence[_Read],
    numbers: Sequence[int],
    columns: Sequence[str],
) -> None:
    """Copies the steps of the ranks into ``cells[column, rank, step]``. Ranks write the same columns of the same steps,
    so that the lines of many are copied at once."""
    alike: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, SummaryRecord]]] = defaultdict(list)
    for at, read in enumerate(reads):
        for line in read.lines:
            if line.first <= numbers[-1] and line.end > numbers[0]:
                alike[line.first, line.count, tuple(line.columns)].append((at, line))
    places = {name: at for at, name in enumerate(columns)}
    for (first, count, names), lines in alike.items():
        begin, end = max(first, numbers[0]), min(first + count, numbers[-1] + 1)
        source, target = slice(begin - first, end - first), slice(begin - numbers[0], end - numbers[0])
        for at in range(0, len(lines), RUN_READING.summary_lines_at_once):
            batch = lines[at : at + RUN_READING.summary_lines_at_once]
            ranks = together([place for place, _ in batch])
            begins, values = _numbers_of([line for _, line in batch])
            begin_us[ranks, target] = begins[:, source]
            for column, name in enumerate(names):
                if name in places:
                    cells[places[name]][ranks, target] = values[:, column, source]


def _marked(lines: Iterable[SummaryLine]) -> dict[str, frozenset[int]]:
    marked: dict[str, set[int]] = {}
    for line in lines:
        for name, steps in line.marked.items():
            marked.setdefault(name, set()).update(steps)
    return {name: frozenset(steps) for name, steps in marked.items()}


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}"

"""The durations of collectives in the ranks' summaries: sums over blocks of consecutive ones
(``diag.collectors.block_sums``), as records that ``diag.account.durations`` takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.collectors.layout import MOST_NS, MOST_RANKS
from diag.collectors.records import CALLS_OF_A_SUM, BlockSums, RankRecord
from diag.deferred import pl
from diag.rundir.policy import RUN_READING

from .durations import INSPECTOR, RECORDER, SUMMED, DurationRecords, Process

Words = npt.NDArray[np.uint32]
Whole = npt.NDArray[np.int64]
_Key = tuple[str, int, int]  # name of a group, number and CRC of its ranks


@dataclass(slots=True)
class BlocksRead(BlockSums):
    """As it is read: ``values`` are bytes."""

    values: bytes  # type: ignore[assignment]

    @property
    def whole(self) -> bool:
        """Whether a collector can have written it."""
        sized = self.count > 0 and len(self.values) in (8 * self.count, 12 * self.count)
        return sized and 1 < self.ranks <= MOST_RANKS and 0 <= self.begin_ns <= self.end_ns < MOST_NS


class _Blocks(Struct, frozen=True, eq=False):
    """A row for each block and rank: places of the group and of the rank, number of the block, nanoseconds, and the
    bits of those collectives that are not in the sum."""

    group: Whole
    rank: Whole
    number: Whole
    took_ns: Whole
    missing: Whole

    def take(self, rows: npt.NDArray[np.bool_] | Whole) -> _Blocks:
        return _Blocks(self.group[rows], self.rank[rows], self.number[rows], self.took_ns[rows], self.missing[rows])


class Sums(Struct, frozen=True, eq=False):
    """``read``: each row stands for ``weight`` collectives in the time that was asked for, and was measured on
    ``calls``. ``ranks``: of the processes. ``timed``: how often each group calls is known, so that the durations are
    those of all collectives in that time; else they are those of the measured ones."""

    read: DurationRecords
    ranks: dict[int, int]
    timed: bool


def durations_in(
    sums: Sequence[Sequence[BlocksRead]], ranks: Sequence[int], identities: Sequence[RankRecord], spent_ns: int
) -> Sums | None:
    """The blocks that all recorded ranks of a group have of the same collectives; None without any. ``sums``: of each
    rank; ``spent_ns``: the time that these are to stand for.

    Of a group nearly all ranks are enough: others wait for one that is not among them as long as they do for none."""
    keys: dict[_Key, int] = {}
    found = _all_of(sums, keys)
    if found is None:
        return None
    parts, blocks = found
    members = _members(blocks, list(keys))
    blocks = _thinned(_met(blocks, members), members)
    if not len(blocks.group):
        return None
    starts = blocks.group[_starts(blocks)]
    groups = np.unique(starts)
    often = _calls_a_second(parts, len(keys))
    scale = np.ones(len(keys))
    timed = spent_ns > 0 and bool((often[groups] > 0).all())
    if timed:
        seen = CALLS_OF_A_SUM * np.bincount(starts, minlength=len(keys))[groups]
        scale[groups] = often[groups] * (spent_ns / 1e9) / seen
    names = _names(list(keys))
    calls = CALLS_OF_A_SUM - _bits(blocks.missing)
    factor = scale[blocks.group]
    rows = pl.DataFrame({
        "process": blocks.rank,
        "group": pl.Series(names, dtype=pl.String).gather(pl.Series(blocks.group)),
        "seq": blocks.number,
        "bytes": np.zeros_like(blocks.rank),
        "duration_ns": np.rint(blocks.took_ns * factor).astype(np.int64),
        "peer": np.full_like(blocks.rank, -1),
        "calls": calls,
        "weight": calls * factor,
    }).with_columns(
        op=pl.lit(SUMMED), end_ns=pl.lit(None, dtype=pl.Int64), dumped_ns=pl.lit(None, dtype=pl.Int64)
    )  # fmt: skip
    of_rank: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    there = np.unique((blocks.rank << 32) + blocks.group)
    for rank, group in zip((there >> 32).tolist(), (there & 0xFFFFFFFF).tolist(), strict=True):
        of_rank[rank][names[group]] = -1, int(members[group])
    processes = [
        Process(identity.host, identity.pid, of_rank.get(at, {}), f"{ranks[at]}")
        for at, identity in enumerate(identities)
    ]
    source = RECORDER if any(crc for _, _, crc in keys) else INSPECTOR
    read = DurationRecords(rows, tuple(processes), {}, (), (), source=source, calls_of_a_row=CALLS_OF_A_SUM)
    return Sums(read, dict(enumerate(ranks)), timed)


class _Parts(Struct, frozen=True, eq=False):
    """A row for each group of a line: places of the group and of the rank, and how many blocks; number of the first and
    of the last one, and when these began."""

    group: Whole
    rank: Whole
    count: Whole
    first: Whole
    last: Whole
    begin_ns: Whole
    end_ns: Whole


def _all_of(sums: Sequence[Sequence[BlocksRead]], keys: dict[_Key, int]) -> tuple[_Parts, _Blocks] | None:
    """All of them; the groups are added to ``keys``, with their places."""
    parts, rows = [], []
    for at, of_rank in enumerate(sums):
        for part in of_rank:
            if part.whole:
                key = part.group, part.ranks, part.ranks_crc
                rows.append((keys.setdefault(key, len(keys)), at, part.count, part.begin_ns, part.end_ns))
                parts.append(part.values)
    if not parts:
        return None
    groups, ranks, counts, begin_ns, end_ns = np.array(rows, dtype=np.int64).T
    values: Words = np.frombuffer(b"".join(parts), "<u4")
    columns = np.fromiter(map(len, parts), np.int64, len(parts)) // (4 * counts)
    starts = np.cumsum(columns * counts) - columns * counts
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # place in its part
    first, step = np.repeat(starts, counts) + within, np.repeat(counts, counts)
    missing = np.zeros(len(first), dtype=np.int64)
    told = np.repeat(columns == 3, counts)
    missing[told] = values[(first + 2 * step)[told]]
    numbers, took_ns = values[first].astype(np.int64), values[first + step].astype(np.int64) * 1000
    blocks = _Blocks(np.repeat(groups, counts), np.repeat(ranks, counts), numbers, took_ns, missing)
    ends = values[starts].astype(np.int64), values[starts + counts - 1].astype(np.int64)
    return _Parts(groups, ranks, counts, *ends, begin_ns, end_ns), blocks


def _members(blocks: _Blocks, keys: Sequence[_Key]) -> Whole:
    """How many ranks of each group have to be there: those that wrote sums, if they are nearly all; else the group has
    no block."""
    pairs = np.unique((blocks.group << 32) + blocks.rank)
    there = np.bincount(pairs >> 32, minlength=len(keys))
    sizes = np.array([size for _, size, _ in keys])
    return np.where(there >= (1 - RUN_READING.straggling_ranks_share) * sizes, there, 0)


def _met(blocks: _Blocks, members: Whole) -> _Blocks:
    """Those that all ranks have once, with the same collectives; by group, number and rank."""
    blocks = blocks.take(np.lexsort((blocks.rank, blocks.number, blocks.group)))
    starts = _starts(blocks)
    counts = np.diff(np.append(starts, len(blocks.group)))
    twice = np.diff(blocks.rank, prepend=-1) == 0
    twice[starts] = False
    same = np.minimum.reduceat(blocks.missing, starts) == np.maximum.reduceat(blocks.missing, starts)
    whole = same & (counts == members[blocks.group[starts]]) & ~np.logical_or.reduceat(twice, starts)
    return blocks.take(np.repeat(whole & (counts > 1), counts))


def _starts(blocks: _Blocks) -> Whole:
    """The first row of each block, of rows by group and number."""
    return np.flatnonzero(np.diff((blocks.group << 32) + blocks.number, prepend=-1))


def _thinned(blocks: _Blocks, members: Whole) -> _Blocks:
    """Of each group as many blocks as there is room for, spread over all that it has."""
    starts = _starts(blocks)
    if not len(starts):
        return blocks
    groups = blocks.group[starts]
    have = np.bincount(groups, minlength=len(members))
    most = int(have.max())
    while most > 1 and (np.minimum(have, most) * members).sum() > RUN_READING.most_block_sums:
        most = (most + 1) // 2
    place = np.arange(len(starts)) - np.searchsorted(groups, groups)  # among those of its group
    keep = np.minimum(have, most)[groups]
    chosen = place * keep // have[groups] != (place - 1) * keep // have[groups]
    return blocks.take(np.repeat(chosen, np.diff(np.append(starts, len(blocks.group)))))


def _bits(words: Whole) -> Whole:
    """How many bits of each word of 32 are set."""
    counted: Whole = np.unpackbits(words.astype("<u4").view(np.uint8)).reshape(-1, 32).sum(axis=1, dtype=np.int64)
    return counted


def _calls_a_second(parts: _Parts, groups: int) -> npt.NDArray[np.float64]:
    """Of each group, with those that are not in the sums: the median of its ranks; 0 where fewer than two blocks say
    when they began."""
    order = np.lexsort((parts.rank, parts.group))  # stable: the lines of a rank stay in order
    own = (parts.group << 32) + parts.rank
    starts = np.flatnonzero(np.diff(own[order], prepend=-1))
    first, last = order[starts], order[np.append(starts[1:], len(order)) - 1]
    calls = CALLS_OF_A_SUM * (parts.last[last] - parts.first[first])
    spent_ns = parts.end_ns[last] - parts.begin_ns[first]
    known = (calls > 0) & (spent_ns > 0)
    rates = 1e9 * calls[known] / spent_ns[known]
    group = parts.group[first][known]
    rates = rates[np.lexsort((rates, group))]
    have = np.bincount(group, minlength=groups)
    middle = np.cumsum(have) - have + have // 2
    return np.where(have > 0, np.append(rates, 0.0)[np.minimum(middle, len(rates))], 0.0)


def _names(keys: Sequence[_Key]) -> list[str]:
    """A name for each: its own, unless several have it."""
    count = Counter(name[:200] for name, _, _ in keys)
    return [f"{name[:200]} ({ranks}, {crc:x})" if count[name[:200]] > 1 else name[:200] for name, ranks, crc in keys]

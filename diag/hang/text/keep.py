"""A bounded choice of lines: of each kind and process the first and the last, however many there are.

All is kept while it fits. Beyond ``MOST_LINES`` lines or ``MOST_BYTES`` bytes the share of each kind and process is
halved, as often as it takes; what was left out is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

FIRST_SHARE = 32
MOST_LINES = 120_000
MOST_BYTES = 40 << 20
# Blocks (tracebacks, stacks) count by their lines, so fewer of them are kept to begin with.
BLOCK_SHARE = 4
_HALVINGS = 6
_OVERHEAD = 150  # of a kept line: a tuple and a bytes object

Found = tuple[int, int, bytes]  # file, line, as found
Lines = tuple[Found, ...]  # one line, or the lines of one traceback


@dataclass(slots=True)
class _Bucket:
    share: int
    first: list[Lines] = field(default_factory=list)
    last: deque[Lines] = field(default_factory=deque)

    def entries(self) -> Iterator[Lines]:
        yield from self.first
        yield from self.last


class Keep:
    def __init__(self) -> None:
        self._buckets: dict[tuple[object, object], _Bucket] = {}
        self._halvings = 0
        self._lines = self._bytes = 0
        self.left_out: Counter[tuple[int, object]] = Counter()  # (file, kind): lines

    def add(self, kind: object, who: object, lines: Lines, block: bool = False) -> None:
        """``kind``: what it was kept for; ``who``: the process as far as it is known without parsing."""
        key = (kind, who)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MOST_LINES or (self._halvings >= _HALVINGS and self._bytes > MOST_BYTES):
                # So many processes that none can have a share of its own any more.
                key = (kind, None)
                bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket(self._share(block))
        if len(bucket.first) < bucket.share:
            bucket.first.append(lines)
        else:
            bucket.last.append(lines)
            if len(bucket.last) > bucket.share:
                self._drop(kind, bucket.last.popleft())
        self._lines += len(lines)
        for line in lines:
            self._bytes += len(line[2]) + _OVERHEAD
        if (self._lines > MOST_LINES or self._bytes > MOST_BYTES) and self._halvings < _HALVINGS:
            self._halve()

    def entries(self) -> Iterator[tuple[object, Lines]]:
        for (kind, _), bucket in self._buckets.items():
            for lines in bucket.entries():
                yield kind, lines

    def _share(self, block: bool) -> int:
        return max(1, (BLOCK_SHARE if block else FIRST_SHARE) >> self._halvings)

    def _drop(self, kind: object, lines: Lines) -> None:
        self.left_out[lines[0][0], kind] += len(lines)
        self._lines -= len(lines)
        for line in lines:
            self._bytes -= len(line[2]) + _OVERHEAD

    def _halve(self) -> None:
        """Shares are halved; with shares of one, what is kept can still be more than the bound: it then grows only with
        the number of kinds and processes, which `add` bounds."""
        self._halvings += 1
        for (kind, _), bucket in self._buckets.items():
            share = bucket.share = max(1, bucket.share // 2)
            rest = [*bucket.first[share:], *bucket.last]
            bucket.first = bucket.first[:share]
            for lines in rest[: max(0, len(rest) - share)]:
                self._drop(kind, lines)
            bucket.last = deque(rest[max(0, len(rest) - share) :])

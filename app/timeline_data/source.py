"""The analysed runs that pages show, by the names under which the canvas requests parts of them."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from diag.api import Result
from diag.app.policy import DASHBOARD
from diag.app.timeline_data.asked import RefusedError
from diag.tables.overlays import Counter, Launches, PathLine, counters_of, launches_of, path_line
from diag.tables.tiles import EventFacts, Row, Search, facts_of, lanes_of, rows_of, search
from diag.tables.zoom import Lane, RankLanes, event_lanes, has_python, python_lanes
from diag.timeline import events_of, timeline_of

_Kept = TypeVar("_Kept")


@dataclass(eq=False)
class Tally:
    """How many events a search finds, by rank, for the ranks counted so far. ``ended``: no more counts will come."""

    ranks: int
    counts: dict[int, int] = field(default_factory=dict)
    ended: bool = False


class Source:
    """An analysed run, with a cache of the latest requests of its timeline. Thread-safe."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self._lock = threading.RLock()
        self._rows: OrderedDict[tuple[int, bool], tuple[Row, ...]] = OrderedDict()
        self._searches: OrderedDict[tuple[int, str, bool], Search] = OrderedDict()
        self._tallies: OrderedDict[tuple[str, bool], Tally] = OrderedDict()
        self._launches: OrderedDict[int, Launches] = OrderedDict()
        self._counters: OrderedDict[int, list[Counter]] = OrderedDict()
        self._path: PathLine | None = None

    def account(self, rank: int) -> RankLanes:
        account = timeline_of(self.result).ranks.get(rank)
        if account is None:
            raise RefusedError(f"the run has no rank {rank}")
        return account

    def events(self, rank: int) -> tuple[Lane, ...]:
        """The lanes of the rank's traces, which are read at the first call."""
        with self._lock:
            return events_of(self.result, rank)

    def rows(self, rank: int, python: bool) -> tuple[Row, ...]:
        """The rows of a rank. ``python``: with Python's functions, which come last."""
        account = self.account(rank)
        with self._lock:
            return _kept(
                self._rows,
                (rank, python),
                DASHBOARD.timeline_ranks_kept,
                lambda: self._laid_out(account, self.events(rank), python),
            )

    def path(self) -> PathLine:
        """The critical path of the run."""
        with self._lock:
            if self._path is None:
                self._path = path_line(self.result.attribution, timeline_of(self.result))
            return self._path

    def launches(self, rank: int, python: bool) -> Launches:
        """The launches in the rank's traces. Rows of Python's functions come last, so ``python`` changes no place."""
        rows, tables = self.rows(rank, python), self.result.tables.ranks[rank]
        with self._lock:
            return _kept(
                self._launches,
                rank,
                DASHBOARD.timeline_ranks_kept,
                lambda: launches_of(rows, tables, self.account(rank)),
            )

    def counters(self, rank: int) -> list[Counter]:
        """What was sampled on the rank."""
        account, met = self.account(rank), self.result.attribution.collectives
        with self._lock:
            return _kept(
                self._counters,
                rank,
                DASHBOARD.timeline_ranks_kept,
                lambda: counters_of(self.result.tables.ranks[rank], account, met, gloo=not self.result.on_device),
            )

    def has_python(self, rank: int) -> bool:
        return has_python(self.result.tables.ranks[rank]) if self.account(rank).traced else False

    def search(self, rank: int, text: str, python: bool) -> Search:
        rows = self.rows(rank, python)
        with self._lock:
            return _kept(self._searches, (rank, text, python), DASHBOARD.searches_kept, lambda: search(rows, text))

    def tally(self, text: str, python: bool, first: Sequence[int]) -> Tally:
        """How many events a search finds on each rank, those in ``first`` before the others. A thread counts; the tally
        is returned at once and fills up."""
        with self._lock:
            if (text, python) not in self._tallies:
                ranks = list(
                    dict.fromkeys((*(self.account(rank).rank for rank in first), *timeline_of(self.result).ranks))
                )
                counting = Tally(len(ranks))
                threading.Thread(target=self._count, args=(counting, ranks, text, python), daemon=True).start()
                return _kept(self._tallies, (text, python), DASHBOARD.searches_kept, lambda: counting)
            return self._tallies[text, python]

    def _count(self, counting: Tally, ranks: Sequence[int], text: str, python: bool) -> None:
        try:
            for rank in ranks:
                with self._lock:
                    if counting not in self._tallies.values():
                        return  # _SEARCHES_KEPT newer searches have replaced this one
                    account = self.account(rank)
                    rows = self._rows.get((rank, python))
                    if rows is None:  # read, but not cached: that would evict ranks that are drawn
                        events = event_lanes(self.result.tables.ranks[rank], account)
                        rows = self._laid_out(account, events, python)
                    counting.counts[rank] = len(search(rows, text))
                time.sleep(DASHBOARD.turn_s)  # a tile may be waiting
        finally:
            counting.ended = True

    def _laid_out(self, account: RankLanes, events: Sequence[Lane], python: bool) -> tuple[Row, ...]:
        functions = python_lanes(self.result.tables.ranks[account.rank], account) if python else ()
        return rows_of(lanes_of(account, [*events, *functions]))

    def facts(self, rank: int, row: int, index: int, python: bool) -> EventFacts:
        with self._lock:
            return facts_of(self.rows(rank, python)[row], index, self.result.tables.ranks[rank], self.account(rank))


def _kept(cache: OrderedDict[Any, _Kept], key: object, most: int, make: Callable[[], _Kept]) -> _Kept:
    if key not in cache:
        cache[key] = make()
        while len(cache) > most:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


_SOURCES: OrderedDict[str, Source] = OrderedDict()
_SOURCES_LOCK = threading.Lock()


def share(result: Result) -> str:
    """The name under which the canvas requests parts of the run."""
    with _SOURCES_LOCK:
        name = next((name for name, source in _SOURCES.items() if source.result is result), secrets.token_hex(8))
        _kept(_SOURCES, name, DASHBOARD.timelines_kept, lambda: Source(result))
    return name


def source_of(name: str) -> Source:
    """The run of this name. RefusedError if no page has shown it lately."""
    with _SOURCES_LOCK:
        source = _SOURCES.get(name)
        if source is None:
            raise RefusedError("reload the page", HTTPStatus.GONE)
        _SOURCES.move_to_end(name)
        return source

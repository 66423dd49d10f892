"""Events as Kineto prints them, decoded column by column.

Kineto prints an event on lines of its own (kineto_layout). The first lines repeat, so each distinct one is
decoded once (kineto_heads), and the numbers are read where they stand, all of a chunk at once
(byte_columns): 22 ms for 8 MB, where decoding every event and making columns of them takes 55.
Events that look different are decoded one by one; a chunk in which many do, or whose lines do not add up to its events,
is none of ours (`KinetoText.decode` returns False): the decoder of any JSON takes it, and complains if need be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from .. import kineto_json
from ..event_table import EventTable
from ..kineto_events import MEMORY_EVENT, add_events
from ..stored_events import ARGS_ROW, COUNTERS, STORED
from .byte_columns import Mask, Positions, Text, starts_with
from .kineto_arguments import ABSENT, Key, integers
from .kineto_heads import Heads
from .kineto_layout import Layout, layout
from .kineto_times import TIMES, read_times

_PHASE, _DURATION = b'    "ph": "', b'    "ph": "X", '
_SAMPLE_END = f'"{MEMORY_EVENT}",'.encode()
_MOST_ODD = 0.2  # of the events may look different before the chunk goes to the general decoder
_CORRELATION: Key = (b'"correlation": ', 3)
# In the arguments that are kept: what describes communication or the shapes of an operator.
_TELLING = (b'"Collective name": ', b'"Input Dims": ')
_STREAM = b'"stream": '
_COUNTER_KEYS: dict[str, Key] = {
    "device_type": (b'"Device Type": ', 8),
    "device": (b'"Device Id": ', 8),
    "allocated": (b'"Total Allocated": ', 7),
    "reserved": (b'"Total Reserved": ', 7),
}


class KinetoText:
    """Decodes chunks into a table. Remembers what the first lines of events say."""

    def __init__(self, table: EventTable, name: str) -> None:
        self.table = table
        self.name = name
        self._heads = Heads(table)

    def decode(self, pieces: Sequence[bytes]) -> bool:
        """Whether the chunk was Kineto's own printing; if so, it is in the table now."""
        text = Text(*pieces)
        events = layout(text)
        if events is None:
            return False
        head, _ = events.head
        beginning = text.windows(head, 2)
        phase = beginning.view(np.uint8)[:, len(_PHASE)]
        duration = starts_with(beginning, _DURATION)
        ignored = (phase != ord("X")) & starts_with(beginning, _PHASE)
        durations = events.only(duration)
        ts_ns, dur_ns, timed = read_times(durations)
        odd = ~(duration | ignored)
        if not timed.all():
            odd[np.flatnonzero(duration)[~timed]] = True
            durations, ts_ns, dur_ns = durations.only(timed), ts_ns[timed], dur_ns[timed]
        if odd.sum() > _MOST_ODD * len(odd):
            return False
        begin, end = durations.head
        heads = self._heads.of(text, begin + len(_DURATION), end)
        if heads is None:
            return False
        self._add(durations, ts_ns, dur_ns, heads)
        self._add_samples(events.only(np.flatnonzero(ignored & (phase == ord("i")))))
        if odd.any():
            bodies = text.slices(*events.only(odd).whole)
            add_events(self.table, kineto_json.events(b"{%b}" % b"},{".join(bodies), self.name))
        return True

    def _add(self, events: Layout, ts_ns: Positions, dur_ns: Positions, heads: npt.NDArray[np.void]) -> None:
        launching = np.flatnonzero(heads["launches"])
        correlation = np.full(len(events), ABSENT)
        correlation[launching] = integers(events.only(launching), [_CORRELATION])[0]
        columns = {
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            **{key: np.ascontiguousarray(heads[key]) for key in ("name", "cat", "thread")},
            "correlation": correlation,
            ARGS_ROW: self._argument_rows(events, np.flatnonzero(heads["arguments"]), heads["tells_stream"]),
        }
        kept = heads["kept"]
        if not kept.all():
            columns = {key: column[kept] for key, column in columns.items()}
        self.table.add(_with_nulls(columns, STORED))

    def _argument_rows(self, events: Layout, candidates: Positions, tells_stream: Mask) -> Positions:
        """For each event, its arguments' row in the table."""
        found = np.full(len(events), ABSENT)
        bodies = events.text.slices(*events.only(candidates).arguments)
        keys = _TELLING if not tells_stream[candidates].any() else (*_TELLING, _STREAM)
        together = b"\n".join(bodies)
        if not any(key in together for key in keys):  # recorded without shapes, by a profiler before torch 2.2
            return found
        for index, body in zip(candidates.tolist(), bodies, strict=True):
            if any(key in body for key in _TELLING) or (tells_stream[index] and _STREAM in body):
                found[index] = self.table.arguments_row(kineto_json.arguments(b"{" + body))
        return found

    def _add_samples(self, events: Layout) -> None:
        """The allocator's samples among these instants."""
        text, (_, end) = events.text, events.head
        events = events.only(text.equal(end - len(_SAMPLE_END), _SAMPLE_END))
        if not len(events):
            return
        # The thread has a line of its own, so that the times are on the third.
        _, thread_end = events.line(1)
        begin = thread_end + 1 + len(TIMES)
        ts_ns, timed = text.microseconds(begin, text.number_end(begin))
        timed &= text.equal(thread_end + 1, TIMES)
        columns = dict(zip(_COUNTER_KEYS, integers(events, list(_COUNTER_KEYS.values())), strict=True))
        for values in columns.values():
            timed &= values != ABSENT
        columns["ts_ns"] = ts_ns
        self.table.add_counters(_with_nulls({key: columns[key][timed] for key in COUNTERS}, COUNTERS))


def _with_nulls(columns: dict[str, npt.NDArray[np.generic]], schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """The columns as a table, with null for ABSENT."""
    found = []
    for name, kind in schema.items():
        column = pl.Series(name, columns[name])
        if columns[name].dtype == np.int64:
            absent = columns[name] == ABSENT
            if absent.all():
                column = pl.Series(name, [None], dtype=kind).new_from_index(0, len(absent))
            elif absent.any():
                column = column.set(pl.Series(absent), None)
        found.append(column.cast(kind, strict=False))
    return pl.DataFrame(found)

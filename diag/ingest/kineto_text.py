"""Events as Kineto prints them, decoded column by column.

Since PyTorch 1.8 Kineto prints an event on lines of its own: phase, category, name and thread on the first, times on
the second, arguments behind. The first lines repeat (a trace of a million events has thousands of different ones), so
each distinct one is decoded once, as JSON, and the numbers are read where they stand, all of a chunk at once
(diag.ingest.byte_columns): 27 ms for 8 MB, where decoding every event and making columns of them takes 55.
Events that look different are decoded one by one; a chunk in which many do, or whose lines do not add up to its events,
is none of ours (`KinetoText.decode` returns False): the decoder of any JSON takes it, and complains if need be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl

from . import kineto_json
from .byte_columns import Mask, Positions, Text
from .event_table import MAX_NAMES, EventTable, Head
from .kineto_events import MEMORY_EVENT, add_events
from .trace import ARGS_ROW, COUNTERS, STORED

_PHASE, _DURATION = b'    "ph": "', b'    "ph": "X", '
_TIMES, _BETWEEN_TIMES, _ARGS = b'    "ts": ', b', "dur": ', b'    "args": {'
_SAMPLE_END = f'"{MEMORY_EVENT}",'.encode()
_MOST_ODD = 0.2  # of the events may look different before the chunk goes to the general decoder
_ABSENT = -(1 << 62)  # stands for null in the arrays below
# A key of the arguments, and which of its bytes is rare in a trace.
_Key = tuple[bytes, int]
_CORRELATION: _Key = (b'"correlation": ', 3)
_COUNTER_KEYS: dict[str, _Key] = {
    "device_type": (b'"Device Type": ', 8),
    "device": (b'"Device Id": ', 8),
    "allocated": (b'"Total Allocated": ', 7),
    "reserved": (b'"Total Reserved": ', 7),
}
_HEAD = msgspec.json.Decoder(kineto_json.Event)


@dataclass(frozen=True)
class _Layout:
    """Where the lines of each event are in the text. All arrays have the length of the events."""

    text: Text
    head: Positions  # the first line, [head, head_end)
    head_end: Positions
    times: Positions
    times_end: Positions
    args: Positions  # what follows the opening of the arguments
    end: Positions  # of the last line inside the event's braces

    def first(self, key: _Key) -> Positions:
        """Where the key stands first among each event's arguments; -1 where it does not."""
        found = np.full(len(self.args), -1, dtype=np.int64)
        if len(found):
            at = self.text.places(*key)
            event = np.searchsorted(self.args, at, side="right") - 1
            inside = (event >= 0) & (at < self.end.take(np.maximum(event, 0)))
            found[event[inside][::-1]] = at[inside][::-1]  # of several, the first one stays
        return found

    def arguments(self) -> _Layout:
        """The arguments alone, in a text of their own: for the few events that are searched for many keys."""
        bodies = self.text.slices(self.args, self.end)
        text = Text(b"\n".join(bodies))
        ends = np.cumsum(np.array([len(body) + 1 for body in bodies])) + (text.begin - 1)
        begin = np.concatenate(([text.begin], ends[:-1] + 1))
        return _Layout(text, begin, begin, begin, begin, begin, ends)

    def only(self, chosen: Mask | Positions) -> _Layout:
        return _Layout(
            self.text,
            *(getattr(self, key)[chosen] for key in ("head", "head_end", "times", "times_end", "args", "end")),
        )


@dataclass
class KinetoText:
    """Decodes chunks into a table. Remembers what the first lines of events say."""

    table: EventTable
    name: str
    _heads: dict[int, Head] = field(default_factory=dict)  # by fingerprint

    def decode(self, chunk: bytes) -> bool:
        """Whether the chunk was Kineto's own printing; if so, it is in the table now."""
        events = _layout(Text(chunk))
        if events is None:
            return False
        text = events.text
        phase = text.at.take(events.head + len(_PHASE))
        usual = text.equal(events.head, _PHASE)
        duration, ignored = usual & (phase == ord("X")), usual & (phase != ord("X"))
        durations = events.only(duration)
        ts_ns, dur_ns, timed = _read_times(durations)
        durations = durations.only(timed)
        known, code = self._heads_of(durations)
        if None in known:
            return False
        odd = ~duration & ~ignored
        odd[np.flatnonzero(duration)[~timed]] = True
        if odd.sum() > _MOST_ODD * len(odd):
            return False
        self._add(durations, ts_ns[timed], dur_ns[timed], [head for head in known if head is not None], code)
        instants = events.only(ignored & (phase == ord("i")))
        self._add_samples(instants.only(text.equal(instants.head_end - len(_SAMPLE_END), _SAMPLE_END)))
        if odd.any():
            others = events.only(odd)
            bodies = text.slices(others.head, others.end)
            add_events(self.table, kineto_json.events(b"{%b}" % b"},{".join(bodies), self.name))
        return True

    def _heads_of(self, events: _Layout) -> tuple[list[Head | None], Positions]:
        """The different first lines, and which of them each event has; None for one that is no such line."""
        prints = events.text.fingerprints(events.head + len(_DURATION), events.head_end)
        distinct, example, code = np.unique(prints, return_index=True, return_inverse=True)
        if len(self._heads) > MAX_NAMES:
            self._heads.clear()
        known: list[Head | None] = []
        for fingerprint, index in zip(distinct.tolist(), example.tolist(), strict=True):
            head = self._heads.get(fingerprint)
            if head is None:
                head = self._new_head(events.text.raw[events.head[index] : events.head_end[index]])
                if head is not None:
                    self._heads[fingerprint] = head
            known.append(head)
        return known, code

    def _new_head(self, line: bytes) -> Head | None:
        try:
            event = _HEAD.decode(b"{%b}" % line.rstrip(b", "))
        except (msgspec.DecodeError, UnicodeError):
            return None
        if event.pid is None or event.tid is None or event.name is None:
            return None  # printed in another order: its parts are on other lines
        return self.table.head_of(event)

    def _add(self, events: _Layout, ts_ns: Positions, dur_ns: Positions, known: list[Head], code: Positions) -> None:
        if not known:
            return

        def of_head(field: str, kind: type[np.generic]) -> np.ndarray:
            found: np.ndarray = np.array([getattr(head, field) for head in known], dtype=kind)[code]
            return found

        columns = {
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "name": of_head("name", np.uint32),
            "cat": of_head("cat", np.uint8),
            "thread": of_head("thread", np.uint32),
            "correlation": np.where(of_head("launches", np.bool_), _integers(events, _CORRELATION), _ABSENT),
            ARGS_ROW: self._argument_rows(
                events, np.flatnonzero(of_head("arguments", np.bool_)), of_head("tells_stream", np.bool_)
            ),
        }
        kept = of_head("kept", np.bool_)
        if not kept.all():
            columns = {key: column[kept] for key, column in columns.items()}
        self.table.add(
            pl.DataFrame(columns).select(
                pl.when(pl.col(key) != _ABSENT).then(pl.col(key)).cast(kind, strict=False).alias(key)
                if columns[key].dtype == np.int64
                else key
                for key, kind in STORED.items()
            )
        )

    def _argument_rows(self, events: _Layout, candidates: Positions, tells_stream: Mask) -> Positions:
        """For each event, its arguments' row in the table."""
        found = np.full(len(events.head), _ABSENT, dtype=np.int64)
        bodies = events.text.slices(events.args[candidates], events.end[candidates])
        for index, body in zip(candidates.tolist(), bodies, strict=True):
            told = b'"Collective name": ' in body or b'"Input Dims": ' in body
            if told or (tells_stream[index] and b'"stream": ' in body):
                found[index] = self.table.arguments_row(kineto_json.arguments(b"{" + body))
        return found

    def _add_samples(self, events: _Layout) -> None:
        if not len(events.head):
            return
        arguments = events.arguments()
        columns = {key: _integers(arguments, name) for key, name in _COUNTER_KEYS.items()}
        # The thread has a line of its own, so that the times are on the third.
        begin = events.times_end + 1 + len(_TIMES)
        columns["ts_ns"], timed = events.text.microseconds(begin, events.text.number_end(begin))
        timed &= events.text.equal(events.times_end + 1, _TIMES)
        samples = pl.DataFrame(columns).select(*COUNTERS).filter(timed)
        self.table.add_counters(
            samples.filter(pl.all_horizontal(pl.all() != _ABSENT)).cast(pl.Schema(COUNTERS), strict=False)
        )


def _layout(text: Text) -> _Layout | None:
    """The lines of each event; None where the text is not printed like Kineto's, or where an event is not one."""
    begin, newline = text.lines()
    size = newline - begin
    short = np.flatnonzero((size == 3) | (size == 4))
    line = text.windows(begin[short], 1)[:, 0]
    three, four = line & np.uint64(0xFFFFFF), line & np.uint64(0xFFFFFFFF)
    opening = short[(three == _word(b"  {")) & (size[short] == 3)]
    closing = short[((three == _word(b"  }")) & (size[short] == 3)) | (four == _word(b"  },"))]
    # Every event opens right after the one before it has closed, and nothing stands around them.
    if not len(opening) or len(opening) != len(closing) or (opening[1:] != closing[:-1] + 1).any():
        return None
    around = text.raw[: begin[opening[0]]] + text.raw[newline[closing[-1]] :]
    if around.strip() or (closing - opening < 3).any():
        return None
    body = np.minimum(opening + 4, closing)
    return _Layout(
        text=text,
        head=begin[opening + 1],
        head_end=newline[opening + 1],
        times=begin[opening + 2],
        times_end=newline[opening + 2],
        args=begin[body],
        end=newline[closing - 1],
    )


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


def _read_times(events: _Layout) -> tuple[Positions, Positions, Mask]:
    """ts_ns, dur_ns, and whether the event is printed like most: times on the second line, then its arguments."""
    text = events.text
    # The times end with a comma where arguments follow.
    end = events.times_end - 1
    whole = (text.at.take(end) == ord(",")) & text.equal(events.args - len(_ARGS) - 1, _ARGS + b"\n")
    dur_begin = text.last_space(end) + 1
    whole &= dur_begin > events.times + len(_TIMES) + len(_BETWEEN_TIMES)
    dur_begin = np.where(whole, dur_begin, end)
    ts_end = dur_begin - len(_BETWEEN_TIMES)
    ts_ns, ts_valid = text.microseconds(events.times + len(_TIMES), ts_end)
    dur_ns, dur_valid = text.microseconds(dur_begin, end)
    whole &= ts_valid & dur_valid & text.equal(events.times, _TIMES) & text.equal(ts_end, _BETWEEN_TIMES)
    return ts_ns, dur_ns, whole


def _integers(events: _Layout, key: _Key) -> Positions:
    """The integer behind the first ``key`` in each event, quoted or not; _ABSENT where there is none."""
    text, at = events.text, events.first(key)
    has = np.flatnonzero(at >= 0)
    begin = at[has] + len(key[0])
    begin += text.at.take(begin) == ord('"')
    negative = text.at.take(begin) == ord("-")
    begin += negative
    value, valid = text.integers(begin, text.number_end(begin))
    found = np.full(len(at), _ABSENT, dtype=np.int64)
    found[has] = np.where(valid, np.where(negative, -value, value), _ABSENT)
    return found

"""Decodes events in Kineto's own layout column by column.

Kineto prints an event on lines of its own. The first lines (category, name, thread) repeat, so each distinct one is
decoded once, and the numbers of a whole chunk are read in place at once (byte_columns): 22 ms for 8 MB, where decoding
every event and making columns of them takes 55. Events of another layout are decoded one by one. A chunk with many such
events, or whose lines do not add up to its events, is refused (`KinetoText.decode` returns False): the general JSON
decoder takes it, and reports errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.decoding import json_decoder
from diag.deferred import Schema, pl
from diag.traces.event_table import MEMORY_EVENT, EventTable, Head, add_events
from diag.traces.policy import TRACE_LIMITS, TRACE_READING
from diag.traces.trace import ARGS_ROW, COUNTERS, STORED

from .. import kineto_json
from .byte_columns import (
    FAR_US,
    WORD,
    Mask,
    Positions,
    Text,
    Words,
    digits,
    ends_with,
    goes_on,
    number_at,
    starts_with,
    word_at,
)

# -- kineto heads ------------------------------------------------------------------------------------------------------
#
# Caches the decoded first lines of events.
#
# A trace of a million events has thousands of different first lines, so each is decoded once, as JSON, and identified
# by its fingerprint from then on.

_EVENT = json_decoder(kineto_json.KinetoEvent)
_HEAD = np.dtype(
    [
        ("stored", np.bool_),
        ("name", np.uint32),
        ("cat", np.uint8),
        ("thread", np.uint32),
        ("launches", np.bool_),
        ("arguments", np.bool_),
        ("may_name_stream", np.bool_),
    ]
)
_fields = attrgetter(*_HEAD.names or ())


class Heads(Struct):
    table: EventTable
    _known: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, _HEAD))  # columns of Head
    _index: dict[int, int] = field(default_factory=dict)  # fingerprint: its place in _known
    # The same as arrays, with one place per beginning of a fingerprint: a lookup instead of a sort of all lines.
    _slots: Words = field(default_factory=lambda: np.zeros(1 << TRACE_READING.slot_bits, np.uint64))
    _slot_index: Positions = field(default_factory=lambda: np.full(1 << TRACE_READING.slot_bits, -1))

    def of(self, text: Text, begin: Positions, end: Positions) -> npt.NDArray[np.void] | None:
        """The columns of Head for the lines ``[begin, end)``; None if one of them is not such a line."""
        if len(self._index) > TRACE_LIMITS.most_names:
            self._forget()
        prints = text.fingerprints(begin, end)
        slots = (prints >> np.uint64(64 - TRACE_READING.slot_bits)).view(np.int64)
        index = self._slot_index.take(slots)
        others = np.flatnonzero((self._slots.take(slots) != prints) | (index < 0))
        if len(others):
            distinct, example, code = np.unique(prints[others], return_index=True, return_inverse=True)
            example = others[example]
            if not self._learn(distinct.tolist(), text.slices(begin[example], end[example])):
                return None
            learned = np.array([self._index[fingerprint] for fingerprint in distinct.tolist()])
            index[others] = learned[code]
            self._slots[slots[example]], self._slot_index[slots[example]] = distinct, learned
        return self._known.take(index)

    def _learn(self, prints: Sequence[int], lines: Sequence[bytes]) -> bool:
        """Decodes the lines that are new; False if one is not a line of Kineto's."""
        new: list[Head] = []
        whole = True
        for fingerprint, line in zip(prints, lines, strict=True):
            if fingerprint in self._index:
                continue
            head = self._head(line)
            if head is None:
                whole = False
                break
            self._index[fingerprint] = len(self._known) + len(new)
            new.append(head)
        self._known = np.concatenate((self._known, np.array([_fields(head) for head in new], dtype=_HEAD)))
        return whole

    def _head(self, line: bytes) -> Head | None:
        try:
            event = _EVENT.decode(b"{%b}" % line.rstrip(b", "))
        except (msgspec.DecodeError, UnicodeError):
            return None
        if event.pid is None or event.tid is None or event.name is None:
            return None  # printed in another order: its parts are on other lines
        return self.table.head_of(event)

    def _forget(self) -> None:
        self._known = self._known[:0]
        self._index.clear()
        self._slot_index[:] = -1


# -- kineto layout -----------------------------------------------------------------------------------------------------
#
# Positions of each event, in text as Kineto prints it.
#
# Since PyTorch 1.8 Kineto prints an event on its own lines: phase, category, name and thread on the first, times on the
# second, then arguments; and a line with only a brace before and after it. A trace has 11 lines for each event, but two
# opening braces, so these are looked for, and times and first line are found from the arguments, backwards.


class Layout(Struct, frozen=True):
    """Where the braces of each event are. All arrays have the length of the events."""

    text: Text
    opening: Positions  # the brace that opens the event, on its own line
    closing: Positions  # the newline before the line with the brace that closes it
    args: Positions  # the brace that opens its arguments; ABSENT without
    named: Mask  # another object may begin before its arguments: in its name, by all appearances
    nested: Mask  # another object may begin elsewhere in it

    def __len__(self) -> int:
        return len(self.opening)

    @property
    def begin(self) -> Positions:
        """Where the first line begins."""
        return self.opening + 2

    @property
    def arguments(self) -> tuple[Positions, Positions]:
        """(begin, end) of the text after the opening of the arguments, up to the last line's end."""
        return self.args + 2, self.closing

    @property
    def whole(self) -> tuple[Positions, Positions]:
        """(begin, end) of all lines."""
        return self.begin, self.closing

    def only(self, chosen: Mask | Positions) -> Self:
        """These events: a mask or their indices."""
        if chosen.dtype == np.bool_:
            if chosen.all():
                return self
            chosen = np.flatnonzero(chosen)
        opening, closing, args = (column.take(chosen) for column in (self.opening, self.closing, self.args))
        return type(self)(self.text, opening, closing, args, self.named.take(chosen), self.nested.take(chosen))


_MAY_FOLLOW_BRACE = np.isin(np.arange(256), list(b' \t\n\r"}'))  # in JSON, where the brace opens an object
# Two words, and less.
_OPEN_ARGS, _BETWEEN_EVENTS = b',\n    "args": {\n', b"\n  },\n  {\n"
_FIRST_OPENING, _LAST_CLOSING = b"\n  {\n", b"\n  }"


def layout(text: Text) -> Layout | None:
    """Where each event and its arguments begin and end; None if the text is not printed like Kineto's, or if part of it
    is not an event.

    Every opening brace is looked at: it is between two events, or before arguments, or followed by a letter and so
    inside a text, or its event is told apart. So no event can hide in another one, however the text is printed."""
    braces = np.flatnonzero(text.at == ord("{"))
    if not len(braces):
        return None
    first, end = int(braces[0]), text.raw.rfind(_LAST_CLOSING)
    head = text.raw[: first + 2]
    if not head.endswith(_FIRST_OPENING) or head[: -len(_FIRST_OPENING)].strip() or end < first:
        return None
    if text.raw[end + len(_LAST_CLOSING) :].removeprefix(b",").strip():
        return None
    around = text.windows(braces - (len(_OPEN_ARGS) - 2), len(_OPEN_ARGS) // WORD)
    opens = ends_with(around, _BETWEEN_EVENTS)
    opens[0] = True
    opens_args = ends_with(around, _OPEN_ARGS)
    event = np.cumsum(opens) - 1
    opening = braces[opens]
    owner = event[opens_args]
    if (owner[1:] == owner[:-1]).any():
        return None
    args = np.full(len(opening), ABSENT)
    args[owner] = braces[opens_args]
    named, nested = np.zeros((2, len(opening)), dtype=np.bool_)
    others = np.flatnonzero(~(opens | opens_args))
    others = others[_MAY_FOLLOW_BRACE.take(text.at.take(braces[others] + 1))]
    if len(others):
        owner = event[others]
        in_name = braces[others] < args[owner]
        named[owner[in_name]] = nested[owner[~in_name]] = True
    closing = np.append(opening[1:] - (len(_BETWEEN_EVENTS) - 2), end)
    return Layout(text, opening, closing, args, named, nested)


# -- kineto arguments --------------------------------------------------------------------------------------------------
#
# The integers after some keys in the events' arguments.
#
# Kineto prints the arguments of one kind of event in one order. A single key, which no event has twice, is looked for
# where an example has it. For several keys the text between the numbers, which is the same in all events of the kind,
# is taken from an example and only compared in the others, number by number. The few events that match none of the
# first examples are searched for the keys. In a trace of a million events, of which 310,000 are launches or launched
# and 140,000 memory samples, that takes 0.14 s; searching all of them took 0.3.

ABSENT = -(1 << 62)  # stands for null
# A key of the arguments with the separator before its value, and the index of a byte in it that is rare in a trace.
Key = tuple[bytes, int]

_NUMBER = re.compile(rb'(?<=: )"?-?\d[\d.]*')


def integers(events: Layout, keys: Sequence[Key]) -> npt.NDArray[np.int64]:
    """The integer after the first occurrence of each key in each event, quoted or not; ABSENT if there is none. Shape
    (keys, events)."""
    by_key = np.full((len(keys), len(events)), ABSENT, dtype=np.int64)
    begin, end = events.arguments
    rest = np.arange(len(events))
    unlike = []
    for _ in range(TRACE_READING.examples):
        if not len(rest):
            break
        example = events.text.raw[begin[rest[0]] : end[rest[0]]]
        between = _between_numbers(example, keys)
        if between is None:
            unlike.append(rest[:1])
            rest = rest[1:]
            continue
        if len(keys) == 1:
            alike, values = _at_once(events.text, begin.take(rest), end.take(rest), between, keys[0][0])
        else:
            alike, values = _follow(events.text, begin.take(rest), between, len(keys))
        by_key[:, rest.take(alike)] = values
        rest = np.delete(rest, alike)
    rest = np.concatenate((*unlike, rest))
    if len(rest):
        by_key[:, rest] = _searched(events.text.slices(begin.take(rest), end.take(rest)), keys)
    return by_key


class _Part(Struct, frozen=True):
    """The text before a number in an example, and the width of the number: with its quote and sign, and without."""

    text: bytes
    width: int
    digits: int  # number of digits
    key: int | None  # the number follows this key, by its index among the keys


def _between_numbers(body: bytes, keys: Sequence[Key]) -> list[_Part] | None:
    """The text before each number up to the last of the keys; None if other events can hardly share it, or if a key is
    missing or has no number."""
    places = [body.find(key, 0, TRACE_READING.example_bytes) for key, _ in keys]
    if min(places) < 0:
        return None
    ends = {place + len(key): number for number, (place, (key, _)) in enumerate(zip(places, keys, strict=True))}
    last = max(ends)
    numbers = [
        match.span()
        for match in _NUMBER.finditer(body, 0, last + TRACE_READING.example_number_bytes)
        if match.start() <= last
    ]
    if not ends.keys() <= {begin for begin, _ in numbers}:
        return None
    before = [0, *(end for _, end in numbers[:-1])]
    parts = [
        _Part(body[at:begin], end - begin, len(body[begin:end].lstrip(b'"-')), ends.get(begin))
        for at, (begin, end) in zip(before, numbers, strict=True)
    ]
    if any(
        len(part.text) > TRACE_READING.example_text_bytes or part.width >= TRACE_READING.example_number_bytes
        for part in parts
    ):
        return None
    return parts


def _at_once(
    text: Text, begin: Positions, end: Positions, parts: Sequence[_Part], key: bytes
) -> tuple[Positions, npt.NDArray[np.int64]]:
    """As `_follow` for one key: which of the texts have it where the example has it, whatever stands before."""
    offset = sum(len(part.text) + part.width for part in parts) - parts[-1].width - len(key)
    place = np.minimum(begin + offset, end)
    alike = np.flatnonzero(text.equal(place, key) & (place < end))
    values, _ = _integers(text, place.take(alike) + len(key), parts[-1].digits)
    return alike, values[None]


def _follow(text: Text, at: Positions, parts: Sequence[_Part], keys: int) -> tuple[Positions, npt.NDArray[np.int64]]:
    """Which of the texts that begin at these positions agree in everything between their numbers, and the integers
    after the keys in these."""
    alike = np.arange(len(at))
    by_key = np.full((keys, len(at)), ABSENT, dtype=np.int64)
    number = at  # where the last number began
    for part in parts:
        same = text.equal(at, part.text)
        if not same.all():
            others = np.flatnonzero(~same)
            at[others] = text.number_end(_signless(text, number[others]))
            same[others] = text.equal(at[others], part.text)
            left = np.flatnonzero(same)
            alike, at, number, by_key = alike.take(left), at.take(left), number.take(left), by_key.take(left, axis=1)
        number = at + len(part.text)
        if part.key is None:
            at = number + part.width  # mostly as wide as in the example
        else:
            by_key[part.key], at = _integers(text, number, part.digits)
    return alike, by_key


def _searched(bodies: Sequence[bytes], keys: Sequence[Key]) -> npt.NDArray[np.int64]:
    """The integers after the first occurrence of each key in each of the texts."""
    text = Text(b"\n".join(bodies))
    begin = text.begin + np.cumsum([0, *(len(body) + 1 for body in bodies[:-1])])
    by_key = np.full((len(keys), len(bodies)), ABSENT, dtype=np.int64)
    for row, (key, rare) in enumerate(keys):
        at = text.places(key, rare)
        values, _ = _integers(text, at + len(key), 1)
        by_key[row, (np.searchsorted(begin, at, side="right") - 1)[::-1]] = values[::-1]  # the first of several remains
    return by_key


def _integers(text: Text, begin: Positions, width: int) -> tuple[Positions, Positions]:
    """The integers that begin at these positions, ABSENT if there is none, and where they end. ``width``: the number of
    digits that most have."""
    digits = _signless(text, begin)
    end = digits + width
    value, valid = text.integers(digits, end)
    after = text.at.take(end)
    others = np.flatnonzero(~valid | goes_on(after))
    if len(others):
        end[others] = text.number_end(digits[others])
        value[others], valid[others] = text.integers(digits[others], end[others])
    negative = text.at.take(digits - 1) == ord("-")
    if negative.any():
        value = np.where(negative, -value, value)
    return np.where(valid, value, ABSENT), end


def _signless(text: Text, begin: Positions) -> Positions:
    """Where the digits of numbers begin, after a quote or a sign."""
    if (text.at.take(begin) >= ord("0")).all():
        return begin
    unquoted: Positions = begin + (text.at.take(begin) == ord('"'))
    unsigned: Positions = unquoted + (text.at.take(unquoted) == ord("-"))
    return unsigned


# -- kineto times ------------------------------------------------------------------------------------------------------
#
# The times of events: the second of the lines on which Kineto prints one.
#
# All lines of a trace have the time at one column and nearly all of them the duration. So the layout of the first line
# of a chunk is compared with the others, and their numbers are read at its columns: one look at each line instead of
# eight (60 ms in a million events). A line with another layout is searched for its numbers.

TIMES = b'    "ts": '
_BETWEEN = b', "dur": '
_DECIMALS = 4  # a point and three digits
_FIRST = re.compile(rb'    "ts": (\d{8,16})(\.\d{3})?, "dur": \d')
_FROM_TIMES = len(_OPEN_ARGS) - 2  # from the end of the times to the brace of the arguments


def read_times(events: Layout) -> tuple[Positions, Positions, Mask, Positions]:
    """ts_ns, dur_ns, whether the times are on the line before the arguments, and where that line begins; of events with
    arguments."""
    text, end = events.text, events.args - _FROM_TIMES
    ts_ns, dur_ns, whole, begin = _like_the_first(text, end)
    if not whole.all():
        others = np.flatnonzero(~whole)
        begin[others] = [text.raw.rfind(b"\n", 0, place) + 1 for place in end[others].tolist()]
        ts_ns[others], dur_ns[others], whole[others] = _times_searched(text, begin[others], end[others])
    return ts_ns, dur_ns, whole & (begin > events.begin), begin


def _like_the_first(text: Text, end: Positions) -> tuple[Positions, Positions, Mask, Positions]:
    """The times in lines with these ends and the same layout as the first one; which lines these are, and where they
    begin. Durations of up to eight digits before the point."""
    none = np.zeros(len(end), dtype=np.int64)
    start = text.raw.rfind(b"\n", 0, int(end[0])) + 1 if len(end) else 0
    first = _FIRST.match(text.raw, start, int(end[0])) if len(end) else None
    if first is None:
        return none, none.copy(), none.astype(np.bool_), none.copy()
    point, decimal, at = first.end(1) - start, first[2] is not None, first.end() - 1 - start
    begin = text.last_space(end) + (1 - at)
    lines = text.windows(begin, -(-(at + WORD) // WORD))  # up to the eighth digit of the duration
    whole = starts_with(lines, TIMES) & starts_with(word_at(lines, at - len(_BETWEEN), 2), _BETWEEN)
    whole &= text.at.take(begin - 1) == ord("\n")
    ts_us = number_at(lines, point, point - len(TIMES), whole)
    whole &= ts_us < FAR_US
    ts_ns = 1000 * np.where(whole, ts_us, 0)
    length = end - begin - at - (_DECIMALS if decimal else 0)
    whole &= (length > 0) & (length <= WORD)
    missing = WORD - np.clip(length, 0, WORD)
    dur_ns = 1000 * digits(word_at(lines, at)[:, 0] << (8 * missing).astype(np.uint64), WORD - missing, whole)
    if decimal:
        whole &= lines.view(np.uint8)[:, point] == ord(".")
        ts_ns += number_at(lines, point + _DECIMALS, _DECIMALS - 1, whole)
        last = text.windows(end - WORD, 1)
        whole &= last.view(np.uint8)[:, -_DECIMALS] == ord(".")
        dur_ns += digits(last[:, 0], _DECIMALS - 1, whole)
    return ts_ns, dur_ns, whole, begin


def _times_searched(text: Text, begin: Positions, end: Positions) -> tuple[Positions, Positions, Mask]:
    """The times in lines of any width, and which lines are valid."""
    begin = begin + len(TIMES)
    dur_begin = text.last_space(end) + 1
    whole = text.equal(dur_begin - len(_BETWEEN), _BETWEEN) & (dur_begin > begin + len(_BETWEEN))
    dur_begin = np.where(whole, dur_begin, end)
    ts_ns, ts_valid = text.microseconds(begin, dur_begin - len(_BETWEEN))
    dur_ns, dur_valid = text.microseconds(dur_begin, end)
    whole &= ts_valid & dur_valid & text.equal(begin - len(TIMES), TIMES)
    return ts_ns, dur_ns, whole


_PHASE, _DURATION = b'    "ph": "', b'    "ph": "X", '
_SAMPLE_END = f'"{MEMORY_EVENT}",'.encode()
_CORRELATION: Key = (b'"correlation": ', 3)
# Present in the arguments that are kept: those that describe communication or the shapes of an operator.
_TELLING = (b'"Collective name": ', b'"Input Dims": ')
_STREAM = b'"stream": '
_COUNTER_KEYS: dict[str, Key] = {
    "device_type": (b'"Device Type": ', 8),
    "device": (b'"Device Id": ', 8),
    "allocated": (b'"Total Allocated": ', 7),
    "reserved": (b'"Total Reserved": ', 7),
    "bytes": (b'"Bytes": ', 1),
    "addr": (b'"Addr": ', 1),
}
_PLACE = re.compile(rb'"pid": ("[^"]*"|-?\d+), "tid": ("[^"]*"|-?\d+)')


class KinetoText:
    """Decodes chunks into a table. Caches the decoded first lines of events."""

    def __init__(self, table: EventTable, name: str) -> None:
        self.table = table
        self.name = name
        self._heads = Heads(table)

    def decode(self, pieces: Sequence[bytes]) -> bool:
        """Whether the chunk has Kineto's own layout; if so, it is in the table now."""
        text = Text(*pieces)
        events = layout(text)
        if events is None:
            return False
        beginning = text.windows(events.begin, 2)
        phase = beginning.view(np.uint8)[:, len(_PHASE)]
        duration = starts_with(beginning, _DURATION) & (events.args != ABSENT) & ~events.nested
        ignored = (phase != ord("X")) & starts_with(beginning, _PHASE) & ~(events.named | events.nested)
        durations = events.only(duration)
        ts_ns, dur_ns, timed, times_begin = read_times(durations)
        odd = ~(duration | ignored)
        if not timed.all():
            odd[np.flatnonzero(duration)[~timed]] = True
            durations = durations.only(timed)
            ts_ns, dur_ns, times_begin = ts_ns[timed], dur_ns[timed], times_begin[timed]
        if odd.sum() > TRACE_READING.other_layout_share * len(odd):
            return False
        heads = self._heads.of(text, durations.begin + len(_DURATION), times_begin - 1)
        if heads is None:
            return False
        self._add(durations, ts_ns, dur_ns, heads)
        marks = np.flatnonzero(ignored & (phase == ord("i")) & (events.args != ABSENT))
        odd[marks[self._add_samples(events.only(marks))]] = True
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
            ARGS_ROW: self._argument_rows(events, np.flatnonzero(heads["arguments"]), heads["may_name_stream"]),
        }
        wanted = heads["stored"]
        if not wanted.all():
            columns = {key: column[wanted] for key, column in columns.items()}
        self.table.add(_with_nulls(columns, STORED))

    def _argument_rows(self, events: Layout, candidates: Positions, may_name_stream: Mask) -> Positions:
        rows = np.full(len(events), ABSENT)
        bodies = events.text.slices(*events.only(candidates).arguments)
        keys = _TELLING if not may_name_stream[candidates].any() else (*_TELLING, _STREAM)
        together = b"\n".join(bodies)
        if not any(key in together for key in keys):  # recorded without shapes, by a profiler before torch 2.2
            return rows
        for index, body in zip(candidates.tolist(), bodies, strict=True):
            if any(key in body for key in _TELLING) or (may_name_stream[index] and _STREAM in body):
                rows[index] = self.table.arguments_row(kineto_json.arguments(b"{" + body))
        return rows

    def _add_samples(self, events: Layout) -> Positions:
        """Adds the allocator's samples; which events are samples of another layout."""
        text = events.text
        samples, thread_begin = _with_first_line(events, _SAMPLE_END)
        if not len(samples):
            return samples
        events = events.only(samples)
        # The thread has its own line, so the times are on the third.
        end = events.args - _FROM_TIMES
        begin = text.last_space(end) + 1
        thread_end = begin - len(TIMES) - 1
        ts_ns, timed = text.microseconds(begin, end)
        timed &= text.equal(thread_end + 1, TIMES) & (text.at.take(thread_end) == ord("\n"))
        timed &= thread_begin < thread_end
        odd = samples[~timed]
        if len(odd):
            events, thread_begin, thread_end = events.only(timed), thread_begin[timed], thread_end[timed]
        columns = dict(zip(_COUNTER_KEYS, integers(events, list(_COUNTER_KEYS.values())), strict=True))
        columns["ts_ns"] = ts_ns[timed]
        columns["thread"] = self._threads_of(text, thread_begin, thread_end)
        self.table.add_counters(_with_nulls({key: columns[key] for key in COUNTERS}, COUNTERS))
        return odd

    def _threads_of(self, text: Text, begin: Positions, end: Positions) -> Positions:
        """The codes of the threads in these lines; ABSENT if a line names none."""
        _, example, line = np.unique(text.fingerprints(begin, end), return_index=True, return_inverse=True)
        codes = np.empty(len(example), dtype=np.int64)
        for at in np.argsort(example).tolist():  # threads are numbered in the order of the file
            codes[at] = self._thread_of(text.raw[begin[example[at]] : end[example[at]]])
        return codes[line]

    def _thread_of(self, line: bytes) -> int:
        place = _PLACE.search(line)
        if place is None:
            return ABSENT
        pid, tid = (msgspec.json.decode(part, type=str | int) for part in place.groups())
        return self.table.thread(pid, tid)


def _with_first_line(events: Layout, line_end: bytes) -> tuple[Positions, Positions]:
    """Which events have a first line with this end, and where their second lines begin."""
    text, begin = events.text, events.begin
    after = np.zeros(len(begin), dtype=np.int64)
    if len(begin):
        length = text.raw.find(b"\n", int(begin[0])) + 1 - int(begin[0])  # all of a kind have it
        after = np.minimum(begin + length, events.closing)
        others = np.flatnonzero(~text.equal(after - len(line_end) - 1, line_end + b"\n"))
        after[others] = [text.raw.find(b"\n", place) + 1 for place in begin[others].tolist()]
    chosen = np.flatnonzero(text.equal(after - len(line_end) - 1, line_end))
    return chosen, after[chosen]


def _with_nulls(columns: dict[str, npt.NDArray[np.generic]], schema: Schema) -> pl.DataFrame:
    series = []
    for name, kind in schema.items():
        column = pl.Series(name, columns[name])
        if columns[name].dtype == np.int64:
            absent = columns[name] == ABSENT
            if absent.all():
                column = pl.Series(name, [None], dtype=kind).new_from_index(0, len(absent))
            elif absent.any():
                column = column.set(pl.Series(absent), None)
        series.append(column.cast(kind, strict=False))
    return pl.DataFrame(series)

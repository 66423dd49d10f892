"""The times of events: the second of the lines on which Kineto prints one.

All lines of a trace have the time at one column and nearly all of them the duration, so what the first line of a chunk
looks like is compared with the others, and their numbers are taken from where they stand in it: one look at each line
instead of eight (60 ms in a million events). A line that looks different is searched for its numbers.
"""

from __future__ import annotations

import re

import numpy as np

from .byte_columns import FAR_US, WORD, Mask, Positions, Text, digits, number_at, starts_with, word_at
from .kineto_layout import Layout

TIMES = b'    "ts": '
_BETWEEN, _ARGS = b', "dur": ', b'    "args": {\n'
_DECIMALS = 4  # a point and three digits
_FIRST = re.compile(rb'    "ts": (\d{8,16})(\.\d{3})?, "dur": \d')


def read_times(events: Layout) -> tuple[Positions, Positions, Mask]:
    """ts_ns, dur_ns, and whether the event is printed like most: times on the second line, then its arguments."""
    text, (begin, end), (args, _) = events.text, events.times, events.arguments
    # The times end with a comma where arguments follow.
    end = end - 1
    ends_well = (text.at.take(end) == ord(",")) & text.equal(args - len(_ARGS), _ARGS)
    ts_ns, dur_ns, whole = _like_the_first(text, begin, end)
    if not whole.all():
        others = np.flatnonzero(~whole)
        ts_ns[others], dur_ns[others], whole[others] = _searched(text, begin[others], end[others], ends_well[others])
    return ts_ns, dur_ns, whole & ends_well


def _like_the_first(text: Text, begin: Positions, end: Positions) -> tuple[Positions, Positions, Mask]:
    """The times in lines ``[begin, end)`` in which everything stands where it stands in the first one; which these are.
    Durations of up to eight digits before the point."""
    none = np.zeros(len(begin), dtype=np.int64)
    first = _FIRST.match(text.raw, int(begin[0]), int(end[0])) if len(begin) else None
    if first is None:
        return none, none.copy(), none.astype(np.bool_)
    point, decimal, at = first.end(1) - int(begin[0]), first[2] is not None, first.end() - 1 - int(begin[0])
    lines = text.windows(begin, -(-(at + WORD) // WORD))  # up to the eighth digit of the duration
    whole = starts_with(lines, TIMES) & starts_with(word_at(lines, at - len(_BETWEEN), 2), _BETWEEN)
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
    return ts_ns, dur_ns, whole


def _searched(text: Text, begin: Positions, end: Positions, ends_well: Mask) -> tuple[Positions, Positions, Mask]:
    """The times in lines of any width, and which of them are whole."""
    begin = begin + len(TIMES)
    dur_begin = text.last_space(end) + 1
    whole = ends_well & text.equal(dur_begin - len(_BETWEEN), _BETWEEN) & (dur_begin > begin + len(_BETWEEN))
    dur_begin = np.where(whole, dur_begin, end)
    ts_ns, ts_valid = text.microseconds(begin, dur_begin - len(_BETWEEN))
    dur_ns, dur_valid = text.microseconds(dur_begin, end)
    whole &= ts_valid & dur_valid & text.equal(begin - len(TIMES), TIMES)
    return ts_ns, dur_ns, whole

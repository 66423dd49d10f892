"""Which steps of a run an answer is asked about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from diag.errors import DiagError, ExitCode

_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(s|min|m|h|d)")
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_HINT = "--steps 100:200, 100: or :200; --since 81200, 2h, 14:03 or 2026-11-24T14:03 (UTC)"


class KnownSteps(Struct, frozen=True):
    """The steps that a run has, in order, and when each began and ended, Unix time; () where that is not known."""

    numbers: Sequence[int]
    begin_unix_ns: Sequence[int] = ()
    end_unix_ns: Sequence[int] = ()


class StepsAsked(Struct, frozen=True):
    """The steps from ``first`` to ``last``, both included, or since a step, a moment or for a time before the end of
    the run; as far as they are given. ``text``: as the user wrote it."""

    text: str
    first: int | None = None
    last: int | None = None
    since_unix_ns: int | None = None
    since_time_of_day_s: int | None = None
    last_ns: int | None = None

    def among(self, known: KnownSteps) -> tuple[int, int]:
        """The first and the last of the steps asked for that the run has. DiagError if it has none of them, or no
        clock to compare with."""
        numbers = known.numbers
        if not len(numbers):
            raise self._refused("no step is known")
        first = self.first if self.first is not None else numbers[0]
        last = self.last if self.last is not None else numbers[-1]
        if (since_ns := self._since_ns(known)) is not None:
            begun = (number for number, end in zip(numbers, known.end_unix_ns, strict=True) if end > since_ns)
            first = max(first, next(begun, numbers[-1] + 1))
        inside = [number for number in numbers if first <= number <= last]
        if not inside:
            when = ""
            if since_ns is not None:
                edges = (f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}" for ns in _edges(known))
                when = ", " + " to ".join(edges) + " UTC"
            raise self._refused(f"has none of the recorded steps {numbers[0]:,} to {numbers[-1]:,}{when}")
        return inside[0], inside[-1]

    def _since_ns(self, known: KnownSteps) -> int | None:
        if self.since_unix_ns is None and self.since_time_of_day_s is None and self.last_ns is None:
            return None
        if not known.end_unix_ns:
            raise self._refused("the records have no clock")
        end_ns = known.end_unix_ns[-1]
        if self.last_ns is not None:
            return end_ns - self.last_ns
        if self.since_unix_ns is not None:
            return self.since_unix_ns
        end = datetime.fromtimestamp(end_ns / 1e9, UTC)
        midnight = end.replace(hour=0, minute=0, second=0, microsecond=0)
        moment = midnight + timedelta(seconds=self.since_time_of_day_s or 0)
        if moment > end:  # of the day before
            moment -= timedelta(days=1)
        return int(moment.timestamp()) * 10**9

    def _refused(self, why: str) -> DiagError:
        return DiagError(f"{self.text}: {why}", hint=_HINT, exit_code=ExitCode.USAGE)


def _edges(known: KnownSteps) -> tuple[int, int]:
    return known.begin_unix_ns[0], known.end_unix_ns[-1]


def steps_asked(steps: str | None = None, since: str | None = None) -> StepsAsked | None:
    """Of the options ``--steps A:B`` and ``--since``; None without either. DiagError (usage) where one is malformed, or
    both begin the steps."""
    if steps is None and since is None:
        return None
    text = " ".join(
        f"--{name} {value[:80]}" for name, value in (("steps", steps), ("since", since)) if value is not None
    )
    asked: dict[str, int] = {}
    if steps is not None:
        begin, colon, end = (part.strip() for part in steps.partition(":"))
        if not colon or not (begin or end) or not all(_is_number(part) for part in (begin, end) if part):
            raise StepsAsked(text)._refused("is not of the form A:B")
        asked |= {name: int(part) for name, part in (("first", begin), ("last", end)) if part}
        if begin and end and int(end) < int(begin):
            raise StepsAsked(text)._refused("ends before it begins")
    if since is not None:
        if "first" in asked:
            raise StepsAsked(text)._refused("both say where the steps begin")
        asked |= _since(since.strip(), text)
    return StepsAsked(text, **asked)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _since(since: str, text: str) -> dict[str, int]:
    if _is_number(since):
        return {"first": int(since)}
    if match := _DURATION.fullmatch(since):
        return {"last_ns": int(float(match[1]) * _SECONDS[match[2]] * 1e9)}
    if match := _TIME_OF_DAY.fullmatch(since):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if hours < 24 and minutes < 60 and seconds < 60:
            return {"since_time_of_day_s": 3_600 * hours + 60 * minutes + seconds}
    else:
        try:
            moment = datetime.fromisoformat(since)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return {"since_unix_ns": int(moment.timestamp() * 1e6) * 1_000}
        except (ValueError, OverflowError):
            pass
    raise StepsAsked(text)._refused("is neither a step, a duration nor a time")

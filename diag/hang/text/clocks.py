"""Times as logs print them, in nanoseconds since 1970; taken as UTC where no zone is printed."""

from __future__ import annotations

import calendar
import re

_MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
MONTHS = {name: number for number, name in enumerate(_MONTH.split("|"), 1)}

ISO = re.compile(
    r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d)\b)?\]?:? ?"
    r"(?:std(?:out|err) [FP] )?"  # Kubernetes' CRI
)
CTIME = re.compile(
    rf"\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ({_MONTH}) +(\d+) (\d\d):(\d\d):(\d\d) (?:[A-Z]{{3,4}} )?(\d{{4}})\]?"
    r"(?:<std\w+>)?:? ?"
)
SYSLOG = re.compile(rf"({_MONTH}) +(\d+) (\d\d):(\d\d):(\d\d)(?:\.\d+)? ([\w.-]+) (?=[\w.-]+(?:\[\d+\])?: )")
OF_DAY = re.compile(r"(?:\[\d\d:\d\d:\d\d(?:[.,]\d+)?\]|\d\d:\d\d:\d\d(?:[.,]\d+)?) ")


def iso_ns(match: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second, part, zone = match.groups()
    since = at_ns(int(year), int(month), int(day), int(hour), int(minute), int(second), part or "")
    if since is None or zone in (None, "Z", "UTC"):
        return since
    ahead = int(zone[1:3]) * 60 + int(zone[-2:])
    return since - (ahead if zone[0] == "+" else -ahead) * 60_000_000_000


def ctime_ns(match: re.Match[str]) -> int | None:
    month, day, hour, minute, second, year = match.groups()
    return at_ns(int(year), MONTHS[month], int(day), int(hour), int(minute), int(second), "")


def month_day_ns(year: int, month: int, day: int, clock: str) -> int | None:
    """Of a time without a year: "02:07:08.408271257"."""
    whole, _, part = clock.partition(".")
    hour, minute, second = whole.split(":")
    return at_ns(year, month, day, int(hour), int(minute), int(second), part)


def at_ns(year: int, month: int, day: int, hour: int, minute: int, second: int, part: str) -> int | None:
    """None for what is no time: 24:99:99."""
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    return seconds * 1_000_000_000 + int(part[:9].ljust(9, "0") or 0)

"""Reads the collectors' JSON lines into their own types, tolerating what a crash leaves behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from diag.collectors.layout import MOST_NS, MOST_RANKS
from diag.model import Gap

T = TypeVar("T")

# A number that would not fit 64 bits where a few of its kind are added up: MOST_NS or more. A text only looks like it
# where it holds such numbers between brackets or commas.
_HUGE = re.compile(rb"[\[:,]\s*-?((?:\d{20,}|[3-9]\d{18})|\d+(?:\.\d*)?[eE]\+?(?:\d{3,}|19|[2-9]\d))\s*[\],}.]")


def read_lines(path: Path, kind: type[T]) -> tuple[list[T], list[Gap]]:
    """The records of a .jsonl file, and what of it could not be read. A missing file has none of either.

    A process that was killed while it wrote leaves one cut line at the end; the rest is as good as ever.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [Gap(str(path), f"cannot be read: {error.strerror}")]
    decode = msgspec.json.Decoder(kind).decode
    records: list[T] = []
    bad = 0
    lines = content.split(b"\n")
    cut = lines.pop() if not content.endswith(b"\n") else b""
    for line in lines:
        if not line.strip():
            continue
        try:
            if _HUGE.search(line):
                bad += 1
            else:
                records.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += 1
    gaps = []
    if bad:
        gaps.append(Gap(str(path), f"{bad} of {bad + len(records)} lines are not what a collector writes; left out"))
    if cut:
        gaps.append(Gap(str(path), "the last line is cut off (a kill, or a full disk); left out"))
    return records, gaps


def read_record(path: Path, kind: type[T]) -> tuple[T | None, Gap | None]:
    """The one record of a .json file."""
    try:
        content = path.read_bytes()
        if huge := _HUGE.search(content):
            number = huge[1].decode()[:25]
            return None, Gap(str(path), f"is damaged (the number {number} is not below {MOST_NS:.0e}); left out")
        record = msgspec.json.decode(content, type=kind)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, Gap(str(path), f"cannot be read: {error.strerror}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, Gap(str(path), f"is damaged ({error}); left out")
    for name in ("rank", "world_size"):
        ranks = getattr(record, name, None)
        if isinstance(ranks, int) and not 0 <= ranks <= MOST_RANKS:
            why = f"{name} {ranks:,} is not within 0 and {MOST_RANKS:,}"
            return None, Gap(str(path), f"is damaged ({why}); left out")
    return record, None

"""Reads the collectors' JSON lines into their own types, tolerating what a crash leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from diag.model import Gap

T = TypeVar("T")


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
            records.append(decode(line))
        except msgspec.DecodeError:
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
        return msgspec.json.decode(path.read_bytes(), type=kind), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, Gap(str(path), f"cannot be read: {error.strerror}")
    except msgspec.DecodeError as error:
        return None, Gap(str(path), f"is damaged ({error}); left out")

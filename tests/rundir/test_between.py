"""The lines of some steps are found in streams of any length, and no other line is read."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import msgspec
import pytest

from diag.rundir.between import LinesBetween
from diag.rundir.lines import read_lines


class Line(msgspec.Struct):
    first: int
    count: int
    text: str = ""


def written(rank: Path, chance: random.Random, steps: int, cuts: tuple[int, ...] = ()) -> Path:
    """A stream of lines of various lengths, in parts that begin at these steps."""
    rank.mkdir(parents=True, exist_ok=True)
    part, first = rank / "sums50.jsonl", 0
    for number, cut in enumerate((*cuts, steps)):
        with part.open("w") as file:
            while first < cut:
                count = chance.randrange(1, 60)
                file.write(json.dumps({"first": first, "count": count, "text": "x" * chance.randrange(3_000)}) + "\n")
                first += count
        part = rank / f"sums50-{number + 1}.jsonl"
    return rank / "sums50.jsonl"


@pytest.mark.parametrize("seed", range(6))
def test_the_lines_that_hold_the_steps_are_those_of_the_whole_stream(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    cuts = tuple(sorted(chance.randrange(100, 30_000) for _ in range(seed % 4)))
    streams = [written(tmp_path / f"{rank}", chance, 30_000, cuts) for rank in range(5)]
    for first, last in [
        (0, 40),
        (0, 30_100),
        (29_990, 40_000),
        *((at := chance.randrange(30_000), at + 120) for _ in "abcdef"),
    ]:
        near = LinesBetween(Line, first, last, tmp_path)
        for stream in streams:  # of the later ones, it is known where to look
            lines, gaps = read_lines(stream, Line, tmp_path)
            assert not gaps
            assert lines
            expected = [line for line in lines if line.first <= last and line.first + line.count > first]
            found = [line for line in near.of(stream) if line.first <= last and line.first + line.count > first]
            assert found == expected, (first, last)


def test_little_of_a_long_stream_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [written(tmp_path / f"{rank}", random.Random(rank), 50_000) for rank in range(20)]
    assert streams[0].stat().st_size > 2_000_000
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read.append(size) or pread(file, size, at))
    near = LinesBetween(Line, 25_000, 25_100, tmp_path)
    assert all(near.of(stream) for stream in streams)
    assert sum(read) / len(streams) < streams[0].stat().st_size / 10


def test_damaged_lines_and_missing_streams_are_left_out(tmp_path: Path) -> None:
    stream = written(tmp_path / "0", random.Random(0), 3_000)
    rows = stream.read_bytes().splitlines(keepends=True)
    rows[len(rows) // 2] = b"\xff not a line\n"
    stream.write_bytes(b"".join(rows) + b'{"first": 3000, "coun')
    found = LinesBetween(Line, 0, 9_999, tmp_path).of(stream)
    assert len(found) == len(rows) - 1
    assert LinesBetween(Line, 0, 9_999, tmp_path).of(tmp_path / "1" / "sums50.jsonl") == []

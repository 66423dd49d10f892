"""A trimmed trace holds what overlaps its window, is JSON for everybody, and costs no memory."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.errors import DiagError
from diag.perfetto import Trimming
from diag.traces.policy import TRACE_LIMITS
from diag.traces.text_stream import blocks
from tests.account.kineto_builder import LAYOUTS, KinetoBuilder, Layout, serialised
from tests.traces.outcomes import apart
from tests.traces.packed import packed

BEGIN, END = 20_000, 40_000
OP = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}


def trimmed(path: Path, begin: int = BEGIN, end: int = END) -> tuple[dict[str, Any], int]:
    trimming = Trimming(str(path), begin, end)
    with path.open("rb") as file:
        text = b"".join(trimming.text(blocks(file, str(path))))
    return json.loads(text), trimming.events


def built() -> KinetoBuilder:
    made = KinetoBuilder().op("before", 5_000, 20_000).op("into", 10_000, 20_001).op("around", 0, 90_000)
    made.op("inside", 25_000, 30_000).op("out of", 39_999, 50_000).op("after", 40_000, 50_000)
    made.op("a moment at its begin", 20_000, 20_000).op("a moment before", 19_999, 19_999)
    return made.kernel(30_000, 35_000, launch=21_000).kernel(60_000, 70_000, launch=22_000).flows().memory(30_000, 1, 2)


def is_inside(event: dict[str, Any]) -> bool:
    start, dur = round(event["ts"] * 1000), round(event.get("dur", 0) * 1000)
    return event["ph"] == "M" or (start < END and (start + dur > BEGIN or (dur == 0 and start == BEGIN)))


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_overlaps_the_window_stays(tmp_path: Path, layout: Layout, compress: bool) -> None:
    made = built().framed()
    document, events = trimmed(made.write(tmp_path, layout=layout, compress=compress))
    expected = [event for event in made.events if is_inside(event)]
    assert document.pop("traceEvents") == expected
    assert document == made.header
    metadata = [event for event in expected if event["ph"] == "M"]
    assert len(metadata) == 3
    assert events == len(expected) - len(metadata)
    assert {event["name"] for event in expected} >= {"into", "around", "inside", "out of", "a moment at its begin"}
    assert not {event["name"] for event in expected} & {"before", "after", "a moment before"}


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=30), st.integers(0, 90), st.integers(1, 40))
def test_any_window_of_any_events(spans: list[tuple[int, int]], begin: int, length: int) -> None:
    events = [{**OP, "name": str(i), "ts": ts, "dur": dur} for i, (ts, dur) in enumerate(spans)]
    end = begin + length
    trimming = Trimming("made.json", begin * 1000, end * 1000)
    text = serialised({"baseTimeNanoseconds": 5}, events).encode()
    document = json.loads(b"".join(trimming.text(iter([text]))))
    assert [int(event["name"]) for event in document["traceEvents"]] == [
        i for i, (ts, dur) in enumerate(spans) if ts < end and (ts + dur > begin or (dur == 0 and ts == begin))
    ]
    assert trimming.events == len(document["traceEvents"])
    assert document["baseTimeNanoseconds"] == 5


@pytest.mark.parametrize("closing", ["]", "", ",\n"])
@pytest.mark.parametrize("indent", [None, 2])
def test_of_a_bare_array(tmp_path: Path, indent: int | None, closing: str) -> None:
    """Its window is written as an object."""
    events = [{**OP, "name": f"{i} {'x' * 2000}", "ts": i, "dur": 1} for i in range(6_000)]
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps(events, indent=indent).removesuffix("]").rstrip() + closing)
    assert path.stat().st_size > 8 << 20
    document, count = trimmed(path, 3_000_000, 3_003_000)
    assert [event["ts"] for event in document["traceEvents"]] == [3000, 3001, 3002]
    assert count == 3


def test_over_many_chunks(tmp_path: Path) -> None:
    filler = "x" * 2000
    events = [{**OP, "name": f"{i} {filler}", "ts": i, "dur": 1} for i in range(12_000)]
    path = tmp_path / "rank-0.json"
    path.write_text(serialised({"traceName": "long"}, events, "kineto"))
    assert path.stat().st_size > 3 * (8 << 20)
    document, count = trimmed(path, 5_000_000, 5_003_000)
    assert [event["ts"] for event in document["traceEvents"]] == [5000, 5001, 5002]
    assert (count, document["traceName"]) == (3, "long")


def test_names_stay_what_they_are(tmp_path: Path) -> None:
    names = ['<script>alert("1")</script>', "a],b", "}, {", '\\", "ph": "X"', "\u2028 \U0001f600", "}\n  },\n  {\n"]
    made = KinetoBuilder()
    for i, name in enumerate(names):
        made.op(name, BEGIN + i, BEGIN + i + 10)
    for layout in LAYOUTS:
        document, _ = trimmed(made.write(tmp_path, layout=layout))
        assert [event["name"] for event in document["traceEvents"]] == names


def test_what_is_no_json_becomes_json(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "\xff", "ts": 25, "dur": 1, '
        b'"args": {"In GB/s": inf, "x": -nan}}], "traceName": "a"}'
    )
    document, _ = trimmed(path)
    assert document["traceEvents"][0]["args"] == {"In GB/s": None, "x": None}
    assert document["traceEvents"][0]["name"] == "\ufffd"


def test_a_key_that_is_written_with_escapes(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_text('{"a": 1, "\\u0074raceEvents": [{"ph": "X", "name": "mm", "ts": 25, "dur": 1}], "b": 2}')
    document, _ = trimmed(path)
    assert document == {"a": 1, "b": 2, "traceEvents": [{"ph": "X", "name": "mm", "ts": 25, "dur": 1}]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"[1, 2]", "not a Kineto trace"),
        (b"{}", "traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "ts": 25, "dur": 1}', "truncated"),
        (b'{"traceEvents": 3}', "not a Kineto trace"),
        (b"hello", "not JSON"),
        (
            gzip.compress(b'{"traceEvents": [' + b'{"ph": "X", "ts": 25, "dur": 1},' * 9000 + b"{}]}")[:-200],
            "truncated",
        ),
    ],
    ids=["empty", "a list", "no events", "cut off", "no list", "text", "gzip cut off"],
)
def test_what_is_no_trace_is_an_error_that_says_why(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(content)
    with pytest.raises(DiagError, match=said) as error:
        trimmed(path)
    assert "rank-0.json" in error.value.message
    assert error.value.hint


def test_cut_off_anywhere_is_an_error(tmp_path: Path) -> None:
    data = built().framed().text("kineto").encode()
    path = tmp_path / "rank-0.json"
    for length in range(0, len(data) - 1, 7):
        path.write_bytes(data[:length])
        with pytest.raises(DiagError):
            trimmed(path)


def test_one_event_that_is_larger_than_any(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    event = b'{"ph": "X", "ts": 25, "dur": 1, "name": "'
    path.write_bytes(packed((b'{"traceEvents": [' + event, 1), (b"x" * (1 << 20), 700), (b'"}]}', 1)))
    outcome = apart("trim", path)
    assert f"{TRACE_LIMITS.most_piece_bytes >> 20} MB" in outcome.error
    assert outcome.peak_mb < 400


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    names = [random.Random(i).randbytes(40).hex() for i in range(20_000)]
    unit = b"".join(json.dumps({**OP, "name": name, "ts": 25, "dur": 1}).encode() + b"," for name in names)
    last = json.dumps({**OP, "name": "first", "ts": 0, "dur": 1}).encode() + b"]}"
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(packed((b'{"traceEvents": [', 1), (unit, 60), (last, 1)))
    outcome = apart("trim", path)
    assert (outcome.error, outcome.events) == ("", 1)
    assert outcome.peak_mb < 150  # of 180 MB of text

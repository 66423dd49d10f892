"""Files that crashed writers, broken disks and strangers leave: each ends in one plain sentence, or in a trace that
states what is missing; never in a traceback, a wrong number, or more memory than the machine has."""

from __future__ import annotations

import gc
import gzip
import io
import json
import math
import os
import random
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from isal import igzip

from diag.api import open_run
from diag.errors import DiagError
from diag.model import Gap
from diag.traces.kineto import read_trace
from diag.traces.kineto_json import Cutter
from diag.traces.policy import TRACE_LIMITS
from diag.traces.reading import Reading, read_file, read_traces
from tests.account.kineto_builder import KinetoBuilder, Layout, nccl_args, serialised
from tests.examples import examples
from tests.patience import PATIENCE_S
from tests.traces.outcomes import Outcome, apart, is_part_of, is_plain, opened, read, rows
from tests.traces.packed import Piece, member, packed, plain_tar, tar_gz

GB = 1 << 30
MEMORY_MB = 400  # what reading any file may take, beyond what an analysis of nothing takes
SAMPLES = Path(__file__).parents[2] / "sample_traces"
OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))


def built() -> KinetoBuilder:
    """A step with an operator, a kernel, a collective, and what else Kineto writes."""
    made = KinetoBuilder().step(3, 0, 1_000_000, "ProfilerStep#").op("aten::mm", 5_000, 9_500)
    made.kernel(20_000, 300_000, launch=6_000)
    made.kernel(400_000, 500_001, "ncclDevKernel_AllReduce", 7_000, 20, **nccl_args("allreduce", 10, 1))
    return made.memory(6_000, 10, 20).flows().framed()


def document(*events: Any, **header: Any) -> bytes:
    return json.dumps({**header, "traceEvents": list(events)}).encode()


def put(folder: Path, data: bytes, name: str = "rank-4.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def told(path: Path) -> Outcome:
    found = read(path)
    is_plain(found, path)
    return found


# -- cut off -----------------------------------------------------------------------------------------------------------


def is_error_or_stated_part(path: Path, whole: list[dict[str, Any]]) -> None:
    found = told(path)
    assert found.error or found.gaps, "a file that was cut off passes for a whole one"
    if not found.error:
        assert is_part_of(rows(path), whole)


EACH = 3  # place is where the file is cut: one text in several layouts, each cut at other places of it


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("layout", ["kineto", "compact", "array"])
def test_a_small_file_cut_anywhere(tmp_path: Path, layout: Layout | Literal["array"], compress: bool) -> None:
    if layout == "array":
        data = json.dumps(built().events).encode()
        path = put(tmp_path, gzip.compress(data) if compress else data, "whole.json")
    else:
        path = built().write(tmp_path, "whole.json", layout=layout, compress=compress)
    whole, data = rows(path), path.read_bytes()
    begin = random.Random(f"{layout} {compress}").randrange(examples(EACH, thorough=1))
    for length in range(begin, len(data), examples(EACH, thorough=1)):
        is_error_or_stated_part(put(tmp_path, data[:length], f"{length}.json"), whole)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_a_recorded_file_cut_at_many_places(tmp_path: Path, compress: bool) -> None:
    path = min(SAMPLES.glob("ddp-healthy/ranks/*/trace*.json.gz"))
    data = path.read_bytes() if compress else gzip.decompress(path.read_bytes())
    whole = rows(path)
    for length in random.Random(1).sample(range(len(data)), 40):
        is_error_or_stated_part(put(tmp_path, data[:length], f"{length}.json"), whole)


# -- damaged gzip ------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_of_a_gzip_is_an_error_or_harmless(tmp_path: Path) -> None:
    """Harmless: in what the header says beside the data (its time, its system), or in bits that nothing reads."""
    path = built().write(tmp_path, "whole.json", layout="kineto", compress=True)
    whole, data = rows(path), path.read_bytes()
    told_at = range(3, 10)  # flags, time, system
    checked_at = range(len(data) - 8, len(data))  # checksum and length
    ends = [8 * byte + bit for byte in (*range(10), *checked_at) for bit in range(8)]
    for bit in (*ends, *random.Random(2).sample(range(80, 8 * len(data) - 64), examples(200, thorough=600))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged = put(tmp_path, bytes(flipped), f"{bit}.json")
        found = told(damaged)
        if not found.error:
            assert rows(damaged) == whole, bit
            assert bit // 8 in told_at or bit // 8 not in (*range(10), *checked_at), f"bit {bit} is not checked"


def test_gzip_of_several_members_is_one_text(tmp_path: Path) -> None:
    text = built().text().encode()
    whole = rows(put(tmp_path, text))
    middle = len(text) // 2
    members = gzip.compress(text[:middle]) + gzip.compress(b"") + gzip.compress(text[middle:])
    assert rows(put(tmp_path, members, "two.json.gz")) == whole
    assert rows(put(tmp_path, packed((text[:middle], 1), (text[middle:], 1)), "flushed.json.gz")) == whole
    assert rows(put(tmp_path, members + bytes(512), "padded.json.gz")) == whole


def test_what_follows_a_gzip_is_not_taken_for_events(tmp_path: Path) -> None:
    text = document(OP)
    for name, rest in (("garbage", b"PK\x03\x04 and so on"), ("twice", gzip.compress(text))):
        found = told(put(tmp_path, gzip.compress(text) + rest, f"{name}.json.gz"))
        assert found.error or found.events == 1


FAR = 9_000_000_000_000_000  # microseconds: the year 2255
# What is written: when the event starts (None: nobody can say), how long it lasts.
NUMBERS: list[tuple[str, int | None, int]] = [
    ("NaN", None, 0), ("nan", None, 0), ("-nan", None, 0), ("Infinity", None, 0), ("-Infinity", None, 0),
    ("inf", None, 0), ("-inf", None, 0), ("null", None, 0), ("true", None, 0), ('""', None, 0), ('"soon"', None, 0),
    ("[]", None, 0), ("{}", None, 0), ('[{"ts": 1}]', None, 0), ('"0x10"', None, 0),
    ("[1, 2]", None, 0), ('{"a": 1, "b": 2}', None, 0), ('"1,2"', None, 0), ('"1\\n2"', None, 0), ('"\\"1"', None, 0),
    ("1e300", None, 0), ("-1e300", None, 0), ("1" * 400, None, 0), ("1e999999999", None, 0),
    ("0", 0, 0), ("-0.0", 0, 0), ("-1", -1000, 0), ("-7.25", -7250, 0), ("2.001", 2001, 2001),
    ("1e2", 100_000, 100_000), ("1E-3", 1, 1), ("1e-400", 0, 0), ('"12.5"', 12_500, 12_500),
]  # fmt: skip
MALFORMED = ("01", "+1", ".5", "1.", "0x10", "1_000", "--1", "1e", "True", "None", "'1'", "12 13")


@pytest.mark.parametrize(("text", "start", "_"), NUMBERS, ids=[n[0][:12] for n in NUMBERS])
def test_odd_starts(tmp_path: Path, text: str, start: int | None, _: int) -> None:
    path = put(tmp_path, document(OP, {**OP, "ts": "HERE", "name": "odd"}).replace(b'"HERE"', text.encode()))
    found = told(path)
    if found.error:
        assert start is None, "a number that is JSON is no damage"
        return
    odd = [row["ts_ns"] for row in rows(path) if row["name"] == "odd"]
    assert odd == ([] if start is None else [start])
    assert found.untimed == (start is None)
    assert opened(path).ranks == (4,)


@pytest.mark.parametrize(("text", "_", "length"), NUMBERS, ids=[n[0][:12] for n in NUMBERS])
def test_odd_durations(tmp_path: Path, text: str, _: int | None, length: int) -> None:
    path = put(tmp_path, document(OP, {**OP, "dur": "HERE", "name": "odd"}).replace(b'"HERE"', text.encode()))
    found = told(path)
    if not found.error:
        assert [row["dur_ns"] for row in rows(path) if row["name"] == "odd"] == [length]
        assert opened(path).ranks == (4,)


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_number_in_json_is_an_error(tmp_path: Path, text: str) -> None:
    for key in ("ts", "dur"):
        found = told(put(tmp_path, document(OP, {**OP, key: "HERE"}).replace(b'"HERE"', text.encode()), f"{key}.json"))
        assert found.stated, "neither kept nor left out"


@pytest.mark.parametrize("base", [0, 1_735_689_600_000_000_000, (1 << 62) - 2])
def test_absurd_times_do_not_overflow(tmp_path: Path, base: int) -> None:
    events = [{**OP, "ts": sign * ts, "dur": dur} for sign in (-1, 1) for ts in (0, 5, FAR) for dur in (1, FAR)]
    path = put(tmp_path, document(*events, baseTimeNanoseconds=base))
    trace = read_trace(path)
    assert trace.begin_ns <= trace.end_ns
    assert len(trace.events) + trace.untimed_events == len(events)
    for row in rows(path):
        assert row["dur_ns"] >= 0
        assert -(1 << 63) <= row["ts_ns"] <= row["ts_ns"] + row["dur_ns"] < 1 << 63
    assert opened(path).ranks == (4,)


def test_a_start_that_cannot_be_read_is_stated_with_the_result(tmp_path: Path) -> None:
    path = put(tmp_path, document(OP, {**OP, "ts": None}))
    assert read_trace(path).untimed_events == 1
    assert [gap for gap in opened(path).gaps if "rank-4.json" in gap], "left out in silence"


@pytest.mark.parametrize("lengths", [(0,), (0, 0, 0), (0, 5, 0, 5)])
def test_steps_that_last_no_time(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    made = KinetoBuilder(world_size=1)
    for number, length in enumerate(lengths):
        begin = 1_000_000 * number
        made.step(number, begin, begin + length, "ProfilerStep#").op("aten::mm", begin, begin + length)
    path = made.write(tmp_path, "rank-4.json")
    found = opened(path)
    is_plain(found, path)
    assert found.error or found.ranks == (0,)


@pytest.mark.parametrize("prefix", ["ProfilerStep#", "diag.step#"])
def test_step_numbers_that_are_no_numbers_of_steps(tmp_path: Path, prefix: str) -> None:
    for name in (
        f"{prefix}99999999999999999999",
        f"{prefix}-1",
        f"{prefix}x",
        prefix,
        f"{prefix}00",
        f"{prefix}\u0664",
    ):
        made = KinetoBuilder(world_size=1).step(1, 0, 5000, prefix).range(name, 6000, 7000).op("aten::mm", 6001, 6900)
        assert opened(made.write(tmp_path, "rank-4.json")).ranks == (0,)


HUGE = [10**19, 2**64 - 1, 2**63, -(2**63) - 1, 10**400, -(10**400), 1e300]


@pytest.mark.parametrize("value", HUGE, ids=[str(v)[:21] for v in HUGE])
@pytest.mark.parametrize("key", ["device", "stream", "correlation", "In msg nelems", "Group size", "Seq"])
def test_huge_integers_in_arguments(tmp_path: Path, key: str, value: float) -> None:
    path = put(tmp_path, document(OP, {**OP, "name": "odd", "args": {key: value}}))
    found = told(path)
    assert found.error or [row["name"] for row in rows(path)] == ["aten::mm", "odd"]
    if not found.error:
        opened(path)


@pytest.mark.parametrize("value", [*HUGE, -1, 1.5, True, [1], {"a": 1}, "x" * 10_000, None], ids=lambda v: str(v)[:8])
@pytest.mark.parametrize("where", ["pid", "tid", "name", "cat", "ph", "rank", "world_size", "base", "pg_size", "host"])
def test_values_of_any_kind_anywhere(tmp_path: Path, where: str, value: Any) -> None:
    header: dict[str, Any] = {"distributedInfo": {"rank": 1, "world_size": 2, "pg_config": [{"pg_name": "0"}]}}
    event = dict(OP)
    if where in ("pid", "tid", "name", "cat", "ph"):
        event[where] = value
    elif where == "base":
        header["baseTimeNanoseconds"] = value
    elif where == "pg_size":
        header["distributedInfo"]["pg_config"][0] |= {"pg_size": value, "pg_desc": "default_pg"}
    elif where == "host":
        header |= {"host_name": value, "deviceProperties": [{"name": value}]}
    else:
        header["distributedInfo"][where] = value
    path = put(tmp_path, document(OP, event, **header))
    found = told(path)
    assert found.error or found.events + found.untimed >= 1
    if where in ("pg_size", "world_size") and isinstance(value, int) and value > 10**6:
        return  # in a process of its own, below
    opened(path)


@pytest.mark.parametrize("where", ["world_size", "pg_size", "rank"])
def test_a_world_of_billions_of_ranks_takes_no_memory(tmp_path: Path, where: str) -> None:
    info: dict[str, Any] = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg"}]}
    if where == "pg_size":
        info["pg_config"][0]["pg_size"] = 10**11
    else:
        info[where] = 10**11
    path = put(tmp_path, document(OP, distributedInfo=info))
    found = apart("open", path, timeout=PATIENCE_S)
    is_plain(found, path)
    assert found.peak_mb < MEMORY_MB


# -- structure ---------------------------------------------------------------------------------------------------------


def nested(depth: int, closed: bool, braces: bool = False) -> bytes:
    opening, closing = (b'{"a":', b"}") if braces else (b"[", b"]")
    return opening * depth + (b"1" + closing * depth if closed else b"")


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("braces", [False, True], ids=["lists", "objects"])
@pytest.mark.parametrize("where", ["top", "header", "after", "args", "event", "ts", "rank", "shapes", "name"])
def test_json_nested_deeply(tmp_path: Path, where: str, braces: bool, closed: bool) -> None:
    deep = nested(200_000, closed, braces)
    if where == "top":
        data = deep
    elif where in ("header", "rank"):
        info = b'"x": HERE,' if where == "header" else b'"distributedInfo": {"rank": HERE},'
        data = b"{" + info + document(OP)[1:]
    elif where == "after":
        data = document(OP)[:-1] + b', "x": HERE}'
    else:
        inside = {"args": {"args": {"a": "HERE"}}, "shapes": {"name": "gloo:x", "args": {"Input Dims": "HERE"}}}
        data = document(OP, {**OP, **inside.get(where, {where: "HERE"})}).replace(b'"HERE"', b"HERE")
    path = put(tmp_path, data.replace(b"HERE", deep))
    found = told(path)
    if where == "top" or not closed:
        assert found.error
    if not found.error:
        assert found.events + found.untimed >= 1
        opened(path)


def test_json_nested_a_little_is_read(tmp_path: Path) -> None:
    data = document(OP, {**OP, "args": {"a": "HERE"}}, x="HERE").replace(b'"HERE"', nested(60, True, True))
    assert len(rows(put(tmp_path, data))) == 2


EVENT = json.dumps(OP)


def called(name: str) -> str:
    """The event with such a name, escapes as they are."""
    return EVENT.replace("aten::mm", name)


QUOTES, LINES, SURROGATE, ZERO, CONTROL = r"\"},\\\\", r"a\n  },\n  {", r"\ud800", r"\u0000x", "\x01"
# The events that must be there; a text: the reason that must be given; None: an error, or a stated gap.
STRUCTURES: list[tuple[str, str, int | str | None]] = [
    ("no traceEvents", '{"schemaVersion": 1}', "not a Kineto trace"),
    ("traceEvents null", '{"traceEvents": null}', "not a Kineto trace"),
    ("traceEvents an object", f'{{"traceEvents": {EVENT}}}', "not a Kineto trace"),
    ("traceEvents a text", '{"traceEvents": "[]"}', "not a Kineto trace"),
    ("traceEvents deeper", f'{{"a": {{"traceEvents": [{EVENT}]}}}}', "not a Kineto trace"),
    ("traceEvents as a value", '{"a": "traceEvents", "b": ["traceEvents", []]}', "not a Kineto trace"),
    ("no event", '{"traceEvents": []}', "no event with a duration"),
    ("only metadata", '{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]}', "no event with a duration"),
    ("a bare list", f"[{EVENT}, {EVENT}]", 2),
    ("a bare list of nothing", "[]", "no event with a duration"),
    ("a bare list without its bracket", f"[{EVENT},\n{EVENT}", None),
    ("a bare list that goes on", f"[{EVENT},\n", None),
    ("a bare list and text behind", f"[{EVENT}] and more", None),
    ("a bare list of lists", f"[[{EVENT}]]", "not a Kineto trace"),
    ("a bracket alone", "[", "no event with a duration"),
    ("two documents", f'{{"traceEvents": [{EVENT}]}}{{"traceEvents": [{EVENT}]}}', None),
    ("a number among events", f'{{"traceEvents": [{EVENT}, 7]}}', None),
    ("null among events", f'{{"traceEvents": [null, {EVENT}]}}', None),
    ("a list among events", f'{{"traceEvents": [{EVENT}, [{EVENT}]]}}', None),
    ("a text among events", f'{{"traceEvents": ["}}, {{", {EVENT}]}}', None),
    ("empty events", f'{{"traceEvents": [{{}}, {EVENT}, {{}}]}}', 1),
    ("no comma", f'{{"traceEvents": [{EVENT} {EVENT}]}}', None),
    ("two commas", f'{{"traceEvents": [{EVENT},, {EVENT}]}}', None),
    ("a comma at the end", f'{{"traceEvents": [{EVENT},]}}', None),
    ("a bracket too many", f'{{"traceEvents": [{EVENT}]]}}', None),
    ("a bracket too few", f'{{"traceEvents": [{EVENT}}}', None),
    ("a brace too few", f'{{"traceEvents": [{EVENT}]', None),
    ("text behind", f'{{"traceEvents": [{EVENT}]}} and more', None),
    ("zeros behind", f'{{"traceEvents": [{EVENT}]}}' + "\0" * 4096, None),
    ("white space around", f' \r\n\t{{ "traceEvents" :\n[\t{EVENT}\r\n]\n}}\n\n ', 1),
    ("the key escaped", f'{{"trace\\u0045vents": [{EVENT}]}}', 1),
    ("the key in a text before", f'{{"a": "\\"traceEvents\\": [{{}}]", "traceEvents": [{EVENT}]}}', 1),
    ("the key in a text behind", f'{{"traceEvents": [{EVENT}], "a": "\\"traceEvents\\": []"}}', 1),
    ("the key in an object before", f'{{"a": {{"traceEvents": [{EVENT}, {EVENT}]}}, "traceEvents": [{EVENT}]}}', 1),
    ("the key in an object behind", f'{{"traceEvents": [{EVENT}], "a": {{"traceEvents": []}}}}', 1),
    ("the key in arguments", f'{{"traceEvents": [{EVENT[:-1]}, "args": {{"traceEvents": [{EVENT}]}}}}]}}', 1),
    ("brackets in a name", f'{{"traceEvents": [{called("}, {]}[")}, {EVENT}]}}', 2),
    ("a quote and a backslash in a name", f'{{"traceEvents": [{called(QUOTES)}, {EVENT}]}}', 2),
    ("a line of an event in a name", f'{{"traceEvents": [{called(LINES)}]}}', 1),
    ("a byte order mark", f'\ufeff{{"traceEvents": [{EVENT}]}}', 1),
    ("a surrogate alone", f'{{"traceEvents": [{called(SURROGATE)}]}}', None),
    ("a zero byte in a name", f'{{"traceEvents": [{called(ZERO)}]}}', 1),
    ("a bare control character", f'{{"traceEvents": [{called(CONTROL)}]}}', None),
    ("a comment", f'{{"traceEvents": [/* one */ {EVENT}]}}', None),
    ("HTML", "<!DOCTYPE html><html><body>404</body></html>", "an HTML or XML page"),
    ("a Git LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
]  # fmt: skip


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("text", "expected"), [s[1:] for s in STRUCTURES], ids=[s[0] for s in STRUCTURES])
def test_structures(tmp_path: Path, text: str, expected: int | str | None, compress: bool) -> None:
    data = text.encode()
    path = put(tmp_path, gzip.compress(data) if compress else data)
    found = told(path)
    if isinstance(expected, int):
        assert (found.error, found.events) == ("", expected)
    elif isinstance(expected, str):
        assert expected in found.error
    else:
        assert found.stated


def test_of_a_key_that_comes_twice_the_last_counts(tmp_path: Path) -> None:
    """As for every JSON reader."""
    event = EVENT.replace('"ts": 1', '"ts": 9, "ts": 1').replace('"name"', '"name": "first", "name"')
    event = event.replace('"cpu_op"', '"cpu_op", "cat": "kernel"')
    args = '"args": {"device": 1}, "args": {"correlation": 7, "correlation": 8}'
    header = '"baseTimeNanoseconds": 5, "baseTimeNanoseconds": 0, "distributedInfo": {"rank": 1, "rank": 2}'
    path = put(tmp_path, f'{{{header}, "traceEvents": [{event[:-1]}, {args}}}]}}'.encode())
    (row,) = rows(path)
    assert (row["ts_ns"], row["name"], row["cat"], row["correlation"]) == (1000, "aten::mm", "kernel", 8)
    assert read_trace(path).rank == 2


def test_two_lists_of_events(tmp_path: Path) -> None:
    two = f'{{"traceEvents": [{EVENT}, {EVENT}], "traceEvents": [{EVENT.replace("mm", "add")}]}}'
    path = put(tmp_path, two.encode())
    found = told(path)
    assert found.stated or [row["name"] for row in rows(path)] == ["aten::add"]


def test_more_categories_than_a_byte_counts(tmp_path: Path) -> None:
    path = put(tmp_path, document(*({**OP, "cat": f"cat{n}", "ts": n} for n in range(300))))
    found = told(path)
    assert found.stated or [row["cat"] for row in rows(path)] == [f"cat{n}" for n in range(300)]


def test_more_threads_than_anybody_has(tmp_path: Path) -> None:
    path = put(tmp_path, document(*({**OP, "tid": n, "ts": n} for n in range(70_000))))
    assert [row["thread"] for row in rows(path)] == [("1", str(n)) for n in range(70_000)]


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xe9", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"])
@pytest.mark.parametrize("where", ["name", "cat", "tid", "args", "group", "key", "header", "host"])
def test_what_is_not_utf8(tmp_path: Path, where: str, bad: bytes) -> None:
    event: dict[str, Any] = {**OP, "name": "odd"}
    header: dict[str, Any] = {}
    if where == "args":
        event["args"] = {"Call stack": "HERE"}
    elif where == "group":
        event["args"] = {"Process Group Name": "HERE"}
    elif where == "key":
        event["HERE"] = 1
    elif where in ("header", "host"):
        header["host_name" if where == "host" else "traceName"] = "HERE"
    else:
        event[where] = "HERE"
    path = put(tmp_path, document(OP, event, **header).replace(b"HERE", b"caf" + bad))
    found = told(path)
    if found.error:
        assert "UTF-8" in found.error
    elif where in ("name", "cat"):
        assert found.gaps
    else:
        assert [row["name"] for row in rows(path)] == ["aten::mm", "odd"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    for compress in (False, True):
        data = document(OP).decode().encode(encoding)
        assert told(put(tmp_path, gzip.compress(data) if compress else data, f"{compress}.json")).error


def test_names_of_other_scripts(tmp_path: Path) -> None:
    names = ["加速", "\U0001f525\u200d", "e\u0301", "\u202eabc", "", " ", "\n\t\r", "a" * TRACE_LIMITS.most_name_chars]
    for ascii_only in (False, True):
        text = json.dumps({"traceEvents": [{**OP, "name": n} for n in names]}, ensure_ascii=ascii_only)
        path = put(tmp_path, text.encode(), f"{ascii_only}.json")
        assert [row["name"] for row in rows(path)] == names


# -- more than memory holds --------------------------------------------------------------------------------------------

HEAD = b'{"schemaVersion": 1, "traceEvents": [' + EVENT.encode() + b", "
START = HEAD + b'{"ph": "X", "name": "'
SPACES, LETTERS, DIGITS = b" " * 1024, b"a" * 1024, b"1" * 1024
BOMBS: list[tuple[str, list[Piece], bool]] = [  # what it is, its text, whether it can only be an error
    ("zeros", [(bytes(1024), GB >> 10)], True),
    ("spaces", [(SPACES, GB >> 10)], True),
    ("lines", [(b"\n" * 1024, GB >> 10)], True),
    ("a prefix, then spaces", [(HEAD, 1), (SPACES, GB >> 10)], True),
    ("a prefix, then zeros", [(HEAD, 1), (bytes(1024), GB >> 10)], True),
    ("an endless name", [(START, 1), (LETTERS, GB >> 10)], True),
    ("an endless name that ends", [(START, 1), (LETTERS, GB >> 10), (b'", "ts": 1, "dur": 1}]}', 1)], False),
    ("an endless argument", [(HEAD + b'{"args": {"a": "', 1), (LETTERS, GB >> 10), (b'"}}]}', 1)], False),
    ("an endless number", [(HEAD + b'{"ph": "X", "ts": ', 1), (DIGITS, GB >> 11), (b"}]}", 1)], False),
    ("escapes without end", [(START, 1), (b"\\u0041" * 512, GB // 3072 // 2)], True),
    ("an event without end", [(HEAD + b'{"args": {"a": 1', 1), (b',"b":[]' * 100, GB // 1400), (b"}}]}", 1)], False),
    ("a header without end", [(b'{"deviceProperties": [{}', 1), (b",{}" * 100, GB // 1200), (b"]}", 1)], True),
    ("a header's text without end", [(b'{"host_name": "', 1), (LETTERS, GB >> 11), (b'"}', 1)], True),
    ("empty events", [(b'{"traceEvents": [{}', 1), (b",{}" * 100, 150_000), (b"]}", 1)], True),
    ("tiny events", [(HEAD[:-2], 1), (b',{"ph":"X","ts":1,"dur":1}' * 100, 30_000), (b"]}", 1)], False),
    ("instants", [(HEAD[:-2], 1), (b',{"ph":"i","ts":1,"name":"[memory]"}' * 100, 30_000), (b"]}", 1)], False),
    ("lists of lists", [(b'{"traceEvents": [[]', 1), (b",[]" * 100, 300_000), (b"]}", 1)], True),
]


@pytest.mark.parametrize(("pieces", "broken"), [b[1:] for b in BOMBS], ids=[b[0] for b in BOMBS])
def test_a_small_file_that_unpacks_to_more_than_a_gigabyte(tmp_path: Path, pieces: list[Piece], broken: bool) -> None:
    path = put(tmp_path, packed(*pieces), "rank-4.json.gz")
    assert path.stat().st_size < 20e6
    found = apart("read", path)
    is_plain(found, path)
    assert found.error or not broken
    assert found.error or found.events + found.untimed >= 1
    assert found.peak_mb < MEMORY_MB


def test_tiny_events_are_counted_or_their_loss_is_stated(tmp_path: Path) -> None:
    path = put(
        tmp_path, packed((b'{"traceEvents": [', 1), (EVENT.encode() + b",", 99_999), (EVENT.encode() + b"]}", 1))
    )
    assert read(path).events == 100_000


def test_a_bomb_of_many_members(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(HEAD) + gzip.compress(b" " * (16 << 20)) * 64, "rank-4.json.gz")
    found = apart("read", path)
    is_plain(found, path)
    assert found.error
    assert found.peak_mb < MEMORY_MB


def test_ten_gigabytes_of_zeros(tmp_path: Path) -> None:
    path = put(tmp_path, packed((bytes(1024), 10 << 20)), "rank-4.json.gz")
    found = apart("read", path)
    is_plain(found, path)
    assert found.error
    assert found.peak_mb < MEMORY_MB


def test_names_of_a_megabyte(tmp_path: Path) -> None:
    pieces: list[Piece] = [(HEAD[:-2], 1)]
    for number in range(400):
        pieces += [(b',{"ph": "X", "ts": %d, "dur": 1, "cat": "cpu_op", "name": "%d' % (number, number), 1)]
        pieces += [(LETTERS, 1024), (b'"}', 1)]
    path = put(tmp_path, packed(*pieces, (b"]}", 1)), "rank-4.json.gz")
    found = apart("read", path)
    is_plain(found, path)
    assert found.error or found.events == 401
    assert found.error or found.gaps or found.names == 401
    assert found.peak_mb < MEMORY_MB


def write_names(path: Path, count: int, each: int = 50_000) -> None:
    """As many events, each with a name of its own."""
    with igzip.open(path, "wb", compresslevel=1) as out:
        out.write(HEAD[:-2])
        for first in range(0, count, each):
            out.write(
                b"".join(
                    b',{"ph":"X","cat":"cpu_op","name":"aten::operator_%d","pid":1,"tid":1,"ts":%d,"dur":1}' % (n, n)
                    for n in range(first, min(first + each, count))
                )
            )
        out.write(b"]}")


def test_more_names_than_are_kept(tmp_path: Path) -> None:
    """205 MB were measured for as many as are kept and for 300,000, 252 MB for a million, 336 MB for three."""
    count = examples(300_000, thorough=1_000_000)
    path = tmp_path / "rank-4.json.gz"
    write_names(path, count)
    found = apart("read", path, timeout=600)
    is_plain(found, path)
    assert found.error or (found.events, found.names) == (count + 1, count + 1) or found.gaps
    assert found.peak_mb < examples(300, thorough=MEMORY_MB)


GOOD: list[Piece] = [(document(OP, distributedInfo={"rank": 0, "world_size": 1}), 1)]
ARCHIVES: list[tuple[str, Callable[[], bytes]]] = [
    ("names that climb", lambda: tar_gz((member("../../escaped.json"), GOOD), (member("rank0.json"), GOOD))),
    ("names from the root", lambda: tar_gz((member("/tmp/diag-escaped/rank0.json"), GOOD))),
    ("a name of dots", lambda: tar_gz((member(".."), GOOD), (member("a/../../../escaped.json"), GOOD))),
    ("a link out", lambda: tar_gz((member("rank0.json", tarfile.SYMTYPE, "/etc/hostname"), []))),
    ("a link to a folder, then a file in it", lambda: tar_gz(
        (member("out", tarfile.SYMTYPE, "../.."), []), (member("out/escaped.json"), GOOD))),
    ("a hard link out", lambda: tar_gz((member("rank0.json", tarfile.LNKTYPE, "../secret.json"), []))),
    ("a link to itself", lambda: tar_gz((member("rank0.json", tarfile.SYMTYPE, "rank0.json"), []))),
    ("devices", lambda: tar_gz(
        (member("rank0.json", tarfile.CHRTYPE), []), (member("rank1.json", tarfile.BLKTYPE), []))),
    ("a pipe", lambda: tar_gz((member("rank0.json", tarfile.FIFOTYPE), []))),
    ("an archive in an archive", lambda: tar_gz((member("inner.tar.gz"), [(tar_gz((member("rank0.json"), GOOD)), 1)]))),
    ("a bomb", lambda: tar_gz((member("rank0.json"), [(bytes(1024), GB >> 10)]))),
    ("a bomb in a trace", lambda: tar_gz((member("rank0.json"), [(HEAD, 1), (SPACES, GB >> 10)]))),
    ("a bomb beside", lambda: tar_gz((member("core"), [(bytes(1024), GB >> 10)]), (member("rank0.json"), GOOD))),
    ("packed twice", lambda: tar_gz((member("rank0.json.gz"), [(packed((bytes(1024), GB >> 10)), 1)]))),
    ("many empty files", lambda: tar_gz(*((member(f"{n}/rank{n}.json"), []) for n in range(3000)))),
    ("cut off", lambda: tar_gz((member("rank0.json"), GOOD))[:-40]),
    ("a member cut off", lambda: gzip.compress(plain_tar("rank0.json", document(OP))[:700])),
    ("not a tar at all", lambda: gzip.compress(b"hello" * 1000)),
    ("a trace named like an archive", lambda: gzip.compress(document(OP))),
]  # fmt: skip


@pytest.mark.parametrize("make", [a[1] for a in ARCHIVES], ids=[a[0] for a in ARCHIVES])
def test_archives(tmp_path: Path, make: Callable[[], bytes]) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (tmp_path / "a" / "secret.json").write_bytes(document({**OP, "name": "secret"}))
    path = put(folder, make(), "run.tar.gz")
    before = sorted(p for p in tmp_path.rglob("*"))
    found = apart("open", path, timeout=PATIENCE_S)
    is_plain(found, path)
    assert found.error or found.ranks in ((0,), (4,))
    assert found.peak_mb < MEMORY_MB
    after = sorted(p for p in tmp_path.rglob("*") if not p.is_relative_to(tmp_path / "cache"))
    assert after == before, "something was written beside the archive"
    assert not Path("/tmp/diag-escaped").exists()
    assert (tmp_path / "a" / "secret.json").stat().st_nlink == 1


def _of_ranks(*ranks: int) -> bytes:
    """A .tar, whose members do not pack well."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for rank in ranks:
            events = [{**OP, "name": f"aten::{random.Random(rank * 1000 + n).random()}"} for n in range(100)]
            data = document(*events, distributedInfo={"rank": rank, "world_size": len(ranks)})
            info = member(f"rank{rank}.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _traces_and_gaps(path: Path) -> tuple[int, list[str]]:
    found = list(read_traces([str(path)], Reading()))
    gaps = [item.reason for item in found if isinstance(item, Gap)]
    return len(found) - len(gaps), gaps


@pytest.mark.parametrize("name", ["run.tar", "run.tar.gz"])
def test_of_an_archive_that_is_cut_off_the_whole_members_are_read(tmp_path: Path, name: str) -> None:
    """Wherever it is cut. Of a packed one, the end of a member may lie behind the cut in the same block."""
    plain = _of_ranks(0, 1, 2)
    data = gzip.compress(plain) if name.endswith(".gz") else plain
    headers = [place for place in range(0, len(plain), 512) if plain.startswith(b"rank", place)]
    end = len(data.rstrip(b"\0"))  # behind it, a cut takes nothing but zeros away
    seen = set()
    for cut in {1, 511, 512, 513, *headers, *range(0, len(data), len(data) // 60)}:
        traces, gaps = _traces_and_gaps(put(tmp_path, data[:cut], name))
        seen.add(traces)
        if name == "run.tar":
            assert traces >= sum(cut >= header for header in [*headers[1:], len(plain)])
        assert gaps or cut > end, cut
        assert all("end" in gap or "header" in gap for gap in gaps), gaps
    assert seen >= {0, 1, 2}
    assert _traces_and_gaps(put(tmp_path, data, name)) == (3, [])


def test_damaged_headers_of_an_archive_are_a_gap(tmp_path: Path) -> None:
    """Sparse maps, sizes, types and names of all kinds, with checksums that are right."""
    draw = random.Random(3)
    whole = _of_ranks(0, 1)
    for _ in range(150):
        data, header = bytearray(whole), draw.choice((0, whole.find(b"rank1")))
        data[header + 156] = draw.choice(b"SxgLK0125\xff")
        for _ in range(draw.choice((1, 2, 8))):
            place = draw.choice((draw.randrange(512), 124 + draw.randrange(12), 386 + draw.randrange(110)))
            data[header + place] = draw.choice((0, 0x80, 0xFF, ord("9"), draw.randrange(256)))
        block = data[header : header + 512]
        data[header + 148 : header + 156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
        traces, gaps = _traces_and_gaps(put(tmp_path, bytes(data), "run.tar"))
        assert traces + len(gaps) >= 1


def test_a_sparse_file_in_an_archive_is_a_gap(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = member("rank0.json")
        info.pax_headers = {"GNU.sparse.map": "0,x,9", "GNU.sparse.size": "99", "GNU.sparse.name": "rank0.json"}
        archive.addfile(info)
    traces, gaps = _traces_and_gaps(put(tmp_path, out.getvalue(), "run.tar"))
    assert traces == 0
    assert "sparse" in gaps[0]


def test_headers_of_an_archive_do_not_add_up(tmp_path: Path) -> None:
    """tarfile keeps the keys of a global header for every member: 0.2 MB took 5.7 GB."""
    keys = b"".join(b"11 %07d=v\n" % key for key in range(5_000))
    archive = tar_gz(
        (member("x", tarfile.XGLTYPE), [(keys, 1)]), *((member(f"{n}.txt"), []) for n in range(2_000)),
        (member("x", tarfile.XHDTYPE), [(b"19 path=rank7.json\n", 1)]), (member("short"), [(document(OP), 1)]),
    )  # fmt: skip
    tracemalloc.start()
    found = list(read_traces([str(put(tmp_path, archive, "run.tar.gz"))], Reading()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [item.path.rpartition("!")[2] for item in found] == ["rank7.json"]
    assert peak < 100 << 20


@pytest.mark.parametrize("name", ["rank0.json.gz", "run.tar.gz"])
def test_a_gzip_header_without_end_is_a_gap(tmp_path: Path, name: str) -> None:
    traces, gaps = _traces_and_gaps(put(tmp_path, b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 600_000, name))
    assert traces == 0
    assert "damaged" in gaps[0]


def test_an_archive_of_too_many_files_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(TRACE_LIMITS), "most_archive_members", 2)
    traces, gaps = _traces_and_gaps(put(tmp_path, _of_ranks(0, 1, 2), "run.tar"))
    assert traces == 2
    assert "more than 2 files" in gaps[0]


@pytest.mark.parametrize("name", ["rank-4.json", "rank-4.json.gz"])
def test_an_archive_named_like_a_trace(tmp_path: Path, name: str) -> None:
    for data in (plain_tar("rank-4.json", document(OP)), b"PK\x03\x04" + bytes(100), b"\x28\xb5\x2f\xfd" + bytes(100),
                 zlib.compress(document(OP)), b"BZh9" + bytes(100), b"\x1f\x8b" + os.urandom(100)):  # fmt: skip
        assert told(put(tmp_path, data, name)).error


# -- files that are not what they were ---------------------------------------------------------------------------------


def test_a_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    """Of equal size, and within one tick of the file system's clock: what a cache must not take for the same."""
    path = tmp_path / "rank-4.json"
    for number in range(10, 40):
        path.write_bytes(document({**OP, "ts": number}))
        assert [row["ts_ns"] for row in rows(path)] == [number * 1000]


def test_a_cache_that_is_damaged_or_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = built().write(tmp_path, "rank-4.json", layout="kineto", compress=True)
    whole = rows(path)
    for harm in (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: bytes(len(data))):
        for stored in (tmp_path / "cache").rglob("*"):
            if stored.is_file():
                stored.write_bytes(harm(stored.read_bytes()))
        assert rows(path) == whole
    monkeypatch.setenv("DIAG_CACHE", str(put(tmp_path, b"", "a-file")))
    assert rows(path) == whole


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    for name in ("folder.json", "dangling.json", "circle.json", "gone.json", "n" * 300 + ".json"):
        assert "cannot be read" in told(tmp_path / name).error
    with pytest.raises(DiagError):
        open_run(tmp_path)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-4.json")
    found = apart("open", tmp_path / "rank-4.json", timeout=PATIENCE_S)
    assert found.error


def test_one_hostile_rank_does_not_take_the_others(tmp_path: Path) -> None:
    for rank in range(3):
        KinetoBuilder(rank=rank, world_size=4).step(1, 0, 5_000).op("aten::mm", 1, 4_000).write(
            tmp_path, f"r{rank}.json"
        )
    put(tmp_path, packed((HEAD, 1), (SPACES, GB >> 10)), "rank-3.json.gz")
    found = apart("open", tmp_path)
    assert found.ranks == (0, 1, 2)
    assert [gap for gap in found.gaps if "rank-3.json.gz" in gap]
    assert found.peak_mb < MEMORY_MB


def test_the_builder_packs_what_it_says() -> None:
    """What the tests above rest on."""
    assert gzip.decompress(packed((b"ab", 3), (b"", 5), (b"c" * 100, 70_001))) == b"ababab" + b"c" * 7_000_100
    text = serialised({"baseTimeNanoseconds": 5}, built().events, "kineto")
    assert json.loads(text) == json.loads(serialised({"baseTimeNanoseconds": 5}, built().events))
    assert math.isnan(json.loads(serialised({}, [{"ph": "X", "ts": math.nan}], "kineto"))["traceEvents"][0]["ts"])


@pytest.mark.parametrize(
    "data",
    [b'{"a": 1, "b": [1, 2,', b"no JSON", b"", b'{"name": "a", "version": 1}', b'{"traceEvents": 5}', b"[" * 100_000],
    ids=["cut off", "no JSON", "empty", "another format", "wrong type", "nested"],
)
def test_an_unreadable_file_leaves_nothing_in_memory(tmp_path: Path, data: bytes) -> None:
    """Not even until the interpreter looks for cycles, which the command line puts off: a folder holds thousands."""
    path = put(tmp_path, data)
    gc.collect()
    gc.disable()
    try:
        (found,) = read_file(str(path), None)
        left = [one for one in gc.get_objects() if isinstance(one, Cutter | DiagError)]
    finally:
        gc.enable()
    assert found.reason
    assert left == []

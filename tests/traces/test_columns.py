"""Numbers and names read out of text column by column, against the same read one by one."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diag.traces import kineto_json
from diag.traces.event_table import EventTable, add_events
from diag.traces.fast.byte_columns import Text
from diag.traces.fast.kineto_text import ABSENT, Heads, Key, KinetoText, integers, layout, read_times
from diag.traces.kineto_json import KINETO_BETWEEN, Cutter
from diag.traces.policy import TRACE_LIMITS, TRACE_READING

CORRELATION: Key = (b'"correlation": ', 3)
TOTAL: Key = (b'"Total Allocated": ', 7)


def placed(pieces: list[bytes]) -> tuple[Text, np.ndarray, np.ndarray]:
    """The pieces as one text, and where each is in it."""
    text = Text(b"".join(pieces))
    end = text.begin + np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return text, end - np.array([len(piece) for piece in pieces], dtype=np.int64), end


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_equal_texts_have_equal_fingerprints_wherever_they_stand(texts: list[bytes], chance: random.Random) -> None:
    pieces = [chance.choice(texts) for _ in range(60)] + texts
    prints = Text.fingerprints(*placed(pieces)).tolist()
    assert len(set(zip(pieces, prints, strict=True))) == len(set(pieces)) == len(set(prints))


def test_texts_that_differ_in_one_byte_have_other_fingerprints() -> None:
    for length in (1, 7, 8, 63, 64, 65, 128, 129, 1000):
        texts = [
            b"a" * at + bytes([other]) + b"a" * (length - at - 1) for at in range(length) for other in b"b\x00\xe1"
        ]
        texts += [b"a" * length, b"a" * (length + 1), b"\x00" + b"a" * length]
        assert len(set(Text.fingerprints(*placed(texts)).tolist())) == len(texts)


def test_words_in_another_order_have_other_fingerprints() -> None:
    words = [b"%08d" % number for number in range(24)]
    chance = random.Random(0)
    texts = {b"".join(chance.sample(words, len(words))) for _ in range(2000)}
    assert len(set(Text.fingerprints(*placed(sorted(texts))).tolist())) == len(texts)


# -- times -------------------------------------------------------------------------------------------------------------


digits = st.integers(0, 10**12) | st.integers(10**15, 10**16 - 1) | st.integers(0, 10**18)
moment = st.tuples(digits, st.sampled_from(["", ".000", ".181", ".5", ".", "e3", "\x00"])).map(
    lambda m: f"{m[0]}{m[1]}"
)
alike = st.integers(1_669_783_687_464_181, 1_669_783_999_999_999).map(str)
lines_of_times = st.one_of(
    st.lists(st.tuples(moment, moment, st.sampled_from([', "dur": ', ',"dur": ', ', "dur":  '])), min_size=1),
    st.lists(st.tuples(alike, digits.map(str), st.just(', "dur": ')), min_size=1),
    st.lists(
        st.tuples(alike.map("{}.250".format), digits.map("{}.125".format), st.just(', "dur": ')),
        min_size=1,
        max_size=60,
    ),
)


def nanoseconds_by_hand(text: str) -> int | None:
    found = re.fullmatch(r"(\d{1,18})(?:\.(\d{3}))?", text)
    return int(found[1]) * 1000 + int(found[2] or 0) if found and int(found[1]) < (1 << 62) // 1000 else None


@settings(deadline=None)
@given(lines_of_times)
@example([("4611686018427387", "0", ', "dur": ')])  # nanoseconds that just do not fit
@example([("9999999999999999", "0", ', "dur": ')])
def test_times_of_any_width(lines: list[tuple[str, str, str]]) -> None:
    body = ",\n".join(
        f'  {{\n    "ph": "X", "name": "a",\n    "ts": {ts}{between}{dur},\n    "args": {{\n      "b": 1\n    }}\n  }}'
        for ts, dur, between in lines
    )
    events = layout(Text(body.encode()))
    assert events is not None
    ts_ns, dur_ns, whole, _ = read_times(events)
    for row, (ts, dur, between) in enumerate(lines):
        expected = (nanoseconds_by_hand(ts), nanoseconds_by_hand(dur))
        if whole[row]:
            assert between == ', "dur": '
            assert (ts_ns[row], dur_ns[row]) == expected
        else:
            assert between != ', "dur": ' or None in expected


def test_a_chunk_without_durations_has_no_times() -> None:
    events = layout(Text(event('      "b": 1').encode()))
    assert events is not None
    assert [len(found) for found in read_times(events.only(np.zeros(1, dtype=np.bool_)))] == [0, 0, 0, 0]


# -- integers among arguments ------------------------------------------------------------------------------------------


def event(body: str) -> str:
    return f'  {{\n    "ph": "X", "name": "a",\n    "ts": 1, "dur": 1,\n    "args": {{\n{body}\n    }}\n  }}'


def by_hand(body: str, key: Key) -> int:
    at = body.find(key[0].decode())
    found = re.match(r'"?(-?[0-9.]+)', body[at + len(key[0]) :]) if at >= 0 else None
    return int(found[1]) if found and re.fullmatch(r"-?\d{1,18}", found[1]) else ABSENT


number = st.one_of(st.integers(-5, 10), st.integers(0, 10**12), st.integers(10**17, 10**30))
value = st.one_of(
    number, number.map(str), st.floats(0, 1e6).map(lambda x: round(x, 4)), st.sampled_from(["a", None, []])
)
name = st.sampled_from(["External id", "correlation", "Total Allocated", "stream", 'say "correlation": 3', "cbid"])
arguments = st.lists(st.tuples(name, value), min_size=1, max_size=5, unique_by=lambda pair: pair[0])


@settings(deadline=None)
@given(st.lists(arguments, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_integers_behind_keys(kinds: list[list[tuple[str, object]]], chance: random.Random) -> None:
    bodies = []
    for _ in range(40):
        parts = []
        for key, v in chance.choice(kinds):
            changed = isinstance(v, int) and chance.random() < 0.8
            parts.append(f"{json.dumps(key)}: {json.dumps(chance.randrange(10**6) if changed else v)}")
        bodies.append("      " + ",\n      ".join(parts))
    events = layout(Text(",\n".join(map(event, bodies)).encode()))
    assert events is not None
    found = integers(events, [CORRELATION, TOTAL])
    assert found.tolist() == [[by_hand(body, key) for body in bodies] for key in (CORRELATION, TOTAL)]


def test_an_example_that_is_long_or_wide_misleads_nobody() -> None:
    wide = '      "External id": ' + "1" * 5000 + ', "correlation": 5'
    far = '      "text": "' + "x" * 5000 + '", "correlation": 6'
    bodies = [wide, far, '      "correlation": 7', '      "correlation": 12345678901234567890', "", wide]
    events = layout(Text(",\n".join(map(event, bodies)).encode()))
    assert events is not None
    assert integers(events, [CORRELATION]).tolist() == [[5, 6, 7, ABSENT, ABSENT, 5]]


def test_a_key_far_into_an_example_is_not_looked_for_behind_a_shorter_event() -> None:
    long = "      " + ", ".join(f'"n{number}": {number}' for number in range(40)) + ', "correlation": 5'
    bodies = [long, '      "correlation": 7', '      "cbid": 1', long, '      "cbid": 1']
    events = layout(Text(",\n".join(map(event, bodies)).encode()))
    assert events is not None
    assert integers(events, [CORRELATION]).tolist() == [[5, 7, ABSENT, 5, ABSENT]]


# -- layout ------------------------------------------------------------------------------------------------------------

FLOW = '  {\n    "ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1,\n    "cat": "ac2g", "name": "ac2g"\n  }'
WITHOUT_ARGUMENTS = '  {\n    "ph": "X", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 1,\n    "ts": 2, "dur": 1\n  }'
WORK = (
    '  {\n    "ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1,\n    "ts": 3, "dur": 1,\n'
    '    "args": {\n      "a": %s\n    }\n  }'
)
kinds_of_events = st.sampled_from(
    [FLOW, WITHOUT_ARGUMENTS, WORK % ("a", 1), WORK % ("{lambda()#1}", 1), WORK % ("c", '"{x}"'), WORK % ("d", "{}")]
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(kinds_of_events, st.sampled_from([",\n", ",\n", ",\n", ", \n", ",\n\n", ","])),
        min_size=1,
        max_size=12,
    )
)
def test_every_event_is_read_however_it_is_separated_from_the_next(pieces: list[tuple[str, str]]) -> None:
    text = "".join(one + between for one, between in pieces[:-1]) + pieces[-1][0]
    table = EventTable()
    if not KinetoText(table, "a.json").decode([text.encode()]):
        table = EventTable()
        add_events(table, kineto_json.events(text.encode(), "a.json"))
    names = table.events().names.to_list()
    codes = [code for frame in table.events().frames for code in frame.lazy().collect()["name"].to_list()]
    expected = [one["name"] for one in json.loads(f"[{text}]") if one["ph"] == "X"]
    assert sorted(names[code] for code in codes) == sorted(expected)


def test_a_long_first_line_of_a_mark_misleads_nobody() -> None:
    mark = (
        '  {\n    "ph": "i", "s": "t", "name": "%s",\n    "pid": 1, "tid": 1,\n    "ts": 5,\n'
        '    "args": {\n      %s\n    }\n  }'
    )
    sample = '"Device Type": 1, "Device Id": 0, "Addr": 7, "Bytes": 3, "Total Allocated": 4, "Total Reserved": 5'
    table = EventTable()
    pieces = [WORK % ("a", 1), mark % ("x" * 5000, '"y": 1'), mark % ("[memory]", sample)]
    assert KinetoText(table, "a.json").decode([",\n".join(pieces).encode()])
    assert table.events().counters["bytes"].to_list() == [3]


# -- first lines -------------------------------------------------------------------------------------------------------


def line(number: int) -> bytes:
    return b'"cat": "cpu_op", "name": "op%d", "pid": 1, "tid": %d,' % (number, number % 3)


def names_of(heads: Heads, numbers: list[int]) -> list[str]:
    found = heads.of(*placed([line(number) for number in numbers]))
    assert found is not None
    names = heads.table.events().names.to_list()
    return [names[code] for code in found["name"]]


@pytest.mark.parametrize("most", [10**6, 50])
def test_first_lines_are_known_again(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setitem(vars(TRACE_READING), "slot_bits", 4)  # many share a place
    monkeypatch.setitem(vars(TRACE_LIMITS), "most_heads", most)  # all are forgotten now and then
    heads = Heads(EventTable())
    chance = random.Random(1)
    for _ in range(20):
        numbers = [chance.randrange(100) for _ in range(80)]
        assert names_of(heads, numbers) == [f"op{number}" for number in numbers]


def test_a_line_that_is_no_first_line_is_told() -> None:
    heads = Heads(EventTable())
    assert heads.of(*placed([line(1), b'"cat": "cpu_op", "name": "no thread",', line(2)])) is None
    assert names_of(heads, [2, 1, 3]) == ["op2", "op1", "op3"]


def blocks_of(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


@pytest.mark.parametrize("block", [1, 7, 11, 64, 1000, 10**6])
def test_no_event_is_lost_between_chunks(block: int) -> None:
    events = [event(f'      "correlation": {number}').encode() for number in range(1200)]
    text = b'{"traceEvents": [\n' + b",\n".join(events) + b"\n]}"
    cutter = Cutter(blocks_of(text, block), "a.json", chunk_bytes=2000)
    chunks = []
    while pieces := cutter.next_chunk():
        chunks.append(b"".join(pieces))
    assert len(chunks) > 10 or block > len(text)
    read = [one for chunk in (*chunks, cutter.rest.removesuffix(b"]}")) for one in json.loads(b"[%b]" % chunk)]
    assert [one["args"]["correlation"] for one in read] == list(range(1200))
    assert all(chunk.count(KINETO_BETWEEN) for chunk in chunks)

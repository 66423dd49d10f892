"""Files that nobody thought of: whatever is done to a trace, reading it ends in a DiagError or in steps that add up;
and the same events mean the same in every layout.

    DIAG_FUZZ_EXAMPLES=5000 DIAG_FUZZ_SEED=7 pytest tests/traces/test_fuzz.py

A failure prints its seed and its example. Without a seed of the caller's the examples are always the same ones.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, seed, settings
from hypothesis import strategies as st

from tests.account.kineto_builder import LAYOUTS, KinetoBuilder, nccl_args, serialised
from tests.examples import examples
from tests.traces.outcomes import Outcome, is_plain, opened, read, rows

SEED = int(os.environ.get("DIAG_FUZZ_SEED", "0"))
EXAMPLES = int(os.environ.get("DIAG_FUZZ_EXAMPLES", examples(50, thorough=300)))
SAMPLES = Path(__file__).parents[2] / "sample_traces"
SHARED = Path(__file__).parents[3] / "shared" / "traces"
Document = dict[str, Any]

few = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.fixture(autouse=True, scope="module")
def folder() -> Iterator[Path]:
    """Fuzzed files and a cache of their own."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIAG_CACHE", str(Path(name) / "cache"))
        yield Path(name)


def built() -> Document:
    made = KinetoBuilder()
    for step in (1, 2):
        begin = step * 1_000_000
        made.step(step, begin, begin + 990_000, "ProfilerStep#").op("aten::mm", begin + 5_001, begin + 9_000)
        made.kernel(begin + 20_000, begin + 300_123, launch=begin + 6_000).copy(begin + 310_000, begin + 320_000)
        made.kernel(
            begin + 400_000,
            begin + 500_000,
            "ncclDevKernel_AllReduce",
            begin + 7_000,
            20,
            **nccl_args("allreduce", 9, step),
        )
        made.range("gloo:all_reduce", begin + 1, begin + 2, args={"Input Dims": [[1, 2]], "Input type": ["float"]})
        made.memory(begin + 6_000, 10, 20)
    made.flows().framed()
    return {**made.header, "displayTimeUnit": "ms", "traceName": "a ], b", "traceEvents": made.events}


def thinned(path: Path, events: int = 60) -> Document:
    """A recorded trace with the ranges of its steps, and of the rest some of every category."""
    found: Document = json.loads(gzip.decompress(path.read_bytes()))
    every = found["traceEvents"]
    kinds: dict[tuple[str, str], list[Any]] = {}
    for one in every:
        kinds.setdefault((one.get("ph", ""), one.get("cat", "")), []).append(one)
    each = max(1, events // len(kinds))
    chosen = {id(one) for group in kinds.values() for one in group[:: max(1, len(group) // each)][:each]}
    steps = {id(one) for one in every if str(one.get("name")).startswith(("ProfilerStep#", "diag.step#"))}
    return {**found, "traceEvents": [one for one in every if id(one) in chosen | steps]}


def sources() -> dict[str, Document]:
    recorded = [*sorted(SAMPLES.glob("*/ranks/*/trace*.json.gz"))[:1], *sorted(SHARED.glob("odd/*.json.gz"))]
    recorded += [
        path for name in ("ddp_a100_1rank", "sampled_2of128") for path in sorted((SHARED / name).glob("*"))[:1]
    ]
    return {"built": built(), **{path.name: thinned(path) for path in recorded}}


SOURCES = sources()


def check(folder: Path, data: bytes) -> Outcome:
    """The oracle: an error that a person understands, or a trace whose steps add up (`opened` asserts it)."""
    note(f"DIAG_FUZZ_SEED={SEED}")
    path = Path(tempfile.mkdtemp(dir=folder)) / "rank-0.json"  # a new one: no cache can know it
    path.write_bytes(data)
    found = read(path)
    is_plain(found, path)
    run = opened(path)
    assert bool(run.error) == bool(found.error)
    event("error" if found.error else "trace")
    return found


# -- what is done to a trace -------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 2**64 - 1, 10**30, 1.5, -0.0, 1e300, float("nan"), float("-inf"), "", "7",
    "x" * 300, "[0, 1]", "ProfilerStep#1", "ProfilerStep#99999999999999999999", "diag.step#-1", "nccl:", "\ud83d\ude00",
    [], {}, [[]], [1, "a"], {"a": 1}, {"traceEvents": []}, [[1, 2], [3]], "[[1e9, 2]]", "Trace", "kernel", "i",
]  # fmt: skip
KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "correlation", "stream", "device", "Input Dims", "Seq"]
Change = Callable[[Document, random.Random], None]


def _events(document: Document) -> list[Any]:
    found = document.get("traceEvents")
    return found if isinstance(found, list) else []


def _some_object(document: Document, rng: random.Random) -> Document:
    """The document, or an event, or arguments, or an object of the header."""
    objects = [document] + [value for value in document.values() if isinstance(value, dict)]
    events = [one for one in _events(document) if isinstance(one, dict)]
    events += [one["args"] for one in events if isinstance(one.get("args"), dict)]
    return rng.choice(events if events and rng.random() < 0.8 else objects)


def drop_key(document: Document, rng: random.Random) -> None:
    if (one := _some_object(document, rng)) and one is not document:
        del one[rng.choice(list(one))]


def change_value(document: Document, rng: random.Random) -> None:
    one = _some_object(document, rng)
    keys = [key for key in one if key != "traceEvents"] or KEYS
    one[rng.choice(keys)] = deepcopy(rng.choice(ODD))


def add_key(document: Document, rng: random.Random) -> None:
    _some_object(document, rng)[rng.choice(KEYS)] = deepcopy(rng.choice(ODD))


def reorder_keys(document: Document, rng: random.Random) -> None:
    one = _some_object(document, rng)
    items = list(one.items())
    rng.shuffle(items)
    one.clear()
    one.update(items)


def change_events(document: Document, rng: random.Random) -> None:
    events = _events(document)
    if not events:
        return
    at = rng.randrange(len(events))
    change = rng.randrange(4)
    if change == 0:
        events.insert(rng.randrange(len(events)), events[at])
    elif change == 1:
        del events[at]
    elif change == 2:
        rng.shuffle(events)
    else:
        events[at] = deepcopy(rng.choice(ODD))


def move_time(document: Document, rng: random.Random) -> None:
    events = [one for one in _events(document) if isinstance(one, dict)]
    if events:
        scale = 10.0 ** rng.randrange(-3, 16)
        rng.choice(events)[rng.choice(["ts", "dur"])] = round(rng.uniform(-1, 1) * scale, rng.randrange(4))


CHANGES: list[Change] = [drop_key, change_value, add_key, reorder_keys, change_events, move_time]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _splice(data: bytes, rng: random.Random) -> bytes:
    begin, at = rng.randrange(len(data)), rng.randrange(len(data))
    return data[:at] + data[begin : begin + rng.randrange(200)] + data[at + rng.randrange(50) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    bits = [
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\0",
        b"\xff",
        b"\n  },\n  {\n",
        b"\xe2\x80\xa8",
        b"/*",
        b"1e5",
    ]
    return data[:at] + rng.choice(bits) + data[at:]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _twice_a_key(data: bytes, rng: random.Random) -> bytes:
    key = rng.choice([b'"ts":', b'"name":', b'"args":', b'"ph":', b'"traceEvents":', b'"distributedInfo":'])
    return data.replace(
        key, key + rng.choice([b" 1, ", b" null, ", b' "x", ', b" [], ", b" {}, "]) + key, rng.choice([1, -1])
    )


def _blank(data: bytes, rng: random.Random) -> bytes:
    old, new = rng.choice(
        [(b" ", b""), (b"\n", b""), (b": ", b"\t:\r\n"), (b",", b" , "), (b"\n", b"\r\n"), (b" ", b" " * 40)]
    )
    return data.replace(old, new)


BYTES: list[Callable[[bytes, random.Random], bytes]] = [_cut, _splice, _insert, _flip, _twice_a_key, _blank]
randoms = st.integers(0, 2**32 - 1).map(random.Random)


def dumped(document: Document, layout: str, rng: random.Random) -> str:
    """The text in one layout. ``traceEvents`` keeps its place among the keys where the layout has no say in it."""
    if layout == "kineto" and isinstance(document.get("traceEvents"), list):
        rest = {key: value for key, value in document.items() if key != "traceEvents"}
        return serialised(rest, document["traceEvents"], "kineto")
    styles: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 0}, {"indent": "\t"}]
    return json.dumps(document, ensure_ascii=rng.random() < 0.5, **rng.choice(styles))


@seed(SEED)
@few
@given(source=st.sampled_from(list(SOURCES)), layout=st.sampled_from(LAYOUTS), rng=randoms, count=st.integers(1, 6))
def test_changed_documents(folder: Path, source: str, layout: str, rng: random.Random, count: int) -> None:
    document = json.loads(json.dumps(SOURCES[source]))
    for _ in range(count):
        rng.choice(CHANGES)(document, rng)
    data = dumped(document, layout, rng).encode("utf-8", "surrogatepass")
    check(folder, gzip.compress(data, 1) if rng.random() < 0.2 else data)


@seed(SEED)
@few
@given(source=st.sampled_from(list(SOURCES)), layout=st.sampled_from(LAYOUTS), rng=randoms, count=st.integers(1, 3))
def test_changed_bytes(folder: Path, source: str, layout: str, rng: random.Random, count: int) -> None:
    data = dumped(SOURCES[source], layout, rng).encode()
    packed = rng.random() < 0.2
    if packed and rng.random() < 0.5:
        data, packed = gzip.compress(data, 1), False
    for _ in range(count):
        data = rng.choice(BYTES)(data or b" ", rng)
    check(folder, gzip.compress(data, 1) if packed else data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(ODD),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)
json_events = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS[:8], json_values))


@seed(SEED)
@few
@given(
    header=st.dictionaries(
        st.sampled_from(["distributedInfo", "deviceProperties", "host_name", "baseTimeNanoseconds"])
        | st.text(max_size=4),
        json_values,
        max_size=4,
    ),
    events=st.lists(json_events | json_values, max_size=6) | json_values,
    with_one=st.booleans(),
)
def test_random_json(folder: Path, header: Document, events: Any, with_one: bool) -> None:
    if with_one and isinstance(events, list):
        events = [*events, {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5.25, "dur": 1.5}]
    check(folder, json.dumps({**header, "traceEvents": events}).encode("utf-8", "surrogatepass"))


@seed(SEED)
@few
@given(
    data=st.binary(max_size=200),
    prefix=st.sampled_from([b"", b"{", b'{"traceEvents":[', b"\x1f\x8b\x08", b"\xef\xbb\xbf"]),
)
def test_random_bytes(folder: Path, data: bytes, prefix: bytes) -> None:
    assert check(folder, prefix + data).error


def layouts(document: Document, rng: random.Random) -> dict[str, bytes]:
    """The same events as each writer of this world would print them."""
    rest = {key: value for key, value in document.items() if key != "traceEvents"}
    events = document["traceEvents"]

    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return [shuffled(item) for item in value]
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in rng.sample(list(value), len(value))}
        return value

    texts = {
        "kineto": serialised(rest, events, "kineto"),
        "kineto, CRLF": serialised(rest, events, "kineto").replace("\n", "\r\n"),
        "events first": json.dumps({"traceEvents": events, **rest}),
        "events last": json.dumps({**rest, "traceEvents": events}),
        "tight": json.dumps({**rest, "traceEvents": events}, separators=(",", ":")),
        "unescaped": json.dumps({"traceEvents": events, **rest}, ensure_ascii=False),
        "indented": json.dumps({**rest, "traceEvents": events}, indent=2),
        "indented by tabs": json.dumps({"traceEvents": events, **rest}, indent="\t"),
        "an event a line": "{" + "".join(f"\n{json.dumps(key)}:{json.dumps(value)}," for key, value in rest.items())
            + '\n"traceEvents":[\n' + ",\n".join(map(json.dumps, events)) + "\n]}",
        "shuffled keys": json.dumps(shuffled({**rest, "traceEvents": events})),
        "shuffled, indented": json.dumps(shuffled({"traceEvents": events, **rest}), indent=1),
        "spaced": json.dumps({**rest, "traceEvents": events}, separators=(" ,\n\n", " : ")) + "\n\n",
    }  # fmt: skip
    found = {name: text.encode() for name, text in texts.items()}
    return {**found, "gzip": gzip.compress(found["kineto"], 1), "byte order mark": b"\xef\xbb\xbf" + found["tight"]}


def same_in_every_layout(folder: Path, document: Document, rng: random.Random) -> None:
    expected: list[dict[str, Any]] | None = None
    for number, (name, data) in enumerate(layouts(document, rng).items()):
        path = Path(tempfile.mkdtemp(dir=folder)) / f"{number}.json"
        path.write_bytes(data)
        found = rows(path)
        if expected is None:
            expected = found
        assert found == expected, name


@pytest.mark.parametrize("source", SOURCES)
def test_traces_read_the_same_in_every_layout(folder: Path, source: str) -> None:
    same_in_every_layout(folder, SOURCES[source], random.Random(SEED))


numbers = st.integers(0, 10**9).map(lambda ns: ns / 1000)
texts = st.text(max_size=12) | st.sampled_from(
    ['"', "\\", "},{", "\n  },\n  {", '"ph": "X"', "]}", "aten::mm", "\u2028", "ncclKernel", "nccl:x", "gloo:y"]
)
small = st.integers(0, 50)
plain_values = json_values.filter(lambda value: not any(word in json.dumps(value) for word in ("NaN", "Infinity")))
arguments = {
    **dict.fromkeys(("correlation", "stream", "device", "Seq"), small),
    **dict.fromkeys(("Collective name", "dtype", "Process Group Name", "Call stack"), texts),
    "Process Group Ranks": st.sampled_from(["[0, 1]", "[0, ..., 7]"]),
    "Input Dims": st.lists(st.lists(small, max_size=3), max_size=3),
    "other": plain_values,
}
categories = st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "user_annotation", "python_function"])
common = {"name": texts, "pid": small | texts, "tid": small | texts, "ts": numbers}
timed = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": categories, **common, "dur": numbers},
    optional={"args": st.fixed_dictionaries({}, optional=arguments)},
)
other = st.fixed_dictionaries(
    {"ph": st.sampled_from(["i", "M", "s", "f", "C", "B"]), **common},
    optional={"id": small, "cat": texts, "args": st.dictionaries(texts, texts, max_size=2)},
)


@seed(SEED)
@settings(few, max_examples=EXAMPLES // 3)
@given(events=st.lists(timed | other, max_size=8), first=timed, host=texts, rng=randoms)
def test_any_events_read_the_same_in_every_layout(
    folder: Path, events: list[Any], first: Any, host: str, rng: random.Random
) -> None:
    header = {
        "host_name": host,
        "distributedInfo": {"rank": 1, "pg_config": [{"pg_name": host, "ranks": [0, 1]}]},
        "baseTimeNanoseconds": 10**15,
    }
    same_in_every_layout(folder, {**header, "traceEvents": [first, *events]}, rng)

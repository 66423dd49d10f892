"""Inputs that are nearly right: files of the corpus with some of their values, lines or bytes changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

# What damaged and hostile files hold: extremes of the numbers, wrong types, text that means something to a terminal, a
# path or a parser.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.5, 1e308, float("nan"), float("inf"), float("-inf"),
    2**31, 2**62, -(2**62), 2**63, 2**64, 10**12, -(10**12), 10**30, 10**400,
    "", " ", "0", "-1", "nan", "1e999", "rank", "x" * 5_000, "0" * 200, "é" * 300,
    "\x00", "\x1b]52;c;QQ==\x07", "\u202e",
    "\ud800", "../../../etc/passwd", "/dev/zero", "http://example.com/", "[bold]", "%s%n", "{}",
    [], {}, [[]], [None], [0] * 2_000, {"": None}, {"a": {"a": {"a": []}}}, [-1, 2**63], [["data", 2**62, -5]],
)  # fmt: skip
BYTES = (
    b"\x00", b"\xff", b"\n", b"\r", b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"0", b"-", b"e9", b"NaN",
    b"\x1b[2J", b"\xed\xa0\x80", b"[" * 3_000, b"9" * 5_000, b"[0] " * 800,
    b"\x1f\x8b", b"PK\x03\x04", b"\x80\x04", b"(lp0\n", b"r\xff\xff\xff\x7f",
)  # fmt: skip


_value = st.sampled_from(VALUES).map(copy.deepcopy)  # a document that held one of them itself could come to hold itself


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in the document with each of its keys."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inside in items:
            yield one, key
            waiting.append(inside)


def _is_document(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), (dict, list))
    except (ValueError, RecursionError):
        return False


@st.composite
def changed_document(draw: st.DrawFn, content: bytes) -> bytes:
    """A JSON document with one to three of its values replaced, removed, given twice or put under another key."""
    document = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            break
        # A few keys occur thousands of times: each key is as likely as any other.
        names = sorted({str(key) if isinstance(one, dict) else "" for one, key in places})
        name = draw(st.sampled_from(names))
        here = [(one, key) for one, key in places if (str(key) if isinstance(one, dict) else "") == name]
        container, key = here[draw(st.integers(0, len(here) - 1))]
        match draw(st.sampled_from(("value", "value", "value", "remove", "key", "wrap"))):
            case "remove":
                del container[key]
            case "key" if isinstance(container, dict):
                container[str(draw(st.sampled_from(VALUES)))[:300]] = container.pop(key)
            case "wrap":
                container[key] = [container[key]]
            case _:
                container[key] = draw(_value)
    return json.dumps(document).encode("utf-8", "surrogatepass")


@st.composite
def changed_lines(draw: st.DrawFn, content: bytes) -> bytes:
    """Lines removed, repeated, put elsewhere, cut, or, where they are JSON, changed as documents."""
    lines = content.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("document", "document", "remove", "repeat", "move", "cut", "bytes"))):
            case "remove" if len(lines) > 1:
                del lines[at]
            case "repeat":
                lines[at:at] = [lines[at]] * draw(st.sampled_from((1, 3, 300)))
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "cut":
                lines[at] = lines[at][: draw(st.integers(0, max(0, len(lines[at]) - 1)))]
            case "document" if _is_document(lines[at]):
                lines[at] = draw(changed_document(lines[at]))
            case _:
                lines[at] = draw(changed_bytes(lines[at]))
    return b"\n".join(lines)


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes overwritten, inserted, removed, repeated, or the end cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from((1, 1, 2, 8, 64, 600)))
        piece = draw(st.one_of(st.sampled_from(BYTES), st.binary(min_size=1, max_size=4)))
        match draw(st.sampled_from(("overwrite", "overwrite", "insert", "remove", "repeat", "cut"))):
            case "overwrite":
                content = content[:at] + piece[:length] + content[at + min(length, len(piece)) :]
            case "insert":
                content = content[:at] + piece + content[at:]
            case "remove":
                content = content[:at] + content[at + length :]
            case "repeat":
                content = content[:at] + content[at : at + length] * draw(st.sampled_from((2, 50))) + content[at:]
            case _:
                content = content[:at]
    return content


def changed(name: str, content: bytes) -> st.SearchStrategy[bytes]:
    """What the file may become, by what is in it."""
    ways: list[Callable[[bytes], st.SearchStrategy[bytes]]] = [changed_bytes]
    if _is_document(content):
        ways += [changed_document, changed_document, changed_document]
    elif name.endswith((".jsonl", ".txt", ".toml", ".yaml")):
        ways += [changed_lines, changed_lines, changed_lines]
    return st.sampled_from(ways).flatmap(lambda way: way(content))

"""Files of all kinds: what they are, the lines of their keys, and mistakes that get a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.cli.plan import is_configuration
from diag.errors import DiagError
from diag.linting.document import parse, shown
from diag.linting.lint import lint
from tests.examples import examples
from tests.lint.build import linted

JSON = """{
  "a": {"b": 1,
    "c": [{"x": 1}, 2, {
      "y": {}}]
  },
  "say \\"d\\"": "{,:",
  "e": []
}
"""


def test_lines_of_json() -> None:
    lines = parse(JSON, "x").lines
    assert lines[("a",)] == lines[("a", "b")] == 2
    assert lines[("a", "c")] == lines[("a", "c", "0", "x")] == 3
    assert lines[("a", "c", "2", "y")] == 4
    assert lines[('say "d"',)] == 6
    assert lines[("e",)] == 7
    assert lines.repeated == []


def test_lines_of_yaml_and_toml() -> None:
    lines = parse("a: 1\nb:\n  - c: 2\n  - d: {e: 3}\n", "x").lines
    assert lines == {("a",): 1, ("b",): 2, ("b", "0", "c"): 3, ("b", "1", "d"): 4, ("b", "1", "d", "e"): 4}
    lines = parse("# first\n[a]\nb = 1\n[a.c] # x\n'd' = 2\n", "x").lines
    assert lines == {("a",): 2, ("a", "b"): 3, ("a", "c"): 4, ("a", "c", "d"): 5}


def test_keys_within_what_stands_twice_are_not_counted_again() -> None:
    lines = parse('{"a": {"b": 1},\n "a": {"b": 2}}', "x").lines
    assert lines.repeated == [(("a",), 2)]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def places(value: Any, place: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The place of every key."""
    if isinstance(value, dict):
        own = {(*place, key) for key in value}
        return own.union(*(places(inner, (*place, key)) for key, inner in value.items()))
    if isinstance(value, list):
        return set().union(*(places(inner, (*place, str(number))) for number, inner in enumerate(value)))
    return set()


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4), st.sampled_from([None, 1, 3]))
def test_every_key_of_any_json_has_its_line(values: dict[str, Any], indent: int | None) -> None:
    document = parse(json.dumps(values, indent=indent), "x")
    assert document.values == values
    assert places(values) <= set(document.lines)
    assert document.lines.repeated == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"PK\x03\x04\x00\x00", "binary"),
        (b" " * ((1 << 20) + 1), "more than 1 MiB"),
        (b'{"zero_optimization": {\n "stage": 3\n', r"not JSON: .* \(line 3"),
        (b'{"stage": 3 "x": 1}', r"not JSON: .* \(line 1, column 13\)"),
        (b"distributed_type: FSDP\n  x: [1,\n", r"not YAML: .*\(line"),
        (b"distributed_type: &a FSDP\nx: *a\n", "aliases"),
        (b"x: !!python/object/apply:os.system [true]\n", "not YAML"),
        (b"when: 2026-99-99\n", "not YAML"),
        (b"[training]\nseq_len = = 3\n", r"not TOML: .*line 2"),
        (b"[1, 2]", "no keys and values"),
        (b"just words", "no keys and values"),
        (b'{"model_type": "llama", "hidden_size": 64}', "a model's config.json"),
        (b'{"name": "x", "version": 1}', "not a known configuration"),
        (b'[project]\nname = "x"\n', "not a known configuration"),
        (b"services:\n  web: {}\n", "not a known configuration"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "nested too deep"),
        (b'{"a":' * 90 + b"1" + b"}" * 90, "nested too deep"),
        (b'{"train_batch_size": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"a: !!timestamp 2001\n", r"value of the tag 'timestamp' \(line 1"),
        (b"a: 1\nb: !!bool x\n", r"value of the tag 'bool' \(line 2"),
        (b'a: !!int ""\n', "value of the tag 'int'"),
        (b'a: !!float ""\n', "value of the tag 'float'"),
        (b"a: !!python/name:os.system\n", "constructor for the tag"),
        (b"a: 2001-99-99\n", "not YAML"),
        (b"a: 1" + b":59" * 500 + b"\n", "too many digits"),
        (b"a: " + b"[" * 3000, "nested too deep"),
        (b"a: &a [1]\nb: *a\n", "aliases"),
        (b"a = 0x" + b"f" * 5000, "beyond 64 bits"),
        (b"a." * 3000 + b"a = 1\n", "too many parts"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(DiagError, match=message) as error:
        lint([path])
    assert error.value.path == str(path)
    assert error.value.hint


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="cannot be read: No such file"):
        lint([tmp_path / "none.yaml"])
    with pytest.raises(DiagError, match="a folder"):
        lint([tmp_path])
    with pytest.raises(DiagError, match="more than 1 MiB"):
        lint([Path("/dev/zero")])


def test_byte_order_marks_and_windows_lines(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_bytes(b'\xef\xbb\xbf{\r\n"zero_optimization": {\r\n"stage": 2}}\r\n')
    (found,) = lint([tmp_path / "ds.json"])
    assert ("zero_optimization.overlap_comm", 2) in [(notice.key, notice.line) for notice in found.notices]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ds.json", '{"zero_optimization": {"stage": 2}}', True),
        ("anything", "distributed_type: FSDP\n", True),
        ("config.json", '{"zero_optimization": {"stage": 2}}', True),  # by what it holds
        ("titan.toml", "[parallelism]\ntensor_parallel_degree = 2\n", True),
        ("broken.yaml", "a: [", True),  # so that the linter says where
        ("other.yaml", "services: {}\n", True),
        ("config.json", '{"model_type": "llama"}', False),
        ("llama.json", '{"model_type": "llama"}', False),
        ("config.json", "{", False),  # the planner says where
        ("weights.bin", "\x00", False),
        ("notes", "hello", False),
    ],
)
def test_what_is_a_configuration(tmp_path: Path, name: str, content: str, expected: bool) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert is_configuration(str(path)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7B", False), ("llama-3-8b", False), ("LLAMA-3-8B", False), ("", False), ("lama", False), ("a\0b", False),
        ("none.yaml", True), ("none.json", True), ("none/config.json", False), ("x" * 5000, False), (".", False),
    ],
)  # fmt: skip
def test_arguments_that_name_no_file(text: str, expected: bool) -> None:
    assert is_configuration(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 5_000 + "-",
        "#\n" * 5_000 + "-",
        "[" + " " * 20_000,
        "[a" * 10_000,
        "/*" * 10_000,
        '"\\' * 10_000,
        " \n" * 5_000,
    ],
    ids=["blank lines", "comments", "spaces", "brackets", "open comments", "open strings", "lines of a space"],
)
def test_text_that_made_patterns_search_without_end(tmp_path: Path, text: str) -> None:
    for name in ("accelerate.yaml", "ds.json", "job.toml"):
        (tmp_path / name).write_text(text)
        with pytest.raises(DiagError):
            lint([tmp_path / name])


def test_values_are_shown_on_one_line() -> None:
    assert shown(True) == "true"
    assert shown(2e8) == "200000000"
    assert shown("a\nb\x1b[31m") == "a\\x0ab\\x1b[31m"
    assert shown(["A", "B"]) == '["A", "B"]'
    assert len(shown("x" * 500)) == 60
    assert shown(10**5000) == "a number"


def test_duplicates_in_yaml_count_last(tmp_path: Path) -> None:
    text = "distributed_type: FSDP\nmixed_precision: bf16\nmixed_precision: 'no'\nfsdp_config: {fsdp_version: 2}\n"
    found = linted(tmp_path / "a.yaml", text)
    assert ("mixed_precision", 3) in [(n.key, n.line) for n in found.notices if "Duplicate key" in n.text]
    assert "Duplicate key" not in str(linted(tmp_path / "a.yaml", text.replace("mixed_precision: bf16\n", "")).notices)

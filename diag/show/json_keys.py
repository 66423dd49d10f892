"""What the keys of ``--json`` mean: the file ``json_keys.toml``, for ``diag help json``, the reference and a test."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct


class Key(Struct, frozen=True):
    """``record``: the name of the record that its value is, or that a list of such values has; "" for any other
    value."""

    meaning: str
    record: str = ""


Record = Mapping[str, Key]


@cache
def documents() -> Mapping[str, Record]:
    """The keys of each command's document."""
    return _section("documents")


@cache
def records() -> Mapping[str, Record]:
    """The keys of the records inside, by the name of the record."""
    return _section("records")


def _section(name: str) -> Mapping[str, Record]:
    content = tomllib.loads(files("diag.show").joinpath("json_keys.toml").read_text("utf-8"))
    return {
        of: {key: Key(*([said] if isinstance(said, str) else said)) for key, said in keys.items()}
        for of, keys in content[name].items()
    }


def undescribed(value: object, record: Record, path: str = "") -> Iterator[str]:
    """The keys of a document, at any depth, that have no meaning."""
    if isinstance(value, list):
        for item in value:
            yield from undescribed(item, record, path)
    elif isinstance(value, dict):
        for name, inside in value.items():
            place = f"{path}.{name}" if path else name
            if (key := record.get(name)) is None:
                yield place
            elif key.record:
                yield from undescribed(inside, records()[key.record], place)


def meanings(name: str) -> dict[str, list[str]]:
    """The commands whose documents have a key of this name, at any depth, by its meaning."""
    found: dict[str, list[str]] = {}
    for command, document in documents().items():
        for record in _records_of(document):
            if (key := record.get(name)) is not None and command not in found.setdefault(key.meaning, []):
                found[key.meaning].append(command)
    return found


def _records_of(document: Record) -> Iterator[Record]:
    """A document and the records inside, each once."""
    seen, rest = set[str](), [document]
    while rest:
        record = rest.pop()
        yield record
        names = {key.record for key in record.values() if key.record} - seen
        seen |= names
        rest += [records()[name] for name in sorted(names)]


def lines(command: str) -> Iterator[str]:
    """The keys of a command's document, those of the records inside indented. A record is listed once."""
    yield from _lines(documents()[command], 0, set())


def _lines(record: Record, depth: int, listed: set[str]) -> Iterator[str]:
    width = max(map(len, record))
    for name, key in record.items():
        again = f" Keys: as above ({key.record})." if key.record in listed else ""
        yield f"{'  ' * depth}{name:<{width}}  {key.meaning}{again}"
        if key.record and key.record not in listed:
            listed.add(key.record)
            yield from _lines(records()[key.record], depth + 1, listed)

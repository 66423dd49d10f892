"""The lines on which keys stand: JSON, YAML and TOML parsers give values only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

Place = tuple[str, ...]  # the keys from the top to one value; an element of a list has its index

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\n', re.DOTALL)
_TABLE = re.compile(r"^\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_ASSIGNED = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")


class Lines(dict[Place, int]):
    """Line of each key, from 1; ``repeated`` are keys that one object holds twice, at the line of the
    last; keys within them are not counted again."""

    def __init__(self) -> None:
        super().__init__()
        self.repeated: list[tuple[Place, int]] = []

    def put(self, place: Place, line: int) -> None:
        if place in self and not any(place[: len(outer)] == outer for outer, _ in self.repeated):
            self.repeated.append((place, line))
        self[place] = line


def json_lines(text: str) -> Lines:
    """Of valid JSON."""
    lines = Lines()
    line = 1
    place: list[str] = []  # of the open objects and lists
    lists: list[bool] = []
    keyed = False  # a key of the innermost object is on ``place``
    string = None
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == "\n":
            line += 1
        elif token[0] == '"':
            string = (token, line)
            line += token.count("\n")
        elif token == ":" and string is not None:
            place.append(_unquoted(string[0]))
            lines.put(tuple(place), string[1])
            keyed = True
        elif token in "{[":
            if lists and lists[-1]:
                lines.setdefault(tuple(place), line)
            lists.append(token == "[")
            if token == "[":
                place.append("0")
            keyed = False
        elif token in "}]" and lists:
            was_list = lists.pop()
            if place and (was_list or keyed):
                place.pop()
            keyed = bool(lists) and not lists[-1]  # the value that ends here had a key
        elif token == "," and lists:
            if lists[-1]:
                place[-1] = str(int(place[-1]) + 1)
            elif keyed:
                place.pop()
                keyed = False
    return lines


def _unquoted(token: str) -> str:
    text: str = json.loads(token, strict=False)
    return text


def yaml_lines(node: yaml.Node | None) -> Lines:
    """Of a composed YAML document without aliases."""
    lines = Lines()
    for place, line in _walked(node):
        lines.put(place, line)
    return lines


def _walked(root: yaml.Node | None) -> Iterator[tuple[Place, int]]:
    open_nodes: list[tuple[Place, yaml.Node | None]] = [((), root)]
    while open_nodes:
        place, node = open_nodes.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                own = (*place, str(key.value))
                yield own, key.start_mark.line + 1
                open_nodes.append((own, value))
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += [((*place, str(number)), value) for number, value in enumerate(node.value)]


def toml_lines(text: str) -> Lines:
    """Of valid TOML, by its tables and assignments; keys within inline tables are not found."""
    lines = Lines()
    table: Place = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _dotted(header[1].strip())
            for length in range(1, len(table) + 1):
                lines.setdefault(table[:length], number)
        elif assigned := _ASSIGNED.match(line):
            lines.setdefault((*table, *_dotted(assigned[1])), number)
    return lines


def _dotted(text: str) -> Place:
    return tuple(part.strip().strip("\"'") for part in text.split("."))

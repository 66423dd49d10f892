"""Reads a configuration file into values with line numbers, or reports why it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from diag.collectors.reading import read_given
from diag.errors import DiagError
from diag.linting.policy import LINTING
from diag.model.programs import options_of_command, settings_of
from diag.toml import NotTomlError, toml_values
from diag.words.formatting import visible

# -- lines -------------------------------------------------------------------------------------------------------------
#
# The line of each key: JSON, YAML and TOML parsers give values only.

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
        self._twice: set[Place] = set()

    def put(self, place: Place, line: int) -> None:
        if place in self and not any(place[:length] in self._twice for length in range(1, len(place) + 1)):
            self.repeated.append((place, line))
            self._twice.add(place)
        self[place] = line


def json_lines(text: str) -> Lines:
    """The lines of keys in valid JSON."""
    lines = Lines()
    line = 1
    place: list[str] = []  # of the open objects and lists
    lists: list[bool] = []
    keyed = False  # a key of the innermost object is on ``place``
    string = None
    for match in _TOKEN.finditer(text):
        token = match[0]
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
    """The lines of keys in a composed YAML document without aliases."""
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
                child = (*place, str(key.value))
                yield child, key.start_mark.line + 1
                open_nodes.append((child, value))
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += [((*place, str(number)), value) for number, value in enumerate(node.value)]


def toml_lines(text: str) -> Lines:
    """The lines of keys in valid TOML, by its tables and assignments; keys within inline tables are not found."""
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


# -- scripts -----------------------------------------------------------------------------------------------------------
#
# Shell scripts that start a program whose options are on its command line.

_VARIABLE_SET = re.compile(
    r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s()#;&|]*)\s*(?:#.*|;)?$"
)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}$]*))?\}|([A-Za-z_]\w*))")
# Options of a command: flags, and Hydra's overrides of keys in tables, which no assignment of a shell can be.
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+|(?<=[ \t])\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")


def is_script(text: str) -> bool:
    """Whether a text is a script with options of a known program."""
    return len(set(_OPTION.findall(text))) > 1 and settings_of(script(text)[0]) is not None


def script(text: str) -> tuple[dict[str, Any], Lines]:
    """The options of a shell script with their lines. Nothing is executed: variables are those that the script sets to
    a plain value, or has a default for; an option with any other is left out."""
    variables: dict[str, str] = {}
    options: dict[str, Any] = {}
    lines = Lines()
    for number, line in enumerate(text.splitlines(), start=1):
        bare = re.sub(r"(?:^|\s)#.*$", "", line)
        if assigned := _VARIABLE_SET.match(bare):
            variables[assigned[1]] = _filled(assigned[2].strip("\"'"), variables)
        words = _filled(re.sub(r"[\"'()\\]", " ", bare), variables).split()
        for name, value in options_of_command(words).items():
            if (name.startswith("--") or "." in name) and "$" not in str(value):
                options[name] = value
                lines.put(tuple(name.split(".")), number)
    return options, lines


def _filled(text: str, variables: dict[str, str]) -> str:
    """With the values of variables that are known; others stay as they are."""
    filled = _VARIABLE.sub(lambda at: variables.get(at[1] or at[3], at[2] if at[2] is not None else at[0]), text)
    return filled if len(filled) <= LINTING.most_expanded else text


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_EXPECTED = (
    "give a DeepSpeed JSON, an Accelerate YAML, TrainingArguments or its fsdp_config, a torchtitan TOML, or a "
    "script or YAML of Megatron-LM, NeMo 1 or 2, or verl"
)
_TOML = re.compile(
    r"\A(?:[^\S\n]*(?:#[^\n]*)?\n)*[^\S\n]*(?:\[\[?[A-Za-z_][\w.\"-]*\]\]?\s*(?:#[^\n]*)?$|[A-Za-z_][\w.-]*\s*=)", re.M
)
# Strings are matched first, so that a comment sign inside one is left alone; also one without an end, which would be
# looked for from every quote in it.
_HJSON = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\\n]|\\.)*+"?)|,(?=\s*[}\]])', re.DOTALL)


class Document(Struct, frozen=True):
    """``syntax``: json, yaml, toml, or shell for a script with a program's options; ``hjson``: JSON with comments or
    trailing commas."""

    path: str
    syntax: str
    values: dict[str, Any]
    lines: Lines
    hjson: bool = False


def read(path: Path) -> Document:
    """The file's values. DiagError where it cannot be read, is too large or broken."""
    return parse(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise DiagError("a folder, not a configuration", path=path, hint=_EXPECTED)
        content = read_given(path, LINTING.most_document_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise DiagError(f"cannot be read: {reason or error}", path=path, hint=_EXPECTED) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DiagError("not text in UTF-8", path=path, hint=_EXPECTED) from error
    if "\0" in text:
        raise DiagError("binary, not text", path=path, hint=_EXPECTED)
    if not text.strip():
        raise DiagError("empty", path=path, hint=_EXPECTED)
    return text.replace("\r\n", "\n")


def parse(text: str, path: str) -> Document:
    """The values of a text. Its first characters determine the syntax. DiagError with the line where it is broken."""
    if is_script(text):
        return Document(path, "shell", *script(text))
    try:
        if _TOML.match(text):
            document = Document(path, "toml", _bounded(toml_values(text), path), toml_lines(text))
        elif text.lstrip()[0] in "{[":
            document = _json(text, path)
        else:
            document = _yaml(text, path)
    except NotTomlError as error:
        raise DiagError(f"not TOML: {error}", path=path, hint="fix that line") from error
    except RecursionError as error:
        raise _too_deep(path) from error
    if not isinstance(document.values, dict):
        raise DiagError("it holds no keys and values", path=path, hint=_EXPECTED)
    return msgspec.structs.replace(document, values=_named(document.values))


def _bounded(values: Any, path: str) -> Any:
    """The values. DiagError where they are nested too deep: the place of a key is as long as it lies deep."""
    if _depth(values) > LINTING.deepest_level:
        raise _too_deep(path)
    return values


def _too_deep(path: str) -> DiagError:
    return DiagError("nested too deep for a configuration", path=path, hint=_EXPECTED)


def _named(values: Any) -> Any:
    """The values, with keys as text: keys in YAML may be numbers, dates or null."""
    if isinstance(values, dict):
        return {str(key): _named(value) for key, value in values.items()}
    return [_named(value) for value in values] if isinstance(values, list) else values


def _json(text: str, path: str) -> Document:
    try:
        return Document(path, "json", _bounded(json.loads(text), path), json_lines(text))
    except json.JSONDecodeError as error:
        plain = _without_comments(text)
        try:
            return Document(path, "json", _bounded(json.loads(plain), path), json_lines(plain), hjson=True)
        except json.JSONDecodeError:
            where = f"line {error.lineno}, column {error.colno}"
            raise DiagError(f"not JSON: {error.msg} ({where})", path=path, hint="fix that line") from error
    except ValueError as error:  # an integer of thousands of digits
        raise DiagError(f"not JSON: {error}", path=path, hint="fix that number") from error


def _without_comments(text: str) -> str:
    """The text with blanks in place of comments and trailing commas, so that every line keeps its number."""
    bare = _HJSON.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), text)
    return _TRAILING_COMMA.sub(lambda match: match[1] or " ", bare)


def _yaml(text: str, path: str) -> Document:
    """Reads with PyYAML's safe loader, which builds plain values only."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values: Any = loader.construct_document(node) if node is not None else None
        return Document(path, "yaml", values, yaml_lines(node))
    except _AliasError as error:
        reason = "it uses aliases (*name), which are not followed here"
        raise DiagError(reason, path=path, hint="write values out") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise DiagError(
            f"not YAML: {error.problem or error.context}{where}", path=path, hint="fix that line"
        ) from error
    except (yaml.YAMLError, TypeError, ValueError) as error:  # also an unhashable key
        raise DiagError(f"not YAML: {visible(str(error))}", path=path, hint=_EXPECTED) from error


class _AliasError(Exception):
    """A small file can hold a huge value by way of aliases."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Bounds what the loader does by the depth of the document and the length of a number. Each token costs it time
    that goes with the depth, and base 60 the square of the digits."""

    def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
        self._enter()
        super().fetch_flow_collection_start(token_class)

    def add_indent(self, column: int) -> bool:
        self._enter()
        added: bool = super().add_indent(column)
        return added

    def _enter(self) -> None:
        if (
            self.flow_level + len(self.indents) > 2 * LINTING.deepest_level
        ):  # a sequence in a mapping may take no indent of its own
            raise RecursionError

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _AliasError
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A scalar that is not what its tag says is an error at its line: PyYAML's own exceptions are of all kinds."""
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LINTING.most_digits and node.tag in _NUMBERS:
            raise yaml.constructor.ConstructorError(None, None, "a number of too many digits", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            reason = f"not a value of the tag {node.tag.removeprefix('tag:yaml.org,2002:')!r}"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark) from error


def _depth(values: object) -> int:
    """How deep objects and lists are nested, without recursion."""
    deepest, level = 0, [values]
    while level and deepest <= LINTING.deepest_level:
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        deepest, level = deepest + 1, inner
    return deepest


def shown(value: object) -> str:
    """A value as its file would write it, on one line and not too long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}"
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except ValueError:  # an integer of thousands of digits
        return "a number"
    return visible(text if len(text) <= 60 else text[:57] + "...")

"""Every regular expression of the project, and for each the texts on which it would search longest.

A pattern that repeats backtracks most on many copies of what it repeats, after what comes before the repetition and
before what cannot follow it. These texts are made from the parsed pattern, so a new pattern is tested without an entry
in any list.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import diag
import diag.app
import diag.collectors
from diag.hang.classes import PATTERNS

_CALLS = frozenset({"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
_ANCHORED = frozenset({"match", "fullmatch"})
_CALLED = re.compile(rf"\bre\.(?:{'|'.join(sorted(_CALLS - {'compile'}))})\b")
_NOT_IMPORTED = re.compile(
    r"\.(__main__|sitecustomize|main|server|screenshots|demo|page|worker|hta_process)$|\.callbacks\."
)
_REPEATS = (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT)
_MOST_COPIES, _MOST_CHARACTERS = 120, 1_000
_MANY = 20  # a repetition of fewer is no loop
_SAMPLES = " \t\na0_-A.:,;/[](){}<>=\"'\\#|@\r\x1b\u00a0é"


@dataclass(frozen=True)
class Found:
    """A pattern, where it is written, and whether it is held against the begin of a text only."""

    where: str
    pattern: str
    flags: int
    anchored: bool = False


@functools.cache
def patterns() -> list[Found]:
    """All of them: those that are written as an argument of a function of ``re``, and the log patterns of the triage.
    AssertionError for one whose text is only known at run time, unless its function says how it is made."""
    found = [Found(f"log pattern {name}", one._compiled.pattern, one._compiled.flags) for _, name, one in PATTERNS]
    for name, module in _modules():
        text = Path(str(module.__file__)).read_text("utf-8")
        for call in ast.walk(ast.parse(text)) if _CALLED.search(text) else ():
            if _is_pattern(call) and call.func.attr != "compile":
                found.extend(_evaluated(call, name, module))
        found.extend(_held(name, module))
    return list({(one.pattern, one.flags | re.UNICODE, one.anchored): one for one in found}.values())


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for package in (diag, diag.app, diag.collectors):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not _NOT_IMPORTED.search(info.name):
                yield info.name, importlib.import_module(info.name)


def _is_pattern(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in _CALLS
    )


def _evaluated(call: Any, name: str, module: ModuleType) -> Iterator[Found]:
    """The arguments of a call that can be evaluated where the module's own names are known."""
    flags = [one for one in call.args[1:] if "re." in ast.unparse(one)] + [
        one.value for one in call.keywords if one.arg == "flags"
    ]
    try:
        pattern, *numbers = (
            eval(compile(ast.Expression(one), name, "eval"), vars(module))  # our own source
            for one in (call.args[0], *flags)
        )
    except NameError:  # put together from arguments: tests of its module feed it
        return
    if isinstance(pattern, str):
        yield Found(f"{name}:{call.lineno}", pattern, int(numbers[0]) if numbers else 0, call.func.attr in _ANCHORED)


def _held(name: str, module: ModuleType) -> Iterator[Found]:
    """Compiled patterns in the module's names, and in what they hold."""
    text = Path(str(module.__file__)).read_text("utf-8")
    # What a loop over patterns calls is looked for under its names, which are in lower case.
    of_loops = set(re.findall(r"\b[a-z]\w*\.(\w+)\(", text)) & _CALLS
    for key, value in vars(module).items():
        if key.startswith("__"):
            continue
        direct = isinstance(value, re.Pattern)
        calls = set(re.findall(rf"\b{key}\.([a-z]+)\b", text)) & _CALLS if direct else of_loops
        if direct and not calls:
            continue  # imported, or used by those that import it: found there
        for pattern in _within(value):
            flags, source = pattern.flags, pattern.pattern
            if isinstance(source, bytes):
                source, flags = source.decode("latin-1"), flags & ~re.UNICODE
            yield Found(f"{name}.{key}", source, flags, calls <= _ANCHORED)


def _within(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from _within([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _within(item)


def hostile_texts(pattern: str, flags: int, longer: int = 1) -> dict[str, str]:
    """Texts by what is repeated in them; ``longer``: so many times as often."""
    texts: dict[str, str] = {}
    for before, bodies in _loops(parser.parse(pattern, flags), ""):
        for body in bodies:
            for end in ("", "\x00", "\n\x00"):
                if body:
                    texts[f"{before!r} {body!r}... {end!r}"] = before + body * _copies(body) * longer + end
                if body and before:
                    whole = before + body
                    texts[f"({whole!r})... {end!r}"] = whole * _copies(whole) * longer + end
    return texts


def _copies(text: str) -> int:
    return min(_MOST_COPIES, max(1, _MOST_CHARACTERS // len(text)))


def _loops(tree: Any, before: str) -> Iterator[tuple[str, list[str]]]:
    """For each repetition: a text that leads to it, and texts that it repeats."""
    for at, (op, argument) in enumerate(tree):
        if op in _REPEATS:
            least, most, body = argument
            if most > _MANY:
                behind = "".join(_example(item, 0) for item in list(tree)[at + 1 : at + 2])
                yield before, list(dict.fromkeys([*_examples(body), *([behind] if behind else [])]))
            yield from _loops(body, before)
            before += _of(body, 0) * min(max(least, 1), _MANY)
            continue
        for part in _parts(op, argument):
            yield from _loops(part, before)
        before += _example((op, argument), 0)


def _parts(op: Any, argument: Any) -> list[Any]:
    if op is opcodes.SUBPATTERN:
        return [argument[3]]
    if op is opcodes.BRANCH:
        return list(argument[1])
    if op in (opcodes.ASSERT, opcodes.ASSERT_NOT):
        return [argument[1]]
    if op is opcodes.ATOMIC_GROUP:
        return [argument]
    if op is opcodes.GROUPREF_EXISTS:
        return [part for part in argument[1:] if part is not None]
    return []


def _examples(tree: Any) -> list[str]:
    """Several texts that a part of a pattern matches: each of its items is given a few values in turn."""
    return list(dict.fromkeys(_of(tree, choice) for choice in range(5)))


def _of(tree: Any, choice: int) -> str:
    return "".join(_example(item, choice) for item in tree)


def _example(item: tuple[Any, Any], choice: int) -> str:
    """A text that the item matches; "" for what has no width."""
    op, argument = item
    if op is opcodes.LITERAL:
        return chr(argument)
    if op in (opcodes.IN, opcodes.ANY, opcodes.NOT_LITERAL):
        fitting = [sample for sample in _SAMPLES if _fits(op, argument, sample)]
        return fitting[choice % len(fitting)] if fitting else chr(_first(argument))
    if op in _REPEATS:
        least, most, body = argument
        return _of(body, choice) * (least if least else min(most, choice % 2))
    if op is opcodes.BRANCH:
        branches = argument[1]
        return _of(branches[choice % len(branches)], choice)
    if op in (opcodes.SUBPATTERN, opcodes.ATOMIC_GROUP):
        return _of(argument[3] if op is opcodes.SUBPATTERN else argument, choice)
    return ""


def _fits(op: Any, argument: Any, sample: str) -> bool:
    if op is opcodes.ANY:
        return sample != "\n"
    if op is opcodes.NOT_LITERAL:
        return ord(sample) != argument
    negated = argument[0][0] is opcodes.NEGATE
    return any(_is_in(one, sample) for one in argument[negated:]) != negated


_CATEGORIES = {
    opcodes.CATEGORY_DIGIT: r"\d", opcodes.CATEGORY_NOT_DIGIT: r"\D",
    opcodes.CATEGORY_SPACE: r"\s", opcodes.CATEGORY_NOT_SPACE: r"\S",
    opcodes.CATEGORY_WORD: r"\w", opcodes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def _is_in(part: tuple[Any, Any], sample: str) -> bool:
    op, argument = part
    if op is opcodes.LITERAL:
        return ord(sample) == argument
    if op is opcodes.RANGE:
        return bool(argument[0] <= ord(sample) <= argument[1])
    return re.match(_CATEGORIES[argument], sample) is not None


def _first(argument: Any) -> int:
    """A character of a class that none of the samples is in."""
    op, value = argument[0]
    return int(value[0] if op is opcodes.RANGE else value)

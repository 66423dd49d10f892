"""The user's own names of communication kernels: ``REGEX=operation``, for kernels that `comm_names` does not know.

The expressions may come with a folder that somebody else made, so they must not be able to hang an analysis: they are
matched by polars' engine, which takes time linear in the text and never goes back, and only against the first
characters of each distinct name; they are short, few, and do not count repetitions, so that the automaton stays small.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl
from msgspec import Struct

from .comm_names import OPERATIONS

MOST_RULES: Final = 50
MOST_CHARS: Final = 200  # of an expression
NAME_CHARS: Final = 1000  # of a kernel's name are looked at
_COUNTED: Final = re.compile(r"(?<!\\)\{\d")


class CommRule(Struct, frozen=True):
    """Kernels whose names match the regular expression communicate, by this operation of `comm_names.OPERATIONS`."""

    pattern: str
    op: str


class RuleError(ValueError):
    """Why a rule cannot be used, in words for the user."""


def parse_rule(text: str) -> CommRule:
    """The rule in ``REGEX=operation``. RuleError where it is none."""
    pattern, equals, op = text.rpartition("=")
    if not equals or not pattern:
        raise RuleError(f"{text!r}: give REGEX=operation, for example 'my_all_gather.*=all_gather'")
    return rule(pattern, op)


def rule(pattern: str, op: str) -> CommRule:
    """The rule of an expression and an operation, ``all_reduce`` or ``all-reduce``. RuleError where either is none."""
    known = op.strip().lower().replace("-", "_")
    if known not in OPERATIONS:
        raise RuleError(f"{op!r} is no operation; there are {', '.join(OPERATIONS)}")
    if len(pattern) > MOST_CHARS:
        raise RuleError(f"the regular expression has {len(pattern)} characters; {MOST_CHARS} is the most")
    if _COUNTED.search(pattern):
        raise RuleError(f"{pattern!r} counts repetitions, {{n}}: use * or +")
    try:
        matches_empty = pl.Series([""]).str.contains(pattern).item()
    except pl.exceptions.PolarsError as error:
        raise RuleError(f"{pattern!r} is no regular expression of Rust's regex: {_reason(error)}") from error
    if matches_empty:
        raise RuleError(f"{pattern!r} matches every name")
    return CommRule(pattern, known)


def operations(names: pl.Series, rules: Sequence[CommRule]) -> dict[str, str]:
    """The operation of each of these names that a rule matches; the first rule that does."""
    if not rules:
        return {}
    heads = names.str.head(NAME_CHARS)
    found: dict[str, str] = {}
    for each in rules:
        for name in names.filter(heads.str.contains(each.pattern)):
            found.setdefault(name, each.op)
    return found


def _reason(error: Exception) -> str:
    """The last line of the engine's message, which says what is wrong; those before it draw where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error:")), lines[0] if lines else ""
    )

"""What the linter found, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import to_builtins
from rich.console import Console
from rich.text import Text

from diag.collectors.layout import SCHEMA_VERSION
from diag.linting.model import Linted, Notice, Severity, Translation
from diag.words.cells import report_console
from diag.words.formatting import counted, spaced, visible

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
_INDENT = 9  # the width of "warning" and two blanks


def to_json(files: Sequence[Linted]) -> str:
    """The document: every notice of every file; a line that is not known is null."""
    return json.dumps({"schema_version": SCHEMA_VERSION, "lint": to_builtins(list(files))}, indent=1)


def print_lint(files: Sequence[Linted], console: Console | None = None) -> None:
    """Each file: how many of each severity, the notices, FSDP1's equivalents, and what could not be seen."""
    console = report_console(console)
    for number, linted in enumerate(files):
        if number:
            console.print()
        _print_file(console, linted)


def _print_file(console: Console, linted: Linted) -> None:
    console.print(Text(visible(linted.path), "bold") + Text(spaced(f" ({linted.format}): {_counts(linted)}")))
    for notice in linted.notices:
        console.print()
        _print_notice(console, notice, linted.path)
    if linted.translations:
        console.print()
        console.print(Text("FSDP1, and what FSDP2 has for each line", "bold"))
        for row in linted.translations:
            _print_equivalent(console, row)
    if linted.could_not_look:
        console.print()
        console.print(Text("Could not look", "bold"))
        for unseen in linted.could_not_look:
            _indented(console, Text(visible(f"{unseen.what}: {unseen.check}.")), 2)


def _counts(linted: Linted) -> str:
    counts = [sum(notice.severity is severity for notice in linted.notices) for severity in Severity]
    said = [counted(count, severity) for count, severity in zip(counts, Severity, strict=True) if count]
    return ", ".join(said) or "nothing to say"


def _print_notice(console: Console, notice: Notice, path: str) -> None:
    where = f"line {notice.line}" if notice.line else ""
    if notice.path != path:
        where = f"{notice.path}, {where}" if where else notice.path
    head = Text(f"{notice.severity:<{_INDENT}}", _STYLE[notice.severity])
    named = ", ".join(part for part in (notice.key or "the file", where) if part)
    console.print(head + Text(visible(named), "bold"))
    _indented(console, Text(visible(notice.text)))
    _indented(console, Text("write: ", "dim") + Text(visible(notice.instead), "cyan"))
    _indented(console, Text(visible(f"see: {notice.source}"), "dim"))


def _print_equivalent(console: Console, row: Translation) -> None:
    where = f"line {row.line}" if row.line else ""
    console.print(Text(f"{where:<{_INDENT}}", "dim") + Text(visible(f"{row.key} = {row.value}"), "bold"))
    for name, said in (("config: ", row.config), ("python: ", row.python)):
        for number, line in enumerate(said.split("\n")):
            head = Text(name if number == 0 else " " * len(name), "dim")
            _indented(console, head + Text(visible(line), "cyan"))


def _indented(console: Console, text: Text, blanks: int = _INDENT) -> None:
    """The text below what it belongs to, without blanks at the ends of its lines."""
    for line in text.wrap(console, console.width - blanks):
        line.rstrip()
        console.print(Text(" " * blanks) + line, no_wrap=True)

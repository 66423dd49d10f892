"""Banners (`# -- text ----`) divide a file into parts that each hold several definitions; one over a single definition
says what the definition says itself. A file of many parts should be divided instead, so there are no more of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"diag": 207, "app": 16, "collectors": 50, "tests": 127}  # the most banners of each: fewer is better
_BANNER = re.compile(r"\s*# -- .*--+$")


def banners(path: Path) -> Iterator[tuple[int, int]]:
    """The line of each banner, and how many definitions follow before the next one or the end of its block."""
    source = path.read_text()
    lines = [(at, line) for at, line in enumerate(source.split("\n"), start=1) if _BANNER.match(line)]
    if not lines:
        return
    starts = [
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Expr
        )
    ]
    ends = [at for at, _ in lines[1:]] + [source.count("\n") + 2]
    for (at, line), end in zip(lines, ends, strict=True):
        indent = len(line) - len(line.lstrip())
        yield at, sum(at < start < end and column == indent for start, column in starts)


def files(room: str) -> list[Path]:
    return [path for path in sorted((ROOT / room).rglob("*.py")) if "diag/app/" not in str(path)]


@pytest.mark.parametrize("room", ROOMS)
def test_banners_do_not_grow_and_none_is_over_nothing(room: str) -> None:
    found = {path: [*banners(path)] for path in files(room)}
    assert sum(map(len, found.values())) <= ROOMS[room]
    assert [(path, at) for path, own in found.items() for at, count in own if not count] == []


def test_what_follows_a_banner_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    line = "# -- one " + "-" * 20 + "\n"
    path.write_text(f"{line}def f(): pass\nA = 1\n{line}{line}class C:\n    B = 2\n")
    assert [count for _, count in banners(path)] == [2, 0, 1]

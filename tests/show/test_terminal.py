"""Text leaves for a terminal in one place, and there nothing in it acts on one."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from diag.collectors.budget import Complaints
from diag.words.terminal import console, put, say
from tests.poisoned import ESCAPES, POISON, is_harmless

ROOT = Path(__file__).parents[2]
SHOWN = "\\x1b]52;c;aGk=\\x07"


def test_lines_stay_and_nothing_else_acts(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"one {POISON}\n  two")
    say("three", err=True)
    out, err = capsys.readouterr()
    assert is_harmless(out)
    assert out.startswith(f"one {SHOWN}")
    assert out.endswith("\n  two\n")
    assert err == "three\n"


def test_data_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    put(POISON)
    put(b"\x1b\n")
    assert capsys.readouterr().out == f"{POISON}\x1b\n"


def _screen(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> tuple[Console, io.StringIO]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
    screen, written = console(width=200), io.StringIO()
    screen.file = written
    return screen, written


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_markup_and_links(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, written = _screen(monkeypatch, terminal)
    table = Table(title=escape(ESCAPES))
    table.add_column(escape(ESCAPES))
    table.add_row(Text(ESCAPES, "red"))
    table.add_row(escape(POISON))
    screen.print(f"[bold]{escape(POISON)}[/]")
    screen.print(Text.from_markup("[link=https://evil.example/x]a link[/link]"))
    screen.print(table)
    shown = written.getvalue()
    plain = Text.from_ansi(shown).plain
    assert is_harmless(plain)
    assert "\x1b]" not in shown
    assert ("\x1b[1m" in shown) == terminal
    assert plain.count("]52;c;") == 5
    edges = [line for line in plain.splitlines() if line.startswith("│")]
    assert {line.rindex("│") for line in edges} == {edges[0].rindex("│")}


def test_styles_stay_on_their_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, written = _screen(monkeypatch, terminal=True)
    screen.print(Text.assemble("a\x1b", ("b\x9b", "bold"), "c"))
    assert written.getvalue() == "a\\x1b\x1b[1mb\\x9b\x1b[0mc\n"


def test_complaints_of_the_collectors(capsys: pytest.CaptureFixture[str]) -> None:
    Complaints(0).add(f"a file{POISON}", "why")
    assert is_harmless(capsys.readouterr().err)


# -- the source --------------------------------------------------------------------------------------------------------

EXCEPTIONS = {
    "words/terminal.py": "the place itself",
    "watch/logs.py": "passes on what the training prints, unchanged",
    "show/printed.py": "notes what an answer prints, and passes it on unchanged",
    "traces/reading.py": "its standard output is a pipe to the process that started it",
    "cli/environment.py": "opens closed streams; passes on what a command with limited memory printed",
    "cli/open.py": "writes the bytes of an archive to standard output, which is no terminal",
    "watch/attached.py": "closes standard error for itself, as that may be the job's log",
    "cli/main.py": "closes standard error when nobody reads any more",
}
ASKING = {"isatty", "fileno"}  # what may be asked of a stream


def _writes(tree: ast.AST) -> Iterator[int]:
    """Lines that print, or lay hands on a standard stream or a console of their own."""
    asked = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ASKING
    }  # fmt: skip
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="print"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="typer" | "click"), attr="echo" | "secho" | "echo_via_pager"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__"):
                if id(node) not in asked:
                    yield node.lineno
            case ast.Call(func=ast.Name(id="Console") | ast.Attribute(attr="Console")):
                yield node.lineno
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(value=1 | 2), _]
            ):
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("print(1)", 1), ("say = print", 1), ("typer.echo(1)", 1), ("sys.stdout.write('')", 1),
        ("sys.stderr.isatty()", 0), ("Console(stderr=True)", 1), ("rich.console.Console()", 1),
        ("console.print(1)", 0), ("os.write(2, b'')", 1),
    ],
)  # fmt: skip
def test_the_search_finds_what_writes(source: str, found: int) -> None:
    assert len(list(_writes(ast.parse(source)))) == found


def test_nothing_else_writes_to_a_terminal() -> None:
    package = ROOT / "diag"
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("app", "collectors")]
    files += (ROOT / "app").rglob("*.py")
    names = {path: str(path.relative_to(package if path.is_relative_to(package) else ROOT)) for path in files}
    writing = {name: lines for path, name in names.items() if (lines := [*_writes(ast.parse(path.read_text()))])}
    assert {name: lines for name, lines in writing.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(writing), "an exception that none needs any more"


def test_json_for_a_terminal_is_ascii() -> None:
    """``json.dumps`` escapes control characters of all kinds unless it is told not to."""
    sources = [
        *(ROOT / "diag").glob("*.py"),
        *(ROOT / "diag" / "cli").glob("*.py"),
        *(ROOT / "diag/show").glob("*.py"),
    ]
    assert [path.name for path in sources if "ensure_ascii" in path.read_text()] == []

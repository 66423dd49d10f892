"""The Markdown that people write, its code blocks with their marks, and a folder in which the blocks run.

A block runs unless a comment in front of it says why not, with one of `REASONS`:

    <!-- not run: trains for minutes -->             the whole block
    <!-- not run: needs a server (s3://, gs://) -->  its lines with one of these texts
    <!-- compared -->                                its output is what the command prints (numbers and dates vary)
    <!-- compared: exactly -->                       the same, digit by digit, as far as the page shows it
    <!-- compared: by its sentences -->              what a run like no sample prints: of the sentences that we have
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"

REASONS = {
    "installs packages",
    "builds or starts a container",
    "trains for minutes",
    "is a benchmark: it takes minutes to hours",
    "needs a GPU",
    "needs a cluster",
    "needs a running training",
    "needs a recording that no sample is",
    "needs a server",
    "is what CI itself runs",
    "test_tutorials.py does what it says",
    "is no command",
    "is a part of a file of yours",
}


@cache
def committed() -> Mapping[Path, str]:
    """The pages that people write, by path."""
    paths = [README, *DOCS.rglob("*.md")]
    written = [path for path in paths if path.parent != DOCS / "reference" or path.name == "index.md"]
    return {path: path.read_text("utf-8") for path in sorted(written)}


class Block(NamedTuple):
    """``line``: of its first line in the page. ``marks``: the comments in front of it."""

    language: str
    lines: list[str]
    line: int
    marks: tuple[str, ...]

    @property
    def not_run(self) -> dict[str, str]:
        """Why it does not run, by the text of the lines that this is true of; "" for all of them."""
        found = (re.fullmatch(r"not run: (.+?)(?: \(([^()]+)\))?", mark) for mark in self.marks)
        return {text: match[1] for match in found if match for text in (match[2] or "").split(", ")}

    @property
    def compared(self) -> str:
        """``exactly``, ``shape``, ``sentences``, or "" where no output is shown."""
        found = {"compared": "shape", "compared: exactly": "exactly", "compared: by its sentences": "sentences"}
        return next((found[mark] for mark in self.marks if mark in found), "")

    def why_not(self, line: str) -> str:
        """The reason why a line does not run; "" for one that does."""
        return next((why for text, why in self.not_run.items() if text in line), "")

    def commands(self) -> list[str]:
        """Its lines for a shell: without prompts, and those that end in a backslash joined with the next. Of a console,
        what follows a prompt."""
        if self.compared == "sentences":
            return []
        lines = "\n".join(self.lines).replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif self.language == "yaml":
            lines = [line.strip().removeprefix("- run: ") for line in lines if line.strip().startswith("- run: ")]
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


SHELL = ("", "console", "yaml", "bash")
_BLOCK = re.compile(r"((?:^ *<!-- [^\n]* -->\n)*)^( *)```([^\n`]*)\n(.*?)^ *```$", re.S | re.M)


def blocks(text: str) -> Iterator[Block]:
    """The code blocks of a page; not MyST's directives."""
    for found in _BLOCK.finditer(text):
        if found[3].startswith("{"):
            continue
        marks = tuple(re.findall(r"<!-- (.*?) -->", found[1]))
        lines = [line.removeprefix(found[2]) for line in found[4].splitlines()]
        yield Block(found[3].strip(), lines, text[: found.start(4)].count("\n") + 1, marks)


def commands_in(line: str) -> Iterator[list[str]]:
    """The simple commands of a line: those of a pipe, of a list and inside of ``$(...)``."""
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from commands_in(inner)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # an output with a lone quotation mark
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";|&<>"):
            if command:
                yield command
            command = []
        else:
            command.append(word)


def shape(text: str) -> list[str]:
    """The words, with every number, duration and date alike: equal for what one command prints on two days."""
    text = re.sub(r"\d[\d,.]*", "0", text)
    text = re.sub(r"\b0 (?:ns|µs|ms|s|min|h|d)\b|\b0 (?:bytes|kB|MB|GB|TB)\b", "0", text)
    return text.split()

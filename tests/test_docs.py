"""README.md and docs/: short sentences, links that resolve, commands that parse, examples that print what is shown, and
a reference in which nothing is missing."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer

from diag.account.calls import Calls
from diag.account.critical_path import Readiness
from diag.cli.main import COMMANDS, app
from diag.collectors.trainer.faults import FAULTS
from diag.diagnoses.cost_rows import CostRow
from diag.diagnoses.costs import Label
from diag.diagnoses.shares import Shares
from diag.export.definitions import METRICS
from diag.gate.budgets import QUANTITIES
from diag.hang.classes import CLASSES
from diag.model.steps import Blame, CriticalPath, MatchedCollective, Segments
from diag.rundir.columns import Rows, Steps
from tests.pages import DOCS, README, ROOT, SHELL, blocks, commands_in, committed


def _generate() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        import generate  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    module: ModuleType = generate
    return module


generate = _generate()


@cache
def reference() -> Mapping[str, str]:
    """The generated pages by name."""
    return {name: page() for name, page in generate.PAGES.items()}


# -- words -------------------------------------------------------------------------------------------------------------


def _prose(text: str) -> str:
    """The text without code blocks, tables, headings, comments and images, its list items as sentences."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"^(\||#|!|<!--).*$", "", text, flags=re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", ". ", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _sentences(text: str) -> list[list[str]]:
    found = [part.split() for part in re.split(r"[.!?](?:\s|\*|$)|\n\n", _prose(text))]
    return [[word for word in words if re.search(r"\w", word)] for words in found if any(map(str.isalpha, words))]


def test_the_readme_is_short_and_so_are_its_sentences() -> None:
    text = README.read_text("utf-8")
    assert len(text.splitlines()) < 150
    sentences = _sentences(text)
    assert len(sentences) > 30
    assert sum(map(len, sentences)) / len(sentences) <= 20


def test_the_readme_begins_with_the_two_commands() -> None:
    first = next(blocks(README.read_text("utf-8")))
    assert [line.split("#")[0].strip() for line in first.lines[:2]] == ["make demo", "make test"]


def test_pages_have_short_sentences() -> None:
    """Their own text; not the tables, and not what a page includes."""
    words = {str(path.relative_to(ROOT)): _sentences(text) for path, text in committed().items()}
    means = {name: sum(map(len, own)) / len(own) for name, own in words.items() if len(own) >= 5}
    assert len(means) > 25
    assert {name: mean for name, mean in means.items() if mean > 20} == {}


def test_figures_of_the_readme_stand_on_the_page_that_it_links_to() -> None:
    """One figure has one home: the page of its benchmark."""
    text = README.read_text("utf-8")
    rows = re.findall(r"^\| \[[^\]]+\]\((docs/benchmarks/[^)]+)\)(.*)$", text, re.M)
    figures = [(page, figure) for page, row in rows for figure in re.findall(r"\b[\d,]+ of [\d,]+\b", row)]
    assert len(figures) >= 8
    pages = {page: re.sub(r"\s+", " ", (ROOT / page).read_text("utf-8")) for page, _ in figures}
    assert [(page, figure) for page, figure in figures if figure not in pages[page]] == []


def test_what_recording_costs_is_what_its_page_says() -> None:
    cost = README.read_text("utf-8").partition("## What it costs")[2].partition("\n## ")[0]
    figures = re.findall(r"\b\d+(?:\.\d+)?\b", cost)
    assert len(figures) >= 5
    page = (ROOT / "docs/benchmarks/overhead.md").read_text("utf-8")
    assert [figure for figure in figures if figure not in page] == []


# -- links -------------------------------------------------------------------------------------------------------------


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def _anchors(text: str) -> set[str]:
    """What GitHub and MyST make of the headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    headings = [re.sub(r"[`*]", "", heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.M)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def _pages() -> Mapping[Path, str]:
    made = {DOCS / "reference" / f"{name}.md": text for name, text in reference().items()}
    return {**committed(), **made, ROOT / "SECURITY.md": (ROOT / "SECURITY.md").read_text("utf-8")}


def broken_links(pages: Mapping[Path, str]) -> list[str]:
    """Links of the pages that lead to no file, or to no heading of one."""
    broken = []
    for path, text in pages.items():
        links = re.findall(r"\]\(([^)\s]+)\)", _without_code(text)) + re.findall(r"^```\{include\} (\S+)", text, re.M)
        for link in links:
            if re.match(r"https?:|mailto:", link):
                continue
            file, _, anchor = link.partition("#")
            target = Path(os.path.normpath(path.parent / file)) if file else path
            there = target in pages or target.exists()
            if not there or (anchor and anchor not in _anchors(pages.get(target, ""))):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    return broken


def test_links_resolve() -> None:
    assert broken_links(_pages()) == []


def test_a_broken_link_is_seen() -> None:
    text = "# One\n[a](#one) [b](#two) [c](README.md) [d](nothing.md) [e](https://example.org) `[f](no)`"
    assert broken_links({ROOT / "page.md": text}) == ["page.md: #two", "page.md: nothing.md"]


def test_pages_that_the_code_cites_exist() -> None:
    sources = [path for folder in ("diag", "collectors", "app", "tests") for path in (ROOT / folder).rglob("*.py")]
    cited = {found for path in sources for found in re.findall(r"\bdocs/[a-z/-]+\.md", path.read_text("utf-8"))}
    ours = {found for found in cited if found.split("/")[1] in ("concepts", "guides", "benchmarks", "contributing")}
    assert len(ours) >= 6
    assert {found for found in ours if not (ROOT / found).is_file()} == set()


def test_the_readme_links_only_to_files_of_the_repository() -> None:
    """The generated pages are not there for a reader of the repository."""
    text = README.read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http", "#"))]
    assert len(links) > 25
    assert [link for link in links if (ROOT / link.partition("#")[0]) not in committed()
            and not (ROOT / link).is_file()] == []  # fmt: skip


def _shell_lines(text: str) -> Iterator[str]:
    """Lines of the code blocks that a shell takes."""
    for block in blocks(text):
        if block.language in SHELL:
            yield from block.commands()


@cache
def _documented_commands() -> list[tuple[str, list[str]]]:
    return [
        (str(path.relative_to(ROOT)), command)
        for path, text in committed().items()
        for line in _shell_lines(text)
        for command in commands_in(line)
    ]


def _parse(command: list[str]) -> None:
    """Raises what the command line would report."""
    name, *arguments = command[1:]
    root = typer.main.get_command(app)
    if name.startswith("--"):
        assert any(name in one.opts for one in root.params), f"there is no diag {name}"
        return
    known: Mapping[str, Any] = root.commands  # type: ignore[attr-defined]
    assert name in COMMANDS, f"there is no diag {name}"
    known[name].make_context(name, arguments)


def test_commands_parse() -> None:
    wrong, parsed = [], set()
    for where, command in _documented_commands():
        if command[0] == "diag" and len(command) > 1:
            try:
                _parse(command)
                parsed |= {command[1]} & set(COMMANDS)
            except Exception as error:
                wrong.append(f"{where}: {shlex.join(command)}: {error}")
    assert wrong == []
    assert parsed == set(COMMANDS), "every command is shown somewhere"


def test_a_wrong_command_is_seen() -> None:
    (command,) = commands_in("diag analyze R --no-such-option  # comment")
    assert command == ["diag", "analyze", "R", "--no-such-option"]
    with pytest.raises(Exception, match="no-such-option"):
        _parse(command)
    inside, _, run = commands_in('eval "$(diag attach --out R)"; srun python train.py')
    assert (inside[:2], run[0]) == (["diag", "attach"], "srun")


def test_commands_in_the_text_exist() -> None:
    """Such as `diag run --nproc`, which is no whole command."""
    known: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    wrong, seen = [], 0
    for path, text in committed().items():
        for span in re.findall(r"`diag ([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
            name, *words = span.split()
            if name not in COMMANDS:
                wrong += [f"{path.name}: diag {span}"] if name.islower() else []
                continue
            seen += 1
            options = {option for one in known[name].params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
            given = takewhile(lambda word: not word.endswith(".py") and word != "--", words)
            missing = {word for word in given if word.startswith("--")} - options
            wrong += [f"{path.name}: diag {span}"] if missing and name != "tune" else []
    assert wrong == []
    assert seen > 30


def test_the_other_commands_exist() -> None:
    """Targets of make, and modules and scripts of this repository."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    wrong = []
    for where, command in _documented_commands():
        if command[0] == "make":
            there = command[1] in targets
        elif command[:2] == ["python", "-m"] and command[2].startswith("tests."):
            module = ROOT / command[2].replace(".", "/")
            there = module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
        elif command[0] == "python" and command[1].startswith("tests/"):
            there = (ROOT / command[1]).is_file()
        elif command[:3] == ["docker", "build", "-f"]:
            there = (ROOT / command[3]).is_file()
        elif scripts := [word for word in command if word.startswith("examples/")]:
            there = all((ROOT / script).is_file() for script in scripts)
        else:
            continue
        wrong += [] if there else [f"{where}: {shlex.join(command)}"]
    assert wrong == []


def test_blocks_of_code_are_what_they_say() -> None:
    parsers = {"python": lambda text: compile(text, "page", "exec"), "toml": tomllib.loads, "json": json.loads}
    seen = set()
    for path, text in committed().items():
        for block in blocks(text):
            if block.language in parsers:
                parsers[block.language]("\n".join(block.lines))
                seen.add((path, block.language))
    assert len(seen) >= 6


@pytest.mark.parametrize(
    "table", [Steps, Rows, Segments, Calls, Readiness, MatchedCollective, CriticalPath, Blame, Label, CostRow, Shares]
)
def test_the_page_of_tables_names_every_column(table: type) -> None:
    text = committed()[DOCS / "concepts/tables.md"]
    described = re.match(r"[^|]*((?:\|.*\n)+)", text.partition(f"`{table.__name__}` (")[2])
    assert described is not None
    names = getattr(table, "__struct_fields__", ()) or getattr(table, "_fields", ())
    columns = names or tuple(column.name for column in fields(table))
    # Lists that columns of codes refer to, and what is no column.
    others = {"names", "groups", "matched", "ranks", "keys", "changes", "on_device", "noise"}
    assert {column for column in columns if f"`{column}`" not in described[1]} <= others


def test_the_reference_has_everything() -> None:
    pages = reference()
    for command in COMMANDS:
        assert f"## diag {command}\n" in pages["cli"]
    for text, names in (
        (pages["findings"], generate.finding_ids()),
        (pages["hang-classes"], CLASSES),
        (pages["metrics"], [metric.name for metric in METRICS]),
        (pages["budgets"], [f"--{quantity.name}" for quantity in QUANTITIES]),
        (pages["faults"], FAULTS),
    ):
        assert len(names) >= 10
        assert [name for name in names if name not in text] == []
    for name in FAULTS:
        assert f"| `{name}` |" in committed()[DOCS / "guides/trainer.md"]


def test_what_is_not_documented_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(generate.UndocumentedError, match="--loud"):
        generate._option("run", SimpleNamespace(
            opts=["--loud"], secondary_opts=[], is_flag=True, default=False, help=None, name="--loud"
        ))  # fmt: skip
    known = generate.finding_ids()
    monkeypatch.setattr(generate, "finding_ids", lambda: {"a-new-one", *known})
    with pytest.raises(generate.UndocumentedError, match="a-new-one"):
        generate.findings()


def test_every_page_is_in_the_site() -> None:
    """Each committed page of docs/ is in the list of pages of one index."""
    listed = set()
    for path, text in committed().items():
        for names in re.findall(r"^```\{toctree\}\n(.*?)^```", text, flags=re.S | re.M):
            own = [re.sub(r".*<(.*)>", r"\1", name) for name in names.splitlines() if name and name[0] != ":"]
            listed |= {Path(os.path.normpath(path.parent / f"{name}.md")) for name in own}
    pages = set(_pages()) - {README, ROOT / "SECURITY.md", DOCS / "index.md"}
    assert listed == pages

"""Damaged and hostile input of every kind, for a minute: no traceback, bounded memory and time, documented exit codes.

``corpus/`` holds a folder for each kind. Every file in it is tried as it is, then with random changes. An input that
once failed goes into ``corpus/`` with a name that says what it is. DIAG_FUZZ_SECONDS makes the search longer.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from diag.cli.main import app
from tests.forked import run_forked
from tests.fuzz.mutations import VALUES, changed, changed_document
from tests.hang.limited import USED
from tests.matrix import matrix
from tests.patience import PATIENCE_S

CORPUS = Path(__file__).with_name("corpus")
SECONDS = float(os.environ.get("DIAG_FUZZ_SECONDS", "60"))
MOST_MEMORY = 1 << 30
MOST_CPU_S = 10.0
EXIT_CODES = {
    "check": (0, 1, 2, 3, 4),
    "plan": (0, 1, 2, 3, 4),
}  # 3: a budget is exceeded, or a configuration has errors
VALUES_AT_FIRST = repr(VALUES)
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# "IN" is the damaged file or folder, "OUT" a file that may be written, "RUN" a run that nothing is wrong with.
COMMANDS: dict[str, list[list[str]]] = {
    "run": [
        ["analyze", "IN"],
        ["analyze", "IN", "--json"],
        ["analyze", "IN", "--summary"],
        ["report", "IN", "-o", "OUT"],
        ["check", "IN", "--max-step", "1s", "--max-exposed-comm", "20%"],
        ["compare", "IN", "RUN"],
        ["compare", "RUN", "IN", "--json"],
        ["triage", "IN"],
        ["triage", "IN", "--json"],
        ["plan", "IN"],
        ["export", "IN", "--format", "prometheus"],
        ["export", "IN", "--format", "jsonl"],
        ["open", "IN", "--rank", "1", "-o", "OUT"],
    ],
    "trace": [
        ["analyze", "IN"],
        ["analyze", "IN", "--json"],
        ["report", "IN", "-o", "OUT"],
        ["open", "IN", "--rank", "0", "-o", "OUT"],
    ],
    "inspector": [
        ["analyze", "IN"],
        ["analyze", "IN", "--json"],
        ["report", "IN", "-o", "OUT"],
        ["compare", "IN", "RUN"],
    ],
    "archive": [["analyze", "IN"], ["analyze", "IN", "--json"]],
    "dump": [["triage", "IN"], ["triage", "IN", "--json"]],
    "memory": [["analyze", "IN"], ["analyze", "IN", "--json"]],
    "log": [["triage", "IN"], ["triage", "IN", "--json"]],
    "config": [["plan", "IN"], ["plan", "IN", "--json"], ["check", "RUN", "--budget", "IN"]],
}


def run(arguments: list[str]) -> None:
    """Runs ``diag``. AssertionError for a traceback, an exit code that is not documented, and too much of anything."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder, "used")
        environment = {**os.environ, USED: str(measured)}
        ended = run_forked(
            ["-m", "tests.hang.limited", *arguments], [environment], PATIENCE_S, Path(folder), "commands"
        )
        seconds, peak = map(float, measured.read_text().split())
    what = f"diag {' '.join(arguments)}"[:2_000]
    assert "Traceback" not in ended.stderr, f"{what}\n{ended.stderr[-4_000:]}"
    assert ended.exit_code in EXIT_CODES.get(arguments[0] if arguments else "", (0, 1, 2, 4)), (what, ended)
    assert not RAW.search(ended.stdout + ended.stderr), (what, ended.stdout, ended.stderr)
    assert peak < MOST_MEMORY, (what, peak)
    assert seconds < MOST_CPU_S, (what, seconds)
    assert ended.stdout or ended.stderr, f"{what}: silence"


def seeds(kind: str) -> list[Path]:
    return sorted(path for path in (CORPUS / kind).iterdir())


@functools.cache
def complete_run() -> str:
    """A copy: commands keep their verdict in the run."""
    return str(shutil.copytree(CORPUS / "run" / "fsdp2", Path(tempfile.mkdtemp(), "complete")))


def placed(command: list[str], path: Path, folder: Path) -> list[str]:
    words = {"IN": str(path), "OUT": str(folder / "out.html")}
    return [complete_run() if word == "RUN" else words.get(word, word) for word in command]


@pytest.mark.parametrize("kind", matrix(COMMANDS, COMMANDS.keys() - {"run"}))
def test_the_corpus_as_it_is(tmp_path: Path, kind: str) -> None:
    for path in seeds(kind):
        copy = tmp_path / path.name
        shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
        for command in COMMANDS[kind]:
            run(placed(command, copy, tmp_path))


def search(seconds: float, once: Callable[[st.DataObject], None]) -> None:
    """Random inputs for so long. What fails is made smaller by hypothesis before it is reported."""
    until = time.monotonic() + seconds
    chosen = int(os.environ.get("DIAG_FUZZ_SEED", random.randrange(1 << 30)))
    while time.monotonic() < until:
        print(f"DIAG_FUZZ_SEED={chosen}")  # shown where it fails
        few = settings(
            max_examples=30,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        seed(chosen)(few(given(st.data())(once)))()
        chosen += 1


@settings(max_examples=20)
@given(st.lists(changed_document(b'{"": {"": null}, "a": [{}]}'), min_size=20, max_size=20))
def test_no_change_is_carried_into_the_next_document(documents: list[bytes]) -> None:
    """A value that was shared by documents came to hold itself; the search for places to change filled the memory."""
    assert documents
    assert repr(VALUES) == VALUES_AT_FIRST


@pytest.mark.matrix
@pytest.mark.parametrize("kind", COMMANDS)
def test_changed_files(kind: str) -> None:
    def once(data: st.DataObject) -> None:
        original = data.draw(st.sampled_from(seeds(kind)))
        command = data.draw(st.sampled_from(COMMANDS[kind]))
        with tempfile.TemporaryDirectory() as temporary:
            folder, path = Path(temporary), Path(temporary, original.name)
            if original.is_dir():
                shutil.copytree(original, path)
                files = sorted(file for file in path.rglob("*") if file.is_file())
                victim = data.draw(st.sampled_from(files))
            else:
                shutil.copy(original, path)
                victim = path
            victim.write_bytes(data.draw(changed(victim.name, victim.read_bytes())))
            run(placed(command, path, folder))

    search(SECONDS / (len(COMMANDS) + 1), once)


# `run`, `attach`, `trace` and `tune` train, `dashboard` and `metrics` serve; the options below serve, ask or never end.
ANALYSING = ("analyze", "triage", "report", "check", "compare", "plan", "export", "open")
LEFT_OUT = frozenset({"--help", "--open", "--browser", "--follow", "--ras", "--endpoint", "--junit"})


@functools.cache
def options_of(command: str) -> dict[str, bool]:
    """The options of a command, and whether each takes a value."""
    group: Any = typer.main.get_command(app)
    return {
        name: not option.is_flag
        for option in group.commands[command].params
        if hasattr(option, "is_flag")
        for name in (*option.opts, *option.secondary_opts)
        if name not in LEFT_OUT
    }


@pytest.mark.matrix
def test_command_lines() -> None:
    numbers = st.integers(-(10**30), 10**30).map(str)
    values = st.one_of(
        st.sampled_from([str(value) for value in VALUES if "\x00" not in str(value) and "\ud800" not in str(value)]),
        numbers,
        st.builds("{}-{}".format, numbers, numbers),
        st.builds("{}={}".format, st.sampled_from(("0", "a", "")), numbers),
        st.text(st.characters(blacklist_characters="\x00", blacklist_categories=["Cs"]), max_size=20),
    )

    def once(data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(ANALYSING))
        words = [command, *(["--output", "trace.json"] if command == "open" else [])]  # else it serves the trace
        if data.draw(st.integers(0, 5)):
            words.append(complete_run())
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(data.draw(st.integers(0, 3))):
                option, takes_value = data.draw(st.sampled_from(sorted(options_of(command).items())))
                writes = option in ("-o", "--out", "--output")
                words += [option, *([str(Path(folder, "out")) if writes else data.draw(values)] if takes_value else [])]
            run(words)

    search(SECONDS / (len(COMMANDS) + 1), once)

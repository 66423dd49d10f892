"""The commands show hostile text as text: nothing in a run, a trace, a log or an argument acts on a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command import diag
from tests.matrix import matrix
from tests.poisoned import ESCAPES, POISON, Poisoner, is_harmless

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CAPTURED = Path(__file__).parents[1] / "hang" / "captured"
TABLES = [word for name in ("collectives", "kernels", "modules", "efficiency", "path") for word in ("--table", name)]
# Without these no event, no phase and no rank is left to show.
STRUCTURE = ("ph", "cat", "ts", "phases", "schema_version")
# A closing tag in a path needs its slash: "a[/none]b".
FOLDER = f"{ESCAPES}[bold]["


def said(*arguments: str | Path, codes: Sequence[int] = (0,)) -> str:
    ended = diag(*arguments)
    for text in (ended.stdout, ended.stderr):
        assert is_harmless(text), ascii("".join({c for c in text if not is_harmless(c)}))
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode in codes, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a poisoned folder, with every string but the structural ones poisoned."""
    folder = tmp_path_factory.mktemp("poisoned") / FOLDER / "none]run"
    shutil.copytree(SAMPLES / "ddp-healthy", folder, ignore=shutil.ignore_patterns("verdict.json"))
    Poisoner(folder).write_all(*STRUCTURE)
    return folder


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``run``, but only what names things is poisoned, so that all analyses have what they need."""
    folder = tmp_path_factory.mktemp("named") / FOLDER / "none]run"
    shutil.copytree(SAMPLES / "ddp-healthy", folder, ignore=shutil.ignore_patterns("verdict.json"))
    poisoner = Poisoner(folder)
    poisoner.write_all(*STRUCTURE, "name", "rows", "rank", "world_size")
    return folder


@pytest.mark.matrix
def test_each_string_of_a_run_in_its_turn(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(SAMPLES / "ddp-healthy", folder, ignore=shutil.ignore_patterns("verdict.json"))
    poisoner = Poisoner(folder)
    shown = []
    for places in poisoner.rounds(of=4):
        poisoner.write(places)
        shown.append(said("analyze", folder, *TABLES, codes=(0, 1, 4)))
    assert any("\\x1b]52" in text for text in shown)


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "RUN", *TABLES],
        ["analyze", "RUN", "--json"],
        ["compare", "RUN", "RUN"],
        ["compare", "RUN", "RUN", "--json"],
        ["check", "RUN", "--max-step", "1ms", "--github"],
        ["triage", "RUN"],
        ["plan", "--measured", "RUN"],
        ["report", "RUN", "-o", "OUT"],
        ["open", "RUN", "--rank", "0", "--step", "10", "-o", "OUT.json"],
        ["trace", "RUN", "--no-wait"],
        ["export", "RUN", "--format", "jsonl"],
        ["analyze", "RUN", "--cross-check", "hta"],
    ],
    ids=lambda arguments: "-".join(word for word in arguments if word.islower() or word.startswith("--")),
)
@pytest.mark.parametrize("which", matrix(["run", "named"], ["named"]))
def test_commands(arguments: list[str], which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = request.getfixturevalue(which)
    out = tmp_path / f"{ESCAPES}out"
    words = [word.replace("RUN", str(folder)).replace("OUT", str(out)) for word in arguments]
    assert said(*words, codes=(0, 1, 2, 3, 4))


def test_a_run_that_hung(tmp_path: Path) -> None:
    """Its logs, dumps of other tools and the launcher's record."""
    for name in ("exception-4-ranks", "hang-collective-4-ranks-detail"):
        folder = tmp_path / FOLDER / "none]run"
        shutil.copytree(CAPTURED / name, folder)
        Poisoner(folder).write_all()
        for path in folder.rglob("*.txt"):
            path.write_text("".join(f"{line}{POISON}\n" for line in path.read_text().splitlines()))
        assert "\\x1b]52" in said("triage", folder, codes=(0, 4))
        said("triage", folder, "--json", codes=(0, 4))
        shutil.rmtree(folder)


def test_names_of_traces(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for rank, path in enumerate(sorted((SAMPLES / "ddp-healthy").rglob("trace-*.gz"))):
        shutil.copy(path, folder / f"none]{ESCAPES}{rank}.json.gz")
    (folder / f"none]{ESCAPES}broken.json").write_text("{")
    assert "\\x1b]52" in said("analyze", folder, codes=(0, 4))


def test_budgets_and_configurations(tmp_path: Path) -> None:
    budget = tmp_path / f"{ESCAPES}budget.toml"
    budget.write_text(f"{json.dumps(POISON)} = {json.dumps(POISON)}\n")
    assert "\\x1b]52" in said("check", SAMPLES / "ddp-healthy", "--budget", budget, codes=(2,))
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": POISON, POISON: 1}, POISON: POISON}))
    assert "\\x1b]52" in said("plan", config, codes=(0, 1, 3))


@pytest.mark.parametrize(
    "arguments",
    [
        [POISON],
        ["analyze", "RUN", f"--jobs={POISON}"],
        ["analyze", "RUN", f"--{POISON}"],
        ["analyze", "RUN", "--table", POISON],
        ["analyze", "RUN", "--rank", POISON],
        ["analyze", POISON],
        ["plan", POISON],
        ["run", "--nproc", "1", "--strategy", POISON],
        ["check", "RUN", "--max-step", POISON],
    ],
    ids=lambda arguments: arguments[0] if arguments[0].islower() else "command",
)
def test_arguments(arguments: list[str]) -> None:
    words = [word.replace("RUN", str(SAMPLES / "ddp-healthy")) for word in arguments]
    assert "\\x1b]52" in said(*words, codes=(1, 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Usage:", "Commands"]),
        (["analyze"], ["Missing argument", "diag analyze --help"]),
        (["analyze", "x", "--no-such-option"], ["No such option: --no-such-option"]),
        (["analyze", "--json"], ['"exit_code": 2', "Missing argument"]),
    ],
)
def test_mistakes_are_still_explained(arguments: list[str], words: list[str]) -> None:
    text = said(*arguments, codes=(2,))
    assert [word for word in words if word not in text] == []


def test_progress(tmp_path: Path) -> None:
    """Its own movements of the cursor stay, so what is looked for is what the name of the file would write."""
    folder = tmp_path / "traces"
    folder.mkdir()
    name = f"[bold]{ESCAPES}.json.gz"
    shutil.copy(next((SAMPLES / "ddp-healthy").rglob("trace-*.gz")), folder / name)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "diag", "analyze", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "300", "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        process.wait(120)
    os.close(ours)
    text = shown.decode()
    assert "\\x1b]52;c;aGk=" in text
    assert "[bold]" in text
    assert [part for part in ("\x1b]52", "\x9b", "\x07", "\u202e", "\u2066", "\u200b") if part in text] == []

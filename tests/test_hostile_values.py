"""Values that no training has: numbers without end, wrong types, text that is none. Each is a message or a gap."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diag.api import describe_run, open_run
from diag.collectors.layout import MOST_RANKS, RunLayout
from diag.errors import DiagError
from diag.hang.api import triage
from tests.command import diag_process
from tests.examples import examples
from tests.patience import PATIENCE_S

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp-straggler-rank0"
# Of mutations, a few dozen of them; more in a loop of its own find what these do not.
SECONDS = examples(8, thorough=30)
NASTY: list[Any] = [
    None, True, -1, 0, 2**31, 2**62, -(2**63), 2**64, 10**12, 10**30, 1e308, -1e308, float("nan"), float("inf"), "",
    "x" * 5000, "\ud800", "\x00", "9" * 200, [], {}, [[]], [1, "a", None], {"a": 1},
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(SAMPLE, tmp_path / "run"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trace", "RUN", "--ranks", "0-99999999999"], f"below {MOST_RANKS:,}"),
        (["trace", "RUN", "--ranks", "0," * 9 + "9" * 5000], f"below {MOST_RANKS:,}"),
        (["trace", "RUN", "--ranks", "0-1048575,0"], "more than"),
        (["analyze", "RUN", "--rank", "a.json=99999999999"], "a rank below"),
        (["run", "--nproc", "1000000000"], "1<=x<=1048576"),
        (["run", "--nnodes", "1000000000"], "1<=x<=1048576"),
        (["plan", "7B", "--gpus", "1000000000000"], "1<=x<=1048576"),
        (["plan", "7B", "--topology", "tp=100000,dp=100000"], f"more than {MOST_RANKS:,}"),
        (["plan", "7B", "--topology", "tp=" + "9" * 5000], f"more than {MOST_RANKS:,}"),
        (["plan", "7B", "--gpus", "1000000", "--topology", "pp=1000000"], "stages"),
        (["analyze", ""], "an argument is empty"),
        (["triage", ""], "an argument is empty"),
    ],
)
def test_numbers_that_no_training_has_are_refused(run: Path, words: list[str], expected: str) -> None:
    ended = diag_process(*[str(run) if word == "RUN" else word for word in words], timeout=PATIENCE_S)
    said = " ".join((ended.stderr + ended.stdout).replace("│", " ").split())
    assert ended.returncode in (1, 2), said[:500]
    assert "Traceback" not in said
    assert expected in said
    assert len(said) < 15_000


@pytest.mark.parametrize("words", [["analyze"], ["analyze", "--json"], ["triage"], ["analyze", "--json", "nowhere"]])
def test_a_full_disk_behind_the_output_is_a_message(run: Path, words: list[str]) -> None:
    path = [] if "nowhere" in words else [str(run)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "diag", *words, *path], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "diag: the output cannot be written: No space left on device"
    assert "Traceback" not in ended.stderr


def _answers(run: Path) -> str:
    """What the analysis says; the triage only must not fail."""
    with suppress(DiagError):
        triage([str(run)])
    try:
        result = open_run(run)
    except DiagError as error:
        return error.message
    json.dumps(describe_run(result), default=str)
    return "; ".join(f"{gap.path}: {gap.reason}" for gap in result.tables.gaps)


def test_a_world_size_that_no_training_has_is_a_gap(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_bytes())
    (run / "manifest.json").write_text(json.dumps({**manifest, "world_size": 10**12, "mesh": {"a": 10**6, "b": 10**6}}))
    assert "world_size 1,000,000,000,000 is not between 0 and 1,048,576" in _answers(run)


def test_folders_of_ranks_that_no_training_has_are_a_gap(run: Path) -> None:
    """Nor does another name of a rank take the place of its folder."""
    for name in ("9" * 200, "99999999", "00000000000000000001", "000002", "٣٣٣٣٣"):
        (run / "ranks" / name).mkdir()
    assert {rank: files.folder.name for rank, files in RunLayout(run).ranks().items()} == {
        rank: f"{rank:05d}" for rank in range(4)
    }
    assert "4\u00a0folders (00000000000000000001, 000002, 99999999) are not rank folders" in _answers(run)


@pytest.mark.parametrize("number", ["9" * 30, "4000000000000000000", "-9223372036854775808", "1e40", "1e308"])
@pytest.mark.parametrize("file", ["collectives.jsonl", "steps.jsonl", "rank.json"])
def test_numbers_beyond_64_bits_are_a_gap(run: Path, file: str, number: str) -> None:
    path = run / "ranks" / "00001" / file
    first, *rest = path.read_text().splitlines(keepends=True)
    document = json.loads(first)
    field = {"collectives.jsonl": "dropped", "steps.jsonl": "end_ns", "rank.json": "pid"}[file]
    assert field in document
    path.write_text(json.dumps({**document, field: "HERE"}).replace('"HERE"', number) + "\n" + "".join(rest))
    assert file in _answers(run)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a document; of a list, to its first and last items."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list) and value:
        items = list({0: value[0], len(value) - 1: value[-1]}.items())
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def test_any_field_may_hold_anything(run: Path) -> None:
    """One field of one file at a time, by seed: an answer or an error of ours, never another exception."""
    draw = random.Random(11)
    files = sorted(p for p in run.rglob("*") if p.name.endswith((".json", ".jsonl", ".json.gz")))
    assert len(files) > 10
    end = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < end or tried < 10:
        path = draw.choice(files)
        before = path.read_bytes()
        text = gzip.decompress(before) if path.suffix == ".gz" else before
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        number = draw.randrange(len(lines))
        document = json.loads(lines[number])
        place = draw.choice(list(_places(document)))
        target = document
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = draw.choice(NASTY)
        lines[number] = json.dumps(document).encode()
        after = b"\n".join(lines) + b"\n"
        path.write_bytes(gzip.compress(after, 1) if path.suffix == ".gz" else after)
        try:
            _answers(run)
        except Exception as error:
            raise AssertionError(f"{path.name}: {place} = {target[place[-1]]!r:.60}") from error
        path.write_bytes(before)
        tried += 1

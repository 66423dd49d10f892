"""What was kept of incidents in full is in the life of a run, with the command that analyses exactly these steps."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.records import STALLED
from diag.rundir.kept import kept_spans
from diag.summaries import open_history
from tests.command import diag as diag_command
from tests.history.planted import BEGIN_NS, Training


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stall because of rank 1 at step 150, whose records only the kept ones hold."""
    folder = tmp_path_factory.mktemp("kept") / "a run"
    Training(folder, ranks=2, byte_budget=2_000_000).train(150).stall(9_000, 1).train(3_000).close(0)
    return folder


def test_the_life_names_the_steps_that_are_kept_and_when_they_were(run: Path) -> None:
    (attempt,) = open_history(run).attempts
    (kept,) = attempt.kept
    assert 130 <= kept.first < 150 < kept.last <= 170, "of 20 before and after it, as many as the budget has room for"
    assert kept.why == STALLED
    assert kept.begin_unix_ns is not None
    assert kept.end_unix_ns is not None
    assert kept.begin_unix_ns - BEGIN_NS == pytest.approx(kept.first * 203e6, rel=0.05)
    assert kept.end_unix_ns - kept.begin_unix_ns == pytest.approx(9e9 + (kept.last + 1 - kept.first) * 203e6, rel=0.05)
    (told,) = json.loads(diag_command("history", run, "--json").stdout)["attempts"][0]["kept"]
    assert told == {
        "first": kept.first, "last": kept.last, "why": "stalled", "begin_unix_ns": kept.begin_unix_ns,
        "end_unix_ns": kept.end_unix_ns,
    }  # fmt: skip


def test_the_printed_command_analyses_exactly_these_steps_in_full(run: Path) -> None:
    said = " ".join(diag_command("history", run).stdout.replace("\xa0", " ").split())
    steps, command = r"Steps (\d+) to (\d+) \(2025-11-24 16:00 UTC\)", r"(diag analyze .+? --steps \S+)"
    found = re.search(f"{steps} are kept in full \\(a step stalled\\): {command}", said)
    assert found is not None, said
    first, last = int(found[1]), int(found[2])
    answer = diag_command(*shlex.split(found[3])[1:], "--json")
    document = json.loads(answer.stdout)
    assert document["run"]["only"] == {"first": first, "last": last, "asked": f"--steps {first}:{last}"}
    assert document["verdict"]["culprit"]["ranks"] == [1]
    assert [step["step"] for step in document["steps"]] == list(range(first, last + 1))


def test_a_run_without_incidents_has_kept_nothing(tmp_path: Path) -> None:
    Training(tmp_path / "R", ranks=2).train(120).close(0)
    assert open_history(tmp_path / "R").attempts[0].kept == ()
    assert "kept in full" not in diag_command("history", tmp_path / "R").stdout


def test_a_damaged_line_of_what_was_kept_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "R"
    Training(folder, ranks=2, byte_budget=2_000_000).train(150).stall(9_000, 1).train(100).close(0)
    for stream in folder.glob("ranks/*/kept.jsonl"):
        stream.write_bytes(stream.read_bytes().replace(b'"begin_ns":', b'"begin_ns":-1e999,"x":', 1))
    assert open_history(folder).attempts[0].kept == ()


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (((39, 79, "stuck"), (80, 80, "stalled"), (0, 83, "verdict")), ((0, 83, "verdict"), (39, 80, "stuck"))),
        (((40, 80, "stalled"), (20, 39, "stuck")), ((20, 80, "stalled"),)),
        (((40, 80, "stalled"), (81, 101, "stuck")), ((40, 80, "stalled"), (81, 101, "stuck"))),  # 21 steps: its own
        (((40, 80, "stalled"), (82, 85, "stuck")), ((40, 80, "stalled"), (82, 85, "stuck"))),
    ],
)
def test_the_rest_of_an_incident_is_no_incident_of_its_own(
    tmp_path: Path, kept: tuple[tuple[int, int, str], ...], told: tuple[tuple[int, int, str], ...]
) -> None:
    """A step that stalled within what was kept of a stuck run: step 80 of 40 to 80 is left, and did not stall."""
    files = RunLayout(tmp_path / "R").rank(0)
    files.folder.mkdir(parents=True)
    lines = [
        {"first": first, "last": last, "why": why, "steps": [{"begin_ns": 10 * first, "end_ns": 10 * last + 9}]}
        for first, last, why in kept
    ]
    files.kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    spans = kept_spans(files)
    assert tuple((span.first, span.last, span.why) for span in spans) == told
    assert [(span.begin_ns, span.end_ns) for span in spans] == [(10 * first, 10 * last + 9) for first, last, _ in told]

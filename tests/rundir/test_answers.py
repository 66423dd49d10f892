"""A kept answer is the one that an analysis would give now, byte for byte, and is not trusted otherwise."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from diag import by_size
from diag.collectors.layout import RunLayout
from diag.rundir import answers
from diag.rundir.lines import ANALYSIS_VERSION
from diag.rundir.policy import ANSWERS
from tests.command import diag
from tests.simulate import Plan, simulate, write_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
Analyses = list[tuple[str, ...]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DIAG_CACHE", str(folder))
    return folder


@pytest.fixture
def analyses(monkeypatch: pytest.MonkeyPatch) -> Analyses:
    """The paths of each analysis."""
    found: Analyses = []
    analyse = by_size.open_by_size

    def noted(*paths: str, **named: Any) -> object:
        found.append(paths)
        return analyse(*paths, **named)

    monkeypatch.setattr(by_size, "open_by_size", noted)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large(write_run(simulate(Plan(ranks=2, steps=12)), tmp_path_factory.mktemp("made") / "run").root)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def large(run: Path) -> Path:
    """The run, which ended, with a file that no analysis reads and that makes it worth keeping its answer."""
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "exit_code": 0}))
    (run / "notes.bin").write_bytes(bytes(ANSWERS.least_bytes))
    return run


def printed(*arguments: str | Path) -> CompletedProcess[str]:
    answer = diag("analyze", *arguments)
    assert answer.stdout, answer.stderr
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir()))
def test_the_kept_answer_is_that_of_an_analysis(
    sample: str, tmp_path: Path, analyses: Analyses, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = large(shutil.copytree(SAMPLES / sample, tmp_path / sample, ignore=shutil.ignore_patterns("tables")))
    verdict, options = RunLayout(run).verdict, ((), ("-v",), ("--json",), ("--table", "path"))
    fresh = [(printed(run, *each), verdict.read_bytes()) for each in options]
    assert len(analyses) == len(options)
    kept = [(printed(run, *each), verdict.read_bytes()) for each in options]
    assert len(analyses) == len(options)
    monkeypatch.setenv("DIAG_CACHE", "off")
    afresh = [(printed(run, *each), verdict.read_bytes()) for each in options]
    assert len(analyses) == 2 * len(options)
    for answers_of in zip(fresh, kept, afresh, strict=True):
        assert len({(answer.stdout, answer.returncode, document) for answer, document in answers_of}) == 1


def _changed_byte(run: Path) -> None:
    """Of the same size, at the same time."""
    file = RunLayout(run).ranks()[1].steps
    before, content = file.stat(), file.read_bytes()
    last = content.rindex(b'"end_ns":') + 9
    file.write_bytes(content[:last] + (b"8" if content[last : last + 1] == b"9" else b"9") + content[last + 1 :])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _added_rank(run: Path) -> None:
    shutil.copytree(RunLayout(run).ranks()[1].folder, RunLayout(run).rank(2).folder)


def _grown(run: Path) -> None:
    file = RunLayout(run).ranks()[0].steps
    with file.open("ab") as steps:
        steps.write(file.read_bytes().splitlines(keepends=True)[-1])


def _other_end(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "exit_code": 1}))


def _other_verdict(run: Path) -> None:
    RunLayout(run).verdict.write_text(json.dumps({"schema_version": ANALYSIS_VERSION}))


def _no_verdict(run: Path) -> None:
    RunLayout(run).verdict.unlink()


@pytest.mark.parametrize(
    "change", [_changed_byte, _added_rank, _grown, _other_end, _other_verdict, _no_verdict], ids=lambda of: of.__name__
)
def test_what_changed_is_analysed_again(change: Callable[[Path], None], run: Path, analyses: Analyses) -> None:
    for _ in range(2):
        printed(run)
    assert len(analyses) == 1
    change(run)
    for _ in range(2):
        assert diag("analyze", run).returncode in (0, 1, 4)
    assert len(analyses) >= 2
    assert json.loads(RunLayout(run).verdict.read_text()).get("verdict")


def test_other_thresholds_settings_and_code_have_answers_of_their_own(
    run: Path, analyses: Analyses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, settings = tmp_path / "policy.toml", tmp_path / "here" / "diag.toml"
    policy.write_text("[findings]\nmention_share = 0.3\n")
    settings.parent.mkdir()
    monkeypatch.chdir(settings.parent)
    usual = printed(run)
    assert "Thresholds overridden" in printed(run, "--policy", policy).stdout
    assert len(analyses) == 2
    policy.write_text("[findings]\nmention_share = 0.4\n")
    assert "0.4" in printed(run, "--policy", policy).stdout
    assert len(analyses) == 3
    assert printed(run).stdout == usual.stdout
    before = len(analyses)  # verdict.json was that of other thresholds
    printed(run)
    assert len(analyses) == before
    settings.write_text('comm_kernels = ["exchange_.*=send_recv"]\n')
    printed(run)
    assert len(analyses) == before + 1
    monkeypatch.setattr(answers, "_code", lambda: "another version")
    printed(run)
    assert len(analyses) == before + 2


def test_options_and_widths_have_answers_of_their_own(
    run: Path, analyses: Analyses, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = printed(run).stdout
    assert printed(run, "--checked").stdout != wide
    assert printed(run, "--steps", "4:8").stdout != wide
    monkeypatch.setenv("COLUMNS", "60")
    narrow = printed(run).stdout
    assert narrow != wide
    assert len(analyses) == 4
    assert printed(run).stdout == narrow
    monkeypatch.delenv("COLUMNS")
    assert printed(run).stdout == wide
    assert len(analyses) == 4


def test_damaged_and_moved_answers_are_not_given(run: Path, analyses: Analyses, cache: Path) -> None:
    usual = printed(run).stdout
    (file,) = cache.glob("*/*/answer-*.bin")
    whole = file.read_bytes()
    for place in (0, 40, 70, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert printed(run).stdout == usual
    assert len(analyses) == 5
    other = shutil.copytree(run, run.parent / "other")
    assert "other" in printed(other).stdout
    file, moved = sorted(cache.glob("*/*/answer-*.bin"), key=lambda path: path.stat().st_mtime_ns)
    file.write_bytes(moved.read_bytes())
    assert printed(run).stdout == usual


def test_an_answer_in_a_run_directory_is_that_of_this_user(
    run: Path, analyses: Analyses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIAG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for _ in range(2):
        printed(run)
    assert len(analyses) == 1
    assert list((run / "tables").glob("*/*/answer-*.bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other-home"))
    printed(run)
    assert len(analyses) == 2


def test_where_nothing_can_be_kept_nothing_is_and_nothing_fails(
    run: Path, analyses: Analyses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    for setting in ("off", str(no_folder)):
        monkeypatch.setenv("DIAG_CACHE", setting)
        printed(run)
    before = len(analyses)
    printed(run)
    assert len(analyses) == before + 1


def test_there_are_only_so_many_answers(
    run: Path, cache: Path, analyses: Analyses, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [
        answers.answers_on([str(run)], lambda question=question: question)
        for question in range(5 * ANSWERS.most_answers)
    ]
    for question in questions:
        assert question is not None
        question.save(b"answer", None, None)
    assert len(list(cache.glob("*/*/answer-*.bin"))) == ANSWERS.most_answers
    loaded = [question.load() for question in questions if question is not None]
    assert loaded.count(b"answer") == ANSWERS.most_answers
    assert loaded[-1] == b"answer"
    assert question is not None
    question.save(bytes(ANSWERS.most_answer_bytes + 1), None, None)
    assert question.load() == b"answer"


def test_of_a_run_that_trains_and_of_small_ones_nothing_is_kept(run: Path, analyses: Analyses) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "exit_code": None}))
    for _ in range(2):
        printed(run)
    assert len(analyses) == 2
    _other_end(run)
    (run / "notes.bin").unlink()
    for _ in range(2):
        printed(run)
    assert len(analyses) == 4


def test_nothing_is_kept_of_very_many_files(run: Path, cache: Path) -> None:
    """Their check sums would take as long as the analysis."""
    assert answers.answers_on([str(run)], lambda: "question") is not None
    (run / "many").mkdir()
    for number in range(ANSWERS.most_files):
        (run / "many" / str(number)).touch()
    assert answers.answers_on([str(run)], lambda: "question") is None

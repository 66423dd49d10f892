"""Run directories that each hold the ranks of one node open as one run; those of other jobs are told apart."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from diag.api import Result, find_jobs, open_run
from diag.by_size import open_by_size
from diag.collectors.layout import RunLayout
from diag.errors import DiagError, ExitCode
from diag.rundir.local import copies_folder, local_path, local_paths
from diag.summaries import open_summaries
from tests.command import diag
from tests.pieces import HOUR_NS, edit, recorded, split


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    copies_folder.cache_clear()


def roots(pieces: list[RunLayout]) -> list[str]:
    return [str(piece.root) for piece in pieces]


def reasons(result: Result) -> str:
    return "\n".join(f"{gap.path}: {gap.reason}" for gap in result.coverage.skipped)


@pytest.mark.parametrize("job", ["", "one"])
def test_the_pieces_of_a_job_open_as_the_whole_run(job: str, tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole", job=job)
    pieces = split(whole, tmp_path / "pieces", [(0, 1), (2, 3)])
    expected = open_run(whole.root)
    for given in (roots(pieces), roots(pieces)[::-1], [str(tmp_path / "pieces")]):
        result = open_run(*given)
        assert result.attribution.ranks == (0, 1, 2, 3)
        assert result.verdict == expected.verdict
        assert not result.coverage.incomplete, reasons(result)
    assert open_by_size(*roots(pieces)).verdict == expected.verdict
    assert open_summaries(str(tmp_path / "pieces")).verdict.culprit_ranks == (3,)


def test_ranks_of_no_piece_are_said(tmp_path: Path) -> None:
    pieces = split(recorded(tmp_path / "whole"), tmp_path / "pieces", [(0,), (3,)])
    result = open_run(*roots(pieces))
    assert result.coverage.ranks_missing == (1, 2)
    assert "no data from ranks 1-2: in no piece of the run" in reasons(result)


@pytest.mark.parametrize("job", ["", "one"])
def test_a_node_that_was_lost_before_its_ranks_wrote_anything_is_a_gap(job: str, tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole", job=job)
    pieces = split(whole, tmp_path / "pieces", [(0, 1), ()])
    shutil.copy(whole.manifest, pieces[1].manifest)
    result = open_run(*roots(pieces))
    assert result.attribution.ranks == (0, 1)
    assert "no data from ranks 2-3: in no piece of the run" in reasons(result)


def test_a_folder_without_ranks_is_no_piece_of_a_run_that_has_all_of_its_ranks(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    empty = split(whole, tmp_path / "pieces", [()])[0]
    assert (str(whole.root),) in [job.paths for job in find_jobs([whole.root, empty.root]).jobs]


def test_what_is_wrong_with_a_piece_is_said_of_its_own_file(tmp_path: Path) -> None:
    pieces = split(recorded(tmp_path / "whole"), tmp_path / "pieces", [(0, 1), (2, 3)])
    damaged = pieces[1].rank(3).steps
    damaged.write_bytes(damaged.read_bytes() + b"{\n")
    assert str(damaged) in reasons(open_run(*roots(pieces)))


def another_job(tmp_path: Path) -> RunLayout:
    return recorded(tmp_path / "other", job="two", start=2 * HOUR_NS)


def of_more_ranks(tmp_path: Path) -> RunLayout:
    return recorded(tmp_path / "other", ranks=8, start=2 * HOUR_NS)


def the_same_ranks_again(tmp_path: Path) -> RunLayout:
    return split(recorded(tmp_path / "again", start=2 * HOUR_NS), tmp_path / "other", [(0, 1)])[0]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (another_job, "its ranks name another job"),
        (of_more_ranks, "of a job of 8 ranks"),
        (the_same_ranks_again, "both hold ranks 0-1"),
    ],
)
def test_pieces_of_other_jobs_are_told_apart_by_reason(other: Any, why: str, tmp_path: Path) -> None:
    job = "one" if other is another_job else ""
    pieces = split(recorded(tmp_path / "whole", job=job), tmp_path / "pieces", [(0, 1), (2, 3)])
    stranger = other(tmp_path)
    jobs = find_jobs([*roots(pieces), str(stranger.root)]).jobs
    assert {job.paths: why in job.reason for job in jobs} == {tuple(roots(pieces)): False, (str(stranger.root),): True}


def test_a_rank_that_two_pieces_of_a_job_hold_is_a_stated_gap(tmp_path: Path) -> None:
    pieces = split(recorded(tmp_path / "whole", job="one"), tmp_path / "pieces", [(0, 1, 2), (2, 3)])
    edit(pieces[1].rank(2).identity, pid=1)
    result = open_run(*roots(pieces))
    assert result.attribution.ranks == (0, 1, 2, 3)
    assert f"{pieces[1].rank(2).folder}: rank 2 is also in {pieces[0].rank(2).folder}" in reasons(result)


@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 0), ((0, None), None), ((None, 3), 3), ((0, 3), 3)])
def test_a_run_ended_as_its_nodes_did(
    codes: tuple[int | None, int | None], expected: int | None, tmp_path: Path
) -> None:
    pieces = split(recorded(tmp_path / "whole"), tmp_path / "pieces", [(0, 1), (2, 3)])
    shutil.copy(pieces[0].manifest, pieces[1].manifest)
    for piece, code in zip(pieces, codes, strict=True):
        edit(piece.manifest, exit_code=code)
    (joined,) = local_paths(roots(pieces))
    assert json.loads(RunLayout(Path(joined)).manifest.read_text())["exit_code"] == expected


def test_a_piece_that_grew_is_read_again(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    pieces = split(whole, tmp_path / "pieces", [(0, 1), (2, 3)])
    steps = pieces[1].rank(3).steps
    everything = steps.read_bytes()
    steps.write_bytes(b"".join(everything.splitlines(keepends=True)[:30]))
    assert len(open_run(*roots(pieces)).tables.ranks[3].steps) == 30
    steps.write_bytes(everything)
    assert len(open_run(*roots(pieces)).tables.ranks[3].steps) == 60


def test_a_link_in_a_piece_leads_nowhere(tmp_path: Path) -> None:
    pieces = split(recorded(tmp_path / "whole"), tmp_path / "pieces", [(0, 1), (2, 3)])
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (pieces[1].rank(3).folder / "log.txt").symlink_to(secret)
    (joined,) = local_paths(roots(pieces))
    assert not RunLayout(Path(joined)).rank(3).log.exists()


def test_a_folder_of_whole_runs_is_still_a_list_of_jobs(tmp_path: Path) -> None:
    for name, start in (("a", HOUR_NS), ("b", 2 * HOUR_NS)):
        recorded(tmp_path / "runs" / name, start=start)
    assert [job.name for job in find_jobs([tmp_path / "runs"]).jobs] == ["a", "b"]


def test_pieces_among_other_runs_of_this_folder_are_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split(recorded(tmp_path / "whole", job="one"), tmp_path / "runs", [(0, 1), (2, 3)])
    recorded(tmp_path / "runs" / "other", job="two", start=2 * HOUR_NS)
    monkeypatch.chdir(tmp_path / "runs")
    jobs = find_jobs(["."]).jobs
    assert [job.paths for job in jobs] == [("./node0", "./node1"), ("./other",)]
    assert [job.name for job in jobs] == ["node0 + node1", "other"]


def test_a_job_of_many_pieces_has_the_name_of_the_first(tmp_path: Path) -> None:
    split(recorded(tmp_path / "whole", job="one"), tmp_path / "runs", [(0,), (1,), (2,), (3,)])
    recorded(tmp_path / "runs" / "other", job="two", start=2 * HOUR_NS)
    assert [job.name for job in find_jobs([tmp_path / "runs"]).jobs] == ["node0 + node1 + node2 + 1 more", "other"]


def test_the_name_of_an_answer_opens_the_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # the command has room
    pieces = split(recorded(tmp_path / "whole"), tmp_path / "my pieces", [(0, 1), (2, 3)])
    said = diag("analyze", *roots(pieces)).stdout
    command = shlex.split(said.partition("In the browser: ")[2])
    assert command == ["diag", "dashboard", " + ".join(roots(pieces))]
    assert [str(local_path(command[2]))] == local_paths(roots(pieces))
    assert diag("analyze", command[2]).stdout == said


def test_a_name_of_folders_of_other_jobs_opens_none_of_them(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / name, start=start) for name, start in (("a", HOUR_NS), ("b", 2 * HOUR_NS))]
    with pytest.raises(DiagError, match="not pieces of one job"):
        local_path(" + ".join(roots(runs)))


@pytest.mark.parametrize("command", ["analyze", "triage", "report", "compare", "check"])
def test_every_command_takes_pieces(command: str, tmp_path: Path) -> None:
    pieces = split(recorded(tmp_path / "whole"), tmp_path / "pieces", [(0, 1), (2, 3)])
    edit(pieces[0].manifest, exit_code=0)
    given = {
        "analyze": roots(pieces),
        "triage": roots(pieces),
        "report": [*roots(pieces), "-o", str(tmp_path / "report.html")],
        "compare": [str(tmp_path / "pieces"), str(tmp_path / "whole")],
        "check": [str(tmp_path / "pieces"), "--max-data-wait", "1%"],
    }[command]
    ended = diag(command, *given)
    expected = ExitCode.GATE_EXCEEDED if command == "check" else ExitCode.OK
    assert ended.returncode == expected, ended.stdout + ended.stderr
    assert "jobs" not in ended.stdout

"""Run directories that were copied, renamed and merged by hand: what is not of the job is left out, with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.api import Result, open_run
from diag.collectors.identity import job_of
from diag.collectors.layout import RunLayout
from diag.collectors.records import DATA
from diag.ended.read import read_run
from diag.errors import DiagError
from diag.summaries import open_summaries
from tests.allocator import train
from tests.simulate import MS, Plan, simulate, write_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
HOUR_NS = 3600 * 10**9
SECOND_NS = 10**9


def recorded(root: Path, ranks: int = 2, at_ns: Callable[[int], int] = lambda rank: HOUR_NS, **plan: Any) -> RunLayout:
    """The loader of rank 1 is slow. ``at_ns``: the time of each rank's clock in the beginning."""
    slow = Plan(
        ranks=ranks,
        steps=60,
        extra=lambda step, rank: {DATA: 60 * MS} if rank == 1 else {},
        clock=lambda rank, now: now + at_ns(rank),
        **plan,
    )
    layout = write_run(simulate(slow), root)
    edit(layout.manifest, created_unix_ns=at_ns(0) - 2 * SECOND_NS)
    for rank, files in layout.ranks().items():
        started = at_ns(rank) - SECOND_NS + rank
        edit(files.identity, monotonic_ns=started, unix_ns=started)
    return layout


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def later(root: Path, ns: int = 600 * SECOND_NS, **plan: Any) -> RunLayout:
    """Another job of the same program on the same host."""
    return recorded(root, at_ns=lambda rank: HOUR_NS + ns, **plan)


def reasons(result: Result) -> str:
    return "\n".join(f"{gap.path}: {gap.reason}" for gap in result.coverage.skipped)


# -- folders of others -------------------------------------------------------------------------------------------------


def copied(run: RunLayout, _: Path) -> int:
    shutil.copytree(run.rank(1).folder, run.rank(2).folder)
    return 2


def copied_and_edited(run: RunLayout, _: Path) -> int:
    for files in run.ranks().values():
        edit(files.identity, world_size=3)
    edit(run.manifest, world_size=3)
    copied(run, _)
    edit(run.rank(2).identity, rank=2)
    return 2


def beyond_the_world(run: RunLayout, _: Path) -> int:
    copied(run, _)
    edit(run.rank(2).identity, rank=2, monotonic_ns=HOUR_NS - 1)
    return 2


def unidentified_beyond_the_world(run: RunLayout, _: Path) -> int:
    copied(run, _)
    run.rank(2).identity.unlink()
    return 2


def of_a_larger_job(run: RunLayout, tmp: Path) -> int:
    return replaced(run, recorded(tmp / "other", ranks=3))


def of_a_later_job(run: RunLayout, tmp: Path) -> int:
    return replaced(run, later(tmp / "other"))


def of_an_earlier_job_on_another_host(run: RunLayout, tmp: Path) -> int:
    other = recorded(
        tmp / "other", at_ns=lambda rank: HOUR_NS // 2, hosts=lambda rank: f"host-{rank}", transfer_ns=9 * MS
    )
    return replaced(run, other)


def of_another_torchrun(run: RunLayout, tmp: Path) -> int:
    for files in run.ranks().values():
        edit(files.identity, job="one")
    other = recorded(tmp / "other")
    edit(other.rank(1).identity, job="two")
    return replaced(run, other)


def replaced(run: RunLayout, other: RunLayout) -> int:
    shutil.rmtree(run.rank(1).folder)
    shutil.copytree(other.rank(1).folder, run.rank(1).folder)
    return 1


STRANGERS = (
    copied,
    copied_and_edited,
    beyond_the_world,
    unidentified_beyond_the_world,
    of_a_larger_job,
    of_a_later_job,
    of_an_earlier_job_on_another_host,
    of_another_torchrun,
)


@pytest.mark.parametrize("change", STRANGERS, ids=lambda change: change.__name__)
def test_a_folder_of_another_process_is_left_out_and_said(
    change: Callable[[RunLayout, Path], int], tmp_path: Path
) -> None:
    run = recorded(tmp_path / "run")
    stranger = change(run, tmp_path)
    result = open_run(run.root)
    assert stranger not in result.tables.ranks
    assert str(run.rank(stranger).folder) in {gap.path for gap in result.coverage.skipped}
    if stranger == 2:
        assert result.verdict.culprit_ranks == (1,), "the answer of the two ranks stays"
    else:
        assert result.verdict.confidence <= 0.5
        assert 1 in result.coverage.ranks_missing


@pytest.mark.parametrize("change", STRANGERS[:5], ids=lambda change: change.__name__)
def test_a_triage_leaves_it_out_too(change: Callable[[RunLayout, Path], int], tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    stranger = change(run, tmp_path)
    read = read_run(run)
    assert stranger not in read.ranks
    assert str(run.rank(stranger).folder) in {path for path, _ in read.gaps}


def test_a_manifest_of_another_job_is_left_out(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    edit(run.manifest, world_size=64, strategy="fsdp2")
    result = open_run(run.root)
    assert (result.tables.manifest, result.tables.world_size) == (None, 2)
    assert f"{run.manifest}: names 64 ranks" in reasons(result)
    assert result.verdict.culprit_ranks == (1,)


def test_a_run_of_which_every_folder_is_left_out_is_not_called_one_without_steps(tmp_path: Path) -> None:
    layout = recorded(tmp_path)
    first, second = (layout.rank(rank).folder for rank in (0, 1))
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    with pytest.raises(DiagError, match=r"no rank of the run can be used: .*copied or renamed"):
        open_run(layout.root)


def test_a_run_without_any_identity_says_that_its_processes_are_unknown(tmp_path: Path) -> None:
    layout = recorded(tmp_path)
    for files in layout.ranks().values():
        files.identity.unlink()
    assert "it is unknown which processes wrote the files of this run" in reasons(open_run(layout.root))


def test_summaries_of_another_process_are_left_out(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", ranks=3)
    before = open_summaries(run.root)
    assert before.verdict.culprit_ranks == (1,)
    shutil.copytree(run.rank(1).folder, run.rank(3).folder)
    after = open_summaries(run.root)
    assert after.verdict.culprit_ranks == (1,)
    assert set(after.tables.ranks) == {0, 1, 2}
    assert str(run.rank(3).folder) in {gap.path for gap in after.coverage.skipped}


# -- files of others in a rank's folder --------------------------------------------------------------------------------


def calls_of_another_rank(run: RunLayout, tmp: Path) -> Path:
    file = run.rank(1).collectives
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text(
        "".join(json.dumps(line | {"groups": {"0": [0]} if line["groups"] else {}}) + "\n" for line in lines)
    )
    return file


def calls_of_another_process(run: RunLayout, tmp: Path) -> Path:
    shutil.copy(later(tmp / "other").rank(1).collectives, run.rank(1).collectives)
    return run.rank(1).collectives


def steps_of_another_process(run: RunLayout, tmp: Path) -> Path:
    earlier = recorded(tmp / "other", at_ns=lambda rank: HOUR_NS // 2)
    shutil.copy(earlier.rank(1).steps, run.rank(1).steps)
    return run.rank(1).steps


def a_heartbeat_of_another_process(run: RunLayout, tmp: Path) -> Path:
    file = run.rank(1).heartbeat
    file.write_text(json.dumps({"unix_ns": 5, "monotonic_ns": 5, "step": 7, "phase": "data", "steps": 100}))
    return file


def a_trace_of_another_rank(run: RunLayout, tmp: Path) -> Path:
    return sample_trace(run, 0)


def sample_trace(run: RunLayout, of_rank: int) -> Path:
    trace = RunLayout(SAMPLES / "ddp-healthy").rank(of_rank).traces()[0]
    return Path(shutil.copy(trace, run.rank(1).folder / trace.name))


def a_trace_of_another_day(run: RunLayout, tmp: Path) -> Path:
    run.rank(1).heartbeat.write_text(
        json.dumps({"unix_ns": HOUR_NS + SECOND_NS, "monotonic_ns": HOUR_NS + SECOND_NS, "step": 7, "phase": "data"})
    )
    return sample_trace(run, 1)


def no_rank_json(run: RunLayout, tmp: Path) -> Path:
    run.rank(1).identity.unlink()
    return run.rank(1).identity


@pytest.mark.parametrize(
    "change",
    [
        calls_of_another_rank,
        calls_of_another_process,
        steps_of_another_process,
        a_heartbeat_of_another_process,
        a_trace_of_another_rank,
        a_trace_of_another_day,
        no_rank_json,
    ],
    ids=lambda change: change.__name__,
)
def test_a_file_of_another_process_is_said(change: Callable[[RunLayout, Path], Path], tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    file = change(run, tmp_path)
    result = open_run(run.root)
    assert str(file) in {gap.path for gap in result.coverage.skipped}
    assert not (result.verdict.culprit_ranks and set(result.verdict.culprit_ranks) != {1})
    if file.name.startswith("trace-"):
        assert not result.tables.ranks[1].traces


# -- what belongs together ---------------------------------------------------------------------------------------------


def nothing(run: RunLayout, tmp: Path) -> None:
    pass


def merged_nodes(run: RunLayout, tmp: Path) -> None:
    """Each node wrote into a folder of its own, and the folders of the ranks were copied together."""
    node = RunLayout(tmp / "node")
    shutil.copytree(run.root, node.root)
    edit(node.manifest, run_id="of the other node")
    shutil.rmtree(run.rank(1).folder)
    shutil.copytree(node.rank(1).folder, run.rank(1).folder)


def started_again_in_the_folder(run: RunLayout, tmp: Path) -> None:
    """An earlier attempt wrote into the same files. Its steps are a gap, and the rest is as it was."""
    for rank, files in recorded(tmp / "earlier", at_ns=lambda rank: HOUR_NS // 2).ranks().items():
        own = run.rank(rank)
        own.steps.write_bytes(files.steps.read_bytes() + own.steps.read_bytes())


@pytest.mark.parametrize("change", [nothing, merged_nodes], ids=lambda change: change.__name__)
@pytest.mark.parametrize("apart_ns", [0, HOUR_NS, 20 * 365 * 24 * HOUR_NS], ids=["equal", "an-hour", "20-years"])
def test_clocks_of_hosts_may_differ(change: Callable[[RunLayout, Path], None], apart_ns: int, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", at_ns=lambda rank: HOUR_NS + rank * apart_ns, hosts=lambda rank: f"host-{rank}")
    change(run, tmp_path)
    result = open_run(run.root)
    assert not result.coverage.skipped
    assert result.verdict.culprit_ranks == (1,)
    assert result.verdict.confidence > 0.8


def test_an_earlier_attempt_in_the_same_folder_is_said_and_does_not_count(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    started_again_in_the_folder(run, tmp_path)
    result = open_run(run.root)
    assert "60\xa0steps of a process before this one" in reasons(result)
    assert result.verdict.culprit_ranks == (1,)
    assert len(result.attribution.steps) == 60


def test_jobs_of_torchrun_have_names() -> None:
    one = {"TORCHELASTIC_RUN_ID": "4711", "MASTER_PORT": "29500"}
    assert job_of(one) == job_of(one | {"MASTER_ADDR": "localhost", "RANK": "3"}) != ""
    assert job_of(one) != job_of(one | {"MASTER_PORT": "29501"})
    assert job_of({"MASTER_PORT": "29500"}) == job_of(one | {"TORCHELASTIC_RUN_ID": "none"}) == ""


def test_snapshots_of_a_folder_that_is_left_out_do_not_count(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    own = train().write(run.rank(0).memory_snapshot("oom", 7), diag={"rank": 0, "step": 7, "reason": "oom"})
    shutil.copytree(run.rank(0).folder, run.rank(2).folder)
    shutil.rmtree(run.rank(1).folder)  # a gap of the folder above
    result = open_run(run.root)
    assert result.tables.snapshots == (str(own),)
    assert [failure.rank for failure in result.failed_allocations] == [0]

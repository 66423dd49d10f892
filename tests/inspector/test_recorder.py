"""What the ranks took from PyTorch's Flight Recorder: durations.jsonl, whole and damaged, and the verdict from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from diag.api import Result, open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import (
    CollectiveLine,
    DurationLine,
    DurationRow,
    Manifest,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.steps import Bottleneck
from diag.rundir import durations
from diag.rundir.durations import INSPECTOR, RECORDER, DurationRecords, recorded
from diag.rundir.policy import RUN_READING
from tests.diagnoses.test_gpu_runs import BASE_NS, COMPUTE, run_directory
from tests.inspector.test_runs import with_durations

MS = 1_000_000
WORLD = tuple(range(8))
STEPS, CALLS = 40, 4  # calls of each group in a step
STEP_NS = 100 * MS
LATE_NS = 5 * MS  # in each collective
Took = Callable[[int, int], int]


def row(seq: int, duration_ns: int, group: str = "0", op: str = "all_reduce") -> DurationRow:
    return DurationRow(group, seq, op, 32 << 20, "bfloat16", 7_000_000_000 + seq * MS, duration_ns)


def write_run(
    root: Path, took: Took, groups: dict[str, tuple[tuple[int, ...], ...]], device: str = "H100"
) -> RunLayout:
    """Eight ranks on two hosts without a profiler window; ``took``: by rank and call. A group's name may be that of
    several sets of ranks, as a mesh's are."""
    run = RunLayout(root)
    replace_file(run.manifest, encode(Manifest("gpu", 0, world_size=len(WORLD), backend="nccl", strategy="fsdp2")))
    for rank in WORLD:
        files = run.rank(rank)
        host = f"node-{rank // 4}"
        replace_file(
            files.identity, encode(RankRecord(rank, rank % 4, 8, host, 100 + rank, host, 0, BASE_NS, device, rank % 4))
        )
        begins = [7_000_000_000 + step * STEP_NS for step in range(STEPS)]
        steps = [
            StepRecord(at, ns, ns + STEP_NS, [PhaseRow("forward", ns, ns + 2 * MS)]) for at, ns in enumerate(begins)
        ]
        files.steps.write_bytes(b"".join(map(encode, steps)))
        files.collectives.write_bytes(encode(CollectiveLine(0, [], {"0": list(WORLD)})))
        own = {name: next(ranks for ranks in sets if rank in ranks) for name, sets in groups.items()}
        named = {name: list(ranks) for name, ranks in own.items()}
        for step in range(STEPS):
            calls = range(step * CALLS, (step + 1) * CALLS)
            rows = [row(call, took(rank, call), name) for name in own for call in calls]
            append(files, DurationLine(rows, {} if step else named, "nccl"))
    return run


def append(files: RankLayout, *lines: DurationLine) -> None:
    with files.durations.open("ab") as file:
        file.writelines(map(encode, lines))


def late(who: int, by_ns: int = LATE_NS) -> Took:
    return lambda rank, call: MS + (0 if rank == who else by_ns)


def noise(rank: int, call: int) -> int:
    return MS + (rank * 7919 + call * 104_729) % 97 * 1000


# -- the verdict -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 5])
def test_durations_alone_name_the_late_rank(tmp_path: Path, who: int) -> None:
    result = open_run(write_run(tmp_path, late(who), {"0": (WORLD,)}).root)
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (Bottleneck.UNDETERMINED, "straggler", (who,))
    assert verdict.culprit_hosts == (f"node-{who // 4}",)
    assert verdict.share == pytest.approx(CALLS * LATE_NS / STEP_NS, rel=0.02)
    assert result.cause is not None
    assert result.cause.cost_ns_per_step == pytest.approx(CALLS * LATE_NS, rel=0.02)
    notes = " ".join(result.coverage.notes)
    assert f"the durations of {STEPS * CALLS} collectives: {RECORDER} records durations of collectives only" in notes
    assert INSPECTOR not in notes


def test_groups_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """The two halves of a mesh's dimension: their calls have the same numbers, and are others'."""
    halves = (WORLD[:4], WORLD[4:])
    run = write_run(tmp_path, late(5), {"0": (WORLD,), "7": halves})
    records, _ = read(run)
    assert sorted(records.sizes.values()) == [4, 4, 8]
    assert open_run(run.root).verdict.culprit_ranks == (5,)


def test_healthy_ranks_accuse_nobody(tmp_path: Path) -> None:
    verdict = open_run(write_run(tmp_path, noise, {"0": (WORLD,)}).root).verdict
    assert (verdict.culprit_ranks, verdict.cause) == ((), "")
    assert "communication is 4" in verdict.headline


def test_what_was_lost_costs_as_much_as_what_was_read(tmp_path: Path) -> None:
    run = write_run(tmp_path, late(5), {"0": (WORLD,)})
    for rank in WORLD:
        append(run.rank(rank), DurationLine([], {}, "nccl", 3 * STEPS * CALLS))
    result = open_run(run.root)
    assert result.verdict.culprit_ranks == (5,)
    assert result.verdict.share == pytest.approx(4 * CALLS * LATE_NS / STEP_NS, rel=0.02)
    assert f"{RECORDER} overwrote 3,840" in " ".join(result.coverage.notes)
    assert "from the 25%" in " ".join(result.coverage.notes).replace("25 %", "25%")


def test_inspector_s_files_win(tmp_path: Path) -> None:
    run = with_durations(run_directory(tmp_path, (COMPUTE, COMPUTE), traced=False), (0, 10_000))
    for rank, took in enumerate((11 * MS, MS)):
        append(run.rank(rank), DurationLine([row(n, took) for n in range(100)], {"0": [0, 1]}, "nccl"))
    result = open_run(run.root)
    assert result.verdict.culprit_ranks == (0,)
    assert INSPECTOR in " ".join(result.coverage.notes)
    for rank in (0, 1):
        for file in run.rank(rank).inspector.iterdir():
            file.unlink()
    assert open_run(run.root).verdict.culprit_ranks == (1,)


def test_a_window_holds_more(tmp_path: Path) -> None:
    run = run_directory(tmp_path, (COMPUTE + 50 * MS, COMPUTE), traced=True)
    for rank, took in enumerate((11 * MS, MS)):
        append(run.rank(rank), DurationLine([row(n, took) for n in range(100)], {"0": [0, 1]}, "nccl"))
    assert open_run(run.root).verdict.cause == "compute-straggler"


# -- damaged and hostile files -----------------------------------------------------------------------------------------


def read(run: RunLayout) -> tuple[DurationRecords, dict[int, int]]:
    found = recorded(run.ranks(), {})
    assert found is not None
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return write_run(tmp_path, late(5), {"0": (WORLD,)})


def reasons(records: DurationRecords) -> str:
    return " ".join(gap.reason for gap in records.gaps)


def test_a_run_without_any(tmp_path: Path) -> None:
    assert recorded({0: RunLayout(tmp_path).rank(0)}, {}) is None
    assert open_run(run_directory(tmp_path, (COMPUTE, COMPUTE), traced=False).root).tables.durations is None


def test_a_cut_line(run: RunLayout) -> None:
    path = run.rank(5).durations
    path.write_bytes(path.read_bytes()[:-30])
    records, ranks = read(run)
    assert "the last line is truncated" in reasons(records)
    assert len(records.rows) == 8 * STEPS * CALLS - CALLS
    assert sorted(ranks.values()) == list(WORLD)
    assert culprits_and_gap(run) == ((5,), True)


def culprits_and_gap(run: RunLayout) -> tuple[tuple[int, ...], bool]:
    result: Result = open_run(run.root)
    return result.verdict.culprit_ranks, any("durations.jsonl" in gap.path for gap in result.coverage.skipped)


def hostile() -> Iterator[tuple[str, object]]:
    good = ["0", 1, "all_reduce", 8, "float32", 1, 5]
    yield "a list", [1, 2]
    yield "a text as duration", {"rows": [[*good[:-1], "5"]]}
    yield "a row that is too short", {"rows": [good[:3]]}
    yield "rows that are no list", {"rows": {"0": good}}
    yield "groups of texts", {"rows": [], "groups": {"0": ["0"]}}
    yield "a number beyond 64 bits", {"rows": [[*good[:-1], 10**40]]}
    yield "a duration of a century", {"rows": [[*good[:-1], 3 * 10**18]]}
    yield "null", None


@pytest.mark.parametrize(("what", "line"), list(hostile()), ids=[what for what, _ in hostile()])
def test_a_line_that_no_collector_writes(run: RunLayout, what: str, line: object) -> None:
    with run.rank(5).durations.open("a") as file:
        file.write(json.dumps(line) + "\n")
    records, _ = read(run)
    assert "invalid collector records on 1 of 41 lines" in reasons(records)
    assert culprits_and_gap(run) == ((5,), True)


def test_rows_that_cannot_be(run: RunLayout) -> None:
    rows = [
        row(-1, MS),
        row(1, -MS),
        row(1, 10**17),
        row(1, MS)._replace(seq=1 << 61),
        row(1, MS, group="unknown"),
        row(1, MS)._replace(bytes=-1),
        row(1, MS, group="others"),
    ]
    append(run.rank(5), DurationLine(rows, {"others": [0, 1, -7, 1 << 61]}, "x" * 1000, -(10**6)))
    records, _ = read(run)
    assert "7\u00a0durations out of range or in a process group without this rank" in reasons(records)
    assert records.dropped == 0
    assert culprits_and_gap(run) == ((5,), True)


def test_names_without_end(run: RunLayout) -> None:
    append(run.rank(5), DurationLine([row(1, MS, "n" * 10**6, "o" * 10**6)], {"n" * 10**6: [5, 6]}))
    records, _ = read(run)
    assert max(map(len, records.sizes)) == 200
    assert max(map(len, records.rows["op"].unique())) == 40


def test_more_than_fits_is_said(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(RUN_READING), "most_duration_records", 100)
    records, _ = read(run)
    assert len(records.rows) == 100
    assert "more than 100 durations: 60 were left out" in reasons(records)


def test_a_link_out_of_the_run(run: RunLayout, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "durations.jsonl"
    path = run.rank(5).durations
    path.rename(outside)
    path.symlink_to(outside)
    records, ranks = read(run)
    assert 5 not in ranks.values()
    assert any(gap.path == str(path) for gap in records.gaps)


def test_only_damaged_files(run: RunLayout) -> None:
    for rank in WORLD:
        run.rank(rank).durations.write_text("{\n")
    assert culprits_and_gap(run) == ((), True)


def test_the_first_of_equal_records_is_kept_in_order() -> None:
    draw = np.random.default_rng(1)
    rows = pl.DataFrame({"a": draw.integers(0, 9, 50), "b": draw.integers(0, 9, 50), "place": np.arange(50)})
    once = durations.each_once(rows, ["a", "b"])
    assert len(once) < len(rows)
    assert once.equals(rows.unique(["a", "b"], keep="first", maintain_order=True))
    assert durations.each_once(once, ["a", "b"]).equals(once)

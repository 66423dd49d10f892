"""Verdicts from the ranks' own summaries: as from the records, of thousands of ranks, and with ranks missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from diag.api import analyze, open_run
from diag.by_size import summaries_suffice
from diag.collectors.layout import RunLayout
from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, FORWARD, PHASES_AND_REST
from diag.diagnoses import ask
from diag.diagnoses.of_summaries import LACKS_IN_SUMMARIES
from diag.diagnoses.phases import PhaseAccount
from diag.diagnoses.registry import DIAGNOSES
from diag.diagnoses.subject import Column, Listed, Subject
from diag.errors import DiagError
from diag.model.steps import Bottleneck, NotLooked, Severity
from diag.rundir.policy import RUN_READING
from diag.show.json import to_dict
from diag.show.page import numbers_of
from diag.summaries import SummaryResult, open_summaries
from diag.tables.tokens import tokens_of
from tests.command import diag
from tests.copies import replace
from tests.many_ranks import Job, write_summaries
from tests.simulate import MS, Plan, simulate, write_run

MANY = 2_048


def phases_of(result: SummaryResult) -> PhaseAccount:
    assert result.examination.phases is not None
    return result.examination.phases


@pytest.mark.parametrize(
    "plan",
    [
        Plan(ranks=4, steps=60),
        Plan(ranks=4, steps=60, extra=lambda step, rank: {DATA: 60 * MS} if rank == 1 else {}),
        Plan(ranks=4, steps=60, extra=lambda step, rank: {FORWARD: 60 * MS} if rank == 2 else {}),
        Plan(ranks=3, steps=60, extra=lambda step, rank: {BACKWARD: 60 * MS} if rank == 0 else {}),
        Plan(ranks=3, steps=60, extra=lambda step, rank: {CHECKPOINT: 300 * MS} if rank == 1 and step % 4 == 0 else {}),
        Plan(ranks=4, steps=60, transfer_ns=20 * MS),
        Plan(ranks=4, steps=60, data_ns=80 * MS),
        Plan(ranks=4, steps=60, extra=lambda step, rank: {FORWARD: 60 * MS} if step % 4 == rank else {}),
        Plan(ranks=2, steps=60, extra=lambda step, rank: {DATA: 60 * MS} if rank == 1 else {}, micro_batches=3),
        Plan(
            ranks=4,
            steps=60,
            clock=lambda rank, now: now + 10**15 * rank + now * rank // 10**6,
            hosts=lambda rank: f"host-{rank}",
            extra=lambda step, rank: {DATA: 60 * MS} if rank == 3 else {},
        ),
    ],
    ids=["healthy", "loader", "forward", "backward", "checkpoints", "wire", "loaders", "rotating", "micro", "clocks"],
)
def test_summaries_say_what_the_records_say(plan: Plan, tmp_path: Path) -> None:
    layout = write_run(simulate(plan), tmp_path)
    short, full = open_summaries(layout.root), open_run(layout.root)
    assert full.examination.phases is not None
    ours, theirs = phases_of(short).frontier, full.examination.phases.frontier
    assert ours.numbers == theirs.numbers
    assert np.abs(ours.dur_ns - theirs.dur_ns).max() <= 2_000
    for phase in PHASES_AND_REST[:-1]:
        assert ours.share(phase) == pytest.approx(theirs.share(phase), abs=0.005), phase
        assert np.abs((ours.late(phase) - theirs.late(phase)).mean(axis=0)).max() < MS // 2, phase
    assert ours.communication_known
    parts = [ours.communication_ns.sum() / ours.dur_ns.sum(), theirs.communication_ns.sum() / theirs.dur_ns.sum()]
    assert parts[1] - 0.001 <= parts[0] <= parts[1] + 0.02, "no less, and little more"
    same = (short.verdict.bottleneck, short.verdict.severity, short.verdict.culprit_ranks)
    assert same == (full.verdict.bottleneck, full.verdict.severity, full.verdict.culprit_ranks)
    assert short.verdict.confidence <= full.verdict.confidence


def test_summaries_have_the_tokens_a_second_and_the_mfu_of_the_records(tmp_path: Path) -> None:
    tables = simulate(Plan(ranks=3, steps=60, tokens=lambda step, rank: 500 + rank))
    assert tables.manifest is not None
    model = {"parameters": 10**11, "layers": 1, "dim": 1, "seq_len": 1}
    tables = replace(tables, manifest=replace(tables.manifest, model=model, device="cuda"))
    ranks = {
        rank: replace(of, identity=replace(of.identity, device="NVIDIA H100 80GB HBM3"))
        for rank, of in tables.ranks.items()
        if of.identity is not None
    }
    layout = write_run(replace(tables, ranks=ranks), tmp_path)
    short, full = open_summaries(layout.root), open_run(layout.root)
    numbers = [numbers_of(result) for result in (short, full)]
    assert numbers[0]["Tokens per second"] == pytest.approx(numbers[1]["Tokens per second"], rel=0.01)
    assert short.mfu.value == pytest.approx(full.mfu.value, rel=0.01)
    assert f"x {3 * 501:,} tokens per step" in short.mfu.basis


def test_a_rank_without_tokens_leaves_them_unknown(tmp_path: Path) -> None:
    layout = write_run(simulate(Plan(ranks=3, steps=60, tokens=lambda step, rank: 9 * (rank != 1))), tmp_path)
    result = open_summaries(layout.root)
    assert tokens_of(result.tables, result.attribution) == "rank 1 recorded no token count"


def test_every_part_of_a_shown_step_is_told(tmp_path: Path) -> None:
    result = open_summaries(write_run(simulate(Plan(ranks=3, steps=30)), tmp_path).root)
    for step in result.attribution.steps:
        assert len(step.parts) == 3
        for part in step.parts:
            whole = part.compute_ns + part.exposed_comm_ns + part.exposed_copy_ns + part.data_wait_ns
            assert whole + part.checkpoint_ns + part.idle_ns == part.dur_ns
    assert [step.note for step in result.attribution.steps[:3]] == ["warm-up", "warm-up", ""]
    assert result.bottleneck_of(result.attribution.steps[5]) == Bottleneck.COMPUTE
    assert to_dict(result)["stage_frontier"]["verdict_rests_on_it"]


def test_every_diagnosis_is_asked_unless_it_reads_what_summaries_lack(tmp_path: Path) -> None:
    result = open_summaries(write_run(simulate(Plan(ranks=3, steps=30)), tmp_path).root)
    not_looked = {item.diagnosis: item.reason for item in result.examination.not_looked}
    lacks = {*LACKS_IN_SUMMARIES, Column.DEVICE}  # this run is on a CPU
    lacking = {d.id for d in DIAGNOSES if lacks & set(d.reads)}
    assert not_looked.keys() == {*lacking, "memory-pressure", "not-finite"}
    assert not_looked["memory-pressure"] == "no device memory was recorded"
    assert not_looked["not-finite"] == "no loss and no gradient norm was recorded"
    assert {"slow-data", "exposed-communication", "checkpoint-stall", "straggler"}.isdisjoint(lacking)


def test_a_diagnosis_that_reads_a_missing_column_is_not_loaded(tmp_path: Path) -> None:
    result = analyze(simulate(Plan(ranks=2, steps=12)))
    asked = Listed("it", "it", "diag.nowhere:DIAGNOSIS", reads=(Column.PHASES, Column.CALLS))
    subject = Subject(result.attribution, result.tables, result.examination.shares, lacks={Column.CALLS: "no calls"})
    assert ask(subject, [asked]) == ((), (), (NotLooked("it", "no calls", "it"),))


# -- thousands of ranks ------------------------------------------------------------------------------------------------

STRAGGLER = {1_234: {FORWARD: 60_000}}
LOADERS = {rank: {DATA: 80_000} for rank in range(800, 808)}  # all of one host


@pytest.mark.parametrize(
    ("extra", "bottleneck", "cause", "culprits", "hosts"),
    [
        ({}, Bottleneck.COMPUTE, "", (), ()),
        (STRAGGLER, Bottleneck.COMPUTE, "compute-straggler", (1_234,), ("node0154",)),
        (LOADERS, Bottleneck.DATA, "slow-data-one-rank", tuple(range(800, 808)), ("node0100",)),
    ],
    ids=["healthy", "one rank computes longer", "one host's loaders"],
)
def test_one_of_thousands_is_named(
    extra: Mapping[int, Mapping[str, int]],
    bottleneck: Bottleneck,
    cause: str,
    culprits: tuple[int, ...],
    hosts: tuple[str, ...],
    tmp_path: Path,
) -> None:
    result = open_summaries(write_summaries(Job(MANY, extra_us=extra), tmp_path).root)
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause) == (bottleneck, cause)
    assert tuple(sorted(verdict.culprit_ranks)) == culprits
    assert verdict.culprit_hosts == hosts
    assert (verdict.severity == Severity.HEALTHY) == (not cause)
    assert result.coverage.ranks_used == tuple(range(MANY))
    assert len(result.attribution.steps[0].parts) == 16
    if cause:
        assert set(culprits) <= {part.rank for part in result.attribution.steps[0].parts}
        assert result.cause is not None
        assert len(result.cause.evidence) < 20


def test_what_a_device_computes_is_not_claimed(tmp_path: Path) -> None:
    """The host of a GPU only launches: a straggler is no verdict, a slow loader is."""
    slow = open_summaries(write_summaries(Job(64, extra_us={5: {FORWARD: 60_000}}, device="H200"), tmp_path / "a").root)
    assert slow.verdict.bottleneck == Bottleneck.UNDETERMINED
    assert any("stragglers: the device's work was not recorded" in text for text in map(str, slow.coverage.not_looked))
    loader = open_summaries(write_summaries(Job(64, extra_us={5: {DATA: 80_000}}, device="H200"), tmp_path / "b").root)
    assert (loader.verdict.cause, loader.verdict.culprit_ranks) == ("slow-data-one-rank", (5,))


def test_ranks_that_are_missing_or_behind_are_said_and_left_out(tmp_path: Path) -> None:
    layout = write_summaries(Job(40, steps=150, extra_us={7: {DATA: 80_000}}), tmp_path)
    layout.rank(3).summary.unlink()
    behind = layout.rank(9).summary
    behind.write_bytes(behind.read_bytes().split(b"\n", 1)[0] + b"\n")
    result = open_summaries(layout.root)
    assert result.verdict.culprit_ranks == (7,)
    assert result.coverage.ranks_missing == (3, 9)
    reasons = [gap.reason for gap in result.coverage.skipped]
    assert reasons == ["rank 9 did not record all of steps 0 to 149; left out", "rank 3 wrote no summary"]
    assert result.verdict.confidence <= 38 / 40


def without_the_first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


def test_a_rank_without_the_steps_of_the_others_is_left_out(tmp_path: Path) -> None:
    """As when the disk was full, and then had room for one rank's line."""
    layout = write_summaries(Job(4, steps=50, extra_us={1: {DATA: 80_000}}), tmp_path / "short")
    ahead = write_summaries(Job(4, steps=100), tmp_path / "long").rank(2).summary
    without_the_first_line(ahead)
    layout.rank(2).summary.write_bytes(ahead.read_bytes())
    result = open_summaries(layout.root)
    assert result.verdict.culprit_ranks == (1,)
    assert [gap.reason for gap in result.coverage.skipped] == ["rank 2 did not record all of steps 0 to 49; left out"]


def test_two_ranks_without_a_step_in_common_are_not_compared(tmp_path: Path) -> None:
    layout = write_summaries(Job(2, steps=100), tmp_path)
    first, second = (layout.rank(rank).summary for rank in (0, 1))
    first.write_bytes(first.read_bytes().split(b"\n", 1)[0] + b"\n")
    without_the_first_line(second)
    with pytest.raises(DiagError, match="only one rank has a summary of steps 0 to 49; at least two are needed"):
        open_summaries(layout.root)


def test_summaries_that_are_all_in_folders_of_other_ranks_are_refused(tmp_path: Path) -> None:
    layout = write_summaries(Job(2, steps=60), tmp_path)
    first, second = (layout.rank(rank).summary for rank in (0, 1))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(DiagError, match=r"no summary can be used: .* of rank 1: copied"):
        open_summaries(layout.root)


def test_the_newest_steps_that_nearly_all_have_are_read(tmp_path: Path) -> None:
    """Ranks write their lines at different moments; and of a long run only the end is read."""
    layout = write_summaries(Job(8, steps=2_000), tmp_path)
    for rank in (1, 4, 6):
        path = layout.rank(rank).summary
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    numbers = phases_of(open_summaries(layout.root)).frontier.numbers
    assert (numbers[0], numbers[-1]) == (950, 1_949)


def test_lines_that_were_cut_off_or_damaged_are_left_out(tmp_path: Path) -> None:
    layout = write_summaries(Job(4, steps=150), tmp_path)
    path = layout.rank(2).summary
    lines = path.read_bytes().splitlines(keepends=True)
    told = json.loads(lines[0])
    wrong = [{**told, "count": 10**12}, {**told, "values": "!!!"}, {**told, "columns": []}, {**told, "identity": {}}]
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in wrong) + b"".join(lines) + b'{"cut')
    result = open_summaries(layout.root)
    assert result.coverage.ranks_used == (0, 1, 2, 3)
    assert any("4\u00a0invalid collector records" in gap.reason for gap in result.coverage.skipped)


def test_a_column_of_a_later_version_is_no_mistake(tmp_path: Path) -> None:
    layout = write_summaries(Job(4), tmp_path)
    before = open_summaries(layout.root).verdict
    for own in layout.ranks().values():
        own.summary.write_text(own.summary.read_text().replace('"tokens"', '"something new"'))
    assert open_summaries(layout.root).verdict == before


def test_without_summaries_the_message_says_what_to_do(tmp_path: Path) -> None:
    layout = write_run(simulate(Plan(ranks=2, steps=10)), tmp_path)
    for own in layout.ranks().values():
        own.summary.unlink()
    with pytest.raises(DiagError, match="no rank wrote a summary") as raised:
        open_summaries(layout.root)
    assert "--summary" in (raised.value.hint or "")
    layout = write_summaries(Job(1), tmp_path / "one")
    with pytest.raises(DiagError, match="at least two are needed"):
        open_summaries(layout.root)


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_run_of_many_ranks_without_traces_is_read_by_its_summaries(tmp_path: Path) -> None:
    layout = write_summaries(Job(RUN_READING.many_ranks + 1, steps=50, extra_us={5: {DATA: 80_000}}), tmp_path)
    assert summaries_suffice(layout.root)
    done = diag("analyze", str(layout.root))
    assert done.returncode == 0, done.stderr
    assert "the data loader of rank 5 is slow" in done.stdout.replace("\n", " ")
    assert "The verdict rests on the ranks' summaries of steps 0 to 49" in done.stdout
    told = json.loads(diag("analyze", "--json", str(layout.root)).stdout)
    assert told["verdict"]["culprit"] == {"ranks": [5], "hosts": ["node0000"]}
    assert told["coverage"]["notes"][0].startswith("the verdict rests on the ranks' summaries")
    for rank in (4, 9):
        layout.rank(rank).trace(7).write_bytes(b"")
    assert summaries_suffice(layout.root)
    assert f"profiler windows of ranks 4, 9 are not included: diag analyze {layout.rank(4).folder}" in str(
        open_summaries(layout.root).coverage.notes
    )
    for rank in layout.ranks():
        layout.rank(rank).trace(7).write_bytes(b"")
    assert not summaries_suffice(layout.root)


def test_few_ranks_are_read_by_their_summaries_when_asked(tmp_path: Path) -> None:
    layout = write_run(simulate(Plan(ranks=2, steps=60)), tmp_path)
    assert not summaries_suffice(layout.root)
    assert "rests on the ranks' summaries" in diag("analyze", "--summary", str(layout.root)).stdout
    assert "rests on the ranks' summaries" not in diag("analyze", str(layout.root)).stdout
    done = diag("analyze", "--summary", str(layout.root), str(layout.root))
    assert done.returncode == 2
    assert "one run directory" in done.stderr


def test_the_folders_of_a_run_are_found(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for name in ("00002", "00010", "123456", "notes", "7"):
        (layout.ranks_folder / name).mkdir(parents=True)
    (layout.ranks_folder / "00011").write_bytes(b"")
    assert list(layout.ranks()) == [2, 10, 123_456]


def test_two_runs_of_many_ranks_are_compared_and_held_against_budgets(tmp_path: Path) -> None:
    before = write_summaries(Job(RUN_READING.many_ranks + 1, steps=60), tmp_path / "a").root
    after = write_summaries(
        Job(RUN_READING.many_ranks + 1, steps=60, seed=1, extra_us={5: {DATA: 60_000}}), tmp_path / "b"
    ).root
    done = diag("compare", before, after, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["comparison"]
    assert told["difference_ns"][1] == pytest.approx(60 * MS, rel=0.1)
    assert told["parts"] == []
    assert "only the ranks' summaries of the first and the second run were read" in told["notes"][0]
    done = diag(
        "check", after, "--max-data-wait", "5%", "--max-peak-memory", "1GB", "--max-exposed-comm", "5%", "--json"
    )
    assert done.returncode == 3, done.stderr
    found = {budget["name"]: budget["status"] for budget in json.loads(done.stdout)["check"]["budgets"]}
    assert found == {"max-data-wait": "exceeded", "max-peak-memory": "not known", "max-exposed-comm": "kept"}

"""Verdicts on devices from the ranks' own summaries: what the records of events are condensed to, who is found, and
what is said where too little is known of the devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from diag.account.device_summaries import on_devices
from diag.api import open_run
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import BACKWARD, BEGIN, DEVICE, FORWARD, LAG, STEP, STILL, UNLAUNCHED
from diag.collectors.step_lines import StepSummary
from diag.model.steps import Bottleneck, Severity
from diag.rundir.run import open_paths
from diag.rundir.summaries import read_summaries
from diag.summaries import of_summaries, open_summaries
from tests.bench.grid.device_rows import tuned, write_device_run
from tests.bench.grid.gpu.simulate import simulate
from tests.bench.planted_devices import FAULTS, truth_for, with_fault
from tests.many_devices import Devices, columns_of, events, identity_of, records_of, summaries_of, write_devices

SMALL = Devices(6, steps=20)


def condense(layout: RunLayout) -> None:
    """Each rank's records as its own summary."""
    for rank, own in open_paths((layout.root,)).ranks.items():
        assert own.identity is not None
        samples = [sample.utilization_percent for sample in own.device if sample.utilization_percent is not None]
        file = LineFile(layout.rank(rank).summary, Budget(1 << 30), Complaints(rank))
        summary = StepSummary(file, own.identity, 50, None, lambda samples=samples: samples)  # type: ignore[misc]
        for record in own.device_steps:
            summary.passed(record)
        for step in own.steps:
            summary.add(step, list(own.rows.take(own.rows.step == step.step)))
        summary.close()
        file.close()


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{}, {"launching": {2: 90_000.0}}, {"loading": {1: 40_000.0}, "reads_loss": False}])
def test_a_rank_condenses_its_steps_on_the_device(fault: dict[str, object], tmp_path: Path) -> None:
    job = replace(SMALL, **fault)  # type: ignore[arg-type]
    of = events(job)
    expected = columns_of(job, of)
    layout = RunLayout(tmp_path)
    for rank in range(job.ranks):
        layout.rank(rank).folder.mkdir(parents=True)
        file = LineFile(layout.rank(rank).summary, Budget(1 << 30), Complaints(rank))
        summary = StepSummary(file, identity_of(job, rank), 50, None, lambda: [97, 99])
        late = []  # the device finishes a step after the host has begun the next ones
        for step, on_device, rows in records_of(job, of, rank):
            late.append(on_device)
            summary.add(step, rows)
            if len(late) > 3:
                summary.passed(late.pop(0))
        for on_device in late:
            summary.passed(on_device)
        summary.close()
        file.close()
    read = read_summaries(layout)
    assert read.waits_seen == 1.0
    assert read.utilization == pytest.approx(0.98)
    for name, values in expected.items():
        there = read.column(name) if name in read.columns else np.zeros_like(values)
        # The two clocks may drift apart, which shrinks a lag.
        most = RECORDING.device_drift * of.device[STEP][1].max() if name in (LAG, UNLAUNCHED) else 0
        assert np.abs(there.astype(int) - values.astype(int)).max() <= 2 + most, name


def test_a_step_without_a_record_of_the_device_holds_up_nothing(tmp_path: Path) -> None:
    (step, on_device, rows), *more = records_of(SMALL, events(SMALL), 0)
    path = tmp_path / "summary.jsonl"
    summary = StepSummary(LineFile(path, Budget(1 << 20), Complaints(0)), identity_of(SMALL, 0), 3)
    summary.add(step, rows)
    summary.passed(on_device)
    for later, _, own in more:
        summary.add(later, own)
    assert not path.exists() or path.read_text() == "", "the devices' records of the other steps may still come"
    summary.passed(more[-1][1])
    summary.add(replace(step, step=20, begin_ns=10**12, end_ns=10**12 + 1), [])
    lines = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
    assert [line["first"] for line in lines] == [0, 3, 6, 9, 12, 15]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    job = with_fault(Devices(48, reads_loss=True), fault, 0.3, Random(fault))
    right = truth_for(job).right[0]
    verdict = of_summaries(on_devices(summaries_of(job)) or summaries_of(job)).verdict
    assert verdict.bottleneck.value == right.bottleneck
    assert verdict.cause in right.causes
    assert tuple(sorted(verdict.culprit_ranks)) in right.culprits
    assert verdict.confidence > 0.6


def test_a_healthy_job_is_healthy(tmp_path: Path) -> None:
    result = open_summaries(write_devices(Devices(24), tmp_path).root)
    assert result.verdict.severity == Severity.HEALTHY
    assert result.attribution.comm_known
    assert result.attribution.idle_known
    part = result.attribution.steps[-1].parts[0]
    assert part.exposed_comm_ns > 0


@pytest.mark.parametrize("row", ["dev-S1-forward", "dev-N1-network", "dev-D2-data-one", "dev-L1-launch-bound"])
def test_summaries_say_what_the_events_say(row: str, tmp_path: Path) -> None:
    job = tuned(row, 0.3)
    write_device_run(job, simulate(job, keep=True).ranks, tmp_path, Random(row))
    layout = RunLayout(tmp_path)
    condense(layout)
    short, full = open_summaries(tmp_path).verdict, open_run(tmp_path).verdict
    assert (short.bottleneck, short.culprit_ranks) == (full.bottleneck, full.culprit_ranks)
    assert short.share == pytest.approx(full.share, abs=0.06)


def test_without_samples_of_the_utilization_a_healthy_device_may_be_idle() -> None:
    result = of_summaries(on_devices(summaries_of(Devices(8, sampled=False))) or summaries_of(SMALL))
    assert result.verdict.bottleneck == Bottleneck.UNDETERMINED
    assert "how long the devices were idle was not recorded" in result.verdict.headline


def test_where_most_waits_were_not_observed_only_the_hosts_are_known() -> None:
    summaries = summaries_of(Devices(8, slow={3: 1.5}))
    unseen = msgspec.structs.replace(summaries, waits_seen=0.4)
    assert on_devices(unseen) is None
    assert of_summaries(unseen).verdict.bottleneck == Bottleneck.UNDETERMINED


UNSEEN = Devices(1_024, units=4, waits_seen=0.3, timed=True)


def test_who_is_late_is_seen_in_the_durations_of_collectives(tmp_path: Path) -> None:
    result = open_summaries(write_devices(replace(UNSEEN, slow={300: 1.4}), tmp_path).root)
    verdict = result.verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("straggler", (300,))
    finding = next(finding for finding in result.examination.findings if finding.id == "straggler")
    assert finding.share == pytest.approx(0.28, abs=0.03), "68 ms of 260 ms"
    late, others = finding.evidence[:2]
    assert late.value < 0.1 * others.value
    frame = result.summaries
    assert others.value == pytest.approx(
        frame.filter(frame["rank"] != 300)["collective_wait_ns"].median() / 1e6, abs=1e-3
    )
    assert any("summed over 32 consecutive collectives" in note for note in result.coverage.notes)


@pytest.mark.parametrize("late", [{"slow": {7: 1.15}}, {"launching": {7: 90_000.0}}, {"slow": {7: 1.4, 500: 1.4}}])
def test_only_those_that_are_late_are_named(late: dict[str, dict[int, float]]) -> None:
    verdict = of_summaries(summaries_of(replace(UNSEEN, **late))).verdict  # type: ignore[arg-type]
    (planted,) = late.values()
    assert (verdict.cause, verdict.culprit_ranks) == ("straggler", tuple(planted))


def test_a_late_rank_that_costs_more_than_the_hosts_loaders_comes_first() -> None:
    job = replace(UNSEEN, slow={835: 1.4}, loading={-1: 6_000.0})
    without = of_summaries(summaries_of(replace(job, timed=False))).verdict
    assert (without.bottleneck, without.culprit_ranks) == (Bottleneck.DATA, ())
    verdict = of_summaries(summaries_of(job)).verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("straggler", (835,))
    loaders = of_summaries(summaries_of(replace(job, loading={7: 150_000.0}))).verdict
    assert (loaders.cause, loaders.culprit_ranks) == ("slow-data-one-rank", (7,)), "which says why as well"


def test_of_healthy_ranks_none_is_named() -> None:
    for seed in range(20):
        job = replace(UNSEEN, seed=seed, transfer_us=3_000.0 * (1 + seed % 4))
        result = of_summaries(summaries_of(job))
        assert result.verdict.culprit_ranks == ()
        assert all(not finding.ranks for finding in result.examination.findings)


def test_a_late_rank_that_left_no_summary_makes_no_other_late() -> None:
    whole = summaries_of(replace(UNSEEN, slow={300: 1.4}))
    rest = np.delete(np.arange(1_024), 300)
    summaries = msgspec.structs.replace(
        whole,
        ranks=tuple(rest.tolist()),
        identities=tuple(whole.identities[rank] for rank in rest),
        begin_us=whole.begin_us[rest],
        cells=whole.cells[:, rest],
        utilization=None,
        durations=tuple(whole.durations[rank] for rank in rest),
    )
    verdict = of_summaries(summaries).verdict
    assert (verdict.bottleneck, verdict.culprit_ranks) == (Bottleneck.UNDETERMINED, ())


def test_durations_are_not_asked_where_the_devices_waits_are_known() -> None:
    summaries = summaries_of(replace(UNSEEN, waits_seen=1.0, slow={300: 1.4}))
    clocked = on_devices(summaries)
    assert clocked is not None
    assert clocked.durations == ()
    assert of_summaries(clocked).verdict.culprit_ranks == (300,)


def test_few_ranks_and_steps_without_a_device_are_left_out() -> None:
    summaries = summaries_of(Devices(40, slow={3: 1.5}))
    cells = summaries.cells.copy()
    spent = cells[summaries.columns.index(DEVICE + STEP)]
    spent[7] = 0
    spent[9, 5] = 0
    clocked = on_devices(msgspec.structs.replace(summaries, cells=cells))
    assert clocked is not None
    assert (clocked.missing, len(clocked.numbers)) == ((7,), 99)
    assert any("rank 7 did not record times on the device" in gap.reason for gap in clocked.gaps)
    assert of_summaries(clocked).verdict.culprit_ranks == (3,)
    spent[:20] = 0
    assert on_devices(msgspec.structs.replace(summaries, cells=cells)) is None


def test_the_columns_of_a_step_add_up_to_it() -> None:
    columns = columns_of(SMALL, events(SMALL))
    parts = [
        v for name, v in columns.items() if name.startswith(DEVICE) and name not in (DEVICE + STEP, LAG, UNLAUNCHED)
    ]
    whole = sum(part.astype(int) for part in parts)
    assert np.abs(whole - columns[DEVICE + STEP].astype(int)).max() <= len(parts)
    assert columns[DEVICE + FORWARD + STILL].any()
    assert columns[DEVICE + BACKWARD + STILL].any()
    assert BEGIN not in columns


def test_a_loader_that_would_take_as_long_as_a_faster_device_is_a_doubt() -> None:
    """A slow network costs 15 % of the step on the devices. Where the hosts load for nearly a whole step meanwhile, a
    faster network saves little; where they read the loss in every step, the loader costs time of its own."""

    def doubt(**changed: object) -> tuple[float, dict[str, float]]:
        job = replace(SMALL, transfer_us=16_000, steps=40, **changed)  # type: ignore[arg-type]
        verdict = of_summaries(on_devices(summaries_of(job)) or summaries_of(job)).verdict
        assert verdict.bottleneck in (Bottleneck.COMMUNICATION, Bottleneck.MIXED), verdict.headline
        return verdict.confidence, {doubt.name: doubt.value for doubt in verdict.doubts}

    sure, doubts = doubt(reads_loss=False)
    assert sure >= 0.9
    assert "hosts_next" not in doubts
    unsure, doubts = doubt(reads_loss=False, loading={-1: 168_000.0})
    assert unsure < 0.9
    assert 0.2 < doubts["hosts_next"] <= 1
    _, doubts = doubt(reads_loss=True, loading={-1: 25_000.0})
    assert "hosts_next" not in doubts

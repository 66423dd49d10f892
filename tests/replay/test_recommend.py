"""Which changes are advised: with the gain they have, never beyond the memory, nothing for a healthy run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.api import Result, analyze
from diag.collectors.records import FORWARD, MemoryRecord
from diag.model.steps import Knob, Risk
from diag.replay.advice import changed_arguments, memory_veto, recommend
from diag.replay.policy import ADVICE
from diag.rundir.tables import Tables
from tests.command import diag
from tests.copies import replace
from tests.examples import examples
from tests.samples import opened_sample
from tests.simulate import MS, Plan, simulate

SAMPLES = Path(__file__).parents[2] / "sample_traces"
GB = 1_000_000_000


def advised(plan: Plan) -> Result:
    return analyze(simulate(plan))


def with_device(tables: Tables, capacity: int, reserved: int) -> Tables:
    """The same run as if on devices with so much memory."""

    ranks = {}
    for rank, own in tables.ranks.items():
        assert own.identity is not None
        memory = MemoryRecord(rss=GB, allocated=reserved, reserved=reserved, alloc_retries=0, ooms=0, capacity=capacity)
        steps = tuple(replace(step, memory=memory) for step in own.steps)
        ranks[rank] = replace(own, identity=replace(own.identity, device="NVIDIA H200"), steps=steps)
    return replace(tables, ranks=ranks)


def test_a_healthy_run_needs_no_advice() -> None:
    found = advised(Plan(ranks=4)).recommendation
    assert found.advice == found.not_advised == ()


def test_a_slow_rank_is_worth_what_it_costs() -> None:
    result = advised(Plan(ranks=4, extra=lambda step, rank: {FORWARD: 60 * MS} if rank == 2 else {}))
    (advice,) = result.advice
    assert (advice.id, advice.finding) == ("straggler", "compute-straggler")
    assert "rank 2" in advice.change
    assert abs(advice.predicted_gain_ns[1] - 60 * MS) < 3 * MS
    assert not advice.command  # nothing that an option of the trainer would change


def test_a_slow_loader_gets_the_fewest_processes_that_do() -> None:
    """150 ms a batch, some 95 ms of other work: two processes are enough."""
    result = advised(Plan(data_ns=55 * MS))
    assert [advice.settings for advice in result.advice] == [{"num_workers": 2}]
    low, likely, high = result.advice[0].predicted_gain_ns
    assert low <= likely <= high
    assert abs(likely - 55 * MS) < 8 * MS


@pytest.mark.parametrize(("cores", "offered"), [(1, []), (2, [2]), (6, [2, 4]), (None, [2, 4, 8, 16])])
def test_no_more_processes_than_cores_that_the_rank_may_use(cores: int | None, offered: list[int]) -> None:
    tables = simulate(Plan(data_ns=55 * MS, trainer={"num_workers": 1}))
    ranks = {
        number: replace(rank, identity=replace(rank.identity, cpus=cores)) for number, rank in tables.ranks.items()
    }
    changes = analyze(replace(tables, ranks=ranks)).what_if.changes
    assert [change.id for change in changes if change.knob == Knob.LOADER] == [
        f"loader-workers-{count}" for count in offered
    ]


def test_a_loader_that_was_seen_at_work_gets_them_too() -> None:
    """Of an attached training, whose micro-batches its steps tell; as few as of the bundled trainer."""
    tables = simulate(Plan(data_ns=55 * MS, micro_batches=2, trainer={"num_workers": None}))
    assert tables.manifest is not None
    seen = replace(tables, manifest=replace(tables.manifest, trainer={}, loader={"num_workers": 1}))
    (advice,) = analyze(seen).recommendation.advice
    assert advice.change == "2 DataLoader workers per rank instead of 1"
    assert not advice.command


def test_at_most_three_the_best_first() -> None:
    result = advised(Plan(units=6, transfer_ns=15 * MS, regather=True, data_ns=60 * MS))
    gains = [advice.predicted_gain_ns[1] for advice in result.advice]
    assert 2 <= len(gains) <= ADVICE.most_changes_advised
    assert gains == sorted(gains, reverse=True)
    assert len({advice.knob for advice in result.advice}) == len(gains)


@pytest.mark.parametrize(("reserved", "fits"), [(10 * GB, True), (138 * GB, False)])
def test_nothing_that_would_not_fit_into_the_devices_memory(reserved: int, fits: bool) -> None:
    """Parameters of 24 GB that stay gathered; 140 GB in all. The times are as of a trace: records alone do not tell
    what a device does."""
    tables = simulate(Plan(units=6, transfer_ns=15 * MS, regather=True, unit_bytes=4 * GB))
    result = analyze(tables)
    found = recommend(result.attribution, with_device(tables, 140 * GB, reserved), result.examination)
    keeps = [advice for advice in found.advice if advice.id == "keep-after-forward"]
    assert bool(keeps) == fits
    for advice in found.advice:
        assert (advice.memory_delta_bytes or 0) <= 140 * GB - reserved
    if fits:
        assert keeps[0].risk == Risk.MEMORY
        assert keeps[0].memory_delta_bytes == 24 * GB
    else:
        assert any("more device memory" in reason for reason in found.not_advised)


@pytest.fixture(scope="module")
def large() -> tuple[Tables, Result]:
    tables = simulate(Plan(units=6, transfer_ns=15 * MS, regather=True, unit_bytes=4 * GB, micro_batches=2))
    return tables, analyze(tables)


@settings(max_examples=examples(10, thorough=80), deadline=None, derandomize=True, database=None)
@given(capacity=st.integers(1, 200), used=st.floats(0, 1))
def test_no_advice_ever_exceeds_the_memory(large: tuple[Tables, Result], capacity: int, used: float) -> None:
    """Whatever the devices have, and however full they are: units of 4 GB, gathered and reduced more than once."""
    tables, result = large
    reserved = round(used * capacity * GB)
    on_device = with_device(tables, capacity * GB, reserved)
    for advice in recommend(result.attribution, on_device, result.examination).advice:
        assert advice.memory_delta_bytes is not None
        assert reserved + max(0, advice.memory_delta_bytes) <= capacity * GB


def test_memory_that_nobody_recorded_is_not_filled() -> None:
    cpu = simulate(Plan())
    device = with_device(cpu, 140 * GB, 100 * GB)
    assert memory_veto(50 * GB, cpu) == ""  # host memory is not what is vetoed
    assert memory_veto(-1, device) == ""
    assert memory_veto(30 * GB, device) == ""
    assert "40,000 MB are free" in memory_veto(38 * GB, device)
    assert "is unknown" in memory_veto(None, device)
    silent = {r: replace(t, steps=tuple(replace(s, memory=None) for s in t.steps)) for r, t in device.ranks.items()}
    bare = replace(device, ranks=silent)
    assert "not recorded" in memory_veto(1, bare)


def test_the_command_changes_what_is_advised_and_nothing_else() -> None:
    before = ["run", "--strategy", "fsdp2", "--prefetch", "1", "--out", "R", "--num-workers=3", "--inject", "slow-wire"]
    after = changed_arguments(before, {"prefetch": 2, "num_workers": 4})
    assert after == ["run", "--strategy", "fsdp2", "--inject", "slow-wire", "--prefetch", "2", "--num-workers", "4"]


def test_what_is_shown_of_a_recorded_run(tmp_path: Path) -> None:
    run = shutil.copytree(SAMPLES / "ddp-slow-loader-all", tmp_path / "run")  # the verdict is written into it
    ended = diag("analyze", run)
    text = " ".join(ended.stdout.split())
    assert "Try first" in text
    assert "DataLoader workers per rank instead of 1" in text
    assert "--num-workers" not in text
    assert "--num-workers 2" in " ".join(diag("analyze", run, "--evidence").stdout.split())
    content = json.loads(diag("analyze", run, "--json").stdout)
    (advice,) = content["advice"]
    assert advice["finding"] == "slow-data-all-ranks"
    assert advice["predicted_gain_ns"] == sorted(advice["predicted_gain_ns"])
    assert 0 <= content["replay_error"] < 0.02


@pytest.mark.parametrize("name", ["ddp-healthy"])
def test_recorded_healthy_runs_need_none(name: str) -> None:
    assert opened_sample(name).advice == ()


def test_gradients_of_ddp_once_a_step_instead_of_in_every_micro_batch() -> None:
    plan = Plan(strategy="ddp", units=2, micro_batches=4, transfer_ns=12 * MS)
    truth = advised(plan).attribution.usable, advised(replace(plan, reduce_every=False)).attribution.usable
    before, after = (sum(step.dur_ns for step in steps) / len(steps) for steps in truth)
    advice = next(a for a in advised(plan).advice if a.id == "sync-last-micro-batch")
    assert advice.predicted_gain_ns[1] == pytest.approx(before - after, rel=0.05)
    assert advice.memory_delta_bytes == 0, "every rank has the whole gradient anyway"
    assert "no_sync" in advice.code["ddp"]

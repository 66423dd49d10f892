"""Any combination of changes: predicted as the replay predicts it, never beyond what is known."""

from __future__ import annotations

from typing import Any

import pytest

from diag.api import Result, analyze
from diag.replay.advice import WhatIf, what_if
from diag.replay.knobs import KNOBS
from diag.replay.predict import Baseline, baseline, gain
from diag.rundir.tables import Tables
from tests.copies import replace
from tests.replay.test_recommend import GB, with_device
from tests.samples import opened_sample
from tests.simulate import MS, Plan, simulate, without_rank

PLAN: dict[str, Any] = {"units": 6, "transfer_ns": 15 * MS, "regather": True}


def with_layers(tables: Tables, layers: int) -> Tables:
    assert tables.manifest is not None
    return replace(tables, manifest=replace(tables.manifest, model={"layers": layers}))


def on_device(result: Result, tables: Tables, capacity: int, reserved: int) -> WhatIf:
    """The same run as if its ranks had so much memory; the times stay."""
    return what_if(
        baseline(result.attribution, result.tables),
        result.attribution,
        with_device(tables, capacity, reserved),
        result.examination,
    )


@pytest.fixture(scope="module")
def result() -> Result:
    return analyze(with_layers(simulate(Plan(**PLAN, data_ns=60 * MS)), 6))


def test_all_that_the_knobs_propose_is_offered(result: Result) -> None:
    offered = {change.id for change in result.what_if.changes}
    case = result.what_if._case
    assert case is not None
    assert offered == {candidate.id for propose in KNOBS.values() for candidate in propose(case)}
    assert {"prefetch-1", "prefetch-2", "keep-after-forward", "loader-workers-2", "wrap-2-blocks"} <= offered


def test_one_change_gains_what_the_replay_says(result: Result) -> None:
    base, case = baseline(result.attribution, result.tables), result.what_if._case
    assert isinstance(base, Baseline)
    assert case is not None
    for candidate in (candidate for propose in KNOBS.values() for candidate in propose(case)):
        prospect = result.what_if.predict([candidate.id])
        assert prospect.gain_ns == gain(base, candidate.mutation).expected_ns_per_step
        assert prospect.memory_delta_bytes == candidate.memory_delta_bytes
        assert prospect.step_ns == base.step_ns


def test_advice_and_what_if_agree(result: Result) -> None:
    assert result.advice
    for advice in result.advice:
        prospect = result.what_if.predict([advice.id])
        assert prospect.gain_ns == advice.predicted_gain_ns
        assert prospect.command == advice.command
        assert set(advice.assumptions) == set(prospect.assumptions)


def test_changes_of_different_things_add_up(result: Result) -> None:
    """A loader and a gather that is left out have nothing to do with each other."""
    keep, load = (result.what_if.predict([name]) for name in ("keep-after-forward", "loader-workers-4"))
    both = result.what_if.predict(["loader-workers-4", "keep-after-forward"])
    assert both.gain_ns[1] == pytest.approx(keep.gain_ns[1] + load.gain_ns[1], rel=0.02)
    assert [change.id for change in both.changes] == ["keep-after-forward", "loader-workers-4"]
    assert both.memory_delta_bytes == keep.memory_delta_bytes
    assert any("as fast as in the measured steps" in told for told in both.assumptions)
    low, likely, high = both.new_step_ns
    assert low <= likely <= high < both.step_ns


def test_changes_of_the_same_thing_do_not(result: Result) -> None:
    """What is gathered ahead for the backward is not gathered at all where it is kept."""
    ahead, keep, both = (
        result.what_if.predict(names)
        for names in (["prefetch-1"], ["keep-after-forward"], ["prefetch-1", "keep-after-forward"])
    )
    assert max(ahead.gain_ns[1], keep.gain_ns[1]) < both.gain_ns[1] < ahead.gain_ns[1] + keep.gain_ns[1]


def test_memory_is_that_of_the_changed_run(result: Result) -> None:
    """Two blocks in one unit: the unit that is gathered ahead is as large, too."""
    alone = result.what_if.predict(["prefetch-1"]).memory_delta_bytes
    wrapped = result.what_if.predict(["wrap-2-blocks"]).memory_delta_bytes
    both = result.what_if.predict(["wrap-2-blocks", "prefetch-1"]).memory_delta_bytes
    assert alone == 4_000_000
    assert wrapped is not None
    assert both == wrapped + 8_000_000


def test_nothing_chosen_changes_nothing(result: Result) -> None:
    prospect = result.what_if.predict([])
    assert (prospect.gain_ns, prospect.memory_delta_bytes, prospect.refused) == ((0, 0, 0), 0, "")
    assert prospect.new_step_ns == (prospect.step_ns,) * 3


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (["prefetch-1", "prefetch-2"], "two of the changes"),
        (["no-such-change"], "not offered for this run: no-such-change"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(result: Result, chosen: list[str], reason: str) -> None:
    prospect = result.what_if.predict(chosen)
    assert reason in prospect.refused
    assert prospect.gain_ns == (0, 0, 0)


def test_what_does_not_fit_together_is_vetoed() -> None:
    """Each fits alone: 24 GB that stay gathered, 4 GB that are gathered ahead; both do not."""
    tables = simulate(Plan(**PLAN, unit_bytes=4 * GB))
    result = analyze(tables)
    offered = on_device(result, tables, 140 * GB, 106 * GB)
    keep, ahead = offered.predict(["keep-after-forward"]), offered.predict(["prefetch-1"])
    assert (keep.memory_veto, ahead.memory_veto) == ("", "")
    both = offered.predict(["keep-after-forward", "prefetch-1"])
    assert both.memory_delta_bytes == 28 * GB
    assert both.headroom_bytes == 34 * GB
    assert "34,000 MB are free" in both.memory_veto
    assert both.gain_ns[1] > 0  # what it would be worth is said all the same


def test_a_run_that_cannot_be_replayed_says_why() -> None:
    result = analyze(without_rank(simulate(Plan(ranks=3, units=6, transfer_ns=15 * MS)), 1))
    assert result.what_if.changes == ()
    assert "rank 1" in result.what_if.refused
    assert result.what_if.predict(["prefetch-1"]).refused == result.what_if.refused
    assert result.cost_curves == ()


def test_a_healthy_run_has_nothing_to_choose() -> None:
    found = analyze(simulate(Plan(ranks=4))).what_if
    assert (found.changes, found.refused) == ((), "")


def test_the_command_sets_all_of_them() -> None:
    result = opened_sample("fsdp2-not-overlapped")
    offered = {change.knob: change.id for change in result.what_if.changes}
    assert {"prefetch", "reshard after forward"} <= set(offered)
    prospect = result.what_if.predict([offered["prefetch"], offered["reshard after forward"]])
    assert prospect.command.startswith("diag run ")
    assert "--reshard-after-forward no" in prospect.command
    assert "--prefetch" in prospect.command
    assert "--out" not in prospect.command
    assert len(prospect.code) == 2

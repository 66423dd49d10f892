"""Every piece of the critical path has one cost or none, so costs and the rest add up to the path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.account.attribute import attribute
from diag.account.scheduling import RankScheduling, Scheduling
from diag.api import analyze
from diag.diagnoses.cost_rows import Side
from diag.diagnoses.costs import OF_WAITING, ON_PATH, Cost, Label, cost_of
from diag.diagnoses.registry import DIAGNOSES
from diag.diagnoses.relabel import relabelled
from diag.diagnoses.shares import Shares, noise_of, step_parts
from diag.diagnoses.timelines import shares_of, shares_of_steps
from diag.model.accounts import Attribution, StepAccount, StepAccounts
from diag.model.steps import STARTUP_DETAILS, Blame, CriticalPath, Detail, Kind
from diag.rundir.sharing import Sharing, UsedGpu
from tests.simulate import MS, Plan, simulate

pieces = st.tuples(st.integers(0, 10**12), st.sampled_from(Kind), st.sampled_from(Detail))
blames = st.builds(
    Blame, st.integers(0, 3), st.sampled_from([kind for kind in Kind if kind != Kind.COMM]), st.sampled_from(Detail),
    st.integers(1, 10**12),
)  # fmt: skip


def step_of(pieces: list[tuple[int, Kind, Detail]], blames: list[Blame], number: int = 0) -> StepAccount:
    edges = np.cumsum([0, *(ns for ns, _, _ in pieces)])
    kind, detail = (np.array([piece[at] for piece in pieces], dtype=np.int8) for at in (1, 2))
    nobody = np.zeros(len(pieces), dtype=np.int64)
    path = CriticalPath(nobody, edges[:-1], edges[1:], kind, detail, nobody - 1, ())
    waited = sum(blame.ns for blame in blames)
    return StepAccount(number, path.dur_ns, (), path, tuple(blames), waited_ns=waited, once_ns=waited // 2)


def add_up(shares: Shares) -> None:
    """No row is negative, and those of the path, with and without a cost, are the judged time."""
    path = np.zeros_like(shares.dur_ns)
    for row in shares.rows:
        assert (row.ns >= 0).all(), row
        if row.side == Side.PATH:
            path += row.ns
    assert path == pytest.approx(shares.dur_ns, rel=1e-12, abs=1e-3)


drawn_steps = st.lists(st.tuples(st.lists(pieces, min_size=1), st.lists(blames, max_size=4)), min_size=1, max_size=8)


@given(drawn_steps, st.booleans())
def test_costs_and_the_rest_are_the_path(drawn: list[tuple[list, list]], on_device: bool) -> None:  # type: ignore[type-arg]
    steps = [step_of(*parts, number=at) for at, parts in enumerate(drawn)]
    shares = shares_of_steps(StepAccounts.of(steps), (0, 1, 2, 3), on_device)
    add_up(shares)
    startup = [sum(step.path.total(Kind.IDLE, detail) for detail in STARTUP_DETAILS) for step in steps]
    assert shares.dur_ns.tolist() == [
        step.dur_ns + int(step.blames.ns[step.blames.detail == Detail.UNKNOWN].sum()) - outside
        for step, outside in zip(steps, startup, strict=True)
    ]
    for step, at in zip(steps, range(len(steps)), strict=True):
        assert sum(ns[at] for by_rank in shares.blame_ns.values() for ns in by_rank.values()) == step.waited_ns


def scheduled(draw: st.DrawFn, steps: int) -> RankScheduling:
    def series() -> np.ndarray:  # type: ignore[type-arg]
        return np.array(draw(st.lists(st.integers(0, 10**12), min_size=steps, max_size=steps)), dtype=np.float64)

    fields = ("queued_ns", "loading_ns", "communicating_ns", "between_ns", "blocked_ns", "paused_ns", "frozen_ns")
    spent = {name: series() for name in (*fields, "outside_backward_ns")}
    after = {name: spent[name] / 2 for name in ("queued_ns", "loading_ns", "blocked_ns", "paused_ns")}
    return RankScheduling(**spent, blocked_in={}, after_ns=after, meets=np.ones(steps, dtype=np.bool_))


SHARED = Sharing((UsedGpu((1, 2), "H200"),))


@given(st.data(), drawn_steps, st.booleans(), st.booleans(), st.sampled_from([Sharing(), SHARED]))
def test_what_is_labelled_anew_is_still_the_path(
    data: st.DataObject,
    drawn: list[tuple[list, list]],
    on_device: bool,
    alone: bool,  # type: ignore[type-arg]
    sharing: Sharing,
) -> None:
    """Whatever the scheduler did, time keeps its activity and its rank, and the waiting for a rank stays as long, but
    for what was taken for a slow transfer."""
    steps = [step_of(*parts, number=at) for at, parts in enumerate(drawn)]
    before = shares_of_steps(StepAccounts.of(steps), (0, 1, 2, 3), on_device)
    ranks = {rank: data.draw(st.composite(scheduled)(len(steps))) for rank in range(4)}
    attribution = Attribution(tuple(steps), (0, 1, 2, 3), 0, True, True, ())
    after = relabelled(before, Scheduling(before.numbers, ranks), attribution, alone, sharing)
    add_up(after)
    if not any(row.cost == Cost.SHARING and row.kind == Kind.IDLE for row in after.rows):
        assert after.idle_ns == pytest.approx(before.idle_ns, rel=1e-12, abs=1e-3)
    assert sharing.ranks or Cost.SHARING not in after.cost_ns
    assert not sharing.ranks or not after.cost(Cost.COMM).any()
    if not alone:
        for key, ns in before.blame_detail_ns(before.ranks).items():
            assert after.blame_detail_ns(after.ranks)[key] == pytest.approx(ns, rel=1e-12, abs=1e-3)


@given(st.lists(pieces, min_size=1), st.lists(blames, max_size=4), st.booleans())
def test_a_step_costs_the_same_alone_and_among_others(
    pieces: list[tuple[int, Kind, Detail]], blames: list[Blame], on_device: bool
) -> None:
    step, other = step_of(pieces, blames), step_of([(7, Kind.COMM, Detail.NONE)], [], number=1)
    alone, among = (
        shares_of_steps(StepAccounts.of(steps), (0, 1, 2, 3), on_device) for steps in ([step], [other, step])
    )
    assert {cost: ns[0] for cost, ns in alone.cost_ns.items()} == {
        cost: ns[1] for cost, ns in among.cost_ns.items() if ns[1] or cost in alone.cost_ns
    }


@pytest.mark.parametrize("plan", [Plan(ranks=3), Plan(ranks=2, data_ns=30 * MS), Plan(ranks=4, transfer_ns=9 * MS)])
def test_every_account_of_a_run_has_rows_that_are_its_steps(plan: Plan) -> None:
    examination = analyze(simulate(plan)).examination
    assert examination.phases is not None
    for shares in (examination.shares, examination.phases.shares):
        add_up(shares)


@pytest.mark.parametrize("plan", [Plan(ranks=3), Plan(ranks=2, steps=12)])
def test_the_parts_of_a_simulated_step_are_the_step(plan: Plan) -> None:
    tables = simulate(plan)
    shares = shares_of(attribute(tables), tables.on_device, noise_of(tables))
    assert sum(step_parts(shares).values()) == pytest.approx(shares.dur_ns)


def test_every_blame_has_a_cost() -> None:
    for on_device in (False, True):
        for kind in Kind:
            for detail in Detail:
                if kind != Kind.COMM:  # waiting of one's own is nobody's fault
                    assert isinstance(cost_of(kind, detail, on_device), Cost)


@pytest.mark.parametrize("labels", [ON_PATH, OF_WAITING])
def test_no_two_costs_claim_the_same_pieces(labels: list[tuple[Label, Cost]]) -> None:
    """Labels with details come before labels without; among each, their order decides nothing."""
    for detailed in (False, True):
        claimed: set[tuple[Kind, Detail]] = set()
        for label, _ in labels:
            if bool(label.details) == detailed:
                pieces = {
                    (kind, detail)
                    for kind in (Kind if label.kind is None else (label.kind,))
                    for detail in label.details or Detail
                }
                assert not claimed & pieces
                claimed |= pieces


def test_a_diagnosis_looks_for_every_cost() -> None:
    assert {cost for diagnosis in DIAGNOSES for cost in diagnosis.costs} == set(Cost)

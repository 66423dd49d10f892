"""Every piece of the critical path has one cost or none, so costs and the rest add up to the path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.account.attribute import attribute
from diag.diagnoses import DIAGNOSES
from diag.diagnoses.costs import OF_WAITING, ON_PATH, Cost, Label, cost_of, costs_of, on_path
from diag.diagnoses.shares import noise_of, shares_of, step_parts
from diag.model.steps import Blame, CriticalPath, Detail, Kind, StepAccount
from tests.simulate import Plan, simulate

pieces = st.tuples(st.integers(0, 10**12), st.sampled_from(Kind), st.sampled_from(Detail))
blames = st.builds(
    Blame, st.integers(0, 3), st.sampled_from([kind for kind in Kind if kind != Kind.COMM]), st.sampled_from(Detail),
    st.integers(1, 10**12),
)  # fmt: skip


def step_of(pieces: list[tuple[int, Kind, Detail]], blames: list[Blame]) -> StepAccount:
    edges = np.cumsum([0, *(ns for ns, _, _ in pieces)])
    kind, detail = (np.array([piece[at] for piece in pieces], dtype=np.int8) for at in (1, 2))
    nobody = np.zeros(len(pieces), dtype=np.int64)
    path = CriticalPath(nobody, edges[:-1], edges[1:], kind, detail, nobody - 1, ())
    waited = sum(blame.ns for blame in blames)
    return StepAccount(0, path.dur_ns, (), path, tuple(blames), waited_ns=waited, once_ns=waited // 2)


@given(st.lists(st.tuples(st.lists(pieces, min_size=1), st.lists(blames, max_size=4)), min_size=1), st.booleans())
def test_costs_and_the_rest_are_the_path(drawn: list[tuple[list, list]], on_device: bool) -> None:  # type: ignore[type-arg]
    steps = [step_of(*parts) for parts in drawn]
    costs, rest = on_path(steps, on_device)
    assert (sum(costs.values()) + rest).tolist() == [step.path.dur_ns for step in steps]
    charged = costs_of(steps, on_device)
    assert all((ns >= 0).all() for ns in charged.values())
    for at, step in enumerate(steps):
        assert sum(int(ns[at]) for ns in charged.values()) <= step.path.dur_ns + step.unexplained_ns


@given(st.lists(pieces, min_size=1), st.lists(blames, max_size=4), st.booleans())
def test_a_step_costs_the_same_alone_and_among_others(
    pieces: list[tuple[int, Kind, Detail]], blames: list[Blame], on_device: bool
) -> None:
    step, other = step_of(pieces, blames), step_of([(7, Kind.COMM, Detail.NONE)], [])
    alone, among = costs_of([step], on_device), costs_of([other, step], on_device)
    assert {cost: int(ns[0]) for cost, ns in alone.items()} == {cost: int(ns[1]) for cost, ns in among.items() if ns[1]}


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
                    assert isinstance(cost_of(Blame(0, kind, detail, 1), on_device), Cost)


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

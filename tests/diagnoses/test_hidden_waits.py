"""Waiting for a late rank that hides behind computation is a cost of the rank, as far as the replay is sure of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diag.account.attribute import attribute
from diag.api import open_run
from diag.collectors.records import FORWARD
from diag.diagnoses.costs import Cost
from diag.diagnoses.hidden_waits import hidden_ns, with_hidden_waits
from diag.diagnoses.shares import Shares, noise_of
from diag.diagnoses.timelines import shares_of
from diag.tables.evidence import number
from tests.bench.grid.cases import score
from tests.diagnoses.test_costs import add_up
from tests.simulate import MS, Plan, simulate


@pytest.fixture(scope="module")
def slow_rank() -> Shares:
    tables = simulate(Plan(ranks=4, extra=lambda step, rank: {FORWARD: 30 * MS} if rank == 2 else {}))
    return shares_of(attribute(tables), tables.on_device, noise_of(tables))


def test_what_the_replay_surely_saves_beyond_the_path_is_a_cost_of_the_rank(slow_rank: Shares) -> None:
    asked = []

    def gain(ranks: tuple[int, ...]) -> tuple[float, float]:
        asked.append(ranks)
        return charged + 4 * MS, charged + 5 * MS

    charged = float(slow_rank.charged(Cost.STRAGGLER, (2,)).mean())
    shares = with_hidden_waits(slow_rank, gain)
    assert asked == [(2,)]
    add_up(shares)
    grown = shares.cost(Cost.STRAGGLER) - slow_rank.cost(Cost.STRAGGLER)
    assert grown == pytest.approx(np.full(len(shares.numbers), 5 * MS))
    assert float(shares.charged(Cost.STRAGGLER, (2,)).mean()) == pytest.approx(charged + 5 * MS)
    assert {rank: ns.mean() for rank, ns in hidden_ns(shares).items()} == {2: pytest.approx(5 * MS)}
    assert hidden_ns(slow_rank) == {}
    others = set(shares.cost_ns) | set(slow_rank.cost_ns) - {Cost.STRAGGLER}
    assert all((shares.cost(of) == slow_rank.cost(of)).all() for of in others - {Cost.STRAGGLER})


@pytest.mark.parametrize("least", [None, -1.0, 0.0])
def test_what_it_is_not_sure_of_changes_nothing(slow_rank: Shares, least: float | None) -> None:
    charged = float(slow_rank.charged(Cost.STRAGGLER, (2,)).mean())
    predicted = None if least is None else (charged + least, charged + 50 * MS)
    assert with_hidden_waits(slow_rank, lambda ranks: predicted) is slow_rank


def test_without_a_rank_that_is_always_late_nothing_is_replayed() -> None:
    tables = simulate(Plan(ranks=4))
    shares = shares_of(attribute(tables), tables.on_device, noise_of(tables))
    assert with_hidden_waits(shares, lambda ranks: pytest.fail("replayed")) is shares


def test_a_slow_rank_whose_peers_overlap_its_lateness_costs_what_it_takes(tmp_path: Path) -> None:
    """FSDP2 with prefetch: the others gather ahead while they wait."""
    scored = score("heldout/S3-backward/7", keep=tmp_path, replays=False)
    truth = dict(scored.truth.shares)["compute"]
    assert scored.verdict_right
    assert scored.cause_right
    assert scored.said.share == pytest.approx(truth, abs=0.02)
    result = open_run(next(tmp_path.iterdir()))
    finding = next(finding for finding in result.examination.findings if finding.id == "compute-straggler")
    hidden = next(item for item in finding.evidence if "hides behind computation" in item.filter)
    assert hidden.value > 0
    assert hidden.query is not None
    value = number(hidden.query, result.costs)
    assert value is not None
    assert value / MS == pytest.approx(hidden.value, abs=0.001)

"""What a profiler window tells about a rank that is late: only where the rank was late in it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from diag.diagnoses.ids import COMPUTE_STRAGGLER
from diag.diagnoses.shares import Shares
from diag.diagnoses.straggler import find
from diag.diagnoses.subject import Subject
from tests.samples import opened_sample


def costing(shares: Shares, times: float) -> Shares:
    return replace(shares, rows=tuple(replace(row, ns=times * row.ns) for row in shares.rows))


@pytest.mark.parametrize(("times", "told"), [(1, True), (10, False)])
def test_a_window_in_which_the_rank_was_hardly_late_tells_nothing(times: float, told: bool) -> None:
    result = opened_sample("ddp-straggler-rank0")
    shares = costing(result.examination.shares, times)
    found = find(Subject(result.attribution, result.tables, shares))
    straggler = next(finding for finding in found if finding.id == COMPUTE_STRAGGLER)
    assert straggler.outside_of_work == told
    assert any("inside operators" in item.filter for item in straggler.evidence) == told

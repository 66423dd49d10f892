"""HTA and we on real traces: equal within 0.1 %, or different for a reason that closes the gap.

These need HolisticTraceAnalysis, which `make test` installs with the development tools; elsewhere they are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import find_jobs, open_job, open_run
from diag.crosscheck.analyses import critical_path, cross_check, kernel_sequences
from diag.crosscheck.model import AGREE_PERCENT, CrossCheck
from tests.bench.hta_differences import Explained, explain

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FOLDERS = sorted({path.parent.name for path in TRACES.glob("*/*.json.gz")})

pytest.importorskip("hta", reason="the extra diag[hta] is not installed")
pytestmark = pytest.mark.skipif(not FOLDERS, reason="no ../shared/traces beside this checkout")


def assert_explained(check: CrossCheck) -> None:
    for rank in check.ranks:
        for item in rank.comparisons:
            assert isinstance(item, Explained)
            assert item.explained, (rank.path, item)
            assert item.agrees or abs(item.residual) <= AGREE_PERCENT


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.matrix
def test_every_number_is_equal_or_its_difference_explained(folder: str) -> None:
    for job in find_jobs([TRACES / folder]).jobs:
        run = open_job(job)
        check = explain(cross_check(run), run)
        assert_explained(check)
        assert all(rank.comparisons or "no device event" in rank.error for rank in check.ranks)


def test_the_critical_path_of_one_rank() -> None:
    """Rank 3 of DLRM waits for its all-to-all, of whose kernel HTA puts 6.1 of the path's 7.8 ms on the path."""
    path = critical_path(open_run(TRACES / "dlrm_v100_8ranks"), rank=3)
    assert (path.error, path.rank, path.step) == ("", 3, 10)
    assert path.shares[0].kind == "communication kernel"
    assert path.shares[0].ns == pytest.approx(6.13e6, rel=0.01)
    assert sum(share.ns for share in path.shares) == path.dur_ns
    assert "SendRecv" in path.longest[0].name


def test_kernel_sequences_of_a_trace_in_nanoseconds() -> None:
    """HTA raises here unless its rounding is off."""
    found = kernel_sequences(open_run(TRACES / "ddp_a100_1rank"), length=2)
    assert (found.error, found.rank) == ("", 0)
    counts = [item.count for item in found.sequences]
    assert counts == sorted(counts, reverse=True)
    reducing = next(item for item in found.sequences if "AccumulateGrad" in item.operator)
    assert any("AllReduce" in kernel for kernel in reducing.kernels)
    assert reducing.device_ns == pytest.approx(46.8e6, rel=0.01)

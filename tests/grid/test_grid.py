"""A cross-section of the grid (`python -m tests.bench.grid`): what diag must not get wrong again."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from tests.bench.grid.cases import score
from tests.bench.grid.gpu.engine import MS
from tests.bench.grid.gpu.job import Fault, Job, Planted
from tests.bench.grid.gpu.kineto import write_traces
from tests.bench.grid.gpu.simulate import simulate
from tests.bench.grid.report import wrong
from tests.copies import replace
from tests.matrix import matrix

ANSWERED = (
    "tuning/H0-ddp/0", "tuning/H0-fsdp2/0", "tuning/H0-fsdp2-no-reshard/0", "tuning/H0-hsdp/0",
    "tuning/D4-hidden-loader/0", "tuning/N0-hidden-network/0", "tuning/D1-data-all/3", "tuning/D2-data-one/3",
    "tuning/D3-data-bursty/3", "tuning/N1-network/3", "tuning/N2-link/3", "tuning/W1-per-linear/10",
    "tuning/W2-root-only/3", "tuning/P1-no-prefetch/3", "tuning/P1-sync-before-gather/3", "tuning/S1-forward/3",
    "tuning/S3-backward/3", "tuning/S2-rotating/3", "tuning/L1-launch-bound/3", "tuning/L2-item/3",
    "tuning/K1-checkpoint/3", "tuning/X0-copies/3", "tuning/M1-allocator/3", "tuning/Q1-clocks-healthy/3",
    "tuning/Q1-clocks-S3/3", "tuning/Q1-clocks-N1/3", "tuning/Q2-missing-other/3",
    "tuning/H0-jitter/1", "tuning/H0-recorded/0", "tuning/B1-one-bucket/3", "tuning/G1-sync-every/3",
    "tuning/R1-regather/2", "tuning/R3-reduce-stall/3", "tuning/N3-low-bandwidth/3", "tuning/N1-sockets/3",
    "tuning/S2-longest-batch/2", "tuning/S4-throttled/1", "tuning/S5-node/2", "tuning/U1-low-mfu/2",
    "tuning/X1-D2-N1-1:1/0", "tuning/X1-S1-D1-1:1/6", "tuning/Q2-missing-culprit/3",
    "tuning/rec-H0/0", "tuning/rec-D1-data-all/3", "tuning/rec-D2-data-one/3", "tuning/rec-D3-data-bursty/3",
    "tuning/rec-N1-network/3", "tuning/rec-N2-link/3", "tuning/rec-S1-forward/3", "tuning/rec-S3-backward/3",
    "tuning/rec-S2-rotating/3", "tuning/rec-C1-gc-one/3", "tuning/rec-K1-checkpoint/3",
    "tuning/insp-S1-forward/3", "tuning/insp-H0-hsdp/1", "tuning/insp-K1-checkpoint-one/3", "tuning/insp-S2-rotating/3",
)  # fmt: skip


@pytest.mark.parametrize("case", matrix(ANSWERED, ANSWERED[::3]))
def test_the_first_answer_is_right(case: str) -> None:
    found = score(case, replays=False)
    assert found.first_right, wrong([found])
    assert not found.false_alarm


@pytest.mark.parametrize("kind", [None, Planted.BACKWARD, Planted.NETWORK])
def test_clocks_change_no_verdict(kind: Planted | None, tmp_path: Path) -> None:
    """Two nodes; one clock is 50 ms ahead and gains 20 ppm, then five hours behind."""
    amount = 900 if kind == Planted.NETWORK else 40 * MS
    faults = () if kind is None else (Fault(kind, amount, () if kind == Planted.NETWORK else (2,)),)
    job = Job(world=4, per_node=2, steps=6, faults=faults)
    ranks = simulate(job, keep=True).ranks
    said = []
    for offset_ns, ppm in ((0, 0.0), (50 * MS, 20.0), (-18_000_000 * MS, -20.0)):
        shown = replace(job, offset_ns=(0, offset_ns), drift_ppm=(0.0, ppm))
        folder = tmp_path / str(offset_ns)
        write_traces(shown, ranks, folder)
        verdict = open_run(folder).verdict
        said.append((verdict.bottleneck, verdict.severity, verdict.cause, verdict.culprit_ranks))
    assert said[0] == said[1] == said[2]


def test_one_case_is_always_the_same_case() -> None:
    assert score("tuning/D2-data-one/3") == score("tuning/D2-data-one/3")
    assert score("tuning/D2-data-one/3").truth != score("tuning/D2-data-one/3", seed=1).truth

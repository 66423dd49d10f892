"""Ranks of a process group are not ranks of the job: nobody is accused by a number of the other kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

DUPLICATE = "[rank{}]: Duplicate GPU detected : rank {} and rank {} both on CUDA device 41000\n"
FINGERPRINT = (
    "CollectiveFingerPrint(SequenceNumber=12, OpType={}, TensorShape=[10], TensorDtypes=Float, TensorDeviceTypes=x)"
)
MISMATCH = (
    "[rank{}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: "
    + FINGERPRINT
    + ", but Rank {} is running collective: "
    + FINGERPRINT
    + ".Collectives differ in the following aspects: \t Op type: x vs y\n"
)
STORE = (
    "[rank{}]: RuntimeError: [{}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
    "key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms\n"
)
BARRIER = "[rank{}]: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 60000 ms\n"
CAME = "[rank{}]: Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv\n"


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


def who(answer: Triage) -> list[int | str]:
    return [culprit.peer if culprit.rank is None else culprit.rank for culprit in answer.culprits]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([(5, 1, 0), (1, 0, 1)], [1, 5]),
        ([(5, 1, 0)], [5, "rank 0 of its group"]),
        ([(6, 2, 3)], [6, "rank 3 of its group"]),
        ([(3, 3, 0), (0, 0, 3)], [0, 3]),
        ([(3, 3, 1)], [1, 3]),  # three members are before it, and three ranks
        ([(1, 1, 0), (5, 1, 0), (0, 0, 1), (4, 0, 1)], [0, 1, 4, 5]),  # two groups
    ],
)
def test_two_ranks_on_one_gpu(tmp_path: Path, lines: list[tuple[int, int, int]], named: list[int | str]) -> None:
    answer = of(tmp_path, "".join(DUPLICATE.format(*line) for line in lines))
    assert answer.fault_class == "duplicate_gpu"
    assert who(answer) == named


def test_ranks_that_call_different_collectives(tmp_path: Path) -> None:
    one = MISMATCH.format(6, 1, "ALLREDUCE", 0, "BROADCAST")
    assert who(of(tmp_path, one)) == [6, "rank 0 of its group"]
    assert who(of(tmp_path, one + MISMATCH.format(2, 0, "BROADCAST", 1, "ALLREDUCE"))) == [2, 6]
    assert who(of(tmp_path, one.replace("rank6", "rank1"))) == [0, 1]


def test_the_rank_that_publishes_an_id(tmp_path: Path) -> None:
    assert who(of(tmp_path, STORE.format(5, 1))) == []
    assert who(of(tmp_path, STORE.format(1, 1))) == [0]


def test_the_rank_that_does_not_come_to_a_barrier(tmp_path: Path) -> None:
    assert who(of(tmp_path, BARRIER.format(4))) == ["rank 1 of its group"]
    answer = of(tmp_path, BARRIER.format(4) + CAME.format(6, 2))
    assert (who(answer), answer.victims) == (["rank 1 of its group"], (4, 6))
    assert who(of(tmp_path, BARRIER.format(0))) == [1]

"""Which ranks use one GPU: by its id, or by how many processes the driver counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from diag.collectors.records import MachineRecord, RankRecord
from diag.rundir.sharing import Sharing, sharing_by

H200 = "NVIDIA H200"


def rank_on(
    rank: int, uuid: str = "", index: int | None = 0, name: str = H200, host: str = "a", namespace: str = "pid:[1]"
) -> RankRecord:
    return RankRecord(
        rank, rank, 8, host, 100 + rank, "boot", 0, 0, name, index, pid_namespace=namespace, device_uuid=uuid
    )


def sharing(ranks: Sequence[RankRecord], *readings: Mapping[str, int]) -> Sharing:
    """``readings``: how many processes the driver counted on each GPU, one after the other."""
    lines = [
        MachineRecord(at, {f"gpu.GPU-{uuid}.processes": count for uuid, count in reading.items()}, whole=not at)
        for at, reading in enumerate(readings)
    ]
    return sharing_by({rank.rank: rank for rank in ranks}, {ranks[0].rank: lines} if lines else None)


def shared(found: Sharing) -> list[tuple[int, ...]]:
    return [gpu.ranks for gpu in found.shared]


def test_ranks_that_report_one_id_share_a_gpu() -> None:
    ranks = [rank_on(0, "x"), rank_on(1, "x", host="another container"), rank_on(2, "y", 1), rank_on(3, "z", 2)]
    found = sharing(ranks)
    assert shared(found) == [(0, 1)]
    assert found.ranks == {0, 1}
    assert all(gpu.by_id for gpu in found.gpus)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "cpu"])
def test_parts_of_a_gpu_and_cpus_are_nothing_to_share(name: str) -> None:
    assert sharing([rank_on(0, "x", name=name), rank_on(1, "x", name=name)]) == Sharing()


@pytest.mark.parametrize(
    ("indices", "counted", "expected"),
    [
        ((0, 0), {"x": 2}, [(0, 1)]),
        ((0, 0), {"x": 2, "unused": 0}, [(0, 1)]),
        ((0, 0, 1, 1), {"x": 2, "y": 2}, [(0, 1), (2, 3)]),
        ((0, 0), {"x": 1, "y": 1}, []),  # CUDA_VISIBLE_DEVICES gives each rank its own GPU, which has the index 0
        ((0, 0), {"x": 1}, []),  # rank 1 has not begun
        ((0, 1), {"x": 2}, []),
        ((None, None), {"x": 2}, []),
        ((0, 0), {}, []),
    ],
)
def test_without_ids_the_driver_s_counts_say_it(
    indices: Sequence[int | None], counted: Mapping[str, int], expected: list[tuple[int, ...]]
) -> None:
    found = sharing([rank_on(rank, index=index) for rank, index in enumerate(indices)], counted)
    assert shared(found) == expected
    assert not any(gpu.by_id for gpu in found.gpus)


def test_in_containers_of_their_own_an_index_says_nothing() -> None:
    assert not sharing([rank_on(0), rank_on(1, namespace="pid:[2]")], {"x": 2}).gpus
    assert not sharing([rank_on(0), rank_on(1, host="b")], {"x": 2}).gpus


def test_processes_beyond_the_ranks_may_be_ranks_that_use_another_gpu() -> None:
    """Two more on the GPU of rank 0: one may be rank 1, which left a context there. Five more cannot be ranks."""
    ranks = [rank_on(0, "x"), rank_on(1, "y", 1), rank_on(2, "z", 2)]
    few, many = sharing(ranks, {"x": 3, "y": 1}), sharing(ranks, {"x": 6, "y": 1})
    assert [(gpu.others, gpu.strangers) for gpu in few.gpus] == [(2, 0), (0, 0), (0, 0)]
    assert [(gpu.others, gpu.strangers) for gpu in many.gpus] == [(5, 3), (0, 0), (0, 0)]
    assert (few.not_alone, many.not_alone) == (frozenset(), {0})


def test_a_process_that_came_for_a_moment_does_not_count() -> None:
    ranks = [rank_on(0, "x"), rank_on(1, "y", 1)]
    (first, _) = sharing(ranks, {"x": 1}, {"x": 9}, {"x": 1}, {}).gpus
    assert (first.processes, first.others) == (1, 0)

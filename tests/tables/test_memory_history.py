"""What was live at each moment of a trace and of a snapshot, by category; and what would have made room for an
allocation that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_memory_snapshots, open_run
from diag.collectors.layout import RunLayout
from diag.ended.out_of_memory import out_of_memory_lines
from diag.model.memory import Category
from diag.tables.policy import MEMORY_GROWTH
from diag.tables.snapshots import SnapshotAccount
from diag.tables.would_fit import lower_peaks, would_fit
from diag.traces.memory_snapshots import Stack, _stack
from tests.allocator import BACKWARD, CPP, FORWARD, MIB, OPTIMIZER, Allocator, frame, train
from tests.app.runs import write_run
from tests.tables.test_memory_curve import MB, trained

TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1784)
MINE = frame("main", "/home/me/train.py", 40)
RECOMPUTED = [*CPP, CALL, frame("recompute_fn", f"{TORCH}/utils/checkpoint.py"), *BACKWARD[len(CPP) :]]
GATHERED = [
    CPP[0], frame("all_gather_into_tensor", f"{TORCH}/distributed/distributed_c10d.py"),
    frame("foreach_all_gather", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py"), CALL, MINE,
]  # fmt: skip
INSIDE_OF_FSDP1 = [*CPP, CALL, frame("forward", f"{TORCH}/distributed/fsdp/fully_sharded_data_parallel.py"), CALL, MINE]
SHARDED = [CPP[0], frame("_init_sharded_param", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param.py"), MINE]


def account(path: Path) -> SnapshotAccount:
    (found,) = open_memory_snapshots(path).accounts
    return found


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        (FORWARD, Category.ACTIVATIONS),
        (INSIDE_OF_FSDP1, Category.ACTIVATIONS),
        (RECOMPUTED, Category.ACTIVATIONS),
        (BACKWARD, Category.GRADIENTS),
        (OPTIMIZER, Category.OPTIMIZER),
        (GATHERED, Category.COMMUNICATION),
        ([frame("c10d::Reducer::initialize_buckets", "??"), MINE], Category.COMMUNICATION),
        ([CPP[0], frame("_apply", f"{TORCH}/nn/modules/module.py"), MINE], Category.PARAMETERS),
        (SHARDED, Category.PARAMETERS),
        ([CPP[0], MINE], Category.OTHER),
    ],
)
def test_a_stack_says_what_its_memory_is_for(frames: list[dict[str, object]], category: Category) -> None:
    assert _stack(frames).category == category


def test_memory_without_a_stack_is_from_before() -> None:
    assert Stack().category == Category.BEFORE


@pytest.mark.parametrize("history", [1_000_000, 9, 1])
def test_the_categories_of_a_snapshot_sum_to_its_curve(tmp_path: Path, history: int) -> None:
    allocator = train(extra=6 * MIB)
    allocator.history = history
    found = account(allocator.write(tmp_path / "a.pickle"))
    assert found.history is not None
    assert found.history.allocated.max() == found.peak_allocated == found.history.allocated[found.history.peak]
    assert found.history.allocated[-1] == found.allocated[-1]
    assert (found.history.bytes >= 0).all()


def test_many_events_and_stacks_are_few_moments_and_places(tmp_path: Path) -> None:
    allocator = Allocator()
    places = [[*CPP, frame("forward", f"/home/me/layer{number}.py")] for number in range(100)]
    for number, place in enumerate(places * 20):
        allocator.free(allocator.alloc(MIB + number, place))
    kept = [allocator.alloc(2 * MIB, place) for place in places]
    found = account(allocator.write(tmp_path / "a.pickle")).history
    assert found is not None
    assert len(found.at) <= MEMORY_GROWTH.most_moments + 1
    assert len(found.origins) == MEMORY_GROWTH.most_origins + 1
    assert found.origins[-1].place == "52 other places"
    assert found.allocated[-1] == len(kept) * 2 * MIB
    assert found.count[:, -1].sum() == len(kept)


def test_the_blocks_of_each_segment(tmp_path: Path) -> None:
    allocator = Allocator()
    first = [allocator.alloc(size, FORWARD) for size in (MIB, 2 * MIB, MIB)]
    allocator.free(first[1])
    segments = account(allocator.write(tmp_path / "a.pickle")).blocks
    assert [segment.size for segment in segments] == [2 * MIB] * 2
    assert [[(b.offset, b.size, b.category) for b in segment.blocks] for segment in segments] == [
        [(0, MIB, Category.ACTIVATIONS), (MIB, MIB, Category.ACTIVATIONS)],
        [(0, 2 * MIB, None)],
    ]
    assert segments[1].free == 2 * MIB


def test_the_categories_of_a_trace(tmp_path: Path) -> None:
    trained().write(tmp_path, "rank0.json")
    (curve,) = open_run(tmp_path).memory_curves
    found = curve.history
    assert found is not None
    assert {category: int(found.of_category(category)[found.peak]) // MB for category in found.categories} == {
        Category.BEFORE: 100,
        Category.OPTIMIZER: 20,
        Category.GRADIENTS: 30,
        Category.ACTIVATIONS: 40,
    }
    assert found.allocated.max() == curve.peak_allocated
    assert "aten::mm in block.0" in {origin.place for origin in found.origins}


# -- an allocation that failed -----------------------------------------------------------------------------------------


def failed(folder: Path, requested: int, free: int) -> SnapshotAccount:
    """24 MB of activations are live, 8 MB of optimizer states; 8 MB are free in pieces of 2 MB."""
    allocator = Allocator()
    allocator.alloc(8 * MIB, OPTIMIZER)
    for _ in range(4):
        allocator.alloc(6 * MIB, FORWARD)
    for address in [allocator.alloc(2 * MIB, FORWARD) for _ in range(4)]:
        allocator.free(address)
    allocator.fail(requested, free, FORWARD)
    return account(allocator.write(folder / "a.pickle"))


def test_what_would_have_made_room(tmp_path: Path) -> None:
    found = failed(tmp_path, 12 * MIB, 2 * MIB)
    live = found.categories_at_failure(found.ooms[0])
    assert live == {Category.OPTIMIZER: 8 * MIB, Category.ACTIVATIONS: 24 * MIB}
    fits = would_fit(12 * MIB, 2 * MIB, found.state.inactive, live, found.settings, None)
    assert [(fit.change.partition(",")[0], fit.frees // MIB, fit.at_most, fit.enough) for fit in fits] == [
        ("activation checkpointing", 24, True, True),
        ("half the micro-batch", 12, False, True),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 8, True, False),
    ]
    assert not any("expandable" in fit.change for fit in would_fit(1, 0, 8, {}, "expandable_segments:True", None))


def test_what_would_lower_a_peak_that_fitted(tmp_path: Path) -> None:
    """The peak holds 100 MB from before, 20 of optimizer states, 30 of gradients and 40 of activations; without the
    activations, the other moments are no higher than the 150 MB that are left. 210 MB are reserved and not used."""
    trained().write(tmp_path, "rank0.json")
    (curve,) = open_run(tmp_path).memory_curves
    assert curve.peak_reserved is not None
    found = lower_peaks(curve.history, curve.peak_reserved - curve.peak_allocated, "", None)
    assert [(each.change.partition(",")[0], each.peak, each.frees, each.at_most) for each in found] == [
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", None, curve.peak_reserved - 190 * MB, True),
        ("activation checkpointing", 150 * MB, 40 * MB, True),
        ("half the micro-batch", 170 * MB, 20 * MB, False),
    ]
    assert lower_peaks(None, None, "", None) == ()


def test_another_moment_may_be_the_highest_then(tmp_path: Path) -> None:
    """24 MB of activations over 8 MB of states, later 22 MB of gradients: with fewer activations the peak is theirs."""
    allocator = Allocator()
    allocator.alloc(8 * MIB, OPTIMIZER)
    activations = allocator.alloc(24 * MIB, FORWARD)
    allocator.free(activations)
    allocator.alloc(22 * MIB, BACKWARD)
    history = account(allocator.write(tmp_path / "a.pickle")).history
    assert {each.change: each.peak for each in lower_peaks(history, 0, "", None)} == {
        "activation checkpointing": 30 * MIB,
        "half the micro-batch, and twice as many of them": 30 * MIB,
    }


def test_memory_outside_of_pytorch_is_what_neither_is_free_nor_reserved(tmp_path: Path) -> None:
    found = failed(tmp_path, 12 * MIB, 2 * MIB)
    assert found.outside(100 * MIB) == 100 * MIB - 2 * MIB - found.state.reserved
    assert found.outside(None) is None
    assert account(train().write(tmp_path / "b.pickle")).outside(100 * MIB) is None


NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.60 GiB memory in use. Of the "
    "allocated memory 70.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 70.00 GiB already "
    "allocated; 1.50 GiB free; 75.00 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize("message", [NEW, OLD], ids=["new", "old"])
def test_a_log_says_what_was_free(tmp_path: Path, message: str) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    layout.rank(1).log.write_text(f"[rank1]: {message}\n")
    said = out_of_memory_lines(layout, [1])[1]
    assert (said.size, said.free, said.unallocated) == (2 << 30, 3 << 29, 5 << 30)
    assert said.capacity == pytest.approx(79.15 * (1 << 30), abs=1)
    (failure,) = open_run(layout.root).failed_allocations
    assert failure.fits[0].enough
    assert failure.fits[0].change == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

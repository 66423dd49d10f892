"""What is recorded of memory comes out as it was planted."""

from __future__ import annotations

from collections.abc import Callable, Container
from random import Random

import pytest

from diag.api import analyze
from diag.collectors.records import WINDOW_ACTIVE, WINDOW_NONE, Manifest, MemoryRecord
from diag.rundir.tables import Tables
from diag.tables.memory import RankMemory, estimate_of
from tests.copies import replace
from tests.samples import opened_sample
from tests.simulate import Plan, simulate

GB = 1_000_000_000


def with_memory(tables: Tables, of: Callable[[int, int], MemoryRecord | None]) -> Tables:
    ranks = {
        rank: replace(own, steps=tuple(replace(step, memory=of(rank, step.step)) for step in own.steps))
        for rank, own in tables.ranks.items()
    }
    return replace(tables, ranks=ranks)


def test_a_device() -> None:
    def planted(rank: int, step: int) -> MemoryRecord:
        return MemoryRecord(
            rss=GB,
            allocated=30 * GB + step * 10_000_000 * rank,
            reserved=60 * GB,
            alloc_retries=5 + (3 if rank == 1 and step >= 12 else 0),
            ooms=0,
            capacity=80 * GB,
        )

    table = analyze(with_memory(simulate(Plan()), planted)).memory_table
    first, second = table.rows
    assert table.on_device
    assert (first.growth_per_step, second.growth_per_step) == (0, 10_000_000)
    assert (first.retries, second.retries) == (0, 3)
    assert second.allocated == 30 * GB + 19 * 10_000_000
    assert (second.reserved, second.peak, second.capacity, second.ooms) == (60 * GB, 60 * GB, 80 * GB, 0)
    assert first.fragmentation == pytest.approx(0.5)


def test_one_large_batch_is_no_growth() -> None:
    def planted(rank: int, step: int) -> MemoryRecord:
        return MemoryRecord(rss=2 * GB if step == 19 else GB)

    table = analyze(with_memory(simulate(Plan()), planted)).memory_table
    assert not table.on_device
    assert [(row.growth_per_step, row.allocated, row.reserved, row.fragmentation) for row in table.rows] == [
        (0, 2 * GB, None, None)
    ] * 2
    assert [row.retries for row in table.rows] == [None, None]


def held(of_step: Callable[[int], int], steps: int = 24, window: Container[int] = ()) -> RankMemory:
    """The first rank's row of a run whose resident memory is known."""
    tables = with_memory(simulate(Plan(steps=steps)), lambda rank, step: MemoryRecord(rss=of_step(step)))
    ranks = {
        rank: replace(
            own, steps=tuple(replace(s, window=WINDOW_ACTIVE if s.step in window else WINDOW_NONE) for s in own.steps)
        )
        for rank, own in tables.ranks.items()
    }
    return analyze(replace(tables, ranks=ranks)).memory_table.rows[0]


def test_one_jump_is_no_growth() -> None:
    """Of 220 MB at a step, which is 18.4 MB a step by the slope between all steps where the jump is in the middle."""
    row = held(lambda step: GB + step * 20_000 + (220_000_000 if step >= 12 else 0))
    assert (row.growth_per_step, row.jump) == (0, (12, 220_020_000))


def test_a_jump_in_a_window_is_told_at_its_step() -> None:
    """The steps in the window do not count; the jump from the last step before it to the first one after it does."""
    row = held(lambda step: GB + (30_000_000 if step >= 13 else 2_000_000 if step >= 12 else 0), window=range(11, 15))
    assert (row.growth_per_step, row.jump) == (0, (13, 30_000_000))


@pytest.mark.parametrize("noise", [0, 3_000_000])
def test_a_leak_grows_with_and_without_a_jump(noise: int) -> None:
    random = Random(1)
    row = held(lambda step: GB + 5_000_000 * step + random.randint(-noise, noise) + (60_000_000 if step >= 12 else 0))
    assert row.growth_per_step == pytest.approx(6_500_000, rel=0.3)
    assert row.jump is None


def test_a_leak_in_stairs_grows() -> None:
    """Five steps of 10 MB, six apart."""
    row = held(lambda step: GB + 10_000_000 * (step // 6), steps=36)
    assert row.growth_per_step == pytest.approx(10_000_000 / 6, rel=0.2)
    assert row.jump is None


def test_memory_that_is_given_back_is_neither() -> None:
    row = held(lambda step: GB + (100_000_000 if 8 <= step < 14 else 0))
    assert (row.growth_per_step, row.jump) == (0, None)


def test_few_steps_do_not_grow() -> None:
    assert all(row.growth_per_step is None for row in analyze(simulate(Plan(steps=6))).memory_table.rows)


def test_nothing_recorded_is_no_row() -> None:
    table = analyze(with_memory(simulate(Plan()), lambda rank, step: None)).memory_table
    assert table.rows == ()


def test_states_of_the_bundled_trainer() -> None:
    fsdp = opened_sample("fsdp2-root-only").memory_table.estimate
    ddp = opened_sample("ddp-healthy").memory_table.estimate
    assert fsdp.states is not None
    assert ddp.states is not None
    assert fsdp.states.total == 8 * 10_332_480  # 16 bytes a parameter, over two ranks
    assert ddp.states.total == 2 * fsdp.states.total
    assert "10,332,480 parameters" in fsdp.basis


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "no manifest"),
        (Manifest("x", 0, world_size=2, strategy="ddp"), "no parameter count"),
        (Manifest("x", 0, world_size=2, strategy="own", model={"parameters": 10}), "unknown sharding of strategy own"),
        (Manifest("x", 0, world_size=None, strategy="fsdp2", model={"parameters": 10}), "unknown number of ranks"),
        (Manifest("x", 0, world_size=2, strategy="ddp", model={"parameters": 10}), "the optimizer and dtypes"),
    ],
)
def test_what_nobody_recorded_is_not_guessed(manifest: Manifest | None, reason: str) -> None:
    estimate = estimate_of(manifest)
    assert estimate.states is None
    assert reason in estimate.reason

"""One rank waits for its loader: whether the others' loaders are faster, or only have a head start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diag.api import Result, analyze
from diag.collectors.records import DATA, LoaderQueue, StepRecord
from diag.model.steps import Bottleneck, Finding
from diag.tables.loading import reserve_of
from tests.simulate import MS, Plan, simulate

Queue = Callable[[int, int], LoaderQueue | None]


def waiting_on_rank_1(queue: Queue, ranks: int = 2, micro_batches: int = 1, **trainer: object) -> Result:
    plan = Plan(
        ranks=ranks,
        extra=lambda step, rank: {DATA: 60 * MS} if rank == 1 else {},
        queue=queue,
        micro_batches=micro_batches,
        trainer=trainer,
    )
    return analyze(simulate(plan))


def said(result: Result) -> Finding:
    (found,) = [f for f in result.examination.findings if f.bottleneck == Bottleneck.DATA]
    return found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("workers", "prefetch", "ready", "faster"),
    [
        # As measured with loaders that sleep: a head start, and 1.3 times as fast as the training took.
        (1, 2, 1, False),
        (1, 2, 2, True),
        (2, 2, 2, False),
        (2, 2, 3, True),
        (2, 4, 6, False),  # three quarters of the queue, but both workers are busy
        (2, 4, 7, True),
        (4, 2, 4, False),
        (4, 2, 6, True),
        (2, 2, 0, False),
    ],
)
def test_the_rank_is_named_if_the_others_could_go_faster(
    ranks: int, workers: int, prefetch: int, ready: int, faster: bool
) -> None:
    capacity = workers * prefetch
    result = waiting_on_rank_1(lambda step, rank: LoaderQueue(0 if rank == 1 else ready, capacity, workers), ranks)
    assert result.verdict.bottleneck == Bottleneck.DATA
    assert result.verdict.cause == ("slow-data-one-rank" if faster else "slow-data-all-ranks")
    assert result.verdict.culprit_ranks == ((1,) if faster else ())
    found = said(result)
    assert ("Rank 1 waits longest" in found.title) != faster
    assert ("num_workers" in found.action) != faster
    of_queues = {row.filter.split(",")[0]: row.value for row in found.evidence if row.unit == "batches"}
    assert of_queues == {f"rank {rank}": 0 if rank == 1 else ready for rank in range(ranks)}


@pytest.mark.parametrize(
    "queue",
    [
        lambda step, rank: None,
        lambda step, rank: LoaderQueue(0, 4, 2) if rank == 1 else None,
        lambda step, rank: LoaderQueue(0, 4, 2) if step in (5, 6) else None,
    ],
    ids=["no rank", "not the others", "two steps"],
)
def test_what_is_not_known_changes_no_verdict(queue: Queue) -> None:
    result = waiting_on_rank_1(queue)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("slow-data-one-rank", (1,))
    assert "reserve was not recorded" in said(result).action
    alone = waiting_on_rank_1(queue, num_workers=0)  # without workers there is no reserve
    assert "reserve" not in said(alone).action


def test_a_step_that_empties_the_queue_at_once_tells_nothing() -> None:
    """A loader of any speed has filled it again by the next step."""
    result = waiting_on_rank_1(lambda step, rank: LoaderQueue(0, 4, 2), micro_batches=3)
    assert result.verdict.culprit_ranks == (1,)


def test_a_reserve_is_what_has_built_up_in_the_end() -> None:
    filling = [StepRecord(n, 0, 0, [], queue=LoaderQueue(min(n, 4), 4, 2)) for n in range(10)]
    own = reserve_of(filling, range(10))
    assert own is not None
    assert (own.ready, own.idle, own.faster) == (4, 2, True)
    assert reserve_of(filling, range(2)) is None


def test_what_fills_the_queue_once_is_no_reserve() -> None:
    emptying = [StepRecord(n, 0, 0, [], queue=LoaderQueue(min(8, max(17 - n, 4)), 8, 4)) for n in range(18)]
    own = reserve_of(emptying, range(18))
    assert own is not None
    assert (own.ready, own.faster) == (4, False)


def test_of_many_workers_a_fifth_must_be_idle() -> None:
    def own(ready: int) -> bool:
        found = reserve_of([StepRecord(n, 0, 0, [], queue=LoaderQueue(ready, 32, 16)) for n in range(9)], range(9))
        return found is not None and found.faster

    assert [own(ready) for ready in (16, 19, 20, 32)] == [False, False, True, True]


def test_the_table_of_the_input() -> None:
    queue: Queue = lambda step, rank: LoaderQueue(3 if rank == 0 else 0, 4, 2)  # noqa: E731
    table = waiting_on_rank_1(queue, num_workers=None).loading
    assert (table.workers, table.prefetch_factor, table.queue) == (2, 2, 4)
    reserves = [row.reserve for row in table.rows]
    assert [(own.ready, own.idle) for own in reserves if own is not None] == [(3, 1), (0, 0)]
    assert waiting_on_rank_1(lambda step, rank: None).loading.rows[0].reserve is None

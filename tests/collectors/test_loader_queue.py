"""How many batches a real DataLoader has ready, held against what its workers were let do."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from threading import Timer
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diag.collectors.scheduling import queue_of

LENGTH = 14
FORK = multiprocessing.get_context("fork")


class Gated(Dataset[Tensor]):
    """Numbers, of which some are there only when the gate is open."""

    def __init__(self, behind_the_gate: Callable[[int], bool]) -> None:
        self.behind, self.gate = behind_the_gate, FORK.Event()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Tensor:
        if self.behind(index):
            self.gate.wait()
        return torch.tensor(index)


def iterator_of(data: Gated) -> Iterator[Tensor]:
    return iter(DataLoader(data, batch_size=None, num_workers=2, prefetch_factor=2, multiprocessing_context="fork"))


def ready(iterator: Any, expected: int) -> int:
    """When as many are ready, or will not be."""
    until = time.monotonic() + 10
    while (queue := queue_of(iterator)) is None or queue.ready < expected:
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    assert queue is not None
    assert (queue.capacity, queue.workers) == (4, 2)
    return queue.ready


def opened_later(gate: Event) -> None:
    Timer(0.5, gate.set).start()


def test_a_queue_that_its_workers_fill() -> None:
    data = Gated(lambda index: index >= 6)
    iterator = iterator_of(data)
    for _ in range(4):
        assert queue_of(iterator) is None  # it fills up for the first time
        next(iterator)
    assert ready(iterator, 2) == 2  # 4 and 5
    time.sleep(0.2)
    assert ready(iterator, 2) == 2
    data.gate.set()
    assert ready(iterator, 4) == 4
    while int(next(iterator)) < LENGTH - 5:
        assert queue_of(iterator) is not None
    next(iterator)
    assert queue_of(iterator) is None  # nothing is left to load
    assert len(list(iterator)) == 3


def test_batches_that_came_out_of_order_are_ready() -> None:
    data = Gated(lambda index: index == 4)
    iterator = iterator_of(data)
    for _ in range(4):
        next(iterator)
    assert ready(iterator, 2) == 2  # 5 and 7, of the other worker
    opened_later(data.gate)
    assert int(next(iterator)) == 4  # while it was waited for, 5 and 7 were taken from the workers' queue
    assert ready(iterator, 4) == 4


def test_of_anything_else_nothing_is_told() -> None:
    assert queue_of(iter([1, 2])) is None
    assert queue_of(None) is None
    assert queue_of(iter(DataLoader(Gated(lambda index: False), batch_size=None))) is None


def test_a_system_whose_queues_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS."""
    iterator: Any = iterator_of(Gated(lambda index: False))
    for _ in range(4):
        next(iterator)
    assert queue_of(iterator) is not None

    def raises() -> int:
        raise NotImplementedError  # sem_getvalue() does not exist there

    monkeypatch.setattr(iterator._data_queue, "qsize", raises)
    assert queue_of(iterator) is None

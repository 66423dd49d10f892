"""What is told of DDP's reductions, of which nothing in Python sees more than their end."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from diag.collectors import record
from diag.collectors.attach.hooks import Reducers
from diag.collectors.calls import Patches
from diag.collectors.collectives import CollectiveTimer
from diag.collectors.records import BACKWARD, CollectiveRow
from diag.collectors.settings import CollectorSettings
from tests.attach.trainings import collective_lines_of, steps_of

pytestmark = pytest.mark.usefixtures("group_of_one")

PLAIN = CollectorSettings(trace=False, nvml=False)
BYTES = 80  # of the gradients of Linear(4, 4)


def train(steps: int, *modules: Any) -> None:
    """With one backward a step, through all modules."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([module(torch.ones(4)).sum() for module in modules]).sum().backward()
        optimizer.step()


def rows_of(run: Path) -> list[CollectiveRow]:
    return [CollectiveRow(*row) for line in collective_lines_of(run) for row in line["rows"]]


def wrapped(**options: Any) -> Any:
    return DistributedDataParallel(nn.Linear(4, 4), **options)


def test_a_row_a_backward_at_its_end(tmp_path: Path) -> None:
    with record(tmp_path, PLAIN):
        train(3, wrapped())
    rows = rows_of(tmp_path)
    assert [(row.op, row.seq, row.bytes, row.dtype, row.whole) for row in rows] == [
        ("all_reduce", number, BYTES, "float32", False) for number in range(3)
    ]
    for row, step in zip(rows, steps_of(tmp_path), strict=False):
        begin, end = next((begin, end) for name, begin, end in step["phases"] if name == BACKWARD)
        assert begin < row.start_ns < row.end_ns <= end
        assert (row.wait_start_ns, row.wait_end_ns) == (row.start_ns, row.end_ns)


class Slow(torch.autograd.Function):
    """Nothing, and in the backward 20 ms of sleep."""

    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return gradient


class SlowAtTheEndOfBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(Slow.apply(self.first(value)))
        return out


def test_a_reduction_begins_with_the_last_gradient(tmp_path: Path) -> None:
    """The first of two buckets is launched before a pause that is no waiting."""
    with record(tmp_path, PLAIN):
        train(3, DistributedDataParallel(SlowAtTheEndOfBackward(), bucket_cap_mb=1e-4))
    for row, step in zip(rows_of(tmp_path), steps_of(tmp_path), strict=False):
        begin = next(begin for name, begin, _ in step["phases"] if name == BACKWARD)
        assert row.start_ns - begin >= 20_000_000


def test_no_row_where_nothing_is_reduced(tmp_path: Path) -> None:
    module = wrapped()
    with record(tmp_path, PLAIN):
        with module.no_sync():
            train(2, module)
        train(1, module)
        module(torch.ones(4))  # an evaluation that forgot no_grad
    assert len(rows_of(tmp_path)) == 1


@pytest.fixture
def looking() -> Iterator[tuple[Any, list[dict[str, int]]]]:
    """Looks from within a backward at what the timer knows to be reduced, as another thread would, and what it saw."""
    timer, patches, seen = CollectiveTimer(10), Patches(), []
    reducers = Reducers(timer, timer.fence)
    reducers.install(patches)

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(timer.reducing())
            return gradient

    def backward(value: torch.Tensor) -> None:
        value.sum().backward()
        reducers.backward_ends()

    Look.ends = backward  # type: ignore[attr-defined]
    yield Look, seen
    patches.undo()


def value() -> torch.Tensor:
    return torch.ones(4, requires_grad=True)


def test_what_is_reduced_while_a_backward_has_not_returned(looking: tuple[Any, list[dict[str, int]]]) -> None:
    look, seen = looking
    module = wrapped()
    for _ in range(2):
        look.ends(look.apply(module(look.apply(value()))))  # before the first gradient is ready, and after the last
    assert seen == [{}, {"0": 0}, {}, {"0": 1}]
    module(value())  # no backward follows
    assert look.apply(value()).sum().backward() is None
    assert seen[-1] == {}


def test_each_module_s_reduction_has_a_number(looking: tuple[Any, list[dict[str, int]]]) -> None:
    look, seen = looking
    one, other = wrapped(), wrapped()
    look.ends(other(look.apply(one(look.apply(value())))))
    assert seen == [{"0": 0}, {"0": 1}]


def test_nothing_is_reduced_by_a_hook_or_without_synchronisation(looking: tuple[Any, list[dict[str, int]]]) -> None:
    look, seen = looking
    module = wrapped()
    with module.no_sync():
        look.ends(module(look.apply(value())))
    module.register_comm_hook(None, allreduce_hook)
    look.ends(module(look.apply(value())))
    assert seen == [{}, {}]


def test_parameters_without_a_gradient_do_not_hide_the_reduction(looking: tuple[Any, list[dict[str, int]]]) -> None:
    look, seen = looking
    module = DistributedDataParallel(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), find_unused_parameters=True)
    module.module.forward = lambda given: module.module[0](given)  # type: ignore[method-assign]
    look.ends(module(look.apply(value())))
    assert seen == [{"0": 0}]


def test_two_modules_of_one_backward_and_of_two(tmp_path: Path) -> None:
    """As a generator and a discriminator: what is reduced is told when its own backward is over."""
    one, other = wrapped(), wrapped()
    with record(tmp_path, PLAIN):
        train(1, one, other)
        found = [module(torch.ones(4)).sum() for module in (one, other)]
        found[1].backward()
        between = time.monotonic_ns()
        found[0].backward()
        train(1, one, other)
    rows = rows_of(tmp_path)
    assert len(rows) == 6
    assert rows[2].end_ns is not None
    assert rows[2].end_ns < between < rows[3].start_ns


def test_a_module_that_is_gone_before_its_backward(tmp_path: Path) -> None:
    one, other = wrapped(), wrapped()
    with record(tmp_path, PLAIN):
        one(torch.ones(4)).sum()
        reducer = weakref.ref(one.reducer)
        del one
        gc.collect()
        assert reducer() is None  # nobody keeps it, with its buckets
        train(2, other)
        one = wrapped()
        train(2, one)
    assert [row.seq for row in rows_of(tmp_path)] == list(range(4))


def test_parameters_without_a_gradient(tmp_path: Path) -> None:
    module = DistributedDataParallel(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), find_unused_parameters=True)
    module.module.forward = lambda value: module.module[0](value)  # type: ignore[method-assign]
    with record(tmp_path, PLAIN):
        train(3, module)
    assert [row.bytes for row in rows_of(tmp_path)] == [2 * BYTES] * 3


def test_a_hook_of_the_training_s_own_is_called_and_timed(tmp_path: Path) -> None:
    with record(tmp_path, PLAIN):
        module = wrapped()
        module.register_comm_hook(None, allreduce_hook)
        train(3, module)
    rows = rows_of(tmp_path)
    assert [row.whole for row in rows] == [True] * 3  # and none for the reducer, which has not reduced
    assert all(row.wait_end_ns is not None for row in rows)


def test_a_hook_that_was_there_before(tmp_path: Path) -> None:
    """What it calls is timed as any other collective, and the reducer tells how long backward stood still."""
    module = wrapped()
    module.register_comm_hook(None, lambda _state, bucket: allreduce_hook(None, bucket))
    with record(tmp_path, PLAIN):
        train(3, module)
    rows = rows_of(tmp_path)
    assert [row.bytes for row in rows if row.whole] == [BYTES] * 3
    assert [row.bytes for row in rows if not row.whole] == [0] * 3


def test_nothing_of_it_is_compiled(tmp_path: Path) -> None:
    """Around the compiled forward of a module, whose callers a compiler may look at, too."""
    from torch._dynamo.utils import counters  # which takes as long to import as all of torch

    def frames() -> dict[str, int]:
        """How many functions the compiler has looked at, and how many it has compiled."""
        torch._dynamo.reset()
        counters.clear()
        train(3, torch.compile(wrapped(), backend="eager"))
        return dict(counters["frames"])

    frames()  # the first time, it looks at some of its own
    bare = frames()
    with record(tmp_path, PLAIN):
        assert frames() == bare
    assert bare["ok"]
    assert len(rows_of(tmp_path)) == 3


def test_a_recording_that_is_over_hears_nothing(tmp_path: Path) -> None:
    module = wrapped()
    original = torch._C._distributed_c10d.Reducer.prepare_for_backward
    for name in ("one", "other"):
        with record(tmp_path / name, PLAIN):
            assert torch._C._distributed_c10d.Reducer.prepare_for_backward is not original
            train(2, module)
        assert torch._C._distributed_c10d.Reducer.prepare_for_backward is original
        train(2, module)
        assert len(rows_of(tmp_path / name)) == 2

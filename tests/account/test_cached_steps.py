"""Accounts that are kept beside a trace: equal to computed ones, and computed again where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from diag.account.cached_steps import steps_of, windows_of
from diag.account.gpu import partition
from diag.account.kept_steps import Array, KeptSteps
from diag.model.steps import RankStep
from diag.traces.kineto import read_trace
from diag.traces.trace import Trace
from tests.account.kineto_builder import KinetoBuilder, nccl_args

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


class Kept:
    """What a trace's cache holds."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def load(self, name: str) -> bytes | None:
        return self.data.get(name)

    def save(self, name: str, data: bytes) -> None:
        self.data[name] = data


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    build = KinetoBuilder(rank=0, world_size=2)
    for step in range(3):
        at = step * 1000
        build.step(step, at, at + 1000).kernel(at + 10, at + 400, launch=at + 5)
        build.kernel(at + 300, at + 600, ALL_REDUCE, launch=at + 8, **nccl_args("allreduce", 8, seq=step))
        build.kernel(at + 700, at + 800, ALL_REDUCE, launch=at + 9)
    return replace(read_trace(build.write(tmp_path)), derived=Kept())


def account(trace: Trace) -> Callable[[], list[RankStep]]:
    return lambda: partition(trace, windows_of(trace), 0)


def plain(steps: list[RankStep]) -> list[Any]:
    names = ("start_ns", "end_ns", "kind", "detail")
    pieces = [[getattr(step.segments, name).tolist() for name in names] for step in steps]
    rest = [replace(step, segments=None, collectives=()) for step in steps]  # type: ignore[arg-type]
    return [pieces, [list(step.collectives) for step in steps], rest]


def test_a_kept_account_is_the_computed_one(trace: Trace) -> None:
    computed = steps_of(trace, windows_of(trace), 0, account(trace))
    kept = steps_of(trace, windows_of(trace), 0, lambda: pytest.fail("computed again"))
    assert [len(step.collectives) for step in kept] == [2, 2, 2]
    assert plain(kept) == plain(computed)


def without(columns: dict[str, Array], name: str) -> dict[str, Array]:
    return {at: column for at, column in columns.items() if at != name}


NONE = Array("int64", (0,), memoryview(b""), "int64")
FLOATS = Array("float64", (6,), memoryview(bytes(48)), "float64")
ODD = Array("int64", (6,), memoryview(b"odd"), "int64")
OBJECTS = Array("object", (3,), memoryview(b""), "object")


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: replace(kept, calls={**kept.calls, "seq": NONE}),
        lambda kept: replace(kept, calls={**kept.calls, "seq": FLOATS}),
        lambda kept: replace(kept, calls=without(kept.calls, "seq")),
        lambda kept: replace(kept, calls={**kept.calls, "start_ns": ODD}),
        lambda kept: replace(kept, calls={}),
        lambda kept: replace(kept, names=()),
        lambda kept: replace(kept, groups=()),
        lambda kept: replace(kept, columns={**kept.columns, "source": Array.of(np.full(3, 9, dtype=np.int8))}),
        lambda kept: replace(kept, columns=without(kept.columns, "rank")),
        lambda kept: replace(kept, places=Array.of(np.full(6, 6))),
        lambda kept: replace(kept, places=Array.of(np.full(6, -1))),
        lambda kept: replace(kept, edges=(kept.edges[0], NONE)),
        lambda kept: replace(kept, edges=(NONE, kept.edges[1])),
        lambda kept: replace(kept, pieces={**kept.pieces, "start_ns": NONE}),
        lambda kept: replace(kept, columns={**kept.columns, "step": OBJECTS}),
    ],
)
def test_a_kept_account_that_does_not_fit_together_is_not_used(
    trace: Trace, damage: Callable[[KeptSteps], KeptSteps]
) -> None:
    computed = steps_of(trace, windows_of(trace), 0, account(trace))
    assert isinstance(trace.derived, Kept)
    (name,) = (name for name in trace.derived.data if name.startswith("steps-"))
    kept = msgspec.msgpack.decode(trace.derived.data[name], type=KeptSteps)
    trace.derived.save(name, msgspec.msgpack.encode(damage(kept)))
    assert plain(steps_of(trace, windows_of(trace), 0, account(trace))) == plain(computed)
    assert plain(steps_of(trace, windows_of(trace), 0, lambda: pytest.fail("not kept anew"))) == plain(computed)

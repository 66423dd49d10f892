"""What the account takes from traces: loaded where a run has one. A run that was recorded without a profiler window is
accounted for without any of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from diag.deferred import by_name
from diag.model import Gap
from diag.model.steps import CollectiveCall, RankStep
from diag.traces.trace import Trace

from .calls import Calls
from .intervals import Intervals, Window

BEFORE_ITERATIONS: Final = "before the first iteration"
AFTER_ITERATIONS: Final = "after the last iteration"
GC_PHASE: Final = "gc"  # a recorded pause of Python's garbage collector, among the phases


class Iterations(Protocol):
    """Repeated work that stands for steps. ``marker``: the range that repeats."""

    @property
    def marker(self) -> str: ...


class OnCpu(Protocol):
    """``diag.account.cpu.partition``."""

    def __call__(
        self,
        trace: Trace,
        windows: Sequence[Window],
        rank: int,
        comm: Sequence[CollectiveCall] | Calls = (),
        waits: Intervals = ...,
        phases: Sequence[tuple[str, int, int]] = (),
    ) -> list[RankStep]: ...


# Where the steps of a trace are.
windows_of: Callable[[Trace], list[Window]] = by_name("diag.account.cached_steps:windows_of")
host_windows: Callable[[Trace], list[Window]] = by_name("diag.account.trace_ranges:host_windows")
marks_steps: Callable[[Trace], bool] = by_name("diag.account.trace_ranges:marks_steps")
iterations_of: Callable[[Trace], Iterations | None] = by_name("diag.account.trace_ranges:iterations_of")
outside_of_iterations: Callable[[Trace], dict[int, str]] = by_name("diag.account.trace_ranges:outside_of_iterations")
compiling: Callable[[Trace], Intervals] = by_name("diag.account.trace_ranges:compiling")
agreed: Callable[[Mapping[int, Sequence[Trace]]], dict[int, tuple[Trace, ...]]] = by_name(
    "diag.account.trace_ranges:agreed"
)
with_most_steps: Callable[[Sequence[Trace], int], tuple[tuple[Trace, ...], list[Gap]]] = by_name(
    "diag.account.trace_ranges:with_most_steps"
)
# What a rank did in them.
steps_of: Callable[[Trace, Sequence[Window], int, Callable[[], list[RankStep]]], Sequence[RankStep]] = by_name(
    "diag.account.cached_steps:steps_of"
)
on_gpu: Callable[[Trace, Sequence[Window], int], list[RankStep]] = by_name("diag.account.gpu:partition")
forget: Callable[[Trace], None] = by_name("diag.account.gpu:forget")
on_cpu: OnCpu = by_name("diag.account.cpu:partition")

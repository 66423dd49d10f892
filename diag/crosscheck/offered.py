"""Analyses that are taken from HTA instead of being written again: the critical path inside one rank's step, and
kernel sequences that come again and again.

Both run with HTA's rounding off and the last step kept. Rounding turns events shorter than a microsecond inside out,
and HTA's call stacks then raise: on three of the real traces that this was tried on, no sequence was found otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from diag.account.trace_steps import step_ranges
from diag.api import Result
from diag.errors import DiagError, ExitCode
from diag.traces import comm_names
from diag.traces import kineto_names as names
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges

from .model import CriticalPath, KernelSequence, KernelSequences, PathEdge, PathShare
from .process import hta_version, job, run_jobs

OPERATOR = "autograd::engine::evaluate_function"  # under every node of a backward, in every trace of a training
LENGTH = 3
_MOST = 10
_NS_PER_US = 1000
# HTA's types of edges that are no work.
_WAITS = {
    "critical_path_kernel_launch_delay": "launch delay",
    "critical_path_kernel_kernel_delay": "gap between kernels",
    "critical_path_sync_dependency": "synchronisation",
    "critical_path_dependency": "dependency",
}


def critical_path(result: Result, rank: int | None = None, step: int | None = None) -> CriticalPath:
    """HTA's critical path through a step of one rank: by default the lowest rank and its second step, because the
    first lacks what was launched before the trace. Ranks are not tied together; ``diag.account`` does that.

    DiagError for a rank or step that has no trace, or without HTA; HTA's own failure is in ``error``.
    """
    hta_version()
    rank, traces = _of_rank(result, rank)
    trace, number, annotation = _step(traces, step)
    answer = run_jobs([job("critical_path", rank, Path(trace.path), annotation=annotation)], exact=True)[0]
    if answer.error:
        return CriticalPath(rank, str(trace.path), number, 0, (), (), answer.error)
    shares = _shares((_kind(*key), _ns(us), pieces) for *key, us, pieces in answer.found["sums"])
    longest = tuple(PathEdge(_kind(*key), key[-1], _ns(us)) for us, *key in answer.found["longest"][:_MOST])
    return CriticalPath(rank, str(trace.path), number, sum(share.ns for share in shares), shares, longest)


def kernel_sequences(
    result: Result, rank: int | None = None, operator: str = OPERATOR, length: int = LENGTH
) -> KernelSequences:
    """The most frequent sequences of at least ``length`` kernels that one rank's operators launch, whose names contain
    ``operator``; of nested ones HTA takes the outermost. By default of the lowest rank.

    DiagError for a rank that has no trace, or without HTA; HTA's own failure is in ``error``.
    """
    hta_version()
    rank, traces = _of_rank(result, rank)
    path = str(traces[0].path)
    asked = job("sequences", rank, Path(traces[0].path), operator=operator, length=length, most=_MOST)
    answer = run_jobs([asked], exact=True)[0]
    if answer.error:
        return KernelSequences(rank, path, operator, length, 0, (), answer.error)
    found = tuple(
        KernelSequence(pattern.split("|")[0], tuple(pattern.split("|")[1:]), int(count), _ns(device), _ns(host))
        for pattern, count, device, host in answer.found["sequences"]
    )
    return KernelSequences(rank, path, operator, length, answer.found["found"], found)


def _of_rank(result: Result, rank: int | None) -> tuple[int, Sequence[Trace]]:
    traced = {number: tables.traces for number, tables in sorted(result.tables.ranks.items()) if tables.traces}
    if not traced:
        raise DiagError("no rank has a trace for HTA to read", path=result.tables.root)
    chosen = next(iter(traced)) if rank is None else rank
    if chosen not in traced:
        raise DiagError(f"rank {chosen} has no trace", hint=f"there are traces of {rank_ranges(list(traced))}")
    return chosen, traced[chosen]


def _step(traces: Sequence[Trace], wanted: int | None) -> tuple[Trace, int, str]:
    """The trace that holds the step, the step's number and the name of its range."""
    marked = [(trace, *row) for trace in traces for row in step_ranges(trace).select("step", "name").iter_rows()]
    if not marked:
        raise DiagError("the trace marks no steps", hint="call prof.step() once a step", path=traces[0].path)
    if wanted is None:
        return marked[min(1, len(marked) - 1)]
    found = next((entry for entry in marked if entry[1] == wanted), None)
    if found is None:
        steps = ", ".join(str(step) for _, step, _ in marked)
        raise DiagError(f"step {wanted} is not in the trace", hint=f"there are steps {steps}", path=traces[0].path)
    return found


def _kind(edge: str, category: str, on_stream: bool, name: str) -> str:
    """What an edge of HTA's path is. HTA knows communication by one vendor's prefix; we use our own pattern."""
    if edge in _WAITS:
        return _WAITS[edge]
    category = names.category(category)
    if on_stream and category in (names.MEMCPY, names.MEMSET):
        return "copy or memset"
    if on_stream:
        is_comm = re.search(comm_names.KERNEL_PATTERN, name) and not re.search(comm_names.NOT_KERNEL_PATTERN, name)
        return "communication kernel" if is_comm else "compute kernel"
    if category in names.LAUNCH_CATEGORIES:
        return "runtime call"
    return "operator on the host" if category == names.CPU_OP else "other host range"


def _shares(pieces: Iterable[tuple[str, int, int]]) -> tuple[PathShare, ...]:
    sums: dict[str, tuple[int, int]] = {}
    for kind, ns, count in pieces:
        before = sums.get(kind, (0, 0))
        sums[kind] = (before[0] + ns, before[1] + count)
    shares = [PathShare(kind, ns, count) for kind, (ns, count) in sums.items() if ns]
    return tuple(sorted(shares, key=lambda share: -share.ns))


def _ns(us: Any) -> int:
    return round(float(us) * _NS_PER_US)


# -- requests ----------------------------------------------------------------------------------------------------------
#
# What ``--hta`` asks for: ``critical-path:rank=3,step=7``.

_HINT = "for example: --hta critical-path:rank=0,step=5   --hta sequences:rank=0,operator=aten::linear,length=3"
_ASKED: dict[str, tuple[Callable[..., CriticalPath | KernelSequences], dict[str, Callable[[str], Any]]]] = {
    "critical-path": (critical_path, {"rank": int, "step": int}),
    "sequences": (kernel_sequences, {"rank": int, "operator": str, "length": int}),
}
Request = Callable[[Result], CriticalPath | KernelSequences]


def parse_request(text: str) -> Request:
    """The analysis that the text asks for, ready to be run on a result. DiagError, exit code 2, for any other text."""
    name, _, settings = text.partition(":")
    if name not in _ASKED:
        raise _usage(f"--hta {text}: no such analysis; there are {' and '.join(_ASKED)}")
    analysis, kinds = _ASKED[name]
    chosen: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        try:
            chosen[key] = kinds[key](value)
        except KeyError:
            raise _usage(f"--hta {text}: {name} has no setting {key!r}; it has {', '.join(kinds)}") from None
        except ValueError:
            raise _usage(f"--hta {text}: {key} must be a whole number") from None
    return lambda result: analysis(result, **chosen)


def _usage(message: str) -> DiagError:
    return DiagError(message, hint=_HINT, exit_code=ExitCode.USAGE)

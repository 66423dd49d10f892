"""What the host was doing while the device was idle: the name behind each long stall."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from diag.model.steps import Detail, Kind, RankStep, Stall
from diag.traces import kineto_names as names
from diag.traces import range_names
from diag.traces.trace import Trace

from .gpu_idle import part_of
from .trace_ranges import Thread, on_threads

LONG_NS = 1_000_000  # a stall worth a name: a hundred times what a late launch leaves
_MOST_A_STEP, _MOST = 4, 32  # the longest ones, of a step and of a trace
_COVERS = 0.5  # of a stall: the innermost event that spans this much of it names it
_HOST = (names.CPU_OP, names.ANNOTATION, names.PYTHON, *names.LAUNCH_CATEGORIES)
_PYTHON_FUNCTION = re.compile(r"^(.*?)\.py\(\d+\): (.+)$")
_NOT_A_CAUSE = f"{range_names.STEP_PATTERN}|{range_names.PROFILER_STEP_PATTERN}|^PyTorch Profiler|^Profiler"


def with_stalls(trace: Trace, steps: Sequence[RankStep], threads: set[Thread]) -> list[RankStep]:
    """The steps with their longest idle pieces named. Times of the steps are those of the trace."""
    found: list[tuple[int, int, int, int]] = []  # duration, step by index, piece by index, its begin
    for index, step in enumerate(steps):
        cut = step.segments
        dur = cut.end_ns - cut.start_ns
        idle = np.flatnonzero((cut.kind == Kind.IDLE) & (dur >= LONG_NS))
        longest = idle[np.argsort(-dur[idle], kind="stable")][:_MOST_A_STEP]
        found += [(int(dur[at]), index, int(at), int(cut.start_ns[at])) for at in longest]
    found = sorted(found, key=lambda piece: (-piece[0], piece[3]))[:_MOST]
    if not found:
        return list(steps)
    named = _innermost(trace, [(begin, begin + dur) for dur, _, _, begin in found], threads)
    stalls: dict[int, list[Stall]] = {}
    for (length, index, at, begin), (name, share) in zip(found, named, strict=True):
        part = part_of(Detail(int(steps[index].segments.detail[at]))).removesuffix("_ns")
        stalls.setdefault(index, []).append(Stall(begin - steps[index].begin_ns, length, part, name, round(share, 4)))
    return [replace(step, stalls=tuple(stalls[index])) if index in stalls else step for index, step in enumerate(steps)]


def _innermost(trace: Trace, pieces: Sequence[tuple[int, int]], threads: set[Thread]) -> list[tuple[str, float]]:
    """For each piece of time the shortest event of these threads that covers at least half of it, and the part of it
    that the event covers; ("", 0) where there is none."""
    least = int(_COVERS * min(end - begin for begin, end in pieces))
    events = on_threads(trace.unsorted(*_HOST, columns=("ts_ns", "dur_ns", "name", "thread"), least_ns=least), threads)
    start, dur = events["ts_ns"].to_numpy(), events["dur_ns"].to_numpy()
    code, end = events["name"].to_numpy(), start + dur
    skip = trace.stored.matching(_NOT_A_CAUSE)
    found = []
    for piece_begin, piece_end in pieces:
        covered = np.minimum(end, piece_end) - np.maximum(start, piece_begin)
        rows = np.flatnonzero((covered >= _COVERS * (piece_end - piece_begin)) & ~skip[code])
        if not len(rows):
            found.append(("", 0.0))
            continue
        at = rows[np.argmin(dur[rows])]
        found.append((short_name(trace.stored.names[int(code[at])]), float(covered[at] / (piece_end - piece_begin))))
    return found


def short_name(name: str) -> str:
    """A function of Python as ``module.function`` instead of its path; other names as they are."""
    called = _PYTHON_FUNCTION.match(name)
    if called is None:
        return name
    return f"{called.group(1).rsplit('/', 1)[-1]}.{called.group(2)}"

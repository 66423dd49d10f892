"""One step of a rank as a Chrome trace made from its records, for a step that no profiler recorded."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

import msgspec

from diag.collectors.layout import RankLayout
from diag.collectors.records import CollectiveLine, StepRecord

from .lines import each_line, read_identity

_STEP, _PHASES, _GARBAGE, _COLLECTIVES = range(1, 5)  # threads of the trace
_THREADS = {_STEP: "step", _PHASES: "phases", _GARBAGE: "Python's garbage collector"}


def recorded_step(files: RankLayout, rank: int, step: int, at_ns: int = 0) -> tuple[bytes, int] | None:
    """The step's phases and collectives as the text of a Chrome trace in which the step begins at ``at_ns``, and the
    step's duration in ns; None if the rank did not record the step."""
    last: deque[StepRecord] = deque(maxlen=1)
    each_line(files.steps, StepRecord, lambda record: last.append(record) if record.step == step else None)
    if not last:
        return None
    record = last[0]
    lines: list[CollectiveLine] = []
    each_line(files.collectives, CollectiveLine, lambda line: lines.append(line) if line.step == step else None)
    identity, _ = read_identity(files)
    events: list[dict[str, Any]] = []

    def name(what: str, text: str, thread: int = 0) -> None:
        events.append({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": text}})

    def add(thread: int, text: str, start_ns: int, end_ns: int, **args: object) -> None:
        times = {"ts": (start_ns - record.begin_ns + at_ns) / 1000, "dur": max(0, end_ns - start_ns) / 1000}
        events.append({"ph": "X", "cat": "recorded", "name": text, "pid": rank, "tid": thread, **times, "args": args})

    name("process_name", f"rank {rank}, recorded, not profiled")
    for thread, title in _THREADS.items():
        name("thread_name", title, thread)
    add(_STEP, f"step {step}", record.begin_ns, record.end_ns, tokens=record.tokens, loss=record.loss)
    for phase in record.phases:
        add(_PHASES, phase.phase, phase.start_ns, phase.end_ns)
    for pause in record.gc:
        add(_GARBAGE, "garbage collection", *pause)
    # When each thread is free again: slices of one thread must nest, and collectives may overlap.
    threads: list[tuple[int, int]] = []
    for row in sorted((row for line in lines for row in line.rows), key=lambda row: row.start_ns):
        end_ns = row.start_ns if row.end_ns is None else row.end_ns  # only the call is known
        if threads and threads[0][0] <= row.start_ns:
            thread = heapq.heapreplace(threads, (end_ns, threads[0][1]))[1]
        else:
            thread = _COLLECTIVES + len(threads)
            heapq.heappush(threads, (end_ns, thread))
            name("thread_name", "collectives", thread)
        facts = {"group": row.group, "sequence number": row.seq, "bytes": row.bytes, "dtype": row.dtype}
        add(thread, row.op, row.start_ns, end_ns, **facts)
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": identity.world_size if identity is not None else None},
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }
    return msgspec.json.encode(document), record.end_ns - record.begin_ns

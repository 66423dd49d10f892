"""The steps of a CPU rank from its trace (docs/concepts/partition.md): the main thread is the device.

Priority: data wait, checkpoint, copies, operators (compute), communication that they do not overlap, the idle rest.

Not only leaf operators compute: ``aten::mm`` calls ``aten::resolve_conj``, so
otherwise the matrix products of a backward would not count (on a recorded FSDP2 step with gloo 12 of 19 ms of idle
backward were ``aten::mm`` itself). The copies around FSDP's collectives (``fsdp::*``, ``split_with_sizes_copy``,
``chunk_cat``) count as compute: on a CPU they keep the core busy, and no faster network removes them. And the
collectors' records (calls, and times in which a training thread was blocked) are united with the ``gloo:*`` ranges:
those miss the time between a call and its start on gloo's thread, and torch 2.13 misses some operations altogether.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diag.collectors import records
from diag.deferred import pl
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import intervals as iv
from . import trace_ranges as ranges
from .calls import Calls
from .intervals import EMPTY, Intervals, Layer, Window, covers, disjoint, traced_steps
from .of_traces import GC_PHASE
from .records import TRANSFER
from .trace_collectives import from_gloo, in_windows
from .trace_ranges import host_windows

_BUSY = (Kind.COMPUTE, Kind.IDLE)


def step_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns): ``diag.step#N`` ranges, else ``ProfilerStep#N``, else the whole trace as step 0."""
    return host_windows(trace)


def partition(
    trace: Trace,
    windows: Sequence[Window],
    rank: int,
    comm: Sequence[CollectiveCall] = (),
    waits: Intervals = EMPTY,
    phases: Sequence[tuple[str, int, int]] = (),
) -> list[RankStep]:
    """One exact account per window.

    ``comm``, ``waits`` and ``phases`` (name, start_ns, end_ns; names as in the records, and "gc") come from the
    collectors, shifted to the trace's clock; each is united with the trace's own.
    """
    wire = trace.select(names.ANNOTATION, name=names.WIRE_PATTERN, arguments=True)
    recorded = comm if isinstance(comm, Calls) else Calls.of(sorted(comm, key=lambda call: call.start_ns))
    if recorded.labelled(TRANSFER).any():  # sends and receives are recorded, with the blocked threads
        wire = wire.filter(~_sent())
    talking = iv.union(ranges.as_intervals(wire), iv.make(_spans(recorded)), waits)
    phase_times = _Phases(trace, phases)
    p2p = _point_to_point(wire, recorded)
    layers = disjoint(_layers(trace, talking, p2p, phase_times))
    hidden = iv.intersect(talking, iv.union(*(layer.intervals for layer in layers if layer.kind == Kind.COMPUTE)))
    calls = in_windows(recorded, windows) if len(recorded) else from_gloo(trace, wire, windows)
    # Idle is what no other kind covers, so it needs no layer of its own here.
    optimizing = iv.subtract(
        phase_times.optimizer, iv.union(*(layer.intervals for layer in layers if layer.kind not in _BUSY))
    )
    return traced_steps(rank, windows, layers, hidden, optimizing, calls)


class _Phases:
    """The host's phases: the trace's ranges on the main thread, united with recorded ones."""

    def __init__(self, trace: Trace, recorded: Sequence[tuple[str, int, int]]) -> None:
        def recorded_as(name: str) -> Intervals:
            return iv.make([(start, end) for phase, start, end in recorded if phase == name])

        main = ranges.main_thread(trace)
        threads = {main} if main is not None else set()
        self.data = iv.union(ranges.data_wait(trace, threads), recorded_as(records.DATA))
        self.checkpoint = iv.union(ranges.checkpoint(trace), recorded_as(records.CHECKPOINT))
        self.copy = iv.union(ranges.phase(trace, records.H2D), recorded_as(records.H2D))
        self.forward = iv.union(ranges.forward(trace), recorded_as(records.FORWARD))
        self.backward = iv.union(ranges.backward(trace), recorded_as(records.BACKWARD))
        self.optimizer = iv.union(ranges.optimizer(trace), recorded_as(records.OPTIMIZER))
        self.collecting = iv.union(ranges.garbage_collection(trace), recorded_as(GC_PHASE))

    def by_detail(self) -> list[tuple[Detail, Intervals]]:
        """Innermost first: recomputed forwards lie inside the backward, a fused optimizer step may, too."""
        return [(Detail.OPTIMIZER, self.optimizer), (Detail.BACKWARD, self.backward), (Detail.FORWARD, self.forward)]


def _sent() -> pl.Expr:
    """Whether a range is that of a send or a receive."""
    return pl.col("name").cast(pl.String).str.contains(names.P2P_RANGE_PATTERN)


def _point_to_point(wire: pl.DataFrame, recorded: Calls) -> Intervals:
    """When only sends and receives were open: waiting for neighbours in a pipeline."""
    is_p2p = recorded.with_op(*names.P2P_OPS)
    p2p, other = ranges.as_intervals(wire.filter(_sent())), ranges.as_intervals(wire.filter(~_sent()))
    sent, others = (iv.make(_spans(recorded.take(chosen))) for chosen in (is_p2p, ~is_p2p))
    return iv.subtract(iv.union(p2p, sent), iv.union(other, others))


def _spans(calls: Calls) -> Intervals:
    """When each call was on the wire; an empty span if that is unknown."""
    transfer = calls.labelled(TRANSFER)
    begin, end = np.where(transfer, (calls.wait_start_ns, calls.wait_end_ns), (calls.start_ns, calls.end_ns))
    return np.stack((begin, end), axis=1)


def _layers(trace: Trace, talking: Intervals, p2p: Intervals, phases: _Phases) -> list[Layer]:
    compute = operator_time(trace)
    work = iv.union(phases.data, phases.checkpoint, phases.copy, compute, talking, p2p, phases.collecting)
    outside = iv.EMPTY
    if len(work) and not ranges.marks_steps(trace):
        outside = iv.make([(trace.begin_ns, int(work[0, 0])), (int(work[-1, 1]), trace.end_ns)])
    return [
        Layer(Kind.DATA, Detail.NONE, phases.data),
        Layer(Kind.CHECKPOINT, Detail.NONE, phases.checkpoint),
        Layer(Kind.COPY, Detail.NONE, phases.copy),
        *(Layer(Kind.COMPUTE, detail, iv.intersect(compute, during)) for detail, during in phases.by_detail()),
        Layer(Kind.COMPUTE, Detail.NONE, compute),
        Layer(Kind.COMM, Detail.P2P, p2p),
        Layer(Kind.COMM, Detail.NONE, talking),
        Layer(Kind.IDLE, Detail.GC, phases.collecting),
        Layer(Kind.IDLE, Detail.OUTSIDE, outside),
        *(Layer(Kind.IDLE, detail, during) for detail, during in phases.by_detail()),
    ]


def operator_time(trace: Trace) -> Intervals:
    """Time in which the main or an autograd thread works on an operator: an ``aten::`` one, or one with none inside.

    Operators that issue a collective or wait for one are left out, also inside another operator: ``c10d::*`` lasts as
    long as the enqueue, ``_c10d_functional::wait_tensor`` as long as the wire; only operators inside them count. Code
    that Inductor compiled counts like an operator: its own kernels leave no event. Operators of other names with
    operators inside (the autograd engine's nodes, hooks of FSDP) may wait themselves, so they do not count.
    """
    main = ranges.main_thread(trace)
    threads = ranges.autograd_threads(trace) | ({main} if main is not None else set())
    operators = trace.select(names.CPU_OP).with_columns(pl.col("name").cast(pl.String))
    return iv.union(*(_thread_time(ranges.on_threads(operators, {thread})) for thread in sorted(threads)))


def _thread_time(operators: pl.DataFrame) -> Intervals:
    """``operator_time`` of one thread's operators, sorted as by Trace.select: parents before their children."""
    start, end = operators["ts_ns"].to_numpy(), (operators["ts_ns"] + operators["dur_ns"]).to_numpy()
    leaf = np.ones(len(start), dtype=np.bool_)
    leaf[:-1] = start[1:] >= end[:-1]  # ranges of one thread nest, so a child of an operator comes right after it
    name = pl.col("name")
    wrapper, native, comm = (
        operators.select(test).to_series().to_numpy()
        for test in (
            name.str.starts_with("autograd::engine::"),
            name.str.starts_with("aten::") | name.str.starts_with(names.COMPILED_CODE_PREFIX),
            name.str.contains(names.CALL_OP_PATTERN),
        )
    )
    spans = np.stack((start, end), axis=1).astype(np.int64, copy=False)
    working, calls = spans[(leaf | native) & ~wrapper & ~comm], iv.normal(spans[comm])
    # gloo's reduce-scatter copies its input within c10d::_reduce_scatter_base_: work inside a call is work.
    within_call = covers(calls, working[:, 0]) & covers(calls, working[:, 1] - 1)
    return iv.union(iv.subtract(working, calls), working[within_call])

"""Every trace of a run, read by HTA and by us."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diag.account import gpu
from diag.api import Result
from diag.collectors.layout import RunLayout
from diag.model.steps import Kind
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges

from .model import Comparison, CrossCheck, Measures, Quantity, RankCheck, difference
from .process import Answer, hta_version, job, run_jobs

_NS_PER_US = 1000


def cross_check(result: Result) -> CrossCheck:
    """Our numbers and HTA's for every trace of the run.

    Both measure from the first to the last device event that HTA keeps; only the window itself is compared with all
    device events that we read. A trace that HTA fails on is a line, not an error. DiagError where HTA is not installed.
    """
    tool = hta_version()
    traces = [(rank, trace) for rank, tables in sorted(result.tables.ranks.items()) for trace in tables.traces]
    unread = _unread(result, [Path(trace.path) for _, trace in traces])
    files = [*((rank, Path(trace.path)) for rank, trace in traces), *((0, path) for path in unread)]
    jobs = [job("breakdown", rank, path) for rank, path in files]
    jobs += (
        [{"job": "ranks", "paths": [str(Path(trace.path).absolute()) for _, trace in traces]}]
        if len(traces) > 1
        else []
    )
    answers = run_jobs(jobs)
    checks = [_check(rank, trace, answer) for (rank, trace), answer in zip(traces, answers, strict=False)]
    failed = zip(unread, answers[len(traces) :], strict=False)
    checks += [_uncompared(None, path, f"we cannot read it either; HTA: {a.error or 'reads it'}") for path, a in failed]
    notes = () if traces else ("the run has no trace that both could read: nothing to compare",)
    return CrossCheck("hta", tool, tuple(checks), notes or _mixed_up(traces, answers[len(files) :]))


def ours_in(trace: Trace, begin_ns: int, end_ns: int) -> Measures:
    """The account that `diag analyze` rests on, of a window, in HTA's terms. Its own window: all device work."""
    times = gpu.device_work(trace).select("ts_ns", "end_ns").to_numpy()
    step = gpu.partition(trace, [(0, begin_ns, end_ns)], 0)[0]
    exposed, hidden = step.segments.total(Kind.COMM), step.overlapped_comm_ns
    return Measures(
        window_ns=int(times[:, 1].max() - times[:, 0].min()) if len(times) else 0,
        compute_ns=step.segments.total(Kind.COMPUTE),
        non_compute_ns=exposed + step.segments.total(Kind.COPY),
        idle_ns=sum(step.segments.total(kind) for kind in (Kind.DATA, Kind.CHECKPOINT, Kind.IDLE)),
        overlap_percent=100 * hidden / (hidden + exposed) if hidden + exposed else None,
    )


def _check(rank: int, trace: Trace, answer: Answer) -> RankCheck:
    if answer.error:
        why = "" if trace.has_gpu else " (the trace holds no device event)"
        return _uncompared(rank, Path(trace.path), answer.error + why)
    found = answer.found
    begin, end = (_ns(found[key]) + trace.base_ns for key in ("begin_us", "end_us"))
    window, compute, idle = (_ns(found[key]) for key in ("window_us", "compute_us", "idle_us"))
    hta = Measures(window, compute, _ns(found["non_compute_us"]), idle, found["overlap_percent"])
    ours = ours_in(trace, begin, end)
    comparisons = []
    for quantity in Quantity:
        values = ours.value(quantity), hta.value(quantity)
        comparisons.append(Comparison(quantity, *values, difference(*values, quantity)))
    return RankCheck(rank, str(trace.path), begin, end, tuple(comparisons))


def _ns(us: float) -> int:
    """Exactly, also for microseconds since 1970: as nanoseconds they do not fit a float64."""
    whole = int(us)
    return whole * _NS_PER_US + round((us - whole) * _NS_PER_US)


def _uncompared(rank: int | None, path: Path, error: str) -> RankCheck:
    return RankCheck(rank, str(path), 0, 0, (), error)


def _unread(result: Result, read: Sequence[Path]) -> list[Path]:
    """Trace files that we could not read: a run's own records are not among them."""
    layout = RunLayout(result.tables.root)
    if layout.is_run():
        files = {path for rank in layout.ranks().values() for path in rank.traces()}
    else:
        files = {Path(gap.path) for gap in result.tables.gaps if gap.path.endswith((".json", ".json.gz"))}
    return sorted(path for path in files - set(read) if path.is_file())


def _mixed_up(traces: Sequence[tuple[int, Trace]], answers: Sequence[Answer]) -> tuple[str, ...]:
    """What HTA would have made of the folder, where that is not what it was told here."""
    if not answers or answers[0].error:
        return ()
    taken = {Path(path): int(rank) for rank, path in answers[0].found.items()}
    lost = sorted({rank for rank, trace in traces if taken.get(Path(trace.path).absolute()) != rank})
    if not lost:
        return ()
    return (
        f"given the folder, HTA reads {len(taken)} of {len(traces)} traces, and {rank_ranges(lost)} not as such: it "
        "keeps one file a rank, and takes for rank 0 what says no rank or says it without a blank "
        '("rank":3, compact JSON). Here it was told the ranks.',
    )

"""Compares HTA's numbers with ours for every trace of a run, and runs two of HTA's own analyses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diag import processes
from diag.account import gpu
from diag.account.trace_ranges import step_ranges
from diag.api import Result
from diag.collectors.layout import RunLayout
from diag.errors import DiagError, ExitCode, not_installed
from diag.model.steps import Kind
from diag.rundir.job_ranks import job_ranks
from diag.traces import kineto_names as names
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges

from .model import (
    Comparison,
    CriticalPath,
    CrossCheck,
    KernelSequence,
    KernelSequences,
    Measures,
    PathEdge,
    PathShare,
    Quantity,
    RankCheck,
    difference,
)

# -- process -----------------------------------------------------------------------------------------------------------
#
# Runs HTA in a process of its own.
#
# Reasons: HTA prints, logs, warns and reconfigures the logging of its process; it holds about five times the file in
# memory and frees it only at the end; and a trace that crashes it must cost one line of the report, not the report. One
# process reads all traces, one after the other (importing HTA takes a second). When it dies, the trace that caused it
# gets an error as its answer, and another process continues with the rest.

SCRIPT = Path(__file__).with_name("hta_process.py")
_ROUNDING_OFF = "HTA_DISABLE_NS_ROUNDING"


@dataclass(frozen=True)
class Answer:
    """HTA's result, or the exception that it raised."""

    found: dict[str, Any]
    error: str = ""


def hta_version() -> str:
    """The version of the installed HTA. DiagError if it is not installed."""
    try:
        return version("HolisticTraceAnalysis")
    except PackageNotFoundError as error:
        raise not_installed("HolisticTraceAnalysis", "hta") from error


def job(analysis: str, rank: int, path: Path, **settings: Any) -> dict[str, Any]:
    """One analysis of one file. The path is made absolute: HTA looks for a relative one in a folder of its own."""
    return {"job": analysis, "rank": rank, "path": str(path.absolute()), **settings}


def run_jobs(jobs: Sequence[dict[str, Any]], exact: bool = False, script: Path = SCRIPT) -> list[Answer]:
    """One answer per job, in order. ``exact``: HTA keeps nanoseconds; by default it rounds to microseconds."""
    environment = {**os.environ, **({_ROUNDING_OFF: "1"} if exact else {})}
    answers: list[Answer] = []
    while len(answers) < len(jobs):
        rest = jobs[len(answers) :]
        # Neither the current folder nor that of the script is on the path, so that no module there shadows HTA's.
        process = processes.run(
            processes.python(str(script)),
            environment,
            input=json.dumps(rest),
            capture_output=True,
            text=True,
            errors="replace",
            cwd=script.parent,  # libraries look for their settings in the current folder
        )
        whole_lines = [line for line in process.stdout.splitlines(keepends=True) if line.endswith("\n")]
        answers.extend(_answer(line) for line in whole_lines)
        if len(whole_lines) < len(rest):
            answers.append(Answer({}, _death(process)))
    return answers


def _answer(line: str) -> Answer:
    content = json.loads(line)
    return Answer(content.get("found") or {}, content.get("error", ""))


def _death(process: subprocess.CompletedProcess[str]) -> str:
    last = next((line for line in reversed(process.stderr.splitlines()) if line.strip()), "no error output")
    if process.returncode < 0:
        return f"HTA's process was ended by {signal.Signals(-process.returncode).name}: {last}"
    return f"HTA's process ended with exit code {process.returncode}: {last}"


_NS_PER_US = 1000


def cross_check(result: Result) -> CrossCheck:
    """Our numbers and HTA's for every trace of the run.

    Both measure from the first to the last device event that HTA keeps; only the window itself is compared with all
    device events that we read. A trace on which HTA fails is a line, not an error. DiagError if HTA is not installed.
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
    checks += [_uncompared(None, path, f"diag cannot read it; HTA: {a.error or 'reads it'}") for path, a in failed]
    notes = () if traces else ("no trace of the run could be read by both diag and HTA: nothing to compare",)
    return CrossCheck("hta", tool, tuple(checks), notes or _mixed_up(traces, answers[len(files) :]))


def ours_in(trace: Trace, begin_ns: int, end_ns: int) -> Measures:
    """Our account of a window, as in `diag analyze`, in HTA's terms. ``window_ns`` spans all device work."""
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
    hta_values = answer.found
    begin, end = (_ns(hta_values[key]) + trace.base_ns for key in ("begin_us", "end_us"))
    window, compute, idle = (_ns(hta_values[key]) for key in ("window_us", "compute_us", "idle_us"))
    hta = Measures(window, compute, _ns(hta_values["non_compute_us"]), idle, hta_values["overlap_percent"])
    own_measures = ours_in(trace, begin, end)
    comparisons = []
    for quantity in Quantity:
        values = own_measures.value(quantity), hta.value(quantity)
        comparisons.append(Comparison(quantity, *values, difference(*values, quantity)))
    return RankCheck(rank, str(trace.path), begin, end, tuple(comparisons))


def _ns(us: float) -> int:
    """Nanoseconds, exact also for microseconds since 1970, which as nanoseconds do not fit a float64."""
    whole_us = int(us)
    return whole_us * _NS_PER_US + round((us - whole_us) * _NS_PER_US)


def _uncompared(rank: int | None, path: Path, error: str) -> RankCheck:
    return RankCheck(rank, str(path), 0, 0, (), error)


def _unread(result: Result, read: Sequence[Path]) -> list[Path]:
    """Trace files that we could not read, without a run's own records."""
    layout = RunLayout(result.tables.root)
    if layout.is_run():
        files = {path for rank in job_ranks(layout, whole=True).files.values() for path in rank.traces()}
    else:
        files = {Path(gap.path) for gap in result.tables.gaps if gap.path.endswith((".json", ".json.gz"))}
    return sorted(path for path in files - set(read) if path.is_file())


def _mixed_up(traces: Sequence[tuple[int, Trace]], answers: Sequence[Answer]) -> tuple[str, ...]:
    """A note if HTA would assign ranks to the folder's files in another way than they were passed here."""
    if not answers or answers[0].error:
        return ()
    by_path = {Path(path): int(rank) for rank, path in answers[0].found.items()}
    lost = sorted({rank for rank, trace in traces if by_path.get(Path(trace.path).absolute()) != rank})
    if not lost:
        return ()
    return (
        f"given the folder, HTA reads {len(by_path)} of {len(traces)} traces. {rank_ranges(lost).capitalize()} would "
        "be missing or misassigned: HTA keeps one file per rank, and reads a file without a rank, or with the rank "
        'in compact JSON ("rank":3, no space), as rank 0. This comparison passes the ranks to HTA.',
    )


# -- HTA's own analyses ------------------------------------------------------------------------------------------------
#
# Analyses that are taken from HTA instead of being implemented again: the critical path inside one rank's step, and
# frequent kernel sequences.
#
# Both run without HTA's rounding and with the last step. Rounding gives events shorter than a microsecond an end before
# their begin, and HTA's call stacks then raise: on three of the tested real traces, no sequence was found with it.

OPERATOR = "autograd::engine::evaluate_function"  # around every node of a backward, in every trace of a training
LENGTH = 3
_MOST = 10
# HTA's types of edges that are not work.
_WAITS = {
    "critical_path_kernel_launch_delay": "launch delay",
    "critical_path_kernel_kernel_delay": "gap between kernels",
    "critical_path_sync_dependency": "synchronisation",
    "critical_path_dependency": "dependency",
}


def critical_path(result: Result, rank: int | None = None, step: int | None = None) -> CriticalPath:
    """HTA's critical path through a step of one rank: by default the lowest rank and its second step, because the first
    lacks work that was launched before the trace. It does not connect ranks; ``diag.account`` does that.

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
    """The most frequent sequences of at least ``length`` kernels, launched by one rank's operators whose names contain
    ``operator``; of nested operators HTA takes the outermost. By default of the lowest rank.

    DiagError for a rank that has no trace, or without HTA; HTA's own failure is in ``error``.
    """
    hta_version()
    rank, traces = _of_rank(result, rank)
    path = str(traces[0].path)
    hta_job = job("sequences", rank, Path(traces[0].path), operator=operator, length=length, most=_MOST)
    answer = run_jobs([hta_job], exact=True)[0]
    if answer.error:
        return KernelSequences(rank, path, operator, length, 0, (), answer.error)
    sequences = tuple(
        KernelSequence(pattern.split("|")[0], tuple(pattern.split("|")[1:]), int(count), _ns(device), _ns(host))
        for pattern, count, device, host in answer.found["sequences"]
    )
    return KernelSequences(rank, path, operator, length, answer.found["found"], sequences)


def _of_rank(result: Result, rank: int | None) -> tuple[int, Sequence[Trace]]:
    traced = {number: tables.traces for number, tables in sorted(result.tables.ranks.items()) if tables.traces}
    if not traced:
        raise DiagError("no rank has a trace for HTA to read", path=result.tables.root)
    chosen = next(iter(traced)) if rank is None else rank
    if chosen not in traced:
        raise DiagError(f"rank {chosen} has no trace", hint=f"there are traces of {rank_ranges(list(traced))}")
    return chosen, traced[chosen]


def _step(traces: Sequence[Trace], number: int | None) -> tuple[Trace, int, str]:
    """The trace that holds the step, the step's number and the name of its range."""
    marked = [(trace, *row) for trace in traces for row in step_ranges(trace).select("step", "name").iter_rows()]
    if not marked:
        raise DiagError("the trace has no step markers", hint="call prof.step() once per step", path=traces[0].path)
    if number is None:
        return marked[min(1, len(marked) - 1)]
    match = next((entry for entry in marked if entry[1] == number), None)
    if match is None:
        steps = ", ".join(str(step) for _, step, _ in marked)
        raise DiagError(f"step {number} is not in the trace", hint=f"there are steps {steps}", path=traces[0].path)
    return match


def _kind(edge: str, category: str, on_stream: bool, name: str) -> str:
    """The kind of an edge of HTA's path. HTA detects communication by one vendor's prefix; we use our own pattern."""
    if edge in _WAITS:
        return _WAITS[edge]
    category = names.category(category)
    if on_stream and category in (names.MEMCPY, names.MEMSET):
        return "copy or memset"
    if on_stream:
        is_comm = re.search(names.KERNEL_PATTERN, name) and not re.search(names.NOT_KERNEL_PATTERN, name)
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


# -- requests ----------------------------------------------------------------------------------------------------------
#
# The syntax of ``--hta``: ``critical-path:rank=3,step=7``.

_HINT = "for example: --hta critical-path:rank=0,step=5   --hta sequences:rank=0,operator=aten::linear,length=3"
_ANALYSES: dict[str, tuple[Callable[..., CriticalPath | KernelSequences], dict[str, Callable[[str], Any]]]] = {
    "critical-path": (critical_path, {"rank": int, "step": int}),
    "sequences": (kernel_sequences, {"rank": int, "operator": str, "length": int}),
}
Request = Callable[[Result], CriticalPath | KernelSequences]


def parse_request(text: str) -> Request:
    """The requested analysis, as a function of a result. DiagError, exit code 2, for an invalid text."""
    name, _, settings = text.partition(":")
    if name not in _ANALYSES:
        raise _usage(f"--hta {text}: unknown analysis; use {' or '.join(_ANALYSES)}")
    analysis, kinds = _ANALYSES[name]
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

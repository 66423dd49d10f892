"""What is checked of the recorded runs: pure functions over their folder and the machine.

Every check has a name, says what it expects and what it found, and passes, fails or does not apply, for a reason. One
that raises has failed, and what it raised is what it found; the others go on.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from diag.account import intervals as iv
from diag.account.gpu import COMM, device_work
from diag.account.trace_ranges import as_intervals, host_windows
from diag.api import analyze, open_run
from diag.collectors.device_times import blocked_by
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import DATA, DeviceRecord, DeviceStepRecord, StepRecord
from diag.diagnoses.memory_pressure import peaks_of
from diag.errors import DiagError
from diag.hang.api import triage
from diag.hang.flight.read import read_dumps
from diag.model.steps import Severity
from diag.planning.measured import measured
from diag.rundir.durations import RECORDER
from diag.rundir.inspector import read_inspector
from diag.rundir.inspector_files import alone
from diag.rundir.lines import read_lines
from diag.rundir.run import open_paths
from diag.traces.trace import Trace
from tests.bench._paired import paired_ratio
from tests.bench._plain_training import AGAIN, ALWAYS, BARE
from tests.bench.attach_overhead import of_job
from tests.busy import CONTENTION
from tests.copies import replace
from tests.gpu.plan import (
    ANSWERS,
    DEVICE,
    INSPECTOR,
    NCCL_HANG,
    OVERHEAD,
    PROBE,
    PROBED,
    RECORD,
    Machine,
    Planned,
    plan,
)

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"

# Bounds of what has to agree.
PEAK_ERROR = 0.01  # recorded peak of the allocator against torch's own, read within the same step
ESTIMATE_ERROR = 0.10  # `diag plan` against the recorded peak; largest of 53 CPU trainings 4.7 %, of 5 on an H200 0.8 %
CLOCK_ERROR, CLOCK_MS = 0.10, 2.0  # a step by CUDA events, without its data phase, against its kernels' span
INSPECTED = 0.8  # of the all-reduces that we recorded, Inspector's dumps have at least; the last may be missing
_ROUNDED = 2 << 20  # bytes that the allocator may add to a block
_SEEN_BYTES = 8192  # Inspector leaves out what is smaller


@dataclass(frozen=True)
class Check:
    """``reason``: why it does not apply, or what else is to be known."""

    name: str
    expected: str
    found: str
    state: str
    reason: str = ""


class NotApplicable(Exception):  # noqa: N818  (not an error)
    """A check that says nothing here, and why."""


Found = tuple[bool, str]


@dataclass(frozen=True)
class Checked:
    """A folder of runs: the machine, what was run and how it ended, and what was left out, and why."""

    folder: Path
    machine: Machine
    runs: dict[str, dict[str, Any]]
    left_out: dict[str, str]
    seconds: float = 0.0
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Checked:
        """DiagError where nothing was recorded."""
        try:
            content = json.loads((folder / RECORD).read_text())
        except (OSError, ValueError) as error:
            raise DiagError(f"no record of a check: {error}", path=folder / RECORD) from error
        known = {one.name for one in fields(Machine)}
        machine = Machine(**{key: value for key, value in content["machine"].items() if key in known})
        runs = {one["name"]: one for one in content["runs"]}
        return cls(folder, machine, runs, content["left_out"], content["seconds"], content.get("cases", {}))

    def run(self, name: str) -> RunLayout:
        """NotApplicable for a run that there is not."""
        if name not in self.runs:
            raise NotApplicable(f"{name} was not run: {self.left_out.get(name, 'it is not in the record')}")
        return RunLayout(self.folder / name)

    def is_busy(self, name: str) -> bool:
        """Whether more threads wanted to run than there were cores, while the run ended."""
        return bool(self.runs[name]["load"] > self.runs[name]["cores"])

    def on_gpu(self) -> None:
        if not self.machine.gpus:
            raise NotApplicable("there is no GPU")


def checks_of(checked: Checked) -> list[Check]:
    """Of the plan's runs in their order, then of what has to agree."""
    found = []
    for planned in plan(checked.machine):
        found.append(_checked(f"{planned.name}: ends", _expected_end(planned), ended, checked, planned))
        if planned.answer is not None:
            verdict = hang_verdict if planned.hangs else memory_verdict if planned.fills else step_verdict
            found.append(_checked(f"{planned.name}: verdict", _expected_answer(planned), verdict, checked, planned))
            if verdict is step_verdict:
                expected = f"{' or '.join(planned.answer.classes)}, {_at_fault(planned.answer.ranks)}"
                name = f"{planned.name}: class without its window"
                found.append(_checked(name, expected, windowless_class, checked, planned))
        elif planned.unchecked:
            found.append(Check(f"{planned.name}: verdict", "", "", NOT_APPLICABLE, planned.unchecked))
    found.extend(_checked(name, expected, check, checked) for name, expected, check in AGREEMENTS)
    return found


def _checked(name: str, expected: str, check: Callable[..., Found], *arguments: Any) -> Check:
    try:
        right, text = check(*arguments)
    except NotApplicable as why:
        return Check(name, expected, "", NOT_APPLICABLE, str(why))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = error.message if isinstance(error, DiagError) else f"{type(error).__name__}: {error}"
        return Check(name, expected, what, FAILED, f"the check itself failed ({Path(at.filename).name}:{at.lineno})")
    return Check(name, expected, text, PASSED if right else FAILED)


# -- trainings ---------------------------------------------------------------------------------------------------------


def _expected_end(planned: Planned) -> str:
    return "an exit code other than 0" if planned.hangs else "exit code 0"


def ended(checked: Checked, planned: Planned) -> Found:
    checked.run(planned.name)
    outcome = checked.runs[planned.name]
    if outcome["cut"]:
        raise NotApplicable(f"the time budget ended it after {outcome['seconds']:.0f} s")
    if planned.fills and outcome["exit_code"]:
        raise NotApplicable(f"the batch that was to fill the memory did not train: exit code {outcome['exit_code']}")
    late = f", ended by the limit of {planned.limit_s} s" if outcome["timed_out"] else ""
    right = bool(outcome["exit_code"]) == planned.hangs and not outcome["timed_out"]
    right &= outcome["seconds"] >= outcome.get("hangs_s", 0)  # else it failed before it could hang
    return right, f"exit code {outcome['exit_code']} after {outcome['seconds']:.0f} s{late}"


def _ran(checked: Checked, planned: Planned) -> RunLayout:
    layout = checked.run(planned.name)
    right, text = ended(checked, planned)
    if not right:
        raise NotApplicable(f"the training failed: {text}")
    return layout


def _expected_answer(planned: Planned) -> str:
    answer = planned.answer
    assert answer is not None
    cause = f", cause {' or '.join(answer.causes)}" if answer.causes else ""
    return f"{' or '.join(answer.classes)}{cause}, {_at_fault(answer.ranks)}"


def _at_fault(ranks: Iterable[int | None]) -> str:
    named = [str(rank) for rank in ranks]
    return f"at fault: rank {', '.join(named)}" if named else "no rank at fault"


def step_verdict(checked: Checked, planned: Planned) -> Found:
    """The class, the cause and the ranks of the verdict. Where others took the cores, that may be the verdict, rightly:
    then what was planted has to be among the findings."""
    answer = planned.answer
    assert answer is not None
    layout = _ran(checked, planned)
    behind = [name for name in checked.runs[planned.name].get("travels", {}).get("left_behind", {}) if "/trace" in name]
    if behind:
        raise NotApplicable(f"{', '.join(behind)} stayed on the machine: too large")
    result = open_run(layout.root)
    verdict = result.verdict
    said = "healthy" if verdict.severity is Severity.HEALTHY else str(verdict.bottleneck)
    right = (
        said in answer.classes
        and (not answer.causes or verdict.cause in answer.causes)
        and verdict.culprit_ranks == answer.ranks
    )
    findings = result.examination.findings
    if not right and not CONTENTION.isdisjoint(one.id for one in findings) and checked.is_busy(planned.name):
        right = not answer.causes or any(one.id in answer.causes and one.ranks == answer.ranks for one in findings)
        said = f"other processes took cores: {said}"
    others = [one.id for one in findings if one.id != verdict.cause]
    listed = f"; other findings: {', '.join(others)}" if others else ""
    cause = f", cause {verdict.cause}" if verdict.cause else ""
    return right, f"{said} ({verdict.share:.0%} of the step){cause}, {_at_fault(verdict.culprit_ranks)}{listed}"


def windowless_class(checked: Checked, planned: Planned) -> Found:
    """The same run without its profiler window: events on the devices and their utilization are what is left."""
    checked.on_gpu()
    answer = planned.answer
    assert answer is not None
    tables = open_paths([_ran(checked, planned).root])
    result = analyze(replace(tables, ranks={rank: replace(own, traces=()) for rank, own in tables.ranks.items()}))
    verdict = result.verdict
    said = "healthy" if verdict.severity is Severity.HEALTHY else str(verdict.bottleneck)
    right = said in answer.classes and verdict.culprit_ranks == answer.ranks
    sure = f"confidence {verdict.confidence:.0%}"
    return right, f"{said} ({sure}), {_at_fault(verdict.culprit_ranks)}: {verdict.headline}"


def hang_verdict(checked: Checked, planned: Planned) -> Found:
    answer = planned.answer
    assert answer is not None
    if planned.by_gloo or not (checked.machine.diag or checked.machine.gpus):
        raise NotApplicable("without diag run nobody asks the rank that hangs, and gloo's timeout leaves nothing of it")
    found = triage([str(_ran(checked, planned).root)])
    ranks = tuple(culprit.rank for culprit in found.culprits)
    return (
        found.fault_class in answer.causes and ranks == answer.ranks,
        f"hang, {found.fault_class}, {_at_fault(ranks)}",
    )


def memory_verdict(checked: Checked, planned: Planned) -> Found:
    answer = planned.answer
    assert answer is not None
    layout = _ran(checked, planned)
    findings = open_run(layout.root).examination.findings
    named = {rank for one in findings if one.id in answer.causes for rank in one.ranks}
    memories = [peak.reserved / peak.capacity for peak in peaks_of(open_paths([layout.root]))]
    full = f"{max(memories):.0%} of the memory reserved" if memories else "no peaks were recorded"
    return named == set(answer.ranks), f"{full}; {', '.join(one.id for one in findings) or 'no finding'}"


# -- what has to agree -------------------------------------------------------------------------------------------------


def flight_recorders(checked: Checked) -> Found:
    """Entries of every rank's recorders, read in the training's own process."""
    said = {rank: own["flight_recorders"] for rank, own in _probed(checked)}
    holding = [own for own in said.values() if own.get("nccl", 0) > 0 or (own and not checked.machine.gpus)]
    return len(holding) == checked.machine.ranks, _by_rank(said, _counts) or "no rank left what it holds"


def _counts(recorders: dict[str, int]) -> str:
    return ", ".join(f"{name or 'generic'} {count}" for name, count in recorders.items()) or "none holds an entry"


def _by_rank(said: dict[int, Any], words: Callable[[Any], str]) -> str:
    return "; ".join(f"rank {rank}: {words(one)}" for rank, one in sorted(said.items()))


def _probed(checked: Checked) -> Iterator[tuple[int, dict[str, Any]]]:
    for rank, files in checked.run(PROBE).ranks().items():
        yield rank, json.loads(files.at(PROBED).read_text())


def hang_dumps(checked: Checked) -> Found:
    """What the ranks left when they were asked during the hang, or NCCL's own dumps where nobody asked."""
    planned = next(one for one in plan(checked.machine) if one.hangs and one.name != NCCL_HANG)
    dumps = read_dumps([checked.run(planned.name).root]).dumps
    wanted = "nccl" if checked.machine.gpus and not planned.by_gloo else "gloo"
    said = _by_rank(dumps, lambda dump: f"{dump.entries} of {dump.backend or 'an unknown backend'}")
    waiting = set(range(2 if planned.by_gloo else checked.machine.ranks)[:-1])  # the last rank hangs
    return waiting <= {rank for rank, one in dumps.items() if one.entries and wanted in one.backend}, said or "no dump"


def device_samples(checked: Checked) -> Found:
    checked.on_gpu()
    said, sampled = {}, 0
    for rank, files in checked.run("ddp").ranks().items():
        samples, _ = read_lines(files.device, DeviceRecord)
        real = [(one.sm_clock_mhz, one.power_mw) for one in samples if one.sm_clock_mhz and one.power_mw]
        sampled += bool(real)
        why = next((one.unavailable for one in samples if one.unavailable), "no sample has clock and power")
        said[rank] = f"{len(real)} samples, {real[-1][0]} MHz, {real[-1][1] / 1e3:.0f} W" if real else why
    return sampled == checked.machine.ranks, _by_rank(said, str) or "no rank left any"


def peaks(checked: Checked) -> Found:
    """The largest difference over the steps of all ranks."""
    checked.on_gpu()
    errors: list[tuple[float, str]] = []
    layout = checked.run(PROBE)
    for rank, own in _probed(checked):
        steps, _ = read_lines(layout.rank(rank).steps, StepRecord)
        recorded = {one.step: one.memory.allocated for one in steps if one.memory is not None and one.memory.allocated}
        for step, torchs in own["peaks"].items():
            if (ours := recorded.get(int(step))) is not None:
                where = f"rank {rank}, step {step}: {ours:,} bytes recorded, {torchs:,} by torch"
                errors.append((abs(ours / torchs - 1), where))
    if not errors:
        return False, "no step has both peaks"
    worst, where = max(errors)
    return worst <= PEAK_ERROR, f"largest difference of {len(errors)} steps {worst:.2%} ({where})"


def estimates(checked: Checked) -> Found:
    """The estimate of ``diag plan --measured`` for the same training."""
    checked.on_gpu()
    said, right, reasons = [], True, []
    for name in ("ddp", "fsdp2"):
        if name not in checked.runs:
            continue
        found = measured(open_paths([checked.run(name).root]))
        if not found.rows:
            reasons.append(f"{name}: {found.unknown or 'no estimate'}")
            continue
        row = found.rows[0]
        right &= abs(row.error) <= ESTIMATE_ERROR
        estimate, recorded = row.estimate / 1e9, row.measured / 1e9
        said.append(f"{name}: estimated {estimate:.2f} GB, recorded {recorded:.2f} GB ({row.error:+.1%})")
    if not said:
        raise NotApplicable("; ".join(reasons) or "neither ddp nor fsdp2 was run")
    return right, "; ".join(said + reasons)


def clocks(checked: Checked) -> Found:
    """Steps of the profiler window on the clock of CUDA events against their kernels in the trace."""
    checked.on_gpu()
    said, right = [], True
    for name in ("ddp", "fsdp2"):
        if name not in checked.runs:
            continue
        tables = open_paths([checked.run(name).root])
        right &= len(tables.ranks) == checked.machine.ranks
        for rank, own in tables.ranks.items():
            compared = spans(checked.run(name).rank(rank), own.traces)
            if not compared:
                right = False
                said.append(f"{name}, rank {rank}: no step has both")
                continue
            step, events, kernels = max(compared, key=lambda one: abs(one[1] - one[2]) / one[2])
            right &= all(agree(events, kernels) for _, events, kernels in compared)
            text = f"{len(compared)} steps, farthest apart in step {step}"
            said.append(f"{name}, rank {rank}: {text}: {events:.1f} ms by events, {kernels:.1f} by kernels")
    if not said:
        raise NotApplicable("neither ddp nor fsdp2 was run")
    return right, "; ".join(said)


def agree(events_ms: float, kernels_ms: float) -> bool:
    return abs(events_ms - kernels_ms) <= CLOCK_ERROR * kernels_ms + CLOCK_MS


def spans(files: RankLayout, traces: Iterable[Trace]) -> list[tuple[int, float, float]]:
    """(step, milliseconds by events without the data phase, milliseconds from the first to the last work that the host
    launched in the step)."""
    records, _ = read_lines(files.device_steps, DeviceStepRecord)
    by_events = {
        one.step: one.dur_ns - sum(end - start for phase, start, end in one.phases if phase == DATA) for one in records
    }
    found = []
    for trace in traces:
        work = device_work(trace)
        for step, begin, end in host_windows(trace):
            launched = work.filter(pl.col("launch_known_ns").is_between(begin, end))
            if step in by_events and len(launched):
                span = launched["end_ns"].to_numpy().max() - launched["ts_ns"].to_numpy().min()
                found.append((step, by_events[step] / 1e6, float(span) / 1e6))
    return found


def inspector(checked: Checked) -> Found:
    layout = checked.run(INSPECTOR)
    files = alone([layout.at("inspector")])
    if not files:
        return False, "Inspector wrote no files"
    read = read_inspector(files)
    seen = len(read.rows.filter(pl.col("op") == "all_reduce"))
    ranks = open_paths([layout.root]).ranks
    ours = sum(row.op == "all_reduce" and row.bytes >= _SEEN_BYTES for own in ranks.values() for row in own.rows)
    right = len(read.processes) == checked.machine.ranks and INSPECTED * ours <= seen
    return right, f"{len(read.processes)} processes, {seen} all-reduces of {_SEEN_BYTES} bytes or more; {ours} recorded"


def recorder_durations(checked: Checked) -> Found:
    """What the ranks took from PyTorch's Flight Recorder, against the all-reduces that we recorded."""
    checked.on_gpu()
    if checked.machine.ranks < 2:
        raise NotApplicable("a group of one rank waits for nobody: its durations are not kept")
    tables = open_paths([checked.run("ddp").root])
    if tables.durations is None:
        return False, "no rank left durations.jsonl"
    read, ranks = tables.durations
    if read.source != RECORDER:
        raise NotApplicable(f"{read.source} recorded them")
    said, right = {}, len(ranks) == checked.machine.ranks
    for at, rank in ranks.items():
        seen = len(read.rows.filter((pl.col("process") == at) & (pl.col("op") == "all_reduce")))
        ours = sum(row.op == "all_reduce" for row in tables.ranks[rank].rows)
        right &= INSPECTED * ours <= seen
        said[rank] = f"{seen} all-reduces with a duration, {ours} recorded"
    return right, _by_rank(said, str)


def overhead(checked: Checked) -> Found:
    """Ratios of recorded steps to bare ones, and of bare ones to bare ones, of the slowest rank: none is asserted."""
    folder = checked.run(OVERHEAD).root
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(checked.machine.ranks)]
    bare, again, recorded = (np.array([wall for wall, _ in of_job(ranks, mode)]) for mode in (BARE, AGAIN, ALWAYS))
    both = list((bare + again) / 2)
    clock = "the device's clock" if checked.machine.gpus else "the host's clock"
    text = f"{paired_ratio(list(recorded), both)}; bare against bare {paired_ratio(list(again), list(bare))}"
    return True, f"{text}; {len(both)} turns, {1e3 * median(both):.1f} ms a step on {clock}"


# -- what the GPU's libraries answer ---------------------------------------------------------------------------------


def _answer(checked: Checked, question: str) -> dict[str, Any]:
    """NotApplicable where it was not asked; DiagError where it raised."""
    checked.on_gpu()
    path = checked.run(DEVICE).at(ANSWERS)
    try:
        answers = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DiagError(f"the process left no answers: {error}", path=path) from error
    if question not in answers:
        raise NotApplicable(f"not asked: the process ended before, at {list(answers)[-1]}")
    said = answers[question]
    if "answer" not in said:
        raise DiagError(f"{question}: {said.get('error', 'no answer')}")
    found: dict[str, Any] = said["answer"]
    return found


def event_clock(checked: Checked) -> Found:
    said = _answer(checked, "events")
    events, host = said["events_ms"], said["host_ms"]
    text = (
        f"a kernel took {events:.2f} ms by events and {host:.2f} ms on the host, which had launched it after "
        f"{said['launch_ms']:.2f} ms; to record an event takes the host {said['record_us']:.1f} us, to query it "
        f"{said['query_us']:.1f} us; {said['matmul_tflop_s']:.0f} TFLOP/s in bf16"
    )
    return not said["passed_at_once"] and agree(events, host), text


_SAMPLED = ("sm_clock_mhz", "memory_clock_mhz", "power_mw", "temperature_c", "utilization_percent")


def driver_fields(checked: Checked) -> Found:
    """Fields that the driver left empty are named: a device that does not offer them is no fault of ours."""
    said = _answer(checked, "samples")
    last = said["samples"][-1]
    if last.get("unavailable"):
        return False, str(last["unavailable"])
    health = last.get("health") or {}
    empty = [name for name, value in {**last, **health}.items() if value is None and name != "unavailable"]
    given = ", ".join(f"{name} {last[name]}" for name in _SAMPLED if last.get(name) is not None)
    busy = max((one.get("utilization_percent") or 0 for one in said["samples"]), default=0)
    text = f"{given}; up to {busy} % used; all fields take {said['everything_ms']:.1f} ms; empty: "
    return all(last.get(name) is not None for name in _SAMPLED), text + (", ".join(empty) or "none")


def native_durations(checked: Checked) -> Found:
    said = _answer(checked, "recorders")
    durations = said.get("durations_ms", [])
    held = ", ".join(f"{name or 'generic'} {count} bytes" for name, count in said["bytes"].items()) or "nothing"
    if not durations:
        return False, f"no entry has a duration; the recorders hold: {held}; states: {said.get('states')}"
    ours, theirs = said["events_ms"], median(durations)
    text = f"{len(durations)} of {said['entries']} entries have a duration, in the middle {theirs:.3f} ms"
    return "nccl" in said["bytes"] and agree(theirs, ours), f"{text}; by events {ours:.3f} ms each; {held}"


def profiler_window(checked: Checked) -> Found:
    said = _answer(checked, "window")
    kinds = said["kinds"]
    kernels = kinds.get("kernel", 0)
    text = (
        f"{kernels} kernels of {sum(kinds.values())} events, {said['bytes'] / 1e6:.1f} MB in {said['export_s']:.2f} s"
    )
    return kernels > 0, text if kernels else f"{text}: CUPTI gave none (permissions, or another profiler)"


def allocator_calls(checked: Checked) -> Found:
    said = _answer(checked, "memory")
    right = abs(said["grown"] - said["asked"]) <= _ROUNDED and said["events"] > 0 and bool(said["observer_told"])
    return right, (
        f"{said['asked']:,} bytes asked, peak grew by {said['grown']:,}; {said['events']} events in a snapshot of "
        f"{1e3 * said['snapshot_s']:.0f} ms; the observer of a failed allocation was told "
        f"{len(said['observer_told'])} times"
    )


def captured_graph(checked: Checked) -> Found:
    answers = _answer(checked, "graphs")["answers"]
    return all(wanted in answers for wanted in ("mode set: True", "query: True", "capturing: True")), "; ".join(answers)


def compiler(checked: Checked) -> Found:
    said = _answer(checked, "compiled")
    return True, f"{said['seconds']:.1f} s for a small function"


def nccl_hang(checked: Checked) -> Found:
    """NCCL's own dump of a collective that never started, and what the triage says of it."""
    checked.on_gpu()
    layout = checked.run(NCCL_HANG)
    dumps = read_dumps([layout.root]).dumps
    said = _by_rank(dumps, lambda dump: f"{dump.entries} entries of {dump.backend}, {len(dump.pending)} pending")
    found = triage([str(layout.root)])
    ranks = tuple(culprit.rank for culprit in found.culprits)
    right = all("nccl" in dump.backend and dump.pending for dump in dumps.values()) and bool(dumps)
    return right, f"{said or 'no dump'}; the triage says {found.fault_class}, {_at_fault(ranks)}"


def overlap(checked: Checked) -> Found:
    """Exposed communication of the steps in the profiler window: where the training's stream waited, by CUDA events,
    against the time in which only NCCL's kernels ran. On a shared GPU the two differ: the kernels of a rank pause for
    the turns of the other one, while its NCCL kernel runs on."""
    checked.on_gpu()
    if checked.machine.ranks < 2:
        raise NotApplicable("a group of one rank exchanges nothing: it takes two GPUs")
    said, right = [], True
    for name in ("ddp", "fsdp2"):
        if name not in checked.runs:
            continue
        for rank, own in open_paths([checked.run(name).root]).ranks.items():
            waited, alone_ns = exposures(checked.run(name).rank(rank), own.traces)
            if not waited:
                said.append(f"{name}, rank {rank}: no step has both")
                continue
            events, kernels = sum(waited) / 1e6 / len(waited), sum(alone_ns) / 1e6 / len(alone_ns)
            right &= agree(events, kernels)
            said.append(f"{name}, rank {rank}: {events:.2f} ms a step by events, {kernels:.2f} by kernels")
    if not said:
        raise NotApplicable("neither ddp nor fsdp2 was run")
    if checked.machine.shared:
        return True, f"{'; '.join(said)}; not asserted: the ranks take turns on one GPU"
    return right, "; ".join(said)


def exposures(files: RankLayout, traces: Iterable[Trace]) -> tuple[list[int], list[int]]:
    """Exposed communication of each step that has both, in nanoseconds: by events, and by kernels."""
    records, _ = read_lines(files.device_steps, DeviceStepRecord)
    by_events = {
        one.step: iv.total(iv.union(np.array([blocked_by(call) or (0, 0) for call in one.collectives]).reshape(-1, 2)))
        for one in records
    }
    waited, alone_ns = [], []
    for trace in traces:
        work = device_work(trace)
        for step, begin, end in host_windows(trace):
            launched = work.filter(pl.col("launch_known_ns").is_between(begin, end))
            if step not in by_events or not len(launched):
                continue
            comm = pl.col("class") == COMM
            talking, rest = (iv.union(as_intervals(launched.filter(one))) for one in (comm, ~comm))
            waited.append(int(by_events[step]))
            alone_ns.append(int(iv.total(iv.subtract(talking, rest))))
    return waited, alone_ns


# What no CPU can show, the most telling first.
_BOUND = f"within {CLOCK_ERROR:.0%} + {CLOCK_MS:g} ms"
AGREEMENTS: tuple[tuple[str, str, Callable[[Checked], Found]], ...] = (
    ("device clock", f"steps by CUDA events {_BOUND} of their kernels' span", clocks),
    ("overlap", f"exposed communication by CUDA events {_BOUND} of that by kernels", overlap),
    ("diag plan", f"estimated peaks within {ESTIMATE_ERROR:.0%} of the recorded ones", estimates),
    ("peaks of memory", f"recorded peaks within {PEAK_ERROR:.0%} of torch.cuda.max_memory_allocated", peaks),
    ("driver's fields", f"{', '.join(_SAMPLED)}", driver_fields),
    ("device samples", "a sample with clock and power on every rank", device_samples),
    ("Flight Recorder's clock", f"NCCL's entries have durations, {_BOUND} of CUDA events", native_durations),
    ("Flight Recorder", "the backend's recorder holds entries on every rank", flight_recorders),
    (
        "durations from the Flight Recorder",
        f"on every rank, of {INSPECTED:.0%} of the recorded all-reduces",
        recorder_durations,
    ),
    ("NCCL Inspector", f"every rank's process, and {INSPECTED:.0%} of the recorded all-reduces", inspector),
    ("NCCL hang", "a dump of NCCL's recorder on every rank, with the collective that never ended", nccl_hang),
    ("Flight Recorder of the hang", "a dump with entries of every waiting rank", hang_dumps),
    ("overhead", "measured; nothing is asserted", overhead),
    ("CUDA events", f"a kernel by events {_BOUND} of the host's clock; no event has passed at once", event_clock),
    ("profiler window", "kernels", profiler_window),
    ("allocator", "peaks grow by what is asked; events in the history; the observer is told", allocator_calls),
    ("graph capture", "another thread may query events while a graph is captured", captured_graph),
    ("torch.compile", "measured; nothing is asserted", compiler),
)

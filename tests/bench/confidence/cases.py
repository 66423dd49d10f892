"""Cases with a known truth for the confidence: what it is computed from, and whether the answer was right.

The grid's own cases are nearly all right, which teaches nothing. So there are harder ones: windows of a few steps out
of a longer run, whose truth is that of the long run; steps that vary; costs near the thresholds; faults in a few steps
only; ranks that were not recorded. An answer is right if its class, its cause and its ranks are. A case that nobody can
tell from what was recorded is a wrong answer here, not an abstention.
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from diag.api import Result, analyze, open_run
from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, FORWARD
from diag.diagnoses.confidence import Features
from diag.diagnoses.verdict import evidence_of
from diag.errors import DiagError
from diag.model.steps import Severity
from diag.rundir.tables import Tables
from diag.show.json import to_json
from diag.summaries import open_summaries
from tests.bench import planted_devices
from tests.bench.grid.cases import NOT_KEPT, TRACE_ROWS, answer
from tests.bench.grid.device_rows import DEVICE_ROWS, without_window, write_device_run
from tests.bench.grid.gpu.costs import costs_of, share_of
from tests.bench.grid.gpu.job import Job
from tests.bench.grid.gpu.kineto import write_traces
from tests.bench.grid.gpu.recorded import write_run as write_recorded
from tests.bench.grid.gpu.rows import HALVES, TUNING, Half, Row
from tests.bench.grid.gpu.simulate import simulate
from tests.bench.grid.record_rows import RECORD_ROWS, Extra, RecordRun, analysed, base_plan, record_truth
from tests.bench.grid.truth import HEALTHY, Answer, Truth
from tests.bench.real_traces import __main__ as real_traces
from tests.copies import replace
from tests.simulate import MS, Plan, without_collectives, without_rank, write_run

HERE = Path(__file__).parent
SEEN, UNSEEN = HERE / "seen.csv", HERE / "unseen.csv"
FEATURES = tuple(field.name for field in msgspec.structs.fields(Features))


@dataclass(frozen=True)
class Case:
    """``most``: the bound of the rules that hold, ``rules``; 1 for none."""

    set: str
    name: str
    right: bool
    features: dict[str, float]
    most: float = 1.0
    rules: str = ""


def case_of(group: str, name: str, result: Result, right: bool) -> Case | None:
    """None where the verdict is left open, which has no confidence."""
    evidence = evidence_of(result.attribution, result.examination, result.coverage, result.tables)
    if evidence is None:
        return None
    found, rules = evidence
    values = {name: round(value, 5) for name, value in msgspec.structs.asdict(found).items()}
    most = min((rule.most for rule in rules), default=1.0)
    return Case(group, name, right, values, round(most, 4), "; ".join(rule.name for rule in rules))


_LEFT_OPEN = frozenset({"straggler-rank-unknown", "straggler-cause-unknown"})  # and so they are not wrong


def is_right(result: Result, truth: Truth) -> bool:
    """Whether the class, the cause and the ranks are. Of several ranks that are at fault, all may be named."""
    said = answer(result)
    named = set(said.culprits)
    if said.cause in _LEFT_OPEN and not named:
        return any(said.bottleneck == right.bottleneck for right in truth.right)
    return any(
        said.bottleneck == right.bottleneck
        and (right.bottleneck == "healthy" or said.cause in right.causes or said.cause in _LEFT_OPEN)
        and (() in right.culprits if not named else _are_at_fault(named, right.culprits))
        for right in truth.right
    )


def _are_at_fault(named: set[int], at_fault: Sequence[tuple[int, ...]]) -> bool:
    whole = [set(ranks) for ranks in at_fault if ranks and set(ranks) <= named]
    return bool(whole) and set().union(*whole) == named


# -- the grid, and harder cases of it ----------------------------------------------------------------------------------

_SMALL_ROWS = tuple(row for row in TRACE_ROWS if "large" not in row.id and not row.id.startswith("Q2"))
_LONG = 8  # steps of a traced job that the truth is measured on


def simulated(case: str) -> Case | None:
    """By its id, SET/ROW/NUMBER, which decides everything about it."""
    group, row_id, number = case.split("/")
    kind, half_name = group.split("-")
    half, rng = HALVES[half_name], Random(case)
    hard = kind == "hard"
    share = _share(rng) if hard else half.shares[int(number) % len(half.shares)]
    if row_id == "records":
        result, truth = _hard_records(half, rng)
    elif row_id == "summaries":
        result, truth = _summaries(half, rng)
    elif row_id == "devices":
        devices = planted_devices.hard(rng, half_name == TUNING)
        result, truth = planted_devices.analysed(devices), planted_devices.truth_for(devices)
    elif row_id == "samples":
        result, truth = _sample(rng)
    elif row := next((row for row in RECORD_ROWS if row.id == row_id), None):
        run = row.make(half, rng, share)
        result, truth = analyze(analysed(run)), record_truth(run)
    else:
        with tempfile.TemporaryDirectory() as folder:
            device = next((row for row in DEVICE_ROWS if row.id == row_id), None)
            make = _device if device is not None else _traces
            traced = device or next(row for row in TRACE_ROWS if row.id == row_id)
            try:
                result, truth = make(traced, half, rng, share, hard, Path(folder))
            except DiagError:
                return None
    return case_of(group, case, result, is_right(result, truth))


def _share(rng: Random) -> float:
    return rng.choice((rng.uniform(0.02, 0.4), rng.uniform(0.06, 0.16)))


def _truth_of(job: Job, row: Row) -> Truth:
    from tests.bench.grid.truth import truth_of

    return truth_of(costs_of(job), share_of(job, row.rid, simulate(job, keep=True).step_ns))


def _traces(row: Row, half: Half, rng: Random, share: float, hard: bool, folder: Path) -> tuple[Result, Truth]:
    job = row.make(half, rng, share)
    if hard:
        job = replace(job, jitter=rng.choice((job.jitter, 0.05, 0.15, 0.3)), steps=_LONG)
    truth = _truth_of(job, row)
    if hard:
        job = replace(job, steps=rng.choice((2, 2, 3, 4, 6)), seed=rng.randrange(1 << 30))
    found = simulate(job, keep=True)
    if job.recorded is not None:
        paths = write_recorded(job, job.recorded, found.ranks, found.step_ns, folder)
    else:
        paths = write_traces(job, found.ranks, folder)
    for rank in _missing(job.world, rng, hard or row.id.startswith("Q2")):
        paths[rank].unlink()
    return open_run(folder, reading=NOT_KEPT), truth


def _device(row: Row, half: Half, rng: Random, share: float, hard: bool, folder: Path) -> tuple[Result, Truth]:
    job = row.make(half, rng, share)
    if hard:
        job = replace(job, jitter=rng.choice((job.jitter, 0.05, 0.15)))
    write_device_run(job, simulate(job, keep=True).ranks, folder, rng)
    return open_run(folder, reading=NOT_KEPT), without_window(_truth_of(job, row))


def _missing(world: int, rng: Random, may: bool) -> list[int]:
    if not may or world < 2 or rng.random() < 0.65:
        return []
    return rng.sample(range(world), rng.choice((1, 1, world // 2, world - 1)) or 1)


_PHASES = (DATA, FORWARD, FORWARD, BACKWARD, "gc", CHECKPOINT)


def _planted(half: Half, rng: Random) -> tuple[Plan, list[Extra], int]:
    """The plan, what is added to it, and the length of a step in nanoseconds. At most one of the faults makes a rank
    late by itself: two of them hide behind each other, and then no share is the truth."""
    plan = replace(base_plan(half, rng), jitter=rng.choice((0.02, 0.05, 0.1, 0.2, 0.4)), steps=rng.choice((20, 40, 80)))
    if plan.steps > 40:
        plan = replace(plan, ranks=min(plan.ranks, 4))
    length = plan.units * plan.unit_ns * 3
    extras: list[Extra] = []
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        every, phase, share = rng.choice((1, 1, 1, 2, 4, 8)), rng.choice(_PHASES), _share(rng)
        if phase == DATA and every > 1:
            every = 4  # what two findings would name rightly is no test of either
        rotate = phase == FORWARD and every == 1 and rng.random() < 0.2
        rank = None if rotate or (phase == DATA and rng.random() < 0.5) else rng.randrange(plan.ranks)
        extras.append(Extra(phase, round(every * length * share / (1 - share)), rank, every, rotate))
    late = [extra for extra in extras if extra.rank is not None or extra.rotate]
    return plan, [extra for extra in extras if extra not in late[1:]], length


def _hard_records(half: Half, rng: Random) -> tuple[Result, Truth]:
    plan, extras, length = _planted(half, rng)
    run = RecordRun(plan, tuple(extras))
    if rng.random() < 0.3 or not extras:
        each, tail = round(length * (s := _share(rng)) / (1 - s) / (2 * plan.units + 1)), rng.random() < 0.5
        run = replace(run, tail_rank=rng.randrange(plan.ranks), tail_ns=each) if tail else replace(run, wire_ns=each)
    if rng.random() < 0.2:
        offset = rng.choice((MS, 20 * MS, 300 * MS))
        clock, hosts = lambda rank, now: now + (offset if rank % 2 else 0), lambda rank: f"host-{rank % 2}"
        run = replace(run, plan=replace(run.plan, clock=clock, hosts=hosts))
    truth, tables = record_truth(run), run.tables()
    length_steps = min(plan.steps - 3, round(np.exp(rng.uniform(0, np.log(70)))))
    first = rng.randrange(plan.steps - length_steps - 2)
    tables = _window(tables, range(first, first + length_steps + 2))
    for rank in _missing(plan.ranks, rng, True):
        tables = without_rank(tables, rank)
    if rng.random() < 0.08:
        tables = without_collectives(tables)
    return analyze(tables), truth


def _summaries(half: Half, rng: Random) -> tuple[Result, Truth]:
    """From what the ranks condensed of a run of records."""
    plan, extras, _ = _planted(half, rng)
    run = RecordRun(plan, tuple(extras))
    with tempfile.TemporaryDirectory() as folder:
        return open_summaries(write_run(run.tables(), Path(folder)).root), record_truth(run)


def _sample(rng: Random) -> tuple[Result, Truth]:
    """A sample run of which some ranks were not recorded, or some steps only."""
    from tests.diagnoses.test_samples import EXPECTED, SAMPLES

    name = rng.choice(sorted(EXPECTED))
    bottleneck, cause, culprits = EXPECTED[name]
    tables = open_run(SAMPLES / name, reading=NOT_KEPT).tables
    steps = sorted({int(step) for own in tables.ranks.values() for step in own.steps.step})
    count = rng.randrange(min(4, len(steps)), len(steps) + 1)
    first = rng.randrange(len(steps) - count + 1)
    tables = _window(tables, range(steps[first], steps[first + count - 1] + 1))
    for rank in _missing(len(tables.ranks), rng, True):
        tables = without_rank(tables, rank)
    right = Answer(bottleneck if cause else HEALTHY, frozenset({cause} if cause else ()), (culprits,))
    return analyze(tables), Truth((right,), abstain=False, share=0.0, shares=())


def _window(tables: Tables, numbers: range) -> Tables:
    """What was recorded of these steps."""
    ranks = {}
    for rank, own in tables.ranks.items():
        steps = own.steps.take(np.isin(own.steps.step, numbers))
        within = (own.rows.start_ns >= steps.begin_ns[0]) & (own.rows.start_ns < steps.end_ns[-1])
        ranks[rank] = replace(own, steps=steps, rows=own.rows.take(within))
    return replace(tables, ranks=ranks)


def ids(half: str, grid: int, hard: int, records: int, first: int = 0) -> list[str]:
    """``grid``: cases of each row of the grid; ``hard``: harder ones of each; ``records``: harder runs of records, and
    a sixth as many from summaries of records, and of devices, and a twentieth from parts of the samples. ``first``: the
    number of the first of each."""
    rows = [row.id for row in (*TRACE_ROWS, *RECORD_ROWS, *DEVICE_ROWS)]
    harder = [row.id for row in (*_SMALL_ROWS, *DEVICE_ROWS)]
    return [
        *(f"grid-{half}/{row}/{n}" for n in range(first, first + grid) for row in rows),
        *(f"hard-{half}/{row}/{n}" for n in range(first, first + hard) for row in harder),
        *(f"hard-{half}/records/{n}" for n in range(first, first + records)),
        *(f"hard-{half}/{row}/{n}" for n in range(first, first + records // 6) for row in ("summaries", "devices")),
        *(f"hard-{half}/samples/{n}" for n in range(first, first + records // 20)),
    ]


def collected(names: Sequence[str], jobs: int, told: Callable[[str], object] = lambda text: None) -> list[Case]:
    os.environ["OMP_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = "1"
    found = []
    with ProcessPoolExecutor(jobs) as pool:
        for at, case in enumerate(pool.map(simulated, names, chunksize=4)):
            if case is not None:
                found.append(case)
            if at % 50 == 49:
                told(f"{at + 1} of {len(names)}, {sum(not case.right for case in found)} wrong")
    return found


# -- files -------------------------------------------------------------------------------------------------------------


def write(cases: Iterable[Case], path: Path) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("set", "name", "right", *FEATURES, "most", "rules"))
        for case in sorted(cases, key=lambda case: (case.set, case.name)):
            values = (f"{case.features[name]:g}" for name in FEATURES)
            out.writerow((case.set, case.name, int(case.right), *values, f"{case.most:g}", case.rules))


def read(path: Path) -> list[Case]:
    with path.open(newline="") as file:
        return [
            Case(
                row["set"],
                row["name"],
                row["right"] == "1",
                {name: float(row[name]) for name in FEATURES},
                float(row["most"]),
                row["rules"],
            )
            for row in csv.DictReader(file)
        ]


# -- traces of other projects, and the sample runs ---------------------------------------------------------------------

# Where the first run of a set that nobody had seen was wrong (tests/bench/REAL_TRACES.md): what was built afterwards to
# make these right says nothing of traces that are still to come, so they stay wrong here.
FIRST_WRONG = frozenset({
    "owlv2_unlabelled", "tp8_without_slow", "trec_sleep", "trec_a2a_sleep", "trec_sleep_big", "trec_two_runs",
    "dualpipe_deepep", "mps_training", "mps_matmul", "hta_backward_fixture", "three_models_one_folder",
})  # fmt: skip


def public(path: Path, mirror: Path, told: Callable[[str], object] = lambda text: None) -> list[Case]:
    """The cases of such a file whose repositories are in the mirror (``tests.bench.real_traces``), with the outcome of
    their first run."""
    found = []
    for case in json.loads(path.read_text()):
        with tempfile.TemporaryDirectory() as folder:
            try:
                real_traces.lay_out(case, mirror, Path(folder))
                result = open_run(folder, reading=NOT_KEPT)
            except (real_traces.UnfetchedError, DiagError):
                continue
            expect = {key: value for key, value in case["expect"].items() if key != "max_confidence"}
            right = not real_traces.judge(json.loads(to_json(result)), expect) and expect.get("refused") is not True
            right = right and case["name"] not in FIRST_WRONG
            row = case_of(f"public-{case['split']}", f"public-{case['split']}/{case['name']}", result, right)
            if row is not None:
                found.append(row)
            told(f"{case['name']}: {'open' if row is None else right}")
    return found


def samples() -> list[Case]:
    from tests.diagnoses.test_samples import EXPECTED, SAMPLES

    found = []
    for name, (bottleneck, cause, culprits) in EXPECTED.items():
        result = open_run(SAMPLES / name)
        verdict = result.verdict
        right = (verdict.bottleneck, verdict.culprit_ranks) == (bottleneck, culprits)
        right = right and (verdict.cause == cause if cause else verdict.severity == Severity.HEALTHY)
        case = case_of("samples", f"samples/{name}", result, right)
        assert case is not None
        found.append(case)
    return found

"""A case of the grid by its id: HALF/ROW/NUMBER. The id and the seed decide everything about it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from diag.api import Result, analyze, open_run
from diag.errors import DiagError
from diag.model.steps import Severity
from diag.replay.predict import baseline
from diag.replay.program import Refusal
from diag.traces.cache import Cache
from diag.traces.reading import Reading
from tests.bench.grid.device_rows import DEVICE_ROWS, without_window, write_device_run
from tests.bench.grid.gpu.costs import costs_of, share_of
from tests.bench.grid.gpu.job import Job
from tests.bench.grid.gpu.kineto import write_traces
from tests.bench.grid.gpu.recorded import write_run as write_recorded
from tests.bench.grid.gpu.recorded_rows import MORE_ROWS
from tests.bench.grid.gpu.rows import GPU_ROWS, HALVES, Row
from tests.bench.grid.gpu.simulate import simulate
from tests.bench.grid.inspector_rows import INSPECTOR_ROWS, STRAGGLER, inspector_truth, write_inspector
from tests.bench.grid.record_rows import RECORD_ROWS, RecordRow, analysed, record_truth
from tests.bench.grid.truth import HEALTHY, UNDETERMINED, Truth, truth_of
from tests.copies import replace
from tests.simulate import write_run

TRACE_ROWS = (*GPU_ROWS, *MORE_ROWS)
ABSTAINS = 0.6  # diag's own word for "this may be wrong"
NOT_KEPT = Reading(cache=Cache(None), jobs=1)


@dataclass(frozen=True)
class Said:
    """What was answered: ``bottleneck`` is "healthy" where the severity is."""

    bottleneck: str
    cause: str
    culprits: tuple[int, ...]
    confidence: float
    share: float
    headline: str
    found: tuple[str, ...] = ()  # every finding that costs a twentieth of the step, the verdict's among them


@dataclass(frozen=True)
class Replayed:
    """How far the replay of the unchanged steps is off (0.02 is 2 %); None where it ``refused``, with the reason."""

    error: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Scored:
    """One case: what is right, what was said. ``asked``: the part of the step that the fault was to cost."""

    id: str
    asked: float
    graded: bool
    truth: Truth
    said: Said
    job: str
    replay: Replayed = Replayed()

    @property
    def row(self) -> str:
        return self.id.split("/")[1]

    @property
    def abstained(self) -> bool:
        return self.said.bottleneck == UNDETERMINED or (
            self.truth.abstain and self.said.confidence <= ABSTAINS and not self.said.culprits
        )

    @property
    def verdict_right(self) -> bool:
        return (self.truth.abstain and self.abstained) or any(
            answer.bottleneck == self.said.bottleneck for answer in self.truth.right
        )

    @property
    def cause_right(self) -> bool:
        return self._answered(culprits=False)

    @property
    def first_right(self) -> bool:
        """Rank and cause, as the first answer."""
        return self._answered(culprits=True)

    @property
    def false_alarm(self) -> bool:
        """Something is called wrong where nothing is."""
        said = (HEALTHY, UNDETERMINED)
        return all(a.bottleneck == HEALTHY for a in self.truth.right) and self.said.bottleneck not in said

    def _answered(self, culprits: bool) -> bool:
        if self.truth.abstain and self.abstained:
            return True
        said = self.said
        return any(
            said.bottleneck == a.bottleneck
            and (a.bottleneck == HEALTHY or said.cause in a.causes)
            and (not culprits or tuple(sorted(said.culprits)) in {tuple(sorted(r)) for r in a.culprits})
            for a in self.truth.right
        )


def case_ids(halves: tuple[str, ...], rows: tuple[str, ...], numbers: int) -> list[str]:
    """Ids in an order whose beginning is a cross-section: one of each row, then the next of each."""
    names = [row.id for row in (*TRACE_ROWS, *RECORD_ROWS)]
    if rows:  # files of NCCL Inspector are asked another question, so they are counted by themselves
        names += [row.id for row in (*INSPECTOR_ROWS, *DEVICE_ROWS)]
    chosen = [name for name in names if not rows or any(name.startswith(row) for row in rows)]
    return [f"{half}/{row}/{n}" for n in range(numbers) for half in halves for row in chosen]


def score(case: str, seed: int = 0, keep: Path | None = None, replays: bool = True) -> Scored:
    """Makes the case, has diag look at it, and scores the answer. ``keep``: a folder for its files; ``replays``:
    whether its steps are replayed, too."""
    half_name, row_id, number = case.split("/")
    half, rng = HALVES[half_name], Random(f"{seed}/{case}")
    share = half.shares[int(number) % len(half.shares)]
    for row in TRACE_ROWS:
        if row.id == row_id:
            return _of_traces(case, row, row.make(half, rng, share), share, rng, keep, replays)
    for record_row in RECORD_ROWS:
        if record_row.id == row_id:
            return _of_records(case, record_row, share, rng, keep, replays)
    for row in INSPECTOR_ROWS:
        if row.id == row_id:
            return _of_inspector(case, row, row.make(half, rng, share), share, rng, keep)
    for row in DEVICE_ROWS:
        if row.id == row_id:
            return _of_device_clocks(case, row, row.make(half, rng, share), share, rng, keep)
    raise KeyError(f"no such row: {row_id}")


def _of_inspector(case: str, row: Row, job: Job, share: float, rng: Random, keep: Path | None) -> Scored:
    """Files of NCCL Inspector do not show what a rank does between its collectives: the answer is who is late."""
    found = simulate(job, keep=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep / case.replace("/", "-") if keep is not None else Path(temporary)
        write_inspector(job, found.ranks, folder, rng)
        said, _ = _said(folder, replays=False)
    said = replace(said, bottleneck=STRAGGLER if said.culprits else HEALTHY)
    truth = inspector_truth(truth_of(costs_of(job), share_of(job, row.rid, found.step_ns)), job)
    return Scored(case, share, row.graded, truth, said, described(job))


def _of_device_clocks(case: str, row: Row, job: Job, share: float, rng: Random, keep: Path | None) -> Scored:
    """Without a profiler window the class is asked for, and the rank; what the host does instead of launching is not
    recorded."""
    found = simulate(job, keep=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep / case.replace("/", "-") if keep is not None else Path(temporary)
        write_device_run(job, found.ranks, folder, rng)
        said, _ = _said(folder, replays=False)
    truth = truth_of(costs_of(job), share_of(job, row.rid, found.step_ns), abstain=_always_late(job))
    return Scored(case, share, row.graded, without_window(truth), said, described(job))


def _of_traces(case: str, row: Row, job: Job, share: float, rng: Random, keep: Path | None, replays: bool) -> Scored:
    found = simulate(job, keep=True)
    culprit = next((fault.ranks[0] for fault in job.faults if fault.ranks), 0)
    other = rng.choice([rank for rank in range(job.world) if rank != culprit])
    missing = {"Q2-missing-other": other, "Q2-missing-culprit": culprit}.get(row.id)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep / case.replace("/", "-") if keep is not None else Path(temporary)
        if job.recorded is not None:
            paths = write_recorded(job, job.recorded, found.ranks, found.step_ns, folder)
        else:
            paths = write_traces(job, found.ranks, folder)
        if missing is not None:
            paths[missing].unlink()
        if row.id == "Q2-truncated":
            data = paths[other].read_bytes()
            paths[other].write_bytes(data[: len(data) * 6 // 10])
        said, replayed = _said(folder, replays)
    # Without the rank at fault, or with one of two, nobody can tell.
    damaged = row.id.startswith("Q2")
    abstain = missing == culprit or (damaged and job.world == 2) or _always_late(job)
    truth = truth_of(costs_of(job), share_of(job, row.rid, found.step_ns), abstain=abstain)
    return Scored(case, share, row.graded, truth, said, described(job), replayed)


def _of_records(case: str, row: RecordRow, share: float, rng: Random, keep: Path | None, replays: bool) -> Scored:
    half = HALVES[case.split("/")[0]]
    run = row.make(half, rng, share)
    tables = analysed(run)
    if keep is not None:
        write_run(tables, keep / case.replace("/", "-"))
    plan = run.plan
    text = f"{plan.ranks} ranks, {plan.steps} steps, {run.extras or (run.wire_ns, run.tail_rank, run.tail_ns)}"
    result = analyze(tables)
    return Scored(
        case, share, row.graded, record_truth(run), answer(result), text, replay(result) if replays else Replayed()
    )


def _always_late(job: Job) -> bool:
    """Whether a rank on a node of its own clock is last in every collective: its clock could as well be off, since
    clipping's small all-reduce right behind a large collective is what shows otherwise."""
    return job.nodes > 1 and not job.clip and any(fault.ranks for fault in job.faults)


def _said(folder: Path, replays: bool) -> tuple[Said, Replayed]:
    try:
        result = open_run(folder, reading=NOT_KEPT)
    except DiagError as error:
        return Said(UNDETERMINED, "", (), 0.0, 0.0, f"error: {error.message}"), Replayed(refused=error.message)
    return answer(result), replay(result) if replays else Replayed()


def replay(result: Result) -> Replayed:
    """The steps replayed from what was measured, nothing changed: what predictions start from."""
    base = baseline(result.attribution, result.tables)
    return Replayed(refused=base.reason) if isinstance(base, Refusal) else Replayed(round(base.error, 5))


def answer(result: Result) -> Said:
    """What a user would be told."""
    verdict = result.verdict
    bottleneck = HEALTHY if verdict.severity == Severity.HEALTHY else str(verdict.bottleneck)
    found = tuple(f.id for f in result.examination.findings if f.bottleneck is not None)
    return Said(
        bottleneck, verdict.cause, verdict.culprit_ranks, verdict.confidence, verdict.share, verdict.headline, found
    )


def described(job: Job) -> str:
    faults = ", ".join(
        f"{f.kind} {f.amount}{' on ' + str(f.ranks) if f.ranks else ''}{' in turn' if f.rotate else ''}"
        f"{f' every {f.every}' if f.every > 1 else ''}"
        for f in job.faults
    )
    said = (job.reshard and "resharding", not job.read_loss and "host ahead", not job.clip and "no clipping")
    return (
        f"{job.recipe}, {job.world} ranks on {job.nodes} nodes, {job.blocks} blocks of {job.block_ns / 1e6:g} ms, "
        f"{''.join(f'{word}, ' for word in said if word)}"
        f"wrap {job.wrap}, prefetch {job.prefetch}; {faults or 'nothing planted'}"
    )

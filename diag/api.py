"""The API of notebooks, the command line and the dashboard: opens a run, analyses it, and returns the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from diag.account.attribute import Profiled, attribute, with_comparable_steps
from diag.account.device_clock import DeviceClocked, on_device_clocks
from diag.account.durations import Durations, durations_of
from diag.account.frontier import BlockAccount
from diag.account.of_traces import AFTER_ITERATIONS, BEFORE_ITERATIONS
from diag.account.stalls import without_stalls
from diag.collectors.layout import RunLayout
from diag.collectors.records import Manifest
from diag.deferred import by_name, loaded
from diag.diagnoses import Examination, examine, examine_collectives
from diag.diagnoses.costs import CHARGED, Cost
from diag.diagnoses.durations import collectives_account, notes_on
from diag.diagnoses.hidden_waits import hidden_ns
from diag.diagnoses.phases import HostWait, host_wait
from diag.diagnoses.shares import Shares
from diag.diagnoses.verdict import agreeing, bottlenecks_of, classes_of, faults_first, judge, stalls_decide
from diag.errors import DiagError, ExitCode
from diag.model import Gap
from diag.model.accounts import Attribution, StepAccount, StepAccounts
from diag.model.breakdown import Supposition as Supposition
from diag.model.breakdown import WhatIf as WhatIf
from diag.model.evidence import query_of
from diag.model.history import History as History
from diag.model.matched import NO_COLLECTIVES
from diag.model.query import Query
from diag.model.steps import (
    Advice,
    Bottleneck,
    Coverage,
    Division,
    FailedAllocation,
    Finding,
    NotLooked,
    Outcome,
    Recommendation,
    Severity,
    Verdict,
)
from diag.rundir.asked import StepsAsked, steps_asked
from diag.rundir.attempts import attempt_paths, attempts_of, newest_with_steps, notes_on_attempts
from diag.rundir.delays import interval_s
from diag.rundir.durations import DurationRecords, with_ranks
from diag.rundir.inspector_files import alone
from diag.rundir.job_ranks import job_ranks, of_its_job
from diag.rundir.lines import read_manifest
from diag.rundir.local import local_path as local_path
from diag.rundir.local import local_paths as local_paths
from diag.rundir.run import Job as Job
from diag.rundir.run import Jobs as Jobs
from diag.rundir.run import SeveralJobsError as SeveralJobsError
from diag.rundir.run import find_jobs as find_jobs
from diag.rundir.run import job_name as job_name
from diag.rundir.run import look_into as look_into
from diag.rundir.run import must_exist, open_paths, tables_of_job
from diag.rundir.runs import RunState as RunState
from diag.rundir.runs import ended_well
from diag.rundir.runs import newest_change as newest_change
from diag.rundir.runs import record_bytes as record_bytes
from diag.rundir.runs import split_job as split_job
from diag.rundir.runs import state_of as state_of
from diag.rundir.state_words import where_words as where_words
from diag.rundir.states import Judged
from diag.rundir.states import RankState as RankState
from diag.rundir.states import Standstill as Standstill
from diag.rundir.states import State as State
from diag.rundir.tables import Only, restricted
from diag.rundir.tables import Tables as Tables
from diag.traces.reading import Reading as Reading
from diag.traces.snapshot_files import snapshot_files
from diag.traces.snapshot_files import snapshots_alone as snapshots_alone
from diag.traces.trace import DeviceWork, Trace
from diag.words.formatting import NBSP, begun, counted, duration, masked, rank_ranges
from diag.words.places import shown
from diag.words.wording import ONLY_DURATIONS, resolutions, run_facts

_MUCH_OUTSIDE = 0.1  # of a trace: time in no inferred step is mentioned from here on

if TYPE_CHECKING:
    import polars as pl

    from diag.diagnoses.compare import Comparison, RankDifference
    from diag.model.breakdown import Breakdowns, CostCurve, Measure
    from diag.model.memory import Lowered
    from diag.tables.loading import LoadingTable
    from diag.tables.memory import MemoryTable, Peak

# -- what few runs need, and what is shown beside a verdict: each is loaded when it is asked for -----------------------

# Answers kept of what has not changed: ``diag.rundir.answers``.
answers_on: Callable[[Sequence[str], object], Any] = by_name("diag.rundir.answers:answers_on")
hash_of_sources: Callable[..., str] = by_name("diag.traces.shelf:hash_of_sources")
_account_in_blocks: Callable[[Tables], BlockAccount] = by_name("diag.account.blocks:account_in_blocks")
_only_of: Callable[[Tables, StepsAsked], Only] = by_name("diag.history.steps:only_of")
_with_kept: Callable[[Tables, Only], Tables | None] = by_name("diag.rundir.kept:with_kept")
_history_of: Callable[[Tables, Attribution, Shares, Judged | None], History] = by_name("diag.history.of_run:history_of")
_may_have_changed: Callable[[int], bool] = by_name("diag.history.enough:may_have_changed")
_outcome_of: Callable[..., Outcome | None] = by_name("diag.ended.outcome:outcome_of")
_failed_allocations: Callable[[Tables], tuple[FailedAllocation, ...]] = by_name(
    "diag.tables.failed_allocations:failed_allocations"
)
_breakdowns: Callable[[Tables, Attribution], Breakdowns] = by_name("diag.tables.breakdowns:breakdowns")
_mfu_of: Callable[[Tables, Shares], Measure] = by_name("diag.diagnoses.low_mfu:mfu_of")
_memory_table: Callable[[Tables, Attribution], MemoryTable] = by_name("diag.tables.memory:memory_table")
_lowered: Callable[[Tables, MemoryTable], Lowered | None] = by_name("diag.planning.lower:lowered")
_memory_curves: Callable[[Tables], tuple[Any, ...]] = by_name("diag.tables.memory_curves:memory_curves")
_snapshots: Callable[[Iterable[Path | str]], Any] = by_name("diag.tables.snapshots:snapshots_of")
_loading_table: Callable[[Tables, Attribution, Mapping[int, float]], LoadingTable] = by_name(
    "diag.tables.loading:loading_table"
)
# NCCL Inspector's files where there is nothing else.
_read_inspector: Callable[[Sequence[Path]], DurationRecords] = by_name("diag.rundir.inspector:read_inspector")
_newest_job: Callable[[DurationRecords], DurationRecords] = by_name("diag.rundir.inspector:newest_job")
_ranks_of: Callable[[DurationRecords], tuple[dict[int, int], bool]] = by_name("diag.rundir.inspector:ranks_of")
_tables_of: Callable[[Path, DurationRecords, Mapping[int, int]], Tables] = by_name("diag.rundir.inspector:tables_of")
# The replay of a run, and what it predicts. Its result is only handed on.
_Replay = Any
_baseline: Callable[[Attribution, Tables], _Replay] = by_name("diag.replay.predict:baseline")
_recommend: Callable[[Attribution, Tables, Examination, Callable[[], _Replay]], Recommendation] = by_name(
    "diag.replay.advice:recommend"
)
_what_if: Callable[[_Replay, Attribution, Tables, Examination], WhatIf] = by_name("diag.replay.advice:what_if")
_nothing_offered: Callable[[str], WhatIf] = by_name("diag.replay.advice:nothing_offered")
_curves_of: Callable[[_Replay], tuple[CostCurve, ...]] = by_name("diag.replay.advice:curves_of")
_gain_of_ranks: Callable[[_Replay, Collection[int]], tuple[float, float] | None] = by_name(
    "diag.replay.suppose:gain_of_ranks"
)
_without_fault: Callable[[Verdict, bool], Supposition] = by_name("diag.replay.suppose:without_fault")


def _frame(where: str, *arguments: Any) -> pl.DataFrame:
    """What a function that makes a data frame returns; ``where``: its name, as of ``by_name``."""
    frame: pl.DataFrame = loaded(where)(*arguments)
    return frame


class Result(Struct, frozen=True, dict=True):
    """An analysed run."""

    tables: Tables
    attribution: Attribution
    examination: Examination
    coverage: Coverage
    verdict: Verdict

    from_summaries: ClassVar[bool] = False  # whether only the ranks' summaries were read
    as_html: ClassVar[Callable[[Result], str] | None] = None  # for notebooks; ``diag.open_run`` says what draws it

    @property
    def on_device(self) -> bool:
        return self.examination.shares.on_device

    @property
    def cause(self) -> Finding | None:
        """The finding that the verdict rests on."""
        return next((f for f in self.examination.findings if f.id == self.verdict.cause), None)

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The findings that the headline names: the cause, and of a mixed run the second one too."""
        if self.verdict.bottleneck != Bottleneck.MIXED:
            return (self.cause,) if self.cause is not None else ()
        return tuple(f for f in self.examination.findings if f.title[1:] in self.verdict.headline)

    @property
    def further(self) -> tuple[Finding, ...]:
        """Further critical findings, each of which costs time that is not in the causes."""
        known = {self.verdict.cause, *(finding.id for finding in self.causes)}
        critical = (f for f in self.examination.findings if f.severity is Severity.CRITICAL)
        return tuple(f for f in critical if f.cost_ns_per_step and f.id not in known)

    @cached_property
    def outcome(self) -> Outcome | None:
        """How the run ended, if it failed or its end was not recorded; None for a run that succeeded, still trains, or
        was recorded by another tool."""
        manifest = self.tables.manifest
        if manifest is None or (manifest.exit_code == 0 and ended_well(RunLayout(self.tables.root))):
            return None
        assert self.state is not None  # as there is a manifest
        tables, left = self.tables, self.tables.retained
        steps = (len(self.attribution.steps) if left is None else left.steps) if tables.only is None else None
        return _outcome_of(self.state, manifest, steps, tables.identities, tables.names)

    @cached_property
    def state(self) -> RunState | None:
        """What the run and its ranks are doing; None for what another tool recorded."""
        known = self.tables.identities
        return state_of(self.tables.root, with_answer=False, known=known) if self.tables.manifest is not None else None

    @cached_property
    def failed_allocations(self) -> tuple[FailedAllocation, ...]:
        """The ranks that ran out of device memory, whether or not that ended the training: by their snapshots of the
        allocator, their logs and the counts of the allocator. The details are those of the first source."""
        return () if self.from_summaries else _failed_allocations(self.tables)

    def share_of(self, bottleneck: Bottleneck) -> float:
        """Fraction of the critical path that a change in this class could remove, 0 to 1. The verdict compares these
        shares."""
        return faults_first(self.examination.shares).of_class(bottleneck)

    @cached_property
    def mfu(self) -> Measure:
        """Model FLOPs utilisation, or why it is not known."""
        return _mfu_of(self.tables, self.examination.shares)

    @cached_property
    def breakdowns(self) -> Breakdowns:
        """The tables behind the verdict, computed on first access: they read the traces again."""
        return _breakdowns(self.tables, self.attribution)

    @cached_property
    def recommendation(self) -> Recommendation:
        """The changes to make first, with their gains predicted by replay; computed on first access."""
        findings = self.examination.findings
        if not any(found.severity != Severity.HEALTHY and found.bottleneck is not None for found in findings):
            return Recommendation()  # nothing costs the run time
        return _recommend(self.attribution, self.tables, self.examination, lambda: self._replayed)

    @cached_property
    def _replayed(self) -> _Replay:
        """The run replayed unmodified, the basis of every prediction: a ``diag.replay.predict.Baseline``, or a
        ``Refusal`` with the reason why it cannot be replayed."""
        return _baseline(self.attribution, self.tables)

    @property
    def baseline_refusal(self) -> str:
        """Why the run cannot be replayed; "" if it can."""
        reason: str = getattr(self._replayed, "reason", "")
        return reason

    @cached_property
    def what_if(self) -> WhatIf:
        """The changes that can be chosen for this run, and the gain of any combination of them."""
        return _what_if(self._replayed, self.attribution, self.tables, self.examination)

    @property
    def without_fault(self) -> Supposition:
        """What the verdict is about, taken away, for ``what_if.suppose``."""
        return _without_fault(self.verdict, self.tables.on_device)

    @cached_property
    def cost_curves(self) -> tuple[CostCurve, ...]:
        """The cost of collectives by their size in the replay's model; empty if the run cannot be replayed."""
        return () if self.baseline_refusal else _curves_of(self._replayed)

    @cached_property
    def peak_memory(self) -> Peak | None:
        """The largest peak of all ranks; None if no rank recorded memory."""
        from diag.tables.memory import peak_memory

        return peak_memory(self.tables, self.attribution)

    @cached_property
    def memory_table(self) -> MemoryTable:
        """Peaks, growth and fragmentation of each rank, and the size of the model states by formula."""
        return _memory_table(self.tables, self.attribution)

    @cached_property
    def lowered(self) -> Lowered | None:
        """What would lower the peak of the fullest device; None without a device."""
        return None if self.from_summaries else _lowered(self.tables, self.memory_table)

    @cached_property
    def memory_curves(self) -> tuple[Any, ...]:
        """Device memory over time from each trace that was recorded with ``profile_memory``, with its peak and the
        allocations at the peak; computed on first access."""
        return _memory_curves(self.tables)

    @cached_property
    def memory_snapshots(self) -> Any:
        """The snapshots of PyTorch's allocator in the run's folder, read on first access."""
        return _snapshots(self.tables.snapshots)

    @cached_property
    def loading(self) -> LoadingTable:
        """The time that each rank waited for its DataLoader, and that the other ranks waited because of it."""
        return _loading_table(self.tables, self.attribution, self.examination.shares.charged_means(Cost.DATA))

    @property
    def advice(self) -> tuple[Advice, ...]:
        """At most three changes, the largest predicted gain first."""
        return self.recommendation.advice

    @cached_property
    def differences(self) -> tuple[RankDifference, ...]:
        """Where each rank's times differ from the median of the other ranks."""
        from diag.diagnoses.compare import differences

        return differences(self.attribution, {rank: tables.host or "" for rank, tables in self.tables.ranks.items()})

    @property
    def scheduled(self) -> dict[str, dict[int, float]]:
        """CPU time that the scheduler withheld from the ranks: mean milliseconds by column and rank, where it is at
        least a fiftieth of the step."""
        dur_ns = self.examination.shares.dur_ns
        return self.examination.scheduling.columns(float(dur_ns.mean()) / 1e6 / 50) if len(dur_ns) else {}

    @cached_property
    def why(self) -> str:
        """The parts of the step in a sentence; "" if nothing was recorded."""
        from diag.diagnoses.compare import path_sentence

        return path_sentence(self.attribution, self.examination.shares)

    def bottleneck_of(self, step: StepAccount) -> Bottleneck:
        """The class of one step, by the account that the verdict rests on; undetermined if the verdict is."""
        return self.bottlenecks[step.step]

    @cached_property
    def bottlenecks(self) -> dict[int, Bottleneck]:
        """The class of each step."""
        steps = self.attribution.steps
        if self.verdict.bottleneck == Bottleneck.UNDETERMINED:
            return dict.fromkeys(steps.step.tolist(), Bottleneck.UNDETERMINED)
        classes = self._classes
        if classes.keys() >= steps.numbers:
            return classes
        return bottlenecks_of(steps, self.on_device) | classes

    @cached_property
    def _classes(self) -> dict[int, Bottleneck]:
        """The classes of all steps, if not only their accounts decide but also the phases or CPU scheduling."""
        phases, shares = self.examination.phases, self.examination.shares
        if phases is not None and phases.alone:
            return classes_of(phases.shares)
        return classes_of(shares) if CHARGED & set(shares.cost_ns) else {}

    @cached_property
    def history(self) -> History:
        """The step time over the whole run, when it changed and because of what; of a run that was restarted, this
        attempt's. Read on first access."""
        judged = self.state.judged if self.state is not None else None
        return _history_of(self.tables, self.attribution, self.examination.shares, judged)

    @property
    def may_have_changed(self) -> bool:
        """Whether the run has steps enough for its step time to have changed: else ``history`` has no change."""
        steps = self.attribution.steps.step
        return bool(len(steps)) and _may_have_changed(int(steps.max()) + 1)

    # -- data frames, whose columns diag.tables.frames.COLUMNS documents ---------------------------------------------

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The time of every rank in every step, by part: a row for each rank of each step."""
        return _frame("diag.tables.frames:steps", self.attribution, self.bottlenecks)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """The same as ``steps``, as means over the counted steps: a row for each rank."""
        return _frame("diag.tables.frames:ranks", self.attribution, self.tables, self.verdict.culprit_ranks)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """Collectives by process group, operation, element type and size."""
        return _frame("diag.tables.frames:collectives", self.breakdowns.collectives)

    @cached_property
    def all_to_alls(self) -> pl.DataFrame:
        """Bytes that each rank sent and received in all-to-alls, and how long the others waited for it."""
        return _frame("diag.tables.frames:all_to_alls", self.breakdowns.collectives)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Kernels by name; for a run on a CPU, operators."""
        return _frame("diag.tables.frames:kernels", self.breakdowns.kernels)

    @cached_property
    def modules(self) -> pl.DataFrame:
        """Time in the modules of the model."""
        return _frame("diag.tables.frames:modules", self.breakdowns.modules)

    @cached_property
    def memory(self) -> pl.DataFrame:
        """Peaks of memory by rank."""
        return _frame("diag.tables.frames:memory", self.memory_table)

    @cached_property
    def costs(self) -> pl.DataFrame:
        """The costs of each counted step, and which late ranks they are charged to."""
        shares = self.examination.shares
        return _frame(
            "diag.tables.evidence:costs",
            {(cost.words, None): ns for cost, ns in shares.cost_ns.items()}
            | {
                (cost.words, rank): shares.charged(cost, (rank,))
                for cost, by_rank in shares.blame_ns.items()
                for rank in by_rank
            },
            {(Cost.STRAGGLER.words, rank): ns for rank, ns in hidden_ns(shares).items()},
            shares.numbers,
            shares.dur_ns,
        )

    @cached_property
    def path(self) -> pl.DataFrame:
        """The critical path: a row for each of its pieces."""
        return _frame("diag.tables.evidence:path", self.attribution)

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The collectives of the ranks, each with its pass and its exposed time."""
        return _frame("diag.tables.evidence:calls", self.attribution)

    @cached_property
    def meetings(self) -> pl.DataFrame:
        """Collectives across ranks: who came last, how long the others waited, how long the transfer took."""
        return _frame("diag.tables.evidence:meetings", self.attribution)

    @cached_property
    def stalls(self) -> pl.DataFrame:
        """The longest pieces of the devices' idle time, with what their hosts did."""
        return _frame("diag.tables.evidence:stalls", self.attribution)

    @cached_property
    def scheduling(self) -> pl.DataFrame:
        """How long the ranks were queued for a CPU core or blocked in each step."""
        return _frame("diag.tables.evidence:scheduling", self.examination.scheduling)

    @cached_property
    def checkpoints(self) -> pl.DataFrame:
        """The checkpoints of the ranks."""
        return _frame("diag.tables.evidence:checkpoints", self.tables)

    @cached_property
    def numbers(self) -> pl.DataFrame:
        """Losses and gradient norms that are not finite, or jump."""
        return _frame("diag.tables.evidence:numbers", self.tables)

    @cached_property
    def summaries(self) -> pl.DataFrame:
        """The means of the ranks' summaries; empty if the run was not analysed from them."""
        return _frame("diag.tables.frames:frame", "summaries", ())

    @cached_property
    def stretches(self) -> pl.DataFrame:
        """The step time and its parts over the whole run: each step, older ones in sums over several."""
        return _frame("diag.tables.of_history:stretches", self.history)

    @cached_property
    def changes(self) -> pl.DataFrame:
        """When the step time changed, and because of what."""
        return _frame("diag.tables.of_history:changes", self.history)

    @cached_property
    def incidents(self) -> pl.DataFrame:
        """What cost this attempt time: slow stretches, stalls, and a run that is stuck."""
        return _frame("diag.tables.of_history:incidents", self.history)

    @cached_property
    def goodput(self) -> pl.DataFrame:
        """Where the wall time of this attempt went."""
        return _frame("diag.tables.of_history:goodput", self.history)

    @cached_property
    def findings(self) -> pl.DataFrame:
        """The findings, the most expensive first."""
        return _frame("diag.tables.frames:findings", self.examination.findings)

    @cached_property
    def spans(self) -> pl.DataFrame:
        """The consecutive pieces of each rank's steps."""
        return _frame("diag.tables.of_run:spans", self.attribution)

    @cached_property
    def waits(self) -> pl.DataFrame:
        """How long others waited for a rank in each step, by what it did more of than they did."""
        return _frame("diag.tables.of_run:waits", self.attribution)

    @cached_property
    def samples(self) -> pl.DataFrame:
        """Readings of devices, hosts, allocators and loaders over time."""
        return _frame("diag.tables.of_run:samples", self.tables)

    @cached_property
    def facts(self) -> pl.DataFrame:
        """What is known of the run: its manifest, ranks, versions, mesh, and how the steps were found."""
        described, axes = describe_run(self), self.attribution.axes
        known = {name: described[name] for name in ("world_size", "hosts", "device", "backend", "steps", "steps_from")}
        groups = {", ".join(map(str, ranks)): axis for ranks, axis in axes.named.items()}
        of_analysis = {**known, "mesh": axes.mesh, "axes": groups}
        return _frame("diag.tables.of_run:facts", self.tables, {"analysis": of_analysis})

    def evidence(self, finding: Finding | str) -> pl.DataFrame:
        """The rows that a finding (or its id) rests on. DiagError if there is no finding with this id."""
        findings = self.examination.findings
        if isinstance(finding, str):
            match = next((f for f in findings if f.id == finding), None)
            if match is None:
                raise DiagError(f"there is no finding {finding!r}", hint="one of " + ", ".join(f.id for f in findings))
            finding = match
        return self.rows(query_of(finding))

    def rows(self, query: Query) -> pl.DataFrame:
        """The rows of a data frame that a query names: that of a finding, or of a line of its evidence."""
        return _frame("diag.tables.evidence:rows", query, getattr(self, query.frame))

    def __repr__(self) -> str:
        facts = ", ".join(run_facts(describe_run(self), self.coverage))
        findings_text = ", ".join(f"{f.id} ({f.share:.0%})" for f in self.examination.findings) or "none"
        return f"Run: {facts}\n{self.verdict.headline}\nFindings: {findings_text}".replace(NBSP, " ")

    def _repr_html_(self) -> str | None:
        draw = type(self).as_html
        return draw(self) if draw is not None else None


def open_run(
    *paths: Path | str, reading: Reading | None = None, steps: str | None = None, since: str | None = None
) -> Result:
    """What ``diag.open_run`` returns."""
    asked = steps_asked(steps, since)  # before a copy is fetched
    return open_attempt(attempt_paths(paths), reading, asked)


def open_attempt(paths: Sequence[str], reading: Reading | None = None, asked: StepsAsked | None = None) -> Result:
    """The same, of what ``attempt_paths`` returned: a run directory is that of one attempt."""
    if files := alone(paths):
        if asked is not None:
            raise DiagError(f"{asked.text}: {ONLY_DURATIONS}", exit_code=ExitCode.USAGE)
        return open_inspector(paths[0], files)
    try:
        tables = open_paths(paths, reading)
    except DiagError as error:
        if len(paths) != 1:
            raise
        root = Path(paths[0])
        manifest, _ = read_manifest(RunLayout(root))
        outcome = _outcome_of(state_of(root, with_answer=False), manifest, None) if manifest is not None else None
        if outcome is None:
            raise
        raise type(error)(
            f"{outcome.headline} {begun(error.message)}", hint=error.hint, path=error.path, exit_code=error.exit_code
        ) from error
    return analyze(tables, asked)


def open_job(job: Job, reading: Reading | None = None) -> Result:
    """The analysis of one of the jobs that `find_jobs` returned. DiagError if it recorded nothing."""
    return analyze(tables_of_job(job, reading))


def analyze(tables: Tables, asked: StepsAsked | None = None) -> Result:
    """The analysis of tables that are already read. ``asked``: only of some steps. DiagError if the run has none of
    these in full."""
    tables = with_comparable_steps(tables)
    if asked is not None:
        tables = _restricted(tables, asked)
    blocks: BlockAccount | None = None
    clocked: Mapping[int, DeviceClocked] = {}
    if tables.long:
        blocks = _account_in_blocks(tables)
        tables, attribution = blocks.tables, blocks.attribution
    else:
        clocked = on_device_clocks(tables)
        attribution = attribute(tables, clocked)
    if (usual := without_stalls(attribution)) is not None:
        result = _judged(tables, usual, clocked, blocks)
        if not stalls_decide(result.verdict, usual):
            return result
    return _judged(tables, attribution, clocked, blocks)  # the stalls, if there are any, are what costs time


def _judged(
    tables: Tables, attribution: Attribution, clocked: Mapping[int, DeviceClocked], blocks: BlockAccount | None
) -> Result:
    """The analysis of an account of the steps. ``blocks``: of a long run, whose replay would take too long."""
    replayed = cache(lambda: _baseline(attribution, tables))
    gain = None if blocks is not None else lambda ranks: _gain_of_ranks(replayed(), ranks)
    examination = examine(attribution, tables, clocked, blocks, gain)
    coverage = Coverage(
        ranks_used=attribution.ranks,
        ranks_missing=tables.missing,
        skipped=_shown(tables.gaps),
        clock_uncertainty_ns=attribution.clock_uncertainty_ns,
        clock_drift_ppm=attribution.clock_drift * 1e6,
        not_looked=(*examination.not_looked, *_left_out(attribution)),
        explained_wait=attribution.explained_wait,
        notes=(
            *_notes_on_only(tables),
            *_notes_on_age(tables),
            *notes_on_attempts(RunLayout(tables.root)),
            *_notes_on_steps(attribution),
            *notes_on_profiler(attribution, tables, examination.longer),
            *_notes_on_device(tables),
            *_notes_on_ends(tables),
            *(f"two measurements of the run disagree: {d}" for d in (*examination.doubts, examination.followed) if d),
            *_named(tables),
            *(notes_on(examination.collectives) if examination.collectives is not None else ()),
        ),
    )
    verdict = judge(attribution, examination, coverage, tables)
    examination = agreeing(examination, verdict)
    result = Result(tables, attribution, examination, coverage, verdict)
    if replayed.cache_info().currsize:
        vars(result)["_replayed"] = replayed()
    return result


# -- durations of collectives alone ------------------------------------------------------------------------------------


class DurationResult(Result, frozen=True, dict=True):
    """A job with only NCCL Inspector's files, which has no steps. ``durations``: the basis of the verdict."""

    durations: Durations

    @cached_property
    def breakdowns(self) -> Breakdowns:
        return replace(
            _breakdowns(self.tables, self.attribution),
            collectives=loaded("diag.tables.duration_table:duration_table")(self.durations),
            notes=(f"kernels and modules are not known: {ONLY_DURATIONS}",),
        )

    @property
    def recommendation(self) -> Recommendation:
        return Recommendation(not_advised=(f"nothing was predicted: {ONLY_DURATIONS}",))

    @property
    def what_if(self) -> WhatIf:
        return _nothing_offered(ONLY_DURATIONS)


def open_inspector(root: Path | str, files: Sequence[Path]) -> DurationResult:
    """The verdict from these files of NCCL Inspector. DiagError if no collective of two ranks can be compared."""
    read = _newest_job(_read_inspector(files))
    ranks, numbered = _ranks_of(read)
    account = durations_of(with_ranks(read, ranks), read.sizes)
    if not account.complete:
        reasons = [gap.reason for gap in read.gaps[:3]] or ["none was recorded on all ranks of its communicator"]
        raise DiagError(
            f"no collective can be compared: {'; '.join(reasons)}",
            path=root,
            hint="give the files of all ranks: Inspector writes one per process",
        )
    notes = [] if numbered else ["no communicator has all processes: ranks are numbered by host and process"]
    tables = _tables_of(Path(root), read, ranks)
    collectives = collectives_account(account, read)
    examination = examine_collectives(collectives)
    coverage = Coverage(
        ranks_used=tuple(tables.ranks),
        ranks_missing=tuple(rank for rank in range(tables.world_size or 0) if rank not in tables.ranks),
        skipped=read.gaps,
        clock_uncertainty_ns=0,
        not_looked=examination.not_looked,
        notes=(*notes, *notes_on(collectives)),
    )
    attribution = Attribution(StepAccounts.of(()), account.ranks, None, False, True, NO_COLLECTIVES)
    verdict = judge(attribution, examination, coverage, tables)
    return DurationResult(tables, attribution, examination, coverage, verdict, durations=account)


def open_memory_snapshots(*paths: Path | str) -> Any:
    """The snapshots of PyTorch's caching allocator (``torch.cuda.memory._dump_snapshot``) at or below the paths, with
    their ranks compared. DiagError if none can be read."""
    must_exist([str(path) for path in paths])
    left_out: list[Gap] = []
    files = snapshot_files(paths, of_its_job(lambda path, reason: left_out.append(Gap(path, reason))))
    table = _snapshots(files)
    table = replace(table, gaps=(*left_out, *table.gaps))
    if not table.accounts:
        reasons = [gap.reason for gap in table.gaps[:3]]
        raise DiagError(
            f"no memory snapshot could be read: {'; '.join(reasons)}" if reasons else "holds no memory snapshot",
            path=paths[0],
            hint="give files that torch.cuda.memory._dump_snapshot(path) wrote, with the suffix .pickle",
        )
    return table


# -- several runs, and descriptions ------------------------------------------------------------------------------------


def compare_runs(before: Result, after: Result) -> Comparison:
    """The difference between two runs, by part of the step. DiagError if one of them has no steps."""
    for result in (before, after):
        if not result.attribution.steps:
            raise DiagError(f"has no steps to compare: {ONLY_DURATIONS}", path=result.tables.root)
    from diag.account.scheduling import load_of
    from diag.diagnoses.compare import compare

    first, second = (
        load_of(result.tables, result.examination.scheduling, result.attribution.ranks) for result in (before, after)
    )
    return compare(
        (before.tables, before.attribution, before.examination.shares),
        (after.tables, after.attribution, after.examination.shares),
        loads=(first, second),
    )


def manifest_of(run: str | Path) -> Manifest | None:
    """What `diag run` was asked for: ranks, strategy, settings of the trainer. None if the path is no run directory, or
    its manifest cannot be read."""
    layout = RunLayout(Path(run))
    return read_manifest(layout)[0] if layout.is_run() else None


def describe_run(result: Result) -> dict[str, Any]:
    """A description of the run from the manifest, the ranks and their traces; None for unknown values."""
    tables, manifest, layout = result.tables, result.tables.manifest, RunLayout(result.tables.root)
    traces = [trace for rank in tables.ranks.values() for trace in rank.traces]
    devices = [identity.device for identity in tables.identities.values()]
    if not devices and traces:
        devices = [_device_of(traces)]
    backends = [manifest.backend] if manifest is not None else []
    return {
        "path": masked(shown(str(tables.root))),  # a URL may contain a password
        "run_id": manifest.run_id if manifest is not None else None,
        "world_size": tables.world_size,
        "ranks": sorted(tables.ranks),
        "hosts": sorted({rank.host for rank in tables.ranks.values() if rank.host}),
        "backend": next((b for b in (*backends, *(trace.backend for trace in traces)) if b), None),
        "strategy": manifest.strategy if manifest is not None else None,
        "device": next(iter(devices), None),
        "mesh": manifest.mesh if manifest is not None else {},
        "model": manifest.model if manifest is not None else {},
        # Planted faults are for readers of the manifest; an analysis must not know them.
        "trainer": {k: v for k, v in manifest.trainer.items() if k != "inject"} if manifest is not None else {},
        "versions": manifest.versions if manifest is not None else {},
        "steps": len(result.attribution.steps),
        "steps_known": None if (left := tables.retained) is None else left.steps,
        "attempt": layout.number,
        "restarts": attempts_of(layout) - 1 if layout.is_run() else 0,
        "only": None
        if (only := tables.only) is None
        else {"first": only.first, "last": only.last, "asked": only.asked},
        "steps_from": result.attribution.division,
        "step_marker": result.attribution.step_marker or None,
        "exit_code": manifest.exit_code if manifest is not None else None,
    }


def _shown(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Gaps with the paths that the user knows."""
    return tuple(Gap(shown(gap.path), gap.reason) for gap in gaps)


def _named(tables: Tables) -> list[str]:
    """Notes on the user's own rules for kernels that count as communication."""
    rules = dict.fromkeys(
        rule for rank_tables in tables.ranks.values() for trace in rank_tables.traces for rule in trace.comm_kernels
    )
    return [
        f"kernels that match {rule.pattern} count as {rule.op} (set by --comm-kernels or diag.toml)" for rule in rules
    ]


def _restricted(tables: Tables, asked: StepsAsked) -> Tables:
    only, left = _only_of(tables, asked), tables.retained
    if left is not None and only.first < left.first:
        if (kept := _with_kept(tables, only)) is not None:
            return restricted(kept, only)
        raise DiagError(
            f"{asked.text}: of steps {only.first:,} to {left.first - 1:,} no full records are left",
            hint="diag analyze and diag.by_size.open_by_size analyse what is left of them: phases, and sums",
        )
    return restricted(tables, only)


def _notes_on_only(tables: Tables) -> list[str]:
    """That the answer is about some of the steps."""
    only = tables.only
    return [f"only steps {only.first:,} to {only.last:,} are analysed ({only.asked})"] if only is not None else []


def _notes_on_age(tables: Tables) -> list[str]:
    """At which resolution the steps of a long run are known."""
    left = tables.retained
    return [f"the oldest records were removed at the byte budget: {resolutions(left)}"] if left is not None else []


def _notes_on_steps(attribution: Attribution) -> list[str]:
    if attribution.detailed is not None:
        kept = f"{len(attribution.detailed):,} of {len(attribution.steps):,} steps"
        return [
            f"the run is long: every step is accounted for, and {kept} are kept in detail; the timeline, the tables of "
            "collectives and the predictions show these"
        ]
    if attribution.undivided:
        return ["no step markers and no repeating pattern: the whole window counts as one step"]
    if attribution.division == Division.INFERRED:
        inferred = f"no step markers: the steps are inferred from a repeating pattern ({attribution.step_marker})"
        return [inferred + _outside_of_steps(attribution)]
    return []


def notes_on_profiler(attribution: Attribution, tables: Tables, longer: Profiled | None) -> list[str]:
    if longer is None:
        return []
    return [
        f"the profiler makes a step longer: {duration(longer.traced_ns)} with it, {duration(longer.untraced_ns)} in "
        f"{counted(longer.others, 'step')} without it; shares and costs are of profiled steps"
        + _without_profiler(host_wait(attribution, tables, longer))
    ]


def _without_profiler(waits: HostWait | None) -> str:
    """How long the device waits for its host in steps that the profiler does not slow down, as the end of a
    sentence; "" where it hardly waits, and where a doubt about the profiled steps says it."""
    if waits is None or not waits.counts:
        return ""
    return f"; without it, the device waits for its host in about {waits.outside:.0%} of a step"


def _outside_of_steps(attribution: Attribution) -> str:
    """How much of the window is in no inferred step, as the end of a sentence; "" for less than a tenth of it."""
    around = {
        reason: int(attribution.steps.dur_ns[[note == reason for note in attribution.steps.note]].sum())
        for reason in (BEFORE_ITERATIONS, AFTER_ITERATIONS)
    }
    if sum(around.values()) < _MUCH_OUTSIDE * int(attribution.steps.dur_ns.sum()):
        return ""
    return "; " + " and ".join(f"{duration(ns)} {reason}" for reason, ns in around.items() if ns) + " do not count"


def _device_of(traces: Sequence[Trace]) -> str:
    """What the traces' work ran on. A header lists the devices of the host; a run on the CPU may use none of them."""
    if _no_device_work(traces):
        return "CPU"
    return next((name for trace in traces for name in trace.device_names), "GPU")


def _no_device_work(traces: Sequence[Trace]) -> bool:
    return all(trace.device_record.work == DeviceWork.NONE for trace in traces)


def _notes_on_device(tables: Tables) -> list[str]:
    """Notes where only the operators of the host are in the traces, although there is a device."""
    traces = [trace for rank in tables.ranks.values() if rank.identity is None for trace in rank.traces]
    if tables.device_unread:
        return ["the device's work was not recorded: the times are those of operators on the host"]
    unused = next((name for trace in traces for name in trace.device_names), "")
    if unused and _no_device_work(traces):
        return [f"no runtime call and no kernel of {unused} was recorded: the operators count as work of the CPU"]
    return []


def _notes_on_ends(tables: Tables) -> list[str]:
    """A note on ranks that were killed, or still train: they write their steps every two seconds, and a
    packer stores them once an interval."""
    if tables.manifest is not None and tables.manifest.exit_code == 0:
        return []
    beats = {
        rank: rank_tables.heartbeat for rank, rank_tables in tables.ranks.items() if rank_tables.heartbeat is not None
    }
    cut = [rank for rank, beat in beats.items() if not (beat.done or beat.failed_in)]
    late_s = interval_s(RunLayout(tables.root))
    last = f"{late_s:,g} seconds, the interval of their packers," if late_s else "seconds"
    return [f"{rank_ranges(cut)} recorded no end so far: steps of the last {last} may be missing"] if cut else []


def _left_out(attribution: Attribution) -> list[NotLooked]:
    if not attribution.untied:
        return []
    reason = "no collective aligns their clocks with the other ranks'"
    return [NotLooked(f"who waits for {rank_ranges(attribution.untied)}", reason)]


def is_run(path: Path | str) -> bool:
    """Whether the path is a run directory."""
    return RunLayout(Path(path)).is_run()


def holds_runs(path: Path | str, jobs: Jobs) -> bool:
    """Whether there is anything to analyse: a run directory, traces, or NCCL Inspector's files. ``jobs``: what
    `find_jobs` found at the path; no other file of traces is read."""
    return bool(jobs.jobs) or is_run(path) or bool(alone([path]))


def list_runs(folder: Path | str, lately: bool = False) -> list[Path]:
    """The paths of the runs in a folder: the folder itself if it is a run, with its restarts, or if it holds the traces
    of one job; else the runs and the jobs in it, by name, each as the path that opens it. ``lately``: as of
    `look_into`. DiagError if there is nothing."""
    folder = Path(folder)
    if (layout := RunLayout(folder)).is_run():
        return [attempt.root for attempt in layout.attempts()]
    return [Path(job.paths[0]) for job in find_jobs([folder], lately=lately).jobs] or [folder]


def shown_first(runs: Sequence[Path]) -> Path:
    """Of what ``list_runs`` returned, the run that is shown where none is chosen: the first, or of the attempts of one
    training the newest with a step."""
    newest = newest_with_steps(RunLayout(runs[0])).root
    return newest if newest in runs else runs[0]


def hosts_of(run: Path) -> dict[int, str]:
    """The host of each rank of a run directory, as far as rank.json was read; nothing where the ranks cannot be
    listed."""
    try:
        identities = job_ranks(RunLayout(run)).identities
    except (OSError, DiagError):  # opening the run reports it
        return {}
    return {rank: identity.host for rank, identity in identities.items() if identity is not None}

"""Round by round: diagnose, apply the best advice, run with and without it in turns, keep significant gains."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diag import processes
from diag.account.attribute import queued_steps, untraced_steps
from diag.api import Result, open_run
from diag.collectors.files import open_private
from diag.collectors.masking import masked_arguments
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import read_tail
from diag.diagnoses.policy import COMPARISON
from diag.errors import DiagError
from diag.model.steps import Advice
from diag.replay.advice import changed_arguments
from diag.tune.policy import TUNING
from diag.words import sentences

from .history import History, Interval, Outcome, Round, Run, save

# -- measure -----------------------------------------------------------------------------------------------------------
#
# The measured gain of a change: step times of runs with and without it, alternating on the same machine.

Series = npt.NDArray[np.float64]


def measured(result: Result) -> tuple[Series, int | None]:
    """Step times and the peak of device memory of one run: nanoseconds of each undisturbed, untraced step, from the end
    of the step before to its own, mean over the ranks (with a device, the host's steps follow its pace); and bytes
    reserved by the allocator, the maximum over all ranks and steps, None without a device.

    The first batches were loaded during setup: steps that a full queue feeds are left out, too.
    """
    records = [record for of_rank in result.tables.ranks.values() for record in of_rank.steps]
    times = untraced_steps(result.tables)
    queued = queued_steps(result.tables.manifest)
    first = min((record.step for record in records), default=0) + queued
    late = [step for step in times if step >= first]
    counted = late if len(late) >= TUNING.least_steps_after_queue else list(times)
    reserved = [record.memory.reserved for record in records if record.memory is not None and record.memory.reserved]
    return np.array([times[step] for step in counted]), max(reserved, default=None)


def gain(without: Sequence[Series], with_it: Sequence[Series], seed: int = 0) -> Interval:
    """Nanoseconds per step that the change gains: the difference of the means of all runs, with a 95 % interval from
    resampling runs and steps within them. Runs of one configuration differ by more than the spread of their steps, so
    both are resampled."""
    random = np.random.default_rng(seed)
    gains = np.array([_resampled(without, random) - _resampled(with_it, random) for _ in range(COMPARISON.resamples)])
    low, high = np.quantile(gains, [(1 - COMPARISON.interval_confidence) / 2, (1 + COMPARISON.interval_confidence) / 2])
    likely = np.mean([s.mean() for s in without]) - np.mean([s.mean() for s in with_it])
    return Interval(round(float(low)), round(float(likely)), round(float(high)))


def _resampled(runs: Sequence[Series], random: np.random.Generator) -> float:
    chosen = (runs[i] for i in random.integers(len(runs), size=len(runs)))
    return float(np.mean([steps[random.integers(len(steps), size=len(steps))].mean() for steps in chosen]))


def loss_difference(without: Result, with_it: Result) -> float | None:
    """The largest relative difference between the losses of equal steps and ranks; None if no loss was recorded in
    both. Floating-point sums in another order differ by about a millionth; a far larger difference means that another
    computation was trained."""
    before = _losses(without)
    worst = None
    for key, loss in _losses(with_it).items():
        if key in before:
            difference = abs(loss - before[key]) / max(abs(before[key]), 1e-12)
            worst = max(worst or 0.0, difference)
    return worst


def mean_ns(runs: Sequence[Run]) -> int:
    """The mean of the runs' mean steps."""
    return round(float(np.mean([run.step_ns for run in runs])))


def _losses(result: Result) -> dict[tuple[int, int], float]:
    return {
        (rank, record.step): record.loss
        for rank, tables in result.tables.ranks.items()
        for record in tables.steps
        if record.loss is not None
    }


Train = Callable[[Sequence[str], Path], str]
"""Trains with these arguments of ``diag run`` into this run directory; returns why it failed, "" where it did not."""

Tell = Callable[[str], None]


class TrainingFailedError(Exception):
    """A training that should be measured did not run to its end."""


@dataclass(frozen=True, eq=False)
class _Trained:
    run: Run
    times: Series
    result: Result


@dataclass(eq=False)
class _Tuning:
    folder: Path
    train: Train
    tell: Tell
    history: History
    _runs: int = field(default=0)

    def run(self, settings: dict[str, str | int], note: str) -> _Trained:
        """Trains with these settings. TrainingFailedError if the training fails or cannot be measured."""
        name = f"{self._runs:02}-{note}"
        self._runs += 1
        self.tell(f"training: {name}")
        failed = self.train(changed_arguments(self.history.arguments, settings), self.folder / name)
        if failed:
            raise TrainingFailedError(failed)
        result = open_run(self.folder / name)
        times, reserved = measured(result)
        if len(times) < TUNING.least_steps_of_a_run:
            raise TrainingFailedError(f"only {len(times)} undisturbed steps to measure; give more --steps")
        return _Trained(Run(name, dict(settings), round(float(times.mean())), len(times), reserved), times, result)

    def note(self, **changes: object) -> None:
        self.history = replace(self.history, **changes)  # type: ignore[arg-type]
        save(self.history, self.folder)

    def command(self, settings: dict[str, str | int]) -> str:
        """The command for these settings, to be shown and stored: secrets are masked."""
        return "diag run " + shlex.join(masked_arguments(changed_arguments(self.history.arguments, settings)))


def tune(
    arguments: Sequence[str], folder: Path, rounds: int, repeats: int, train: Train, tell: Tell = lambda _: None
) -> History:
    """Tries up to ``rounds`` changes, each measured in ``repeats`` runs with it and as many without. ``folder`` holds
    every run and, after each round, the history. DiagError if the training fails without any change."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DiagError("this folder is not empty", path=folder, hint="give another one with --out")
    except OSError as error:
        raise DiagError(f"cannot make the folder: {error.strerror}", path=folder) from error
    tuning = _Tuning(folder, train, tell, History(tuple(changed_arguments(arguments, {}))))
    tuning.note(command=tuning.command({}))
    try:
        diagnosed = tuning.run({}, "baseline")
    except TrainingFailedError as failed:
        tuning.note(stopped=f"the training failed: {failed}")
        raise DiagError(f"the training to be tuned failed: {failed}", path=folder) from failed
    fresh: _Trained | None = diagnosed  # counts as the next round's first run without the change
    tried: list[dict[str, str | int]] = []
    try:
        while len(tuning.history.rounds) < rounds:
            advice = _next(diagnosed.result, tried)
            if advice is None:
                tuning.note(stopped=why_nothing_is_left(diagnosed.result, tried))
                break
            tried.append(dict(advice.settings))
            tell(f"round {len(tuning.history.rounds) + 1}: {advice.change}")
            this_round, last_run = _try(tuning, diagnosed.result, advice, fresh, repeats)
            tell(f"{this_round.outcome}: {this_round.reason}")
            fresh = None
            if this_round.outcome == Outcome.KEPT and last_run is not None:
                diagnosed = last_run
                settings = tuning.history.settings | advice.settings
                tuning.note(
                    rounds=(*tuning.history.rounds, this_round), settings=settings, command=tuning.command(settings)
                )
            else:
                tuning.note(rounds=(*tuning.history.rounds, this_round))
        else:
            tuning.note(stopped=f"the limit of {rounds} round{'s' if rounds > 1 else ''} is reached")
    except KeyboardInterrupt:
        tuning.note(stopped="interrupted")
        raise
    except TrainingFailedError as failed:  # without the change, so nothing more can be compared
        tuning.note(stopped=f"the training without the change failed: {failed}")
    tuning.note(remaining=tuple(a.change for a in diagnosed.result.advice if not a.settings))
    return tuning.history


def _next(result: Result, tried: Sequence[dict[str, str | int]]) -> Advice | None:
    """The best advice that ``diag run`` has options for and that was not tried yet."""
    return next((a for a in result.advice if a.settings and dict(a.settings) not in tried), None)


def why_nothing_is_left(result: Result, tried: Sequence[dict[str, str | int]]) -> str:
    """Why there is no change left to try: what was refused, and what a finding advises that is not tried."""
    if result.advice and all(advice.settings for advice in result.advice):
        return "all advice was tried"
    why = "none of the remaining advice can be applied with an option of `diag run`"
    reasons = list(result.recommendation.not_advised)
    flags = {flag for settings in tried for flag in changed_arguments((), settings)}
    for finding in result.examination.findings:
        options = sentences.WITH_OPTIONS.read(finding.action).get("options", "")
        for option in filter(None, options.split(" or ")):
            if option.split()[0] not in flags:
                reasons.append(f"{finding.id} advises {option}, but the replay predicts no gain that could be measured")
    return f"{why} ({'; '.join(reasons[: TUNING.most_reasons])})" if reasons else why


def _try(
    tuning: _Tuning, diagnosed: Result, advice: Advice, first: _Trained | None, repeats: int
) -> tuple[Round, _Trained | None]:
    """The round, and the last run with the change. TrainingFailedError if a run without it fails."""
    number = len(tuning.history.rounds) + 1
    settings = tuning.history.settings
    without: list[_Trained] = [first] if first is not None else []
    with_it: list[_Trained] = []
    failed = ""
    for turn in range(repeats):
        # The order alternates from turn to turn, so that a machine that warms up or fills favours neither variant.
        for changed in (False, True) if turn % 2 == 0 else (True, False):
            if not changed and len(without) <= turn:
                without.append(tuning.run(settings, f"round{number}-without"))
            elif changed and not failed:
                try:
                    with_it.append(tuning.run(settings | advice.settings, f"round{number}-with"))
                except TrainingFailedError as error:
                    failed = str(error)
        if failed:
            break
    this_round = Round(
        number=number,
        verdict=diagnosed.verdict.headline,
        advice=advice.id,
        change=advice.change,
        settings=dict(advice.settings),
        predicted_gain_ns=Interval(*advice.predicted_gain_ns),
        predicted_memory_delta_bytes=advice.memory_delta_bytes,
        outcome=Outcome.FAILED,
        reason=f"the training with the change failed: {failed}",
        baseline_ns=mean_ns([t.run for t in without]),
        without=tuple(t.run for t in without),
        with_it=tuple(t.run for t in with_it),
    )
    if failed:
        return this_round, None
    measured_gain = gain([t.times for t in without], [t.times for t in with_it])
    difference = loss_difference(without[-1].result, with_it[-1].result)
    outcome, reason = _judged(measured_gain, difference)
    this_round = replace(
        this_round,
        outcome=outcome,
        reason=reason,
        gain_ns=measured_gain,
        memory_delta_bytes=_memory_delta(this_round),
        loss_difference=difference,
    )
    return this_round, with_it[-1]


def _judged(interval: Interval, difference: float | None) -> tuple[Outcome, str]:
    if difference is not None and difference > TUNING.loss_difference:
        return Outcome.REVERTED, f"the losses differ by {difference:.1%}: the change affects the training's result"
    if interval.low > 0:
        return Outcome.KEPT, "all of the 95 % interval of its gain is above zero"
    if interval.high < 0:
        return Outcome.REVERTED, "it made the steps longer"
    return Outcome.REVERTED, "its gain is within the variation between identical runs"


def _memory_delta(this_round: Round) -> int | None:
    """The highest reserved peak of the runs with the change, minus that of the runs without."""
    before, after = ([run.reserved_bytes for run in runs] for runs in (this_round.without, this_round.with_it))
    if any(value is None for value in (*before, *after)):
        return None
    return max(v for v in after if v is not None) - max(v for v in before if v is not None)


# -- training ----------------------------------------------------------------------------------------------------------
#
# One training of a tuning: ``diag run`` in a process of its own.


def train(arguments: Sequence[str], folder: Path) -> str:
    """Runs ``diag run`` with these arguments into this run directory; its output is in a .log file next to it. Returns
    why it failed, "" if it did not."""
    command = processes.python("-m", "diag", "run", "--quiet", *arguments, "--out", str(folder))
    printed = folder.with_suffix(".log")
    with open_private(printed) as log:
        code = processes.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    if code == 0:
        return ""
    tail, _ = read_tail(printed, RECORDED_FILES.log_tail_bytes)
    messages = [line for line in tail.decode(errors="replace").splitlines() if line.startswith("diag: ")]
    return f"exit code {code}" + (f", {messages[-1].removeprefix('diag: ')}" if messages else f"; see {printed}")

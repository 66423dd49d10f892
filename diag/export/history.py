"""A run's steps one by one, over the ranks, for tools that draw curves by step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

from diag.collectors.layout import SCHEMA_VERSION, RunLayout
from diag.collectors.records import RankRecord
from diag.errors import DiagError
from diag.export import definitions as of
from diag.rundir.lines import read_record
from diag.tables.efficiency import token_rate

from .definitions import Metric, Sample
from .finished_steps import FinishedStep, FinishedSteps, parts_of
from .run_metrics import must_be_run


class StepCurves(Struct, frozen=True):
    """One step. ``values`` by curve: `diag_step_duration_seconds/max` and the like."""

    step: int
    end_unix_s: float
    values: dict[str, float]


def history(run: Path, say: Callable[[str, str], object] | None = None) -> Iterator[StepCurves]:
    """Every recorded step, in order: its time and parts as mean and max over the ranks, the largest memory, and tokens
    a second of all ranks. ``say`` is told of each file that cannot be read, and why. DiagError where it is no run
    directory."""
    layout = RunLayout(run)
    must_be_run(layout)
    return _curves(layout, say)


def _curves(layout: RunLayout, say: Callable[[str, str], object] | None) -> Iterator[StepCurves]:
    steps: dict[int, _Step] = {}
    for rank, files in layout.ranks().items():
        identity, gap = read_record(files.identity, RankRecord, files.run)
        if gap is not None and say is not None:
            say(gap.path, gap.reason)
        recorded = FinishedSteps(rank, files, identity is not None and identity.device != "cpu")
        found, _ = recorded.read(ended=True)
        for path, reason in recorded.refusals.items():
            if say is not None:
                say(str(path), f"cannot be read: {reason}")
        for one in found:
            steps.setdefault(one.record.step, _Step()).add(one, identity)
    for number, step in sorted(steps.items()):
        yield StepCurves(number, step.end_unix_s, step.values())


class _Step(Struct):
    """What is known of one step so far."""

    end_unix_s: float = 0.0
    dur_ns: list[int] = field(default_factory=list)
    part_ns: dict[str, list[int]] = field(default_factory=dict)
    tokens: int = 0
    memory: dict[Metric, int] = field(default_factory=dict)

    def add(self, one: FinishedStep, identity: RankRecord | None) -> None:
        if identity is not None:
            end_ns = identity.unix_ns + one.record.end_ns - identity.monotonic_ns
            self.end_unix_s = max(self.end_unix_s, end_ns / 1e9)
        self.dur_ns.append(one.dur_ns)
        for part, ns in parts_of(one).items():
            self.part_ns.setdefault(part, []).append(ns)
        self.tokens += one.record.tokens
        if one.memory is not None:
            held = (
                (of.ALLOCATED, one.memory.allocated),
                (of.RESERVED, one.memory.reserved),
                (of.RESIDENT, one.memory.rss),
            )
            for metric, size in held:
                if size is not None:
                    self.memory[metric] = max(size, self.memory.get(metric, 0))

    def values(self) -> dict[str, float]:
        curves = _mean_and_max(of.STEP_DURATION.name, self.dur_ns)
        for part, each in self.part_ns.items():
            curves |= _mean_and_max(f"{of.PART_DURATION.name}/{part}", each)
        if self.tokens:
            curves[of.TOKEN_RATE.name] = token_rate(self.tokens, max(self.dur_ns))
        return curves | {f"{metric.name}/max": float(size) for metric, size in self.memory.items()}


def _mean_and_max(name: str, ns: list[int]) -> dict[str, float]:
    return {f"{name}/mean": sum(ns) / len(ns) / 1e9, f"{name}/max": max(ns) / 1e9}


# -- jsonl -------------------------------------------------------------------------------------------------------------
#
# Samples as JSON lines: one object a sample, all of one reading with one time.


def to_lines(samples: Iterable[Sample], now_ns: int) -> str:
    """Each line ends with a line feed."""
    return "".join(
        json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "time_unix_ns": now_ns,
                "name": metric.name,
                "kind": metric.kind,
                "unit": metric.unit,
                "labels": dict(labels),
                "value": value,
            }
        )
        + "\n"
        for metric, labels, value in samples
    )


# -- wandb -------------------------------------------------------------------------------------------------------------
#
# A run's steps as a run of Weights & Biases, where its client is installed. Offline, unless WANDB_MODE says otherwise:
# `wandb sync` uploads it.


def write_run(steps: Iterable[StepCurves], name: str, folder: Path) -> int:
    """How many steps were written into the folder. DiagError where wandb is missing."""
    try:
        import wandb
    except ImportError as error:
        raise DiagError("wandb is not installed", hint="pip install wandb") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    with wandb.init(project="diag", name=name, dir=str(folder), mode=os.environ.get("WANDB_MODE", "offline")) as run:
        for step in steps:
            run.log(step.values, step=step.step)
            written += 1
    return written


# -- tensorboard -------------------------------------------------------------------------------------------------------
#
# A run's steps as TensorBoard's event files, where TensorBoard is installed.


def write_events(steps: Iterable[StepCurves], folder: Path) -> int:
    """How many steps were written into the folder. DiagError where TensorBoard is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DiagError("TensorBoard is not installed", hint="pip install tensorboard") from error
    written = 0
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            for name, value in step.values.items():
                writer.add_scalar(name, value, step.step, step.end_unix_s or None)
            written += 1
    return written

"""The functions of ``import diag``: commands as Python functions, with results that notebooks show.

    run = diag.open_run("runs/last")      # verdict, findings, advice; run.steps, run.ranks, ... as polars frames
    diag.compare("runs/before", "runs/after")
    diag.triage("logs/")
    diag.plan("7B", gpus=64, gpu="H100")
    diag.lint("ds_config.json")

Each result prints as three lines and is HTML in a notebook. A DiagError holds a hint on what to do.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from diag.api import Result, compare_runs
from diag.diagnoses.compare import Comparison
from diag.ended.model import culprit_words
from diag.hang.api import triage as _triage
from diag.hang.model import Triage
from diag.linting.lint import lint as _lint
from diag.linting.model import Linted, NoticeSeverity
from diag.planning.plan import Plan, plan_for
from diag.show.opened import open_run
from diag.words.formatting import NBSP, counted, duration, size, visible

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ComparedRuns", "LintReport", "PlanReport", "TriageReport", "compare", "lint", "open_run", "plan", "triage"]

_WIDTH = 110


def _html(print_to: Callable[[Console], object]) -> str:
    """The output of a command as HTML without scripts or style sheets."""
    from diag.words.terminal import console

    screen = console(width=_WIDTH)
    screen.file, screen.record = io.StringIO(), True
    print_to(screen)
    return screen.export_html(inline_styles=True, code_format="<pre style='line-height:1.3'>{code}</pre>")


def _lines(*lines: str) -> str:
    return "\n".join(visible(line.replace(NBSP, " ")) for line in lines)


class TriageReport(Triage):
    """Why a job hung or failed, and which rank is at fault."""

    def __repr__(self) -> str:
        named = culprit_words(self.culprits) or "no rank"
        then = self.next_steps[0] if self.next_steps else "nothing"
        return _lines(
            f"Triage: {self.fault_class}, confidence {self.confidence:.0%}; at fault: {named}",
            self.headline,
            f"Next: {then}",
        )

    def _repr_html_(self) -> str:
        from diag.show.triage import print_triage

        return _html(lambda screen: print_triage(self, screen, evidence=True))


def triage(*paths: Path | str) -> TriageReport:
    """Why a job hung or failed, from logs, Flight Recorder dumps, NCCL RAS reports and run directories at or below
    ``paths``. DiagError if there is nothing to read."""
    result = _triage([str(path) for path in paths])
    return TriageReport(**{field.name: getattr(result, field.name) for field in dataclasses.fields(result)})


class ComparedRuns(Comparison, frozen=True, kw_only=True):
    """Two runs, and the parts of the step in which they differ."""

    before: Result
    after: Result

    def __repr__(self) -> str:
        from diag.show.compare import headline

        parts = [f"{part.kind.name.lower()} {part.ns[1] / 1e6:+.1f} ms" for part in self.parts if part.sure]
        return _lines(
            f"Comparison: {duration(self.before_ns)} a step before, {duration(self.after_ns)} after",
            headline(self),
            f"Parts with a significant difference: {', '.join(parts) or 'none'}",
        )

    def _repr_html_(self) -> str:
        from diag.show.compare import print_comparison

        return _html(lambda screen: print_comparison(self, self.before, self.after, screen))


def compare(before: Result | Path | str, after: Result | Path | str) -> ComparedRuns:
    """The parts of the step in which the second run differs from the first. Each is a run that ``open_run`` returned,
    or the path of a run."""
    first, second = (run if isinstance(run, Result) else open_run(run) for run in (before, after))
    return ComparedRuns(**asdict(compare_runs(first, second)), before=first, after=second)


class PlanReport(Plan, frozen=True):
    """Which sharding strategies fit, how much they communicate, and which one to use."""

    def __repr__(self) -> str:
        fitting = [f"{row.need.strategy.name} ({size(row.peak)})" for row in self.rows if row.fits]
        chosen = self.chosen.name if self.chosen is not None else "nothing fits"
        return _lines(
            f"Plan: {self.size.parameters / 1e9:.1f}B parameters on {counted(self.cluster.gpus, 'GPU')}: {chosen}",
            "; ".join(self.reasons) or "-",
            f"Fits: {', '.join(fitting) or 'none'}",
        )

    def _repr_html_(self) -> str:
        from diag.show.plan import print_plan

        return _html(lambda screen: print_plan(self, None if self.topology.plain else self.topology, screen))


def plan(model: str, gpus: int = 8, gpu: str | None = None, **options: Any) -> PlanReport:
    """Estimates memory, communication and step time of a training for every sharding strategy, and chooses one.
    ``options``: those of ``diag.planning.plan.plan_for``, which documents them."""
    return PlanReport(**asdict(plan_for(model, gpus, gpu, **options)))


class LintReport(tuple[Linted, ...]):
    """The problems in training configurations, by file."""

    __slots__ = ()

    def __repr__(self) -> str:
        notices = [notice for linted in self for notice in linted.notices]
        counts = [f"{sum(n.severity is severity for n in notices)} {severity.value}" for severity in NoticeSeverity]
        first = notices[0] if notices else None
        return _lines(
            f"Lint: {counted(len(self), 'file')}: {', '.join(linted.path for linted in self)}",
            ", ".join(counts),
            f"First: {first.text}" if first is not None else "Nothing is wrong",
        )

    def _repr_html_(self) -> str:
        from diag.show.plan import print_lint

        return _html(lambda screen: print_lint(self, screen))


def lint(*paths: Path | str, gpus: int | None = None, per_host: int = 8) -> LintReport:
    """The problems in configurations of DeepSpeed, Accelerate, Hugging Face's Trainer, FSDP or torchtitan. DiagError if
    a file cannot be read or is none of these."""
    return LintReport(_lint([Path(path) for path in paths], gpus, per_host))

"""What notebooks, the command line and the dashboard share: a run opened, analysed, and ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diag.attribution.attribute import attribute
from diag.findings import Examination, examine
from diag.ingest.run import Tables, open_paths
from diag.model import Advice, Attribution, Bottleneck, Coverage, StepAccount, Verdict
from diag.verdict import judge, step_bottleneck


@dataclass(frozen=True)
class Result:
    """An analysed run."""

    tables: Tables
    attribution: Attribution
    examination: Examination
    coverage: Coverage
    verdict: Verdict
    advice: tuple[Advice, ...] = ()

    @property
    def on_device(self) -> bool:
        return self.examination.shares.on_device

    def bottleneck_of(self, step: StepAccount) -> Bottleneck:
        return step_bottleneck(step, self.on_device)


def open_run(*paths: Path | str) -> Result:
    """Analyses a run directory, or a folder or files of Kineto traces. DiagError where there is nothing to analyse."""
    tables = open_paths([Path(path) for path in paths])
    attribution = attribute(tables)
    examination = examine(attribution, tables)
    coverage = Coverage(
        ranks_used=attribution.ranks,
        ranks_missing=tables.missing,
        skipped=tables.gaps,
        clock_uncertainty_ns=attribution.clock_uncertainty_ns,
        not_looked=examination.not_looked,
    )
    verdict = judge(attribution, examination, coverage, tables)
    return Result(tables, attribution, examination, coverage, verdict)

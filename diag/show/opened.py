"""``diag.open_run``: a run as ``diag.api`` opens it; notebooks show it as HTML, its verdict and advice as sentences."""

from __future__ import annotations

from pathlib import Path

from diag import api
from diag.api import Reading, Result
from diag.model.steps import Advice, Verdict


def open_run(
    *paths: Path | str, reading: Reading | None = None, steps: str | None = None, since: str | None = None
) -> Result:
    """Analyses a run directory; folders, files, archives or URLs of Kineto traces; or files of NCCL Inspector.
    ``reading``: options of reading, if not the default ones. ``steps`` and ``since``: only some of the steps, as with
    the options of these names of ``diag analyze``. A run that was restarted stands for its newest attempt with a step;
    ``R/restart-0`` is the first. DiagError if there is nothing to analyse; SeveralJobsError if the traces belong to
    several jobs: FOLDER::NAME selects one of them."""
    Result.as_html, Verdict.in_words, Advice.in_words = _html, _verdict, _advice
    return api.open_run(*paths, reading=reading, steps=steps, since=since)


def _html(result: Result) -> str:
    from diag.show.notebook import to_html

    return to_html(result)


def _verdict(verdict: Verdict) -> str:
    from diag.words.formatting import NBSP, begun, rank_ranges, share, visible

    hosts = f" on {', '.join(verdict.culprit_hosts)}" if verdict.culprit_hosts else ""
    named = [f"at fault: {rank_ranges(verdict.culprit_ranks)}{hosts}"] if verdict.culprit_ranks else []
    below = begun("; ".join([*named, f"confidence {share(verdict.confidence)}"]))
    return "\n".join(visible(line.replace(NBSP, " ")) for line in (verdict.headline, f"{below}."))


def _advice(advice: Advice) -> str:
    from diag.show.page import RISK, saves
    from diag.words.formatting import NBSP, visible
    from diag.words.wording import sentence

    return visible(f"{sentence(advice.change)}: {saves(advice)}; {RISK[advice.risk]}".replace(NBSP, " "))

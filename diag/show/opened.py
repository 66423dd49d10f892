"""``diag.open_run``: a run as ``diag.api`` opens it, whose result a notebook shows as HTML."""

from __future__ import annotations

from pathlib import Path

from diag import api
from diag.api import Reading, Result


def open_run(
    *paths: Path | str, reading: Reading | None = None, steps: str | None = None, since: str | None = None
) -> Result:
    """Analyses a run directory; folders, files, archives or URLs of Kineto traces; or files of NCCL Inspector.
    ``reading``: options of reading, if not the default ones. ``steps`` and ``since``: only some of the steps, as with
    the options of these names of ``diag analyze``. A run that was restarted stands for its newest attempt with a step;
    ``R/restart-0`` is the first. DiagError if there is nothing to analyse; SeveralJobsError if the
    traces belong to several jobs: FOLDER::NAME selects one of them."""
    Result.as_html = _html
    return api.open_run(*paths, reading=reading, steps=steps, since=since)


def _html(result: Result) -> str:
    from diag.show.notebook import to_html

    return to_html(result)

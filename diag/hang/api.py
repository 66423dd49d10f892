"""Hang triage for callers: paths in, the answer out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from diag.collectors.layout import RunLayout, is_folder
from diag.collectors.reading import walk
from diag.collectors.text import masked
from diag.errors import DiagError
from diag.hang.attempts import reported, with_others
from diag.hang.gaps import by_reason as by_reason
from diag.hang.gaps import is_incomplete
from diag.hang.model import Logs, Triage
from diag.hang.wording import guess_words as guess_words
from diag.words.formatting import visible

if TYPE_CHECKING:
    from diag.hang.flight import Dumps
    from diag.hang.ras.client import Asked

STDIN = "-"

T = TypeVar("T")


@dataclass(frozen=True)
class Investigation:
    """The answer, and all that it was drawn from."""

    triage: Triage
    logs: Logs
    dumps: Dumps


def newest_write(path: str) -> int:
    """When anything at or below a path was written last, Unix time in ns; 0 where that cannot be seen."""
    files = walk(path, order=None) if is_folder(path) else ()
    return max(map(_written_ns, (path, *files)))


def _written_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:  # removed while we looked: a heartbeat is replaced every second
        return 0


def incomplete(found: Triage) -> bool:
    """Whether a file could not be read, or not wholly."""
    return any(path and is_incomplete(reason) for path, reason in found.gaps)


def triage(
    paths: Iterable[str], progress: Callable[[int, int, str], None] | None = None, ras: Sequence[Asked] = ()
) -> Triage:
    """What went wrong, and who is at fault: ``investigate``, and the answer alone."""
    return investigate(paths, progress, ras).triage


def investigate(
    paths: Iterable[str], progress: Callable[[int, int, str], None] | None = None, ras: Sequence[Asked] = ()
) -> Investigation:
    """What went wrong, who is at fault, and what was read, from logs, Flight Recorder dumps and reports of NCCL RAS
    below ``paths``. ``ras``: reports that a running job has just given.

    ``paths``: files and folders, "-" for standard input; what is a log and what a dump is seen from the content. One
    run directory means all attempts of its training, each looked at by itself: of the one that is reported everything
    is returned, with what the others were in the headline. ``progress`` is told (files read, files in all, the file).
    Raises DiagError where there is nothing to read.
    """
    given = list(dict.fromkeys(paths))
    restarts = RunLayout(Path(given[0])).restarts() if len(given) == 1 and given[0] != STDIN and not ras else []
    if not restarts:
        return _investigated(given, progress, ras)
    found: list[Investigation | None] = []
    missing: DiagError | None = None
    for path in (given[0], *(str(layout.root) for layout in restarts)):
        try:
            found.append(_investigated([path], progress, ()))
        except DiagError as error:  # it ended before it left anything
            found.append(None)
            missing = missing or error
    answers = [one.triage if one is not None else None for one in found]
    if missing is not None and not any(answers):
        raise missing
    chosen = found[reported(answers)]
    assert chosen is not None
    return replace(chosen, triage=with_others(answers))


def _investigated(
    given: list[str], progress: Callable[[int, int, str], None] | None, ras: Sequence[Asked]
) -> Investigation:
    from diag.hang.flight import clues_of, read_dumps
    from diag.hang.ras.clues import completed, judged
    from diag.hang.ras.read import ANCHORS, overheard, read_reports
    from diag.hang.reason import reason
    from diag.hang.rundir import clues_of as clues_of_run
    from diag.hang.rundir import ended_well, read_runs
    from diag.hang.signatures import anchors
    from diag.hang.text import read_logs

    if not given and not ras:
        raise DiagError("no log was given", hint="give log files, folders of logs, or - for standard input")
    with overheard(STDIN in given) as stdin:
        logs = read_logs(given, (*anchors(), *ANCHORS), progress)
        with_reports = [line.path for line in logs.lines if any(anchor in line.raw for anchor in ANCHORS)]
        reports = read_reports(with_reports, ras, stdin, given)
    dumps = read_dumps([path for path in given if path != STDIN])
    found = clues_of(dumps, logs.world_size)
    runs = read_runs(given)
    # Of a log beside the run it is not known which job it is of.
    well = ended_well(runs[0]) if len(runs) == len(given) == 1 else None
    from_runs = [clue for run in runs for clue in clues_of_run(run)]
    logs = replace(logs, gaps=tuple(dict.fromkeys((*logs.gaps, *(gap for run in runs for gap in run.gaps)))))
    if not logs.paths and not dumps.paths and not from_runs and well is None and not reports.reports:
        reasons = "; ".join(f"{visible(path)}: {reason}" for path, reason in logs.gaps[:3] if path)
        raise DiagError(
            "neither a log nor a Flight Recorder dump is there" + (f" ({reasons})" if reasons else ""),
            hint="give text logs of the ranks (NCCL_DEBUG=INFO), torchrun's output, or dumps; folders are searched",
            path=given[0] if given else None,
        )
    # What is a dump is no text, which is no news of it; nor is JSON in one long line.
    known = {*dumps.paths, *reports.json_paths}
    logs = replace(logs, gaps=tuple(gap for gap in logs.gaps if gap[0] not in known))
    findings = judged(reports, logs)
    answer = reason(logs, found, [*from_runs, *findings.clues], well)
    return Investigation(_without_secrets(completed(answer, findings)), logs, dumps)


def _without_secrets(value: T) -> T:
    """Lines of logs hold command lines, and a triage is passed around. Paths stay, for they lead to the files."""
    changed: Any = value
    if isinstance(value, str):
        changed = masked(value)
    elif isinstance(value, tuple):
        changed = tuple(map(_without_secrets, value))
    elif is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "path"}
        changed = replace(value, **{name: _without_secrets(item) for name, item in own.items()})
    return cast(T, changed)

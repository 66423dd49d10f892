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
from diag.words.formatting import visible

from .model import Logs, Triage
from .wording import by_reason as by_reason
from .wording import guess_words as guess_words
from .wording import is_incomplete

if TYPE_CHECKING:
    from diag.hang.flight import Dumps
    from diag.hang.ras.client import Asked

# -- attempts ----------------------------------------------------------------------------------------------------------
#
# One answer for a training that its launcher restarted: why it failed at first, and how it went on.

_OPEN = ("undetermined", "healthy", "cascade_store_lost")  # name no cause
_MOST_EVIDENCE = 2


def reported(attempts: Sequence[Triage | None]) -> int:
    """The attempt to report: the first whose cause is known, else the first with a guess, else the first that left
    anything. ``None``: of an attempt that left nothing to read. ValueError where all are."""
    there = [number for number, found in enumerate(attempts) if found is not None]
    if not there:
        raise ValueError("no attempt left anything")

    def rank(number: int) -> tuple[int, int]:
        found = attempts[number]
        assert found is not None
        return (0 if found.fault_class not in _OPEN else 1 if found.guesses else 2), number

    return min(there, key=rank)


def with_others(attempts: Sequence[Triage | None]) -> Triage:
    """The answer of the attempt to report, with what the others were. ValueError as above."""
    chosen = reported(attempts)
    found = attempts[chosen]
    assert found is not None
    sentences = [_before(attempts[:chosen])] if chosen else []
    evidence = list(found.evidence)
    again: list[int] = []
    for number, other in enumerate(attempts[chosen + 1 :], chosen + 1):
        if other is not None and _is_same(other, found):
            again.append(number)
        else:
            sentences.append(_after(number, other))
        evidence += other.evidence[:_MOST_EVIDENCE] if other is not None and other.culprits else ()
    if again:
        sentences.insert(bool(chosen), f"After {_restarts(again)} it failed again, in the same way.")
    first = found.headline if found.headline.endswith((".", "!")) else f"{found.headline}."
    return replace(found, headline=" ".join((first, *sentences)), evidence=tuple(dict.fromkeys(evidence)))


def _is_same(other: Triage, found: Triage) -> bool:
    """The same fault of the same ranks, in the same words: one attempt may only have left more about how it ended."""
    ranks = [[culprit.rank for culprit in one.culprits] for one in (other, found)]
    short, long = sorted((one.headline.rstrip(".") for one in (other, found)), key=len)
    return other.fault_class == found.fault_class and ranks[0] == ranks[1] and long.startswith(short)


def _before(attempts: Sequence[Triage | None]) -> str:
    words = "the first attempt" if len(attempts) == 1 else f"the first {len(attempts)} attempts"
    which = "the first restart" if len(attempts) == 1 else f"restart {len(attempts)}"
    return f"That was after {which}: the records of {words} name no cause."


def _after(number: int, other: Triage | None) -> str:
    if other is None:
        return f"After restart {number} it left nothing to read."
    if other.fault_class == "healthy":
        return f"After restart {number}: {other.headline}"
    if other.fault_class in _OPEN:
        return f"After restart {number} no cause is known: {other.headline}"
    return f"After restart {number} it failed in another way: {other.headline}"


def _restarts(numbers: Sequence[int]) -> str:
    return f"restart{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


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

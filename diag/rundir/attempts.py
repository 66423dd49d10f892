"""Which attempt of a training a path stands for. A run directory holds the first attempt, and in it ``restart-N`` the
later ones; ``restart-0`` names the first. A run that was restarted stands for its present: the newest attempt that
recorded a step."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from diag.collectors.layout import FIRST_ATTEMPT, RunLayout, names_first, without_first
from diag.model import Gap
from diag.words.places import in_command, show_first, shown

from .lines import has_steps
from .local import is_run, local_paths, only


def attempt_paths(paths: Sequence[Path | str]) -> list[str]:
    """``local_paths``, where the path of a run of several attempts is that of one of them: the one that is named, else
    the newest with a step, or the first if none has any. DiagError as of ``local_paths``."""
    local = local_paths(paths)
    if len(local) != 1 or names_first(local[0]):
        return [without_first(path) for path in local]
    return [str(newest_with_steps(RunLayout(Path(local[0]))).root)] if is_run(local[0]) else local


def attempt_path(path: Path | str) -> Path:
    """The same for one path. DiagError as of ``local_path``."""
    return only(attempt_paths([path]), path)


def newest_with_steps(run: RunLayout) -> RunLayout:
    """The newest attempt that recorded a step; the first if none did."""
    return next((attempt for attempt in reversed(run.restarts()) if has_steps(attempt)), run)


def gaps_of_attempts(layout: RunLayout) -> list[Gap]:
    """Gaps for the attempts after this one if none of them recorded a step: then the answer is about the training
    before them. Readers know the first of several attempts by a name of its own from here on."""
    attempts, number = layout.first.attempts(), layout.number
    if len(attempts) > 1 and number == 0:
        show_first(layout.root)
    later = [attempt for attempt in attempts if attempt.number > number]
    if any(map(has_steps, later)):
        return []
    reason = "a later attempt of this job, which recorded no step"
    return [Gap(str(each.root), f"{reason}: diag triage {in_command(str(each.root))}") for each in later]


def notes_on_attempts(layout: RunLayout) -> list[str]:
    """The commands for the other attempts; nothing where there is one alone. Which one the answer is about, the facts
    of the run say."""
    if not layout.is_run() or attempts_of(layout) == 1:
        return []
    numbers, number = {0, *layout.first.restart_numbers()}, layout.number
    other = min(numbers - {number}, key=lambda other: (abs(other - number), other))
    run = shown(str(layout.first.root)).removesuffix(f"/{FIRST_ATTEMPT}")
    analyze = f"diag analyze {shlex.quote(f'{run}/restart-{other}')}"
    return [f"to see attempt {other + 1}: {analyze}; all attempts: diag history {shlex.quote(run)}"]


def attempts_of(layout: RunLayout) -> int:
    """How many attempts the training of this one had so far."""
    return max(layout.first.restart_numbers(), default=0) + 1

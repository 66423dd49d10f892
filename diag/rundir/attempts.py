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


def number_of(attempt: RunLayout) -> int:
    """How many attempts of the training were before this one."""
    return int(attempt.root.name.rpartition("-")[2]) if attempt.is_restart else 0


def gaps_of_attempts(layout: RunLayout) -> list[Gap]:
    """Gaps for the attempts after this one if none of them recorded a step: then the answer is about the training
    before them. Readers know the first of several attempts by a name of its own from here on."""
    attempts = layout.first.attempts()
    if len(attempts) > 1 and not layout.is_restart:
        show_first(layout.root)
    later = [attempt for attempt in attempts if number_of(attempt) > number_of(layout)]
    if any(map(has_steps, later)):
        return []
    reason = "a later attempt of this job, which recorded no step"
    return [Gap(str(each.root), f"{reason}: diag triage {in_command(str(each.root))}") for each in later]


def notes_on_attempts(layout: RunLayout) -> list[str]:
    """Which attempt the answer is about, and the commands for the others; nothing where there is one alone."""
    of, number = {number_of(attempt): attempt for attempt in layout.first.attempts()}, number_of(layout)
    if len(of) == 1 or not layout.is_run():
        return []
    other = min(of.keys() - {number}, key=lambda other: (abs(other - number), other))
    run = shown(str(layout.first.root)).removesuffix(f"/{FIRST_ATTEMPT}")
    command = f"diag analyze {shlex.quote(f'{run}/{of[other].root.name if other else FIRST_ATTEMPT}')}"
    return [
        f"attempt {number + 1} of {max(of) + 1} is analysed; {command} shows attempt {other + 1}, diag history "
        f"{shlex.quote(run)} all of them"
    ]


def attempts_of(layout: RunLayout) -> int:
    """How many attempts the training of this one had so far."""
    return number_of(layout.first.newest()) + 1

"""Which runs are parts of one training: each went on where the one before it ended, in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from diag.collectors.records import Manifest
from diag.model.history import History, Origin
from diag.rundir.states import State

_OUT = ("--out", "-o")


def origin_of(manifest: Manifest | None) -> Origin:
    """As the manifest says; nothing is known of what another tool recorded."""
    if manifest is None:
        return Origin()
    return Origin(
        training=manifest.training or manifest.run_id,
        resumed_step=manifest.resumed_step,
        job=manifest.job,
        scheduled=manifest.scheduled,
        command=_without_folder(manifest.argv),
    )


def _without_folder(argv: Sequence[str]) -> tuple[str, ...]:
    """The records of each attempt may go to another folder."""
    return tuple(
        word
        for before, word in zip(("", *argv), argv, strict=False)
        if before not in _OUT and word not in _OUT and not word.startswith("--out=")
    )


def related(mine: Origin, its: Origin) -> bool:
    """Whether both are of one training, or of one job of the launcher or the scheduler, by what their manifests say."""
    return any(name and name == its_name for name, its_name in zip(_names(mine), _names(its), strict=True))


def _names(of: Origin) -> tuple[str, str, str]:
    return of.training, of.job, of.scheduled


def goes_on_with(before: History, later: History) -> bool:
    """Whether a run goes on where another one ended, which began before it. It resumed from a checkpoint of the same
    training; or both are of one job of the launcher or the scheduler, and the second goes on with the numbers of the
    first, or began the same command again after the first had not come to its end. Runs at the same time never do."""
    mine, its = later.origin, before.origin
    if None in (before.end_unix_ns, later.begin_unix_ns) or not before.stretches or not later.stretches:
        return False
    if (later.stretches[0].begin_unix_ns or 0) < (before.stretches[-1].end_unix_ns or 0):
        return False
    if mine.training and mine.training == its.training:
        return True
    if not related(mine, its):
        return False
    if 0 < later.stretches[0].first <= before.stretches[-1].last + 1:
        return True
    return mine.command == its.command and before.ended != State.FINISHED.value


def parts_of_trainings(runs: Mapping[str, Sequence[History]]) -> list[list[str]]:
    """The names of the runs, each with its own attempts, that are parts of one training, in the order of time."""
    found: list[list[str]] = []
    for name in sorted(runs, key=lambda name: runs[name][0].begin_unix_ns or 0):
        mine = next((parts for parts in found if goes_on_with(runs[parts[-1]][-1], runs[name][0])), None)
        if mine is not None:
            mine.append(name)
        else:
            found.append([name])
    return found


def numbered(attempts: Sequence[History]) -> list[History]:
    """The attempts of all parts of a training, numbered anew."""
    return [replace(attempt, number=number) for number, attempt in enumerate(attempts)]

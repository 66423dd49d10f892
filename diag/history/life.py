"""The life of a job: its attempts one after the other, with what each restart lost."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from diag.model.history import Goodput, History, Incident, Life, Restart
from diag.words.formatting import counted

from .losses import RESTART

_BY_NUMBER = "its steps go on with the numbers of the attempt before"
_BY_CHECKPOINT = "the last checkpoint before it"
_FROM_START = "no checkpoint was recorded before it"


def life_of(attempts: Sequence[History]) -> Life:
    """Of all attempts of a job, in order. Attempts without a clock are listed, and not counted."""
    timed = [attempt for attempt in attempts if attempt.goodput is not None]
    restarts: list[Restart] = []
    parts: dict[str, int] = {}
    notes: list[str] = []
    incidents: list[Incident] = []
    reached = -1
    offset = 0  # of the numbers of an attempt from those of the job
    for at, attempt in enumerate(timed):
        goodput = attempt.goodput or Goodput(0)
        own = goodput.parts
        if at:
            before = timed[at - 1]
            restart, offset = _restart(before, attempt, reached, offset)
            restarts.append(restart)
            own["repeated_steps"] = min(restart.repeated_ns, own["new_steps"])
            own["new_steps"] -= own["repeated_steps"]
            between = (attempt.begin_unix_ns or 0) - (before.end_unix_ns or 0)
            own["restarts"] = max(0, own["initialisation"] + between)
            own["initialisation"] = 0
            lost = restart.down_ns + restart.repeated_ns
            incidents.append(
                Incident(
                    RESTART, restart.resumed_at, restart.resumed_at + max(0, restart.repeated - 1),
                    restart.unix_ns - restart.down_ns, restart.unix_ns, lost, attempt.ranks * lost / 3.6e12,
                    f"the training ended ({restart.ended})" if restart.ended else "", attempt=attempt.number,
                )
            )  # fmt: skip
            if restart.basis != _BY_NUMBER:
                notes.append(
                    f"attempt {attempt.number} is taken to begin with step {restart.resumed_at:,}: {restart.basis}"
                )
        incidents += [replace(incident, attempt=attempt.number) for incident in attempt.incidents]
        reached = max(reached, attempt.stretches[-1].last + offset)
        for name, ns in own.items():
            parts[name] = parts.get(name, 0) + ns
    if not timed:
        return Life(tuple(attempts), None, (), ())
    if attempts[0].stretches and any(stretch.steps > 1 for attempt in timed for stretch in attempt.stretches):
        sums = sum(stretch.steps for attempt in timed for stretch in attempt.stretches if stretch.steps > 1)
        notes.append(f"of {counted(sums, 'older step')} only sums are known: evaluations in them count as steps")
    if timed[0].origin.resumed_step:
        notes.append(
            f"the training began in another run, and went on with step {timed[0].origin.resumed_step:,} here: give the "
            "folders of both for its whole life"
        )
    notes += _without_steps(timed)
    whole = Goodput(sum(parts.values()), **parts, notes=tuple(notes))
    incidents.sort(key=lambda incident: incident.begin_unix_ns or 0)
    return Life(tuple(attempts), whole, tuple(incidents), tuple(restarts))


def _without_steps(timed: Sequence[History]) -> list[str]:
    """Attempts that are missing among those that have a number, and where their time is."""
    numbers = [attempt.number for attempt in timed]
    missing = sorted(set(range(numbers[-1])).difference(numbers))
    counts = {number: "is left out" if number < numbers[0] else "counts as restarts" for number in missing}
    return [f"no step of attempt {number} could be read: its time {where}" for number, where in counts.items()]


def _restart(before: History, attempt: History, reached: int, offset: int) -> tuple[Restart, int]:
    """What it lost, and by how much the numbers of the attempt differ from those of the job. ``reached``: the last
    step of the job so far; ``offset``: of the attempt before."""
    first, last = attempt.stretches[0], before.stretches[-1]
    if first.first > 0:
        basis, offset = _BY_NUMBER, 0
    elif attempt.origin.resumed_step is not None and attempt.origin != before.origin:
        basis, offset = _BY_NUMBER, attempt.origin.resumed_step
    elif before.saved is not None:
        basis, offset = _BY_CHECKPOINT, before.saved + 1 + offset
    else:
        basis, offset = _FROM_START, 0
    repeated = [stretch for stretch in attempt.stretches if stretch.first + offset <= reached]
    steps = [min(stretch.steps, reached + 1 - stretch.first - offset) for stretch in repeated]
    ns = sum(count * stretch.step_ns for count, stretch in zip(steps, repeated, strict=True))
    begin, end = first.begin_unix_ns or 0, last.end_unix_ns or 0
    return Restart(
        attempt.number, begin, max(0, begin - end), first.first + offset, sum(steps), round(ns), basis, before.ended
    ), offset

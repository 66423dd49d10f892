"""The life of a run in words."""

from __future__ import annotations

from collections.abc import Mapping

from diag.model.history import Change, FaultyHost, Goodput, History, Incident, KeptSteps, Restart

from . import sentences
from .formatting import NBSP, counted, duration, listing, moment, number, rank_ranges, share, visible
from .wording import WHY_KEPT


def since(history: History) -> str:
    """Since when a step takes as long as it takes now; "" if that never changed, or it only became faster than its
    first steps."""
    now = history.now
    if now is None or not (now.slower or len(history.changes) > 1):
        return ""
    return change_words(now, goes_on=True)


def change_words(change: Change, *, goes_on: bool) -> str:
    """When, by how much, and because of what: a sentence. ``goes_on``: until the last step."""
    since = sentences.SINCE_STEP(step=f"{change.step:,}")
    if not goes_on:
        since = sentences.IN_STEPS(first=f"{change.step:,}", last=f"{change.last:,}")
    template = sentences.SLOWER_SINCE if change.slower else sentences.FASTER_SINCE
    return template(
        since=since,
        moment=_when(change.unix_ns),
        by=share(abs(change.by)),
        after=duration(change.after_ns),
        before=duration(change.before_ns),
        why=_why(change),
    )


def _why(change: Change) -> str:
    if not change.cause:
        return sentences.UNKNOWN_WHY()
    if change.ranks:
        template = sentences.BECAUSE_OF_RANKS if change.slower else sentences.NO_MORE_BECAUSE_OF_RANKS
        return template(ranks=listing(change.ranks), hosts=on_hosts(change.hosts), cause=change.cause)
    return (sentences.BECAUSE_OF if change.slower else sentences.NO_MORE_BECAUSE_OF)(cause=change.cause)


def on_hosts(hosts: tuple[str, ...], most: int = 4) -> str:
    """`` on node3``; "" without any."""
    if not hosts:
        return ""
    more = f" and {len(hosts) - most} more" if len(hosts) > most else ""
    return f" on {', '.join(hosts[:most])}{more}"


def not_counted(stalled: Mapping[int, tuple[int, int | None]]) -> str:
    """The steps that are not counted because they stalled, as ``diag.account.stalls`` returns them."""
    step, (_, late) = next(iter(stalled.items()))
    why = sentences.STALLED_BECAUSE_OF(ranks=rank_ranges([late]), hosts="") if late is not None else ""
    told = {"step": f"{step:,}", "lost": long_time(sum(ns for ns, _ in stalled.values())), "why": why}
    if len(stalled) == 1:
        return sentences.STALL_NOT_COUNTED(**told)
    return sentences.STALLS_NOT_COUNTED(count=counted(len(stalled), "step"), **told)


# -- what it cost ------------------------------------------------------------------------------------------------------

PARTS = {
    "repeated_steps": "steps trained again",
    "initialisation": "initialisation",
    "checkpoints": "checkpoints",
    "evaluation": "evaluation",
    "stalls": "stalls",
    "restarts": "restarts",
    "other": "other",
}


def goodput_words(goodput: Goodput) -> str:
    """The share of the wall time that became new steps, and where the rest went, the most first."""
    parts = goodput.parts
    worth = goodput.wall_ns / 1000
    rest = sorted(((parts[name], words) for name, words in PARTS.items() if parts[name] > worth), reverse=True)
    return sentences.GOODPUT(
        share=_not_rounded_up(goodput.share),
        wall=long_time(goodput.wall_ns),
        new=long_time(goodput.new_steps),
        rest="".join(f", {long_time(ns)} {words}" for ns, words in rest),
    )


def _not_rounded_up(fraction: float) -> str:
    """``100%`` where nothing was lost alone."""
    return share(min(fraction, 0.999), 1) if 0.995 <= fraction < 1 else share(fraction)


def cost_words(incident: Incident, on_device: bool) -> str:
    """What a slow stretch cost."""
    return sentences.IT_COST(lost=long_time(incident.lost_ns), hours=hours(incident, on_device))


def incident_words(incident: Incident, on_device: bool) -> str:
    """A stall, or a run that is stuck: a sentence."""
    stuck = incident.kind == "stuck"
    why = f" ({incident.cause})" if incident.cause else ""
    if incident.ranks:
        why = sentences.STALLED_BECAUSE_OF(ranks=listing(incident.ranks), hosts=on_hosts(incident.hosts))
    return (sentences.STUCK if stuck else sentences.STALLED)(
        step=f"{incident.first - stuck:,}",
        moment=_when(incident.begin_unix_ns),
        lost=long_time(incident.lost_ns),
        why=why,
        hours=hours(incident, on_device),
    )


def restart_words(restart: Restart, incident: Incident, on_device: bool) -> str:
    """When the training began again, and what that lost."""
    repeated = sentences.REPEATED_NOTHING()
    if restart.repeated:
        repeated = sentences.REPEATED(steps=counted(restart.repeated, "step"), time=long_time(restart.repeated_ns))
    return sentences.RESTARTED(
        number=restart.number,
        moment=_when(restart.unix_ns),
        ended=f", after it {restart.ended}" if restart.ended else "",
        down=long_time(restart.down_ns),
        repeated=repeated,
        hours=hours(incident, on_device),
    )


def kept_words(kept: KeptSteps) -> str:
    """Of which steps all records were kept, when these were, and around what: a sentence without its end."""
    why = WHY_KEPT.get(kept.why, visible(kept.why))
    return sentences.KEPT(first=f"{kept.first:,}", last=f"{kept.last:,}", moment=_when(kept.begin_unix_ns), why=why)


def host_words(host: FaultyHost, on_device: bool) -> str:
    """In how many runs a host was at fault, and what that cost: a sentence."""
    more = f" and {len(host.runs) - 4} more" if len(host.runs) > 4 else ""
    return sentences.HOST_AT_FAULT(
        host=visible(host.host),
        runs=f"{len(host.runs)} of {counted(host.took_part, 'run')}",
        names=visible(", ".join(host.runs[:4])) + more,
        hours=_hours(host.lost_hours, on_device),
    )


def hours(incident: Incident, on_device: bool) -> str:
    """The time of all ranks: ``3.4 GPU hours``."""
    return _hours(incident.lost_hours, on_device)


def _hours(lost: float, on_device: bool) -> str:
    return f"{number(lost)}{NBSP}{'GPU' if on_device else 'rank'} hours"


def long_time(ns: float) -> str:
    """``2 h 5 min``: two units, of which the second is left out where it is 0; below two minutes ``12.3 s``."""
    if ns < 120e9:
        return duration(ns)
    minutes = round(ns / 60e9)
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{NBSP}{unit}" for count, unit in parts[first : first + 2] if count)


def _when(unix_ns: int | None) -> str:
    return f" ({moment(unix_ns)})" if unix_ns and moment(unix_ns) else ""

"""The life of a run in words."""

from __future__ import annotations

from diag.model.history import Change, History

from . import sentences
from .formatting import duration, listing, moment, share


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
    when = f" ({moment(change.unix_ns)})" if change.unix_ns and moment(change.unix_ns) else ""
    return template(
        since=since,
        moment=when,
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

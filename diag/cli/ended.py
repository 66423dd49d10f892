"""What is said when a training has ended, and its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diag.cli.why import say_why
from diag.collectors.layout import RunLayout
from diag.words.terminal import flush_or_drop, say

if TYPE_CHECKING:
    from diag.watch.launch import Outcome


def say_end(layout: RunLayout, outcome: Outcome, collect: bool, shown: bool = False) -> int:
    """The exit code of the training, whatever fails here. ``shown``: its own output has been on the terminal."""
    from diag.watch.launch import after_training

    with after_training(_say):
        _say_end(layout, outcome, collect, shown)
    flush_or_drop()
    return outcome.exit_code


def _say_end(layout: RunLayout, outcome: Outcome, collect: bool, shown: bool) -> None:
    from diag.watch.launch import after_training, log_tail

    newest = layout.newest()
    # What a user's training prints on standard output is all that may be there.
    if outcome.exit_code:
        who = f"rank {outcome.failed_rank}: " if outcome.failed_rank is not None else ""
        _say(f"the training ended early: {who}{outcome.reason}")
        if outcome.failed_rank is not None and not shown:
            for line in log_tail(newest, outcome.failed_rank):
                say(f"      {line}", err=True)
        if not outcome.interrupted:
            with after_training(_say):
                say_why(layout)  # of every attempt
        say(f"      what was recorded until then: diag analyze {newest.root}", err=True)
    elif collect:
        say(f"Recorded in {newest.root}. Next: diag analyze {newest.root}", err=shown)


def _say(text: str) -> None:
    say(f"diag: {text}", err=True)

"""A tuning as text: each change with its predicted gain, its measured gain and its outcome."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import IntEnum, auto
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from diag.replay.advice import changed_arguments
from diag.show.policy import PAGE
from diag.tune.history import History, Interval, Outcome, Round
from diag.words import sentences
from diag.words.formatting import counted, duration, share, size, spaced, visible
from diag.words.table import SIZE, TENTHS_OF_MS, Cell, Column, Table, table_of
from diag.words.terminal import report_console

from .fitting import headed, print_together, rows_of, together
from .screen import Screen
from .table import has_room

_COLOUR = {Outcome.KEPT: "green", Outcome.REVERTED: "yellow", Outcome.FAILED: "red"}


class _Place(IntEnum):
    HEAD = auto()
    TO_DO = auto()
    ROUNDS = auto()
    END = auto()


def print_tuning(history: History, folder: Path, console: Console | None = None, evidence: bool = False) -> None:
    """What the tuning in ``folder`` gained, the command with the changes that were kept, and a row for each change that
    was tried; in ten rows, unless the command is very long. ``evidence``: all that is known of each change."""
    console = report_console(console)
    if evidence:
        for done in history.rounds:
            _print_round(console, done)
        console.print()
    screen = Screen(console)
    quoted = shlex.quote(visible(str(folder)))
    more, browser = sentences.MORE_BEHIND_THE_TUNING(folder=quoted), sentences.IN_THE_BROWSER(folder=quoted)
    screen.left -= 1 if together(console, Text(more), Text(browser)) is not None else 2
    screen.put(_Place.HEAD, Text(_gained(history), "bold"))
    if history.kept:
        screen.put_command(_Place.TO_DO, headed("What to do", Text(visible(history.command), "cyan")))
    if evidence:
        _put_whole_end(screen, history)
    else:
        _put_rounds(screen, history.rounds)
        _put_end(screen, history)
    screen.print()
    print_together(console, more, "dim", browser, "dim", command=True)


def _put_whole_end(screen: Screen, history: History) -> None:
    """Why no more was tried, with the reasons, and all that is advised besides."""
    if history.stopped:
        screen.put(_Place.END, Text(sentences.TUNING_STOPPED(why=visible(history.stopped)), "dim"))
    for change in history.remaining:
        screen.put(_Place.END, Text(sentences.ALSO_ADVISED(changes=visible(change)), "dim"))


def _put_end(screen: Screen, history: History) -> None:
    """Why no more was tried, and what is advised besides, as far as each has room."""
    why, reasons, _ = history.stopped.partition(" (")
    if reasons and not history.rounds:
        why = history.stopped
    if why:
        screen.put_if_room(_Place.END, Text(sentences.TUNING_STOPPED(why=visible(why)), "dim"))
    changes = [visible(change) for change in history.remaining]
    for shown in range(len(changes), 0, -1):
        rest = [sentences.MORE_CHANGES(changes=len(changes) - shown)] if shown < len(changes) else []
        text = sentences.ALSO_ADVISED(changes="; ".join(changes[:shown] + rest))
        if rows_of(screen.console, text) <= PAGE.rows_of_advice:
            screen.put_if_room(_Place.END, Text(text, "dim"))
            return


def _put_rounds(screen: Screen, rounds: Sequence[Round]) -> None:
    """A row for each change; where they have no room, for those that were kept and those that gained most."""
    room = screen.left - 1  # for the headings
    if len(rounds) > room:
        room -= 1  # for how many are left out
        best = sorted(rounds, key=lambda done: (done.outcome != Outcome.KEPT, -(done.gain_share or 0.0)))
        shown = [done for done in rounds if done in best[: max(0, room)]]
    else:
        shown = list(rounds)
    if not shown:
        return
    table = tuning_table(shown, left_out=len(rounds) - len(shown))
    if not has_room(table, screen.console.width):
        table = tuning_table(shown, left_out=len(rounds) - len(shown), as_options=True)
    screen.put_table(
        _Place.ROUNDS, table, {(place, "outcome"): _COLOUR[done.outcome] for place, done in enumerate(shown)}
    )


def _gained(history: History) -> str:
    """The step before and now, in one sentence."""
    if not history.rounds:
        return "No change was tried."
    before, now = history.rounds[0].baseline_ns, history.step_ns_now
    if now is None:
        return f"No change made the step of {spaced(duration(before))} significantly shorter."
    kept = f"{len(history.kept)} of {counted(len(history.rounds), 'change')} kept"
    saved = share((before - now) / before)
    return spaced(f"{duration(now)} a step instead of {duration(before)}, {saved} less: {kept}.")


def tuning_table(rounds: Sequence[Round], left_out: int = 0, as_options: bool = False) -> Table:
    """The changes that were tried: how the step changed, as predicted and as measured. ``as_options``: a change is the
    options that it sets, which is shorter than what it does."""
    names = [shlex.join(changed_arguments((), done.settings)) if as_options else done.change for done in rounds]
    return table_of(
        "tuning",
        "",
        {
            Column("change", long=True, weight=0): names,
            Column("outcome", weight=0): [str(done.outcome) for done in rounds],
            Column("predicted_ns", TENTHS_OF_MS, label="predicted", weight=5): [
                _change_of_step(done.predicted_gain_ns, done.baseline_ns) for done in rounds
            ],
            Column("measured_ns", TENTHS_OF_MS, label="measured", weight=6): [
                _change_of_step(done.gain_ns, done.baseline_ns) for done in rounds
            ],
            Column("memory_bytes", SIZE, label="memory", weight=4): [
                done.memory_delta_bytes or None for done in rounds
            ],
        },
        left_out=left_out,
        noun="change",
    )


def _change_of_step(gain: Interval | None, step_ns: int) -> Cell | None:
    """``-54.1 (-56%)``: a gain shortens the step."""
    if gain is None:
        return None
    saved = gain.likely / step_ns if step_ns else 0.0
    portion = f" ({-saved:+.0%})" if abs(saved) >= 0.005 else ""  # not -0%
    return Cell(-gain.likely, f"{-gain.likely / 1e6:+,.1f}{portion}")


def _print_round(console: Console, done: Round) -> None:
    console.print(f"\n[bold]Round {done.number}: {escape(done.verdict)}[/]")
    rows = [f"tried      {done.change}"]
    rows.append(
        f"predicted  {_gain(done.predicted_gain_ns, done.baseline_ns)}{_memory(done.predicted_memory_delta_bytes)}"
    )
    if done.gain_ns is not None:
        runs = f"; {len(done.with_it)} runs with it, {len(done.without)} without, alternating"
        rows.append(f"measured   {_gain(done.gain_ns, done.baseline_ns)}{_memory(done.memory_delta_bytes)}{runs}")
    for row in rows:
        console.print(Padding(escape(row), (0, 0, 0, 3)))
    outcome = f"[{_COLOUR[done.outcome]}]{done.outcome}[/]"
    console.print(Padding(f"{outcome:<10} {escape(done.reason)}", (0, 0, 0, 3)))


def _gain(gain: Interval, step_ns: int) -> str:
    low, likely, high = (value / 1e6 for value in gain)
    share = abs(gain.likely) / step_ns if step_ns else 0.0
    less = "less" if likely >= 0 else "more"
    return f"{abs(likely):,.1f} ms a step {less}, {share:.0%} of it (gain between {low:,.1f} and {high:,.1f})"


def _memory(delta: int | None) -> str:
    if not delta:
        return ""
    return f"; {size(abs(delta))} {'more' if delta > 0 else 'less'} memory"

"""A tuning as text: each change, what was predicted of it, what was measured, and what became of it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.tune.history import History, Interval, Outcome, Round
from diag.words.cells import report_console, size

_COLOUR = {Outcome.KEPT: "green", Outcome.REVERTED: "yellow", Outcome.FAILED: "red"}


def print_history(history: History, console: Console | None = None) -> None:
    """Everything that was tried, and the command with what was kept."""
    console = report_console(console)
    for done in history.rounds:
        _print_round(console, done)
    console.print()
    if history.rounds:
        before, now = history.rounds[0].baseline_ns, history.step_ns_now
        if now is not None:
            console.print(f"[bold]{before / 1e6:,.1f} ms a step before, {now / 1e6:,.1f} ms now[/]")
        else:
            console.print(f"[bold]{before / 1e6:,.1f} ms a step, and no change made it surely shorter[/]")
    if history.stopped:
        console.print(f"[dim]Stopped: {escape(history.stopped)}.[/]")
    for change in history.remaining:
        console.print(f"[dim]Advised, and not for an option to try: {escape(change)}.[/]")
    if history.kept:
        console.print(f"\n[cyan]{escape(history.command)}[/]")


def _print_round(console: Console, done: Round) -> None:
    console.print(f"\n[bold]Round {done.number}: {escape(done.verdict)}[/]")
    rows = [f"tried      {done.change}"]
    rows.append(
        f"predicted  {_gain(done.predicted_gain_ns, done.baseline_ns)}{_memory(done.predicted_memory_delta_bytes)}"
    )
    if done.gain_ns is not None:
        runs = f"; {len(done.with_it)} runs with it, {len(done.without)} without, in turns"
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

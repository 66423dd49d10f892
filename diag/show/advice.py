"""What to change, as text: the gain with its interval, the price in memory, the risk, and how to do it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.api import Result
from diag.model.steps import Advice, Risk
from diag.words.cells import size
from diag.words.wording import RISK, not_predicted, sentence

_TOLD_IN_BYTES = (Risk.SAFE, Risk.MEMORY)


def print_advice(console: Console, result: Result) -> None:
    """The changes worth trying, or why nothing is predicted; nothing for a healthy run."""
    found = result.recommendation
    if not found.advice:
        for reason in not_predicted(found.not_advised):
            console.print()
            console.print(f"[dim]{escape(reason)}[/]")
        return
    console.print()
    console.print(
        f"[bold]Try first[/] [dim](gains predicted by replaying the steps; error {found.replay_error:.1%})[/]"
    )
    for number, advice in enumerate(found.advice, start=1):
        console.print(f"{number}. [bold]{escape(sentence(advice.change))}[/]")
        console.print(Padding(escape(f"{_gain(advice)}{_price(advice)}"), (0, 0, 0, 3)))
        how = advice.command or next(iter(advice.code.values()), "")
        for line in how.splitlines():
            console.print(Padding(f"[cyan]{escape(line)}[/]", (0, 0, 0, 3)))


def _gain(advice: Advice) -> str:
    low, likely, high = (value / 1e6 for value in advice.predicted_gain_ns)
    doubt = ", so it may gain nothing: `diag tune` measures it" if low <= 0 else ""
    return f"{likely:,.0f} ms a step less, {advice.gain_share:.0%} of it (between {low:,.0f} and {high:,.0f}{doubt})"


def _price(advice: Advice) -> str:
    parts = []
    if advice.memory_delta_bytes is None:
        parts.append("memory not known")
    elif advice.memory_delta_bytes:
        more = "more" if advice.memory_delta_bytes > 0 else "less"
        parts.append(f"{size(abs(advice.memory_delta_bytes))} {more} memory for parameters and gradients")
    if advice.risk not in _TOLD_IN_BYTES:
        parts.append(RISK[advice.risk])
    return "".join(f"; {part}" for part in parts)

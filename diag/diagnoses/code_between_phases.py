"""Code that runs on the CPU between the phases of a step: metrics, logging, an environment, loops over gradients."""

from __future__ import annotations

from diag.words.sentences import OneOrMany, Sentence

from .costs import Cost
from .ids import CODE_BETWEEN_PHASES as ID
from .rules import rule
from .stalled_rank import no_loader
from .subject import Subject, highest_ranks


def _action(subject: Subject) -> str:
    action = (
        "Find this code with py-spy (py-spy record --pid PID) or a profiler window with Python stacks: metrics, "
        "logging, an environment, or loops over parameters. Run it in fewer steps, vectorise it, or move it to another "
        "process."
    )
    if no_loader(subject):
        action += " No batch came from a torch DataLoader: if the script makes its input itself, it may be that."
    return action


DIAGNOSIS = rule(
    Cost.BETWEEN,
    id=ID,
    title=OneOrMany(
        Sentence("The training runs code outside of data loading, forward, backward and the optimizer: {cost}"),
        Sentence("All ranks run code outside of data loading, forward, backward and the optimizer: {cost}"),
    ),
    action=_action,
    evidence=lambda subject: highest_ranks(subject.scheduling, "between_ns", "code between phases"),
    needs="a run on a CPU, and the CPU time of the training's thread by phase.",
    means="Much of the step is code of the script outside of data loading, forward, backward and the optimizer. It is "
    "on a core all that time. Gradient clipping and other operators that run there count as well.",
)

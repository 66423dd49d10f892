"""Changes of a program: what a knob would do to the graph. Each is a function of its settings that returns a
``Mutation``; applied, it gives the changed program and what it assumed, or the reason why it cannot be told."""

from __future__ import annotations

from collections.abc import Callable

from diag.replay.costs import Costs, Level
from diag.replay.program import Mutated, Program, Refusal

Mutation = Callable[[Program, Costs, Level], Mutated | Refusal]


def in_turn(*mutations: Mutation) -> Mutation:
    """One after the other: what is advised together is predicted together."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        assumed: list[str] = []
        for mutation in mutations:
            found = mutation(program, costs, level)
            if isinstance(found, Refusal):
                return found
            program = found.program
            assumed += found.assumed
        return Mutated(program, tuple(assumed))

    return mutate

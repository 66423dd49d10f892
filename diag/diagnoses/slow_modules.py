"""The modules of the model in which a late rank loses its time, as evidence beside the finding that it is late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diag.model.steps import Evidence
from diag.tables.module_excess import ModuleExcess, module_excess

from .shares import Cost
from .subject import Subject, ranks_text

_EXPLAINS = 0.5  # of the lateness; below that the modules are not where the time is lost
_MOST_NAMED = 3


def evidence_of(subject: Subject, ranks: tuple[int, ...]) -> list[Evidence]:
    """One line a module, where at most three of them explain half of how late the ranks are; else none. Reads traces
    again, so it is for a finding that was made."""
    blamed = subject.shares.blame_ns.get(Cost.STRAGGLER, {})
    late_ns = float(np.mean([blamed[rank].mean() for rank in ranks if rank in blamed] or [0.0]))
    if subject.stages_alone or late_ns <= 0:
        return []
    named = _telling(module_excess(subject.attribution, subject.tables, ranks, subject.shares.numbers), late_ns)
    who, late = ranks_text(ranks), f"of +{late_ns / 1e6:.3g} ms a step"
    return [
        Evidence("modules", f"{e.module}: {who} beyond the {_others(e.others)}, {late}", round(e.ns / 1e6, 3), "ms")
        for e in named
    ]


def _others(count: int) -> str:
    return "other rank" if count == 1 else f"median of {count} others"


def _telling(found: Sequence[ModuleExcess], late_ns: float) -> Sequence[ModuleExcess]:
    """The fewest modules, the largest first, that explain enough."""
    explained = 0
    for count, excess in enumerate(found[:_MOST_NAMED], start=1):
        explained += excess.ns
        if explained >= _EXPLAINS * late_ns:
            return found[:count]
    return ()

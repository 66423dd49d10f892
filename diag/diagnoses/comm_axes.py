"""Which axes of the mesh the exposed communication is of."""

from __future__ import annotations

from collections import Counter

from diag.model.axes import PIPELINE, axis_words
from diag.model.steps import Evidence, Kind
from diag.traces.comm_names import P2P_OPS

from .subject import MENTION, Subject


def exposed_along(subject: Subject) -> dict[str, float]:
    """The part of the exposed communication on the critical path by axis; "" where none is known."""
    axes = subject.attribution.axes
    pipelined = bool(axes.stages())
    axis_of = {
        met.key: PIPELINE if pipelined and met.op in P2P_OPS else axes.of(met.ranks) or ""
        for met in subject.attribution.collectives
    }
    spent: Counter[str] = Counter()
    for step in subject.attribution.usable or subject.attribution.steps:
        path = step.path
        chosen = path.kind == Kind.COMM
        took = (path.end_ns - path.start_ns)[chosen].tolist()
        for number, ns in zip(path.collective[chosen].tolist(), took, strict=True):
            spent[axis_of.get(path.keys[number], "") if number >= 0 else ""] += ns
    total = spent.total()
    return {axis: ns / total for axis, ns in spent.items()} if total else {}


def evidence_by_axis(subject: Subject) -> tuple[Evidence, ...]:
    """Of a mesh of several axes."""
    if not subject.attribution.axes.several:
        return ()
    return tuple(
        Evidence("critical path", f"exposed communication, {axis_words(axis)} groups", round(part, 4), "share")
        for axis, part in sorted(subject.once(exposed_along).items(), key=lambda item: -item[1])
        if axis and part >= MENTION
    )

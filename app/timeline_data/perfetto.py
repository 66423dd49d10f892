"""Steps of the timeline as traces for Perfetto: which one a window is about, and its text."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.responses import Response

from diag.app.policy import DASHBOARD
from diag.app.timeline_data.asked import RefusedError, whole
from diag.app.timeline_data.source import Source
from diag.errors import DiagError
from diag.timeline import timeline_of


@dataclass(frozen=True)
class StepToOpen:
    """A step of a rank for Perfetto. Not ``profiled``: made from the rank's records, as no trace covers it."""

    rank: int
    step: int
    profiled: bool


def step_to_open(source: Source, rank: int, begin_ns: int, end_ns: int) -> StepToOpen | None:
    """The step that a window is about, for Perfetto: the first that a trace covers among those of which the window
    holds half, or which fill half of the window; without one, the first of them that the rank recorded. None if
    the window holds no such step: never another one."""
    account, window_ns = source.account(rank), end_ns - begin_ns
    seen = []
    for step in account.steps:
        begin, end = step.begin_ns + account.moved_ns, step.end_ns + account.moved_ns
        inside = min(end, end_ns) - max(begin, begin_ns)
        if inside > 0 and 2 * inside >= min(end - begin, window_ns):
            seen.append(step.step)
    recorded = source.result.tables.ranks[rank].recorded
    profiled = next((step for step in seen if step in account.traced), None)
    if profiled is not None:
        return StepToOpen(rank, profiled, True)
    return next((StepToOpen(rank, step, False) for step in seen if step in recorded), None)


def trace(source: Source, asked: Mapping[str, str]) -> Response:
    """One step of a rank for Perfetto, as a Kineto trace: the step that was asked for, and no other."""
    from diag.perfetto import excerpt_text, step_of  # seldom needed

    rank, step = whole(asked.get("rank", ""), "rank"), whole(asked.get("step", ""), "step")
    source.account(rank)
    try:
        excerpt = step_of(source.result.tables.root, rank, step)
        text = b"".join(excerpt_text(excerpt))
    except DiagError as error:
        raise RefusedError(error.message, HTTPStatus.NOT_FOUND) from error
    name = f"rank{rank}-step{step}{'-recorded' if excerpt.recorded else ''}.json"
    return Response(text, media_type="application/json", headers={"cache-control": "no-store", "x-diag-title": name})


def together(source: Source, asked: Mapping[str, str]) -> Response:
    """One step of all ranks for Perfetto, on one clock, as an archive."""
    from diag.perfetto import together as step_together
    from diag.perfetto import write_archive

    if len(timeline_of(source.result).ranks) > DASHBOARD.most_ranks_together:
        raise RefusedError(f"at most {DASHBOARD.most_ranks_together} ranks", HTTPStatus.BAD_REQUEST)
    archive = io.BytesIO()
    try:
        chosen = step_together(source.result, whole(asked.get("step", ""), "step"))
        write_archive(chosen.members, archive)
    except DiagError as error:
        raise RefusedError(error.message, HTTPStatus.NOT_FOUND) from error
    headers = {"cache-control": "no-store", "x-diag-title": f"step{chosen.step}-{len(chosen.members)}-ranks.zip"}
    return Response(archive.getvalue(), media_type="application/zip", headers=headers)

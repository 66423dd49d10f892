"""The picture beside a finding: the step in which it costs most, on the ranks that it names and those that wait for
them longest. Data for ``views/moment.js``; nothing here draws."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.app.figures import MS
from diag.app.picture import colours_of
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import Theme
from diag.diagnoses.contended_host import ID as CONTENDED_HOST
from diag.model.steps import Bottleneck, Finding
from diag.show.page import Place
from diag.show.parts import PART_OF, Part
from diag.tables.zoom import Category, RankLanes, StepSpan
from diag.timeline import timeline_of
from diag.words.formatting import duration, number
from diag.words.wording import sentence

_WAITS = frozenset({Part.TRANSFER, Part.WAITING, Part.COMMUNICATION})
_SHORT = {Part.TRANSFER: "transfer", Part.WAITING: "waiting", Part.COPY: "copies", Part.HOST: "waiting for the host"}
# The parts of a step in which a finding of each class costs time.
_COSTS: Mapping[Bottleneck, frozenset[Part]] = {
    Bottleneck.COMPUTE: frozenset({Part.COMPUTE, Part.IDLE}),
    Bottleneck.COMMUNICATION: _WAITS,
    Bottleneck.DATA: frozenset({Part.DATA, Part.COPY}),
    Bottleneck.HOST: frozenset({Part.HOST, Part.QUEUED, Part.IDLE, Part.CHECKPOINT}),
}


def moment_of(view: RunView, finding: Finding, place: Place, theme: Theme) -> dict[str, Any] | None:
    """The data of the picture; None where the ranks' steps are not on a timeline. What the finding is about has its
    full colour, everything else is pale."""
    timeline = timeline_of(view.result)
    span = next((span for span in timeline.steps if span.step == place.step), None)
    if span is None or place.rank not in timeline.ranks:
        return None
    named = finding.ranks or (place.rank,)
    ranks = _shown(timeline.ranks, named, span)
    costs = _COSTS.get(finding.bottleneck, frozenset(Part)) if finding.bottleneck is not None else frozenset(Part)
    if not finding.ranks and any(each.charged_ns for each in view.result.examination.findings if each.ranks):
        costs -= {Part.WAITING}  # for the ranks that another finding names
    queued = _waits_for_a_core(view, place.step) if finding.id == CONTENDED_HOST else {}
    if queued:
        costs = frozenset(Part)  # it is inside of any of them
    found = {rank: _shares(timeline.ranks[rank], span) for rank in ranks}
    used = [part for part in Part if any(part in of_part for of_part in found.values())]
    of_others = costs
    if finding.ranks and set(ranks) - set(finding.ranks) and not queued:  # the others wait for those that it names
        of_others = _WAITS if finding.bottleneck == Bottleneck.COMMUNICATION else _WAITS - {Part.TRANSFER}
    strong = {rank: costs if rank in named or not finding.ranks else of_others for rank in ranks}
    length_ns = span.end_ns - span.begin_ns
    rows = [_row(rank, found[rank], used, strong[rank], length_ns, rank in finding.ranks) for rank in ranks]
    beside = "what is in full colour"
    if queued:
        beside = "its wait for a CPU core, inside of these parts"
        rows = [row | _queued_words(queued[row["rank"]]) if row["rank"] in queued else row for row in rows]
    elif finding.ranks:
        others = [found[rank] for rank in ranks if rank not in finding.ranks]
        rows = [row | _more_than(others, found[row["rank"]], row) if row["named"] else row for row in rows]
    lead = sentence(f"{view.noun} {place.step}")
    of = "" if len(ranks) == len(timeline.ranks) else f", {len(ranks)} of {len(timeline.ranks):,} ranks"
    about = "; ".join(f"rank {row['rank']}: {row['about']}" for row in rows)
    return {
        "title": lead,
        "rest": f"{of}: {duration(length_ns)}. Beside each rank: {beside}. Click: the timeline",
        "alt": f"{lead} over time. {about}. Opens the timeline.",
        "parts": [[part.value, theme.part[part]] for part in used],
        "strong": [part.value for part in used if any(part in each for each in strong.values())],
        "rows": rows,
        "ends": ["0", f"{number(length_ns / MS)} ms"],
        "colours": colours_of(theme),
    }


def _in_short(part: Part) -> str:
    """The part beside a row of the picture."""
    return _SHORT.get(part, part.value)


def _more_than(
    others: Sequence[Mapping[Part, npt.NDArray[np.int64]]],
    own: Mapping[Part, npt.NDArray[np.int64]],
    row: Mapping[str, Any],
) -> dict[str, str]:
    """The text of a rank that the finding names, with how much more that is than on the others, which is what the title
    has the mean of."""
    part = next((part for part in own if part == row["most"]), None)
    if part is None or not others:
        return {}
    of_others = [int(found[part].sum()) if part in found else 0 for found in others]
    more_ns = int(own[part].sum()) - float(np.median(of_others))
    return {"text": f"{row['text']}, {number(more_ns / MS)} ms more"} if more_ns > 0 else {}


def _waits_for_a_core(view: RunView, step: int) -> dict[int, float]:
    """By rank, nanoseconds of a counted step in which its threads had no core: computing, loading and in collectives.
    Where in the step is not known. Empty where the step has no such record."""
    scheduling = view.result.examination.scheduling
    if step not in scheduling.numbers:
        return {}
    at = scheduling.numbers.index(step)
    series = {r: of.queued_ns + of.loading_ns + of.communicating_ns for r, of in scheduling.ranks.items()}
    return {rank: float(ns[at]) for rank, ns in series.items() if at < len(ns)}


def _queued_words(ns: float) -> dict[str, str]:
    return {"text": f"{number(ns / MS)} ms", "about": f"waiting for a CPU core {duration(ns)}"}


def _shown(lanes: Mapping[int, RankLanes], named: Collection[int], span: StepSpan) -> list[int]:
    """The ranks that the finding names, and the others that wait longest in this step."""
    of_finding = [rank for rank in named if rank in lanes][: DASHBOARD.most_ranks_of_moment - 1]
    waits = {rank: _waits_ns(lanes[rank], span) for rank in lanes if rank not in named}
    others = sorted(waits, key=lambda rank: (-waits[rank], rank))[: DASHBOARD.most_ranks_of_moment - len(of_finding)]
    return sorted((*of_finding, *others))


def _waits_ns(lanes: RankLanes, span: StepSpan) -> int:
    waiting = lanes.lane(Category.WAITING) or lanes.lane(Category.COMMUNICATION)
    return waiting.busy_in(span.begin_ns, span.end_ns) if waiting is not None else 0


def _shares(lanes: RankLanes, span: StepSpan) -> dict[Part, npt.NDArray[np.int64]]:
    """By part, nanoseconds in each of equal columns of the step."""
    edges = np.linspace(span.begin_ns, span.end_ns, DASHBOARD.columns_of_moment + 1).astype(np.int64)
    found: dict[Part, npt.NDArray[np.int64]] = {}
    for lane in lanes.lanes:
        ns, part = lane.busy_ns(edges), PART_OF[Category(lane.category)]
        if ns.any():
            found[part] = found.get(part, 0) + ns
    return found


def _row(
    rank: int,
    found: Mapping[Part, npt.NDArray[np.int64]],
    used: Sequence[Part],
    strong: Collection[Part],
    length_ns: int,
    named: bool,
) -> dict[str, Any]:
    """``runs``: how many columns have the same shares, and those, in percent by the index of the part."""
    width_ns = length_ns / DASHBOARD.columns_of_moment
    percent = np.zeros((DASHBOARD.columns_of_moment, len(used)), dtype=np.int64)
    for at, part in enumerate(used):
        if part in found:
            percent[:, at] = np.rint(100 * found[part] / max(width_ns, 1.0))
    begins = np.flatnonzero(np.r_[True, (percent[1:] != percent[:-1]).any(axis=1)])
    runs = [
        [int(end - begin), [[at, int(share)] for at, share in enumerate(percent[begin]) if share]]
        for begin, end in zip(begins, [*begins[1:], len(percent)], strict=True)
    ]
    strong_ns = {part: int(found[part].sum()) for part in used if part in found and part in strong}
    most = max(strong_ns, key=lambda part: strong_ns[part], default=None)
    whole_ns = sum(strong_ns.values())
    if most is not None and strong_ns[most] >= DASHBOARD.alone_share * whole_ns:
        whole_ns = strong_ns[most]
        words = _in_short(most)
    else:
        words = " and ".join(map(_in_short, strong_ns)) if len(strong_ns) == 2 else ""
    return {
        "rank": rank,
        "named": named,
        "runs": runs,
        "strong": [at for at, part in enumerate(used) if part in strong],
        "text": f"{words} {number(whole_ns / MS)} ms".strip(),
        "about": ", ".join(f"{part.value} {duration(ns)}" for part, ns in strong_ns.items()) or "nothing of it",
        "most": most.value if most is not None else "",
    }

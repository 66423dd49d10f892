"""What a report shows of a run besides the overview: the worst step's timeline, the collectives, where the ranks of a
hang are, their stacks, and what the memory was used for at its peak. Figures are SVG; their colours are variables of
the style sheet."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from diag.api import Result
from diag.app.hang_matrix import matrix_of
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import DARK, LIGHT
from diag.errors import DiagError
from diag.hang.api import Investigation, investigate, places_of
from diag.model.memory import Category as Use
from diag.show import svg
from diag.show.breakdowns import allocation_table, collective_table
from diag.show.curves import curve_sentence
from diag.show.parts import PART_OF, Part
from diag.show.policy import PAGE
from diag.show.snapshots import peak_sentence, who
from diag.show.triage import stack_tree
from diag.tables.memory_history import History
from diag.tables.zoom import Category
from diag.timeline import timeline_of
from diag.words.formatting import duration, size
from diag.words.table import Column, Table, table_of
from diag.words.wording import sentence


@dataclass(frozen=True)
class Legend:
    """A colour by its variable in the style sheet, in both schemes."""

    variable: str
    light: str
    dark: str
    name: str


@dataclass(frozen=True)
class Lanes:
    """``drawn``: the SVG; its texts are ranks, durations and words of diag."""

    lead: str
    rest: str
    drawn: Markup
    legend: tuple[Legend, ...]


@dataclass(frozen=True)
class Peak:
    """Memory over time, its peak pinned, and what was live there."""

    text: str
    drawn: Markup
    legend: tuple[Legend, ...]
    live: Table


@dataclass(frozen=True)
class Hang:
    """Where the ranks of a run that failed are: ``stacks`` has a line of the merged tree each."""

    headline: str
    matrix: Table | None
    stacks: tuple[str, ...]
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Figures:
    """None and () where the run has nothing of it."""

    timeline: Lanes | None = None
    collectives: Table | None = None
    memory: Peak | None = None
    hang: Hang | None = None

    @property
    def colours(self) -> tuple[Legend, ...]:
        """Of all figures, each once."""
        every = [*(self.timeline.legend if self.timeline else ()), *(self.memory.legend if self.memory else ())]
        return tuple({colour.variable: colour for colour in every}.values())


def figures_of(view: RunView) -> Figures:
    """Reads the logs of a run that failed."""
    result = view.result
    if result.from_summaries or not result.attribution.steps:
        return Figures(hang=_hang(result))
    collectives = collective_table(result.breakdowns.collectives, PAGE.most_text_rows)
    return Figures(
        timeline=_worst_step(view),
        collectives=collectives.known().without_zeros() if collectives.rows else None,
        memory=_memory(view),
        hang=_hang(result),
    )


def without_logs(evidence: Figures) -> Figures:
    """Without lines of logs, which may name anything."""
    return (
        evidence if evidence.hang is None else replace(evidence, hang=replace(evidence.hang, headline="", evidence=()))
    )


def _worst_step(view: RunView) -> Lanes:
    """Every rank, by cause, in the counted step in which the verdict's finding costs most, else in the longest one."""
    result = view.result
    place = next((card.place for card in view.page.findings if card.place is not None), None)
    counted = result.attribution.counted
    worst = place.step if place is not None else int(counted.step[counted.dur_ns.argmax()])
    timeline = timeline_of(result)
    span = next(span for span in timeline.steps if span.step == worst)
    ranks = _shown(view, sorted(timeline.ranks))
    rows, used = list[svg.Row](), set[Part]()
    for rank in ranks:
        pieces = list[tuple[float, float, str, str]]()
        for lane in timeline.ranks[rank].lanes:
            part = PART_OF[Category(lane.category)]
            for at in lane.visible(span.begin_ns, span.end_ns).tolist():
                begin, end = int(lane.start_ns[at]), int(lane.end_ns[at])
                name = lane.names[int(lane.name[at])]
                about = f"{part.value}{f' ({name})' if name else ''}: {duration(end - begin)}"
                pieces.append((begin, end, f"var({_variable(part)})", about))
                used.add(part)
        at_fault = rank in view.culprits
        rows.append(svg.Row(f"rank {rank}{', at fault' if at_fault else ''}", tuple(pieces), "", at_fault))
    legend = tuple(
        Legend(_variable(part), LIGHT.part[part], DARK.part[part], part.value) for part in Part if part in used
    )
    lead = f"{sentence(view.noun)} {worst}" if len(result.attribution.steps) > 1 else f"The {view.noun}"
    of = "every rank" if len(ranks) == len(timeline.ranks) else f"{len(ranks)} of {len(timeline.ranks):,} ranks"
    rest = f", {of}: {duration(span.end_ns - span.begin_ns)} from the first rank's begin to the last rank's end"
    if timeline.loose:
        rest += "; the clocks of some ranks are not aligned"
    drawn = svg.rows_over(rows, span.begin_ns, span.end_ns, f"{lead}{rest}", 960)
    return Lanes(lead, rest, Markup(drawn), legend)


def _shown(view: RunView, ranks: list[int]) -> list[int]:
    """The ranks at fault and the first of the others."""
    return sorted(sorted(ranks, key=lambda rank: (rank not in view.culprits, rank))[: PAGE.most_ranks])


def _variable(kind: Part | Use) -> str:
    return f"--{'part' if isinstance(kind, Part) else 'use'}-{kind.name.lower()}"


def _memory(view: RunView) -> Peak | None:
    """Of the snapshot with a failed allocation, else with the highest peak; else of the fullest window of a trace."""
    snapshots = view.result.memory_snapshots.accounts if view.result.tables.snapshots else ()
    account = max(snapshots, key=lambda one: (bool(one.ooms), one.peak_allocated), default=None)
    if account is not None:
        text = f"{sentence(who(account))}: {peak_sentence(account)}"
        return _peak(account.history, account.peak_allocated, text, allocation_table(account.frames))
    curve = max(view.result.memory_curves, key=lambda one: one.peak_allocated, default=None)
    if curve is None or curve.live.reason:
        return None
    text = f"Rank {curve.rank}: {curve_sentence(curve)}"
    return _peak(curve.history, curve.peak_allocated, text, allocation_table(curve.live.operators))


def _peak(history: History | None, peak: int, text: str, live: Table) -> Peak:
    if history is None:
        return Peak(text, Markup(), (), live)
    legend = tuple(Legend(_variable(use), LIGHT.memory[use], DARK.memory[use], use.value) for use in history.categories)
    series = [(f"var({_variable(use)})", history.of_category(use).tolist()) for use in history.categories]
    at = history.at.tolist()
    drawn = svg.stacked(
        at, series, peak, [(at[history.peak], f"peak {size(peak)}")], "Memory over time by category", 960
    )
    return Peak(text, Markup(drawn), legend, live)


def _hang(result: Result) -> Hang | None:
    """What `diag triage` finds in the folder of a run that failed or is stuck."""
    if result.outcome is None:
        return None
    try:
        found = investigate([str(result.tables.root)])
    except DiagError:  # nothing was left to triage; the outcome is at the top of the report
        return None
    return Hang(
        found.triage.headline,
        _matrix(found),
        tuple(row.plain for row in stack_tree(found.triage.merged_stacks)),
        tuple(line.text for line in found.triage.evidence[: PAGE.most_gaps_in_short]),
    )


def _matrix(found: Investigation) -> Table | None:
    """The ranks by groups, those at fault first; None if neither logs nor dumps name a group."""
    culprits = [culprit.rank for culprit in found.triage.culprits if culprit.rank is not None]
    groups = places_of(found.logs, found.dumps, culprits)[: DASHBOARD.most_groups]
    if not groups:
        return None
    matrix = matrix_of(groups, culprits, LIGHT)
    columns: dict[Column, list[str | None]] = {Column("ranks", weight=0): [row["name"] for row in matrix["rows"]]}
    for place, column in enumerate(matrix["columns"]):
        title = " ".join(filter(None, (column["title"], column["op"])))
        cells = [row["cells"][place] for row in matrix["rows"]]
        columns[Column(f"group_{place}", label=title)] = [
            None if cell is None else f"{matrix['states'][cell[0]][0]}{f': {cell[1]}' if cell[1] else ''}"
            for cell in cells
        ]
    at_fault = frozenset(place for place, row in enumerate(matrix["rows"]) if row["fault"])
    return table_of("hang", "Where each rank is in each group", columns, (matrix["more"],), at_fault=at_fault)

"""The rows that a finding rests on."""

from __future__ import annotations

from .query import Query
from .steps import Finding

# The data frames whose rows are of no rank: ``diag.tables.frames.COLUMNS`` has their columns.
_OF_NO_RANK = frozenset(
    {"changes", "collectives", "facts", "findings", "goodput", "incidents", "kernels", "meetings", "modules"}
)


def query_of(finding: Finding) -> Query:
    """The rows that a finding rests on: those that it names, else those of the first line of its evidence that is not
    its cost. With culprits, only theirs."""
    if finding.rows is not None:
        return finding.rows
    lines = [item.query for item in finding.evidence if item.query is not None]
    first = next((query for query in lines if query.frame != "costs"), lines[0] if lines else Query("steps"))
    where = dict(first.where)
    if finding.ranks and first.frame not in _OF_NO_RANK:
        where["rank"] = list(finding.ranks)
    elif isinstance(where.get("rank"), int):
        del where["rank"]  # of the first of several lines, one for each rank
    return Query(first.frame, where)

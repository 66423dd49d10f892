"""The JSON contract, ``schema_version`` 2, which added the class ``host``. Fields are only ever added."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct, to_builtins

from diag import policy
from diag.api import Result, RunState, describe_run
from diag.collectors.files import replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import PHASES_AND_REST
from diag.deferred import by_name
from diag.diagnoses.shares import Shares, step_parts
from diag.model.breakdown import Breakdowns
from diag.model.evidence import query_of
from diag.model.history import Change
from diag.model.ragged import edges_of
from diag.model.steps import Bottleneck, Coverage, Evidence, Finding, Kind, Outcome, Parts, Verdict
from diag.rundir.lines import ANALYSIS_VERSION, with_digest
from diag.show.memory import peaks_to_dict
from diag.show.policy import PAGE

Fields = dict[str, Raw]  # of the document, encoded
# Of a document with tables.
_curves_to_dict: Callable[[Sequence[Any]], list[dict[str, Any]]] = by_name("diag.show.curves:curves_to_dict")


def to_json(
    result: Result,
    indent: int | None = 1,
    tables: bool = False,
    added: Mapping[str, Any] | None = None,
    fields: Fields | None = None,
) -> str:
    """The document. ``tables``: with the keys "breakdowns", which takes as long as the analysis itself, and
    "memory_over_time". ``added``: further keys. ``fields``: ``fields_of`` the result, if they are known."""
    content = {**(fields_of(result) if fields is None else fields), **_encoded(added or {})}
    if tables:
        content |= _encoded(
            {
                "breakdowns": breakdowns_to_dict(result.breakdowns),
                "memory_over_time": _curves_to_dict(result.memory_curves),
            }
        )
    encoded = msgspec.json.encode(content)
    try:
        document = msgspec.json.format(encoded, indent=indent or 0).decode()
    except msgspec.DecodeError:  # escaped bytes that are no text
        document = json.dumps(json.loads(encoded), indent=indent)
    # Nothing but printable ASCII: a terminal obeys DEL, and some characters above it. They only occur in strings.
    if document.isascii() and "\x7f" not in document:
        return document
    return _UNPRINTABLE.sub(lambda text: json.dumps(text[0])[1:-1], document)


_UNPRINTABLE = re.compile("[^\\x00-\\x7e]+")


def fields_of(result: Result) -> Fields:
    """The document's fields, without tables, to be written more than once."""
    return _encoded(_content(result))


def save(result: Result, fields: Fields | None = None) -> None:
    """Writes verdict.json, if the result is of a run directory that can be written. ``fields``: as in ``to_json``."""
    layout = RunLayout(result.tables.root)
    if layout.is_run():
        with contextlib.suppress(OSError):
            replace_file(layout.verdict, with_digest(to_json(result, fields=fields)), private=True)  # it quotes logs


def _encoded(content: Mapping[str, Any]) -> Fields:
    return {name: Raw(_encode(value)) for name, value in content.items()}


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=float)  # of numpy
    except (OverflowError, UnicodeEncodeError):  # a number of more than 64 bits, or bytes that are no text
        return json.dumps(to_builtins(value, enc_hook=float)).encode()


def _outcome(outcome: Outcome | None) -> dict[str, Any] | None:
    """The outcome of a run that did not end well; None for any other run."""
    if outcome is None:
        return None
    return {
        "headline": outcome.headline,
        "exit_code": outcome.exit_code,
        "cause": outcome.cause or None,
        "confidence": outcome.confidence,
        "ranks": list(outcome.ranks),
        "action": outcome.action or None,
    }


def state_to_dict(state: RunState | None) -> dict[str, Any] | None:
    """What a run and its ranks are doing; None for what another tool recorded. ``ranks``: those whose heartbeats were
    read, all if the run is stuck. Times in Unix ns, durations in ns."""
    if state is None:
        return None
    still = state.standstill
    return {
        "state": state.state.value,
        "as_of_unix_ns": state.as_of_ns,
        "was": state.was.value if state.was is not None else None,
        "headline": state.headline or None,
        "no_step_since_unix_ns": still.since_unix_ns or None if still is not None else None,
        "no_step_for_ns": still.still_ns if still is not None else None,
        "ranks": [
            {
                "rank": rank.rank,
                "state": rank.state.value,
                "step": rank.step,
                "phase": rank.phase,
                "in_phase_ns": rank.in_it_ns,
                "silent_ns": rank.silent_ns,
                "waits_in": rank.waits_in or None,
                "waits_for": list(rank.waits_for),
                "skipped": rank.skipped or None,
                "raised": rank.raised or None,
            }
            for rank in state.by_rank
        ],
    }


def to_dict(result: Result) -> dict[str, Any]:
    """Plain containers, as the contract names them."""
    return {name: msgspec.json.decode(value) for name, value in fields_of(result).items()}


def _content(result: Result) -> dict[str, Any]:
    return {
        "schema_version": ANALYSIS_VERSION,
        "run": describe_run(result),
        "state": state_to_dict(result.state),
        "outcome": _outcome(result.outcome),
        "verdict": verdict_to_dict(result.verdict),
        "changes": [change_to_dict(of) for of in (result.history.changes if result.may_have_changed else ())],
        "critical_path": _path(result.examination.shares),
        "steps": _steps(result),
        "scheduling": _scheduling(result),
        "memory": peaks_to_dict(result),
        "out_of_memory": result.failed_allocations,
        "findings": [_finding(finding) for finding in result.examination.findings],
        "not_found": list(result.examination.not_found),
        "stage_frontier": _phases(result),
        "advice": [{**to_builtins(change), "evidence": _lines(change.evidence)} for change in result.advice],
        "not_advised": list(result.recommendation.not_advised),
        "replay_error": result.recommendation.replay_error,
        "coverage": coverage_to_dict(result.coverage),
        **policy.as_dict(),
    }


def _path(shares: Shares) -> dict[str, Any] | None:
    """The mean counted step, and its parts, which add up to it up to rounding; None without steps."""
    if not len(shares.dur_ns):
        return None
    parts = {part.name.lower(): round(float(series.mean())) for part, series in step_parts(shares).items()}
    return {"step_ns": round(float(shares.dur_ns.mean())), "parts_ns": parts}


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    culprit = {"ranks": list(verdict.culprit_ranks), "hosts": list(verdict.culprit_hosts)}
    return {
        "bottleneck": verdict.bottleneck,
        "severity": verdict.severity,
        "cause": verdict.cause,
        "share": verdict.share,
        "confidence": verdict.confidence,
        "doubts": [to_builtins(doubt) for doubt in verdict.doubts],
        "culprit": culprit if verdict.culprit_ranks else None,
        "headline": verdict.headline,
    }


def coverage_to_dict(coverage: Coverage) -> dict[str, Any]:
    return {
        "ranks_used": list(coverage.ranks_used),
        "ranks_missing": list(coverage.ranks_missing),
        "skipped": [to_builtins(gap) for gap in coverage.skipped],
        "clock_uncertainty_ns": coverage.clock_uncertainty_ns,
        "clock_drift_ppm": round(coverage.clock_drift_ppm, 3),
        "not_looked": [str(item) for item in coverage.not_looked],
        "explained_wait": None if coverage.explained_wait is None else round(coverage.explained_wait, 4),
        "notes": list(coverage.notes),
    }


def breakdowns_to_dict(breakdowns: Breakdowns) -> dict[str, Any]:
    """The tables in plain containers, their largest rows only; ``rows_left_out``: how many are missing."""
    content: dict[str, Any] = to_builtins(breakdowns)
    content["collectives"] = _shortened(content["collectives"], PAGE.most_json_collectives)
    exchanged = content["collectives"]["all_to_alls"]
    content["collectives"]["all_to_alls"] = list(exchanged[: PAGE.most_json_collectives])
    content["collectives"]["all_to_alls_left_out"] = max(0, len(exchanged) - PAGE.most_json_collectives)
    content["kernels"] = _shortened(content["kernels"], PAGE.most_json_rows)
    content["modules"] = [_shortened(table, PAGE.most_json_rows) for table in content["modules"]]
    content["path"] = _shortened(content["path"], PAGE.most_json_path_rows)
    return content


def _shortened(table: dict[str, Any], most: int) -> dict[str, Any]:
    rows = table.pop("rows")
    return {**table, "rows_left_out": max(0, len(rows) - most), "rows": list(rows[:most])}


_KINDS = [kind.name.lower() for kind in Kind]


class _Culprit(Struct):
    rank: int
    kind: str
    ns: int


class _Step(Struct):
    step: int
    dur_ns: int
    bottleneck: Bottleneck
    usable: bool
    note: str
    ranks: list[Parts]
    culprits: list[_Culprit]


def _steps(result: Result) -> list[_Step]:
    steps, detailed = result.attribution.steps, result.attribution.detailed
    in_full = np.ones(len(steps), dtype=np.bool_) if detailed is None else np.isin(steps.step, list(detailed))
    # Of a hundred culprits a step, most cost next to nothing: they would be nine tenths of the document.
    least_ns = np.where(in_full, 0, PAGE.least_json_culprit_share * steps.dur_ns)
    blames, of_blame = steps.blames, steps.of_blame
    told = np.flatnonzero(blames.ns >= least_ns[of_blame])
    columns = (
        blames.rank[told].tolist(),
        [_KINDS[kind] for kind in blames.kind[told].tolist()],
        blames.ns[told].tolist(),
    )
    culprits = [_Culprit(rank, kind, ns) for rank, kind, ns in zip(*columns, strict=True)]
    of_step = np.searchsorted(of_blame[told], np.arange(len(steps) + 1)).tolist()
    parts = list(steps.parts.take(in_full[steps.of_part]))
    of_parts = edges_of(np.where(in_full, np.diff(steps.part_edges), 0)).tolist()
    return [
        _Step(step, dur_ns, result.bottlenecks[step], usable, note, parts[i:j], culprits[k:m])
        for step, dur_ns, usable, note, (i, j), (k, m) in zip(
            steps.step.tolist(), steps.dur_ns.tolist(), steps.usable.tolist(), steps.note, pairwise(of_parts),
            pairwise(of_step), strict=True,
        )
    ]  # fmt: skip


def _scheduling(result: Result) -> list[dict[str, Any]]:
    """How long each rank was queued for a core or blocked, where that was recorded: means of the counted steps in
    nanoseconds."""
    return [
        {
            "rank": rank,
            "between_phases_ns": round(float(scheduling.between_ns.mean())) if scheduling.knows_blocked else None,
            "queued_ns": round(float(scheduling.queued_ns.mean())),
            "queued_while_loading_ns": round(float(scheduling.loading_ns.mean())),
            "queued_while_communicating_ns": round(float(scheduling.communicating_ns.mean())),
            "blocked_ns": round(float(scheduling.blocked_ns.mean())) if scheduling.knows_blocked else None,
            "blocked_in": {phase: round(ns) for phase, ns in scheduling.blocked_in.items()},
        }
        for rank, scheduling in sorted(result.examination.scheduling.ranks.items())
    ]


def _phases(result: Result) -> dict[str, Any] | None:
    """The account from the durations of phases: what each phase added to the frontier, and which rank was late in
    it."""
    phases = result.examination.phases
    if phases is None:
        return None
    frontier = phases.frontier
    total, steps = int(frontier.dur_ns.sum()), len(frontier.numbers)
    rows = []
    for phase in PHASES_AND_REST:
        late, leads = frontier.late(phase).sum(axis=0), Counter(frontier.leader[PHASES_AND_REST.index(phase)].tolist())
        (leader, led), worst = leads.most_common(1)[0], int(late.argmax())
        row = {"stage": phase, "share": round(frontier.share(phase), 4), "leader": leader}
        row |= {"leader_share": round(led / steps, 4), "late_rank": frontier.ranks[worst] if late[worst] else None}
        rows.append({**row, "late_ns_per_step": int(late[worst]) // steps})
    return {
        "verdict_rests_on_it": phases.alone,
        "communication_known": frontier.communication_known,
        "communication_share": round(int(frontier.communication_ns.sum()) / total, 4) if total else 0.0,
        "steps": steps,
        "stages": rows,
    }


def _lines(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    return [{"table": line.table, **to_builtins(line)} for line in evidence]


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "title": finding.title,
        "severity": finding.severity,
        "share": round(finding.share, 4),
        "cost_ns_per_step": finding.cost_ns_per_step,
        "confidence": finding.confidence,
        "ranks": list(finding.ranks),
        "bottleneck": finding.bottleneck,
        "evidence": _lines(finding.evidence),
        "query": to_builtins(query_of(finding)),
        "action": finding.action,
        "charged_ns": {str(rank): ns for rank, ns in finding.charged_ns.items()},
    }


def change_to_dict(change: Change) -> dict[str, Any]:
    """A change as the contract names it."""
    return {**to_builtins(change), "change": round(change.by, 4), "cause": change.cause or None}

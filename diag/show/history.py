"""What ``diag history`` prints: the life of a run in a dozen lines, and the same as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape

from diag.collectors.layout import SCHEMA_VERSION
from diag.errors import DiagError
from diag.history.condense import condensed
from diag.history.hosts import faulty_hosts
from diag.history.losses import RESTART, SLOW, STALLED, STUCK
from diag.model.history import Goodput, History, Incident, Life
from diag.show.json import change_to_dict
from diag.show.policy import PAGE
from diag.show.table import print_table
from diag.words.formatting import counted, masked, moment, spaced, visible
from diag.words.history import (
    change_words,
    cost_words,
    goodput_words,
    host_words,
    incident_words,
    kept_words,
    long_time,
    restart_words,
    since,
)
from diag.words.places import shown, to_give
from diag.words.table import MS, TEXT, TEXT_RIGHT, Column, Table, table_of
from diag.words.terminal import report_console
from diag.words.wording import sentence

STEP_TIME, CHANGES = "Step time", "Changes"
NO_CHANGE = "The step time did not change."
NO_HOST = "No host was at fault in several of them."
_SHOWN_PARTS = {
    "compute_ns": "compute",
    "exposed_comm_ns": "exposed comm.",
    "data_wait_ns": "data wait",
    "checkpoint_ns": "checkpoint",
}


def print_history(life: Life, console: Console | None = None) -> None:
    """Prints where the time of a job went, and of each attempt its changes, incidents and steps."""
    console = console or report_console()
    restarts = {restart.number: restart for restart in life.restarts}
    for number, history in enumerate(life.attempts):
        if number:
            console.print()
        _say(console, " · ".join(facts_of(history)), "dim")
        console.print()
        if not number and life.goodput is not None:
            _say(console, goodput_words(life.goodput), "bold")
        if not history.stretches:
            continue
        own = [incident for incident in life.incidents if incident.attempt == history.number]
        for incident in own:
            if incident.kind == RESTART:
                _point(console, restart_words(restarts[history.number], incident, history.on_device), "yellow")
        _print_changes(console, history, own)
        lost = sorted((each for each in own if each.kind in (STALLED, STUCK)), key=lambda each: -each.lost_ns)
        for incident in sorted(lost[: PAGE.most_incidents], key=lambda each: each.first):
            style = "yellow" if incident.kind == STALLED else "red"
            _point(console, incident_words(incident, history.on_device), style)
        if more := lost[PAGE.most_incidents :]:
            _say(console, f"{counted(len(more), 'shorter stall')}: --json lists all.", "dim")
        _print_kept(console, history)
        console.print()
        print_table(console, step_table(history))
    for note in life.goodput.notes if life.goodput is not None else ():
        console.print(f"[yellow]![/] {escape(spaced(sentence(note)))}.")


def _print_changes(console: Console, history: History, incidents: Sequence[Incident]) -> None:
    if not history.changes:
        _say(console, NO_CHANGE)
    costs = {incident.first: incident for incident in incidents if incident.kind == SLOW}
    for change in history.changes[-PAGE.most_changes :]:
        words = change_words(change, goes_on=change is history.now)
        words += cost_words(costs[change.step], history.on_device) if change.step in costs else ""
        _point(console, words, "yellow" if change.slower else "green")
    if (more := len(history.changes) - PAGE.most_changes) > 0:
        _say(console, f"{counted(more, 'earlier change')}: --json lists all.", "dim")


def _print_kept(console: Console, history: History) -> None:
    for kept in history.kept[-PAGE.most_incidents :]:
        _say(console, f"{kept_words(kept)}: {analysing(history, kept.first, kept.last)}")
    if (more := len(history.kept) - PAGE.most_incidents) > 0:
        _say(console, f"{counted(more, 'earlier incident')}: --json lists all.", "dim")


def analysing(history: History, first: int, last: int) -> str:
    """The command that analyses these steps of an attempt."""
    paths = (shlex.quote(visible(masked(path))) for path in to_give(history.path))
    return f"diag analyze {' '.join(paths)} --steps {first}:{last}"


def _point(console: Console, text: str, style: str) -> None:
    console.print(f"[{style}]●[/] {escape(visible(spaced(text)))}")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(escape(spaced(text)), style=style or None)


def facts_of(history: History) -> list[str]:
    """Where, how many ranks, from when to when."""
    facts = [visible(masked(shown(history.path))), counted(history.ranks, "rank")]
    if not history.stretches:
        return [*facts, "no steps"]
    first, last = history.stretches[0], history.stretches[-1]
    steps, begin_ns, end_ns = f"steps {first.first:,} to {last.last:,}", first.begin_unix_ns, last.end_unix_ns
    if not begin_ns or not end_ns:
        return [*facts, steps]
    facts.append(f"{steps} in {long_time(end_ns - begin_ns)}")  # without what came before the first one
    facts.append(" to ".join(dict.fromkeys((moment(begin_ns), moment(end_ns)))))
    return facts


def step_table(history: History, most: int | None = None) -> Table:
    """The step time and its parts over the run, in about ``most`` rows; none over a change."""
    rows = condensed(history, PAGE.history_rows if most is None else most)
    begin, end = rows[0].begin_unix_ns if rows else None, rows[-1].end_unix_ns if rows else None
    days = begin is not None and end is not None and end - begin > timedelta(days=1).total_seconds() * 1e9
    fine = [stretch.first for stretch in history.stretches if stretch.steps == 1]
    each_from = fine[0] if fine else None
    known = [
        "each step" if each_from is not None and row.first >= each_from else _sums(history, row.first, row.last)
        for row in rows
    ]
    columns: dict[Column, Sequence[Any]] = {
        Column("steps", TEXT_RIGHT): [f"{row.first:,} to {row.last:,}" for row in rows],
        Column("since", TEXT, label="since, UTC"): [_clock(row.begin_unix_ns, days) for row in rows],
        Column("step_ns", MS, label="step"): [row.step_ns for row in rows],
        Column("longest_ns", MS, label="longest"): [row.longest_ns for row in rows],
    }
    for name, label in _SHOWN_PARTS.items():
        columns[Column(name, MS, label=label)] = [row.parts.get(name) if row.parts else None for row in rows]
    columns[Column("known", TEXT, label="known by")] = known
    of_rank = f", rank {history.rank}'s" if history.rank is not None else ""
    return table_of("history", f"{STEP_TIME}{of_rank}, ms", columns, symbol=MS.symbol)


def _clock(unix_ns: int | None, days: bool) -> str:
    """The time of day, with the date in a run of days."""
    if unix_ns is None or not moment(unix_ns):
        return ""
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):{'%m-%d %H:%M' if days else '%H:%M:%S'}}"


def _sums(history: History, first: int, last: int) -> str:
    """The resolution of the steps between: the coarsest of them."""
    inside = [stretch.steps for stretch in history.stretches if first <= stretch.first <= last]
    return f"sums over {max(inside, default=0):,}"


def print_histories(several: Sequence[tuple[str, Life | DiagError]], console: Console | None = None) -> None:
    """Prints the life of each run in a few lines, and the hosts that were at fault in several of them."""
    console = console or report_console()
    lives = {name: life for name, life in several if isinstance(life, Life)}
    for name, life in several:
        console.print(f"[bold]{escape(visible(name))}[/]")
        if isinstance(life, DiagError):
            _say(console, f"  not read: {visible(life.message)}", "yellow")
            continue
        if life.goodput is not None:
            _say(console, f"  {goodput_words(life.goodput)}")
        for attempt in life.attempts[-1:]:
            _say(console, f"  {visible(since(attempt)) or NO_CHANGE}")
    console.print()
    found = faulty_hosts(lives)
    if not found:
        _say(console, NO_HOST)
    on_device = any(attempt.on_device for life in lives.values() for attempt in life.attempts)
    for host in found:
        _point(console, host_words(host, on_device), "yellow")


def several_to_json(several: Sequence[tuple[str, Life | DiagError]]) -> str:
    """The document of ``diag history FOLDER --json``."""
    lives = {name: life for name, life in several if isinstance(life, Life)}
    content = {
        "schema_version": SCHEMA_VERSION,
        "runs": [
            {"name": name, "error": life.message}
            if isinstance(life, DiagError)
            else {"name": name, "error": None, **life_to_dict(life)}
            for name, life in several
        ],
        "hosts": [to_builtins(host) for host in faulty_hosts(lives)],
    }
    return json.dumps(content, indent=1)


def to_json(life: Life) -> str:
    """The document of ``diag history --json``."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **life_to_dict(life)}, indent=1)


def life_to_dict(life: Life) -> dict[str, Any]:
    """Plain containers, as the contract names them."""
    return {
        "goodput": goodput_to_dict(life.goodput),
        "incidents": [incident_to_dict(incident) for incident in life.incidents],
        "restarts": [to_builtins(restart) for restart in life.restarts],
        "attempts": [history_to_dict(attempt) for attempt in life.attempts],
    }


def goodput_to_dict(goodput: Goodput | None) -> dict[str, Any] | None:
    """``parts_ns`` add up to ``wall_ns``."""
    if goodput is None:
        return None
    return {
        "share": round(goodput.share, 4),
        "wall_ns": goodput.wall_ns,
        "parts_ns": goodput.parts,
        "notes": list(goodput.notes),
    }


def incident_to_dict(incident: Incident) -> dict[str, Any]:
    """An incident as the contract names it."""
    return {**to_builtins(incident), "lost_hours": round(incident.lost_hours, 4), "cause": incident.cause or None}


def history_to_dict(history: History, most: int | None = None) -> dict[str, Any]:
    """``stretches`` are at most about ``most``: each the mean of its steps. The data frame has all."""
    rows = condensed(history, PAGE.most_json_stretches if most is None else most)
    return {
        "path": masked(shown(history.path)),
        "number": history.number,
        "ranks": history.ranks,
        "begin_unix_ns": history.begin_unix_ns,
        "end_unix_ns": history.end_unix_ns,
        "ended": history.ended or None,
        "goodput": goodput_to_dict(history.goodput),
        "changes": [change_to_dict(change) for change in history.changes],
        "kept": [to_builtins(kept) for kept in history.kept],
        "rank": history.rank,
        "resolutions": [
            {"steps_in_a_sum": steps, "first": first, "last": last} for steps, first, last in history.resolutions
        ],
        "stretches": [to_builtins(row) for row in rows],
    }

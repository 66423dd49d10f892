"""Hosts that were at fault in several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diag.model.history import FaultyHost, Life

from .policy import HISTORY


def faulty_hosts(lives: Mapping[str, Life]) -> tuple[FaultyHost, ...]:
    """By the name of the run. A host is at fault where a rank of it is, for an incident or by the verdict. Runs of one
    host do not count: there is no other to compare it with. The host with the most runs comes first."""
    compared = {name: life for name, life in lives.items() if len(_hosts(life)) > 1}
    found = []
    for host in dict.fromkeys(host for life in compared.values() for host in _hosts(life)):
        runs = tuple(name for name, life in compared.items() if host in set(_at_fault(life)))
        if len(runs) >= HISTORY.several_runs:
            took_part = sum(host in _hosts(life) for life in compared.values())
            lost = sum(
                incident.lost_hours for name in runs for incident in compared[name].incidents if host in incident.hosts
            )
            found.append(FaultyHost(host, runs, took_part, lost))
    return tuple(sorted(found, key=lambda each: (-len(each.runs), -each.lost_hours, each.host)))


def _hosts(life: Life) -> set[str]:
    return {host for attempt in life.attempts for host in attempt.hosts}


def _at_fault(life: Life) -> Iterator[str]:
    for incident in life.incidents:
        yield from incident.hosts
    for attempt in life.attempts:
        yield from attempt.culprit_hosts

"""Data frames of what a run recorded, and of the account of each rank: spans, waits, samples and facts.

They have no numbers of their own: each holds the columns of the account or the records, with names for codes. Their
columns are in ``diag.tables.frames.COLUMNS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import to_builtins

from diag.account.rank_steps import SOURCES, RankSteps
from diag.deferred import pl
from diag.model.accounts import Attribution
from diag.model.programs import flat
from diag.model.steps import Detail, Kind
from diag.rundir.tables import RankTables, Tables
from diag.tables.frames import frame, frame_of, names_of


def spans(attribution: Attribution) -> pl.DataFrame:
    """A row for each piece of each rank's steps, on the common clock if the ranks have one."""
    steps = RankSteps.of(attribution.rank_steps)
    if not steps:
        return frame("spans", ())
    pieces, at = steps.segments.every, steps.segments.of_step
    columns = {
        "rank": steps.rank[at],
        "step": steps.step[at],
        "start_ns": pieces.start_ns,
        "end_ns": pieces.end_ns,
        "kind": names_of(Kind)[pieces.kind],
        "detail": names_of(Detail)[pieces.detail],
        "source": np.array(SOURCES)[steps.source[at]],
    }
    return frame_of("spans", columns)


def waits(attribution: Attribution) -> pl.DataFrame:
    """A row for each activity of a rank that others waited for, in each step."""
    steps, kinds, details = attribution.steps, names_of(Kind), names_of(Detail)
    blames = steps.blames
    return frame_of(
        "waits",
        {
            "step": steps.step[steps.of_blame],
            "rank": blames.rank.astype(np.int64),
            "kind": kinds[blames.kind],
            "detail": details[blames.detail],
            "wait_ns": blames.ns,
        },
    )


# -- samples and facts -------------------------------------------------------------------------------------------------


def samples(tables: Tables) -> pl.DataFrame:
    """A row for each reading of a device, a host, an allocator or a loader's queue."""
    rows = (
        {"rank": rank, "at_ns": at_ns, "field": field, "value": float(value), "source": source}
        for rank, of_rank in sorted(tables.ranks.items())
        for source, at_ns, record in _readings(of_rank)
        for field, value in _numbers(record)
    )
    return frame("samples", rows).sort("rank", "at_ns", "source", maintain_order=True)


def _readings(of_rank: RankTables) -> Iterator[tuple[str, int, Any]]:
    """What was read from, when, and the record of it."""
    for device in of_rank.device:
        yield "device", device.monotonic_ns, {**to_builtins(device), "health": None}
        if device.health is not None:
            yield "device health", device.monotonic_ns, to_builtins(device.health)
    for host in of_rank.scheduling:
        yield "host", host.monotonic_ns, to_builtins(host)
    for machine in of_rank.machine:
        yield "machine", machine.monotonic_ns, machine.values
    for step in of_rank.steps:
        if step.memory is not None:
            yield "allocator", step.end_ns, to_builtins(step.memory)
        if step.queue is not None:
            yield "loader", step.begin_ns, step.queue._asdict()


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The fields of a record that are numbers; counters of a list have the place in it as the end of their name."""
    for name, value in record.items():
        if name == "monotonic_ns":
            continue
        if isinstance(value, bool | int | float):
            yield name, value
        elif name == "link_errors":
            for counter, by_link in value.items():
                yield from ((f"{counter}.{link}", count) for link, count in enumerate(by_link) if count is not None)
        elif name == "throttle_reasons":
            yield from ((f"throttled.{reason}", 1) for reason in value)


def facts(tables: Tables, described: Mapping[str, Any]) -> pl.DataFrame:
    """A row for each thing that is known of the run. ``described``: what the analysis adds to the records."""
    found: list[tuple[str, Any, str]] = []
    if tables.manifest is not None:
        found += [(key, value, "manifest.json") for key, value in _known(to_builtins(tables.manifest))]
    for rank, of_rank in sorted(tables.ranks.items()):
        if of_rank.identity is not None:
            identity = to_builtins(of_rank.identity)
            found += [(f"ranks.{rank}.{key}", value, "rank.json") for key, value in _known(identity)]
    found += [(key, value, "analysis") for key, value in _known(described)]
    return frame("facts", ({"key": key, "value": str(value), "source": source} for key, value, source in found))


def _known(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by their joined names, without those that are not known."""
    return ((name, value) for name, value in flat(content).items() if value is not None and value != [] and value != "")

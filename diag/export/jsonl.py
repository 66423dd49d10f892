"""Samples as JSON lines: one object a sample, all of one reading with one time."""

from __future__ import annotations

import json
from collections.abc import Iterable

from diag.collectors.layout import SCHEMA_VERSION
from diag.export.definitions import Sample


def to_lines(samples: Iterable[Sample], now_ns: int) -> str:
    """Each line ends with a line feed."""
    return "".join(
        json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "time_unix_ns": now_ns,
                "name": metric.name,
                "kind": metric.kind,
                "unit": metric.unit,
                "labels": dict(labels),
                "value": value,
            }
        )
        + "\n"
        for metric, labels, value in samples
    )

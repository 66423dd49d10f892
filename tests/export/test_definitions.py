"""Every metric keeps to Prometheus' rules for names, and is defined once."""

from __future__ import annotations

import re

import pytest

from diag.export import definitions as of
from diag.export.definitions import METRICS, Kind, Metric, MetricUnit

ENDING = {MetricUnit.SECONDS: "_seconds", MetricUnit.BYTES: "_bytes", MetricUnit.RATIO: "_ratio"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names(metric: Metric) -> None:
    assert re.fullmatch(r"diag_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    base = metric.name.removesuffix("_total")
    if metric.unit is not MetricUnit.NONE:
        assert base.endswith(ENDING[metric.unit])
    else:
        assert not base.endswith(tuple(ENDING.values()))
    assert metric.help.endswith(".")
    assert "\n" not in metric.help


def test_all_of_them_are_exported() -> None:
    defined = {value for value in vars(of).values() if isinstance(value, Metric)}
    assert defined == set(METRICS)
    assert len({metric.name for metric in METRICS}) == len(METRICS)

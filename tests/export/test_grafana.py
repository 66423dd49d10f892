"""The Grafana dashboard asks for metrics that exist, for all of them, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

from diag.api import open_run
from diag.export.definitions import METRICS, STAT, Kind, dashboard
from diag.export.formats import families
from diag.export.run_metrics import RunMetrics
from diag.show.json import save
from tests.export.runs import NOW_NS, written

DASHBOARD = json.loads(dashboard())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
NAMES = {metric.name for metric in METRICS}


def test_it_asks_for_every_metric_and_for_no_other() -> None:
    asked = {name for query in QUERIES for name in re.findall(r"\bdiag_\w+", query)}
    assert asked == NAMES
    variable = DASHBOARD["templating"]["list"][1]["definition"]
    assert re.fullmatch(r"label_values\((\w+), run\)", variable)[1] in NAMES  # type: ignore[index]


def test_counters_are_asked_for_their_rate_and_every_query_for_one_run() -> None:
    counters = {metric.name for metric in METRICS if metric.kind is Kind.COUNTER} - {"diag_unreadable_lines_total"}
    for query in QUERIES:
        for name, inside in re.findall(r"(\bdiag_\w+)(\{[^}]*\})?", query):
            assert inside == '{run="$run"}'
            if name in counters:
                assert f"rate({name}{inside}[$__rate_interval])" in query
        assert query.count("(") == query.count(")")


def test_labels_in_queries_and_legends_are_exported(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", steps=12)
    save(open_run(layout.root))
    samples = [s for form in (True, False) for s in RunMetrics(layout.root, per_rank=form).read(NOW_NS)]
    labels: dict[str, set[str]] = {}
    for family in families(samples):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            named = re.findall(r"\bdiag_\w+", target["expr"])
            used = {label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
            used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for name in set(named) & labels.keys() - {"diag_steps_total"}:
                assert used - {STAT} <= labels[name], target["expr"]


def test_grafana_can_import_it() -> None:
    assert "id" not in DASHBOARD  # the importing Grafana gives one
    assert DASHBOARD["schemaVersion"] >= 39
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)

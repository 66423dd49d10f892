"""The Grafana dashboard asks for metrics that exist, for all of them, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

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
    variable = DASHBOARD["templating"]["list"][1]["query"]["query"]
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


@pytest.fixture(scope="module")
def read_by_grafana() -> Dashboard:
    """The dashboard as the types that Grafana generates from its schema."""
    register_default_plugins()  # of panels and queries
    return Dashboard.from_json(DASHBOARD)


def lost(before: object, after: object, where: str = "") -> Iterator[str]:
    """What a reader that knows the schema only has left out or changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key, "nothing"), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (value, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(value, other, f"{where}[{place}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def mistyped(value: Any, kind: Any, where: str = "") -> Iterator[str]:
    """Values that are not of the types of the schema."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        for place, one in enumerate(value):
            yield from mistyped(one, inside[0], f"{where}[{place}]")
    elif origin in (Union, UnionType):
        if value is None and type(None) in inside:
            return
        wrong = [list(mistyped(value, one, where)) for one in inside if one is not type(None)]
        yield from [] if [] in wrong else wrong[0]
    elif origin is Literal:
        if value not in inside:
            yield f"{where}: {value!r} is none of {inside}"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        if value not in [one.value for one in kind]:
            yield f"{where}: {value!r} is no {kind.__name__}"
    elif hasattr(value, "to_json"):
        hints = get_type_hints(type(value))
        for name, inner in vars(value).items():
            yield from mistyped(inner, hints[name], f"{where}.{name}")
    elif kind is float and isinstance(value, int):
        return
    elif not isinstance(value, origin or (object if kind is Any else kind)):
        yield f"{where}: {value!r} is no {kind}"


def test_grafana_s_schema_knows_all_of_it(read_by_grafana: Dashboard) -> None:
    again = json.loads(JSONEncoder().encode(read_by_grafana))
    assert list(lost(DASHBOARD, again)) == []


def test_all_values_are_of_the_schema_s_types(read_by_grafana: Dashboard) -> None:
    assert list(mistyped(read_by_grafana, Dashboard)) == []
    panels = read_by_grafana.panels or []
    assert len(panels) == len(DASHBOARD["panels"])
    known = {type(target).__module__ for panel in panels for target in panel.targets or []}  # type: ignore[union-attr]
    assert known == {"grafana_foundation_sdk.models.prometheus"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("panels", 0, "gridPos", "w"), "wide"),
        (("panels", 0, "targets", 0, "expr"), 1),
        (("panels", 0, "fieldConfig", "defaults", "min"), "0"),
        (("templating", "list", 1, "refresh"), 7),
        (("time", "from"), 3600),
    ],
)
def test_a_wrong_type_is_seen(path: tuple[str | int, ...], value: object) -> None:
    register_default_plugins()
    broken = json.loads(dashboard())
    inner = broken
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert len(list(mistyped(Dashboard.from_json(broken), Dashboard))) == 1


def test_an_unknown_key_is_seen() -> None:
    broken = {**json.loads(dashboard()), "colour": "red"}
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(broken)))
    assert list(lost(broken, again)) == [".colour: 'red' became 'nothing'"]

"""Curves by step: TensorBoard reads what is written for it, and a stand-in takes what W&B is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diag.errors import DiagError
from diag.export import definitions as of
from diag.export.finished_steps import history
from diag.export.formats import to_lines, write_events, write_run
from diag.export.run_metrics import RunMetrics
from tests.export.runs import NOW_NS, written
from tests.simulate import MS


def test_curves_are_means_and_extremes_over_the_ranks(tmp_path: Path) -> None:
    run = written(tmp_path / "r", jitter=0, steps=5, extra=lambda step, rank: {"data": 40 * MS} if rank else {}).root
    steps = list(history(run))
    assert [step.step for step in steps] == [0, 1, 2, 3, 4]
    last = steps[-1].values
    assert last["diag_step_part_duration_seconds/data_wait/max"] == pytest.approx(0.041)
    assert last["diag_step_part_duration_seconds/data_wait/mean"] == pytest.approx(0.021)
    assert last["diag_step_duration_seconds/max"] == pytest.approx(0.1395)
    assert last["diag_tokens_per_second"] == pytest.approx(1024 / 0.1395)
    assert last["diag_process_resident_memory_bytes/max"] == 10**9 + 1
    assert {name.split("/")[0] for name in last} <= {metric.name for metric in of.METRICS}
    assert steps[1].end_unix_s > steps[0].end_unix_s


def test_tensorboard_gets_every_curve(tmp_path: Path) -> None:
    steps = list(history(written(tmp_path / "r", steps=3).root))
    assert write_events(steps, tmp_path / "tb") == 3
    read = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert set(read.Tags()["scalars"]) == {name for step in steps for name in step.values}
    for name in read.Tags()["scalars"]:
        found = [(event.step, event.wall_time, event.value) for event in read.Scalars(name)]
        expected = [(step.step, step.end_unix_s, step.values[name]) for step in steps if name in step.values]
        assert found == [pytest.approx(one) for one in expected]


def test_wandb_is_offline_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    settings: dict[str, Any] = {}

    class Run:
        def __enter__(self) -> Run:
            return self

        def __exit__(self, *_: object) -> None: ...

        def log(self, values: dict[str, float], step: int) -> None:
            logged.append((values, step))

    def init(**given: Any) -> Run:
        settings.update(given)
        return Run()

    module = ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    steps = list(history(written(tmp_path / "r", steps=3).root))
    assert write_run(steps, "r", tmp_path / "wb") == 3
    assert logged == [(step.values, step.step) for step in steps]
    assert (settings["mode"], settings["name"], settings["dir"]) == ("offline", "r", str(tmp_path / "wb"))
    monkeypatch.setenv("WANDB_MODE", "online")
    write_run([], "r", tmp_path / "wb")
    assert settings["mode"] == "online"


def test_what_is_not_installed_is_told_with_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard.compat.proto.event_pb2", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DiagError) as raised:
        write_events([], tmp_path)
    assert raised.value.hint.endswith("pip install tensorboard")
    with pytest.raises(DiagError) as raised:
        write_run([], "r", tmp_path)
    assert raised.value.hint.endswith("pip install wandb")


def test_json_lines(tmp_path: Path) -> None:
    samples = RunMetrics(written(tmp_path / "r", steps=2).root).read(NOW_NS)
    lines = [json.loads(line) for line in to_lines(samples, NOW_NS).splitlines()]
    assert len(lines) == len(samples)
    (tokens,) = [x for x in lines if x["name"] == "diag_tokens_total" and x["labels"]["rank"] == "1"]
    labels = {"run": "r", "rank": "1", "host": "host-a", "gpu": ""}
    assert tokens == {
        "schema_version": 1, "time_unix_ns": NOW_NS, "name": "diag_tokens_total", "kind": "counter", "unit": "",
        "labels": labels, "value": 1024,
    }  # fmt: skip

"""Around an incident, the job's watcher asks every rank to keep the full detail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.packing import Packing
from diag.store.packer import Node
from diag.watch.events import Event, Level
from diag.watch.follow import Follower
from diag.watch.keeping import ask_to_keep, keep_around
from tests.watch.test_events import STUCK as STUCK_RUN

PACKING = Packing("memory://bucket/kept", 30.0)


@pytest.fixture(autouse=True)
def _empty_store() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


def event(kind: str, step: int | None = 5_000, level: Level = Level.CRITICAL) -> Event:
    return Event(kind, level, "text", "run", step, (1,), 1)


def asked(run: RunLayout) -> list[Any]:
    spans: list[Any] = json.loads(run.keep_asked.read_bytes())["spans"]
    return [(span["number"], span["first"], span["last"], span["why"]) for span in spans]


def test_incidents_are_asked_for_and_nothing_else(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    for nothing in (
        event("ended"),
        event("not-finite"),
        event("stuck-over", level=Level.INFO),
        event("stuck", step=None),
    ):
        keep_around(nothing, run, None)
    assert not run.keep_asked.exists()
    keep_around(event("verdict"), run, None)
    keep_around(event("stuck", step=3), run, None)
    assert asked(run) == [(1, 4_900, 5_020, "verdict"), (2, 0, 23, "stuck")]


def test_a_damaged_request_is_replaced(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    for content in (b"", b"[]", b'{"spans": 5}', b'{"spans": [5, {"number": "x"}, {"number": 7}]}'):
        run.keep_asked.write_bytes(content)
        keep_around(event("stuck"), run, None)
        assert json.loads(run.keep_asked.read_bytes())["spans"][-1]["last"] == 5_020


def test_requests_stay_few(tmp_path: Path) -> None:
    for number in range(100):
        ask_to_keep(RunLayout(tmp_path), number, number, "stuck")
    assert len(asked(RunLayout(tmp_path))) < 20
    assert asked(RunLayout(tmp_path))[-1][0] == 100


def test_the_nodes_of_a_packed_run_get_it_from_their_packers(tmp_path: Path) -> None:
    nodes = [Node(tmp_path / name, PACKING) for name in ("a", "b") if not (tmp_path / name).mkdir()]
    for number in (1, 2):
        keep_around(event("stuck", step=100 * number), RunLayout(tmp_path), PACKING)
    assert not RunLayout(tmp_path).keep_asked.exists()
    for node in nodes:
        node.fetch_requests()
    for name in ("a", "b"):
        assert asked(RunLayout(tmp_path / name)) == [(1, 80, 120, "stuck"), (2, 180, 220, "stuck")]


def test_the_follower_of_a_run_asks_when_it_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.watch.follow.state_of", lambda *_args, **_named: STUCK_RUN)
    follower = Follower(RunLayout(tmp_path), lambda _event: None, lambda event, run: keep_around(event, run, None))
    for _ in range(3):
        follower.look()
    assert asked(RunLayout(tmp_path)) == [(1, 42, 82, "stuck")]

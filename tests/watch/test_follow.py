"""A watcher looks at all ranks when it has to, and says the same about a run as all others do."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import diag
from diag.app.views import live
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import Heartbeat
from diag.export.run_metrics import RunMetrics
from diag.rundir.runs import RunState, state_of
from diag.rundir.states import State
from diag.show.json import state_to_dict
from diag.watch import follow
from diag.watch.events import Event
from diag.watch.follow import Follower
from tests.app.runs import write_run
from tests.command import diag as diag_command
from tests.watch.test_notify import stuck_run


def beat(layout: RunLayout, after_s: float, phases: tuple[str, str], done: bool = False) -> None:
    """Heartbeats of just now, some seconds after the last step's end."""
    end_ns = max(json.loads(line)["end_ns"] for line in layout.rank(0).steps.read_text().splitlines())
    for rank, phase in enumerate(phases):
        told = Heartbeat(time.time_ns(), end_ns + round(after_s * 1e9), 11, phase, done=done)
        layout.rank(rank).heartbeat.write_text(json.dumps(asdict(told)))


def test_of_a_stuck_run_all_ranks_are_read_again_when_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, looks = RunLayout(stuck_run(tmp_path / "run")), 0

    def counted(path: Path, *, with_answer: bool) -> RunState:
        nonlocal looks
        looks += 1
        return state_of(path, with_answer=with_answer)

    monkeypatch.setattr(follow, "state_of", counted)
    monkeypatch.setattr(time, "process_time", iter(range(10_000)).__next__)  # each look takes a second
    events: list[Event] = []
    follower = Follower(layout, events.append)
    assert [follower.look().stuck for _ in range(4)] == [True] * 4
    assert (looks, [event.kind for event in events]) == (1, ["stuck"])
    beat(layout, 0.1, ("forward", "forward"))
    assert not follower.look().stuck
    assert (looks, [event.kind for event in events]) == (2, ["stuck", "stuck-over"])


@pytest.mark.parametrize(
    ("after_s", "phases", "end", "expected"),
    [
        (0.1, ("forward", "backward"), None, State.TRAINING),
        (40.0, ("evaluation", "backward"), None, State.EVALUATING),
        (40.0, ("checkpoint", "backward"), None, State.CHECKPOINTING),
        (40.0, ("backward", "failed: ValueError"), None, State.STUCK),
        (0.1, ("done", "done"), 0, State.FINISHED),
        (0.1, ("backward", "failed: ValueError"), 1, State.FAILED),
    ],
)
def test_all_who_say_what_a_run_does_say_the_same(
    tmp_path: Path, after_s: float, phases: tuple[str, str], end: int | None, expected: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    layout = RunLayout(write_run(tmp_path / "run", ranks=2))
    update_manifest(layout, exit_code=end)
    beat(layout, after_s, phases, done=end == 0)
    state = state_of(layout.root)
    document = state_to_dict(diag.open_run(layout.root).state)
    told: list[Event] = []
    badges: list[str] = []
    monkeypatch.setattr(live.st, "badge", lambda text, **_: badges.append(text))
    live.badge(state)
    metrics = {
        (sample.metric.name, sample.labels.get("state")): sample.value for sample in RunMetrics(layout.root).read()
    }
    history = diag.open_run(layout.root).history
    stuck = expected is State.STUCK
    assert state.state is expected
    assert document is not None
    assert (document["state"], badges) == (expected.value, [expected.value])
    assert ("diag_run_state_info", expected.value) in metrics
    assert metrics.get(("diag_run_stuck", None)) == (None if end is not None else int(stuck))
    assert Follower(layout, told.append).look().state is expected
    assert [event.kind for event in told] == (["stuck"] if stuck else ["ended"] if end is not None else [])
    assert any(incident.kind == "stuck" and incident.ranks == (1,) for incident in history.incidents) is stuck
    assert history.ended == (expected.value if end is not None else "")
    printed = " ".join(diag_command("analyze", layout.root).stdout.split())
    assert ("The training is stuck" in printed) is stuck
    if stuck:  # the seconds since then differ
        assert {text.partition(";")[2] for text in (document["headline"], state.headline)} == {
            " rank 1 raised ValueError."
        }
        assert "; rank 1 raised ValueError. diag analyze" in told[0].text

"""When the profiler runs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from diag.collectors.budget import Budget, Complaints
from diag.collectors.layout import RunLayout
from diag.collectors.records import TraceAsked
from diag.collectors.settings import CollectorSettings
from diag.collectors.window import TraceWindows


def scheduled(tmp_path: Path, **settings: int | bool) -> TraceWindows:
    return TraceWindows(
        CollectorSettings(**settings),  # type: ignore[arg-type]
        RunLayout(tmp_path).rank(0),
        Budget(1 << 20),
        Complaints(0),
        dict,
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trace_skip": 3, "trace_warmup": 1, "trace_active": 2}, "...waax...."),
        ({"trace_skip": 0, "trace_warmup": 0, "trace_active": 1}, "ax........."),
        ({"trace_skip": 2, "trace_warmup": 1, "trace_active": 1, "trace_every": 4}, "..wax.wax.w"),
        ({"trace_skip": 1, "trace_warmup": 1, "trace_active": 2, "trace_every": 1}, ".waaxwaaxwa"),
        ({"trace": False}, "..........."),
    ],
)
def test_the_schedule(tmp_path: Path, settings: dict[str, int | bool], expected: str) -> None:
    """One letter a step: w(armup), a(ctive), x (the one after), . (nothing)."""
    windows = scheduled(tmp_path, **settings)
    letters = {"": ".", "warmup": "w", "active": "a", "after": "x"}
    assert "".join(letters[windows.state_of(step)] for step in range(len(expected))) == expected


def test_quiet_is_every_step_of_which_the_schedule_wants_nothing(tmp_path: Path) -> None:
    for skip, warmup, active, every, first in itertools.product((0, 1, 5), (0, 2), (1, 2), (0, 1, 4, 9), (0, 3, 7)):
        windows = scheduled(tmp_path, trace_skip=skip, trace_warmup=warmup, trace_active=active, trace_every=every)
        steps = range(first, 40)
        assert [windows.quiet(step) for step in steps] == [windows.state_of(step) == "" for step in steps]


def test_not_quiet_while_somebody_wants_a_window(tmp_path: Path) -> None:
    windows = scheduled(tmp_path, trace=False)
    assert windows.quiet(3)
    windows.ask(TraceAsked(1, 5, 2))
    assert not windows.quiet(4)


def test_settings_of_another_version_are_understood() -> None:
    text = CollectorSettings(trace_skip=7).to_json().replace("{", '{"of_a_later_version": 1, ', 1)
    assert CollectorSettings.from_json(text).trace_skip == 7

"""When the profiler runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.collectors.files import Budget, Complaints
from diag.collectors.layout import RunLayout
from diag.collectors.settings import CollectorSettings
from diag.collectors.window import TraceWindows


def schedule(tmp_path: Path, steps: int, **settings: int | bool) -> str:
    """One letter a step: w(armup), a(ctive), x (the one after), . (nothing)."""
    windows = TraceWindows(
        CollectorSettings(**settings),  # type: ignore[arg-type]
        RunLayout(tmp_path).rank(0),
        Budget(1 << 20),
        Complaints(0),
        dict,
    )
    letters = {"": ".", "warmup": "w", "active": "a", "after": "x"}
    return "".join(letters[windows.state_of(step)] for step in range(steps))


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
    assert schedule(tmp_path, len(expected), **settings) == expected


def test_settings_of_another_version_are_understood() -> None:
    text = CollectorSettings(trace_skip=7).to_json().replace("{", '{"of_a_later_version": 1, ', 1)
    assert CollectorSettings.from_json(text).trace_skip == 7

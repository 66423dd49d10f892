"""The page of a tuning shows what is in its file, and names from it stay text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from diag.app.markup import plain
from diag.tune.history import FILE_NAME, History, Interval, Outcome, Round, Run, load, save
from tests.app.runs import write_run
from tests.app.test_pages import page
from tests.copies import replace
from tests.patience import PATIENCE_S

MS = 1_000_000
KEPT = Round(
    number=1,
    verdict="Data-bound (36% of 155 ms a step)",
    advice="loader-workers-2",
    change="2 DataLoader workers per rank instead of 1 <script>alert(1)</script>",
    settings={"num_workers": 2},
    predicted_gain_ns=Interval(50 * MS, 54 * MS, 58 * MS),
    predicted_memory_delta_bytes=0,
    outcome=Outcome.KEPT,
    reason="all of the 95 % interval of its gain is above zero",
    baseline_ns=155 * MS,
    gain_ns=Interval(52 * MS, 55 * MS, 57 * MS),
    memory_delta_bytes=12_000_000,
    without=(Run("00-baseline", {}, 155 * MS, 18),),
    with_it=(Run("01-round1-with", {"num_workers": 2}, 100 * MS, 18),),
)
FAILED = replace(
    KEPT, number=2, outcome=Outcome.FAILED, reason="the training failed: exit code 137", gain_ns=None, with_it=()
)
HISTORY = History(
    arguments=("--preset", "tiny"),
    rounds=(KEPT, FAILED),
    settings={"num_workers": 2},
    command="diag run --preset tiny --num-workers 2",
    stopped="the limit of 2 rounds is reached",
    remaining=("replace rank 3",),
)


def _shown() -> None:
    import sys
    from pathlib import Path

    from diag.app.views import tuning
    from diag.tune.history import load

    folder = Path(sys.argv[1])
    history = load(folder)
    assert history is not None
    tuning.show(folder, history)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "00-baseline")
    save(HISTORY, tmp_path)
    return tmp_path


def shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr("sys.argv", ["main.py", str(folder)])
    test = AppTest.from_function(_shown, default_timeout=PATIENCE_S).run()
    assert not test.exception
    return test


def test_what_was_predicted_measured_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown(folder, monkeypatch)
    text = "\n".join(str(element.value) for element in test.markdown).replace("\u00a0", " ")
    assert plain("Predicted: 54.0 ms a step less (35% of the step); the gain is between 50.0 ms and 58.0 ms") in text
    assert (
        plain("Measured: 55.0 ms a step less (35% of the step); the gain is between 52.0 ms and 57.0 ms; 12.0 MB")
        in text
    )
    assert plain("Failed: the training failed: exit code 137") in text
    assert plain("replace rank 3") in text
    assert [code.value for code in test.code] == [HISTORY.command]
    metrics = {metric.label: metric.value.replace("\u00a0", " ") for metric in test.metric}
    assert metrics == {"Step time before": "155 ms", "Step time now": "100 ms", "Changes kept": "1 of 2"}


def test_names_stay_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown(folder, monkeypatch)
    assert not any("<script>" in str(element.value) for element in test.markdown)


def test_nothing_was_kept_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(History(arguments=(), command="diag run"), tmp_path)
    test = shown(tmp_path, monkeypatch)
    assert any("Still running" in str(element.value) for element in test.markdown)
    assert [metric.value for metric in test.metric] == ["0 of 0"]


def test_the_folder_of_a_tuning_opens_on_its_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page(folder, monkeypatch).title[0].value == plain("00-baseline")
    assert load(folder) == HISTORY
    (folder / FILE_NAME).write_text(json.dumps({"rounds": "none"}))
    assert page(folder, monkeypatch).title[0].value == plain("00-baseline")

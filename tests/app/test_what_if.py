"""The page predicts what diag predicts, keeps the choice in its address, and says what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from diag.api import open_run
from diag.app.markup import plain
from diag.app.views.what_if import AS_IT_IS
from diag.model.breakdown import Prospect
from diag.replay.suppose import Supposition, without_fault
from diag.words.formatting import duration, share
from tests.app.runs import write_run, write_stalled_trace
from tests.app.shown import metrics, shown, text
from tests.patience import PATIENCE_S
from tests.simulate import MS, Plan, simulate
from tests.simulate import write_run as write_simulated

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_simulated(simulate(Plan(units=6, transfer_ns=15 * MS, regather=True, data_ns=60 * MS)), folder)
    return folder


def test_it_opens_on_the_best_advice(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = open_run(run)
    best = result.advice[0]
    test = shown("what-if", run, monkeypatch)
    chosen = {box.key: box.value for box in test.selectbox if box.value != AS_IT_IS and box.key != "of"}
    assert chosen == {best.knob.replace(" ", "-"): best.id}
    prospect = result.what_if.predict([best.id])
    told = metrics(test)
    assert told["Step time now"] == duration(prospect.step_ns).replace("\u00a0", " ")
    assert told["Predicted"] == duration(prospect.new_step_ns[1]).replace("\u00a0", " ")
    assert told["Gain"].startswith(share(prospect.gain_share))
    for assumption in prospect.assumptions:
        assert plain(assumption) in text(test)


def test_a_link_opens_the_same_choice(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown(
        "what-if", run, monkeypatch, prefetch="prefetch-1", reshard_after_forward="keep-after-forward",
        data_loader=AS_IT_IS,
    )  # fmt: skip
    both = open_run(run).what_if.predict(["prefetch-1", "keep-after-forward"])
    assert metrics(test)["Predicted"] == duration(both.new_step_ns[1]).replace("\u00a0", " ")
    test.selectbox(key="prefetch").select(AS_IT_IS).run()
    assert not test.exception
    keep = open_run(run).what_if.predict(["keep-after-forward"])
    assert metrics(test)["Predicted"] == duration(keep.new_step_ns[1]).replace("\u00a0", " ")
    assert test.query_params["prefetch"] in (AS_IT_IS, [AS_IT_IS])


def test_nothing_chosen(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("what-if", run, monkeypatch)
    for box in test.selectbox:
        if box.key != "of":
            box.select(AS_IT_IS)
    test.run()
    assert not test.exception
    assert "Nothing is changed" in text(test)
    assert metrics(test)["Gain"] == "0%"


def test_what_is_refused_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = write_run(tmp_path / "part", ranks=3, missing=(1,), slow_data_ms={2: 40})
    test = shown("what-if", alone, monkeypatch)
    assert plain("Nothing can be predicted: rank 1 was not recorded") in text(test)
    assert not test.selectbox


def test_a_healthy_run_has_nothing_to_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("what-if", write_run(tmp_path / "healthy"), monkeypatch)
    assert "No setting is proposed for this run" in text(test)
    assert "Nothing is changed: the step is as it was measured." in text(test)
    assert len(test.get("plotly_chart")) == 1, "the measured step"
    test.select_slider(key="network").set_value("2").run()
    assert "The step would take" in text(test)


@pytest.mark.parametrize("name", ["fsdp2-not-overlapped", "fsdp2-root-only", "ddp-slow-loader-all"])
def test_the_samples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("what-if", SAMPLES / name, monkeypatch)
    result = open_run(SAMPLES / name)
    assert [code.value for code in test.code][:1] == [result.advice[0].command]


@pytest.fixture
def slow_loader(tmp_path: Path) -> Path:
    """Two ranks, twelve steps of 105 ms; rank 1 waits 40 ms for data where rank 0 waits 1 ms."""
    return write_run(tmp_path / "slow", slow_data_ms={1: 40})


def would_take(prospect: Prospect) -> str:
    return plain(f"The step would take {duration(prospect.new_step_ns[1])}").replace("\u00a0", " ")


def test_one_slow_loader_is_taken_away_at_first(slow_loader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("what-if", slow_loader, monkeypatch)
    supposed = without_fault(open_run(slow_loader).verdict)
    assert supposed == Supposition((1,), loading=1.0)
    prospect = open_run(slow_loader).what_if.suppose(supposed)
    assert prospect.new_step_ns[1] == pytest.approx(66 * MS, rel=0.02)
    assert would_take(prospect) in text(test)


def test_waiting_for_the_host_is_taken_away_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each step of 10 ms the device waits 4.4 ms for its host: 4 ms in which nothing is launched, 0.4 ms in the
    launch. The 0.6 ms after it stay."""
    run = write_stalled_trace(tmp_path / "traces")
    test = shown("what-if", run, monkeypatch)
    assert test.select_slider(key="host").value == "100"
    prospect = open_run(run).what_if.suppose(open_run(run).without_fault)
    assert prospect.new_step_ns[1] == pytest.approx(5.6 * MS, rel=0.01)
    assert would_take(prospect) in text(test)
    assert "no device waits for its host" in text(test).lower()


def test_a_rank_without_a_device_waits_for_no_host(slow_loader: Path) -> None:
    refused = open_run(slow_loader).what_if.suppose(Supposition(host=1.0)).refused
    assert refused == "no device waits for its host"


def test_sliders_are_in_the_address(slow_loader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("what-if", slow_loader, monkeypatch, loading="0", network="2")
    assert {slider.key: slider.value for slider in test.select_slider} == {
        "work": "0", "link": "0", "loading": "0", "data": "0", "network": "2", "ranks": "2",
    }  # fmt: skip
    faster = open_run(slow_loader).what_if.suppose(Supposition((1,), network=2))
    assert would_take(faster) in text(test)
    test.select_slider(key="network").set_value("1").run()
    assert "Nothing is changed: the step is as it was measured." in text(test)
    assert test.query_params["network"] in ("1", ["1"])


def _on_a_full_device() -> None:
    from diag.api import analyze
    from diag.app.run_view import view_of
    from diag.app.views import what_if
    from tests.copies import replace
    from tests.replay.test_recommend import GB, with_device
    from tests.simulate import MS, Plan, simulate

    tables = simulate(Plan(units=6, transfer_ns=15 * MS, regather=True, unit_bytes=4 * GB))
    what_if.show(view_of(replace(analyze(tables), tables=with_device(tables, 140 * GB, 106 * GB))))


def test_what_does_not_fit_is_said_beside_what_it_would_gain() -> None:
    test = AppTest.from_function(_on_a_full_device, default_timeout=PATIENCE_S)
    test.query_params["prefetch"], test.query_params["reshard-after-forward"] = "prefetch-1", "keep-after-forward"
    test.run()
    assert not test.exception
    assert plain("Does not fit: takes 28,000 MB more device memory; 34,000 MB are free") in text(test)
    told = {metric.label: metric for metric in test.metric}
    assert told["Device memory"].value.replace("\u00a0", " ") == "+28.0 GB"
    assert told["Device memory"].delta.replace("\u00a0", " ") == "of 34.0 GB free"
    assert told["Gain"].value not in ("0%", "unknown")
    test.selectbox(key="reshard-after-forward").select(AS_IT_IS).run()
    assert "Does not fit" not in text(test)


def test_two_slow_loaders_are_taken_away_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either alone changes nothing, since the others still wait for the other one."""
    run = write_run(tmp_path / "slow", ranks=5, slow_data_ms={1: 40, 3: 40})
    result = open_run(run)
    assert result.without_fault == Supposition((1, 3), loading=1.0)
    alone = result.what_if.suppose(Supposition((1,), loading=1.0))
    both = result.what_if.suppose(result.without_fault)
    assert alone.gain_share == pytest.approx(0, abs=0.01)
    assert both.new_step_ns[1] == pytest.approx(66 * MS, rel=0.02)
    test = shown("what-if", run, monkeypatch)
    assert test.selectbox(key="of").value == "1,3"
    assert "ranks 1, 3, at fault" in [
        plain(option).replace("\u00a0", " ") for option in test.selectbox(key="of").options
    ]
    assert would_take(both) in text(test)
    test.selectbox(key="of").select("1").run()
    assert not test.exception
    assert would_take(alone) in text(test)

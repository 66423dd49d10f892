"""A tuning over simulated trainings: what surely gains is kept, the rest reverted, and all of it written down."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from diag.errors import DiagError
from diag.show.tuning import print_tuning
from diag.tune import loop
from diag.tune.history import FILE_NAME, History, Interval, Outcome, load
from diag.tune.loop import gain, loss_difference, measured, tune, why_nothing_is_left
from tests.command import diag_process
from tests.copies import replace
from tests.simulate import MS, Plan, simulate, write_run

WAIT = 55 * MS  # for data, a step, with one loader process
LOADER = ["--strategy", "fsdp2", "--preset", "tiny"]


@dataclass
class Trainer:
    """Trains by simulation. ``wait``: for data, by the number of loader processes."""

    wait: Callable[[int], int] = lambda workers: WAIT if workers == 1 else MS
    fails: Callable[[dict[str, str]], str] = lambda options: ""
    loss: Callable[[int], float] = lambda workers: 4.0
    plan: Plan = field(default_factory=Plan)
    runs: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, arguments: Sequence[str], folder: Path) -> str:
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        self.runs.append(options)
        failed = self.fails(options)
        if failed:
            return failed
        workers = int(options.get("--num-workers", "1"))
        trainer = {"num_workers": workers, "preset": "tiny"}
        plan = replace(self.plan, data_ns=self.wait(workers), seed=len(self.runs), trainer=trainer)
        tables = simulate(plan)
        assert tables.manifest is not None
        ranks = {
            rank: replace(own, steps=tuple(replace(step, loss=self.loss(workers)) for step in own.steps))
            for rank, own in tables.ranks.items()
        }
        manifest = replace(tables.manifest, argv=["run", *arguments])
        write_run(replace(tables, ranks=ranks, manifest=manifest), folder)
        return ""


# Several things to change, of which none changes anything.
STUBBORN = Plan(units=6, transfer_ns=15 * MS, regather=True)


def tuned(folder: Path, trainer: Trainer, rounds: int = 2) -> History:
    return tune(LOADER, folder, rounds, 2, trainer)


def test_a_change_that_gains_is_kept(tmp_path: Path) -> None:
    trainer = Trainer()
    history = tuned(tmp_path / "t", trainer)
    (done,) = history.rounds
    assert done.outcome == Outcome.KEPT
    assert done.settings == history.settings == {"num_workers": 2}
    assert done.gain_ns is not None
    assert abs(done.gain_ns.likely - (WAIT - MS)) < 2 * MS
    assert done.gain_ns.low <= done.gain_ns.likely <= done.gain_ns.high
    assert done.prediction_error is not None
    assert done.prediction_error < 0.1
    assert history.command == "diag run --strategy fsdp2 --preset tiny --num-workers 2"
    assert history.stopped.startswith("none of the remaining advice can be applied")
    # Runs with and without take turns, and whoever was second goes first.
    assert ["--num-workers" in run for run in trainer.runs] == [False, True, True, False]
    assert [run.folder for run in (*done.without, *done.with_it)] == [
        "00-baseline", "03-round1-without", "01-round1-with", "02-round1-with",
    ]  # fmt: skip


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    history = tuned(tmp_path / "t", Trainer())
    assert load(tmp_path / "t") == history
    content = json.loads((tmp_path / "t" / FILE_NAME).read_text())
    assert content["schema_version"] == 1
    assert content["rounds"][0]["gain_share"] == pytest.approx(history.rounds[0].gain_share)
    assert load(tmp_path) is None
    (tmp_path / FILE_NAME).write_text('{"arguments": 3}')
    with pytest.raises(DiagError, match="is damaged"):
        load(tmp_path)


def test_a_change_that_does_not_gain_is_reverted_and_not_tried_again(tmp_path: Path) -> None:
    trainer = Trainer(wait=lambda workers: WAIT)
    history = tuned(tmp_path / "t", trainer, rounds=9)
    assert {done.outcome for done in history.rounds} == {Outcome.REVERTED}
    tried = [tuple(done.settings.items()) for done in history.rounds]
    assert len(tried) == len(set(tried)) >= 1
    assert history.settings == {}
    assert "--num-workers" not in history.command


def test_a_change_that_trains_something_else_is_reverted(tmp_path: Path) -> None:
    history = tuned(tmp_path / "t", Trainer(loss=lambda workers: 4.0 + workers), rounds=1)
    (done,) = history.rounds
    assert done.outcome == Outcome.REVERTED
    assert "losses differ" in done.reason
    assert done.loss_difference == pytest.approx(0.2)


def test_a_change_that_does_not_run_is_reverted(tmp_path: Path) -> None:
    trainer = Trainer(fails=lambda options: "exit code 137" if "--num-workers" in options else "")
    history = tuned(tmp_path / "t", trainer, rounds=1)
    (done,) = history.rounds
    assert done.outcome == Outcome.FAILED
    assert "exit code 137" in done.reason
    assert done.gain_ns is None
    assert history.settings == {}
    assert load(tmp_path / "t") == history


def test_a_training_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="exit code 2"):
        tuned(tmp_path / "t", Trainer(fails=lambda options: "exit code 2"))
    kept = load(tmp_path / "t")
    assert kept is not None
    assert "exit code 2" in kept.stopped


def test_a_baseline_that_fails_later_keeps_the_rounds_before(tmp_path: Path) -> None:
    trainer = Trainer(plan=STUBBORN)
    trainer.fails = lambda options: "exit code 1" if len(trainer.runs) > 4 and len(options) == 2 else ""
    history = tuned(tmp_path / "t", trainer, rounds=9)
    assert len(history.rounds) == 1
    assert "without the change failed" in history.stopped


def test_an_interruption_keeps_the_rounds_before(tmp_path: Path) -> None:
    trainer = Trainer(plan=STUBBORN)

    def interrupt(options: dict[str, str]) -> str:
        if len(trainer.runs) > 5:
            raise KeyboardInterrupt
        return ""

    trainer.fails = interrupt
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "t", trainer, rounds=9)
    kept = load(tmp_path / "t")
    assert kept is not None
    assert (len(kept.rounds), kept.stopped) == (1, "interrupted")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(DiagError, match="not empty"):
        tuned(tmp_path, Trainer())
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_healthy_training_is_left_alone(tmp_path: Path) -> None:
    trainer = Trainer(wait=lambda workers: MS)
    history = tuned(tmp_path / "t", trainer)
    assert history.rounds == ()
    assert len(trainer.runs) == 1


def test_the_interval_of_a_gain_holds_what_equal_runs_differ_by() -> None:
    """Runs of one configuration that differ by 10 ms each: a gain of 1 ms is not sure, one of 50 ms is."""
    random = np.random.default_rng(0)

    def runs(mean_ms: float) -> list[np.ndarray]:
        return [MS * (mean_ms + offset + random.normal(0, 1, 20)) for offset in (-5.0, 0.0, 5.0)]

    small, large = gain(runs(100), runs(99)), gain(runs(100), runs(50))
    assert small.low < 0 < small.high
    assert large.low > 30 * MS
    assert large.low <= large.likely <= large.high
    equal = [np.full(10, 100.0 * MS)] * 2
    assert gain(equal, equal) == (0, 0, 0)


def test_steps_that_count_are_measured(tmp_path: Path) -> None:
    Trainer()(["--strategy", "fsdp2"], tmp_path / "r")
    from diag.api import open_run

    result = open_run(tmp_path / "r")
    times, reserved = measured(result)
    assert len(times) == 18  # of 20, two are warm-up
    assert np.mean(times) == pytest.approx(np.mean([s.dur_ns for s in result.attribution.usable]), rel=0.02)
    assert reserved is None
    assert loss_difference(result, result) == 0.0


def test_the_report_says_what_was_predicted_measured_and_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_tuning(tuned(tmp_path / "t", Trainer()), tmp_path / "t", evidence=True)
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "Round 1: Data-bound",
        "predicted 5",
        "measured 54",
        "kept",
        "ms a step instead of",
        "--num-workers 2",
    ):
        assert part in text


def printed(history: History, width: int) -> list[str]:
    """The rows of the answer on a terminal of this width, as it breaks them."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None, force_terminal=True)
    print_tuning(history, Path("T"), console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return [line[start : start + width] for line in lines for start in range(0, len(line) or 1, width)]


@pytest.mark.parametrize("width", [80, 200])
def test_a_change_without_room_is_the_options_that_it_sets(tmp_path: Path, width: int) -> None:
    (done,) = tuned(tmp_path / "t", Trainer()).rounds
    long = replace(done, change="a change of many words " * 3)
    name = long.change if width == 200 else "--num-workers 2"
    assert any(line.startswith(f"{name} ") for line in printed(History((), (long,)), width))


@pytest.mark.parametrize("width", [80, 200])
def test_the_answer_of_a_tuning_is_short(tmp_path: Path, width: int) -> None:
    history = tuned(tmp_path / "t", Trainer())
    (done,) = history.rounds
    lines = printed(history, width)
    assert len(lines) <= 10
    assert lines[0].endswith("1 of 1 change kept.")
    assert lines[1] == f"What to do: {history.command}"
    (row,) = [line for line in lines if line.startswith(done.change)]
    assert done.gain_ns is not None
    assert f"-{done.gain_ns.likely / 1e6:.1f} (-" in row
    assert "memory" not in "".join(lines)  # nothing is known of it
    assert any(line.startswith("More: diag tune --show T -v") for line in lines)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("rounds", [0, 3, 12])
@pytest.mark.parametrize("words", [1, 40])
def test_ten_rows_hold_the_changes_that_were_kept(tmp_path: Path, width: int, rounds: int, words: int) -> None:
    """However many changes were tried, and however much else is advised; and no number is cut."""
    (kept,) = tuned(tmp_path / "t", Trainer()).rounds
    tried = tuple(
        replace(kept, number=number, outcome=Outcome.KEPT if number == rounds else Outcome.REVERTED,
                gain_ns=Interval(-MS, number * MS, 1_234_567 * MS))
        for number in range(1, rounds + 1)
    )  # fmt: skip
    command = "diag run --strategy fsdp2" + " --data /a/folder" * 4
    remaining = tuple(f"{'word ' * words}{number}" for number in range(3))
    history = History((), tried, {}, command, "nothing is left (for reasons)", remaining)
    lines = printed(history, width)
    assert len(lines) <= 10
    if rounds:
        assert f"What to do: {command}" in "".join(lines)
        rows = [line for line in lines if line.startswith((kept.change, "--num-workers 2 "))]
        assert len(rows) >= min(rounds, 2)
        assert f"-{rounds}.0 (-" in rows[-1]
        assert "kept" in rows[-1]
        assert (len(rows) < rounds) is any(line == f"… and {rounds - len(rows)} more changes." for line in lines)
    else:
        assert "Stopped: nothing is left (for reasons)." in lines


def test_a_tuning_can_be_read_later(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    history = tuned(folder, Trainer())
    assert f"What to do: {history.command}" in diag_process("tune", "--show", folder).stdout
    assert "Round 1: Data-bound" in diag_process("tune", "--show", folder, "-v").stdout
    nothing = diag_process("tune", "--show", tmp_path)
    assert (nothing.returncode, "there is no tuning here" in nothing.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--wrap"], "requires an argument"),
        (["--no-such-option"], "No such option"),
        (["--no-trace"], "leave out --no-trace"),
        (["--repeats", "1"], "repeats"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(tmp_path: Path, arguments: list[str], said: str) -> None:
    ended = diag_process("tune", "--out", tmp_path / "t", *arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not (tmp_path / "t").exists()


def test_it_says_why_it_has_nothing_to_try() -> None:
    """The finding advises a setting for which no gain is predicted, and another change was refused."""
    result: Any = SimpleNamespace(
        advice=(),
        recommendation=SimpleNamespace(not_advised=("each block a unit: would change the step by +0.5%",)),
        examination=SimpleNamespace(
            findings=(SimpleNamespace(id="x", action="Prefetch. Bundled trainer: --prefetch 1."),)
        ),
    )
    why = why_nothing_is_left(result, [])
    assert "x advises --prefetch 1" in why
    assert "would change the step by +0.5%" in why
    assert "--prefetch" not in why_nothing_is_left(result, [{"prefetch": 1}])


def test_every_option_that_a_finding_advises_is_one_that_tune_tries() -> None:
    package = Path(loop.__file__).parents[1]
    texts = [path.read_text() for path in (package / "diagnoses").glob("*.py")]
    advised = {flag for text in texts for flag in re.findall(r'options="--([\w-]+)', text)}
    settings = re.findall(r"settings=(\{.*?\})", (package / "replay/knobs.py").read_text())
    tried = set(re.findall(r'"(\w+)":', " ".join(settings)))
    assert advised
    assert {flag.replace("-", "_") for flag in advised} <= tried

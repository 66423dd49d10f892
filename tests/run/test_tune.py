"""``diag tune`` on real trainings finds the setting that was taken away, and measures what it is worth.

DIAG_TUNE=all tunes all of them (about ten minutes); otherwise only the first.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diag.tune.history import Outcome, load
from tests.command import diag_process

ALL = os.environ.get("DIAG_TUNE") == "all"
_SHORT = ("--preset", "small", "--batch-size", "1", "--seq-len", "64", "--steps", "24")
# A forward about as long as the gathers, so that they hide in it. Both sleep: where the cores computed that long
# instead, the gain was lost in their noise once in three times.
_ASLEEP = ("--inject", "slow-wire:ms=1,mbps=1000", "--inject", "slow-device:ms=40")
# What is wrong with the training, how it is trained, and the setting that mends it.
TRAININGS: dict[str, tuple[tuple[str, ...], str, set[str | int]]] = {
    "slow loader": (("--strategy", "ddp", "--inject", "slow-loader:ms=150"), "num_workers", {2, 4, 8, 16}),
    "no prefetch": (("--strategy", "fsdp2", "--inject", "slow-wire:ms=12,mbps=2000"), "prefetch", {1, 2}),
    "root only": ((*_SHORT, "--wrap", "root", *_ASLEEP), "wrap", {"block"}),
    "per linear": ((*_SHORT, "--wrap", "linear", "--inject", "slow-wire:ms=2,mbps=16000"), "wrap", {"block"}),
}


@pytest.mark.matrix
@pytest.mark.multiproc
@pytest.mark.parametrize("name", TRAININGS if ALL else list(TRAININGS)[:1])
def test_the_setting_is_found_applied_and_measured(tmp_path: Path, name: str) -> None:
    arguments, option, values = TRAININGS[name]
    folder = tmp_path / "tuning"
    rounds = "2" if name == "no prefetch" else "1"  # to keep the parameters gains about as much, and may come first
    ended = diag_process(
        "tune", "--rounds", rounds, "--repeats", "2", "--trace-active", "1", *arguments, "--out", folder, timeout=900
    )
    assert ended.returncode == 0, ended.stderr
    history = load(folder)
    assert history is not None
    tried = [(done.settings, done.outcome.value, done.predicted_gain_ns, done.gain_ns) for done in history.rounds]
    assert history.settings.get(option) in values, tried
    done = next(done for done in history.kept if option in done.settings)
    assert done.outcome == Outcome.KEPT
    assert done.gain_ns is not None
    assert done.gain_ns.low > 0
    assert done.gain_share is not None
    assert done.gain_share > 0.05, tried
    assert f"--{option.replace('_', '-')} {history.settings[option]}" in history.command
    assert history.command in " ".join(ended.stdout.split())
    # Every run that the numbers rest on is there to be opened.
    assert all((folder / run.folder / "manifest.json").is_file() for run in (*done.without, *done.with_it))

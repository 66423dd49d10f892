"""Where a training or PyTorch says that a loss or a gradient is not finite: which step and rank."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from diag.api import open_run
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.numbers import GRADIENT, GRADIENT_NORM, LOSS, REPORTED_LOSS
from diag.collectors.records import Heartbeat
from diag.model import Gap
from diag.rundir import printed
from diag.rundir.lines import read_heartbeat
from diag.rundir.numbers import first_odd, numbers_of
from diag.rundir.printed import printed_numbers
from tests.app.runs import write_run

TITAN = "\x1b[31mstep: {}  \x1b[32mloss: {}  \x1b[38;2;180;60;0mgrad_norm:  1.2000  \x1b[36mmemory:  0.90GiB\n"


@pytest.mark.parametrize(
    ("message", "what", "value"),
    [
        ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", GRADIENT, "nan"),
        ("ValueError: The loss returned in `training_step` is inf.", LOSS, "inf"),
        ("AssertionError: Rank 1: found NaN in local forward loss calculation. Device: 1, node: n1", LOSS, "nan"),
        ("Rank 1, node n1, device 1, iteration 7: Unexpected result inf (message='found Inf in local grad norm for "
         "bucket #3 in backward pass before data-parallel communication collective')", GRADIENT, "inf"),
        ("RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be "
         "clipped.", GRADIENT_NORM, "nan"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
         GRADIENT_NORM, "inf"),
    ],
)  # fmt: skip
def test_an_exception_that_says_so_names_rank_and_step(tmp_path: Path, message: str, what: str, value: str) -> None:
    layout = RunLayout(write_run(tmp_path / "run", ranks=2))
    layout.rank(1).error.write_text(json.dumps({"message": {"message": message, "extraInfo": {}}}))
    layout.rank(1).heartbeat.write_text(json.dumps(asdict(Heartbeat(1, 1, 7, "failed: X", failed_in="backward"))))
    odd = first_odd(numbers_of(layout.ranks()), finite=False)
    assert odd is not None
    assert (odd.step, odd.what, str(odd.value)) == (7, what, value)
    assert odd.ranks == (() if what == GRADIENT_NORM else (1,))  # of all ranks after the reduction


@pytest.mark.parametrize(
    "lines",
    [
        [TITAN.format(11, " 3.1"), TITAN.format(12, " nan"), TITAN.format(13, " nan")],
        ["iter 11: loss 3.1, time 4.00ms\n", "iter 12: loss nan, time 4.00ms\n"],
        [
            f" iteration {step:8d}/     100 | lm loss: 3.1E+00 | number of skipped iterations:   "
            f"0 | number of nan iterations: {step // 12:3d} |\n"
            for step in (11, 12)
        ],
    ],
)
def test_the_first_printed_step_whose_loss_is_not_finite(tmp_path: Path, lines: list[str]) -> None:
    run = write_run(tmp_path / "run", ranks=2)
    RunLayout(run).rank(0).stdout.write_text("".join(lines))
    (finding,) = [finding for finding in open_run(run).examination.findings if finding.id == "not-finite"]
    assert finding.title == "The reported loss is nan in step 12, the first that is not finite"


@pytest.mark.parametrize(
    "line",
    [
        "step 0: best loss: inf\n",
        "step 12 loss 3.1 | nan_to_num used\n",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",  # as usual
        " iteration 12/ 100 | lm loss: 3.1E+00 | number of nan iterations:   0 |\n",
        "epoch 3: loss nan\n",  # of which step is not known
    ],
)
def test_what_says_nothing(tmp_path: Path, line: str) -> None:
    layout = RunLayout(write_run(tmp_path / "run", ranks=1))
    layout.rank(0).stdout.write_text(line)
    assert printed_numbers(layout.rank(0), 1 << 16) == []


def test_what_the_recorder_saw_comes_first(tmp_path: Path) -> None:
    layout = RunLayout(write_run(tmp_path / "run", ranks=1))
    layout.rank(0).stdout.write_text("step 12 loss nan\n")
    layout.rank(0).numbers.write_text(json.dumps({"step": 11, "what": LOSS, "value": "nan"}) + "\n")
    (records,) = numbers_of(layout.ranks()).values()
    assert [(record.step, record.what) for record in records] == [(11, LOSS)]
    assert REPORTED_LOSS not in {record.what for record in records}


def test_heartbeats_are_read_where_something_was_said_without_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counting(files: RankLayout) -> tuple[Heartbeat | None, Gap | None]:
        read.append(files.place)
        return read_heartbeat(files)

    monkeypatch.setattr(printed, "read_heartbeat", counting)
    layout = RunLayout(write_run(tmp_path / "run", ranks=3))
    layout.rank(0).stdout.write_text("step 12 loss nan\n")
    layout.rank(1).error.write_text(json.dumps({"message": "Function 'X' returned nan values in its 0th output"}))
    layout.rank(1).heartbeat.write_text(json.dumps(asdict(Heartbeat(1, 1, 7, "failed: X", failed_in="backward"))))
    steps = [[record.step for record in printed_numbers(files, 1 << 16)] for files in layout.ranks().values()]
    assert steps == [[12], [7], []]
    assert read == [layout.rank(1).place]

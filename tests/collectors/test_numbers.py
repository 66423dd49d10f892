"""Which losses and gradient norms are recorded: the first that are not finite, or jump."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from diag.collectors.layout import RunLayout
from diag.collectors.numbers import GRADIENT_NORM, LOSS, Numbers, number_of
from diag.collectors.policy import RECORDING
from diag.collectors.recording import record


def fed(numbers: Numbers, *values: float, what: str = LOSS) -> list[float | None]:
    return [numbers.odd(what, value) for value in values]


def test_a_number_that_is_not_finite_comes_with_what_was_usual() -> None:
    numbers = Numbers()
    assert fed(numbers, 2.0, 1.0, 3.0) == [None] * 3
    assert fed(numbers, math.nan, math.inf) == [2.0, 2.0]
    assert numbers.seen == 5


def test_the_first_number_may_be_the_one() -> None:
    (usual,) = fed(Numbers(), math.nan)
    assert usual is not None
    assert math.isnan(usual)


def test_only_the_first_few_are_told() -> None:
    told = [usual for usual in fed(Numbers(), *[math.nan] * 50) if usual is not None]
    assert len(told) == RECORDING.most_odd_numbers


def test_a_jump() -> None:
    numbers = Numbers()
    assert not any(fed(numbers, *[1.0 + 0.01 * (step % 7) for step in range(40)]))
    assert fed(numbers, 2.9, 9.0) == [None, pytest.approx(1.03, abs=0.02)]
    assert fed(numbers, 9.0, what=GRADIENT_NORM) == [None]


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 100.0] * 40,  # two losses of one step
        [10.0 / (step + 1) for step in range(80)],  # a training that learns
        [2.0**step for step in range(3)] * 20,
        [0.0] * 40 + [0.0],
    ],
)
def test_what_is_no_jump(values: list[float]) -> None:
    assert set(fed(Numbers(), *values)) == {None}


def test_only_what_is_on_the_host_is_read() -> None:
    assert number_of(0.5) == 0.5
    assert number_of(torch.tensor(0.5, requires_grad=True)) == 0.5
    assert number_of(torch.tensor([0.5])) == 0.5
    for value in (torch.zeros(2), torch.zeros((), device="meta"), torch.tensor(1), None, 3, "nan"):
        assert number_of(value) is None


def test_a_training_with_a_nan_is_recorded_with_its_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record(tmp_path / "run"):
        for step in range(8):
            loss = model(torch.full((2, 4), math.nan if step == 5 else 1.0)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    files = RunLayout(tmp_path / "run").rank(0)
    lines = [json.loads(line) for line in files.numbers.read_text().splitlines()]
    first = {(line["step"], line["what"], line["value"]) for line in lines if line["step"] == 5}
    assert first == {(5, LOSS, "nan"), (5, GRADIENT_NORM, "nan")}
    assert min(line["step"] for line in lines) == 5
    assert json.loads(files.heartbeat.read_text())["numbers"] == 16

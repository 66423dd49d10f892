"""Two runs with a known difference: it is found in its part, with an interval that holds it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from diag.api import Result, analyze, compare_runs
from diag.model.steps import Kind
from diag.show.compare import print_comparison
from tests.copies import replace
from tests.simulate import MS, Plan, simulate


def run(model: dict[str, Any] | None = None, **plan: Any) -> Result:
    tables = simulate(Plan(**plan))
    assert tables.manifest is not None
    return analyze(replace(tables, manifest=replace(tables.manifest, model=model or {})))


def test_the_difference_is_in_its_part() -> None:
    found = compare_runs(run(data_ns=MS), run(data_ns=31 * MS, seed=1))
    by_kind = {part.kind: part for part in found.parts}
    data = by_kind[Kind.DATA]
    assert data.ns[0] < data.ns[1] < data.ns[2]
    assert data.ns[1] == pytest.approx(30 * MS, rel=0.02)
    assert data.sure
    assert found.sure
    assert abs(sum(part.ns[1] for part in found.parts) - found.ns[1]) <= len(found.parts)
    assert found.ns[1] == pytest.approx(found.after_ns - found.before_ns, abs=2)
    for kind, part in by_kind.items():
        if kind != Kind.DATA:
            assert abs(part.ns[1]) < MS
    assert found.not_comparable == ()


def test_without_noise_it_is_exact() -> None:
    found = compare_runs(run(data_ns=MS, jitter=0), run(data_ns=31 * MS, jitter=0))
    assert {part.kind: part.ns for part in found.parts if part.ns[1]} == {Kind.DATA: (30 * MS,) * 3}


def test_noise_alone_is_seldom_called_a_difference() -> None:
    """Of runs that differ in nothing but the noise, about one in twenty is."""
    pairs = [compare_runs(run(seed=2 * at, jitter=0.05), run(seed=2 * at + 1, jitter=0.05)) for at in range(20)]
    assert sum(pair.sure for pair in pairs) <= 4


def test_the_other_way_round_has_the_other_sign() -> None:
    one, two = run(transfer_ns=MS // 2), run(transfer_ns=4 * MS, seed=3)
    there, back = compare_runs(one, two), compare_runs(two, one)
    assert there.ns[1] == pytest.approx(-back.ns[1], abs=1)
    assert {p.kind: p.sure for p in there.parts}[Kind.COMM]
    assert there.ns[0] > 0 > back.ns[2]


def test_two_runs_alike_do_not_surely_differ() -> None:
    found = compare_runs(run(seed=1, jitter=0.1), run(seed=1, jitter=0.1))
    assert found.ns[1] == 0
    assert not found.sure
    assert not any(part.sure for part in found.parts)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"ranks": 4}, "2 ranks, the other on 4"),
        ({"tokens": lambda step, rank: 256}, "512 tokens in one and 256"),
        ({"model": {"layers": 12}}, "layers 8 and 12"),
    ],
)
def test_what_makes_steps_other_work(after: dict[str, Any], reason: str) -> None:
    found = compare_runs(run(model={"layers": 8}), run(**{"model": {"layers": 8}, **after}))
    assert [reason in told for told in found.not_comparable] == [True]


def test_settings_that_differ_are_said_and_what_was_planted_is_not() -> None:
    before = run(trainer={"prefetch": 0, "inject": []})
    after = run(trainer={"prefetch": 2, "inject": ["slow-loader"]}, strategy="ddp")
    notes = " ".join(compare_runs(before, after).notes)
    assert "prefetch 0 and 2" in notes
    assert "strategy fsdp2 and ddp" in notes
    assert "inject" not in notes
    assert "not recorded in the first and the second run" in notes


def test_few_steps_say_little() -> None:
    assert any("only" in note for note in compare_runs(run(steps=5), run()).notes)


@pytest.mark.parametrize(("after", "coloured"), [({}, True), ({"model": {"layers": 12}}, False)])
def test_longer_is_red_only_where_the_steps_are_the_same_work(after: dict[str, Any], coloured: bool) -> None:
    before = run(data_ns=MS, model={"layers": 8})
    longer = run(**{"data_ns": 31 * MS, "model": {"layers": 8}, **after})
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, color_system="standard", width=160)
    print_comparison(compare_runs(before, longer), before, longer, console)
    shown = text.getvalue()
    difference = next(line for line in shown.splitlines() if "longer" in line and "data wait  " in line)
    assert ("\x1b[31m" in difference) == coloured
    assert ("\x1b[1;31m" in next(line for line in shown.splitlines() if "The step is" in line)) == coloured

"""Runs that repeat one another: which are, and what the intervals of their means hold."""

from __future__ import annotations

import pytest

from diag.collectors.records import Manifest
from diag.diagnoses.repeats import Repeats, difference_of, groups_of
from diag.diagnoses.setups import Setup, repeat, setup_of
from diag.show.repeats import is_sure, repeats_sentence, repeats_table, spread_sentence

MS = 1e6


def setup(argv: tuple[str, ...] = (), steps: int = 20, **trainer: object) -> Setup:
    return setup_of(
        Manifest(
            run_id="r", created_unix_ns=0, world_size=2, backend="gloo", strategy="fsdp2", mesh={"dp": 2},
            trainer={**trainer, "steps": steps} if trainer else {}, argv=argv,
        )
    )  # fmt: skip


def test_runs_that_were_asked_to_do_the_same_are_groups() -> None:
    setups = {
        "a": setup(prefetch=0, seed=1),
        "b": setup(prefetch=1, seed=1),
        "c": setup(prefetch=0, seed=1, steps=40),
        "d": setup(prefetch=0, seed=1, inject=["straggler"]),
    }
    ns = {name: place * MS for place, name in enumerate((*setups, "traces"), start=1)}
    groups = groups_of(setups, ns)
    assert [group.runs for group in groups] == [("a", "c"), ("b",), ("d",), ("traces",)]
    assert groups[1].settings == {"prefetch": "1"}, "the seed is the same in all"
    assert [group.name for group in groups] == ["a and its repeats", "prefetch 1", "d", "traces"]
    del ns["d"], ns["traces"]
    assert [group.name for group in groups_of(setups, ns)] == ["prefetch 0", "prefetch 1"]


def test_what_a_script_was_asked_to_do_is_in_its_arguments() -> None:
    first, second, other = (
        setup(("run", "--out", out, "jobs/train.py", "--lr", lr))
        for out, lr in (("x", "0.1"), ("y", "0.1"), ("z", "0.2"))
    )
    assert repeat(first, second)
    assert not repeat(first, other)
    assert "arguments" not in groups_of({"a": first, "b": other}, {"a": MS, "b": MS})[0].settings
    assert not repeat(setup(), setup()), "neither says what it was asked to do"


def test_the_interval_is_of_the_runs_and_not_of_their_steps() -> None:
    before = Repeats(("a", "b", "c"), {"prefetch": "0"}, (100 * MS, 110 * MS, 120 * MS))
    after = Repeats(("d", "e", "f"), {"prefetch": "1"}, (60 * MS, 70 * MS, 80 * MS))
    low, mean, high = before.mean_ns or (0, 0, 0)
    half = 4.30 * 10 / 3**0.5  # Student's t of two degrees of freedom
    assert (low / MS, mean / MS, high / MS) == pytest.approx((110 - half, 110, 110 + half))
    found = difference_of(before, after)
    assert found is not None
    half = 2.78 * (2 * 100 / 3) ** 0.5  # of four
    assert [each / MS for each in found] == pytest.approx([-40 - half, -40, -40 + half])
    assert is_sure(found)
    said = repeats_sentence(before, after).replace("\u00a0", " ")
    assert said.startswith("Over the repeats the step is 36% shorter: 110 ms with prefetch 0 (3 runs), 70.0 ms with")
    wide = Repeats(("d", "e"), {"prefetch": "1"}, (60 * MS, 200 * MS))
    assert "no significant difference" in repeats_sentence(before, wide)


def test_a_run_alone_has_no_interval() -> None:
    before = Repeats(("a",), {}, (100 * MS,))
    after = Repeats(("b", "c"), {}, (90 * MS, 92 * MS))
    assert before.mean_ns is None
    assert difference_of(before, after) is None
    assert repeats_sentence(before, after) == spread_sentence(before) == ""
    assert (
        spread_sentence(after).replace("\u00a0", " ").startswith("2 runs of the same settings take 90.0 ms to 92.0 ms")
    )
    alone, repeated = repeats_table((before, after)).rows
    assert [cell is None for cell in alone] == [False, False, False, True, True]
    assert None not in repeated
    same = Repeats(("d", "e"), {}, (90 * MS, 90 * MS))
    assert difference_of(same, same) == (0, 0, 0)

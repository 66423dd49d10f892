"""A long run, accounted a block of steps at a time, has the answer of a run that is held in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.api import Result, open_run
from diag.rundir.policy import BLOCKS
from diag.rundir.step_lines import CollectiveLines
from diag.show.json import to_dict
from tests.simulate import MS, Plan, simulate, write_run

_SMALL = {"most_bytes_at_once": 1, "block_bytes": 1, "least_block_steps": 12, "detailed_bytes": 20_000, "stretches": 4}


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _SMALL.items():
        monkeypatch.setitem(vars(BLOCKS), name, value)


def _plan(**changes: Any) -> Plan:
    slow = {"extra": lambda step, rank: {"forward": 15 * MS} if rank == 2 and step % 3 else {}}
    return Plan(**{"ranks": 3, "steps": 64, "jitter": 0.1, **slow, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(simulate(_plan()), tmp_path_factory.mktemp("long") / "run").root


@pytest.fixture(scope="module")
def whole(run: Path) -> Result:
    return open_run(run)


def test_every_step_has_the_account_that_it_has_in_memory(run: Path, whole: Result, in_blocks: None) -> None:
    assert not whole.tables.long
    result = open_run(run)
    assert result.tables.long
    for step, expected in zip(result.attribution.steps, whole.attribution.steps, strict=True):
        assert list(step.parts) == list(expected.parts)
        assert step.path.pieces() == expected.path.pieces()
        assert (step.blames, step.waited_ns, step.note) == (expected.blames, expected.waited_ns, expected.note)


def test_the_answer_is_the_same(run: Path, whole: Result, in_blocks: None) -> None:
    answer, expected = to_dict(open_run(run)), to_dict(whole)
    for name in ("verdict", "critical_path", "findings", "not_found", "stage_frontier", "scheduling"):
        assert answer[name] == expected[name], name
    assert answer["verdict"]["culprit"] == {"ranks": [2], "hosts": expected["verdict"]["culprit"]["hosts"]}


def test_pieces_and_calls_are_kept_for_some_steps(run: Path, whole: Result, in_blocks: None) -> None:
    kept = open_run(run).attribution
    assert kept.detailed is not None
    assert 4 <= len(kept.detailed) < 32
    by_step = {(step.rank, step.step): step for step in whole.attribution.rank_steps}
    assert {step.step for step in kept.rank_steps} == kept.detailed
    for step in kept.rank_steps:
        expected = by_step[step.rank, step.step]
        assert np.array_equal(step.segments.start_ns, expected.segments.start_ns)
        assert list(step.collectives) == list(expected.collectives)
    assert list(kept.collectives) == [met for met in whole.attribution.collectives if met.step in kept.detailed]


def test_a_file_out_of_order_is_read_as_a_whole(run: Path, whole: Result, in_blocks: None, tmp_path: Path) -> None:
    shuffled = write_run(simulate(_plan()), tmp_path / "run")
    file = shuffled.ranks()[1].collectives
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[30:], *lines[:30]]))
    answer, expected = to_dict(open_run(shuffled.root)), to_dict(whole)
    assert answer["verdict"] == expected["verdict"]
    assert answer["critical_path"] == expected["critical_path"]


def test_a_last_line_that_was_not_written_is_a_gap(in_blocks: None, tmp_path: Path) -> None:
    killed = write_run(simulate(_plan()), tmp_path / "run")
    file = killed.ranks()[1].collectives
    file.write_bytes(file.read_bytes()[:-20])
    result = open_run(killed.root)
    assert any("truncated" in gap.reason for gap in result.coverage.skipped)
    assert result.verdict.culprit_ranks == (2,)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), max_size=60),
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from((1, 64, 5000)),
)
def test_the_rows_of_some_steps_are_found_wherever_they_are(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int]], first: int, more: int, searched: int
) -> None:
    """``lines``: how far the step is from the one before, and the length of a name in it."""
    path = tmp_path_factory.mktemp("lines") / "collectives.jsonl"
    steps = np.cumsum([ahead for ahead, _ in lines]).tolist()
    path.write_text("".join(_line(step, "g" * length) for step, (_, length) in zip(steps, lines, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(BLOCKS), "searched_bytes", searched)
        read = CollectiveLines(path, path.parent).of_steps([(first, first + more)])
    assert not read.gaps
    assert read.rows.step.tolist() == [step for step in steps if first <= step < first + more]


def test_a_file_whose_order_is_disturbed_is_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "collectives.jsonl"
    lines = [_line(step, "g") for step in (*range(50), 7, *range(50, 100))]
    path.write_text("".join(lines))
    rows = CollectiveLines(path, tmp_path).of_steps([(40, 60)]).rows
    assert rows.step.tolist() == list(range(40, 60))
    path.write_text("".join(lines[50:] + lines[:50]))
    assert not CollectiveLines(path, tmp_path).ordered


def _line(step: int, group: str) -> str:
    return (
        json.dumps({"step": step, "rows": [[group, 0, "all_reduce", 4, "", step, step + 1, None, None, True]]}) + "\n"
    )

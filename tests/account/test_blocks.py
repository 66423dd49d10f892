"""A long run, accounted a block of steps at a time, has the answer of a run that is held in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diag.account import blocks
from diag.account.stalls import stalled_steps
from diag.api import Result, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.records import EVALUATION, PhaseRow
from diag.model.accounts import Attribution
from diag.rundir.policy import BLOCKS
from diag.rundir.step_lines import CollectiveLines
from diag.rundir.tables import Tables
from diag.show.json import to_dict
from diag.show.policy import PAGE
from tests.copies import replace
from tests.simulate import MS, SMALL_BLOCKS, Plan, simulate, write_run


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL_BLOCKS.items():
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


def test_a_stall_is_left_out_of_both(in_blocks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def extra(step: int, rank: int) -> dict[str, int]:
        stalls = rank == 1 and step == 40
        return {"forward": 10_000 * MS if stalls else 400 * MS if rank == 2 else 0}

    run = write_run(simulate(_plan(extra=extra)), tmp_path / "run").root
    result = open_run(run)
    monkeypatch.undo()
    whole = open_run(run)
    assert (result.tables.long, whole.tables.long) == (True, False)
    assert result.attribution.counted.numbers == whole.attribution.counted.numbers
    assert 40 not in result.attribution.counted.numbers
    assert stalled_steps(result.attribution)[40][1] == 1
    answer, expected = to_dict(result), to_dict(whole)
    for name in ("verdict", "critical_path", "findings", "stage_frontier"):
        assert answer[name] == expected[name], name
    assert answer["verdict"]["culprit"]["ranks"] == [2]


def test_a_step_without_detail_lists_the_culprits_that_cost(run: Path, whole: Result, in_blocks: None) -> None:
    steps, expected = to_dict(open_run(run))["steps"], to_dict(whole)["steps"]
    for step, in_full in zip(steps, expected, strict=True):
        least_ns = 0 if step["ranks"] else PAGE.least_json_culprit_share * step["dur_ns"]
        assert step["culprits"] == [culprit for culprit in in_full["culprits"] if culprit["ns"] >= least_ns]
    assert sum(len(step["culprits"]) for step in steps) < sum(len(step["culprits"]) for step in expected)


def test_a_block_in_which_no_step_counts_changes_nothing(in_blocks: None, tmp_path: Path) -> None:
    tables = simulate(_plan())
    evaluating = {
        rank: replace(
            of_rank,
            steps=[
                replace(step, phases=[*step.phases, PhaseRow(EVALUATION, step.end_ns - 2, step.end_ns - 1)])
                if 15 < step.step < 25
                else step
                for step in of_rank.steps
            ],
        )
        for rank, of_rank in tables.ranks.items()
    }
    root = write_run(replace(tables, ranks=evaluating), tmp_path / "run").root
    answer = open_run(root)
    assert [step.step for step in answer.attribution.steps if step.note] == [0, 1, *range(16, 25)]
    assert answer.examination.scheduling.numbers == answer.examination.shares.numbers
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(BLOCKS), "most_bytes_at_once", 1 << 30)
        assert to_dict(open_run(root))["findings"] == to_dict(answer)["findings"]


def test_a_run_of_few_steps_is_read_at_once_up_to_another_size(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(BLOCKS), "most_bytes_at_once", 1)
    assert not open_run(run).tables.long
    monkeypatch.setitem(vars(BLOCKS), "most_bytes_of_few_steps", 1)
    assert open_run(run).tables.long


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


def test_collectives_are_kept_for_the_same_steps(
    run: Path, whole: Result, in_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path))
    for _ in ("read", "as they were kept"):
        result = open_run(run)
        detailed = result.attribution.detailed
        assert detailed is not None
        for rank, of_rank in result.tables.ranks.items():
            recorded = whole.tables.ranks[rank].rows
            assert list(of_rank.rows) == list(recorded.take(np.isin(recorded.step, list(detailed))))
            assert of_rank.groups == whole.tables.ranks[rank].groups


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
@example(lines=[], first=0, more=3, searched=1)
@example(lines=[(2, 0), (1, 9)], first=3, more=1, searched=1)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), min_size=20, max_size=60),  # of a few, none is halved
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
        patch.setitem(vars(RECORDED_FILES), "searched_bytes", searched)
        read = CollectiveLines(path, path.parent).of_steps([(first, first + more)])
    assert not read.gaps
    assert read.rows.step.tolist() == [step for step in steps if first <= step < first + more]


@pytest.fixture
def accounted(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The steps of each account that was made."""
    made: list[list[int]] = []
    attribute = blocks.attribute

    def counting(tables: Tables, *given: Any) -> Attribution:
        made.append(sorted(tables.ranks[0].recorded))
        return attribute(tables, *given)

    monkeypatch.setattr(blocks, "attribute", counting)
    return made


def test_what_was_accounted_is_kept(in_blocks: None, accounted: list[list[int]], tmp_path: Path) -> None:
    root = write_run(simulate(_plan()), tmp_path / "run").root
    first = to_dict(open_run(root))
    assert len(accounted) == 8
    second = to_dict(open_run(root))
    assert len(accounted) == 8
    of_now = dict.fromkeys(("run", "state"))  # when it was read
    assert {**first, **of_now} == {**second, **of_now}


def test_a_run_that_grew_costs_what_is_new(
    in_blocks: None, accounted: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    layout = write_run(simulate(_plan()), tmp_path / "run")
    later = {}
    for files in layout.ranks().values():
        for path in (files.steps, files.collectives):
            later[path] = path.read_bytes()
            path.write_bytes(b"".join(later[path].splitlines(keepends=True)[:48]))
    open_run(layout.root)
    for of_one in (tmp_path / "cache").glob("*/*/block-*.bin"):
        of_one.unlink()  # those before the last are also kept as one
    for path, content in later.items():
        path.write_bytes(content)
    accounted.clear()
    grown = open_run(layout.root)
    assert [steps[-1] for steps in accounted] == [48, 56, 63]  # the last block before reached into the new steps
    afresh = open_run(write_run(simulate(_plan()), tmp_path / "other").root)
    assert to_dict(grown)["steps"] == to_dict(afresh)["steps"]
    assert to_dict(grown)["verdict"] == to_dict(afresh)["verdict"]


def test_what_is_damaged_or_changed_is_accounted_again(
    in_blocks: None, accounted: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    root = write_run(simulate(_plan()), tmp_path / "run").root
    before = to_dict(open_run(root))
    kept = sorted((tmp_path / "cache").glob("*/*/block-*.bin"))
    (of_seven,) = (tmp_path / "cache").glob("*/*/blocks-*.bin")
    assert len(kept) == 8
    accounted.clear()
    _damage(of_seven, 0.5)
    assert to_dict(open_run(root))["steps"] == before["steps"]
    assert not accounted  # each of the seven is kept as well
    for at, file in enumerate((of_seven, *kept[:4])):
        _damage(file, at / 5)
    kept[4].write_bytes(kept[5].read_bytes())
    assert to_dict(open_run(root))["steps"] == before["steps"]
    assert len(accounted) == 5
    file = RunLayout(root).ranks()[1].collectives
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        b"".join([*lines[:20], lines[20].replace(b'"all_gather",4000000', b'"all_gather",4000001'), *lines[21:]])
    )
    accounted.clear()
    open_run(root)
    assert len(accounted) == 1


def _damage(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 1
    file.write_bytes(content)


def test_blocks_that_are_kept_together_give_what_each_of_them_gives(
    in_blocks: None, accounted: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the means and medians over the blocks, which count each of them."""
    tables = simulate(_plan(steps=80))
    busy = {
        rank: replace(
            of_rank,
            steps=[
                replace(step, on_cpu_ns=step.step * MS // 8, queued_ns=step.step % 7 * MS) for step in of_rank.steps
            ],
        )
        for rank, of_rank in tables.ranks.items()
    }
    root = write_run(replace(tables, ranks=busy), tmp_path / "run").root
    monkeypatch.setenv("DIAG_CACHE", "off")
    expected = open_run(root)
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(vars(BLOCKS), "kept_together", 4)
    open_run(root)
    for of_one in (tmp_path / "cache").glob("*/*/block-*.bin"):
        of_one.unlink()
    accounted.clear()
    result = open_run(root)
    assert [steps[-1] for steps in accounted] == [72, 79]  # the last two of ten: the others came from two files
    of_now = dict.fromkeys(("run", "state"))  # when it was read
    assert {**to_dict(result), **of_now} == {**to_dict(expected), **of_now}
    assert result.attribution.collectives == expected.attribution.collectives
    for ours, theirs in zip(result.attribution.rank_steps, expected.attribution.rank_steps, strict=True):
        assert (ours.rank, ours.step, list(ours.collectives)) == (theirs.rank, theirs.step, list(theirs.collectives))
    scheduling = expected.examination.scheduling
    assert scheduling.ranks
    for rank, of_rank in scheduling.ranks.items():
        for name in of_rank.__struct_fields__:
            np.testing.assert_equal(getattr(result.examination.scheduling.ranks[rank], name), getattr(of_rank, name))


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

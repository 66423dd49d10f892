"""The steps of a long run that were read before are kept, and trusted only while their files begin with these bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.collectors.layout import RankLayout, part_of
from diag.collectors.records import StepRecord
from diag.rundir.columns import Steps, StepsBuilder
from diag.rundir.policy import BLOCKS
from diag.rundir.read_before import read_steps, read_steps_of
from tests.simulate import MS, Plan, simulate, write_run

STEPS = 24


class Kept(dict[str, bytes]):
    """A store in memory."""

    def load(self, name: str) -> bytes | None:
        return self.get(name)

    def save(self, name: str, data: bytes) -> None:
        self[name] = data


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    planted = {"extra": lambda step, rank: {"gc": 2 * MS, "checkpoint": MS} if step % 5 == 3 else {}}
    run = write_run(simulate(Plan(ranks=1, steps=STEPS, **planted)), tmp_path_factory.mktemp("run") / "run")
    return run.ranks()[0].steps.read_bytes().splitlines(keepends=True)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the steps that were decoded."""
    numbers: list[int] = []
    add = StepsBuilder.add

    def counting(self: StepsBuilder, records: Sequence[StepRecord]) -> None:
        numbers.extend(record.step for record in records)
        add(self, records)

    monkeypatch.setattr(StepsBuilder, "add", counting)
    return numbers


def _rank(folder: Path) -> RankLayout:
    files = RankLayout(folder / "run" / "ranks" / "00000")
    files.folder.mkdir(parents=True)
    return files


def _read(files: RankLayout, store: Kept | None) -> Steps:
    steps, gaps = read_steps(files, store)
    assert not gaps
    return steps


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, STEPS), min_size=1, max_size=4), st.integers(0, STEPS))
def test_steps_are_the_same_however_often_they_were_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], looks: list[int], first_of_part: int
) -> None:
    files, store = _rank(tmp_path_factory.mktemp("grows")), Kept()
    for count in (*sorted(looks), STEPS):
        files.steps.write_bytes(b"".join(lines[:count][:first_of_part]))
        if count > first_of_part:
            part_of(files.steps, 1).write_bytes(b"".join(lines[first_of_part:count]))
        assert list(_read(files, store)) == list(_read(files, None))


def test_only_new_lines_are_decoded(tmp_path: Path, lines: list[bytes], decoded: list[int]) -> None:
    files, store = _rank(tmp_path), Kept()
    for count, new in ((16, range(16)), (17, range(16, 17)), (STEPS, range(16, STEPS)), (STEPS, ())):
        files.steps.write_bytes(b"".join(lines[:count]))
        decoded.clear()
        assert _read(files, store).step.tolist() == list(range(count))
        assert decoded == list(new)  # a single new line is not kept


def test_a_line_that_is_not_written_to_its_end_is_not_kept(
    tmp_path: Path, lines: list[bytes], decoded: list[int]
) -> None:
    files, store = _rank(tmp_path), Kept()
    whole = b"".join(lines)
    files.steps.write_bytes(whole[:-20])
    assert [gap.reason for gap in read_steps(files, store)[1]]
    assert not store
    files.steps.write_bytes(whole)
    assert len(_read(files, store)) == STEPS


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace(b'"step":3,', b'"step":2,'),
        lambda content: content[: content.index(b'{"step":9,')],
        lambda content: content[content.index(b"\n") + 1 :],
    ],
    ids=["a digit", "the end is gone", "the begin is gone"],
)
def test_a_file_with_other_content_is_read_from_its_begin(
    tmp_path: Path, lines: list[bytes], change: Callable[[bytes], bytes]
) -> None:
    files, store = _rank(tmp_path), Kept()
    files.steps.write_bytes(b"".join(lines[:16]))
    _read(files, store)
    files.steps.write_bytes(change(b"".join(lines)))
    assert list(_read(files, store)) == list(_read(files, None))


def test_a_removed_oldest_part_is_not_read_from_what_was_kept(tmp_path: Path, lines: list[bytes]) -> None:
    files, store = _rank(tmp_path), Kept()
    files.steps.write_bytes(b"".join(lines[:8]))
    part_of(files.steps, 1).write_bytes(b"".join(lines[8:]))
    _read(files, store)
    files.steps.unlink()
    assert _read(files, store).step.tolist() == list(range(8, STEPS))


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_damaged_data_gives_steps_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], at: float, flipped: int
) -> None:
    files, store = _rank(tmp_path_factory.mktemp("damaged")), Kept()
    files.steps.write_bytes(b"".join(lines))
    _read(files, store)
    ((name, data),) = store.items()
    damaged = bytearray(data)
    damaged[int(at * len(data))] ^= flipped
    store[name] = bytes(damaged)
    assert len(_read(files, store)) == STEPS


@pytest.mark.parametrize("at_once", [1, 7, 30, 4096])
def test_steps_that_are_read_together_are_those_of_each_rank(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    huge = lines[3].replace(b'"end_ns":', b'"end_ns":3000000000000000000,"was":')
    contents = {
        0: lines,
        1: lines[:5],
        2: [],
        4: [*lines[:3], huge, *lines[4:]],
        5: [*lines[:9], b"{\n"],
        6: lines[7:],
        7: [line.replace(b'"forward"', b'"optimizer"') for line in lines],
    }
    ranks = {rank: RankLayout(tmp_path / "run" / "ranks" / f"{rank:05d}") for rank in range(8)}
    for rank, of_rank in contents.items():
        ranks[rank].folder.mkdir(parents=True)
        ranks[rank].steps.write_bytes(b"".join(of_rank))
    monkeypatch.setitem(vars(BLOCKS), "steps_at_once", at_once)
    together = read_steps_of(ranks, None)
    assert list(together) == list(ranks)
    for rank, files in ranks.items():
        alone, gaps = read_steps(files, None)
        assert list(together[rank][0]) == list(alone)
        assert together[rank][1] == gaps
    assert [rank for rank in ranks if together[rank][1]] == [4, 5]
    assert len(together[4][0]) == STEPS - 1
    assert not together[2][0]
    assert not together[3][0]

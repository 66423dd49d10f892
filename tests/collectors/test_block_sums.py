"""Sums of durations for the summaries: blocks of collectives that are the same on all ranks, whenever these look."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch.distributed as dist

from diag.collectors.block_sums import SumsOfBlocks, chosen
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.policy import RECORDING
from diag.collectors.records import CALLS_OF_A_SUM, BlockSums, DurationRow
from diag.collectors.step_lines import StepSummary
from tests.collectors.test_durations import Polled, Ring
from tests.many_devices import Devices, block_sums, events, identity_of, records_of

RANKS = [0, 1]


@pytest.fixture(autouse=True)
def _in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)


def columns(sums: BlockSums) -> list[list[int]]:
    """Numbers, microseconds, and bits of what is missing, if there are any."""
    words = np.frombuffer(b64decode(sums.values), "<u4").reshape(-1, sums.count)
    columns: list[list[int]] = words.tolist()
    return columns


def summed(path: Path, ring: Ring) -> tuple[Polled, SumsOfBlocks]:
    sums = SumsOfBlocks()
    return Polled(path, ring, sums=sums), sums


def row(seq: int, group: str = "0", op: str = "all_reduce", took_ns: int = 10_000) -> DurationRow:
    return DurationRow(group, seq, op, 4, "float32", 1_000 * seq, took_ns)


def add(sums: SumsOfBlocks, rows: list[DurationRow], awaited: set[tuple[str, int]] | None = None) -> None:
    sums.add(rows, lambda _group: RANKS, awaited or set())


def test_ranks_that_look_at_different_moments_write_equal_blocks(tmp_path: Path) -> None:
    ring = Ring()
    often, its = summed(tmp_path / "often.jsonl", ring)
    seldom, others = summed(tmp_path / "seldom.jsonl", ring)
    for number in range(500):
        ring.ended(took_ms=1 + number / 100)
        if number % 7 == 3:
            often.poll.look()
        if number == 133:
            seldom.poll.look()
    often.poll.look()
    seldom.poll.look()
    one, other = its.take(), others.take()
    assert [columns(sums)[:2] for sums in one] == [columns(sums)[:2] for sums in other]
    (sums,) = one
    numbers, took_us, missing = columns(sums)
    assert (sums.group, sums.ranks, numbers) == ("0", 2, list(range(500 // CALLS_OF_A_SUM)))
    assert missing == [1, *[0] * (len(numbers) - 1)], "the recorder counts from 1"
    expected = sum(1_000 + 10 * at for at in range(CALLS_OF_A_SUM - 1, 2 * CALLS_OF_A_SUM - 1))
    assert took_us[1] == pytest.approx(expected, abs=1)
    assert its.take() == [], "each block once"


def test_a_block_ends_when_no_duration_of_it_is_awaited(tmp_path: Path) -> None:
    ring = Ring()
    polled, sums = summed(tmp_path / "d.jsonl", ring)
    late = ring.call()
    ring.ended(*["nccl:all_reduce"] * 100)
    polled.poll.look()
    assert [columns(one)[0] for one in sums.take()] == [[1, 2]]
    late.update(duration_ms=2.0, retired=True)
    polled.poll.look()
    ((numbers, _, missing),) = [columns(one) for one in sums.take()]
    assert (numbers, missing) == ([0], [1]), "nothing is missing but number 0, which the recorder does not use"


def test_calls_that_the_recorder_overwrote_are_marked(tmp_path: Path) -> None:
    ring = Ring(size=64)
    polled, sums = summed(tmp_path / "d.jsonl", ring)
    ring.ended(*["nccl:all_reduce"] * 40)
    polled.poll.look()
    ring.ended(*["nccl:all_reduce"] * 88)
    polled.poll.look()
    assert sum(line.lost for line in polled.lines()) == 24
    ((numbers, _, missing),) = [columns(one) for one in sums.take()]
    assert numbers == [0, 1, 2, 3]
    assert [of_block.bit_count() for of_block in missing] == [1, 23, 1, 0]


def test_what_synchronises_nobody_is_left_out() -> None:
    sums = SumsOfBlocks()
    add(sums, [row(seq, op="broadcast" if seq % 4 == 1 else "all_gather") for seq in range(2 * CALLS_OF_A_SUM)])
    sums.add([row(seq, "alone") for seq in range(99)], lambda _group: [3], set())
    ((numbers, took_us, missing),) = [columns(one) for one in sums.take()]
    assert (numbers, took_us) == ([0], [10 * CALLS_OF_A_SUM * 3 // 4])
    assert missing == [0x22222222]


def test_groups_are_told_apart_by_their_ranks() -> None:
    sums = SumsOfBlocks()
    for ranks in ([0, 1], [0, 2]):
        sums.add([row(seq, "mesh") for seq in range(40)], lambda _group, ranks=ranks: ranks, set())  # type: ignore[misc]
    one, other = sums.take()
    assert (one.group, one.ranks) == (other.group, other.ranks) == ("mesh", 2)
    assert one.ranks_crc != other.ranks_crc


def test_a_new_group_of_the_same_name_begins_its_blocks_anew() -> None:
    sums = SumsOfBlocks()
    add(sums, [row(seq) for seq in range(100)])
    assert columns(sums.take()[0])[0] == [0, 1, 2]
    add(sums, [row(seq, took_ns=20_000) for seq in range(100)])
    assert columns(sums.take()[0]) == [[0, 1, 2], [20 * CALLS_OF_A_SUM] * 3]


def test_of_too_many_blocks_all_ranks_keep_the_same_ones() -> None:
    """One rank writes a line for each 3,000 collectives, the other for each 10,000."""
    kept = []
    for a_line in (3_000, 10_000):
        sums, found = SumsOfBlocks(), set[int]()
        for first in range(0, 90_000, a_line):
            add(sums, [row(seq) for seq in range(first, first + a_line)])
            add(sums, [row(seq, "small") for seq in range(first // 100, (first + a_line) // 100)])
            taken = sums.take()
            assert sum(one.count for one in taken) <= RECORDING.most_blocks
            found.update(*[columns(one)[0] for one in taken if one.group == "0"])
            assert {one.group for one in taken} >= {"0"}
        kept.append(found)
    few, many = sorted(kept, key=len)
    assert len(few) > 50
    assert few <= many


def test_which_blocks_are_kept_is_spread_over_a_step() -> None:
    """Where a step has a power of two of them, or any other number."""
    for a_step in (8, 10, 16, 64):
        places = [number % a_step for number in range(64 * a_step) if chosen(number, 4)]
        assert len(set(places)) > a_step // 3
    assert all(chosen(number, 0) for number in range(100))


def test_more_groups_than_a_line_has_blocks_fit() -> None:
    sums = SumsOfBlocks()
    for name in range(3 * RECORDING.most_blocks):
        add(sums, [row(seq, str(name)) for seq in range(40)])
    assert sum(one.count for one in sums.take()) <= RECORDING.most_blocks


def test_a_line_of_the_summary_has_them(tmp_path: Path) -> None:
    job = Devices(2, steps=100, timed=True)
    of, ranks = events(job), list(range(2))
    expected = block_sums(job, of, slice(0, 50))
    for rank in ranks:
        sums = SumsOfBlocks()
        file = LineFile(tmp_path / f"{rank}.jsonl", Budget(1 << 20), Complaints(rank))
        summary = StepSummary(file, identity_of(job, rank), 50, durations=sums.take)
        rows: list[DurationRow] = []
        lines: list[dict[str, Any]] = []
        for step, on_device, calls in records_of(job, of, rank):
            for call, met in zip(calls, on_device.collectives, strict=True):
                took_ns = met.end_ns - met.start_ns
                rows.append(DurationRow("0", call.seq, call.op, 4, "float32", call.start_ns, took_ns))
            sums.add(rows, lambda _group: ranks, set())
            rows = []
            summary.passed(on_device)
            summary.add(step, calls)
        summary.close()
        lines = [msgspec.json.decode(line) for line in (tmp_path / f"{rank}.jsonl").read_bytes().splitlines()]
        assert [len(line["durations"]) for line in lines] == [1, 1]
        first = msgspec.convert(lines[0]["durations"][0], BlockSums)
        (told,) = expected[rank]
        assert (first.group, first.ranks, first.ranks_crc) == (told.group, told.ranks, told.ranks_crc)
        count = min(first.count, told.count)  # a block ends with the first call of the next one
        assert count >= 5
        assert columns(first)[0][:count] == columns(told)[0][:count]
        assert np.allclose(columns(first)[1][:count], columns(told)[1][:count], atol=1)

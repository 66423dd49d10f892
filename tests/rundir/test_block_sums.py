"""Sums of durations as they are read from summaries: which blocks can be compared, and what they stand for."""

from __future__ import annotations

from array import array
from base64 import b64decode
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import diag.rundir.block_sums as block_sums_read
from diag.account.durations import durations_of
from diag.collectors.files import encode
from diag.collectors.records import CALLS_OF_A_SUM, BlockSums, SummaryLine
from diag.collectors.step_lines import packed
from diag.rundir.block_sums import BlocksRead, durations_in
from diag.rundir.durations import with_ranks
from diag.rundir.policy import RUN_READING
from diag.rundir.summaries import read_summaries
from tests.many_devices import Devices, block_sums, events, identity_of, write_devices

SECOND_NS = 10**9


def blocks(
    took_us: dict[int, int],
    missing: dict[int, int] | None = None,
    name: str = "0",
    ranks: int = 4,
    crc: int = 7,
    calls_a_second: float = 64.0,
) -> BlocksRead:
    """By number."""
    numbers = sorted(took_us)
    columns = [numbers, [took_us[number] for number in numbers]]
    if missing:
        columns.append([missing.get(number, 0) for number in numbers])
    begin_ns, end_ns = (
        SECOND_NS + round(SECOND_NS * number * CALLS_OF_A_SUM / calls_a_second) for number in (numbers[0], numbers[-1])
    )
    values = b64decode(packed(array("I", column) for column in columns))
    return BlocksRead(name, ranks, crc, len(numbers), begin_ns, end_ns, values)  # type: ignore[arg-type]


def compared(*of_ranks: list[BlocksRead], spent_s: float = 10.0) -> tuple[dict[str, list[int]], list[float]]:
    """The numbers of the blocks that are compared, by group; and the waiting of each rank in seconds."""
    job = Devices(len(of_ranks))
    identities = [identity_of(job, rank) for rank in range(job.ranks)]
    sums = durations_in(of_ranks, range(job.ranks), identities, round(spent_s * SECOND_NS))
    if sums is None:
        return {}, []
    account = durations_of(with_ranks(sums.read, sums.ranks), sums.read.sizes)
    numbers: dict[str, list[int]] = {}
    for group, seq in account.met.sort("group", "seq").select("group", "seq").iter_rows():
        numbers.setdefault(group, []).append(seq)
    return numbers, (account.wait_ns / SECOND_NS).tolist()


def test_only_blocks_of_the_same_collectives_are_compared() -> None:
    usual = blocks(dict.fromkeys(range(8), 1000))
    lost = blocks(dict.fromkeys(range(8), 1000), {2: 1, 5: 3})
    other = blocks(dict.fromkeys(range(8), 1000), {5: 3})
    assert compared([usual], [usual], [usual], [usual])[0] == {"0": list(range(8))}
    assert compared([usual], [lost], [usual], [usual])[0] == {"0": [0, 1, 3, 4, 6, 7]}
    assert compared([lost], [lost], [lost], [other])[0] == {"0": [0, 1, 3, 4, 5, 6, 7]}, "all lost the same ones"


def test_blocks_that_a_rank_does_not_have_or_has_twice_are_left_out() -> None:
    usual, few = blocks(dict.fromkeys(range(6), 1000)), blocks(dict.fromkeys((1, 2, 4), 1000))
    assert compared([usual], [few], [usual], [usual])[0] == {"0": [1, 2, 4]}
    again = blocks({1: 1000})
    assert compared([usual], [few, again], [usual], [usual])[0] == {"0": [2, 4]}
    assert compared([usual], [], [usual], [usual]) == ({}, []), "one of four ranks is missing"


def test_of_a_large_group_nearly_all_ranks_are_enough() -> None:
    usual = [blocks(dict.fromkeys(range(6), 1000), ranks=100)]
    some = int(100 * RUN_READING.straggling_ranks_share)
    assert compared(*[usual] * (100 - some), *[[]] * some)[0] == {"0": list(range(6))}
    assert compared(*[usual] * (99 - some), *[[]] * (1 + some))[0] == {}


def test_durations_stand_for_all_collectives_of_the_steps() -> None:
    """Of a group only every fourth block is known, of the other each: ranks 0 and 1 wait for 2 and 3 in both, 10 ms in
    each block, 2 blocks a second."""
    often = blocks(dict.fromkeys(range(0, 40, 4), 15000), name="often")
    seldom = blocks(dict.fromkeys(range(10), 15000), name="seldom")
    last = [blocks(dict.fromkeys(range(0, 40, 4), 5000), name="often")]
    last += [blocks(dict.fromkeys(range(10), 5000), name="seldom")]
    numbers, waits = compared([often, seldom], [often, seldom], last, last, spent_s=100)
    assert {group: len(of_group) for group, of_group in numbers.items()} == {"often": 10, "seldom": 10}
    assert waits == pytest.approx([4.0, 4.0, 0.0, 0.0], rel=0.01)


def test_without_a_rate_the_durations_are_as_measured() -> None:
    one, late = blocks({3: 15_000}), blocks({3: 5_000})
    assert compared([one], [one], [one], [late])[1] == pytest.approx([0.01, 0.01, 0.01, 0.0])


def test_groups_of_one_name_are_told_apart() -> None:
    one, other = (blocks(dict.fromkeys(range(4), 1000), ranks=2, crc=crc) for crc in (1, 2))
    numbers, _ = compared([one], [one], [other], [other])
    assert len(numbers) == 2
    assert all(of_group == list(range(4)) for of_group in numbers.values())


def test_only_so_many_are_compared_spread_over_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sums_read, "RUN_READING", SimpleNamespace(most_block_sums=48, straggling_ranks_share=0.0))
    many, few = blocks(dict.fromkeys(range(64), 1000), name="many"), blocks(dict.fromkeys(range(2), 1000), name="few")
    numbers, _ = compared(*[[many, few]] * 4)
    assert numbers["few"] == [0, 1]
    assert len(numbers["many"]) == 8
    assert np.diff(numbers["many"]).tolist() == [8] * 7


@pytest.mark.parametrize(
    "damage",
    [{"values": b"123"}, {"count": 0}, {"count": 2**40}, {"ranks": -1}, {"ranks": 1 << 60}, {"end_ns": -5}],
)
def test_damaged_ones_are_left_out(damage: dict[str, object]) -> None:
    usual = blocks(dict.fromkeys(range(4), 1000))
    damaged = replace(usual, **damage)  # type: ignore[arg-type]
    numbers, _ = compared([usual, damaged], [usual], [usual], [usual])
    assert numbers == {"0": list(range(4))}


def test_they_are_read_from_the_lines_of_the_steps(tmp_path: Path) -> None:
    job = Devices(3, timed=True, waits_seen=0.0)
    read = read_summaries(write_devices(job, tmp_path))
    written = [block_sums(job, events(job), slice(first, first + 50)) for first in (0, 50)]
    for rank, of_rank in enumerate(read.durations):
        assert [{**asdict(one), "values": b""} for one in of_rank] == [
            {**asdict(of_line[rank][0]), "values": b""} for of_line in written
        ]
        assert [one.values for one in of_rank] == [b64decode(of_line[rank][0].values) for of_line in written]


def test_a_run_of_an_older_version_has_none(tmp_path: Path) -> None:
    layout = write_devices(Devices(3), tmp_path)
    for rank in range(3):
        path = layout.rank(rank).summary
        path.write_bytes(path.read_bytes().replace(b',"durations":[]', b""))
        assert b"durations" not in path.read_bytes()
    assert read_summaries(layout).durations == ()
    assert b'"durations":[]' in encode(SummaryLine(identity_of(Devices(3), 0), 0, 0, 0, [], ""))
    assert BlockSums.__dataclass_fields__.keys() == BlocksRead.__dataclass_fields__.keys()

"""Durations that NCCL Inspector writes while a rank trains: read as its file grows, and summed for the summaries."""

from __future__ import annotations

import json
import os
import socket
import time
from base64 import b64decode
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from diag.collectors.block_sums import SumsOfBlocks
from diag.collectors.budget import Complaints
from diag.collectors.durations import INSPECTED
from diag.collectors.inspector_tail import FOLDER_VARIABLE, InspectorTail, tail_of
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import BACKWARD, CALLS_OF_A_SUM, FORWARD, BlockSums, DurationRow
from diag.rundir.block_sums import BlocksRead, durations_in
from diag.rundir.durations import INSPECTOR
from diag.rundir.inspector import read_inspector
from diag.summaries import open_summaries
from tests.collectors.test_block_sums import columns
from tests.inspector.files import collective, header, lines, metadata
from tests.many_devices import Devices, block_sums, events, identity_of, write_devices

HOST = socket.gethostname()
BEGAN_US = time.time_ns() // 1000
VERSIONS = ["v4.0", "v4.2", "v4.3"]


class Inspected:
    """A process that Inspector records, and its tail."""

    def __init__(self, folder: Path, rank: int = 0, ranks: int = 2, version: str = "v4.2") -> None:
        self.pid, self.rank, self.ranks, self.version = 90 + rank, rank, ranks, version
        folder.mkdir(exist_ok=True)
        self.file = folder / f"{HOST}-pid{self.pid}.log"
        self.sums, self.complaints = SumsOfBlocks(), Complaints(rank)
        self.kept: list[DurationRow] = []
        add = self.sums.add

        def keep(rows: list[DurationRow], *more: Any) -> None:
            self.kept += rows
            add(rows, *more)

        self.sums.add = keep  # type: ignore[assignment, method-assign]
        self.tail = InspectorTail(folder, self.complaints, self.sums, BEGAN_US, self.pid)

    def dump(self, records: list[dict[str, Any]], at_s: float = 0, group: str = "0xa") -> str:
        by = metadata(self.version, HOST, self.pid, BEGAN_US + round(1e6 * at_s))
        return lines(self.version, header(group, self.rank, self.ranks), by, records)

    def write(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)

    def taken(self) -> list[list[list[int]]]:
        assert self.complaints.messages == []
        return [columns(sums) for sums in self.sums.take()]


def calls(*numbers: int, took_us: float = 10, op: str = "AllReduce") -> list[dict[str, Any]]:
    return [collective(number, took_us + number, op) for number in numbers]


def expected(block: int, took_us: int = 10) -> int:
    return sum(took_us + number for number in range(CALLS_OF_A_SUM * block, CALLS_OF_A_SUM * (block + 1)))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_collective_is_summed_once_as_the_file_grows(tmp_path: Path, version: str) -> None:
    of = Inspected(tmp_path, version=version)
    of.tail.look()
    text = "".join(of.dump(calls(*range(at, at + 20)), at / 20) for at in range(0, 200, 20))
    for at in range(0, len(text), 777):  # most pieces end within a line
        of.write(text[at : at + 777])
        of.tail.look()
        of.tail.look()
    assert [row.seq for row in of.kept] == list(range(200))
    (found,) = of.taken()
    assert found == [[0, 1, 2, 3, 4], [expected(block) for block in range(5)]]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tail_and_the_reader_of_whole_files_agree(tmp_path: Path, version: str) -> None:
    of = Inspected(tmp_path, version=version)
    ops = ["AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast", "Strange"]
    for op in ops:
        of.write(of.dump(calls(*range(9), op=op)))
        of.write(of.dump(calls(*range(5), op=op), group="0xb"))
    of.tail.look()
    rows = read_inspector([of.file]).rows.select("group", "op", "seq", "duration_ns").rows()
    assert sorted((row.group.split()[0], row.op, row.seq, row.duration_ns) for row in of.kept) == sorted(rows)
    assert len(rows) == 14 * len(ops)


def test_ranks_that_look_at_different_moments_write_equal_blocks(tmp_path: Path) -> None:
    often, seldom = Inspected(tmp_path, 0), Inspected(tmp_path, 1)
    for at in range(0, 300, 10):
        for of in (often, seldom):
            for op in ("AllGather", "ReduceScatter"):
                of.write(of.dump(calls(*range(at, at + 10), op=op), at / 10))
        often.tail.look()
    seldom.tail.look()
    one, other = often.sums.take(), seldom.sums.take()
    assert {sums.group for sums in one} == {"0xa all_gather", "0xa reduce_scatter"}
    assert {(sums.ranks, sums.ranks_crc) for sums in one + other} == {(2, 0)}
    for sums in one:
        same = next(each for each in other if each.group == sums.group)
        assert columns(sums) == columns(same)
        # The clock of dumps: a second for each 10 collectives.
        spent_ns = CALLS_OF_A_SUM * (columns(sums)[0][-1] - columns(sums)[0][0]) / 10 * 1e9
        assert sums.end_ns - sums.begin_ns == pytest.approx(spent_ns, rel=0.1)


@pytest.mark.parametrize("sampled", [True, False])
def test_ranks_that_wrote_different_collectives_are_not_compared(tmp_path: Path, sampled: bool) -> None:
    """As Inspector without a ring buffer does, which writes the newest one of each dump."""
    job = Devices(2)
    read = []
    for rank in range(job.ranks):
        of = Inspected(tmp_path, rank, version="v4.0")
        for at in range(0, 300, 10):
            of.write(of.dump(calls(*([at + 3 * rank] if sampled else range(at, at + 10))), at / 10))
        of.tail.look()
        sums = of.sums.take()
        assert sums
        read.append([BlocksRead(**{**asdict(one), "values": b64decode(one.values)}) for one in sums])
    found = durations_in(read, range(job.ranks), [identity_of(job, rank) for rank in range(job.ranks)], 10**10)
    assert (found is None) == sampled
    assert found is None or found.read.source == INSPECTOR


def test_only_the_file_of_this_process_is_read(tmp_path: Path) -> None:
    one, other = Inspected(tmp_path, 0), Inspected(tmp_path, 1)
    other.write(other.dump(calls(*range(100), took_us=500)))
    (tmp_path / f"not-{HOST}-pid{one.pid}.log").write_text(one.dump(calls(*range(100), took_us=900)))
    (tmp_path / f"{HOST}-pid{one.pid}0.log").write_text(one.dump(calls(*range(100), took_us=900)))
    one.tail.look()
    assert one.kept == []
    one.write(other.dump(calls(*range(100))) + one.dump(calls(*range(40)), at_s=-60) + one.dump(calls(*range(100))))
    one.tail.look()
    assert [row.duration_ns for row in one.kept] == [1000 * (10 + number) for number in range(100)]


@pytest.mark.parametrize("moved", [True, False])
def test_a_file_that_is_rotated_or_cut_is_read_from_its_begin(tmp_path: Path, moved: bool) -> None:
    of = Inspected(tmp_path, version="v4.3")
    of.write(of.dump(calls(*range(100))))
    of.tail.look()
    if moved:
        of.file.rename(tmp_path / "old.log")
        of.tail.look()
    else:
        of.file.write_text("")
    of.write(of.dump(calls(*range(100, 130)), 1))
    of.tail.look()
    of.tail.look()
    assert [row.seq for row in of.kept] == list(range(130))
    assert of.complaints.messages == []


@pytest.mark.parametrize(
    "text",
    [
        '{"coll_perf":{"coll_sn":1,"duration":3}}\n',
        "nccl_collective_exec_time_microseconds 3\n",
        '{"a":1}\n',
        "[" * 999,
    ],
)
def test_an_unknown_format_ends_it_with_one_complaint(tmp_path: Path, text: str) -> None:
    of = Inspected(tmp_path)
    of.write(text * 3 * RECORDING.inspector_strange_lines)
    if not text.endswith("\n"):
        of.write("[" * RECORDING.inspector_bytes)
    for _ in range(5):
        of.tail.look()
        of.tail.poll()
    assert len(of.complaints.messages) == 1
    assert "NCCL Inspector" in of.complaints.messages[0]
    assert of.kept == []


def test_a_damaged_line_costs_that_line(tmp_path: Path) -> None:
    of = Inspected(tmp_path)
    damaged = ["{\n", '{"coll_perf":{"coll_sn":9}}\n', "\n", of.dump(calls(50))[:-9] + "\n", "\0\n"]
    for at, text in enumerate(damaged):
        of.write(of.dump(calls(at)) + text)
    of.tail.look()
    assert [row.seq for row in of.kept] == list(range(len(damaged)))
    assert of.complaints.messages == []


def test_repeated_late_and_host_timed_records_do_not_change_a_sum(tmp_path: Path) -> None:
    of = Inspected(tmp_path)
    order = [*range(30), 33, 32, 31, 30, *range(34, 200)]
    of.write(of.dump(calls(*order)))
    of.tail.look()
    of.write(of.dump(calls(3, 190, 199)) + of.dump([collective(200, 5.0, coll_timing_source="kernel_cpu")]))
    of.tail.look()
    (found,) = of.taken()
    assert found == [[0, 1, 2, 3, 4], [expected(block) for block in range(5)]]
    assert len(of.kept) == 200


def test_more_than_can_be_read_leaves_blocks_out_that_other_ranks_leave_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(RECORDING), "inspector_bytes", 1 << 17)
    monkeypatch.setitem(vars(RECORDING), "inspector_backlog_bytes", 1 << 19)
    fast, slow = Inspected(tmp_path, 0, version="v4.3"), Inspected(tmp_path, 1, version="v4.3")
    whole: list[set[int]] = [set(), set()]
    for at in range(0, 40_000, 100):
        for of, looks, found in ((fast, 4, whole[0]), (slow, at % 1_000 == 900, whole[1])):
            of.write(of.dump(calls(*range(at, at + 100), took_us=1), at / 1000))
            for _ in range(looks):
                of.tail.look()
            for sums in of.sums.take():
                numbers, took_us, *missing = columns(sums)
                there = missing[0] if missing else [0] * len(numbers)
                for number, us, bits in zip(numbers, took_us, there, strict=True):
                    assert bits or us == expected(number, 1)
                    if not bits:
                        found.add(number)
    assert len(whole[0]) > 1_200
    assert 10 < len(whole[1]) < len(whole[0]) / 2
    assert len(whole[1] & whole[0]) > 0.9 * len(whole[1])
    assert slow.complaints.messages == []


def test_which_ranks_have_a_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu: Any = SimpleNamespace()
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    complaints, sums = Complaints(0), SumsOfBlocks()
    assert tail_of(on_gpu, "auto", complaints, sums) is None
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "libnccl-profiler-inspector.so")
    monkeypatch.setenv("NCCL_INSPECTOR_ENABLE", "1")
    assert tail_of(on_gpu, "auto", complaints, sums) is None, "where it writes to is not known"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert tail_of(None, "auto", complaints, sums) is None
    assert tail_of(on_gpu, "off", complaints, sums) is None
    assert sums.ranks_known
    for timing in ("auto", "recorder"):
        found = tail_of(on_gpu, timing, complaints, sums)
        assert found is not None
        assert found[1] == INSPECTED
    found[0].poll()
    assert complaints.messages == []


def test_a_folder_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    of = Inspected(tmp_path / "later")
    (tmp_path / "later").rmdir()
    of.tail.look()
    (tmp_path / "later").mkdir()
    of.write(of.dump(calls(*range(9))))
    of.tail.look()
    assert len(of.kept) == 9


def test_the_late_rank_of_a_job_above_the_limit_is_named(tmp_path: Path) -> None:
    job = Devices(520, steps=30, units=4, waits_seen=0.3, slow={300: 1.4})
    of = events(job)
    layout: RunLayout = write_devices(job, tmp_path / "run")
    told = block_sums(replace(job, timed=True), of, slice(0, job.steps))
    took_us = [
        [
            float(of.left[phase][unit, rank, step] - of.came[phase][unit, rank, step])
            for step in range(job.steps)
            for phase in (FORWARD, BACKWARD)
            for unit in range(job.units)
        ]
        for rank in range(job.ranks)
    ]
    for rank in range(job.ranks):
        inspected = Inspected(tmp_path / "inspector", rank, job.ranks)
        for first in range(0, len(took_us[rank]), 40):  # a dump a second and a bit
            records = [collective(first + at, us) for at, us in enumerate(took_us[rank][first : first + 40])]
            inspected.write(inspected.dump(records, 1 + 1.3 * first / 40))
        inspected.tail.look()
        sums = inspected.sums.take()
        (ours,), (other,) = [columns(one) for one in sums], [columns(one) for one in told[rank]]
        count = len(ours[0])
        assert ours[0] == other[0][:count]
        assert ours[1] == pytest.approx(other[1][:count], abs=1)
        summary = layout.rank(rank).summary
        line = json.loads(summary.read_text())
        line["durations"] = [msgspec.to_builtins(one) for one in sums]
        summary.write_text(json.dumps(line) + "\n")
        assert all(type(one) is BlockSums for one in sums)
    result = open_summaries(layout.root)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("straggler", (300,))
    assert any(f"{INSPECTOR} records durations of collectives only" in note for note in result.coverage.notes)
    assert not any("Flight Recorder" in note for note in result.coverage.notes)

"""What is exported is what was recorded, however often and in whatever pieces it is read."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.api import open_run
from diag.collectors.files import encode
from diag.collectors.machine import readings
from diag.collectors.records import (
    CollectiveLine,
    CollectiveRow,
    DeviceStepRecord,
    MachineRecord,
    MemoryRecord,
    RankRecord,
    StepRecord,
)
from diag.errors import DiagError
from diag.export import definitions as of
from diag.export.definitions import Sample
from diag.export.policy import EXPORT_LIMITS
from diag.export.run_metrics import OTHERS, RunMetrics
from diag.show.json import save
from tests.collectors.test_machine import TREE, tree
from tests.export.runs import NOW_NS, cut, values, written
from tests.simulate import MS

MEMORY = MemoryRecord(rss=10**9, allocated=6 * 10**9, reserved=7 * 10**9, alloc_retries=3, capacity=8 * 10**9)


def test_totals_are_what_was_planted(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", jitter=0, steps=10, data_ns=3 * MS, memory=MEMORY)
    samples = RunMetrics(layout.root).read(NOW_NS)
    assert values(samples, of.STEPS) == {"0": 10, "1": 10}
    assert values(samples, of.TOKENS) == {"0": 5120, "1": 5120}
    assert values(samples, of.LAST_STEP) == {"0": 9, "1": 9}
    assert values(samples, of.RESERVED) == {"0": 7e9, "1": 7e9}
    assert values(samples, of.RETRIES) == {"0": 3, "1": 3}
    assert values(samples, of.HEARTBEAT_AGE) == {"0": 2, "1": 2}
    assert values(samples, of.HEARTBEAT_TIME)["0"] == NOW_NS / 1e9 - 2
    first = [sample for sample in samples if sample.labels.get(of.RANK) == "0"]
    assert {sample.labels[of.HOST] for sample in first} == {"host-a"}
    parts = values(first, of.PART_SECONDS, of.PART)
    assert parts["data_wait"] == pytest.approx(10 * 0.003)
    assert parts["exposed_comm"] == pytest.approx(10 * 7 * 0.0005, rel=0.01)  # each rank is 10 us late, once
    assert sum(parts.values()) == pytest.approx(values(first, of.STEP_SECONDS)["0"])
    lately = values(first, of.PART_DURATION, of.PART)
    assert sum(lately.values()) == pytest.approx(values(first, of.STEP_DURATION)["0"])
    assert values(first, of.TOKEN_RATE)["0"] == pytest.approx(512 / 0.1015, rel=0.01)
    assert values(first, of.COLLECTIVES, of.OP) == {"all_gather": 30, "reduce_scatter": 30, "all_reduce": 10}
    assert values(first, of.COLLECTIVE_BYTES, of.OP)["all_gather"] == 30 * 4e6
    assert values(first, of.COLLECTIVE_SECONDS, of.OP)["reduce_scatter"] == pytest.approx(0.015)
    assert values(samples, of.WORLD_SIZE, of.RUN) == {"r": 2}


def test_parts_are_those_of_the_analysis(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", data_ns=9 * MS)
    samples = RunMetrics(layout.root).read(NOW_NS)
    accounts = open_run(layout.root).attribution.steps
    for rank in (0, 1):
        own = [sample for sample in samples if sample.labels.get(of.RANK) == str(rank)]
        exported = values(own, of.PART_SECONDS, of.PART)
        parts = [account.parts[rank] for account in accounts]
        assert exported["exposed_comm"] == pytest.approx(sum(p.exposed_comm_ns for p in parts) / 1e9)
        assert exported["compute"] == pytest.approx(sum(p.compute_ns for p in parts) / 1e9)
        assert exported["data_wait"] == pytest.approx(sum(p.data_wait_ns for p in parts) / 1e9)


def comparable(samples: list[Sample]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(sample.metric.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=4))
def test_reading_a_run_as_it_grows_gives_the_same_in_the_end(parts: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = written(Path(folder) / "whole" / "r", steps=70, units=1)
        grown = type(whole)(Path(folder) / "grown" / "r")
        grown.root.mkdir(parents=True)
        cut(whole, grown, 0)
        followed = RunMetrics(grown.root)
        counted = 0.0
        for part in [*sorted(parts), 1.0]:
            cut(whole, grown, part)
            samples = followed.read(NOW_NS)
            assert values(samples, of.STEPS)["0"] >= counted
            counted = values(samples, of.STEPS)["0"]
        at_once, in_pieces = (comparable(m.read(NOW_NS)) for m in (RunMetrics(whole.root), followed))
        assert in_pieces.keys() == at_once.keys()
        assert in_pieces == pytest.approx(at_once)


def test_steps_wait_for_their_collectives_until_there_are_newer_ones(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", ranks=1, steps=9)
    files = layout.rank(0)
    whole = {path: path.read_text().splitlines(keepends=True) for path in (files.steps, files.collectives)}

    def steps_of(steps: int, collectives: float) -> float:
        """That are counted when so many lines are there to be read."""
        files.steps.write_text("".join(whole[files.steps][:steps]))
        lines = "".join(whole[files.collectives][: int(collectives)])
        files.collectives.write_text(lines + ("{" if collectives % 1 else ""))
        return values(followed.read(NOW_NS), of.STEPS).get("0", 0)

    files.collectives.write_text("")
    followed = RunMetrics(layout.root)
    assert steps_of(3, 0.5) == 0
    assert steps_of(3, 1) == 1
    assert steps_of(3, 1) == 1
    assert steps_of(5, 3) == 3
    assert steps_of(5, 5) == 5
    assert steps_of(7, 5) == 5
    assert steps_of(8, 5) == 7  # they have none
    parts = values(followed.read(NOW_NS), of.PART_SECONDS, of.PART)
    assert parts["exposed_comm"] == pytest.approx(5 * 0.0035, rel=0.1)


def test_a_run_that_starts_anew_in_its_folder_is_counted_anew(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", steps=9)
    followed = RunMetrics(layout.root)
    assert values(followed.read(NOW_NS), of.STEPS)["0"] == 9
    written(tmp_path / "s", steps=4).ranks_folder.rename(tmp_path / "ranks")
    (tmp_path / "r/ranks").rename(tmp_path / "before")
    (tmp_path / "ranks").rename(tmp_path / "r/ranks")
    assert values(followed.read(NOW_NS), of.STEPS)["0"] == 4


def test_a_run_that_is_restarted_is_its_newest_attempt(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", steps=9)
    followed = RunMetrics(layout.root)
    assert values(followed.read(NOW_NS), of.STEPS)["0"] == 9
    written(layout.restart(1).root, steps=4)
    samples = followed.read(NOW_NS)
    assert values(samples, of.STEPS)["0"] == 4
    assert {sample.labels[of.RUN] for sample in samples} == {"r"}


def test_lines_that_are_none_are_counted_and_left_out(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", steps=3)
    with layout.rank(1).steps.open("a") as file:
        file.write("{broken}\n")
    samples = RunMetrics(layout.root).read(NOW_NS)
    assert values(samples, of.UNREADABLE) == {"0": 0, "1": 1}
    assert values(samples, of.STEPS) == {"0": 3, "1": 3}


def test_a_time_beyond_64_bits_is_a_line_that_is_left_out(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", steps=4)
    for files in layout.ranks().values():
        first, *rest = files.steps.read_text().splitlines(keepends=True)
        late = json.dumps({**json.loads(first), "end_ns": 2**63 + 5}) + "\n"
        files.steps.write_text(late + "".join(rest))
    samples = RunMetrics(layout.root).read(NOW_NS)
    assert set(values(samples, of.UNREADABLE).values()) == {1}
    assert set(values(samples, of.STEPS).values()) == {3}


def test_on_a_device_communication_is_not_guessed_and_its_times_come_from_the_device(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", ranks=1, steps=0)
    files = layout.rank(0)
    files.identity.write_bytes(encode(RankRecord(0, 0, 1, "h", 1, "b", 0, NOW_NS, "NVIDIA H100", device_index=5)))
    step = StepRecord(0, 0, 10 * MS, [("forward", 0, 8 * MS)])  # type: ignore[list-item]
    files.steps.write_bytes(encode(step) + b"\n")
    row = CollectiveRow("dp", 0, "all_reduce", 400, "float32", 5, None, None, None)
    files.collectives.write_bytes(encode(CollectiveLine(0, [row])) + b"\n")
    followed = RunMetrics(layout.root)
    samples = followed.read(NOW_NS)
    assert values(samples, of.PART_SECONDS, of.PART).keys() & {"compute", "exposed_comm"} == set()
    assert values(samples, of.PART_SECONDS, of.PART)["compute_or_comm"] == pytest.approx(0.008)
    assert values(samples, of.COLLECTIVES, of.GPU) == {"5": 1}
    assert values(samples, of.COLLECTIVE_SECONDS) == {}
    files.device_steps.write_bytes(encode(DeviceStepRecord(0, 10 * MS, [], [("dp", 0, 1 * MS, 3 * MS)])) + b"\n")
    samples = followed.read(NOW_NS)
    assert values(samples, of.COLLECTIVE_SECONDS, of.GROUP) == {"dp": 0.002}
    assert values(samples, of.COLLECTIVES, of.GROUP) == {"dp": 1}


def test_mfu_of_a_device_whose_peak_is_known(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", ranks=1, steps=0)
    layout.manifest.write_bytes(
        layout.manifest.read_bytes().replace(b'"model":{}', b'"model":{"flops_per_token":989000000}')
    )
    files = layout.rank(0)
    files.identity.write_bytes(encode(RankRecord(0, 0, 1, "h", 1, "b", 0, NOW_NS, "NVIDIA H100 80GB HBM3")))
    lines = [encode(StepRecord(at, at * 1000 * MS, (at + 1) * 1000 * MS, [], tokens=400_000)) for at in range(6)]
    files.steps.write_bytes(b"\n".join(lines) + b"\n")
    (mfu,) = values(RunMetrics(layout.root).read(NOW_NS), of.MFU, of.RUN).values()
    assert mfu == pytest.approx(0.4)  # 989e6 x 400,000 a second, of 989e12


def test_the_last_analysis_tells_waiting_from_transfer(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", jitter=0, extra=lambda step, rank: {"forward": 20 * MS} if rank else {})
    assert values(RunMetrics(layout.root).read(NOW_NS), of.ANALYSED_PART, of.PART) == {}
    result = open_run(layout.root)
    save(result)
    samples = RunMetrics(layout.root).read(NOW_NS)
    (verdict,) = [sample for sample in samples if sample.metric is of.VERDICT_INFO]
    assert verdict.labels["bottleneck"] == "compute"
    assert verdict.labels["cause"] == result.verdict.cause
    assert verdict.labels["culprit_ranks"] == "1"
    assert values(samples, of.VERDICT_SHARE, of.RUN) == {"r": pytest.approx(result.verdict.share)}
    first = [sample for sample in samples if sample.labels.get(of.RANK) == "0"]
    parts = values(first, of.ANALYSED_PART, of.PART)
    assert parts["exposed_wait"] == pytest.approx(0.020, rel=0.01)
    assert parts["exposed_transfer"] == pytest.approx(7 * 0.0005, rel=0.01)
    assert sum(parts.values()) == pytest.approx(0.1195)


def test_many_ranks_have_as_many_series_as_few(tmp_path: Path) -> None:
    few = RunMetrics(written(tmp_path / "few", ranks=2, steps=2).root, per_rank=False).read(NOW_NS)
    many = RunMetrics(written(tmp_path / "many", ranks=66, steps=2).root).read(NOW_NS)
    assert len(few) == len(many)
    assert len(RunMetrics(tmp_path / "many", per_rank=True).read(NOW_NS)) > 66 * 20
    assert not any(of.RANK in sample.labels for sample in many)
    assert values(many, of.TOKENS, of.RUN) == {"many": 66 * 2 * 512}
    assert values(many, of.LAST_STEP, of.STAT) == {"min": 1, "mean": 1, "max": 1}


def test_chosen_ranks_are_all_that_is_looked_at(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", ranks=4, steps=12)
    save(open_run(layout.root))
    samples = RunMetrics(layout.root, only={1, 3}).read(NOW_NS)
    assert {sample.labels[of.RANK] for sample in samples if sample.metric.per_rank} == {"1", "3"}
    assert values(samples, of.RANKS, of.RUN) == {"r": 2}
    assert values(samples, of.WORLD_SIZE, of.RUN) == {"r": 4}


def test_a_summary_has_the_sums_and_the_extremes(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", data_ns=MS, extra=lambda step, rank: {"data": 50 * MS} if rank else {})
    each, whole = (RunMetrics(layout.root, per_rank=per_rank).read(NOW_NS) for per_rank in (True, False))
    data = [
        sample.value for sample in each if sample.metric is of.PART_DURATION and sample.labels[of.PART] == "data_wait"
    ]
    merged = {
        sample.labels[of.STAT]: sample.value
        for sample in whole
        if sample.metric is of.PART_DURATION and sample.labels[of.PART] == "data_wait"
    }
    assert merged == {"min": min(data), "mean": pytest.approx(sum(data) / 2), "max": max(data)}
    sums = [sum(s.value for s in samples if s.metric is of.COLLECTIVE_SECONDS) for samples in (each, whole)]
    assert sums[0] == pytest.approx(sums[1])


def test_groups_beyond_the_largest_are_one_in_a_summary(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", ranks=1, steps=1)
    rows = [CollectiveRow(f"g{at}", 0, "all_reduce", 10 + at, "float32", 1, 2, 1, 2) for at in range(100)]
    rows += [CollectiveRow(f"p2p 0>{at}", 0, "send", 5, "float32", 1, 2, 1, 2) for at in range(50)]
    layout.rank(0).collectives.write_bytes(encode(CollectiveLine(0, rows)) + b"\n")
    samples = RunMetrics(layout.root, per_rank=False).read(NOW_NS)
    reduced = [s for s in samples if s.metric is of.COLLECTIVES and s.labels[of.OP] == "all_reduce"]
    groups = values(reduced, of.COLLECTIVES, of.GROUP)
    assert len(groups) == EXPORT_LIMITS.most_groups  # messages between ranks are a group, too, and the others are one
    assert groups["g99"] == 1
    assert groups[OTHERS] == 100 - (EXPORT_LIMITS.most_groups - 1)
    sent = [s for s in samples if s.metric is of.COLLECTIVE_BYTES and s.labels[of.OP] == "send"]
    assert values(sent, of.COLLECTIVE_BYTES, of.GROUP) == {"p2p": 250}


@pytest.mark.parametrize(("name", "message"), [("traces", "not a run directory"), ("none", "no such file")])
def test_only_a_run_has_metrics(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "traces").mkdir()
    with pytest.raises(DiagError, match=message):
        RunMetrics(tmp_path / name)


def test_whether_a_run_is_live(tmp_path: Path) -> None:
    layout = written(tmp_path / "r", steps=2)
    for file in layout.root.rglob("*"):
        os.utime(file, ns=(NOW_NS, NOW_NS))
    followed = RunMetrics(layout.root)
    followed.read(NOW_NS)
    assert followed.live
    followed.read(NOW_NS + 60 * 10**9)
    assert not followed.live
    layout.manifest.write_bytes(layout.manifest.read_bytes().replace(b'"exit_code":null', b'"exit_code":0'))
    assert values(followed.read(NOW_NS), of.EXIT_CODE, of.RUN) == {"r": 0}
    assert not followed.live


def test_what_a_machine_knows_is_exported(tmp_path: Path) -> None:
    """From a copy of the kernel's files, through what the rank that reads them writes."""
    layout = written(tmp_path / "r", steps=4)
    before = readings(tree(tmp_path / "root", TREE))
    changed = {"rdma.mlx5_0:1.port_xmit_wait": before["rdma.mlx5_0:1.port_xmit_wait"] + 70, "net.eth0.rx_dropped": None}
    lines = [MachineRecord(1, dict(before)), MachineRecord(2, changed, whole=False)]
    layout.rank(1).machine.write_bytes(b"".join(map(encode, lines)))
    follower = RunMetrics(layout.root)
    for _ in range(2):
        counters = [sample for sample in follower.read(NOW_NS) if sample.metric is of.MACHINE_COUNTER]
        by_name = {(sample.labels[of.DEVICE], sample.labels[of.NAME]): sample.value for sample in counters}
        assert by_name["mlx5_0:1", "rdma.port_xmit_wait"] == before["rdma.mlx5_0:1.port_xmit_wait"] + 70
        assert by_name["0000:3b:00.0", "pcie.aer_correctable"] == 4
        assert by_name["", "pressure.cpu.some_us"] == 4500
        assert ("eth0", "net.rx_dropped") not in by_name
        assert {sample.labels[of.HOST] for sample in counters} == {"host-a"}
    levels = [sample for sample in follower.read(NOW_NS) if sample.metric is of.MACHINE_READING]
    named = {sample.labels[of.NAME] for sample in levels}
    assert {"pcie.link_width", "memory.available"} <= named
    assert not named & {sample.labels[of.NAME] for sample in counters}


def test_what_very_many_hosts_counted_has_as_many_series_as_of_one(tmp_path: Path) -> None:
    """Cards and ports have other names on each host, and each host has eight."""
    layout = written(tmp_path / "r", steps=4)
    for rank in (0, 1):
        ports = {f"rdma.mlx5_{port + rank}:1.symbol_error": 10 * rank + port for port in (1, 2)}
        used = {f"gpu.GPU-{rank}-{gpu}.memory_used": 7 + gpu for gpu in (0, 1)}
        layout.rank(rank).machine.write_bytes(encode(MachineRecord(1, {**ports, **used})))
    samples = RunMetrics(layout.root, per_rank=False).read(NOW_NS)
    (errors,) = [sample for sample in samples if sample.metric is of.MACHINE_COUNTER]
    assert (errors.labels, errors.value) == ({of.RUN: "r", of.NAME: "rdma.symbol_error"}, 1 + 2 + 11 + 12)
    used = [sample for sample in samples if sample.metric is of.MACHINE_READING]
    assert {sample.labels[of.STAT]: sample.value for sample in used} == {"min": 7, "mean": 7.5, "max": 8}

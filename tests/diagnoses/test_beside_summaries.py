"""Runs of very many ranks are answered from summaries, and by what late ranks and hosts recorded beside these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as with_changes
from pathlib import Path

import pytest
from msgspec.structs import replace

from diag.api import open_run
from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.numbers import LOSS
from diag.collectors.records import (
    BACKWARD,
    DATA,
    FORWARD,
    DeviceRecord,
    Heartbeat,
    MachineRecord,
    MemoryRecord,
    NumberRecord,
    StepRecord,
)
from diag.diagnoses.of_summaries import worth_reading
from diag.diagnoses.policy import FINDINGS
from diag.model.steps import Evidence, Finding
from diag.rundir.beside import Beside
from diag.rundir.machines import Machines, machines_of
from diag.rundir.run import open_paths
from diag.rundir.summaries import read_summaries
from diag.summaries import SummaryResult, open_summaries
from diag.words.formatting import counted
from tests.many_devices import Devices, events, steps_of, write_devices
from tests.many_ranks import Job, write_summaries
from tests.simulate import MS, Plan, simulate, write_run

SECOND_NS = 10**9
MANY = 640


def late(phase: str, ms: int) -> Callable[[int, int], dict[str, int]]:
    return lambda step, rank: {phase: ms * MS} if rank == 1 else {}


# -- late ranks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "own", "cause"),
    [
        (FORWARD, {FORWARD: (60 * MS, 0)}, "contended-host"),
        (FORWARD, {FORWARD: (0, 60 * MS)}, "stalled-rank"),
        (BACKWARD, {BACKWARD: (0, 60 * MS)}, "stalled-rank"),
        (FORWARD, {}, "compute-straggler"),
        (DATA, {DATA: (60 * MS, 0)}, "contended-host"),
        (DATA, {}, "slow-data-one-rank"),
    ],
)
@pytest.mark.parametrize("read", [1, 16], ids=["few", "all"])
def test_why_a_rank_is_late_is_known_as_from_the_records(
    phase: str, own: dict[str, tuple[int, int]], cause: str, read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scheduled(step: int, of_rank: int) -> dict[str, tuple[int, int]]:
        return own if of_rank == 1 else {FORWARD: (MS, 0)}

    layout = write_run(simulate(Plan(ranks=6, steps=60, extra=late(phase, 60), scheduled=scheduled)), tmp_path)
    monkeypatch.setitem(vars(FINDINGS), "late_ranks_read", read)
    short, full = open_summaries(layout.root), open_run(layout.root)
    for result in (short, full):
        assert (result.verdict.cause, result.verdict.culprit_ranks) == (cause, (1,))
    assert short.verdict.bottleneck == full.verdict.bottleneck
    assert len(short.examination.scheduling.ranks) == (2 if read == 1 else 6)
    open_still = {item.diagnosis: item.reason for item in short.examination.not_looked}
    partly = f"only 2 of {counted(6, 'rank')} were looked at: late ones, and some others"
    assert (partly in open_still.values()) == (read == 1)


def test_without_records_beside_the_summaries_the_cause_is_the_lateness(tmp_path: Path) -> None:
    job = Job(MANY, extra_us={77: {"forward": 60_000}})
    result = open_summaries(write_summaries(job, tmp_path).root)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (77,))
    assert not result.examination.scheduling.ranks
    assert "contended-host" in {item.diagnosis for item in result.examination.not_looked}


def test_nothing_is_read_where_nobody_is_late(tmp_path: Path) -> None:
    layout = write_run(simulate(Plan(ranks=4, steps=60)), tmp_path)
    assert worth_reading(open_summaries(layout.root).examination.shares) == ()


@pytest.mark.parametrize("throttled", [True, False])
def test_a_throttled_device_of_many_is_why_a_rank_is_late(throttled: bool, tmp_path: Path) -> None:
    job = Devices(MANY, steps=60, slow={333: 1.4})
    layout = write_devices(job, tmp_path)
    of = events(job)
    for rank in range(job.ranks):
        files = layout.rank(rank)
        steps = list(steps_of(job, of, rank))
        files.steps.write_bytes(b"".join(encode(record) for record in steps))
        clock = 1_200 if throttled and rank == 333 else 1_980
        samples = (DeviceRecord(step.begin_ns + 1, sm_clock_mhz=clock) for step in steps)
        files.device.write_bytes(b"".join(encode(sample) for sample in samples))
    result = open_summaries(layout.root)
    assert result.verdict.culprit_ranks == (333,)
    assert result.verdict.cause == ("throttled-device" if throttled else "compute-straggler")
    if throttled:
        found = next(found for found in result.examination.findings if found.id == "throttled-device")
        (own,) = [item for item in found.evidence if item.filter == "rank 333, median SM clock"]
        assert own.value == 1_200
        (others,) = [item for item in found.evidence if item.filter == "the other ranks, median SM clock"]
        assert others.value == 1_980
        assert others.query is not None
        rows = result.rows(others.query)
        assert 333 not in rows["rank"].to_list()
        assert 2 <= rows["rank"].n_unique() <= FINDINGS.late_ranks_read


@pytest.mark.parametrize(
    ("retries", "reserved", "cause"), [(3, 50, "allocator-retries"), (0, 79, "near-out-of-memory"), (0, 50, None)]
)
def test_memory_of_every_rank_is_known_from_summaries(
    retries: int, reserved: int, cause: str | None, tmp_path: Path
) -> None:
    gb = 10**9
    tables = simulate(Plan(ranks=4, steps=120))
    ranks = dict(tables.ranks)
    for rank, own in ranks.items():
        assert own.identity is not None
        steps: list[StepRecord] = []
        for record in own.steps:
            many = rank == 2
            memory = MemoryRecord(
                rss=gb, allocated=40 * gb, reserved=(reserved if many else 50) * gb, capacity=80 * gb,
                alloc_retries=5 + (retries if many and record.step >= 70 else 0), ooms=0,
            )  # fmt: skip
            steps.append(with_changes(record, memory=memory))
        ranks[rank] = replace(own, steps=steps, identity=with_changes(own.identity, device="NVIDIA H100"))
    layout = write_run(replace(tables, ranks=ranks), tmp_path)
    short, full = open_summaries(layout.root), open_run(layout.root)
    for result in (short, full):
        found = [each for each in result.examination.findings if each.id in ("allocator-retries", "near-out-of-memory")]
        assert [(each.id, each.ranks) for each in found] == ([(cause, (2,))] if cause else [])
    columns = ("rank", "reserved", "capacity", "retries")
    assert short.memory.select(columns).rows() == full.memory.select(columns).rows()


def test_the_first_loss_that_is_not_finite_is_found_among_many_ranks(tmp_path: Path) -> None:
    layout = write_summaries(Job(MANY), tmp_path)
    odd = {333: (NumberRecord(40, LOSS, "nan", 0.3),), 5: (NumberRecord(41, LOSS, "nan", 0.3),)}
    for rank, records in odd.items():
        layout.rank(rank).numbers.write_bytes(b"".join(encode(record) for record in records))
    result = open_summaries(layout.root)
    found = finding(result, "not-finite")
    assert (found.ranks, found.evidence[0].value) == ((333,), 40)
    assert "not-finite" not in {item.diagnosis for item in result.examination.not_looked}


@pytest.mark.parametrize("looked_at", [0, 100])
def test_losses_of_many_ranks_are_healthy_only_if_they_were_looked_at(looked_at: int, tmp_path: Path) -> None:
    layout = write_summaries(Job(MANY), tmp_path)
    for rank in range(MANY):
        layout.rank(rank).heartbeat.write_bytes(encode(Heartbeat(0, 1, 99, "forward", numbers=looked_at)))
    result = open_summaries(layout.root)
    assert ("not-finite" in {item.diagnosis for item in result.examination.not_looked}) == (looked_at == 0)
    assert not [found for found in result.examination.findings if found.id == "not-finite"]


def test_a_damaged_file_of_losses_is_a_gap(tmp_path: Path) -> None:
    layout = write_summaries(Job(MANY), tmp_path)
    layout.rank(600).numbers.write_text("{\n")
    result = open_summaries(layout.root)
    assert any("numbers.jsonl" in gap.path for gap in result.coverage.skipped)


# -- hosts -------------------------------------------------------------------------------------------------------------

ERRORS, WAIT = "rdma.mlx5_0:1.symbol_error", "rdma.mlx5_0:1.port_xmit_wait"
BUSY = "pressure.cpu.some_us"


def cited(found: Finding) -> list[tuple[str, float, str]]:
    return [(item.filter, item.value, item.unit) for item in found.evidence if of_machine(item)]


def of_machine(item: Evidence) -> bool:
    return item.query is not None and item.query.where.get("source") == "machine"


def finding(result: SummaryResult, id: str) -> Finding:
    return next(found for found in result.examination.findings if found.id == id)


def count(layout: RunLayout, job: Job, grows: Mapping[int, Mapping[str, int]], writer: int = 0) -> None:
    """Lines of every host, ten seconds apart, from long before the steps. ``grows``: by host, of a counter between two
    lines; 7 elsewhere. ``writer``: which rank of a host writes."""
    for host in range(job.ranks // job.ranks_a_host):
        values, lines = dict.fromkeys((ERRORS, WAIT, BUSY, "cpu.steal_ns"), 1_000), list[MachineRecord]()
        for at in range(60):
            by = {name: grows.get(host, {}).get(name, 7) for name in (ERRORS, WAIT, BUSY)}
            values |= {name: values[name] + more for name, more in by.items()}
            now_ns, whole = 10**12 * host + (at - 30) * 10 * SECOND_NS, at % 30 == 0
            if now_ns >= 0:  # since the host started
                changed = values if whole else {name: values[name] for name in by}
                lines.append(MachineRecord(now_ns, dict(changed), whole))
        stream = layout.rank(host * job.ranks_a_host + writer).machine
        stream.write_bytes(b"".join(encode(line) for line in lines))


def test_a_late_rank_of_many_cites_its_host(tmp_path: Path) -> None:
    job = Job(MANY, extra_us={77: {"forward": 60_000}})
    layout = write_summaries(job, tmp_path)
    count(layout, job, {9: {BUSY: 4_000_000, ERRORS: 900}})
    result = open_summaries(layout.root)
    (item,) = [item for item in finding(result, "compute-straggler").evidence if of_machine(item)]
    assert item.filter == f"host node0009, {BUSY} share of the time (the other hosts at most 0.0%)"
    assert (item.value, item.unit) == (0.4, "share")
    assert item.query is not None
    assert result.rows(item.query)["value"].to_list()[-1] > 10 * 4_000_000


def test_communication_of_many_cites_the_host_that_is_unlike_all_others(tmp_path: Path) -> None:
    job = Job(MANY, transfer_us=200_000)
    layout = write_summaries(job, tmp_path)
    alike = {host: {WAIT: 5_000} for host in range(80)}
    count(layout, job, {**alike, 31: {WAIT: 5_000, ERRORS: 900}}, writer=3)
    (found,) = [each for each in open_summaries(layout.root).examination.findings if cited(each)]
    ((what, value, unit),) = cited(found)
    assert what.startswith(f"host node0031, {ERRORS} around these steps (the other hosts at most ")
    assert value % 900 == 0
    assert (value > 900, unit) == (True, "")
    count(layout, job, alike, writer=3)
    assert [each for each in open_summaries(layout.root).examination.findings if cited(each)] == []


def test_the_lines_around_the_steps_say_what_all_lines_say(tmp_path: Path) -> None:
    """A run whose lines are all around its steps: read as a whole, and from the ends of the files."""
    lines = {
        rank: [
            MachineRecord(1, {ERRORS: 5 * rank, WAIT: 9, BUSY: 0}),
            MachineRecord(2 * SECOND_NS, {ERRORS: 7 + 5 * rank, BUSY: None}, whole=False),
            MachineRecord(4 * SECOND_NS, {WAIT: 3, BUSY: 4}, whole=False),
            MachineRecord(70 * SECOND_NS, {WAIT: 80 * rank, BUSY: 9_000_000}, whole=False),
        ]
        for rank in (0, 2)
    }
    lines[3] = [MachineRecord(75 * SECOND_NS, {ERRORS: 100, WAIT: 4})]  # took over from rank 2
    tables = simulate(Plan(ranks=5, steps=60, hosts=lambda rank: f"node{rank // 2}"))
    ranks = {rank: replace(own, machine=tuple(lines.get(rank, ()))) for rank, own in tables.ranks.items()}
    layout = write_run(replace(tables, ranks=ranks), tmp_path)
    whole, around = machines_of(open_paths((layout.root,))), Beside(read_summaries(layout)).machines()
    assert whole.rates().keys() == around.rates().keys() == {"node0", "node1"}

    def told(machines: Machines, host: str) -> tuple[object, ...]:
        machine = machines.of(host)
        return machine.grew, machine.seconds, machine.last, machines.rates()[host]

    assert told(whole, "node0") == told(around, "node0")
    assert told(whole, "node1")[0] != told(around, "node1")[0], "rank 2 has lines of these steps, so rank 3 is not read"


def test_a_damaged_line_makes_a_host_unknown(tmp_path: Path) -> None:
    job = Job(MANY, extra_us={77: {"forward": 60_000}})
    layout = write_summaries(job, tmp_path)
    count(layout, job, {9: {BUSY: 4_000_000}})
    stream = layout.rank(72).machine
    stream.write_bytes(stream.read_bytes().replace(b'"pressure.cpu.some_us":', b'"pressure.cpu.some_us":1e400,"x":'))
    assert cited(finding(open_summaries(layout.root), "compute-straggler")) == []

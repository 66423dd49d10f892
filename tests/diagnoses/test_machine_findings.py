"""Findings cite what the machines of the culprits counted, and only what the other machines did not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from diag.api import Result, analyze
from diag.collectors.records import MachineRecord, MemoryRecord
from diag.diagnoses import machine_samples
from diag.diagnoses.subject import Subject
from diag.model.steps import Evidence, Finding, Severity
from diag.words.formatting import spaced
from tests.simulate import MS, Plan, simulate

SECOND_NS = 10**9
WAIT, BUSY = "rdma.mlx5_0:1.port_xmit_wait", "pressure.cpu.some_us"


def recorded(plan: Plan, by_rank: Mapping[int, Sequence[Mapping[str, int | None]]], containers: bool = False) -> Result:
    """``by_rank``: what each reading of a rank changed, ten seconds apart. ``containers``: each rank has another host's
    name, and all have one clock."""
    tables = simulate(plan)
    ranks = dict(tables.ranks)
    for rank, readings in by_rank.items():
        lines = [MachineRecord(10 * SECOND_NS * (1 + at), dict(values), at == 0) for at, values in enumerate(readings)]
        ranks[rank] = replace(ranks[rank], machine=tuple(lines))
    if containers:
        for rank, own in ranks.items():
            assert own.identity is not None
            own = replace(own, identity=dataclasses.replace(own.identity, boot_id="b", host=f"node{rank}"))
            ranks[rank] = own
    return analyze(replace(tables, ranks=ranks))


def finding(result: Result, id: str) -> Finding:
    return next(found for found in result.examination.findings if found.id == id)


def of_machine(item: Evidence) -> bool:
    return item.query is not None and item.query.where.get("source") == "machine"


def cited(found: Finding) -> list[tuple[str, float, str]]:
    return [(spaced(item.filter), item.value, item.unit) for item in found.evidence if of_machine(item)]


LATE = Plan(hosts=lambda rank: f"node{rank}", extra=lambda step, rank: {"forward": 40 * MS} if rank == 1 else {})


def of_late(found: Result) -> Finding:
    return next(f for f in found.examination.findings if f.ranks == (1,))


def test_a_straggler_cites_the_pressure_on_its_host_alone() -> None:
    busy, quiet = [{BUSY: 0}, {BUSY: 5_000_000}, {BUSY: 8_000_000}], [{BUSY: 7}, {BUSY: 7}, {BUSY: 1_000_007}]
    late = of_late(recorded(LATE, {0: quiet, 1: busy}))
    assert cited(late) == [
        ("host node1, pressure.cpu.some_us share of the time (the other hosts at most 5.0%)", 0.4, "share")
    ]
    assert cited(of_late(recorded(LATE, {0: busy, 1: busy}))) == []
    assert cited(of_late(recorded(LATE, {0: busy, 1: quiet}))) == []
    assert cited(of_late(recorded(LATE, {}))) == []


def test_a_value_that_could_not_be_read_or_was_reset_has_not_grown() -> None:
    gone = [{BUSY: 0}, {BUSY: None}, {BUSY: 9_000_000}]
    reset = [{BUSY: 9_000_000}, {BUSY: 0}, {}]
    for readings in (gone, reset):
        assert cited(of_late(recorded(LATE, {1: readings}))) == []


def test_the_rows_of_what_is_cited_are_in_the_samples() -> None:
    result = recorded(LATE, {1: [{BUSY: 0}, {BUSY: 5_000_000}]})
    (item,) = [item for item in of_late(result).evidence if of_machine(item)]
    assert item.query is not None
    assert result.rows(item.query)["value"].to_list() == [0.0, 5_000_000.0]


def test_a_slow_link_cites_the_counters_of_its_ports() -> None:
    slow = Plan(tail=lambda step, rank: 15 * MS if rank == 1 else 0)
    waited = [{WAIT: 100}, {WAIT: 5_100}, {WAIT: 9_100}]
    little = [{"rdma.mlx5_1:1.port_xmit_wait": 5}, {"rdma.mlx5_1:1.port_xmit_wait": 25}, {}]
    found = finding(recorded(slow, {0: little, 1: waited}, containers=True), "slow-link")
    assert cited(found) == [(f"host node1, {WAIT} in this run (the other hosts at most 20)", 9_000.0, "")]


def test_communication_of_all_ranks_cites_the_host_that_is_unlike_the_others() -> None:
    slow = Plan(ranks=4, hosts=lambda rank: f"node{rank}", ns_a_byte=5.0)
    little, waited = [{WAIT: 5}, {WAIT: 25}, {}], [{WAIT: 100}, {WAIT: 5_100}, {WAIT: 9_100}]
    found = recorded(slow, dict.fromkeys(range(3), little) | {3: waited})
    assert cited(finding(found, "communication-not-overlapped")) == [
        (f"host node3, {WAIT} in this run (the other hosts at most 20)", 9_000.0, "")
    ]
    alike = recorded(slow, dict.fromkeys(range(4), waited))
    assert cited(finding(alike, "communication-not-overlapped")) == []


def test_memory_that_pytorch_does_not_hold_is_cited() -> None:
    gb = 10**9
    plan = Plan(memory=MemoryRecord(rss=gb, reserved=70 * gb, allocated=69 * gb, capacity=72 * gb))
    used = {"gpu.GPU-a.memory_used": 72 * gb, "gpu.GPU-b.memory_used": 71 * gb, "gpu.GPU-a.memory_total": 72 * gb}
    found = finding(recorded(plan, {0: [dict(used), {"cgroup.memory.oom_kills": 0}]}), "near-out-of-memory")
    assert cited(found) == [("host host-a, memory in use on its GPUs that PyTorch does not hold", 3.0, "GB")]
    del used["gpu.GPU-b.memory_used"]  # then the other GPU's memory is not known
    assert cited(finding(recorded(plan, {0: [dict(used)]}), "near-out-of-memory")) == []


def test_memory_of_a_gpu_that_two_ranks_share_is_cited() -> None:
    gb = 10**9
    plan = Plan(memory=MemoryRecord(rss=gb, reserved=34 * gb, allocated=33 * gb, capacity=72 * gb))
    apart = recorded(plan, {0: [{"gpu.GPU-a.memory_used": 71 * gb}]})
    assert not [found for found in apart.examination.findings if found.id == "near-out-of-memory"]
    ranks = {
        rank: replace(
            own, identity=dataclasses.replace(own.identity, device_uuid="a", boot_id="boot", device="Test GPU")
        )
        for rank, own in apart.tables.ranks.items()
        if own.identity is not None
    }
    found = finding(analyze(replace(apart.tables, ranks=ranks)), "near-out-of-memory")
    assert cited(found) == [("host host-a, memory in use on its GPUs that PyTorch does not hold", 3.0, "GB")]


ONE_HOST = Plan(ranks=3, extra=lambda step, rank: {"forward": 40 * MS} if rank == 1 else {})


def on_gpus(plan: Plan, readings: Sequence[Mapping[str, int | None]], uuids: Sequence[str]) -> Result:
    """``uuids``: of the ranks' GPUs, as torch reports them."""
    result = recorded(plan, {0: readings})
    ranks = dict(result.tables.ranks)
    for rank, own in ranks.items():
        assert own.identity is not None
        ranks[rank] = replace(own, identity=dataclasses.replace(own.identity, device_uuid=uuids[rank]))
    return analyze(replace(result.tables, ranks=ranks))


def test_a_straggler_cites_its_own_gpu_and_what_the_others_of_its_host_did() -> None:
    def reading(seconds: int) -> dict[str, int | None]:
        return {
            "gpu.GPU-b.power_violation_ns": 4 * seconds * SECOND_NS // 10,
            "gpu.GPU-c.power_violation_ns": seconds * SECOND_NS // 10,
            "gpu.GPU-c.thermal_violation_ns": seconds * SECOND_NS,  # of another rank's
            "dcgm.GPU-b.xid": 79 if seconds else 0,
            "dcgm.GPU-c.xid": 13 if seconds else 0,
            "dcgm.GPU-a.sm_active_ppm": 400_000,
            "dcgm.GPU-b.sm_active_ppm": 800_000 if seconds else 1_000_000,
            "dcgm.GPU-c.sm_active_ppm": 600_000,
            "dcgm.GPU-a.power_mw": 500_000,
            "dcgm.GPU-b.power_mw": 510_000,
        }

    host = "host host-a, "
    expected = [
        (f"{host}dcgm.GPU-b.xid: the last Xid in this run", 79.0, ""),
        (f"{host}gpu.GPU-b.power_violation_ns share of the time (the other GPUs at most 10.0%)", 0.4, "share"),
        (f"{host}dcgm.GPU-b.sm_active_ppm (median of its other GPUs 50.0%)", 0.9, "share"),
    ]
    readings = [reading(0), reading(10)]
    late = of_late(on_gpus(ONE_HOST, readings, ["a", "b", "c"]))
    assert cited(late) == expected
    assert cited(of_late(on_gpus(ONE_HOST, readings, ["a", "c", "b"]))) != expected
    of_all = cited(of_late(on_gpus(ONE_HOST, readings, ["", "", ""])))  # it is not known whose GPU is whose
    assert [item for item in of_all if "median" in item[0]] == []
    assert cited(of_late(on_gpus(ONE_HOST, [{}, {}], ["a", "b", "c"]))) == []


def test_a_slow_link_cites_the_errors_of_its_nvlinks() -> None:
    slow = Plan(tail=lambda step, rank: 15 * MS if rank == 1 else 0)
    errors = [{"dcgm.GPU-b.nvlink_replay_errors": 3}, {"dcgm.GPU-b.nvlink_replay_errors": 903}]
    found = finding(recorded(slow, {1: errors}, containers=True), "slow-link")
    assert cited(found) == [("host node1, dcgm.GPU-b.nvlink_replay_errors in this run", 900.0, "")]


def test_low_mfu_cites_for_how_long_the_units_of_the_gpus_worked() -> None:
    counts = {f"dcgm.GPU-{gpu}.tensor_active_ppm": share for gpu, share in (("a", 100_000), ("b", 300_000))}
    power = {"dcgm.GPU-a.power_mw": 500_000}
    result = recorded(Plan(), {0: [counts | power | {"dcgm.GPU-a.sm_active_ppm": 900_000}, {}]})
    subject = Subject(result.attribution, result.tables, result.examination.shares)
    low = machine_samples.cited(subject, Finding("low-mfu", "MFU is low", Severity.WARN, 0.5, (), ""))
    assert cited(low) == [
        ("host host-a, dcgm.sm_active_ppm, mean of 1 GPU", 0.9, "share"),
        ("host host-a, dcgm.tensor_active_ppm, mean of 2 GPUs", 0.2, "share"),
    ]

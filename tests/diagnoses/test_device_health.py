"""Devices with bad memory or degraded links, planted in the samples of a healthy run; and devices that only look so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from diag.api import Result, open_run
from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.records import DeviceHealth, DeviceRecord
from diag.diagnoses import degraded_links, unhealthy_memory
from diag.diagnoses.subject import Subject
from diag.model.steps import Bottleneck, Finding, Severity
from tests.copies import replace
from tests.diagnoses.test_device_findings import BOOT_NS, MS, Gpu, ids, run_of

Device = list[DeviceRecord]
COUNT = 6  # readings, half a minute apart
SAMPLE = {"sm_clock_mhz", "power_mw", "utilization_percent", "ecc_corrected", "ecc_uncorrected", "throttle_reasons"}
HEALTHY: dict[str, Any] = {
    "utilization_percent": 98, "ecc_corrected": 12, "ecc_uncorrected": 0, "remapped_rows_corrected": 4,
    "remapped_rows_uncorrected": 1, "remap_pending": False, "remap_failed": False, "pcie_width": 16,
    "pcie_max_width": 16, "pcie_generation": 5, "pcie_max_generation": 5, "pcie_replays": 7, "active_links": 18,
    "link_errors": {"replay": [3, None, 0], "crc": [900, 12, 0], "recovery": [1, 0, 0]}, "source": "NVML",
}  # fmt: skip


def device(**changes: Any) -> Device:
    """The readings of one rank: a field is one value, or a tuple with one for each reading."""
    fields = {**HEALTHY, **changes}
    found = []
    for at in range(COUNT):
        now = {name: value[at] if isinstance(value, tuple) else value for name, value in fields.items()}
        sample = {name: now.pop(name) for name in SAMPLE & now.keys()}
        found.append(DeviceRecord(BOOT_NS + at * 30 * 10**9, **sample, health=DeviceHealth(**now)))
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_of(tmp_path_factory.mktemp("run"), Gpu(mfu=0.4))


def subject_of(base: Result, devices: Sequence[Device]) -> Subject:
    ranks = base.tables.ranks
    planted = {
        rank: replace(ranks[min(rank, 1)], rank=rank, device=tuple(records)) for rank, records in enumerate(devices)
    }
    return Subject(base.attribution, replace(base.tables, ranks=planted), base.examination.shares)


def memory(base: Result, *devices: Device) -> list[Finding]:
    subject = subject_of(base, devices)
    assert unhealthy_memory.cannot_look(subject) == ""
    return unhealthy_memory.find(subject)


def links(base: Result, *devices: Device) -> list[Finding]:
    subject = subject_of(base, devices)
    assert degraded_links.cannot_look(subject) == ""
    return degraded_links.find(subject)


def test_healthy_devices_have_no_finding(base: Result) -> None:
    """Counters from before the run, and rows that were remapped long ago, are no sign of anything."""
    assert memory(base, device(), device()) == []
    assert links(base, device(), device()) == []


@pytest.mark.parametrize(
    ("changes", "signs", "level"),
    [
        ({"ecc_uncorrected": 2}, "uncorrected ECC errors", Severity.CRITICAL),
        ({"ecc_uncorrected": (0, 0, 0, 0, 1, 1)}, "uncorrected ECC errors", Severity.CRITICAL),
        ({"remap_failed": True}, "a failed row remapping", Severity.CRITICAL),
        ({"remap_pending": (False, False, True, True, True, True)}, "a pending row remapping", Severity.WARN),
        ({"retire_pending": True}, "a pending page retirement", Severity.WARN),
        ({"ecc_corrected": (0, 5, 30, 30, 31, 31)}, "growing corrected ECC errors", Severity.WARN),
        (
            {"remapped_rows_uncorrected": (1, 1, 1, 2, 2, 2)},
            "rows remapped for uncorrected errors during the run",
            Severity.WARN,
        ),
        ({"retired_pages": (4, 4, 6, 6, 6, 6)}, "retired pages during the run", Severity.WARN),
        ({"retired_pages": 62}, "almost no pages left to retire", Severity.WARN),
    ],
)
def test_unhealthy_memory_of_one_rank(base: Result, changes: dict[str, Any], signs: str, level: Severity) -> None:
    (finding,) = memory(base, device(), device(**changes))
    assert (finding.id, finding.ranks, finding.severity) == ("unhealthy-memory", (1,), level)
    assert finding.title == f"The GPU memory of rank 1 is unhealthy: {signs}"
    assert (finding.share, finding.cost_ns_per_step, finding.bottleneck) == (0, 0, None)
    assert finding.evidence
    assert "node-1" in finding.action
    assert "dcgmi diag -r 3" in finding.action


@pytest.mark.parametrize(
    "changes",
    [
        {"ecc_uncorrected": (0, 0, 3, 0, 0, 0)},
        {"ecc_uncorrected": (0, 0, 0, 0, 0, 3)},
        {"remap_pending": (False, True, False, False, False, False)},
        {"remap_failed": (False, False, False, False, False, True)},
        {"ecc_corrected": (0, 0, 0, 0, 40, 40)},
        {"ecc_corrected": (0, 0, 900, 0, 900, 900)},
        {"ecc_corrected": (0, 1, 2, 3, 4, 5)},
        {"retired_pages": 4},
        {"retired_pages": (4, 4, 4, 4, 4, 9)},
        {"ecc_uncorrected": -3, "ecc_corrected": (0, 2**61, 2**62, 2**62, 2**62, 2**62)},
        {"ecc_uncorrected": None, "remap_pending": None, "remap_failed": None, "ecc_corrected": None},
    ],
    ids=["once", "at the end only", "no longer pending", "failed at the end only", "one rise", "falls", "few",
         "long ago", "in one reading", "impossible", "not reported"],
)  # fmt: skip
def test_one_odd_reading_proves_nothing(base: Result, changes: dict[str, Any]) -> None:
    assert memory(base, device(), device(**changes)) == []


def test_a_few_corrected_errors_a_day_are_normal(base: Result) -> None:
    days = [
        replace(record, monotonic_ns=BOOT_NS + at * 86_400 * 10**9, ecc_corrected=6 * at)
        for at, record in enumerate(device())
    ]
    assert memory(base, device(), days) == []


def test_two_signs_of_one_rank_and_another_rank(base: Result) -> None:
    both = device(ecc_uncorrected=3, remap_pending=True)
    (finding,) = memory(base, both, device(), device(remap_pending=True))
    assert finding.ranks == (0, 2)
    assert finding.title.endswith("ranks 0, 2 is unhealthy: uncorrected ECC errors, a pending row remapping")
    assert [(e.filter, e.value) for e in finding.evidence] == [
        ("rank 0, uncorrected ECC errors since the driver was loaded", 3.0),
        ("rank 0, a pending row remapping", 1.0),
        ("rank 2, a pending row remapping", 1.0),
    ]


def test_a_run_of_an_older_version_has_its_ecc_errors_looked_at(base: Result) -> None:
    old = [DeviceRecord(BOOT_NS + at * 10**9, ecc_corrected=0, ecc_uncorrected=1, memory_used=5) for at in range(4)]
    (finding,) = memory(base, old, [replace(record, ecc_uncorrected=0) for record in old])
    assert finding.ranks == (0,)
    assert degraded_links.cannot_look(subject_of(base, [old, old])) == "no state of the devices' links was recorded"


def test_amd_has_commands_of_its_own(base: Result) -> None:
    amd = {"source": "amdsmi", "remap_pending": None, "remap_failed": None}
    (finding,) = memory(base, device(**amd), device(**amd, ecc_uncorrected=1))
    assert "amd-smi bad-pages" in finding.action
    assert "dcgmi" not in finding.action
    (finding,) = links(base, device(**amd), device(**amd, active_links=6))
    assert finding.title == "The XGMI links of rank 1 are degraded: 6 of 18 active"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pcie_width": 8}, "x8 of x16"),
        ({"pcie_width": (16, 16, 16, 8, 8, 8)}, "x8 of x16"),
        ({"pcie_width": 4, "pcie_max_width": 4}, "x4, on the other ranks x16"),
        ({"pcie_generation": 1}, "generation 1 of 5 under load"),
        ({"pcie_generation": 3, "pcie_max_generation": 3}, "generation 3 under load, on the other ranks 5"),
        ({"pcie_width": 8, "pcie_generation": 4}, "x8 of x16, generation 4 of 5 under load"),
        ({"pcie_replays": (0, 40, 80, 120, 160, 200)}, "growing replays"),
    ],
)
def test_a_degraded_pcie_link_of_one_rank(base: Result, changes: dict[str, Any], words: str) -> None:
    (finding,) = links(base, device(), device(**changes))
    assert (finding.id, finding.ranks, finding.severity) == ("degraded-pcie", (1,), Severity.WARN)
    assert finding.title == f"The PCIe link of rank 1 is degraded: {words}"
    assert (finding.share, finding.bottleneck) == (0, None)
    assert "pcie.link.width.current" in finding.action


IDLE = {"utilization_percent": 3, "pcie_generation": 1}


@pytest.mark.parametrize(
    "changes",
    [
        IDLE,
        {"utilization_percent": (0, 98, 98, 98, 98, 0), "pcie_generation": (1, 5, 5, 5, 5, 1)},
        {"utilization_percent": (0, 98, 0, 98, 0, 0), "pcie_generation": 1},
        {"utilization_percent": None, "pcie_generation": 1},
        {"pcie_generation": (5, 5, 1, 5, 5, 5)},
        {"pcie_generation": (5, 5, 5, 5, 1, 1)},
        {"pcie_width": (16, 16, 1, 16, 16, 16)},
        {"pcie_width": (16, 16, 16, 16, 8, 8)},
        {"pcie_width": 0, "pcie_generation": -1},
        {"pcie_max_width": 65535, "pcie_max_generation": 2**40},
        {"pcie_replays": (7, 7, 7, 500, 500, 500)},
        {"pcie_replays": (7, 8, 9, 10, 11, 12)},
        {"pcie_replays": (7, 2**60, 7, 2**60, 2**61, 2**62)},
        {"pcie_width": None, "pcie_max_width": None, "pcie_generation": None, "pcie_replays": None},
    ],
    ids=["idle", "idle at both ends", "two under load", "load unknown", "one slow", "two slow", "narrow once",
         "narrow at the end only", "no link", "no maximum", "one rise", "a replay now and then", "impossible",
         "not reported"],
)  # fmt: skip
def test_a_pcie_link_that_only_looks_degraded(base: Result, changes: dict[str, Any]) -> None:
    assert links(base, device(), device(**changes)) == []


def test_an_idle_run_has_no_finding(base: Result) -> None:
    assert links(base, device(**IDLE), device(**IDLE)) == []


def test_slots_that_are_all_narrow_are_a_milder_statement(base: Result) -> None:
    (finding,) = links(base, *[device(pcie_width=8)] * 4)
    assert (finding.id, finding.ranks, finding.severity) == ("degraded-pcie", (), Severity.HEALTHY)
    assert finding.title == "The PCIe links of all ranks run below the maximum: x8 of x16"
    (alone,) = links(base, device(pcie_width=8))
    assert alone.title == "The PCIe link of rank 0 runs below the maximum: x8 of x16"
    assert alone.severity == Severity.HEALTHY
    mild, named = links(base, device(pcie_width=8), device(pcie_width=8, pcie_replays=(0, 90, 180, 270, 360, 450)))
    assert (mild.ranks, named.ranks) == ((), (1,))


def test_all_narrow_but_one_are_named(base: Result) -> None:
    (finding,) = links(base, device(), device(pcie_width=8), device(pcie_width=8))
    assert (finding.ranks, finding.severity) == ((1, 2), Severity.WARN)


# -- NVLink ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [17, (18, 18, 18, 17, 17, 17)])
def test_fewer_active_links_than_the_others(base: Result, count: int | tuple[int, ...]) -> None:
    (finding,) = links(base, device(), device(), device(active_links=count))
    assert (finding.id, finding.ranks, finding.severity) == ("degraded-gpu-links", (2,), Severity.WARN)
    assert finding.title == "The NVLinks of rank 2 are degraded: 17 of 18 active"


@pytest.mark.parametrize("count", [(18, 18, 18, 18, 17, 17), (18, 0, 18, 18, 18, 18), -1, 10**9, None])
def test_active_links_that_only_look_fewer(base: Result, count: Any) -> None:
    assert links(base, device(), device(), device(active_links=count)) == []


@pytest.mark.parametrize(
    ("counter", "counts", "grows"),
    [
        ("replay", (0, 1, 2, 2, 2, 2), True),
        ("recovery", (4, 4, 4, 5, 6, 6), True),
        ("crc", (0, 30_000, 60_000, 90_000, 120_000, 150_000), True),
        ("crc", (0, 10, 20, 30, 40, 50), False),
        ("replay", (0, 0, 0, 9, 9, 9), False),
        ("replay", (9, 9, 0, 9, 9, 10), False),
        ("replay", (0, None, 9, None, 9, 9), False),
    ],
)
def test_errors_of_one_link(base: Result, counter: str, counts: tuple[int | None, ...], grows: bool) -> None:
    found = links(base, device(), device(link_errors=tuple({counter: [0, count]} for count in counts)))
    assert len(found) == grows
    for finding in found:
        assert finding.title == f"The NVLinks of rank 1 are degraded: growing {counter} errors"
        assert [e.filter for e in finding.evidence] == [f"rank 1, {counter} errors of link 1 in this run"]


def test_gpus_without_a_bridge_lack_nothing(base: Result) -> None:
    bridged, single = device(active_links=12), device(active_links=0)
    assert links(base, bridged, bridged, single, single) == []
    assert links(base, *[bridged] * 6, single, single) == []
    (finding,) = links(base, *[bridged] * 7, single)
    assert finding.ranks == (7,)
    assert finding.title.endswith("0 of 12 active")


# -- with a whole run --------------------------------------------------------------------------------------------------


def write(folder: Path, rank: int, records: Device) -> None:
    RunLayout(folder).rank(rank).device.write_bytes(b"".join(encode(record) for record in records))


def test_findings_of_a_run_that_is_otherwise_healthy(tmp_path: Path) -> None:
    run_of(tmp_path, Gpu(mfu=0.4))
    write(tmp_path, 0, device())
    write(tmp_path, 1, device(ecc_uncorrected=1, pcie_width=8, active_links=12))
    result = open_run(tmp_path)
    assert ids(result) == {"unhealthy-memory", "degraded-pcie", "degraded-gpu-links"}
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.COMPUTE, "unhealthy-memory")
    assert (result.verdict.severity, result.verdict.culprit_ranks) == (Severity.CRITICAL, ())
    assert "The speed is healthy: compute-bound" in result.verdict.headline
    assert result.tables.gaps == ()


def test_a_rank_that_the_others_wait_for_comes_first(tmp_path: Path) -> None:
    run_of(tmp_path, Gpu(slower=15 * MS))
    write(tmp_path, 0, device())
    write(tmp_path, 1, device(pcie_width=8))
    result = open_run(tmp_path)
    assert result.verdict.cause == "compute-straggler"
    finding = next(f for f in result.examination.findings if f.id == "degraded-pcie")
    assert finding.action.endswith("The other ranks wait for rank 1: start there.")


def test_a_line_of_wrong_types_is_left_out(tmp_path: Path) -> None:
    run_of(tmp_path, Gpu(mfu=0.4))
    path = RunLayout(tmp_path).rank(1).device
    lines = path.read_bytes()
    path.write_bytes(
        lines + b'{"monotonic_ns": 1, "health": {"pcie_width": "x8"}}\n{"monotonic_ns": 1, "health": [1]}\n'
    )
    result = open_run(tmp_path)
    assert ids(result) == set()
    assert "invalid collector records on 2 of 18 lines; left out" in [gap.reason for gap in result.tables.gaps]


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    run_of(tmp_path, Gpu(mfu=0.4))
    for rank in (0, 1):
        missing = "no sampler for Intel GPUs: clocks, power and errors are not recorded"
        write(tmp_path, rank, [DeviceRecord(1, unavailable=missing)])
    reasons = list(map(str, open_run(tmp_path).coverage.not_looked))
    for question in ("throttled devices", "unhealthy device memory", "degraded device links"):
        assert f"{question}: no sampler for Intel GPUs: clocks, power and errors are not recorded" in reasons


# -- throttling --------------------------------------------------------------------------------------------------------


def clocks(**changes: Any) -> Device:
    return device(**{"sm_clock_mhz": 1980, "power_mw": 600_000, "power_limit_mw": 700_000, **changes})


CAPPED = ["power cap"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sm_clock_mhz": 1200}, "lower clocks"),
        ({"sm_clock_mhz": 1200, "throttle_reasons": ["software thermal"]}, "software thermal"),
        (
            {"sm_clock_mhz": 1200, "power_mw": 300_000, "power_limit_mw": 300_000, "throttle_reasons": CAPPED},
            "power cap, lower power limit",
        ),
        ({"sm_clock_mhz": 1500, "power_mw": 700_000, "throttle_reasons": CAPPED}, ""),
        ({"power_limit_mw": 300_000}, ""),
        ({"sm_clock_mhz": (1980, 1980, 1200, 1980, 1980, 1980)}, ""),
    ],
    ids=["no reason", "hot", "limited", "works more", "limit not reached", "one slow sample"],
)
def test_clocks_against_those_of_the_others(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    run_of(tmp_path, Gpu(slower=15 * MS))
    write(tmp_path, 0, clocks())
    write(tmp_path, 1, clocks(**changes))
    result = open_run(tmp_path)
    assert result.verdict.cause == ("throttled-device" if why else "compute-straggler")
    if why:
        finding = result.examination.findings[0]
        assert f"throttled ({why})" in finding.title
        assert {"rank 1, median SM clock", "the other ranks, median power limit"} <= {
            e.filter for e in finding.evidence
        }


def test_a_single_sample_throttles_nothing(tmp_path: Path) -> None:
    run_of(tmp_path, Gpu(slower=15 * MS))
    write(tmp_path, 0, clocks())
    write(tmp_path, 1, clocks(sm_clock_mhz=900)[:1])
    assert open_run(tmp_path).verdict.cause == "compute-straggler"

"""How reasons are searched for, how HTA's process is watched; none of it needs HTA."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from diag.account import gpu
from diag.crosscheck.analyses import hta_version, parse_request, run_jobs
from diag.crosscheck.model import Measures, Quantity, difference
from diag.errors import DiagError, ExitCode
from diag.model.steps import Kind
from diag.traces.kineto import read_trace
from tests.bench.hta_differences import Departure, compare, device_time
from tests.crosscheck.traces import MS, profiled

DEPARTURES = tuple(Departure(name, f"does {name}", 1) for name in ("a", "b", "c"))


def measures(compute: int, idle: int = 0) -> Measures:
    return Measures(1_000_000, compute, 0, idle, None)


def explained(hta: Measures, worth: dict[str, int]) -> dict[Quantity, list[str]]:
    """Reasons by quantity, where each departure takes so much from our compute of 1,000."""
    found = compare(measures(1_000), hta, DEPARTURES, lambda chosen: measures(1_000 - sum(worth[c] for c in chosen)))
    return {item.quantity: [reason.id for reason in item.reasons] for item in found}


@pytest.mark.parametrize(
    ("hta", "reasons"), [(900, ["a"]), (850, ["b"]), (750, ["a", "b"]), (740, ["a", "b", "c"]), (1_000, []), (500, [])]
)
def test_the_smallest_set_that_closes_the_gap_is_named(hta: int, reasons: list[str]) -> None:
    assert explained(measures(hta), {"a": 100, "b": 150, "c": 10})[Quantity.COMPUTE] == reasons


def test_a_gap_that_nothing_closes_is_not_explained() -> None:
    found = compare(measures(1_000), measures(500), DEPARTURES, lambda chosen: measures(1_000))
    compute = found[list(Quantity).index(Quantity.COMPUTE)]
    assert not compute.explained
    assert compute.residual == compute.difference == pytest.approx(-50)


def test_a_set_that_closes_all_gaps_is_trusted_before_a_smaller_one_that_closes_one_by_chance() -> None:
    def measure(chosen: frozenset[str]) -> Measures:
        compute = 900 if chosen in ({"a"}, {"b", "c"}) else 1_000
        return measures(compute, idle=7 if chosen == {"b", "c"} else 0)

    found = {item.quantity: item for item in compare(measures(1_000), measures(900, 7), DEPARTURES, measure)}
    assert [reason.id for reason in found[Quantity.COMPUTE].reasons] == ["b", "c"]


@pytest.mark.parametrize(
    ("ours", "hta", "expected"), [(100, 95, -5), (0, 5, 100), (5, 0, -100), (0, 0, 0), (None, None, 0), (None, 1, 100)]
)
def test_differences_are_finite(ours: float | None, hta: float | None, expected: float) -> None:
    assert difference(ours, hta, Quantity.IDLE) == pytest.approx(expected)


def test_our_terms_are_those_of_the_partition(tmp_path: Path) -> None:
    trace = profiled(0).kernel(MS, 4 * MS).kernel(3 * MS, 7 * MS, "ncclDevKernel_AllReduce", stream=8)
    read = read_trace(trace.copy(6 * MS, 9 * MS).copy(9 * MS, 10 * MS, "DtoD").write(tmp_path))
    window = (read.begin_ns + 2 * MS, read.begin_ns + 12 * MS)
    step, measured = gpu.partition(read, [(0, *window)], 0)[0].segments, device_time(read).measure(window)
    assert measured.compute_ns == step.total(Kind.COMPUTE) == 3 * MS
    assert measured.non_compute_ns == step.total(Kind.COMM) + step.total(Kind.COPY) == 5 * MS
    assert measured.idle_ns == 2 * MS
    assert measured.overlap_percent == pytest.approx(25)


def test_a_trace_that_ends_hta_s_process_costs_one_answer(tmp_path: Path) -> None:
    script = tmp_path / "hta.py"
    script.write_text(
        "import json, os, sys\n"
        "for job in json.load(sys.stdin):\n"
        "    if job.get('deadly'):\n"
        "        print('out of luck', file=sys.stderr, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "    print(json.dumps({'found': job}), flush=True)\n"
    )
    answers = run_jobs([{"n": 1}, {"deadly": True}, {"n": 3}], script=script)
    assert [answer.found for answer in answers] == [{"n": 1}, {}, {"n": 3}]
    assert answers[1].error == "HTA's process was ended by SIGKILL: out of luck"


def test_without_hta_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("diag.crosscheck.analyses.version", missing)
    with pytest.raises(DiagError) as raised:
        hta_version()
    assert "pip install HolisticTraceAnalysis==" in raised.value.hint


def test_the_package_imports_without_hta() -> None:
    """HTA runs in a process of its own."""
    code = "import sys, diag.crosscheck.analyses; sys.exit('hta' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["paths", "critical-path:rank=x", "sequences:step=1", "critical-path:3"])
def test_a_wrong_request_is_a_usage_error(text: str) -> None:
    with pytest.raises(DiagError) as raised:
        parse_request(text)
    assert raised.value.exit_code == ExitCode.USAGE
    assert "critical-path:rank=0" in raised.value.hint

"""``diag analyze --cross-check hta`` and ``--hta``, as a user calls them.

These need HolisticTraceAnalysis, which `make test` installs with the development tools; elsewhere they are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import diag
from tests.crosscheck.traces import MS, US, profiled

pytest.importorskip("hta", reason="the extra diag[hta] is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks of three steps; the host hands the device one gemm a step."""
    for rank in range(2):
        trace = profiled(0, 10 * MS, 20 * MS, rank=rank)
        for start in (0, 10 * MS, 20 * MS):
            trace.kernel(start + MS, start + 6 * MS, launch=start + US + 100)
        trace.write(tmp_path, f"rank{rank}.json")
    return tmp_path


def test_the_comparison_follows_the_report(folder: Path) -> None:
    ended = diag("analyze", folder, "--cross-check", "hta")
    assert (ended.returncode, ended.stderr) == (0, "")
    report = ended.stdout[ended.stdout.index("Compared with HolisticTraceAnalysis") :]
    assert "-40.00%" in report


def test_the_document_gains_keys_and_loses_none(folder: Path) -> None:
    plain = json.loads(diag("analyze", folder, "--json").stdout)
    ended = diag("analyze", folder, "--json", "--cross-check", "hta", "--hta", "critical-path:rank=1,step=1")
    document = json.loads(ended.stdout)  # nothing of HTA's is on standard output
    assert {key: document[key] for key in plain} == plain
    check = document["cross_check"]
    assert [rank["rank"] for rank in check["ranks"]] == [0, 1]
    window = check["ranks"][0]["comparisons"][0]
    assert (window["quantity"], window["unit"], window["ours"], window["hta"]) == ("window", "ns", 25 * MS, 15 * MS)
    assert window["difference"] == -40
    assert [(found["analysis"], found["rank"], found["step"]) for found in document["hta"]] == [("critical-path", 1, 1)]


def test_the_analyses_taken_from_hta(folder: Path) -> None:
    ended = diag("analyze", folder, "--hta", "critical-path:step=2", "--hta", "sequences:operator=aten::mm,length=1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "HTA's critical path, rank 0, step 2" in ended.stdout
    assert "3 times, 15.000 ms on the device" in ended.stdout
    assert "Beside" not in ended.stdout


def test_a_step_or_rank_that_is_not_there_is_a_message(folder: Path) -> None:
    for request, message in (("critical-path:step=9", "there are steps 0, 1, 2"), ("sequences:rank=7", "ranks 0-1")):
        ended = diag("analyze", folder, "--hta", request)
        assert ended.returncode == 1
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr

"""`diag doctor` says what works on a machine, and what to do about the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from diag.collectors.dcgm import ADDRESS_VARIABLE
from diag.watch import doctor
from diag.watch.doctor import examine
from tests.collectors.test_dcgm import served
from tests.command import diag

WELL = {
    "python": "3.11.7",
    "executable": "/usr/bin/python",
    "torch": "2.11.0+cu130",
    "gpus": ["NVIDIA H100"] * 2,
    "nccl": "2.28.3",
    "plugin": "/opt/libnccl-profiler-inspector.so",
}


def checks_of(
    training: dict[str, object], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> dict[str, tuple[str, str, str]]:
    monkeypatch.setattr(doctor, "_of_training", lambda _python: training)
    return {one.name: (one.status, one.found, one.do) for one in examine(folder, sys.executable)}


def test_a_machine_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = checks_of(WELL, monkeypatch, tmp_path / "runs")
    assert [checks[name][0] for name in ("torch", "GPUs", "NCCL", "NCCL Inspector", "storage")] == ["works"] * 5
    assert "2 x NVIDIA H100" in checks["GPUs"][1]
    assert "RAS" in checks["NCCL"][1]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_looked_at_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = checks_of({"python": "3.11.7", "error": "No module named 'torch'"}, monkeypatch, tmp_path)
    assert checks["torch"][0] == "missing"
    assert "pip install" in checks["torch"][2]
    assert "could not look" in checks["GPUs"][1]


@pytest.mark.parametrize("version", ["2.5.1", "1.13.0+cu117"])
def test_an_old_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    status, _, advice = checks_of(WELL | {"torch": version}, monkeypatch, tmp_path)["torch"]
    assert (status, "2.6" in advice) == ("missing", True)


def test_an_error_of_one_check_is_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("the driver is confused")

    monkeypatch.setattr(doctor, "_nvml", fails)
    checks = checks_of(WELL, monkeypatch, tmp_path)
    assert [found for _, found, _ in checks.values() if "the driver is confused" in found]
    assert len(checks) == 13


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks_of(WELL, monkeypatch, Path("/proc/runs"))["storage"][0] == "missing"


def test_a_python_that_is_not_there_and_the_forms(tmp_path: Path) -> None:
    said = diag("doctor", "--python", "/no/such/python", "--out", tmp_path)
    assert (said.returncode, len(said.stdout.splitlines())) == (0, 13)
    assert "/no/such/python" in said.stdout
    document = json.loads(diag("doctor", "--python", "/no/such/python", "--out", tmp_path, "--json").stdout)
    assert {"name", "status", "found", "do"} == set(document["checks"][0])


def test_the_training_s_python_is_asked() -> None:
    """This one, whose torch the recorder can be imported with."""
    about = doctor._of_training(sys.executable)
    assert about["torch"].startswith("2.")
    assert "error" not in about


def test_the_exporter_of_dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exporter() -> tuple[str, str]:
        return checks_of(WELL, monkeypatch, tmp_path)["DCGM's exporter"][:2]

    with served() as (about, address):
        monkeypatch.setenv(ADDRESS_VARIABLE, address)
        status, found = exporter()
        assert (status, found.startswith(f"{address} tells ")) == ("works", True)
        about.text = "up 1"
        assert exporter() == ("limited", f"{address} tells nothing that is recorded")
        about.status = 503
        assert exporter() == ("limited", f"{address} does not answer: HTTP status 503")
    monkeypatch.setenv(ADDRESS_VARIABLE, "off")
    assert exporter() == ("limited", f"not asked: {ADDRESS_VARIABLE} is off")

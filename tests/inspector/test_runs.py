"""What NCCL Inspector wrote into the run directory of a training on GPUs, and how it comes to write there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diag.api import open_run
from diag.collectors import identity
from diag.collectors.layout import RunLayout
from diag.collectors.settings import SETTINGS_VARIABLE, CollectorSettings
from diag.diagnoses.costs import Cost
from diag.model.steps import Bottleneck
from tests.diagnoses.test_costs import add_up
from tests.diagnoses.test_gpu_runs import COMPUTE, MS, run_directory
from tests.inspector.files import collective, header, lines, metadata

STEPS = 20


def with_durations(run: RunLayout, waits_us: tuple[int, int], version: str = "v4.2") -> RunLayout:
    """Five all-reduces a step; ``waits_us``: of each rank in each of them."""
    for rank, waits in enumerate(waits_us):
        folder = run.rank(rank).inspector
        folder.mkdir(parents=True)
        records = [collective(number, 600 + waits) for number in range(5 * STEPS)]
        text = lines(version, header("0xa", rank, 2), metadata(version, "node-a", 90 + rank), records)
        (folder / f"node-a-pid{90 + rank}.log").write_text(text)
    return run


def test_the_late_rank_of_a_run_without_a_window(tmp_path: Path) -> None:
    run = with_durations(run_directory(tmp_path, (COMPUTE + 50 * MS, COMPUTE), traced=False), (0, 10_000))
    result = open_run(run.root)
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.culprit_ranks, verdict.cause) == (Bottleneck.UNDETERMINED, (0,), "straggler")
    step_ns = COMPUTE + 50 * MS + 4 * MS  # about: data, the all-reduce and the loss
    assert verdict.share == pytest.approx(50 * MS / step_ns, rel=0.05)
    finding = result.cause
    assert finding is not None
    assert finding.cost_ns_per_step == pytest.approx(50 * MS, rel=0.01)
    assert "the durations of 100 collectives" in " ".join(result.coverage.notes)
    assert result.examination.collectives is not None
    shares = result.examination.collectives.shares
    add_up(shares)
    assert shares.share(Cost.STRAGGLER) == pytest.approx(verdict.share, abs=1e-4)
    assert set(shares.blame_ns[Cost.STRAGGLER]) == {0}


@pytest.mark.parametrize("late_us", [10_000, 0])
def test_stragglers_are_looked_for_in_the_durations(tmp_path: Path, late_us: int) -> None:
    """So the answer does not say that it could not look for them, or found none, next to one that it names."""
    run = with_durations(run_directory(tmp_path, (COMPUTE + 50 * MS, COMPUTE), traced=False), (0, late_us))
    examination = open_run(run.root).examination
    assert [finding.id for finding in examination.findings if finding.ranks] == (["straggler"] if late_us else [])
    assert "straggler" not in {item.diagnosis for item in examination.not_looked}
    assert ("stragglers" in examination.not_found) == (not late_us)


def test_communication_that_costs_little_is_ruled_out(tmp_path: Path) -> None:
    run = with_durations(run_directory(tmp_path, (COMPUTE, COMPUTE), traced=False), (0, 10))
    headline = open_run(run.root).verdict.headline
    assert "communication is 4" in headline
    assert "record a profiler window" in headline


def test_a_window_holds_more(tmp_path: Path) -> None:
    run = with_durations(run_directory(tmp_path, (COMPUTE + 50 * MS, COMPUTE), traced=True), (0, 10_000))
    assert open_run(run.root).verdict.cause == "compute-straggler"


def test_damaged_files_are_gaps_of_the_run(tmp_path: Path) -> None:
    run = with_durations(run_directory(tmp_path, (COMPUTE, COMPUTE), traced=False), (0, 10))
    path = next(run.rank(1).inspector.iterdir())
    path.write_bytes(path.read_bytes()[:-30])
    assert "the last line is truncated" in " ".join(gap.reason for gap in open_run(run.root).coverage.skipped)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Variables that are set come back as they were."""
    for name in [name for name in os.environ if name.startswith(("NCCL_", "TORCH_"))]:
        monkeypatch.delenv(name)
    for name in ("NCCL_DEBUG", "NCCL_PROFILER_PLUGIN", "NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(identity, "_PLUGIN_FOLDERS", ())
    return monkeypatch


def prepared(run: RunLayout) -> dict[str, str]:
    before = dict(os.environ)
    try:
        identity.prepare_environment(run.rank(3))
        return {name: value for name, value in os.environ.items() if "INSPECTOR" in name or "PLUGIN" in name}
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize("name", ["libnccl-profiler-inspector.so", "librccl-profiler-inspector.so"])
def test_the_plugin_writes_into_the_rank_s_folder(clean: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    clean.setenv("LD_LIBRARY_PATH", f"/nowhere{os.pathsep}{tmp_path}")
    run = RunLayout(tmp_path / "run")
    variables = prepared(run)
    assert variables["NCCL_PROFILER_PLUGIN"] == str(tmp_path / name)
    assert variables["NCCL_INSPECTOR_DUMP_DIR"] == str(run.rank(3).inspector)
    assert run.rank(3).inspector.is_dir()


def test_not_where_the_plugin_is_missing_or_another_is_loaded_or_it_is_off(
    clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = RunLayout(tmp_path / "run")
    assert prepared(run) == {}
    (tmp_path / "libnccl-profiler-inspector.so").touch()
    clean.setenv("LD_LIBRARY_PATH", str(tmp_path))
    clean.setenv(SETTINGS_VARIABLE, CollectorSettings(collective_timing="off").to_json())
    assert prepared(run) == {}
    clean.delenv(SETTINGS_VARIABLE)
    clean.setenv("NCCL_PROFILER_PLUGIN", "libmine.so")
    assert prepared(run) == {"NCCL_PROFILER_PLUGIN": "libmine.so"}

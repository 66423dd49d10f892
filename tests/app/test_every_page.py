"""Every page opens on runs of every kind and says what it shows, also to who cannot see its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.runs import write_run
from tests.app.shown import RUN_PAGES, shown, text
from tests.inspector.files import write_job
from tests.tables.test_breakdowns import rank_trace, two_ranks

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PAGES = [path for path in RUN_PAGES if path not in ("overview", "timeline", "compare")]  # each has tests of its own


def check(page: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown(page, run, monkeypatch)
    assert len(test.title) == 1
    assert "counted" in test.caption[0].value
    for chart in test.get("plotly_chart"):
        assert chart.proto.alt
    for frame in test.dataframe:
        assert frame.proto.alt


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", ["ddp-healthy", "ddp-straggler-rank0", "fsdp2-slow-link-rank1"])
def test_samples(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(page, SAMPLES / name, monkeypatch)


@pytest.fixture(scope="module")
def of_a_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    two_ranks(folder)
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rank_trace(0).write(tmp_path_factory.mktemp("half"), "rank0.json").parent


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("alone") / "run", ranks=1, steps=3)


@pytest.mark.parametrize("page", RUN_PAGES)
def test_durations_of_collectives_alone(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of NCCL Inspector hold no steps: a page that shows steps says so."""
    write_job(tmp_path / "job", {"0xa": (0, 1, 2)}, lambda rank, *_: 300 if rank == 1 else 2300, count=30)
    test = shown(page, tmp_path / "job", monkeypatch)
    assert "Rank 1 arrives last" in text(test) or page != "overview"


@pytest.mark.parametrize("page", PAGES)
def test_two_ranks_of_a_device(page: str, of_a_device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(page, of_a_device, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_one_of_two_ranks(page: str, half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(page, half, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_records_alone_of_a_rank_alone(page: str, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(page, alone, monkeypatch)

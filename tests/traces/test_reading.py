"""Many files: through the cache, in processes, on a cluster, from archives and stores. Always the same numbers."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest

from diag.account import gpu
from diag.api import Result, open_run
from diag.errors import DiagError
from diag.model import Gap
from diag.traces import kineto
from diag.traces.cache import Cache
from diag.traces.policy import TRACE_READING
from diag.traces.pruning import prune
from diag.traces.reading import Reading, Workers, read_traces
from diag.traces.trace import Trace
from tests.account.kineto_builder import PID, KinetoBuilder, nccl_args
from tests.command import diag
from tests.copies import replace

MS = 1_000_000
STEPS = 4


def rank_file(folder: Path, rank: int, name: str = "", kernels: int = 3, kernel: str = "gemm") -> Path:
    """A rank of a run of two: in each step it computes, the second rank longer, and both reduce."""
    built = KinetoBuilder(rank=rank)
    for step in range(STEPS):
        begin = 10 * MS + step * 50 * MS
        built.step(step, begin, begin + 50 * MS)
        for number in range(kernels):
            built.kernel(begin + number * 1000, begin + number * 1000 + 900, kernel, begin + number * 1000 - 50)
        built.kernel(begin + 20 * MS, begin + (30 + 10 * rank) * MS, launch=begin + 1_000)
        built.kernel(
            begin + (30 + 10 * rank) * MS, begin + 45 * MS, "ncclDevKernel_AllReduce_Sum_f32(x)", begin + 2_000, 20,
            **nccl_args("allreduce", 1000, seq=step),
        )  # fmt: skip
    return built.write(folder, name or f"rank{rank}.json", layout="kineto")


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is large enough for the cache."""
    monkeypatch.setitem(vars(TRACE_READING), "cached_from_bytes", 0)
    monkeypatch.setitem(vars(TRACE_READING), "cached_from_gzip_bytes", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "traces"
    made.mkdir()
    for rank in (0, 1):
        rank_file(made, rank)
    return made


def cached(tmp_path: Path, **settings: Any) -> Reading:
    return Reading(cache=Cache(tmp_path / "cache"), **settings)


def numbers(result: Result) -> Any:
    steps = [(step.step, step.dur_ns, step.parts, step.blames) for step in result.attribution.steps]
    return steps, result.attribution.collectives, replace(result.verdict)


def entries(tmp_path: Path) -> list[Path]:
    return sorted(saved.parent for saved in (tmp_path / "cache").glob("*/*/contents.json"))


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_a_second_opening_reads_no_trace_and_partitions_none(
    folder: Path, tmp_path: Path, small_counts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = open_run(folder, reading=Reading(cache=Cache(None)))
    first = open_run(folder, reading=cached(tmp_path))
    assert len(entries(tmp_path)) == 2

    def never(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(kineto, "read_contents", never)
    monkeypatch.setattr(gpu, "partition", never)
    second = open_run(folder, reading=cached(tmp_path))
    assert numbers(plain) == numbers(first) == numbers(second)
    trace = second.tables.ranks[1].traces[0]
    assert trace.events.equals(plain.tables.ranks[1].traces[0].events)


def test_a_moved_file_is_known_and_a_changed_one_is_not(folder: Path, tmp_path: Path, small_counts: None) -> None:
    open_run(folder, reading=cached(tmp_path))
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    open_run(moved, reading=cached(tmp_path))
    assert len(entries(tmp_path)) == 2
    rank_file(moved, 1, kernels=4)
    result = open_run(moved, reading=cached(tmp_path))
    assert len(entries(tmp_path)) == 3
    assert len(result.tables.ranks[1].traces[0].select("kernel")) == STEPS * 6


@pytest.mark.parametrize("damage", ["empty", "cut", "gone", "other"])
def test_a_damaged_entry_is_made_again(folder: Path, tmp_path: Path, small_counts: None, damage: str) -> None:
    before = numbers(open_run(folder, reading=cached(tmp_path)))
    for entry in entries(tmp_path):
        for file in entry.iterdir():
            content = file.read_bytes()
            if damage == "gone":
                file.unlink() if file.suffix == ".parquet" else None
            else:
                file.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "other": b"PAR1" * 9}[damage])
    assert numbers(open_run(folder, reading=cached(tmp_path))) == before


def test_a_full_disk_costs_time_only(
    folder: Path, tmp_path: Path, small_counts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: pl.DataFrame, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = numbers(open_run(folder, reading=Reading(cache=Cache(None))))
    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    assert numbers(open_run(folder, reading=cached(tmp_path))) == before
    assert entries(tmp_path) == []
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.parent.name != "paths"] == []


def test_a_run_directory_keeps_its_own_tables(tmp_path: Path, small_counts: None) -> None:
    sample = tmp_path / "run"
    shutil.copytree(Path(__file__).parents[2] / "sample_traces" / "fsdp2-slow-wire", sample)
    result = open_run(sample, reading=Reading(cache=Cache(tmp_path / "cache")))
    assert result.verdict.cause
    assert list((sample / "tables").glob("*/*/contents.json"))
    assert entries(tmp_path) == []


def test_the_least_recently_used_entries_go_first(folder: Path, tmp_path: Path, small_counts: None) -> None:
    open_run(folder, reading=cached(tmp_path))
    prune(tmp_path / "cache", limit_gb=0)
    assert entries(tmp_path) == []


# -- processes and clusters --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are worth an entry in the cache of a process that knows nothing of this test's settings."""
    made = tmp_path_factory.mktemp("large")
    for rank in (0, 1):
        rank_file(made, rank, kernels=2_000, kernel="gemm" * 600)
        assert (made / f"rank{rank}.json").stat().st_size > TRACE_READING.cached_from_bytes
    return made


@pytest.fixture(scope="module")
def truth(large: Path) -> Any:
    return numbers(open_run(large, reading=Reading(cache=Cache(None))))


def test_several_processes(large: Path, tmp_path: Path, truth: Any) -> None:
    told: list[tuple[int, int]] = []
    seen = cached(tmp_path, jobs=2, progress=lambda done, total, path: told.append((done, total)))
    assert numbers(open_run(large, reading=seen)) == truth
    assert len(entries(tmp_path)) == 2
    assert {total for _, total in told} == {2}


def test_a_script_without_a_main_guard_may_open_a_run(large: Path, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import diag\nfrom diag.api import Reading\n"
        f"print('ranks', sorted(diag.open_run({str(large)!r}, reading=Reading(jobs=2)).tables.ranks))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "ranks [0, 1]\n"


def test_a_process_that_is_killed_costs_the_file_that_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    workers = Workers(2, str(tmp_path))
    found = [future.result() for future in workers.read(["a.json", "b.json"])]
    workers.close()
    assert ["killed" in item.reason for items in found for item in items] == [True, True]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="the extra diag[cluster] is not installed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_a_dask_cluster_reads_into_the_shared_cache(large: Path, tmp_path: Path, truth: Any, scheduler: str) -> None:
    (large / "notes.json").write_text('{"no": "trace"}')
    result = open_run(large, reading=cached(tmp_path, cluster=scheduler))
    (large / "notes.json").unlink()
    assert numbers(result) == truth
    assert len(entries(tmp_path)) == 2
    assert {trace.path for tables in result.tables.ranks.values() for trace in tables.traces} == {
        str(large / f"rank{rank}.json") for rank in (0, 1)
    }
    assert any(gap.reason.startswith("JSON, but not a Kineto") for gap in result.tables.gaps if "notes" in gap.path)


def test_on_a_cluster_small_traces_of_a_relative_folder_land_in_parquet_too(
    folder: Path, tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = numbers(open_run(folder, reading=Reading(cache=Cache(None))))
    monkeypatch.chdir(tmp_path)
    result = open_run(folder.name, reading=Reading(cache=Cache(Path("cache")), cluster=scheduler))
    assert numbers(result) == truth
    assert len(entries(tmp_path)) == 2
    assert result.tables.ranks[1].traces[0].path == f"{folder.name}/rank1.json"


def test_a_cluster_that_does_not_answer(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra diag[cluster] is not installed")
    monkeypatch.setitem(vars(TRACE_READING), "cluster_timeout_s", 1)
    with pytest.raises(DiagError, match="no Dask scheduler answers"):
        open_run(folder, reading=cached(tmp_path, cluster="tcp://127.0.0.1:9"))
    with pytest.raises(DiagError, match="cache folder"):
        open_run(folder, reading=Reading(cache=Cache(None), cluster="tcp://127.0.0.1:9"))


# -- archives and stores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_of_ranks(folder: Path, tmp_path: Path, small_counts: None, mode: Any) -> None:
    path = tmp_path / ("ranks.tar.gz" if mode == "w:gz" else "ranks.tar")
    with tarfile.open(path, mode) as archive:
        archive.add(folder, "run/profile")
        archive.addfile(tarfile.TarInfo("run/notes.txt"), io.BytesIO())
    truth = numbers(open_run(folder, reading=Reading(cache=Cache(None))))
    for _ in range(2):  # the second time from the cache
        result = open_run(path, reading=cached(tmp_path))
        assert numbers(result) == truth
        assert not result.tables.gaps
    assert result.tables.ranks[1].traces[0].path == f"{path}!run/profile/rank1.json"
    assert len(entries(tmp_path)) == 2


def test_a_packed_run_directory_is_not_judged_by_its_traces(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for rank in (0, 1):
            archive.add(folder / f"rank{rank}.json", f"run/ranks/0000{rank}/trace-step000011.json")
            archive.addfile(tarfile.TarInfo(f"run/ranks/0000{rank}/steps.jsonl"), io.BytesIO())
    with pytest.raises(DiagError) as refused:
        open_run(path, reading=Reading(cache=Cache(None)))
    error = refused.value
    assert (error.path, error.message) == (str(path), "is a packed run directory")
    assert error.hint == "unpack it, and give its folder"


def test_a_store(folder: Path, tmp_path: Path, small_counts: None) -> None:
    store = fsspec.filesystem("memory")
    for path in folder.iterdir():
        store.pipe(f"/bucket/run/{path.name}", path.read_bytes())
    truth = numbers(open_run(folder, reading=Reading(cache=Cache(None))))
    for _ in range(2):
        result = open_run("memory://bucket/run", reading=cached(tmp_path))
        assert numbers(result) == truth
    assert len(entries(tmp_path)) == 2
    one = open_run("memory://bucket/run/rank1.json", reading=cached(tmp_path))
    assert list(one.tables.ranks) == [1]
    store.rm("/bucket", recursive=True)


@pytest.mark.parametrize("address", ["nowhere://bucket/run", "memory://bucket/gone"])
def test_an_address_that_leads_nowhere(address: str) -> None:
    with pytest.raises(DiagError) as caught:
        open_run(address)
    assert address in f"{caught.value.path} {caught.value.message}"


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_the_rank_by_header_by_name_and_by_option(tmp_path: Path) -> None:
    paths = []
    for pid, name in enumerate(("rank5.json", "a.json", "b.json")):
        made = KinetoBuilder(rank=None).step(1, 0, 1000).kernel(10, 900, launch=5)
        text = made.kernel(900, 950, "ncclDevKernel_AllReduce_Sum_f32(x)", 7, 20).text()
        paths.append(str(tmp_path / name))
        Path(paths[-1]).write_text(text.replace(f'"pid": {PID}', f'"pid": {PID + pid}'))
    ranks = {paths[1]: 3, paths[0]: 4}
    found = [item for item in read_traces(paths, Reading(ranks=ranks)) if isinstance(item, Trace)]
    assert [trace.rank for trace in found] == [4, 3, None]
    tables = open_run(tmp_path).tables
    assert sorted(tables.ranks) == [0, 1, 5]
    assert sum("no rank in the file" in gap.reason for gap in tables.gaps) == 2
    done = diag("analyze", paths[1], "--rank", f"{paths[1]}=3")
    assert "\nrank 3 " in done.stdout
    assert diag("analyze", paths[1], "--rank", "3").returncode == 2


def test_what_cannot_be_read_is_a_gap_and_the_rest_is_read(folder: Path) -> None:
    (folder / "rank2.json").write_text('{"traceEvents": [')
    items = list(read_traces(sorted(map(str, folder.glob("*.json"))), Reading(cache=Cache(None))))
    assert [type(item) for item in items] == [Trace, Trace, Gap]

"""A cache on storage that others write to: nothing foreign is removed, and what cannot be read is done without."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from diag.traces.cache import Cache
from diag.traces.reading import Reading, read_file, read_traces
from tests.account.kineto_builder import KinetoBuilder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    made = KinetoBuilder().step(3, 0, 1_000_000, "ProfilerStep#").op("aten::mm", 5_000, 9_500)
    made.kernel(20_000, 300_000, launch=6_000)
    folder = tmp_path / "traces"
    folder.mkdir()
    return made.framed().write(folder, "rank-0.json")


def kept(trace: Path, cache: Path) -> Path:
    """Reads the trace through the cache; its entry."""
    (found,) = read_file(str(trace), str(cache), keep_small=True)
    assert found.key
    (entry,) = cache.glob(f"*/{found.key}")
    return entry


def victim(folder: Path) -> set[str]:
    """A folder of somebody's, with files that have the names of ours, and others."""
    folder.mkdir(parents=True)
    for name in ("contents.json", "names.parquet", "thesis.tex"):
        (folder / name).write_text(name)
    return {path.name for path in folder.iterdir()}


def test_pruning_follows_no_link(trace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    entry = kept(trace, cache)
    files = victim(tmp_path / "victim" / entry.name)
    (tmp_path / "victim" / entry.name / "contents.json").write_bytes((entry / "contents.json").read_bytes())
    (cache / ("0" * 12)).symlink_to(tmp_path / "victim")
    (entry.parent / f"1{entry.name}").symlink_to(tmp_path / "victim" / entry.name)
    Cache(cache).prune(limit_gb=0)
    assert not entry.exists(), "our own entry goes"
    assert {path.name for path in (tmp_path / "victim" / entry.name).iterdir()} == files


def test_pruning_removes_only_files_of_ours_from_entries_of_ours(trace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    entry = kept(trace, cache)
    foreign = entry.parent / "ff-00000000"
    files = victim(foreign)  # its contents.json is none of ours
    with (foreign / "names.parquet").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (entry / "thesis.tex").write_text("mine")
    (entry / "names.parquet").unlink()
    (entry / "names.parquet").symlink_to(foreign / "thesis.tex")
    Cache(cache).prune(limit_gb=0)
    assert {path.name for path in foreign.iterdir()} == files
    assert {path.name for path in entry.iterdir()} == {"thesis.tex", "names.parquet"}


def test_a_file_with_a_hole_counts_what_it_takes_on_the_disk(trace: Path, tmp_path: Path) -> None:
    entry = kept(trace, tmp_path / "cache")
    with (entry / "hole.bin").open("wb") as sparse:
        sparse.truncate(1 << 40)
    Cache(tmp_path / "cache").prune(limit_gb=0.1)
    assert entry.exists()


def test_a_new_entry_spares_a_folder_in_its_place(trace: Path, tmp_path: Path) -> None:
    entry = kept(trace, tmp_path / "cache")
    (entry / "thesis.tex").write_text("mine")
    (entry / "counters.parquet").write_bytes(b"")  # damaged: written anew
    (found,) = read_file(str(trace), str(tmp_path / "cache"), keep_small=True)
    assert (entry / "thesis.tex").read_text() == "mine"
    assert not found.key, "there is no room for the entry"
    assert found.contents is not None


def test_an_entry_is_not_read_through_links(trace: Path, tmp_path: Path) -> None:
    entry = kept(trace, tmp_path / "cache")
    key = entry.name
    assert Cache(tmp_path / "cache").load(key) is not None
    moved = entry.rename(tmp_path / "moved")
    entry.symlink_to(moved)
    assert Cache(tmp_path / "cache").load(key) is None


def test_tables_that_lead_out_of_the_run_are_not_used(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "ranks" / "00000").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (run / "tables").symlink_to(tmp_path / "elsewhere")
    from diag.collectors.layout import RunLayout
    from diag.rundir.run import run_cache

    assert run_cache(RunLayout(run), Cache(None)).folder is None


@pytest.mark.parametrize("umask", [0o002, 0o027, 0o077])
def test_entries_have_the_permissions_that_the_user_gives(trace: Path, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        entry = kept(trace, tmp_path / "cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o777 & ~umask
    assert {stat.S_IMODE(path.stat().st_mode) for path in entry.iterdir()} == {0o666 & ~umask}


def test_an_entry_that_cannot_be_read_is_done_without(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diag.traces.reading._is_large", lambda path: True)
    monkeypatch.setattr(Cache, "load", lambda self, key: None)  # as where another user's entry is in its place
    (found,) = read_traces([str(trace)], Reading(cache=Cache(tmp_path / "cache")))
    assert getattr(found, "rank", None) == 0, found

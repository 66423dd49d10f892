"""A cache on storage that others write to: nothing foreign is removed, and what cannot be read is done without."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
from pathlib import Path

import msgspec
import polars as pl
import pytest

from diag.api import open_run
from diag.show.json import to_dict
from diag.traces.cache import Cache
from diag.traces.pruning import prune
from diag.traces.reading import Reading, read_file, read_traces
from diag.traces.shelf import Seal, Shelf
from tests.account.kineto_builder import KinetoBuilder

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp-straggler-rank0"


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
    prune(cache, limit_gb=0)
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
    prune(cache, limit_gb=0)
    assert {path.name for path in foreign.iterdir()} == files
    assert {path.name for path in entry.iterdir()} == {"thesis.tex", "names.parquet"}


def test_a_file_with_a_hole_counts_what_it_takes_on_the_disk(trace: Path, tmp_path: Path) -> None:
    entry = kept(trace, tmp_path / "cache")
    with (entry / "hole.bin").open("wb") as sparse:
        sparse.truncate(1 << 40)
    prune(tmp_path / "cache", limit_gb=0.1)
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

    assert Cache(None).of_run(RunLayout(run)).folder is None


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


# -- damaged and forged ------------------------------------------------------------------------------------------------


def damage(file: Path, seed: int) -> None:
    """Other bytes in a range of the file, which keeps its size and time."""
    chance, status, content = random.Random(seed), file.stat(), bytearray(file.read_bytes())
    begin = chance.randrange(len(content))
    end = min(len(content), begin + chance.randint(1, 64))
    content[begin:end] = bytes(byte ^ chance.randint(1, 255) for byte in content[begin:end])
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory whose traces are cached in it, and old enough for their keys to be kept."""
    monkeypatch.setattr("diag.traces.reading._is_large", lambda path: True)
    monkeypatch.delenv("DIAG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = shutil.copytree(SAMPLE, tmp_path / "run")
    for file in folder.glob("ranks/*/trace*"):
        os.utime(file, (1e9, 1e9))
    return folder


@pytest.mark.parametrize("seed", range(8))
def test_no_file_of_an_entry_is_read_when_it_is_damaged(trace: Path, tmp_path: Path, seed: int) -> None:
    cache = Cache(tmp_path / "cache")
    entry = kept(trace, tmp_path / "cache")
    shelf = Shelf(entry, entry.name, Seal(b""))
    shelf.save("steps", b"derived" * 20)
    assert cache.load(entry.name) is not None
    pristine = {file: file.read_bytes() for file in entry.iterdir()}
    for file, content in pristine.items():
        if file.name == "contents.json":  # only identifies the folder
            continue
        damage(file, seed)
        loaded = shelf.load("steps") if file.name == "steps.bin" else cache.load(entry.name)
        assert loaded is None, file.name
        file.write_bytes(content)


def test_a_damaged_cache_changes_no_number(run: Path) -> None:
    first = json.dumps(to_dict(open_run(run)))
    tables = shutil.copytree(run / "tables", run.parent / "pristine")
    files = [path.relative_to(tables) for path in sorted(tables.rglob("*")) if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".bin", ".parquet"}
    for seed, damaged in enumerate((files, files[::3], [path for path in files if path.suffix == ".bin"])):
        shutil.rmtree(run / "tables")
        shutil.copytree(tables, run / "tables")
        for path in damaged:
            damage(run / "tables" / path, seed)
        assert json.dumps(to_dict(open_run(run))) == first


def test_what_somebody_else_has_cached_in_a_run_is_not_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_run(run)
    (entry,) = list((run / "tables").glob("*/*/contents.json"))[:1]
    key = entry.parent.name
    assert Cache(run / "tables").load(key) is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.parent / "another home"))
    assert Cache(run / "tables").load(key) is None
    open_run(run)
    mine = {path.parent.parent for path in (run / "tables").glob(f"*/{key}/contents.json")} - {entry.parent.parent}
    for file in entry.parent.iterdir():  # in the place of ours
        shutil.copy2(file, next(iter(mine)) / key / file.name)
    assert Cache(run / "tables").load(key) is None


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_secret_that_others_can_read_is_none(run: Path, mode: int) -> None:
    open_run(run)
    secret = run.parent / "home" / "diag" / "secret"
    secret.chmod(mode)
    key = next((run / "tables").glob("*/*/contents.json")).parent.name
    assert (Cache(run / "tables").load(key) is None) == (mode == 0o644)


def test_a_cache_reads_its_secret_once(run: Path) -> None:
    open_run(run)
    key = next((run / "tables").glob("*/*/contents.json")).parent.name
    cache = Cache(run / "tables")
    assert cache.load(key) is not None
    (run.parent / "home" / "diag" / "secret").unlink()
    assert cache.load(key) is not None


def test_without_a_place_for_the_secret_a_run_has_no_cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.parent / "file"))
    assert open_run(run).verdict.culprit_ranks == (0,)
    assert not list(run.glob("tables/*/*/*.parquet"))


@pytest.mark.parametrize(
    "forged",
    [
        pl.DataFrame({"name": pl.Series(["x"], dtype=pl.String).new_from_index(0, 3_000_000)}),
        pl.DataFrame({"name": [1, 2]}),
        pl.DataFrame({"other": ["x"]}),
    ],
    ids=["more rows than its bytes hold", "another type", "another column"],
)
def test_a_forged_table_is_not_read(trace: Path, tmp_path: Path, forged: pl.DataFrame) -> None:
    entry = kept(trace, tmp_path / "cache")
    file, shelf = entry / "names.parquet", Shelf(entry, entry.name, Seal(b""))
    saved = msgspec.json.decode(shelf.load("contents") or b"")
    forged.write_parquet(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for rows in (1, len(forged)):
        saved["tables"]["names.parquet"] = {"size": file.stat().st_size, "digest": digest, "rows": rows}
        shelf.save("contents", msgspec.json.encode(saved))
        assert Cache(tmp_path / "cache").load(entry.name) is None

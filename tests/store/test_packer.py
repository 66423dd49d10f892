"""What a node's ranks wrote arrives as it is, whatever happens to packers, readers and the store in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from diag.api import local_path, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.packing import HIDDEN, Packing, lock
from diag.errors import DiagError
from diag.rundir.local import copies_folder
from diag.store.packer import Node
from diag.store.policy import SEGMENTS
from diag.store.segments import DamagedSegmentError, decode, newest_of, numbers_of
from diag.store.stores import Store
from tests.pieces import recorded, split

ADDRESS = "memory://bucket/packed"
PACKING = Packing(ADDRESS, 30.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    copies_folder.cache_clear()
    yield
    fsspec.filesystem("memory").store.clear()


NAMES = ("steps.jsonl", "rank.json", "steps-1.jsonl", "log.txt", "trace-step000001.json.gz")


class Unreliable(Store):
    """Fails at times, before or after it has done what was asked."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(ADDRESS)
        self.chance = chance
        self.share = 0.2

    def write(self, name: str, data: bytes) -> None:
        if self.chance.random() < self.share:
            raise DiagError("away")
        super().write(name, data)
        if self.chance.random() < self.share:
            raise DiagError("gone away")

    def remove(self, names: list[str]) -> None:
        for name in names:
            if self.chance.random() < self.share:
                raise DiagError("away")
            super().remove([name])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and HIDDEN not in path.parts and path.name not in ("packer.json", "pieces.json")
    }


def change(folder: Path, chance: random.Random) -> None:
    """What a recorder does to the files of a rank."""
    rank = RunLayout(folder).rank(chance.randrange(2))
    rank.folder.mkdir(parents=True, exist_ok=True)
    path = rank.folder / chance.choice(
        ["steps.jsonl", "rank.json", "steps-1.jsonl", "log.txt", "trace-step000001.json.gz"]
    )
    what = chance.random()
    if what < 0.1:
        path.unlink(missing_ok=True)
    elif path.suffix == ".json" or what < 0.2:
        draft = path.with_name(".draft")
        draft.write_bytes(chance.randbytes(chance.randrange(1, 400)).hex().encode() + b"\n")
        draft.replace(path)
    else:
        with path.open("ab") as file:
            file.write(chance.randbytes(chance.randrange(1, 400)).hex().encode() + b"\n")


@pytest.mark.parametrize("seed", range(4))
def test_everything_arrives_whatever_fails(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("merged_count", 3), ("raw_bytes", 600), ("most_merged_bytes", 20_000)):
        monkeypatch.setitem(vars(SEGMENTS), name, value)
    chance = random.Random(seed)
    folder, store = tmp_path / "node", Unreliable(chance)
    folder.mkdir()
    node = Node(folder, PACKING, store)
    for _ in range(60):
        for _ in range(chance.randrange(4)):
            change(folder, chance)
        if chance.random() < 0.15:  # the packer was killed, and another one goes on
            node = Node(folder, PACKING, store)
        try:
            node.pack()
            node.merge()
        except DiagError:
            continue
        finally:
            if chance.random() < 0.3:
                local_path(ADDRESS)
    store.share = 0.0
    node.pack(last=True)
    while node.merge():
        pass
    assert contents(local_path(ADDRESS)) == contents(folder)
    assert len(store.files("segments")) <= 30


def test_the_nodes_of_a_job_open_as_the_run(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    for piece in split(whole, tmp_path / "pieces", [(0, 1), (2, 3)]):
        Node(piece.root, PACKING).pack(last=True)
    result = open_run(ADDRESS)
    assert result.verdict == open_run(whole.root).verdict
    assert not result.coverage.incomplete
    assert ADDRESS in repr(result)


def test_nodes_of_several_jobs_at_one_address_are_told_apart(tmp_path: Path) -> None:
    for number, job in enumerate(("one", "two")):
        run = recorded(tmp_path / job, job=job, start=(number + 1) * 10**12)
        for piece in split(run, tmp_path / f"pieces-{job}", [(0, 1), (2, 3)]):
            Node(piece.root, PACKING).pack(last=True)
    with pytest.raises(DiagError, match="2 jobs"):
        open_run(ADDRESS)


def test_a_lost_segment_is_said(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    node = Node(run.root, PACKING)
    node.pack()
    for _ in range(3):
        with run.rank(1).log.open("a") as file:
            file.write("another line\n")
        node.pack()
    store = Store(ADDRESS)
    names = sorted(store.files("segments"))
    store.write(names[1], store.read(names[1])[:-1])
    reasons = " ".join(gap.reason for gap in open_run(ADDRESS).coverage.skipped)
    assert "is damaged, or was not written to its end" in reasons
    store.remove([names[1]])
    assert "segment 2 of this node is missing" in " ".join(gap.reason for gap in open_run(ADDRESS).coverage.skipped)


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"DIAGSEG1" + b"\0" * 100])
def test_what_is_no_segment_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedSegmentError):
        decode(data)


def test_weeks_of_segments_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(SEGMENTS), "merged_count", 4)
    folder = tmp_path / "node"
    rank = RunLayout(folder).rank(0)
    rank.folder.mkdir(parents=True)
    store = Store(ADDRESS)
    node = Node(folder, PACKING, store)
    for number in range(300):
        rank.heartbeat.write_text(f"{number}")
        node.pack()
        while node.merge():
            pass
    assert len(newest_of(store.files())) == 1
    assert len(store.files("segments")) <= 3 * 5  # 300 < 4 ** 5
    assert RunLayout(local_path(ADDRESS)).rank(0).heartbeat.read_text() == "299"


def test_a_request_reaches_the_ranks_once(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    RunLayout(folder).ranks_folder.mkdir(parents=True)
    node = Node(folder, PACKING)
    Store(ADDRESS).write("requests/trace_asked.json", b'{"number": 1}')
    node.fetch_request()
    asked = RunLayout(folder).trace_asked
    assert asked.read_bytes() == b'{"number": 1}'
    asked.unlink()
    Node(folder, PACKING).fetch_request()  # after a restart
    assert not asked.exists()


def test_of_two_packers_one_runs(tmp_path: Path) -> None:
    first = lock(tmp_path)
    assert first is not None
    assert lock(tmp_path) is None


def test_numbers_of_names() -> None:
    assert numbers_of("segments/a/0000000001-0000000016.seg") == ("a", 1, 16)
    assert numbers_of("segments/a/0000000016-0000000001.seg") is None
    assert numbers_of("other/a/0000000001-0000000016.seg") is None

"""What a node's ranks wrote arrives as it is, whatever happens to packers, readers and the store in between."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from diag.api import find_jobs, local_path, open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.packing import HIDDEN, Packing, keep_from_cleaners, packer_lock
from diag.collectors.reading import read_object
from diag.collectors.records import Heartbeat
from diag.errors import DiagError
from diag.rundir.local import copies_folder
from diag.store.packer import Node, keep_packing
from diag.store.policy import SEGMENTS
from diag.store.requests import NAME as REQUESTS
from diag.store.requests import ask_nodes, asked_now
from diag.store.segment_names import newest_of, numbers_of
from diag.store.segments import DamagedSegmentError, decode
from diag.store.stores import Store, Version
from diag.watch.reach import Reach
from diag.words.places import shown
from tests.long_run import LongRun
from tests.pieces import edit, recorded, split

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


def test_a_segment_that_is_listed_late_costs_nothing(tmp_path: Path) -> None:
    folder, store = tmp_path / "node", Store(ADDRESS)
    steps = RunLayout(folder).rank(0).steps
    steps.parent.mkdir(parents=True)
    node = Node(folder, PACKING)
    for number in range(4):
        with steps.open("a") as file:
            file.write(f"line {number}\n")
        node.pack()
    second = sorted(store.files())[1]
    content = store.read(second)
    store.remove([second])
    assert local_path(ADDRESS) is not None  # a reader looks before the store lists the second one
    store.write(second, content)
    local = local_path(ADDRESS)
    assert contents(local) == contents(folder)
    assert not RunLayout(local).at("pieces.json").exists() or b"left out" not in (local / "pieces.json").read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_a_segment_that_is_lost_in_the_store_ends_no_merging(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("merged_count", 4), ("most_remembered_bytes", 0)):
        monkeypatch.setitem(vars(SEGMENTS), name, value)
    folder, store = tmp_path / "node", Store(ADDRESS)
    steps = RunLayout(folder).rank(0).steps
    steps.parent.mkdir(parents=True)
    node = Node(folder, PACKING)
    for number in range(12):
        with steps.open("a") as file:
            file.write(f"line {number}\n")
        node.interval()
        if number == 1:
            (second,) = (name for name in store.files() if name.endswith("-0000000002.seg"))
            store.remove([second])
            if content is not None:
                store.write(second, content)
    there = [numbers_of(name) for name in sorted(store.files())]
    wanted = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (9, 12)]
    assert [(found[1], found[2]) for found in there if found] == [
        one for one in wanted if content is not None or one != (2, 2)
    ]


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
        if not number:
            assert len(open_run(ADDRESS).tables.ranks) == 4
    with pytest.raises(DiagError, match="2 jobs"):
        open_run(ADDRESS)
    assert [len(open_run(job.paths[0]).tables.ranks) for job in find_jobs([local_path(ADDRESS)]).jobs] == [4, 4]
    names = [shown(job.paths[0]) for job in find_jobs([local_path(ADDRESS)]).jobs]
    assert all(name.startswith(f"{ADDRESS}/") for name in names)
    assert [len(open_run(name).tables.ranks) for name in names] == [4, 4]  # as the answer says to


@pytest.mark.parametrize("read_before", [True, False])
def test_a_requeue_is_the_next_attempt_of_the_run_on_whichever_nodes(read_before: bool, tmp_path: Path) -> None:
    for number, job in enumerate(("count 0", "count 1")):
        run = recorded(tmp_path / job, job=job, start=(number + 1) * 10**12)
        edit(run.manifest, scheduled="the job")
        for piece in split(run, tmp_path / f"pieces-{job}", [(0, 1), (2, 3)]):
            Node(piece.root, PACKING).pack(last=True)
        if read_before:
            assert len(open_run(ADDRESS).tables.ranks) == 4
    run = RunLayout(local_path(ADDRESS))
    assert [one.root.name for one in run.restarts()] == ["restart-1"]
    begun = [
        {read_object(files.identity, run.root)["job"] for files in one.ranks().values()} for one in (run, run.newest())
    ]
    assert begun == [{"count 0"}, {"count 1"}]
    assert len(open_run(f"{ADDRESS}/restart-1").tables.ranks) == 4
    with pytest.raises(DiagError, match="no such file"):
        open_run(f"{ADDRESS}/restart-2")


def test_a_node_that_was_started_again_counts_its_restarts_anew(tmp_path: Path) -> None:
    """torchrun of the node that stayed counts a restart; the node that came in place of the lost one does not."""
    first, second = (
        recorded(tmp_path / name, job=name, start=at) for name, at in (("one", 10**12), ("two", 2 * 10**12))
    )
    stayed, lost = split(first, tmp_path / "first", [(0, 1), (2, 3)])
    later, new = split(second, tmp_path / "second", [(0, 1), (2, 3)])
    later.root.rename(stayed.restart(1).root)
    for node in (stayed, lost, new):
        Node(node.root, PACKING).pack(last=True)
    run = RunLayout(local_path(ADDRESS))
    assert [len(one.ranks()) for one in (run, *run.restarts())] == [4, 4]
    jobs = {read_object(files.identity, run.root)["job"] for files in run.restart(1).ranks().values()}
    assert jobs == {"two"}


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


@pytest.mark.parametrize("damaged", [True, False])
def test_the_steps_that_a_lost_segment_costs_are_said_with_its_node(damaged: bool, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    lines = {rank: files.steps.read_text().splitlines(keepends=True) for rank, files in run.ranks().items()}
    node = Node(run.root, PACKING)
    for end in (20, 30, 40, 60):  # of 60 steps; those from 20 to 29 are in the second segment
        for rank in (1, 2):
            run.rank(rank).steps.write_text("") if end == 20 else None
            with run.rank(rank).steps.open("a") as file:
                file.writelines(lines[rank][{20: 0, 30: 20, 40: 30, 60: 40}[end] : end])
        node.pack()
    store = Store(ADDRESS)
    second, kept = sorted(store.files("segments"))[1], store.read(sorted(store.files("segments"))[1])
    store.remove([second])
    if damaged:
        store.write(second, kept[:-1])
    gaps = {gap.path: gap.reason for gap in open_run(ADDRESS).coverage.skipped if "missing" in gap.reason}
    (node_path,) = (path for path in gaps if "steps 20 to 59 of ranks 1-2 are missing" in gaps[path])
    assert node_path.rpartition("/")[2] == numbers_of(second)[0]  # type: ignore[index]
    store.write(second, kept)  # it comes late: then nothing is missing
    assert not [gap.reason for gap in open_run(ADDRESS).coverage.skipped if "steps" in gap.reason]


def test_segments_that_are_merged_while_they_are_read_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(SEGMENTS), "merged_count", 3)
    run = recorded(tmp_path / "run")
    node = Node(run.root, PACKING)
    for number in range(3):
        with run.rank(1).log.open("a") as file:
            file.write(f"line {number}\n")
        node.pack()
    files, merges = Store.files, []

    def listed(self: Store, below: str = "") -> dict[str, Version]:
        found = files(self, below)
        merges.append(node.merge())  # and what was listed is removed
        return found

    monkeypatch.setattr(Store, "files", listed)
    assert RunLayout(local_path(ADDRESS)).rank(1).log.read_bytes() == run.rank(1).log.read_bytes()
    assert merges == [True, False], "it was listed again"
    assert not open_run(ADDRESS).coverage.incomplete


def test_a_merged_segment_that_is_half_written_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(SEGMENTS), "merged_count", 3)
    run, store = recorded(tmp_path / "run"), Store(ADDRESS)
    node = Node(run.root, PACKING)
    for number in range(3):
        with run.rank(1).log.open("a") as file:
            file.write(f"line {number}\n")
        node.pack()
    before = {name: store.read(name) for name in store.files()}
    node.merge()
    ((merged,),) = newest_of(store.files()).values()
    store.write(merged[2], store.read(merged[2])[:100])
    for name, data in before.items():  # they are removed after it is written
        store.write(name, data)
    result = open_run(ADDRESS)
    assert RunLayout(local_path(ADDRESS)).rank(1).log.read_bytes() == run.rank(1).log.read_bytes()
    assert not result.coverage.incomplete


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


def test_a_document_that_is_half_written_takes_nothing_back(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    RunLayout(folder).ranks_folder.mkdir(parents=True)
    node, store, trace = Node(folder, PACKING), Store(ADDRESS), RunLayout(folder).trace_asked
    ask_nodes(store, trace.name, b'{"number": 1}')
    node.fetch_requests()
    whole = store.read(REQUESTS)
    for half in (b"", whole[: len(whole) // 2], whole[:-1]):
        store.write(REQUESTS, half)
        node.fetch_requests()
        assert trace.read_bytes() == b'{"number": 1}'
    ask_nodes(store, trace.name, None)
    node.fetch_requests()
    assert not trace.exists()


def test_a_request_that_another_one_overwrote_is_made_again(tmp_path: Path) -> None:
    run, store = recorded(tmp_path / "run"), Store(ADDRESS)
    node = Node(run.root, PACKING)
    (run.root / "packer.json").write_text('{"interval_s": 30}')
    node.pack()
    reach = Reach(ADDRESS)
    before = store.read_if_there(REQUESTS)
    assert before is None
    replace_file(reach.layout.trace_asked, b'{"number": 4}')
    reach.hand_on(reach.layout.trace_asked)
    store.remove([REQUESTS])  # by who had read the document before that
    ask_nodes(store, reach.layout.keep_asked.name, b'{"spans": []}')
    reach.refresh()
    assert asked_now(store).files == {
        reach.layout.trace_asked.name: '{"number": 4}',
        reach.layout.keep_asked.name: '{"spans": []}',
    }
    ask_nodes(store, reach.layout.trace_asked.name, b'{"number": 5}')
    reach.refresh()
    assert asked_now(store).files[reach.layout.trace_asked.name] == '{"number": 5}', "somebody asked after us"
    reach.take_back(reach.layout.trace_asked)
    reach.refresh()
    assert list(asked_now(store).files) == [reach.layout.keep_asked.name]


def test_a_request_reaches_the_ranks_once_and_is_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    RunLayout(folder).ranks_folder.mkdir(parents=True)
    node, store = Node(folder, PACKING), Store(ADDRESS)
    trace, stacks = RunLayout(folder).trace_asked, RunLayout(folder).asked
    ask_nodes(store, trace.name, b'{"number": 1}')
    node.fetch_requests()
    assert trace.read_bytes() == b'{"number": 1}'
    trace.unlink()
    ask_nodes(store, stacks.name, b'{"number": 7}')
    node = Node(folder, PACKING)  # after a restart
    node.fetch_requests()
    assert not trace.exists()
    assert stacks.read_bytes() == b'{"number": 7}'
    ask_nodes(store, stacks.name, None)
    node.fetch_requests()
    assert not stacks.exists()


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"\0" * 40, b'{"files": {"../../.bashrc": "x", "manifest.json": "{}"}}']
)
def test_nobody_writes_other_files_to_a_node_by_a_request(document: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    RunLayout(folder).ranks_folder.mkdir(parents=True)
    Store(ADDRESS).write(REQUESTS, document)
    node = Node(folder, PACKING)
    before = sorted(tmp_path.rglob("*"))
    node.fetch_requests()
    assert sorted(tmp_path.rglob("*")) == before


class _Once:
    """Asked to end after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def asked(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_a_full_disk_of_the_node_is_not_blamed_on_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run")
    monkeypatch.setitem(vars(SEGMENTS), "look_s", 0.01)
    node, full = Node(run.root, Packing(ADDRESS, 0.01)), [True, True, False]

    def replace(path: Path, data: bytes, private: bool = False) -> None:
        if full and full.pop(0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        replace_file(path, data, private)

    monkeypatch.setattr("diag.store.packer.replace_file", replace)
    assert keep_packing(node, Packing(ADDRESS, 0.01), _Once(4)) == 0  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "records wait on this node: the folder on this node cannot be used: No space left on device" in said
    assert str(run.root) in said
    assert "the folder on this node can be used again" in said
    assert "store" not in said
    assert Store(ADDRESS).files("segments")


def test_of_two_packers_one_runs(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from diag.collectors.packing import packer_lock; "
        "lock = packer_lock(pathlib.Path(sys.argv[1])); print(lock.hold(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "True\n"
        assert not packer_lock(tmp_path).is_free()
        first.kill()
    assert packer_lock(tmp_path).is_free()


def test_a_packer_keeps_cleaners_of_temporary_folders_out(tmp_path: Path) -> None:
    descriptor = keep_from_cleaners(tmp_path)
    assert descriptor is not None
    cleaner = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(cleaner)


def test_numbers_of_names() -> None:
    assert numbers_of("segments/a/0000000001-0000000016.seg") == ("a", 1, 16)
    assert numbers_of("segments/a/0000000016-0000000001.seg") is None
    assert numbers_of("other/a/0000000001-0000000016.seg") is None


class Counted(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory that counts what is asked of it."""

    protocol = "counted"
    store: ClassVar[dict[str, object]] = {}
    asked: ClassVar[Counter[str]] = Counter()

    def pipe_file(self, *args: object, **named: object) -> object:
        self.asked["write"] += 1
        return super().pipe_file(*args, **named)

    def cat_file(self, *args: object, **named: object) -> object:
        self.asked["read"] += 1
        return super().cat_file(*args, **named)

    def rm_file(self, *args: object, **named: object) -> object:
        self.asked["remove"] += 1
        return super().rm_file(*args, **named)

    def makedirs(self, *args: object, **named: object) -> object:
        self.asked["folder"] += 1
        return super().makedirs(*args, **named)

    def info(self, *args: object, **named: object) -> object:
        self.asked["look"] += 1
        return super().info(*args, **named)

    def find(self, *args: object, **named: object) -> object:
        self.asked["list"] += 1
        return super().find(*args, **named)


def test_a_node_of_8_ranks_needs_at_most_one_operation_a_rank_and_minute(tmp_path: Path) -> None:
    fsspec.register_implementation("counted", Counted, clobber=True)
    run = RunLayout(tmp_path / "node")
    ranks = [run.rank(rank) for rank in range(8)]
    for rank in ranks:
        rank.folder.mkdir(parents=True)
    node = Node(run.root, Packing("counted://bucket/run", interval_s := 30.0))
    Counted.asked.clear()
    minutes = 120
    for _ in range(round(minutes * 60 / interval_s)):
        for rank in ranks:
            rank.heartbeat.write_text(str(Counted.asked))
            with rank.steps.open("a") as file:
                file.write("a step\n")
        node.interval()
    assert 0 < Counted.asked.total() <= len(ranks) * minutes, Counted.asked


def test_an_outage_within_the_budget_loses_nothing_and_a_longer_one_the_oldest_detail(tmp_path: Path) -> None:
    """Steps of a second, a budget that holds some 1,300 of them in full, and outages of 10 and of 45 minutes."""
    chance = random.Random(0)
    store = Unreliable(chance)
    training = LongRun(tmp_path / "node", 20_500_000, calls=1)
    node = Node(training.folder, PACKING, store)

    def train(minutes: int) -> None:
        for _ in range(2 * minutes):
            training.train(30)
            with suppress(DiagError):
                node.interval()

    def is_stored() -> bool:
        return contents(local_path(ADDRESS)) == contents(training.folder)

    store.share = 0.0
    train(10)
    for minutes in (10, 45):
        store.share = 1.0
        train(minutes)
        store.share = 0.0
        train(1)
        assert is_stored()
        left = open_run(ADDRESS).tables.retained
        if minutes == 10:
            assert left is None
    training.close()
    node.pack(last=True)
    result = open_run(ADDRESS)
    left = result.tables.retained
    assert left is not None
    assert left.first > 20 * 60 > (left.phases_from or 0) >= (left.sums_from or 0) == 0
    assert any(f"steps {left.first:,} to" in note for note in result.coverage.notes)
    assert not training.complaints.messages


def test_what_a_lost_node_did_not_store_is_said_with_its_name(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    kept, lost = split(whole, tmp_path / "pieces", [(0, 1), (2, 3)])
    Node(kept.root, PACKING).pack(last=True)
    lines = {}
    for files in lost.ranks().values():
        for path in (files.steps, files.collectives):
            lines[path] = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[path][:40]))
    Node(lost.root, PACKING).pack()
    for path, every in lines.items():  # what the node's ranks wrote in its last interval
        path.write_bytes(b"".join(every))
    result = open_run(ADDRESS)
    assert [len(result.tables.ranks[rank].steps) for rank in range(4)] == [60, 60, 40, 40]
    said = {gap.path: gap.reason for gap in result.coverage.skipped}
    assert [path.split("/")[-2] for path in said] == ["00002", "00003"]
    assert all("holds 40 of" in reason and "stored by its node's packer" in reason for reason in said.values())


def test_a_run_whose_nodes_are_lost_says_how_much_may_be_missing(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    edit(whole.manifest, exit_code=None)
    for piece in split(whole, tmp_path / "pieces", [(0, 1), (2, 3)]):
        for files in piece.ranks().values():
            files.heartbeat.write_bytes(encode(Heartbeat(0, 10**15, 59, "forward", steps=60)))
        Node(piece.root, PACKING).pack()
    notes = " ".join(open_run(ADDRESS).coverage.notes)
    assert "recorded no end so far: steps of the last 30 seconds, the interval of their packers" in notes

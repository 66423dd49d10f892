"""Writing that survives: cut lines, full disks, budgets, forks."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.collectors.background import Background
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.files import append_to, disk_full, encode, open_private, replace_file, rewrite_file
from diag.collectors.layout import RunLayout, parts_of
from diag.collectors.manifest import read_fields, update_manifest
from diag.collectors.policy import RECORDING
from diag.collectors.reading import read_object
from diag.collectors.records import CollectiveLine, CollectiveRow, Heartbeat, StepRecord
from diag.rundir.lines import read_lines


def line_file(path: Path, budget: int = 1 << 20) -> tuple[LineFile, Complaints]:
    complaints = Complaints(rank=3)
    return LineFile(path, Budget(budget), complaints), complaints


def test_what_is_written_is_read_back_as_the_same_types(tmp_path: Path) -> None:
    file, _ = line_file(tmp_path / "a" / "collectives.jsonl")
    row = CollectiveRow("0", 7, "all_gather", 1024, "float32", 10, 20, 10, 20)
    lines = [CollectiveLine(1, [row], {"0": [0, 1]}), CollectiveLine(2, [row._replace(end_ns=None)])]
    for line in lines:
        file.write(line)
    assert read_lines(tmp_path / "a" / "collectives.jsonl", CollectiveLine) == (lines, [])


def test_a_line_cut_by_a_kill_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    whole = [encode(StepRecord(n, n, n + 1, [])) for n in range(3)]
    for cut in range(1, len(whole[2])):
        path.write_bytes(b"".join(whole[:2]) + whole[2][:cut])
        records, gaps = read_lines(path, StepRecord)
        assert [r.step for r in records] == [0, 1]
        assert len(gaps) == 1
        assert "the last line is truncated" in gaps[0].reason


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(encode(StepRecord(0, 0, 1, [])) + b"\xff\xfe\n{}\n[]\n\n" + encode(StepRecord(1, 1, 2, [])))
    records, gaps = read_lines(path, StepRecord)
    assert [r.step for r in records] == [0, 1]
    assert gaps[0].reason.startswith("invalid collector records on 3 of 5 lines")


def test_a_record_of_one_field() -> None:
    @dataclass
    class One:
        value: int

    assert encode(One(7)) == b'{"value":7}\n'


def test_a_loss_that_is_no_number_is_still_json() -> None:
    assert json.loads(encode(StepRecord(0, 0, 1, [], loss=float("nan"))))["loss"] is None


def numbers(path: Path) -> list[int]:
    return [line["n"] for line in read_lines(path, dict)[0]]


def test_at_the_budget_the_oldest_lines_go_and_the_newest_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file, complaints = line_file(path, budget=400)
    for n in range(100):
        file.write({"n": n, "filler": "x" * 15})
        there = parts_of(path)
        assert sum(part.stat().st_size for part in there) <= 400
        assert len(there) <= 4
        assert numbers(path) == list(range(n + 1 - len(numbers(path)), n + 1))
    assert len(numbers(path)) > 6  # of the 12 that fit
    assert not path.exists()
    assert complaints.messages == []


def test_lines_of_one_write_go_to_several_parts_where_they_do_not_fit_into_one(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file, _ = line_file(path, budget=400)
    assert file.write(*({"n": n, "filler": "x" * 15} for n in range(50))) == 50
    assert sum(part.stat().st_size for part in parts_of(path)) <= 400
    assert numbers(path)[-1] == 49


def test_the_first_line_of_each_part_can_be_completed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file, _ = line_file(path, budget=400)
    file.at_begin = lambda line: line.update(begin=True)
    for n in range(20):
        file.write({"n": n, "filler": "x" * 15})
    for part in parts_of(path):
        lines = [json.loads(line) for line in part.read_text().splitlines()]
        assert [line.get("begin", False) for line in lines] == [True] + [False] * (len(lines) - 1)


def test_a_second_recording_of_a_process_goes_on_behind_the_first(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    first, _ = line_file(path, budget=400)
    first.write(*({"n": n, "filler": "x" * 15} for n in range(50)))
    first.close()
    second, _ = line_file(path, budget=400)
    second.write({"n": 50})
    kept = numbers(path)
    assert kept == list(range(kept[0], 51))
    assert sum(part.stat().st_size for part in parts_of(path)) <= 400


def test_heartbeats_go_on_where_one_could_not_be_written(tmp_path: Path) -> None:
    complaints, layout = Complaints(0), RunLayout(tmp_path / "run").rank(0)
    file = LineFile(layout.device, Budget(1 << 20), complaints)
    beats = iter(range(100))
    background = Background(layout, 60.0, lambda: Heartbeat(next(beats), 0, 0, ""), None, file, complaints)
    background.beat()
    good = layout.folder.rename(tmp_path / "good")
    layout.folder.touch()  # no folder: as where a server is away
    for _ in range(3):
        background.beat()
    layout.folder.unlink()
    good.rename(layout.folder)
    background.beat()
    assert read_object(layout.heartbeat, None)["unix_ns"] == 4
    assert len(complaints.messages) == 1


@pytest.mark.parametrize("arrived", [0, 5])
def test_a_server_that_is_away_for_a_while_costs_the_lines_of_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrived: int
) -> None:
    """``arrived``: bytes of the line that failed which are in the file nevertheless."""
    now_s, write = [1000.0], os.write
    monkeypatch.setattr("diag.collectors.budget.time.monotonic", lambda: now_s[0])
    file, complaints = line_file(tmp_path / "x.jsonl")

    def away(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:arrived])
        raise OSError(errno.EIO, "Input/output error")

    for n in range(12):
        monkeypatch.setattr(os, "write", away if n == 3 else write)
        file.write({"n": n})
        now_s[0] += RECORDING.again_s / 4 + 0.1
    records, gaps = read_lines(tmp_path / "x.jsonl", dict)
    assert [record["n"] for record in records] == [0, 1, 2, 7, 8, 9, 10, 11]
    assert len(gaps) == (1 if arrived else 0)
    assert len(complaints.messages) == 1


def test_a_part_that_cannot_be_removed_pauses_the_stream_and_not_the_training(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file, complaints = line_file(path, budget=400)
    for n in range(10):
        file.write({"n": n, "filler": "x" * 15})
    oldest = parts_of(path)[0]
    oldest.unlink()
    oldest.mkdir()
    for n in range(20):
        file.write({"n": n, "filler": "x" * 15})
    assert len(complaints.messages) == 1
    assert "lines of x.jsonl are left out" in complaints.messages[0]


def test_a_full_disk_costs_lines_and_not_the_training() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    file, complaints = line_file(full)
    file.write({"a": 1})
    file.write({"a": 2})
    assert len(complaints.messages) == 1
    assert "No space left" in complaints.messages[0]


def test_a_disk_that_was_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that do not fit are lost, also one of which a part fitted; the next ones are whole."""
    file, complaints = line_file(tmp_path / "x.jsonl")
    write = os.write
    for step in range(6):
        part = {2: 3, 3: 0}.get(step)
        if part is not None:
            monkeypatch.setattr(os, "write", lambda fd, data, part=part: write(fd, data[:part]))
        file.write(StepRecord(step, 0, 1, []))
        monkeypatch.setattr(os, "write", write)
    records, gaps = read_lines(tmp_path / "x.jsonl", StepRecord)
    assert [record.step for record in records] == [0, 1, 4, 5]
    assert gaps == []
    assert len(complaints.messages) == 1


@pytest.mark.parametrize(("room", "kept"), [(0, 0), (1, 0), (-1, 0), (0, 1), (7, 1), (0, 2), (-1, 2)])
def test_lines_written_together_of_which_some_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, kept: int
) -> None:
    """``room``: bytes beside those of the lines that are kept, or, below 0, short of one more."""
    file, _ = line_file(tmp_path / "x.jsonl")
    steps = [StepRecord(step, 0, 1, []) for step in range(5)]
    size = len(encode(steps[0]))
    fits = (kept + (room < 0)) * size + room
    file.write(steps[0])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:fits]))
    assert file.write(*steps[1:4]) == kept
    monkeypatch.undo()
    assert file.write(steps[4]) == 1
    records, gaps = read_lines(tmp_path / "x.jsonl", StepRecord)
    assert [record.step for record in records] == [0, *range(1, kept + 1), 4]
    assert gaps == []


def test_a_full_disk_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends one file after the other; every one is kept for the heartbeat."""
    complaints = Complaints(3)
    for name in ("steps.jsonl", "collectives.jsonl"):
        complaints.add(f"{name} is no longer written", disk_full("short write"))
    complaints.add("the heartbeat is no longer written", OSError(errno.EIO, "Input/output error"))
    assert len(complaints.messages) == 3
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[3] for line in said] == ["steps.jsonl", "the"]
    assert "further errors of a full disk are not printed" in said[0]


def test_a_complaint_without_standard_error_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)  # as Python sets it where the descriptor is closed
    complaints = Complaints(3)
    complaints.add("steps.jsonl is no longer written", "a reason")
    assert len(complaints.messages) == 1
    assert capsys.readouterr().out == ""


def test_a_forked_loader_worker_writes_nothing(tmp_path: Path) -> None:
    file, _ = line_file(tmp_path / "x.jsonl")
    file.write({"from": "parent"})
    child = os.fork()
    if child == 0:
        file.write({"from": "child"})
        file.close()
        os._exit(0)
    os.waitpid(child, 0)
    file.write({"from": "parent again"})
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 2


def test_replacing_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    replace_file(path, b"old")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_a_small_file_is_rewritten_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for a second one; a file that takes more than a block stays as it was."""
    small, large = tmp_path / "heartbeat.json", tmp_path / "manifest.json"
    for path in (small, large):
        replace_file(path, b"the one before")

    def refuse(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    rewrite_file(small, b"new")
    assert small.read_bytes() == b"new"
    with pytest.raises(OSError, match="No space"):
        rewrite_file(large, b"new" * 2000)
    assert large.read_bytes() == b"the one before"
    with pytest.raises(OSError, match="No space"):
        rewrite_file(tmp_path / "not there", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heartbeat.json", "manifest.json"]


def test_the_manifest_is_merged_key_by_key(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    update_manifest(layout, world_size=2, model={"layers": 6})
    update_manifest(layout, model={"dim": 128}, exit_code=0)
    content = read_fields(layout)
    assert (content["world_size"], content["model"], content["exit_code"]) == (2, {"layers": 6, "dim": 128}, 0)
    with pytest.raises(TypeError, match="no_such_field"):
        update_manifest(layout, no_such_field=1)


def test_a_field_that_is_no_json_costs_one_line_and_not_the_training(tmp_path: Path) -> None:
    file, complaints = line_file(tmp_path / "steps.jsonl")
    for step, loss in enumerate([1.0, object(), object(), 2.0]):
        file.write(StepRecord(step, 0, 1, [], loss=loss))  # type: ignore[arg-type]
    records, _ = read_lines(tmp_path / "steps.jsonl", StepRecord)
    assert [r.step for r in records] == [0, 3]
    assert len(complaints.messages) == 1


def test_nothing_is_written_through_a_link_or_into_a_pipe(tmp_path: Path) -> None:
    """Whoever shares the storage may have put them there."""
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "steps.jsonl").symlink_to(tmp_path / "precious")
    (tmp_path / "stdout.txt").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "device.jsonl")
    for name in ("steps.jsonl", "device.jsonl"):
        file, complaints = line_file(tmp_path / name)
        assert file.write(StepRecord(0, 0, 1, [])) == 0
        assert complaints.messages
    with pytest.raises(OSError, match=r"stdout\.txt"):
        open_private(tmp_path / "stdout.txt")
    with pytest.raises(OSError, match=r"steps\.jsonl"):
        append_to(tmp_path / "steps.jsonl")
    assert (tmp_path / "precious").read_bytes() == b"mine"

"""Files of every kind, whole and damaged: what can be read is read, what cannot is said, nothing raises."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest
import zstandard

from diag.errors import DiagError
from diag.hang.model import Logs
from diag.hang.policy import HANG_READING
from diag.hang.text import read_logs, streams

from .logs import init, nccl, read, write

HUNG = Path(__file__).parents[1] / "captured" / "h200-hang-before-collective-2-ranks"
LINES = [nccl(rank, init(rank, 4)) for rank in range(4)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def ranks(logs: Logs) -> list[int | None]:
    return [process.rank for process in logs.processes]


def said(logs: Logs) -> str:
    return " | ".join(reason for _, reason in logs.gaps)


def test_gzip_and_zstd_are_read_by_content(tmp_path: Path) -> None:
    for name, data in (
        ("a", gzip.compress(TEXT)),
        ("b", zstandard.compress(TEXT)),
        ("c", gzip.compress(TEXT[:300]) + gzip.compress(TEXT[300:])),  # several members
        ("d", zstandard.compress(TEXT[:300]) + zstandard.compress(TEXT[300:])),
        ("e", gzip.compress(TEXT) + bytes(512)),  # padded
    ):
        (tmp_path / name).write_bytes(data)
        logs = read_logs([tmp_path / name])
        assert (ranks(logs), logs.gaps) == ([0, 1, 2, 3], ()), name


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_what_is_left_of_a_cut_off_file_is_read(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    lines = [nccl(rank, init(rank, 4096)) for rank in range(4096)]
    packed = pack("".join(f"{line}\n" for line in lines).encode())
    (tmp_path / "log").write_bytes(packed[: len(packed) // 2])
    logs = read_logs([tmp_path / "log"])
    assert "truncated" in said(logs)
    assert len(logs.processes) > 100


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_damage_and_junk_are_said(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    packed = bytearray(pack(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "log").write_bytes(packed)
    assert any(word in said(read_logs([tmp_path / "log"])) for word in ("corrupt", "truncated"))
    (tmp_path / "log").write_bytes(pack(TEXT) + b"junk")
    logs = read_logs([tmp_path / "log"])
    assert ranks(logs) == [0, 1, 2, 3]
    assert logs.gaps


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_is_given_up(tmp_path: Path, pack: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(pack)
    monkeypatch.setitem(vars(HANG_READING), "bomb_bytes", 1 << 20)
    (tmp_path / "log").write_bytes(pack(TEXT + bytes(64 << 20)))
    logs = read_logs([tmp_path / "log"])
    assert ranks(logs) == [0, 1, 2, 3]
    assert "times its size" in said(logs)


def test_other_packers_and_other_encodings_are_said(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"BZh91AY" + bytes(20))
    assert "bzip2" in said(read_logs([tmp_path / "log"]))
    (tmp_path / "log").write_bytes("\ufeffhello".encode("utf-16-le"))
    assert "UTF-16" in said(read_logs([tmp_path / "log"]))


def test_files_that_are_no_text_are_skipped_and_said(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(b"\x80\x02}q\x00X\x07\x00\x00\x00entries" + bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    write(tmp_path, LINES)
    logs = read_logs([tmp_path])
    assert ranks(logs) == [0, 1, 2, 3]
    assert logs.paths == (str(tmp_path / "job.log"),)
    assert dict(logs.gaps) == {
        str(tmp_path / "dump"): "is not text and was skipped",
        str(tmp_path / "empty"): "is empty",
    }


def test_traces_and_records_of_a_run_are_no_logs(tmp_path: Path) -> None:
    write(tmp_path, ['{"traceEvents": [{"name": "NCCL WARN"}]}'], "trace.json")
    write(tmp_path, ['{"step": 1, "NCCL WARN": 2}'], "steps.jsonl")
    logs = read_logs([tmp_path])
    assert (logs.lines, logs.paths, logs.gaps) == ((), (), ())


def test_records_of_nccl_inspector_are_no_log() -> None:
    """Each of hundreds of lines has the words of a line of NCCL's log ("hostname", "nnodes"). From a real GPU."""
    logs = read_logs([HUNG / "ranks" / "00000" / "inspector"])
    assert (logs.lines, logs.paths, logs.gaps) == ((), (), ())


def test_the_log_of_another_program_gives_nothing(tmp_path: Path) -> None:
    lines = [f'10.0.0.{i} - - [09/Nov/2025:15:39:31 +0000] "GET /{i} HTTP/1.1" 200 {i}' for i in range(100)]
    logs = read(tmp_path, lines, "Cuda failure")
    assert (logs.lines, logs.processes, logs.communicators, logs.world_size, logs.gaps) == ((), (), (), None, ())
    assert [line.number for line in logs.last_lines] == [100]


def test_nuls_and_windows_line_ends_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(5000) + b"\n" + TEXT.replace(b"\n", b"\r\n"))
    logs = read_logs([path])
    assert ranks(logs) == [0, 1, 2, 3]
    assert [line.number for line in logs.lines] == [2, 3, 4, 5]
    assert all(line.text.endswith("COMPLETE") for line in logs.lines)


def test_line_numbers_and_texts_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for step in range(60):
        lines += [f"step {step}", *LINES, f"[rank{step % 4}]: Traceback (most recent call last):"]
        lines += [
            f'[rank{step % 4}]:   File "a.py", line {step}, in f',
            f"[rank{step % 4}]: ValueError: {step}",
            "é" * 50,
        ]
    path = write(tmp_path, lines)
    whole = read_logs([path], ["step "])
    monkeypatch.setitem(vars(HANG_READING), "block_bytes", 700)
    monkeypatch.setitem(vars(HANG_READING), "piece_bytes", 300)
    monkeypatch.setitem(vars(HANG_READING), "packed_piece_bytes", 300)
    assert read_logs([path], ["step "]) == whole
    for line in whole.lines:
        assert lines[line.number - 1] == line.raw


def test_a_very_long_line_is_read_in_pieces_and_kept_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(HANG_READING), "block_bytes", 100_000)
    monkeypatch.setitem(vars(HANG_READING), "piece_bytes", 30_000)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1_000_000 + b" NCCL WARN deep inside " + b"y" * 1_000_000 + b"\n" + TEXT)
    logs = read_logs([path])
    deep, *inits = logs.lines
    assert deep.number == 1
    assert "deep inside" in deep.text
    assert len(deep.raw) < 20_000
    assert [line.number for line in inits] == [2, 3, 4, 5]
    assert "line 1 is longer" in said(logs)


def test_folders_are_searched_once_though_links_lead_back(tmp_path: Path) -> None:
    write(tmp_path, LINES, "a/job.log")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "a/again.log").symlink_to(tmp_path / "a/job.log")
    (tmp_path / "a/gone.log").symlink_to(tmp_path / "nowhere")
    logs = read_logs([tmp_path, tmp_path / "a"])
    assert len(logs.paths) == 1
    assert ranks(logs) == [0, 1, 2, 3]
    assert logs.gaps == ((str(tmp_path / "a/gone.log"), "cannot be read: No such file or directory (2 times)"),)


def test_a_file_that_cannot_be_opened_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, LINES)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(streams, "_opened", refuse)
    assert said(read_logs([path])) == "cannot be read: Permission denied"


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="no such file"):
        read_logs([tmp_path / "nowhere"])


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    logs = read_logs(["-"])
    assert (ranks(logs), logs.paths) == ([0, 1, 2, 3], ("-",))


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    path = write(tmp_path, LINES)
    read_logs([path], progress=lambda done, of, name: told.append((done, of, name)))
    assert told == [(0, 1, str(path)), (1, 1, "")]


def test_stamps_without_a_year_take_the_one_that_the_log_prints(tmp_path: Path) -> None:
    """A log that is copied, or pasted into a ticket, is written later than it was printed; a file of the same run that
    prints no year is of the same one."""
    stamped = "[rank0]:[E1121 22:00:39.413000 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation"
    dated = "[2023-11-21 22:00:38] gpu0:100:150 [0] misc/socket.cc:46 NCCL WARN socketProgress: closed"
    logs = read_logs([write(tmp_path, [dated, stamped], "a.log"), write(tmp_path, [stamped], "b.log")], ["WARN"])
    first, second = [line for line in logs.lines if line.path.endswith("a.log")]
    assert first.time_ns is not None
    assert second.time_ns is not None
    assert 0 < second.time_ns - first.time_ns < 2_000_000_000
    assert [line.time_ns for line in logs.lines if line.path.endswith("b.log")] == [second.time_ns]

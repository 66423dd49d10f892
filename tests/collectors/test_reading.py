"""Reading what others left: regular files only, within the run, and not without end."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from diag.collectors.layout import run_of
from diag.collectors.reading import open_regular, read_given, read_regular, read_tail, walk


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS = {"named pipe": pipe, "device": device, "socket": listening, "folder": Path.mkdir}


def walked(folder: Path, **how: object) -> tuple[list[str], dict[str, str]]:
    refused: dict[str, str] = {}
    found = [str(Path(path).relative_to(folder)) for path in walk(folder, refused.__setitem__, **how)]  # type: ignore[arg-type]
    return found, {str(Path(path).relative_to(folder)): reason for path, reason in refused.items()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    (made / "ranks" / "00000").mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    KINDS[kind](path)
    for read in (lambda: open_regular(path), lambda: read_regular(path, 10), lambda: read_tail(path, 10)):
        with pytest.raises(OSError, match=f"a {kind}, not a regular file"):
            read()


def test_a_run_is_not_left_through_links(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    (run / "inside.txt").write_text("log")
    folder = run / "ranks" / "00000"
    (folder / "to_file").symlink_to(secret)
    (folder / "to_folder").symlink_to(tmp_path)
    (folder / "within").symlink_to("../../inside.txt")
    assert read_regular(folder / "within", 10, run) == b"log"
    for path in (folder / "to_file", folder / "to_folder" / "secret"):
        with pytest.raises(OSError, match="a link that leads out of the run directory"):
            open_regular(path, run)
        assert read_regular(path, 10) == b"key", "of no run the links are the user's own"


def test_a_run_may_be_named_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert read_regular(tmp_path / "latest" / "manifest.json", 10, tmp_path / "latest") == b"{}"
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "file").touch()
    (run / "next").symlink_to("../run-2/file")
    with pytest.raises(OSError, match="leads out"):  # though its name begins like the run's
        open_regular(run / "next", run)


def test_the_run_of_a_file_is_known_by_its_path(run: Path, tmp_path: Path) -> None:
    assert run_of(run / "ranks" / "00000" / "log.txt") == run
    assert run_of(run / "any" / "folder" / "log.txt") == run
    assert run_of(tmp_path / "elsewhere" / "ranks" / "00017" / "log.txt") == tmp_path / "elsewhere"
    assert run_of(tmp_path / "log.txt") is None


def test_sizes_are_capped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert len(read_regular(path, 100)) == len(read_given(path, 100)) == 100
    for read in (read_regular, read_given):
        with pytest.raises(OSError, match=r"too large \(more than 99 bytes\)"):
            read(path, 99)
    os.truncate(path, 1 << 40)  # a terabyte of nothing
    with pytest.raises(OSError, match="too large"):
        read_regular(path, 1 << 20)
    assert read_tail(path, 5) == (b"\0" * 5, False)
    assert len(read_regular("/proc/self/status", 1 << 20)) > 100, "which has no size of its own"


def test_a_walk_says_what_it_leaves_out(run: Path, tmp_path: Path) -> None:
    folder = run / "ranks" / "00000"
    pipe(folder / "pipe.log")
    device(folder / "zero.log")
    (folder / "gone.log").symlink_to("nowhere")
    (tmp_path / "secret.log").write_text("key")
    (folder / "out.log").symlink_to(tmp_path / "secret.log")
    (folder / "in.log").symlink_to("../../manifest.json")
    (folder / "up").symlink_to(tmp_path)
    for start in (tmp_path, run, run / "ranks", folder):
        found, refused = walked(start, wanted=lambda name: name.endswith("log"), follow_folders=True)
        at = folder.relative_to(start)
        assert found == [*(["secret.log"] if start == tmp_path else []), str(at / "in.log")]
        assert refused == {
            str(at / "pipe.log"): "cannot be read: a named pipe, not a regular file",
            str(at / "zero.log"): "cannot be read: a device, not a regular file",
            str(at / "gone.log"): "cannot be read: No such file or directory",
            str(at / "out.log"): "cannot be read: a link that leads out of the run directory",
            str(at / "up"): "cannot be read: a link that leads out of the run directory",
        }


def test_in_a_folder_that_is_no_run_links_are_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rank1.json").touch()
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "rank1.json").symlink_to("../data/rank1.json")
    assert walked(tmp_path / "traces") == (["rank1.json"], {})


def test_a_walk_ends_in_loops_and_in_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    (tmp_path / "a" / "self").symlink_to("self")
    found, refused = walked(tmp_path, follow_folders=True)
    assert (found, list(refused)) == (["a/file"], ["a/self"])
    deep = tmp_path / "deep"
    deep.mkdir()
    below = os.open(deep, os.O_RDONLY)
    for _ in range(3_000):  # beyond what a path may have
        os.mkdir("dd", dir_fd=below)
        below, before = os.open("dd", os.O_RDONLY, dir_fd=below), below
        os.close(before)
    os.close(below)
    try:
        found, refused = walked(deep)
    finally:  # pytest would run into the limit that the walk does not have
        subprocess.run(["rm", "-rf", str(deep)], check=True)
    assert found == []
    assert list(refused.values()) == ["cannot be read: File name too long"]


def test_a_walk_looks_at_so_many_entries(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"f{number}").touch()
    found, refused = walked(tmp_path, most=12)
    assert found == [f"f{number}" for number in range(12)], "in natural order"
    assert refused == {".": "holds more than 12 files and folders: the others were skipped"}

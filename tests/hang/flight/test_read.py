"""Files that are dumps, files that are not, and files that would rather be something else."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.collectors import bounded_pickle
from diag.errors import DiagError
from diag.hang.flight import Dumps, parse, read_dumps
from diag.hang.flight.parse import DumpName, ShapeTable, parse_dump
from tests.forked import forked_python
from tests.hang.flight import torch_pickle
from tests.hang.flight.boards import Groups, dump
from tests.patience import PATIENCE_S

ALL: Groups = {"0": (0, 1)}
PAIRS: Groups = {"0": (0, 1, 2, 3), "1": (2, 3), "2": (1, 3)}


def content(rank: int = 0, groups: Groups = ALL) -> dict[str, object]:
    found = dump(rank, groups, "0:all_reduce 0:all_reduce?")
    for entry in found["entries"]:  # type: ignore[attr-defined]
        entry["process_group"] = tuple(entry["process_group"])
    return found


def why(found: Dumps, name: str) -> str:
    return next((text for path, text in found.gaps if Path(path).name == name), "")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "torch", "json", "gzip", "json.gz", "zst"])
def test_every_form(tmp_path: Path, protocol: int | str) -> None:
    path = tmp_path / "comm_lib_trace_rank_1"
    if isinstance(protocol, int):
        path.write_bytes(pickle.dumps(content(1), protocol))
    elif protocol == "torch":
        path.write_bytes(torch_pickle.dumps(content(1)))
    elif protocol == "json":
        path.write_text(json.dumps(content(1)))
    elif protocol == "zst":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow, which writes the file, is not installed")
        path.write_bytes(arrow.compress(torch_pickle.dumps(content(1)), "zstd", asbytes=True))
    else:
        data = torch_pickle.dumps(content(1)) if protocol == "gzip" else json.dumps(content(1)).encode()
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    found = read_dumps([tmp_path])
    assert found.gaps == ()
    assert [op.title for op in found.dumps[1].pending] == ["all_reduce #2"]
    assert found.dumps[1].pending[0].frames == ("called_all_reduce (train.py:1)",)


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("comm_lib_trace_rank_3", 3, ""),
        ("nccl_trace_rank_3.json", 3, ""),
        ("nccl_trace_rank_gpu-node-01_3", 3, "gpu-node-01"),
        ("_dump_3", 3, ""),
        ("3", 3, ""),
        ("ranks/00003/flight_recorder3", 3, ""),
        ("ranks/00003/flight_recorder", 3, ""),
        ("rank_3/trace.pkl", 3, ""),
    ],
)
def test_rank_and_host_from_the_name(tmp_path: Path, name: str, rank: int, host: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(torch_pickle.dumps(content(0, {"0": (0, 1, 2, 3)})))
    (read,) = read_dumps([tmp_path]).dumps.values()
    assert (read.rank, read.host, read.rank_from) == (rank, host, "the file name")


def test_rank_from_the_groups_goes_before_the_name(tmp_path: Path) -> None:
    (tmp_path / "_dump_1").write_bytes(torch_pickle.dumps(content(3, PAIRS)))
    found = read_dumps([tmp_path])
    assert found.dumps[3].rank_from == "the process groups"
    assert "the file name says rank 1, the process groups say rank 3" in why(found, "_dump_1")


def test_no_rank_anywhere_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(torch_pickle.dumps(content()))
    found = read_dumps([tmp_path])
    assert found.dumps == {}
    assert "rank unknown" in why(found, "trace")


def test_a_pickle_that_would_run_something_does_not(tmp_path: Path) -> None:
    victim = tmp_path / "touched"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {victim}",)

    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "_dump_0").write_bytes(pickle.dumps({**content(), "entries": [Evil()]}, 2))
    (folder / "_dump_2").write_bytes(f"cos\nsystem\n(S'touch {victim}'\ntR.".encode())
    (folder / "_dump_3").write_bytes(f"(S'touch {victim}'\nios\nsystem\n.".encode())
    (folder / "_dump_4").write_bytes(pickle.dumps(Evil(), 4))
    (folder / "_dump_1").write_bytes(torch_pickle.dumps(content(1)))
    found = read_dumps([folder])
    assert not victim.exists()
    assert list(found.dumps) == [1]
    for name in ("_dump_0", "_dump_2", "_dump_4"):
        assert why(found, name) in ("refused: asks for os.system", "refused: asks for posix.system")
    assert why(found, "_dump_2") == "refused: asks for os.system"


_NEST = b"K\x01K\x01\x86" + b"K\x01\x86" * 200_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}(X\x01\x00\x00\x00ar\xff\xff\xff\x7fK\x01u.",  # memo index of two thousand million
        b"\x80\x02}(" + _NEST + b"K\x01u.",  # a tuple 200,000 deep as a key
        b"\x80\x02}(K\x01K\x01\x86q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"K\x01u.",  # one whose hash takes 2^60 steps
        b"\x80\x02" + b"(" * 1_000_000,
        b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        b"\x80\x02}q\x00h\x00s.",
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02}q\x00(X\x07\x00\x00\x00entriesh\x00u.",
        b"\x80\x02\x8b\xff\xff\xff\x7f",  # an integer of 2 GB
        b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
        b"\x80\x02X\xff\xff\xff\x7fabc",  # a text of 2 GB
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00",  # a byte array of 281 TB
        b"\x80\x02P1\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02NN\x86R.",
        b"\x80\x02.",
        b"\x80\x02",
        b"\x80\x02}(](e](eu.",
        b"\x80\x02}(u}.",
        b"\x80\x02e.",
        b"\x80\x02hA.",
    ],
)
def test_programs_that_would_take_memory_or_time(tmp_path: Path, data: bytes) -> None:
    """They are refused, or make something small that is no dump."""
    (tmp_path / "_dump_7").write_bytes(data)
    (tmp_path / "_dump_1").write_bytes(torch_pickle.dumps(content(1)))
    found = read_dumps([tmp_path])
    assert list(found.dumps) == [1]
    assert why(found, "_dump_7") != ""
    assert [lost.rank for lost in found.unreadable] == [7]


def _entries(items: bytes) -> bytes:
    return b"\x80\x02}(X\x07\x00\x00\x00versionq\x00K\x02X\x07\x00\x00\x00entriesq\x01" + items + b"u."


_PRIME = (1 << 61) - 1  # integers with the same remainder have the same hash
_SEQUEL = b"".join(b"}(h\x00h\x02h\x01h\x02uq\x02" for _ in range(60))  # dicts that hold the one before twice

FLOODS: dict[str, Callable[[], tuple[bytes, str]]] = {
    "memo": lambda: (b"\x80\x02]" + b"\x94" * (32 << 20) + b".", "a memo index"),
    "memo gaps": lambda: (
        b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", i * 1000) for i in range(100_000)),
        "a memo index",
    ),
    "stack": lambda: (b"\x80\x02" + b"N" * (64 << 20) + b".", "values in one container"),
    "stack of a list": lambda: (_entries(b"](" + b"N" * (64 << 20) + b"e"), "values in one container"),
    "numbers": lambda: (_entries(b"](" + b"M\x30\x75" * (24 << 20) + b"e"), "values in one container"),
    "lists": lambda: (_entries(b"](" + b"]" * (32 << 20) + b"e"), "containers"),
    "tuples": lambda: (b"\x80\x02]" + b")\x94" * (24 << 20) + b".", "containers"),
    "texts": lambda: (b"\x80\x02" + b"\x8c\x02ab" * (16 << 20) + b".", "values in one container"),
    "keys of one hash": lambda: (
        _entries(
            b"}(" + b"".join(b"\x8a\x10" + (i * _PRIME).to_bytes(16, "little") + b"N" for i in range(99_999)) + b"u"
        ),
        "keys that are not strings",
    ),
    "integer keys": lambda: (
        _entries(b"}(" + b"".join(b"M" + struct.pack("<H", i) + b"N" for i in range(999)) + b"u"),
        "keys",
    ),
    "a list shared a million times": lambda: (
        _entries(b"](]q\x02(" + b"K\x01" * 999_999 + b"e" + b"h\x02" * 1_000_000 + b"e"),
        "counting shared ones each time",
    ),
    "json lists": lambda: (b'{"version":"2","pg_config":{},"entries":[' + b"[]," * (24 << 20) + b"[]]}", "containers"),
    "json numbers": lambda: (b'{"version":"2","pg_config":{},"entries":[' + b"300," * (24 << 20) + b"1]}", "values"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_are_refused_before_they_take_memory(tmp_path: Path, name: str) -> None:
    """Each is a few hundred KB where it is packed, and takes gigabytes, or minutes, where it is obeyed."""
    data, expected = FLOODS[name]()
    path = tmp_path / "_dump_7.gz"
    path.write_bytes(gzip.compress(data, 1))
    command = [*forked_python(), "-c", _READS, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    why, _, megabytes = ended.stdout.strip().rpartition(" ")
    assert why.startswith("refused"), ended
    assert expected in why
    assert int(megabytes) < 150 + 4 * len(data) / 2**20  # the file is unpacked, copied and looked at


_READS = """
import sys
from pathlib import Path
from typing import Any
from diag.hang.flight import read_dumps
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
before = peak()
print(read_dumps([sys.argv[1]]).gaps[0][1], peak() - before)
"""


def test_shared_dicts_are_not_spelled_out(tmp_path: Path) -> None:
    """60 dicts that hold the one before twice: as a text they are 2^60 times as long."""
    frames = b"](}(X\x04\x00\x00\x00nameq\x04h\x02ue"
    data = torch_pickle.dumps(content(1))
    assert data.endswith(b"u.")
    extra = b"X\x01\x00\x00\x00zq\xf0](}(h\x00K\x01uq\x02" + _SEQUEL + b"eX\x06\x00\x00\x00framesq\xf1" + frames
    held = parse.loads(data[:-2] + extra + b"u.")
    assert isinstance(held, dict)
    held["version"] = held["z"][-1]
    for entry in held["entries"]:
        entry["frames"] = held["frames"]
        entry["process_group"] = (entry["process_group"][0], held["z"][-1])
    dump, _ = parse_dump(held, "path", DumpName(1, ""), ShapeTable())
    assert dump is not None
    assert dump.version == "?"
    assert dump.pending[0].frames == ("? (?:?)",)


def test_both_readers_of_pickles_agree() -> None:
    data = torch_pickle.dumps(content())
    bounded_pickle.check(data)
    assert parse.loads(data) == pickle.loads(data) == content()


@pytest.mark.parametrize("size", [1, 2, 30, 300, 700])
def test_a_cut_off_dump_is_a_gap(tmp_path: Path, size: int) -> None:
    whole = torch_pickle.dumps(content())
    assert len(whole) > size
    (tmp_path / "_dump_0").write_bytes(whole[:size])
    (tmp_path / "_dump_1").write_bytes(torch_pickle.dumps(content(1)))
    found = read_dumps([tmp_path])
    assert list(found.dumps) == [1]
    if size > 1:
        assert why(found, "_dump_0").startswith("truncated")


def test_cut_off_json_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(json.dumps(content()).encode()[:-40])
    (tmp_path / "nccl_trace_rank_2.gz").write_bytes(gzip.compress(torch_pickle.dumps(content()))[:-60])
    (tmp_path / "nccl_trace_rank_1").write_bytes(torch_pickle.dumps(content(1)))
    found = read_dumps([tmp_path])
    assert list(found.dumps) == [1]
    assert {lost.rank for lost in found.unreadable} == {0, 2}


def test_an_empty_dump_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "comm_lib_trace_rank_5").touch()
    (tmp_path / "stderr_5.log").touch()
    found = read_dumps([tmp_path])
    assert [lost.rank for lost in found.unreadable] == [5]
    assert len(found.gaps) == 1


def test_what_lies_beside_the_dumps(tmp_path: Path) -> None:
    """Logs, traces, other JSON and a folder and a pipe that are named like dumps: none is read, and none waited for."""
    (tmp_path / "comm_lib_trace_rank_9").mkdir()
    os.mkfifo(tmp_path / "comm_lib_trace_rank_8")
    (tmp_path / "log.txt").write_text("node1:1:1 [0] NCCL INFO Bootstrap")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"a": [1.5, 2.5]}, 2))
    (tmp_path / "nccl_trace_rank_4").write_text('{"version": 1, "other": "pg_config"}')
    (tmp_path / "nccl_trace_rank_6").write_text('{"entries": 5, "pg_config": 7, "version": [], "pg_status": {"a": 1}}')
    (tmp_path / "comm_lib_trace_rank_1").write_bytes(torch_pickle.dumps(content(1)))
    found = read_dumps([tmp_path, "-"])
    assert found.dumps[1].entries == 2
    assert set(found.dumps) <= {1, 6}


def test_entries_of_the_wrong_kind_are_left_out_and_counted(tmp_path: Path) -> None:
    broken = content()
    entries = broken["entries"]
    assert isinstance(entries, list)
    good = entries[1]
    entries += [
        None,
        5,
        {},
        {**good, "process_group": 7},
        {**good, "collective_seq_id": "x"},
        {**good, "record_id": None},
    ]
    entries += [{**good, "collective_seq_id": 3, "record_id": 9, "input_sizes": [["x"]]}]
    entries += [{**good, "collective_seq_id": 10**30, "record_id": 10}]
    (tmp_path / "nccl_trace_rank_0").write_text(json.dumps(broken))
    found = read_dumps([tmp_path])
    assert "entries that are not valid" in why(found, "nccl_trace_rank_0")
    assert found.dumps[0].pending[0].title == "all_reduce #2"


def test_of_two_dumps_of_a_rank_the_one_with_stacks(tmp_path: Path) -> None:
    (tmp_path / "a_0").write_bytes(torch_pickle.dumps(content()))
    bare = content()
    for entry in bare["entries"]:  # type: ignore[attr-defined]
        del entry["frames"]
    (tmp_path / "b_0.json").write_text(json.dumps(bare))
    found = read_dumps([tmp_path])
    assert found.dumps[0].path.endswith("a_0")
    assert "not used" in why(found, "b_0.json")


def test_two_sets_of_dumps_are_not_mixed(tmp_path: Path) -> None:
    """The older hang had a rank more; it must not be joined to the newer one."""
    for folder, ranks, later in (("old", (0, 1), 0), ("new", (0,), 10**12)):
        (tmp_path / folder).mkdir()
        for rank in ranks:
            found = content(rank)
            for entry in found["entries"]:  # type: ignore[attr-defined]
                entry["time_created_ns"] += later
            (tmp_path / folder / f"_dump_{rank}").write_bytes(torch_pickle.dumps(found))
    read = read_dumps([tmp_path])
    assert [Path(dump.path).parent.name for dump in read.dumps.values()] == ["new"]
    assert list(read.dumps) == [0]
    assert len(read.gaps) == 2


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="There is no"):
        read_dumps([tmp_path / "none"])


def test_a_copy_under_another_name_is_not_another_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content(rank), 4))
    (tmp_path / "_dump_2").write_bytes((tmp_path / "_dump_1").read_bytes())
    found = read_dumps([tmp_path])
    assert set(found.dumps) == {0, 1}
    reasons = [reason for path, reason in found.gaps if path.endswith("_dump_2")]
    assert any(reason.startswith("not used: the same file as") for reason in reasons)


def test_a_dump_of_another_job_is_not_used(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content(rank), 4))
    (tmp_path / "_dump_3").write_bytes(pickle.dumps(content(3, PAIRS), 4))
    found = read_dumps([tmp_path])
    assert set(found.dumps) == {0, 1}
    assert why(found, "_dump_3") == "not used: of a job of 4 ranks, most others are of 2"


def test_stacks_leave_out_the_recorder() -> None:
    held: dict[str, Any] = content(1)
    ours = [{"name": "fenced", "filename": "<diag: no caller>", "line": 1}]
    ours += [{"name": "wait", "filename": "/lib/diag/collectors/calls.py", "line": 2}]
    for entry in held["entries"]:
        entry["frames"] = ours[:1] + entry["frames"] + ours[1:]
    dump, _ = parse_dump(held, "path", DumpName(1, ""), ShapeTable())
    assert dump is not None
    assert dump.pending[0].frames == ("called_all_reduce (train.py:1)",)

"""Files that somebody made to break, to fool or to misuse the triage. Each builder fills a folder."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

Builder = Callable[[Path], None]
CANARY = "canary"  # a file that no input may manage to create
MEGABYTE = 1 << 20

WATCHDOG = (
    "[rank3]:[E1121 02:07:08.408271257 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600028 milliseconds "
    "before timing out."
)
ASYNC_EVENT = "gpu001:123:456 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : local catastrophic error"
KILLED = "failed (exitcode: -9) local_rank: 3 (pid: 4242) of binary: /opt/venv/bin/python"
XID = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python, GPU has fallen off the bus."
FORGED = (WATCHDOG, ASYNC_EVENT, KILLED, XID)

HEALTHY = [f"step {n:6d} | loss {9 - n / 100:.4f} | lr 2.99e-04" for n in range(1, 200)] + ["Training completed."]
ESCAPES = ("\x1b]0;owned\x07", "\x1b[31m", "\x1b[2J", "\x9b31m", "\x08" * 9, "\u202e")


def text(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("\n".join(lines) + "\n", errors="surrogatepass")


def among_healthy(*lines: str) -> list[str]:
    return [*HEALTHY[:100], *lines, *HEALTHY[100:]]


# Not text


def random_bytes(folder: Path) -> None:
    rng = random.Random(0)
    for name in ("core.4242", "model.safetensors", "rank_0.log", "comm_lib_trace_rank_0", "nccl_trace_rank_0"):
        (folder / name).write_bytes(rng.randbytes(200_000))


def known_binaries(folder: Path) -> None:
    for name, head in (
        ("a.png", b"\x89PNG\r\n\x1a\n"),
        ("core", b"\x7fELF"),
        ("w.pt", b"PK\x03\x04"),
        ("x.gz", b"\x1f\x8b\x08"),
    ):
        (folder / name).write_bytes(head + bytes(range(256)) * 64)


def empty_files(folder: Path) -> None:
    for name in ("rank_0.log", "comm_lib_trace_rank_0", "a.json", "b.gz", "c.zst", "train.log"):
        (folder / name).touch()


def only_line_ends(folder: Path) -> None:
    (folder / "a.log").write_bytes(b"\n" * 100_000)
    (folder / "b.log").write_bytes(b"\r" * 100_000)
    (folder / "c.log").write_bytes(b"\0" * 100_000)


def other_encodings(folder: Path) -> None:
    (folder / "utf16.log").write_text("\n".join(HEALTHY), encoding="utf-16")
    (folder / "latin1.log").write_bytes("\n".join([*HEALTHY, "Größe überschritten"]).encode("latin-1"))
    (folder / "broken.log").write_bytes(b"\xff\xfe\xfa step 1 loss \xc3\x28 \xed\xa0\x80\n" * 500)


# Archives


def truncated_gzip(folder: Path) -> None:
    rng = random.Random(1)
    whole = gzip.compress("\n".join(f"{line} {rng.random()}" for line in HEALTHY * 20).encode(), mtime=0)
    (folder / "half.log.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "no_end.log.gz").write_bytes(whole[:-6])
    (folder / "wrong_sum.log.gz").write_bytes(whole[:-8] + b"\0" * 8)


def truncated_zstd(folder: Path) -> None:
    """Frames of one raw block, written by hand: whole, and cut short."""
    content = "\n".join(HEALTHY).encode()
    frame = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(content))
    frame += struct.pack("<I", (len(content) << 3) | 1)[:3] + content
    (folder / "whole.log.zst").write_bytes(frame)
    (folder / "half.log.zst").write_bytes(frame[: len(frame) // 2])
    (folder / "head.log.zst").write_bytes(frame[:5])
    (folder / "not.log.zst").write_bytes(b"step 1 | loss 2.0\n" * 100)


def gzip_bomb(folder: Path) -> None:
    """80 MB without a line end, in 80 kB."""
    (folder / "bomb.log.gz").write_bytes(gzip.compress(b"\0" * (80 * MEGABYTE), mtime=0))


# Long


def one_long_line(folder: Path) -> None:
    with (folder / "train.log").open("wb") as file:
        for _ in range(50):
            file.write(b"x=0.125, " * (MEGABYTE // 9))


def one_long_line_with_everything(folder: Path) -> None:
    """What looks like messages, over and over on a single line: where scanning can take quadratic time."""
    pieces = (
        "[rank0]:", "[", "(", "[1,3]<stdout>:", "gpu01:1:2 [0] NCCL INFO ", "[default0]:", "\x1b[36m", "2024-01-01T00:00:00Z ",
        "(RayTrainWorker pid=1, ip=10.0.0.1) ", "comm 0x1 rank 0 nranks 2 ", "WorkNCCL(", " " * 8, "0", ": ", "[PG ID 0 PG GUID ",
        "a" * 5 + ":", "- Init START", "Call to recv from ",
    )  # fmt: skip
    for n, piece in enumerate(pieces):
        text(folder, f"{n}.log", piece * (400_000 // len(piece)))


def very_many_lines(folder: Path) -> None:
    with (folder / "train.log").open("w") as file:
        for n in range(300_000):
            file.write(f"gpu{n % 5}:{n % 40 + 100}:{n} [0] NCCL INFO Channel 00/0 : {n % 8}[0] -> 1[1] via P2P/IPC\n")


# Forged


def forged_json(folder: Path) -> None:
    """A training that prints records which quote such messages."""
    lines = [json.dumps({"step": n, "last_seen_error": message}) for n, message in enumerate(FORGED)]
    text(folder, "train.log", *among_healthy(*lines))


def forged_strings(folder: Path) -> None:
    lines = [f'expected_error = "{message}"' for message in FORGED]
    lines += [f"    >>> log.find('{message}')" for message in FORGED]
    lines += [f"assert {message!r} not in log  # ok" for message in FORGED]
    text(folder, "train.log", *among_healthy(*lines))


def forged_samples(folder: Path) -> None:
    """A language model whose training text is about such failures."""
    lines = [f"sample 17: User: my job says `{message}` what now? Assistant: First look at" for message in FORGED]
    lines += [f"[rank0]: prompt={message!r}" for message in FORGED]
    text(folder, "train.log", *among_healthy(*lines))


# Names and numbers


def escapes_in_names(folder: Path) -> None:
    lines = []
    for n, escape in enumerate(ESCAPES):
        host = f"gpu{escape}0{n}"
        lines += [
            f"{host}:{100 + n}:{200 + n} [0] NCCL INFO comm 0x5581 rank {n} nranks 6 cudaDev 0 nvmlDev 0 busId 7000 commId 0x77 - Init COMPLETE",
            "",
            f"{host}:{100 + n}:{200 + n} [0] transport/net_ib.cc:95 NCCL WARN NET/IB : {escape} Got async event : local catastrophic error",
            f"  host      : {host}",
        ]
    text(folder, "train\x1b[31m.log", *lines)


def absurd_numbers(folder: Path) -> None:
    lines = [
        "gpu01:1:2 [0] NCCL INFO comm 0x5581 rank 0 nranks 2147483647 cudaDev 0 busId 7000 commId 0x77 - Init COMPLETE",
        "gpu01:99999999999999999999:2 [0] NCCL INFO comm 0x5581 rank 99999999999999999999 nranks -1 cudaDev 0 busId 7000 commId 0x77 - Init COMPLETE",
        "[rank2147483646]:[E9999 99:99:99.999999999 ProcessGroupNCCL.cpp:629] [Rank 2147483646] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=18446744073709551616, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=4000000000, Timeout(ms)=0) ran for -1 milliseconds before timing out.",
        "gpu01:1:2 [0] NCCL INFO AllReduce: opCount ffffffffffffffffffffff sendbuff 0x1 recvbuff 0x2 count 99999999999999999999999 datatype 99 op 9 root -5 comm 0x5581 [nranks=0] stream 0x1",
        f"[rank{'9' * 5000}]: x",
        "  rank      : 0 (local_rank: -99999999999999999)",
        "[2024-13-45 99:99:99] gpu01:1:2 [0] a.cc:1 NCCL WARN x",
        f"RANK={'1' * 5000}",
    ]
    text(folder, "train.log", *lines)


# Dumps


class _Creates:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.system, (f"touch {self.path}",)


class _Opens(_Creates):
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return io.open, (self.path, "w")


def _dump(**more: object) -> dict[str, object]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.9", "nccl_version": "2.27.3", "pg_config": config, "pg_status": {}, "entries": [], **more}


def pickles_with_code(folder: Path) -> None:
    target = folder.parent / CANARY
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for number, what in enumerate((_Creates(target), _Opens(target))):
            (folder / f"comm_lib_trace_rank_{protocol}{number}").write_bytes(pickle.dumps(what, protocol))
            hidden = _dump(entries=[{"record_id": 0, "process_group": ("0", what)}])
            (folder / f"nccl_trace_rank_{protocol}{number}").write_bytes(pickle.dumps(hidden, protocol))
    (folder / "_dump_0").write_bytes(b"cposix\nsystem\n(S'touch " + str(target).encode() + b"'\ntR.")
    (folder / "_dump_1").write_bytes(b"\x80\x04\x82\x01.")  # an extension code
    (folder / "_dump_2").write_bytes(b"Pid\n.")  # a persistent id


def ranks_with_code(folder: Path) -> None:
    """pg_config holds its ranks as text, which torch's own tool evaluates."""
    code = f"[__import__('os').system('touch {folder.parent / CANARY}')]"
    content = _dump(pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": code}})
    (folder / "comm_lib_trace_rank_0").write_bytes(pickle.dumps(content, 2))
    (folder / "comm_lib_trace_rank_1.json").write_text(json.dumps(content))


def pickles_that_grow(folder: Path) -> None:
    """Ten lists of ten, thirty times over, in a few hundred bytes; sizes that no file can hold; depth without end."""
    nested: list[object] = ["x"]
    for _ in range(30):
        nested = [nested] * 10
    (folder / "comm_lib_trace_rank_0").write_bytes(pickle.dumps(_dump(entries=nested), 2))
    (folder / "comm_lib_trace_rank_1").write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.")
    (folder / "comm_lib_trace_rank_2").write_bytes(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".")
    (folder / "comm_lib_trace_rank_3").write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")  # LONG_BINPUT at 2**31
    (folder / "comm_lib_trace_rank_4").write_bytes(pickle.dumps(_dump(version=10**4000), 2))


def dumps_of_wrong_types(folder: Path) -> None:
    shapes: list[object] = [
        None, 5, [], "2.9", {"version": "2.9"}, {"version": 2.9, "entries": 7}, _dump(entries={"a": 1}), _dump(pg_config=[1]),
        _dump(entries=[None, 3, {}, {"record_id": "x", "process_group": 5, "profiling_name": None, "input_sizes": "big"}]),
        _dump(pg_config={"0": {"ranks": "[0, 1, 2"}}), _dump(pg_config={"0": {"ranks": "[" * 5000}}),
        _dump(pg_config={"0": {"name": "0", "desc": "", "ranks": str([2**70, -1])}}),
        _dump(pg_status={"0": {"last_enqueued_collective": "many"}}), {1: 2, (3, 4): {5}}, b"bytes", float("nan"),
    ]  # fmt: skip
    for n, shape in enumerate(shapes):
        (folder / f"comm_lib_trace_rank_{n}").write_bytes(pickle.dumps(shape, 2))
        (folder / f"fr_{n}.json").write_text(json.dumps(shape, default=str, skipkeys=True))
    whole = pickle.dumps(_dump(entries=[{"record_id": n} for n in range(50)]), 2)
    (folder / "comm_lib_trace_rank_98").write_bytes(whole[: len(whole) // 2])


def deep_json(folder: Path) -> None:
    (folder / "comm_lib_trace_rank_0.json").write_text(
        '{"version": "2.10", "entries": ' + "[" * 200_000 + "]" * 200_000 + "}"
    )
    (folder / "comm_lib_trace_rank_1.json").write_text('{"version": "2.10", "entries": ' + "[" * 200_000)
    (folder / "comm_lib_trace_rank_2.json").write_text(
        '{"version": "2.10", "pg_config": {}, "entries": [' + "9" * 20_000 + "]}"
    )


# The file system


def odd_files(folder: Path) -> None:
    """A pipe that nobody writes to, links in a circle and into nowhere, a folder that is called like a log."""
    os.mkfifo(folder / "comm_lib_trace_rank_0.pipe")
    (folder / "loop").symlink_to(folder)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "gone.log").symlink_to(folder / "nowhere")
    (folder / "rank_0.log").mkdir()
    (folder / "zero.log").symlink_to("/dev/zero")
    text(folder, "train.log", *HEALTHY)


INPUTS: dict[str, Builder] = {
    builder.__name__: builder
    for builder in (
        random_bytes, known_binaries, empty_files, only_line_ends, other_encodings, truncated_gzip, truncated_zstd, gzip_bomb,
        one_long_line, one_long_line_with_everything, very_many_lines, forged_json, forged_strings, forged_samples,
        escapes_in_names, absurd_numbers, pickles_with_code, ranks_with_code, pickles_that_grow, dumps_of_wrong_types,
        deep_json, odd_files,
    )
}  # fmt: skip

# Nothing in these went wrong, or nothing in them says so.
INNOCENT = (
    "random_bytes", "known_binaries", "empty_files", "only_line_ends", "other_encodings", "truncated_gzip", "truncated_zstd",
    "gzip_bomb", "one_long_line", "very_many_lines", "forged_json", "forged_strings", "forged_samples", "pickles_with_code",
    "ranks_with_code", "pickles_that_grow", "odd_files",
)  # fmt: skip

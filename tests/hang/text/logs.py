"""Small logs to read: the lines of NCCL for a number of ranks, files, and what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diag.hang.model import Logs
from diag.hang.text import read_logs


def read(folder: Path, lines: Iterable[str], *anchors: str, name: str = "job.log") -> Logs:
    return read_logs([write(folder, lines, name)], anchors)


def write(folder: Path, lines: Iterable[str], name: str = "job.log") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), newline="")
    return path


def nccl(rank: int, text: str, *, host: str = "", pid: int | None = None, each: int = 8) -> str:
    """A line of a rank with ``each`` ranks a host."""
    pid = 1000 + rank if pid is None else pid
    return f"{host or f'gpu{rank // each}'}:{pid}:{pid + 50} [{rank % each}] NCCL INFO {text}"


def init(
    rank: int, size: int, *, comm: str = "", name: str = "0xabc", stage: str = "COMPLETE", device: int | None = None
) -> str:
    """Of NCCL 2.18 to 2.20."""
    device = rank % 8 if device is None else device
    comm = comm or f"0x55{rank:04x}"
    return (
        f"comm {comm} rank {rank} nranks {size} cudaDev {device} nvmlDev {device} busId {device}b000 commId {name} "
        f"- Init {stage}"
    )


def call(op: str, count: int, comm: str, elements: int = 1024) -> str:
    return (
        f"{op}: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f01 count {elements} datatype 9 op 0 root 0 comm {comm} "
        "[nranks=2] stream 0x99"
    )

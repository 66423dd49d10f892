"""Records the sample runs again: python sample_traces/record.py [NAME ...]

Each is a run of the bundled trainer with the fault that its name says. Afterwards the traces are compressed at gzip's
highest level, and names of the recording machine (host name, folders) are replaced.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMON = ["--steps", "24", "--trace-active", "1", "--trace-skip", "14"]
SAMPLES = {
    "ddp-healthy": ["--strategy", "ddp", "--preset", "small", "--seq-len", "64", "--steps", "16", "--trace-skip", "9"],
    "ddp-slow-loader-all": ["--strategy", "ddp", "--inject", "slow-loader:ms=150"],
    "ddp-straggler-rank0": ["--strategy", "ddp", "--nproc", "4", "--inject", "straggler:rank=0,ms=150"],
    "fsdp2-not-overlapped": ["--strategy", "fsdp2"],
    "fsdp2-root-only": ["--strategy", "fsdp2", "--wrap", "root", "--preset", "small", "--batch-size", "1"],
    "fsdp2-slow-link-rank1": ["--strategy", "fsdp2", "--inject", "slow-wire:rank=1"],
    "fsdp2-slow-loader-rank1": ["--strategy", "fsdp2", "--inject", "slow-loader:rank=1,ms=300"],
    "fsdp2-slow-wire": ["--strategy", "fsdp2", "--inject", "slow-wire"],
    "fsdp2-straggler-rank0": ["--strategy", "fsdp2", "--inject", "straggler:rank=0,phase=backward"],
}


def compressed(trace: bytes) -> bytes:
    """A trace without the names of its machine and its file, at gzip's highest level."""
    content = json.loads(trace)
    content.pop("traceName", None)
    content["host_name"] = "sample"
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0)


def record(name: str, options: list[str]) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "diag", "run", *COMMON, *options, "--out", str(folder)]
    subprocess.run(command, check=True)
    for trace in folder.glob("ranks/*/trace-*.json.gz"):
        trace.write_bytes(compressed(gzip.decompress(trace.read_bytes())))
    for identity in folder.glob("ranks/*/rank.json"):
        content = json.loads(identity.read_text())
        identity.write_text(json.dumps({**content, "host": "sample", "boot_id": "sample"}) + "\n")
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["argv"] = ["run", *COMMON, *options]
    manifest.write_text(json.dumps(content, indent=1) + "\n")
    for empty in folder.rglob("*.txt"):
        if not empty.stat().st_size or empty.name == "log.txt":
            empty.unlink()  # log.txt: messages of the profiler
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{name}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SAMPLES:
        record(chosen, SAMPLES[chosen])

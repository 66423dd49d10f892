"""Real failures: runs the bundled trainer with a planted fault and keeps its logs and Flight Recorder dumps.

``python -m tests.hang.capture [NAME ...]`` writes ``tests/hang/captured/<name>/`` with ``truth.json`` beside the files.
Host names and paths are replaced by neutral ones. ``--list`` shows the names.

Gloo writes no Flight Recorder dump when it times out, as NCCL's watchdog does. So a thread in each rank writes one when
the recorder has not changed for two seconds: ranks that are stuck leave a dump, ranks that died leave none.

Those whose name begins with ``h200`` are whole run directories from a GPU, which ``tests.recorded`` copied.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

CAPTURED = Path(__file__).parent / "captured"
HOST = "node-a"
KEPT = ("stdout.txt", "log.txt", "nccl.log", "error.json", "rank.json")  # of a rank
TIMEOUT_S = 12  # of a collective: what a rank that waits for a stuck one takes to give up

# Runs in every process before its program, as sitecustomize; only ranks have RANK.
DUMPER = """
import os, sys, threading, time

def watch():
    seen, since = None, time.monotonic()
    path = os.path.join(os.environ["CAPTURE_DUMPS"], "comm_lib_trace_rank_" + os.environ["RANK"])
    while True:
        time.sleep(0.25)
        c10d = sys.modules.get("torch._C._distributed_c10d")
        dist = sys.modules.get("torch.distributed")
        if c10d is None or not hasattr(dist, "is_initialized") or not dist.is_initialized():
            continue
        trace = c10d._dump_fr_trace()
        if trace != seen:
            seen, since = trace, time.monotonic()
            if os.path.exists(path):
                os.remove(path)  # it was only slow
        elif since and time.monotonic() - since > 2:
            since = 0
            with open(path, "wb") as out:
                out.write(trace)

if "RANK" in os.environ and "CAPTURE_DUMPS" in os.environ:
    threading.Thread(target=watch, daemon=True).start()
"""


@dataclass(frozen=True)
class Capture:
    """A run and what was planted in it. ``accept``: other classes that its evidence can honestly be read as."""

    name: str
    inject: str
    ranks: int
    fault_class: str
    culprits: tuple[int, ...]
    strategy: str = "fsdp2"
    detail: bool = False
    accept: tuple[str, ...] = ()
    accept_culprits: tuple[tuple[int, ...], ...] = ()
    notes: str = ""


def _captures() -> list[Capture]:
    skipped = (
        "A rank left out a reduction; its later calls pair with the wrong calls of the others, so the evidence is "
        "either a different sequence number, or two different calls at one number."
    )
    early_exit = "The rank ended by itself with code 7 and no traceback: no class of its own exists for that."
    found = []
    for ranks in (2, 4):
        culprit = ranks - 1
        both = ((0, 1),) if ranks == 2 else ()
        for detail in (False, True):
            tail = f"{ranks}-ranks" + ("-detail" if detail else "")

            def add(name: str, inject: str, fault_class: str, **more: Any) -> None:
                found.append(Capture(
                    f"{name}-{tail}", inject, ranks, fault_class, (culprit,), detail=detail, **more  # noqa: B023
                ))  # fmt: skip

            where = f"rank={culprit},step=3"
            add("skip-collective", f"skip-collective:{where}", "desync",
                accept=("mismatch_op", "mismatch_shape"), accept_culprits=both, notes=skipped)  # fmt: skip
            add("mismatched-shape", f"mismatched-shape:{where}", "mismatch_shape",
                accept_culprits=both, notes="Two ranks: either may be wrong.")  # fmt: skip
            add("sigkill", f"die:{where},how=sigkill", "rank_killed_sigkill")
            add("exception", f"die:{where},how=exception", "rank_killed_exception")
            add(
                "exit",
                f"die:{where},how=exit,code=7",
                "rank_killed_exception",
                accept=("missing_rank",),
                notes=early_exit,
            )
            add("hang-loader", f"hang:{where},where=loader", "missing_rank")
            add("hang-collective", f"hang:{where},where=collective", "missing_rank")
    found.append(Capture("healthy-2-ranks", "", 2, "healthy", ()))
    found.append(Capture("healthy-4-ranks-detail", "", 4, "healthy", (), detail=True))
    for name, inject, fault in (
        ("sigkill", "die:rank=1,step=3,how=sigkill", "rank_killed_sigkill"),
        ("exception", "die:rank=1,step=3,how=exception", "rank_killed_exception"),
        ("hang-collective", "hang:rank=1,step=3,where=collective", "missing_rank"),
    ):
        found.append(Capture(f"ddp-{name}-2-ranks", inject, 2, fault, (1,), strategy="ddp"))
    return found


def neutral(text: str, replaced: dict[str, str]) -> str:
    """The text without the names of this machine, the longest first."""
    for old in sorted(replaced, key=len, reverse=True):
        text = text.replace(old, replaced[old])
    return text


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a dump")


def neutral_value(value: Any, replaced: dict[str, str], shared: dict[str, Any]) -> Any:
    """Equal frames and strings become one object, which pickle writes once: a third of the size."""
    if isinstance(value, str):
        return shared.setdefault(f"text {value}", neutral(value, replaced))
    if isinstance(value, dict):
        copied = {neutral_value(k, replaced, shared): neutral_value(v, replaced, shared) for k, v in value.items()}
        return shared.setdefault(repr(copied), copied) if "filename" in copied else copied
    if isinstance(value, (list, tuple)):
        return type(value)(neutral_value(item, replaced, shared) for item in value)
    return value


def neutral_dump(content: bytes, replaced: dict[str, str]) -> bytes:
    """The dump with other names in its frames; a dump cut short keeps its length, its names become x."""
    try:
        loaded = PlainUnpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError):
        for old in sorted(replaced, key=len, reverse=True):
            content = content.replace(old.encode(), b"x" * len(old.encode()))
        return content
    return pickle.dumps(neutral_value(loaded, replaced, {}), protocol=2)


def capture(case: Capture, out: Path) -> None:
    """Runs the training and keeps what it left."""
    repository = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory(prefix="capture-") as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "diag", "run", "--strategy", case.strategy, "--nproc", str(case.ranks)]
        command += ["--steps", "6", "--no-trace", "--num-workers", "0", "--timeout", str(TIMEOUT_S), "--out", str(run)]
        command += ["--inject", case.inject] if case.inject else []
        dumps, site = Path(scratch) / "dumps", Path(scratch) / "site"
        dumps.mkdir()
        site.mkdir()
        (site / "sitecustomize.py").write_text(DUMPER)
        environment = dict(
            os.environ,
            PYTHONPATH=f"{repository}{os.pathsep}{site}",
            CAPTURE_DUMPS=str(dumps),
            TORCH_DISTRIBUTED_DEBUG="DETAIL" if case.detail else "OFF",
        )
        ended = subprocess.run(
            command, env=environment, cwd=scratch, capture_output=True, timeout=PATIENCE_S, check=False
        )
        replaced = {
            str(run): "/data/run",
            scratch: "/data",
            str(repository): "/opt/project",
            str(Path(sys.prefix).resolve()): "/opt/venv",
            str(Path(sys.prefix)): "/opt/venv",
            str(Path(sys.base_prefix)): "/usr",
            str(Path.home()): "/home/user",
            socket.getfqdn(): HOST,
            socket.gethostname(): HOST,
        }
        replaced = {old: new for old, new in replaced.items() if len(old) > 4}  # a short name stands in other words too
        target = out / case.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        files = {"launcher.txt": ended.stdout + ended.stderr}
        for path in sorted(run.glob("ranks/*/*")):
            kind = path.name
            if kind in KEPT or kind.startswith("flight_recorder"):
                files[f"ranks/{path.parent.name}/{kind}"] = path.read_bytes()
        files |= {f"dumps/{path.name}": path.read_bytes() for path in sorted(dumps.iterdir())}
        for name, content in files.items():
            if name.startswith("dumps/") or "flight_recorder" in name:
                clean = neutral_dump(content, replaced)
            else:
                clean = neutral(content.decode(errors="replace"), replaced).encode()
                clean = re.sub(rb"\b(?:\d{1,3}\.){3}\d{1,3}\b", b"127.0.0.1", clean)
                clean = re.sub(rb'("boot_id":\s*)"[^"]*"', rb'\1"captured"', clean)
                clean = re.sub(rb'("host":\s*)"[^"]*"', rb'\1"' + HOST.encode() + rb'"', clean)
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(clean)
        truth = {**asdict(case), "exit_code": ended.returncode}
        (target / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=CAPTURED)
    given = parser.parse_args()
    known = _captures()
    if unknown := set(given.names) - {case.name for case in known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for case in known:
        if given.list:
            print(case.name)
        elif not given.names or case.name in given.names:
            capture(case, given.out)
            print(case.name, flush=True)


if __name__ == "__main__":
    main()

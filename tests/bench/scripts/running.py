"""A script from a mirror is started, with and without ``diag run``; what comes back is kept as plain documents."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .cases import TORCHRUN, Case
from .faults import Fault, acting

TIMEOUT_S = 400
NOT_FINITE = "holds values that are not finite"
Json = dict[str, Any]
_BIN = Path(sys.executable).parent


class UnfetchedError(Exception):
    """A repository, or its commit, is not in the mirror."""


def checked_out(case: Case, mirror: Path, folder: Path) -> None:
    """Writes the script's files at its commit into the folder, with the case's changes and its data."""
    repo, commit = case.source
    git = mirror / repo.replace("/", "+") / "repo"
    if not git.exists():
        raise UnfetchedError(f"fetch {repo}")
    own = str(PurePosixPath(case.folder) / case.script)
    paths = [*case.needs, own] if case.needs else [case.folder or own]
    done = subprocess.run(["git", "--git-dir", str(git), "archive", commit, *paths], capture_output=True, check=False)
    if done.returncode:
        raise UnfetchedError(f"{repo} has no {commit[:12]}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    home = folder / case.folder
    for change in case.changes:
        path = home / change.file
        text = path.read_text()
        if change.old not in text:
            raise UnfetchedError(f"{path.name}: nothing to change at {change.old!r}")
        path.write_text(text.replace(change.old, change.new))
    case.make(home)


def command_of(case: Case, run: Path | None) -> list[str]:
    """What starts the script; recorded in a run directory where one is given."""
    diag = [str(_BIN / "diag"), "run", "--out", str(run)]
    script = [case.script, *case.arguments]
    if not case.launcher:
        return [*diag, "--nproc", "2", *script] if run is not None else [str(_BIN / "torchrun"), *TORCHRUN[1:], *script]
    first, *rest = case.launcher
    plain = [str(_BIN / first), *rest, *script]
    return plain if run is None else [*diag, "--", *plain]


def environment_of(case: Case, home: Path, scratch: Path, extra: Path | None) -> dict[str, str]:
    """One thread a process, nothing from a hub, and what the scripts import."""
    root = home if not case.folder else Path(*home.parts[: len(home.parts) - len(Path(case.folder).parts)])
    paths = [str(root / case.path)] if case.path else []
    paths += [str(extra.absolute())] if extra is not None else []
    return {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(scratch / "hub"), "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1",
        "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}", "TMPDIR": str(scratch), "COLUMNS": "160",
        "HYDRA_FULL_ERROR": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip


def fingerprints(home: Path, pattern: str) -> list[str]:
    """Hashes of the tensors in the files that the script wrote, sorted by the files' last names; of a file with a value
    that is not finite, that it has one: then it proves nothing."""
    import torch

    found = []
    for path in sorted(home.glob(pattern), key=lambda path: path.name) if pattern else []:
        digest, finite = hashlib.sha256(), True
        for tensor in _tensors(torch.load(path, map_location="cpu", weights_only=True)):
            digest.update(tensor.detach().contiguous().numpy().tobytes())
            finite = finite and bool(torch.isfinite(tensor).all())
        found.append(f"{path.name} {digest.hexdigest()[:16] if finite else NOT_FINITE}")
    return found


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def started(command: Sequence[str], home: Path, environment: dict[str, str], output: Path) -> int | None:
    """The exit code; None of a run that was ended because it took too long."""
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=home, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM if process.poll() is None else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def run(case: Case, label: str, mirror: Path, out: Path, extra: Path | None, fault: Fault | None = None) -> Json:
    """Runs the script once and keeps what it left in ``out/NAME/LABEL``: the run directory, the output, and this
    document, which is returned. ``label`` is "bare" for a run without diag."""
    folder = out / case.name / label
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rank = case.ranks - 1
    record = folder / "run" if label != "bare" else None
    with tempfile.TemporaryDirectory(prefix="scripts-") as scratch_name:
        scratch = Path(scratch_name).resolve()
        home = scratch / "tree" / case.folder
        checked_out(case, mirror, scratch / "tree")
        environment = environment_of(case, home, scratch, extra)
        if fault is not None:
            own = fault.environment(case, rank, out)
            own["PYTHONPATH"] = os.pathsep.join(filter(None, (own.get("PYTHONPATH"), environment["PYTHONPATH"])))
            environment |= own
        load, begin = os.getloadavg()[0], time.monotonic()
        with acting(fault, record or folder, rank, case.ranks) as queued:
            code = started(command_of(case, record), home, environment, folder / "output.txt")
        took = time.monotonic() - begin
        text = (folder / "output.txt").read_text(errors="replace")
        outcome: Json = {
            "case": case.name, "label": label, "fault": fault.name if fault is not None else None, "rank": rank,
            "exit_code": code, "took_s": round(took, 1), "load": round(load, 2),
            "queued": queued, "losses": sorted(re.findall(case.losses, text)),
            "outputs": fingerprints(home, case.outputs) if code == 0 else [],
        }  # fmt: skip
    (folder / "outcome.json").write_text(json.dumps(outcome, indent=1) + "\n")
    return outcome


def analysed(folder: Path, crash: bool) -> Json:
    """What ``diag analyze`` and, of a crash, ``diag triage`` say now of the run that lies in a folder."""
    answer: Json = {}
    for name, command in (("analysis", "analyze"), *([("triage", "triage")] if crash else [])):
        done = subprocess.run(
            [sys.executable, "-m", "diag", command, str(folder / "run"), "--json"], capture_output=True, text=True,
            env={**os.environ, "DIAG_CACHE": "off"}, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        try:
            answer[name] = json.loads(done.stdout)
        except ValueError:
            answer[name] = {"error": {"message": (done.stderr or done.stdout).strip()[-400:]}}
    return answer


def steps_recorded(folder: Path) -> dict[int, int]:
    """Lines of each rank's steps."""
    found = {}
    for path in sorted((folder / "run").glob("ranks/*/steps.jsonl")):
        found[int(path.parent.name)] = len(path.read_text().splitlines())
    return found

"""Trains on all GPUs of this machine, plants faults, and checks the verdicts and that what was recorded agrees.

    python -m tests.gpu --out FOLDER [--minutes 8] [--cpu] [--record-only | --analyse FOLDER]

FOLDER gets the run directories, ``record.json`` (what was run), ``checks.json`` and ``report.md``. Recording needs
torch and this repository alone: a machine without polars records (``--record-only``), and another one analyses
(``--analyse FOLDER``, with ``--out`` where that folder cannot be written). A recording alone leaves what travels
(``parts``), complete after each run. ``--cpu`` trains small on the CPU, with gloo. Exit code 0: no check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from diag.collectors.accelerator import MULTI_RANK_VARIABLE
from diag.collectors.layout import RUN_DIR_VARIABLE, RunLayout
from diag.collectors.manifest import make_manifest, update_manifest
from diag.collectors.settings import SETTINGS_VARIABLE, CollectorSettings
from diag.collectors.trainer.keys import options_of
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from tests.gpu.parts import Parts, unpacked
from tests.gpu.plan import (
    CUT,
    DEVICE,
    DONE,
    FAILED,
    INSPECTOR,
    LEFT_OUT,
    OVERHEAD,
    OWN,
    PROBE,
    RECORD,
    STEPS,
    TRACED,
    Machine,
    Planned,
    filling_batch,
    hang_s,
    plan,
    with_longer_faults,
)

_OF_COMMANDS = ("typer", "rich", "msgspec", "polars")  # that `diag run` needs and the trainer does not
_ANALYSIS_S = 45  # of the time budget, for the checks
_GRACE_S = 8  # for torchrun to end its workers
_MARK = "DIAG_GPU_CHECK_CASE"  # the environment variable by which the processes of a run are found
_OF_TORCHRUN = re.compile("ChildFailedError|To enable traceback|error_file")  # which says nothing of the cause
_TOLD = ("CUDA_", "NVIDIA_", "NCCL_", "TORCH_", "OMP_", "LD_LIBRARY_PATH")
_MOST_PRINTED = 1 << 20  # bytes of a run's log, its end
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception)\b.*:|Duplicate GPU|.*(core dumped|Killed|NCCL WARN)")
_PLUGIN = "libnccl-profiler-inspector.so"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/nccl/lib")


def main() -> int:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for runs and report; must not hold an earlier one")
    parser.add_argument("--minutes", type=float, default=8, help="no run is started after this")
    parser.add_argument("--cpu", action="store_true", help="train small on the CPU, with gloo")
    parser.add_argument(
        "--only", default="", help="only these runs, or those with these words in their names, comma-separated"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--record-only", action="store_true", help="no analysis: needs torch and nothing else")
    either.add_argument("--analyse", type=Path, metavar="FOLDER", help="of what was recorded elsewhere; trains nothing")
    given = parser.parse_args()
    folder: Path = given.out or given.analyse or Path("runs", f"gpu-check-{time.strftime('%Y%m%d-%H%M%S')}")
    if given.analyse is None:
        if (folder / RECORD).exists():
            parser.error(f"{folder} holds an earlier check: give another --out")
        only = tuple(filter(None, given.only.split(",")))
        seconds = 60 * given.minutes - (_GRACE_S if given.record_only else _ANALYSIS_S)
        try:
            machine = described(cpu=given.cpu)
            if not machine.gpus and not given.cpu:
                raise RuntimeError("no NVIDIA or AMD GPU was found: --cpu trains on the CPU")
        except RuntimeError as error:
            if given.record_only:  # whoever lent the machine learns why
                folder.mkdir(parents=True, exist_ok=True)
                _replace(folder, "failed.json", json.dumps({"why": str(error), "facts": facts()}, indent=1))
            parser.error(str(error))
        if not given.record_only:
            record(folder, machine, seconds, only, begin=begin)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="diag-gpu-", ignore_cleanup_errors=True) as runs:
                record(Path(runs), machine, seconds, only, Parts(folder), begin, facts())
    if given.record_only:
        print(f"Recorded in {folder}. Next: python -m tests.gpu --analyse {folder}")
        return 0
    from diag.errors import DiagError
    from tests.gpu.report import write_report  # which needs what analyses need

    try:
        return write_report(unpacked(given.analyse, folder) if given.analyse is not None else folder)
    except DiagError as error:
        parser.error(error.message)


def environment(cpu: bool) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if cpu else {}
    # On a machine without a network, names are looked up in vain, for each process anew; everything here is local.
    local = {"RES_OPTIONS": "timeout:1 attempts:1", "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return {**local, **os.environ, **hidden, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def described(cpu: bool) -> Machine:
    """This machine; on one GPU small collectives show whether two ranks may share it, with NCCL or with gloo.
    RuntimeError where torch does not answer."""
    command = [sys.executable, "-m", "tests.gpu.probe", "describe"]
    code, text, late = run_limited(command, environment(cpu), 90)
    said = next((line for line in reversed(text.splitlines()) if line.startswith('{"gpus"')), None)
    if code or said is None:
        why = "it did not answer in 90 s" if late else text[-2000:]
        raise RuntimeError(f"torch does not say what accelerators there are: {why}")
    has_diag, numpy = (all(importlib.util.find_spec(name) for name in names) for names in (_OF_COMMANDS, ("numpy",)))
    found = Machine(**json.loads(said), inspector=_plugin(), diag=has_diag, numpy=numpy)
    if found.gpus != 1:
        return found
    why = _shared_by("all-reduce")
    if not why:
        return replace(found, multi_rank=True)
    no_gloo = _shared_by("gloo")
    by_gloo = f"; nor does gloo ({no_gloo})" if no_gloo else ""
    return replace(found, gloo=not no_gloo, one_rank=f"NCCL does not let two ranks share the GPU ({why}){by_gloo}")


def _shared_by(probe: str) -> str:
    """Why two ranks cannot share the GPU in this way; "" if they can."""
    command = [*torchrun(2), "-m", "tests.gpu.probe", probe]
    code, text, _ = run_limited(command, environment(False) | {MULTI_RANK_VARIABLE: "1"}, 40)
    if code == 0:
        return ""
    lines = [line for line in text.splitlines() if not _OF_TORCHRUN.search(line)]
    errors = [line for line in lines if "rror" in line or "Duplicate GPU" in line]
    named = [line for line in errors if "Duplicate GPU" in line] or errors or ["no answer"]
    return named[-1].strip()


def facts() -> dict[str, Any]:
    """What a failure may be explained with: space, tools, limits and the driver's own view. Never raises."""

    def said(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            return (done.stdout + done.stderr)[:20_000]
        except (OSError, subprocess.SubprocessError) as error:
            return repr(error)

    def free(path: str) -> int | str:
        try:
            return shutil.disk_usage(path).free
        except OSError as error:
            return repr(error)

    return {
        "python": sys.version, "executable": sys.executable, "platform": platform.platform(),
        "cores": os.cpu_count(), "free": {path: free(path) for path in ("/dev/shm", tempfile.gettempdir(), ".")},
        "tools": {name: shutil.which(name) for name in ("nvidia-smi", "nvcc", "g++", "gcc", "ptxas", "py-spy")},
        "packages": {name: importlib.util.find_spec(name) is not None
                     for name in ("numpy", "pynvml", "triton", "cupti", "psutil", "polars", "msgspec")},
        "variables": {name: value for name, value in os.environ.items() if name.startswith(_TOLD)},
        "nvidia-smi": said("nvidia-smi", "-q"),
    }  # fmt: skip


def _plugin() -> str:
    """NCCL Inspector's plugin: where NCCL_PROFILER_PLUGIN says, else where packages install it; "" if nowhere."""
    given = os.environ.get("NCCL_PROFILER_PLUGIN", "")
    if "inspector" in given:
        return given
    of_torch = importlib.util.find_spec("nvidia")
    folders = [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        *(f"{one}/nccl/lib" for one in (of_torch and of_torch.submodule_search_locations) or ()),
        *_LIBRARIES,
    ]
    return next((str(path) for one in folders if (path := Path(one, _PLUGIN)).is_file()), "")


def record(
    folder: Path,
    machine: Machine,
    seconds: float,
    only: tuple[str, ...] = (),
    parts: Parts | None = None,
    begin: float | None = None,
    facts: dict[str, Any] | None = None,
) -> None:
    """Runs the plan while there is time; record.json says after each run what was run. ``folder`` gets the runs;
    with ``parts``, what travels of each goes there at once, and record.json with it. ``begin``: since when ``seconds``
    count. ``facts``: of the machine, for record.json."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic() if begin is None else begin
    runs: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}

    def write() -> None:
        cases = {one["name"]: _case(one) for one in runs}
        cases |= {name: {"state": LEFT_OUT, "why": why} for name, why in left_out.items()}
        text = {
            "machine": asdict(machine), "cases": cases, "runs": runs, "left_out": left_out,
            "seconds": time.monotonic() - begin, "facts": facts or {},
        }  # fmt: skip
        _replace(parts.folder if parts is not None else folder, RECORD, json.dumps(text, indent=1) + "\n")

    planned_runs = plan(machine)
    names = {one.name for one in planned_runs}
    left_out.update({one.name: "not reached: the recording was cut off" for one in planned_runs})
    write()
    for planned in planned_runs:
        del left_out[planned.name]
        left = seconds - (time.monotonic() - begin)
        usual = 1.5 * median([one["seconds"] for one in runs if not one["exit_code"]] or [10.0])
        usual += hang_s(planned, machine)
        if only and not any(word == planned.name or (word in planned.name and word not in names) for word in only):
            left_out[planned.name] = "not asked for"
            continue
        try:
            why, planned = _fitted(planned, folder, machine)
            if why:
                left_out[planned.name] = why
            elif left < usual:
                left_out[planned.name] = f"no time: {max(0, left):.0f} s are left, and a run takes up to {usual:.0f} s"
            else:
                where = replace(machine, multi_rank=False) if planned.alone else machine
                runs.append(trained(planned, folder, where, left))
                if parts is not None:
                    runs[-1]["travels"] = parts.add(planned.name, folder)
                case = _case(runs[-1])
                print(f"{planned.name}: {case['state']}, {case['seconds']:.0f} s; {case['why']}", flush=True)
        except Exception as error:  # a full disk, say: the next run may work
            left_out[planned.name] = f"recording it failed: {error!r}"
            print(f"{planned.name}: {left_out[planned.name]}", flush=True)
        write()


def _replace(folder: Path, name: str, text: str) -> None:
    """Writes a file so that whoever kills this process leaves the old one or the new one."""
    new = folder / f"{name}.new"
    new.write_text(text)
    new.replace(folder / name)


def _case(run: dict[str, Any]) -> dict[str, Any]:
    """What became of a run: its state, why, and how long it took."""
    early = bool(run.get("hangs")) and run["seconds"] < run.get("hangs_s", 0)  # it ended before its hang could
    wrong = bool(run["exit_code"]) != bool(run.get("hangs")) or early
    if run.get("cut"):
        state, why = CUT, "the time budget ended it"
    elif run.get("timed_out"):
        state, why = FAILED, "its time limit ended it"
    elif wrong:
        state, why = FAILED, run.get("error") or f"exit code {run['exit_code']}"
    else:
        state, why = DONE, f"exit code {run['exit_code']}" + (", as planned" if run.get("hangs") else "")
    return {"state": state, "why": why, "seconds": run["seconds"], **run.get("travels", {})}


def _fitted(planned: Planned, folder: Path, machine: Machine) -> tuple[str, Planned]:
    """Why the run cannot be; and the run, with delays and a batch that fit what the run "ddp" has shown, if it ran."""
    if planned.not_here or planned.name in OWN:
        return planned.not_here, planned
    try:
        steps = [json.loads(line) for line in RunLayout(folder / "ddp").rank(0).steps.read_text().splitlines()]
        step_ms = median((one["end_ns"] - one["begin_ns"]) / 1e6 for one in steps)
        options = with_longer_faults(planned.options, step_ms)
        if planned.fills:
            reserved = max(one["memory"]["reserved"] for one in steps)
            at = options.index("--batch-size") + 1
            batch = filling_batch(reserved, sum(steps[-1]["held"].values()), int(options[at]), machine.memory)
            options = (*options[:at], str(batch), *options[at + 1 :])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return (f"the run ddp does not say what a batch takes ({error!r})" if planned.fills else ""), planned
    return "", replace(planned, options=options)


def trained(planned: Planned, folder: Path, machine: Machine, left_s: float) -> dict[str, Any]:
    """One run, and how it ended. ``cut``: the time budget ended it, not its own limit. ``load``: of the last minute."""
    where, begin = folder / planned.name, time.monotonic()
    limit_s = min(planned.limit_s, max(left_s, 10.0))
    shares = machine.shared or planned.by_gloo
    added = environment(cpu=not machine.gpus) | ({MULTI_RANK_VARIABLE: "1"} if shares else {})
    if planned.name == INSPECTOR:
        (where / "inspector").mkdir(parents=True)
        added |= {
            "NCCL_PROFILER_PLUGIN": machine.inspector,
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": str((where / "inspector").resolve()),
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000",
        }
    elif machine.gpus and "recorder" in planned.options:
        added["NCCL_PROFILER_PLUGIN"] = "none"  # else Inspector records the durations where it is installed
    if planned.name in (OVERHEAD, DEVICE):
        where.mkdir()
    if planned.name == OVERHEAD:
        size, turns = ("gpu", "150") if machine.gpus else ("small", "60")
        module = ["tests.bench._plain_training", "--size", size, "--turns", turns, "--windows", "0"]
        command = [*torchrun(machine.ranks), "-m", *module, "--out", str(where)]
    elif planned.name == DEVICE:
        command = [*torchrun(1), "-m", "tests.gpu.device", str(where)]
    elif machine.diag and planned.name != PROBE and not planned.by_gloo:
        command = [sys.executable, "-m", "diag", "run", *planned.options, "--auto-traces", "0", "--out", str(where)]
    else:
        command, own = by_torchrun(planned, where, machine)
        added |= own
    code, text, timed_out = run_limited(command, added, limit_s)
    seconds, hangs_s = time.monotonic() - begin, hang_s(planned, machine)
    (folder / f"{planned.name}.log").write_text(text)
    if (layout := RunLayout(where)).is_run() and (planned.by_gloo or planned.name == PROBE or not machine.diag):
        update_manifest(layout, exit_code=code)
        if code:
            _keep_logs(layout)
    return {
        "name": planned.name,
        "command": command,
        "exit_code": code,
        "error": _last_error(where, text) if code and (not planned.hangs or seconds < hangs_s) else "",
        "hangs": planned.hangs,
        "hangs_s": hangs_s,
        "seconds": round(seconds, 1),
        "timed_out": timed_out,
        "cut": timed_out and limit_s < planned.limit_s,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count() or 1,
    }


def _last_error(where: Path, text: str) -> str:
    """The first error that a rank printed, else the last that the command printed; "" where neither names one."""
    logs = [path.read_text(errors="replace") for path in sorted((where / "torchrun").rglob("stderr.log"))]
    for printed in (*logs, text):
        lines = [line.strip() for line in printed.splitlines() if not _OF_TORCHRUN.search(line)]
        named = [line for line in lines if _ERROR.match(line)]
        if named:
            return named[0][:300]
    return ""


def by_torchrun(planned: Planned, where: Path, machine: Machine) -> tuple[list[str], dict[str, str]]:
    """The command and the environment for the bundled trainer without ``diag run``, which nobody watches: a collective
    that hangs is ended by its own timeout."""
    flags = {about.flag: one.name for one, about in options_of(TrainerOptions)}
    values: dict[str, Any] = {}
    for flag, value in zip(planned.options[::2], planned.options[1::2], strict=True):
        if (name := flags.get(flag)) is not None:
            kind = type(getattr(TrainerOptions(), name))
            values[name] = (value,) if kind is tuple else int(value) if value.isdecimal() else value
    if planned.hangs:
        values["timeout_s"] = hang_s(planned, machine)
    options = TrainerOptions(**values)
    ranks = 2 if planned.by_gloo else machine.ranks
    layout = RunLayout(where)
    argv = ["run", *planned.options]
    make_manifest(layout, argv=argv, world_size=ranks, strategy=options.strategy, injected=list(options.inject))
    layout.ranks_folder.mkdir(parents=True)
    timing = "recorder" if "--collective-timing" in planned.options else "auto"
    settings = CollectorSettings(
        trace_skip=(STEPS - TRACED) // 2, trace_active=TRACED, auto_traces=0, collective_timing=timing
    )
    added = {
        RUN_DIR_VARIABLE: str(where.resolve()),
        SETTINGS_VARIABLE: settings.to_json(),
        OPTIONS_ENV: options.to_json(),
    }
    own = "train" if planned.name == PROBE else "train-by-gloo" if planned.by_gloo else ""
    module = ["tests.gpu.probe", own] if own else ["diag.collectors.trainer"]
    logs = ["--redirects", "3", "--log-dir", str(where / "torchrun")]
    return [*torchrun(ranks, *logs), "-m", *module], added


def torchrun(ranks: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *more]


def _keep_logs(layout: RunLayout) -> None:
    """What torchrun kept of each rank, where the triage looks for it."""
    for path in (layout.root / "torchrun").rglob("stderr.log"):
        rank = layout.rank(int(path.parent.name))
        if rank.folder.is_dir():
            rank.log.write_bytes(path.read_bytes())


def run_limited(command: list[str], environ: Mapping[str, str], limit_s: float) -> tuple[int, str, bool]:
    """Exit code, what was printed, and whether the time limit ended it: torchrun ends its workers on SIGTERM. No
    process of the command is left then, except one that the kernel cannot end."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(  # its output is a file: a process that survives does not hold us by a pipe
            command, env={**environ, _MARK: mark}, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        timed_out, note = False, ""
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        finally:
            _end_marked(mark, process.pid)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                note = "the kernel did not end it\n"
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _MOST_PRINTED))
        text = printed.read().decode(errors="replace")
    return process.returncode if process.returncode is not None else -signal.SIGKILL, text + note, timed_out


def _end_marked(mark: str, leader: int) -> None:
    """Ends every process of a command. torchrun's workers have sessions of their own, so the process group is not
    all of them: each has inherited the mark in its environment."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

"""Trains on all GPUs of this machine, plants faults, and checks the verdicts and that what was recorded agrees.

    python -m tests.gpu --out FOLDER [--minutes 8] [--cpu] [--record-only | --analyse FOLDER]

FOLDER gets the run directories, ``record.json`` (what was run), ``checks.json`` and ``report.md``. Recording needs
torch and this repository alone: a machine without polars records (``--record-only``), and another one analyses.
``--cpu`` trains small on the CPU, with gloo. Exit code 0: no check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from diag.collectors.accelerator import MULTI_RANK_VARIABLE
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import make_manifest, update_manifest
from diag.collectors.settings import RUN_DIR_VARIABLE, SETTINGS_VARIABLE, CollectorSettings
from diag.collectors.trainer.keys import options_of
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from tests.gpu.plan import (
    HANG_S,
    INSPECTOR,
    OVERHEAD,
    PROBE,
    RECORD,
    STEPS,
    TRACED,
    Machine,
    Planned,
    filling_batch,
    plan,
    with_longer_faults,
)

_OF_COMMANDS = ("typer", "rich", "msgspec", "polars")  # that `diag run` needs and the trainer does not
_ANALYSIS_S = 45  # of the time budget, for the checks
_GRACE_S = 15  # for torchrun to end its workers
_PLUGIN = "libnccl-profiler-inspector.so"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/nccl/lib")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for runs and report; must not hold an earlier one")
    parser.add_argument("--minutes", type=float, default=8, help="no run is started after this")
    parser.add_argument("--cpu", action="store_true", help="train small on the CPU, with gloo")
    parser.add_argument("--only", default="", help="only runs with these words in their names, comma-separated")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--record-only", action="store_true", help="no analysis: needs torch and nothing else")
    either.add_argument("--analyse", type=Path, metavar="FOLDER", help="of what was recorded elsewhere; trains nothing")
    given = parser.parse_args()
    folder: Path = given.analyse or given.out or Path("runs", f"gpu-check-{time.strftime('%Y%m%d-%H%M%S')}")
    if given.analyse is None:
        if (folder / RECORD).exists():
            parser.error(f"{folder} holds an earlier check: give another --out")
        machine = described(cpu=given.cpu)
        if not machine.gpus and not given.cpu:
            parser.error("no NVIDIA or AMD GPU was found: --cpu trains on the CPU")
        seconds = 60 * given.minutes - (0 if given.record_only else _ANALYSIS_S)
        record(folder, machine, seconds, tuple(filter(None, given.only.split(","))))
    if given.record_only:
        print(f"Recorded in {folder}. Next: python -m tests.gpu --analyse {folder}")
        return 0
    from diag.errors import DiagError
    from tests.gpu.report import write_report  # which needs what analyses need

    try:
        return write_report(folder)
    except DiagError as error:
        parser.error(error.message)


# -- the machine -------------------------------------------------------------------------------------------------------


def environment(cpu: bool) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if cpu else {}
    return {**os.environ, **hidden, "OMP_NUM_THREADS": "1"}


def described(cpu: bool) -> Machine:
    """This machine; on one GPU a small all-reduce shows whether two ranks may share it."""
    asked = subprocess.run(
        [sys.executable, "-m", "tests.gpu.probe", "describe"],
        env=environment(cpu), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if asked.returncode:
        raise RuntimeError(f"torch does not say what accelerators there are: {asked.stderr[-2000:]}")
    has_diag = all(importlib.util.find_spec(name) for name in _OF_COMMANDS)
    found = Machine(**json.loads(asked.stdout.splitlines()[-1]), inspector=_plugin(), diag=has_diag)
    if found.gpus != 1:
        return found
    command = [*torchrun(2), "-m", "tests.gpu.probe", "all-reduce"]
    code, text, _ = run_limited(command, environment(cpu) | {MULTI_RANK_VARIABLE: "1"}, 60)
    if code == 0:
        return replace(found, multi_rank=True)
    errors = [line for line in text.splitlines() if "rror" in line or "Duplicate GPU" in line]
    return replace(
        found, one_rank=f"NCCL does not let two ranks share the GPU ({(errors or ['no answer'])[-1].strip()})"
    )


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


# -- recording ---------------------------------------------------------------------------------------------------------


def record(folder: Path, machine: Machine, seconds: float, only: tuple[str, ...] = ()) -> None:
    """Runs the plan while there is time; record.json says after each run what was run."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    runs: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for planned in plan(machine):
        left = seconds - (time.monotonic() - begin)
        usual = max((one["seconds"] for one in runs if not one["exit_code"]), default=10.0) + HANG_S * planned.hangs
        why, planned = _fitted(planned, folder, machine)
        if only and not any(word in planned.name for word in only):
            left_out[planned.name] = "not asked for"
        elif why:
            left_out[planned.name] = why
        elif left < usual:
            left_out[planned.name] = f"no time: {max(0, left):.0f} s are left, and a run takes up to {usual:.0f} s"
        else:
            runs.append(trained(planned, folder, machine, left))
            print(f"{planned.name}: exit code {runs[-1]['exit_code']}, {runs[-1]['seconds']:.0f} s", flush=True)
        text = {"machine": asdict(machine), "runs": runs, "left_out": left_out, "seconds": time.monotonic() - begin}
        (folder / RECORD).write_text(json.dumps(text, indent=1) + "\n")


def _fitted(planned: Planned, folder: Path, machine: Machine) -> tuple[str, Planned]:
    """Why the run cannot be; and the run, with delays and a batch that fit what the run "ddp" has shown, if it ran."""
    if planned.not_here or planned.name in (PROBE, OVERHEAD):
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
    added = environment(cpu=not machine.gpus) | ({MULTI_RANK_VARIABLE: "1"} if machine.shared else {})
    if planned.name == INSPECTOR:
        (where / "inspector").mkdir(parents=True)
        added |= {
            "NCCL_PROFILER_PLUGIN": machine.inspector,
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": str((where / "inspector").resolve()),
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000",
        }
    if planned.name == OVERHEAD:
        where.mkdir()
        asked = ("gpu", "150") if machine.gpus else ("small", "60")
        command = [
            *torchrun(machine.ranks),
            "-m",
            "tests.bench._plain_training",
            "--size",
            asked[0],
            "--turns",
            asked[1],
        ]
        command += ["--windows", "0", "--out", str(where)]
    elif machine.diag and planned.name != PROBE:
        command = [sys.executable, "-m", "diag", "run", *planned.options, "--auto-traces", "0", "--out", str(where)]
    else:
        command, own = by_torchrun(planned, where, machine)
        added |= own
    code, text, timed_out = run_limited(command, added, limit_s)
    (folder / f"{planned.name}.log").write_text(text)
    if (layout := RunLayout(where)).is_run() and (planned.name == PROBE or not machine.diag):
        update_manifest(layout, exit_code=code)
        if code:
            _keep_logs(layout)
    return {
        "name": planned.name,
        "command": command,
        "exit_code": code,
        "seconds": round(time.monotonic() - begin, 1),
        "timed_out": timed_out,
        "cut": timed_out and limit_s < planned.limit_s,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count() or 1,
    }


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
        values["timeout_s"] = HANG_S
    options = TrainerOptions(**values)
    layout = RunLayout(where)
    argv = ["run", *planned.options]
    make_manifest(layout, argv=argv, world_size=machine.ranks, strategy=options.strategy, injected=list(options.inject))
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
    module = ["tests.gpu.probe", "train"] if planned.name == PROBE else ["diag.collectors.trainer"]
    logs = ["--redirects", "3", "--log-dir", str(where / "torchrun")]
    return [*torchrun(machine.ranks, *logs), "-m", *module], added


def torchrun(ranks: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *more]


def _keep_logs(layout: RunLayout) -> None:
    """What torchrun kept of each rank, where the triage looks for it."""
    for path in (layout.root / "torchrun").rglob("stderr.log"):
        rank = layout.rank(int(path.parent.name))
        if rank.folder.is_dir():
            rank.log.write_bytes(path.read_bytes())


def run_limited(command: list[str], environ: Mapping[str, str], limit_s: float) -> tuple[int, str, bool]:
    """Exit code, what was printed, and whether the time limit ended it: torchrun ends its workers on SIGTERM."""
    with (
        subprocess.Popen(
            command, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, errors="replace",
        ) as process,
        _ended(process),
    ):  # fmt: skip
        try:
            text, _ = process.communicate(timeout=limit_s)
            return process.returncode, text, False
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            text, _ = process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            text = "it did not end on SIGTERM\n"
    return process.returncode, text, True


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Its process group is gone afterwards, whatever happens."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

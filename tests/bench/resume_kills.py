"""Kills runs at random moments, resumes each, and compares with a run that nobody killed.

    python -m tests.bench.resume_kills --kills 20 --strategy fsdp2 [--sync] [--ranks 2] [--steps 24] [--slow-ms 4]

The moments are uniform in the time from the first step to the last checkpoint. All processes of the run, torchrun's
included, get SIGKILL at once. Every resumed run must print the losses of the uninterrupted one, to the last digit, and
leave the same last checkpoint, byte for byte. Prints a table; ends with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from diag.collectors.trainer.checkpoint.folder import NAME, find
from diag.collectors.trainer.keys import OptionError

_STEP = re.compile(r"step (\d+)  loss ([\d.]+)")
_SLOW, _SEVERAL = Path(__file__).with_name("_slow_saving.py"), Path(__file__).parent.parent / "trainer/several_runs.py"


@dataclass(frozen=True)
class Kill:
    folder: Path
    after_s: float  # since the first step's line
    printed: int  # steps
    left: str  # what saving was doing, as the folder tells
    resumes_after: int  # steps; 0: nothing had been saved


def command(ranks: int, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "DIAG_COLLECT": "off", "OMP_NUM_THREADS": "1"}


def losses_in(text: str) -> dict[int, str]:
    return {int(step): loss for step, loss in _STEP.findall(text)}


def start(ranks: int, slow_ms: float, options: dict[str, Any]) -> tuple[subprocess.Popen[str], list[str], float]:
    """A run, the lines that it prints, and when the first of them came."""
    process = subprocess.Popen(
        command(ranks, str(_SLOW), str(slow_ms), json.dumps(options)),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    begun = time.time()
    if not lines[0]:
        raise SystemExit("the training printed nothing: run it by hand")
    threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True).start()
    return process, lines, begun


def kill_all(process: subprocess.Popen[str]) -> None:
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        member.kill()
    process.wait()


def what_is_left(folder: Path) -> str:
    draft = next(folder.glob(".step-*.draft"), None)
    if draft is not None:
        if (draft / NAME).exists():
            return "manifest written, not yet named"
        if (draft / ".metadata").exists():
            return "shards and metadata written, no manifest"
        return "writing shards"
    newest = max((path.name for path in folder.glob("step-*")), default="")
    latest = (folder / "latest").read_text().strip() if (folder / "latest").exists() else ""
    if newest != latest:
        return "named, latest still the one before"
    return "removing an old one" if any(folder.glob(".*.removed")) else "not saving"


def killed(folder: Path, after_s: float, arguments: argparse.Namespace, options: dict[str, Any]) -> Kill:
    process, lines, begun = start(arguments.ranks, arguments.slow_ms, {**options, "checkpoint_dir": str(folder)})
    time.sleep(max(0.0, begun + after_s - time.time()))
    kill_all(process)
    time.sleep(0.1)  # the last lines are in the pipe
    try:
        steps = find(folder).manifest.steps
    except OptionError:
        steps = 0
    return Kill(folder, after_s, len(losses_in("".join(lines))), what_is_left(folder), steps)


def same_shards(folder: Path, reference: Path, steps: int) -> bool:
    name = f"step-{steps:08d}"
    files = sorted(path.name for path in (reference / name).iterdir() if path.name not in (NAME, ".metadata"))
    return all((folder / name / file).read_bytes() == (reference / name / file).read_bytes() for file in files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--strategy", default="fsdp2")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--slow-ms", type=float, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    options = {
        "strategy": arguments.strategy, "settings": arguments.settings, "steps": arguments.steps, "batch_size": 2,
        "seq_len": 32, "checkpoint_every": 2, "keep_checkpoints": 2, "checkpoint_async": not arguments.sync,
    }  # fmt: skip
    root = Path(tempfile.mkdtemp(prefix="resume-kills-"))
    process, lines, begun = start(
        arguments.ranks, arguments.slow_ms, {**options, "checkpoint_dir": str(root / "whole")}
    )
    assert process.wait() == 0
    # To the last checkpoint's `latest`: what comes after it is leaving.
    lasted_s = (root / "whole" / "latest").stat().st_mtime - begun
    time.sleep(0.1)
    whole = losses_in("".join(lines))
    assert list(whole) == list(range(arguments.steps))

    moments = random.Random(arguments.seed)
    kills = []
    for number in range(arguments.kills):
        folder = root / f"killed-{number:02d}"
        folder.mkdir()
        kills.append(killed(folder, moments.uniform(0, lasted_s), arguments, options))
        print(f"killed {number + 1} of {arguments.kills}", file=sys.stderr)

    runs = [
        {**options, "checkpoint_dir": str(kill.folder), "resume": str(kill.folder) if kill.resumes_after else None}
        for kill in kills
        if kill.resumes_after < arguments.steps
    ]
    ended = subprocess.run(
        command(arguments.ranks, str(_SEVERAL), json.dumps(runs)),
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        print(ended.stderr[-4000:])
        return 1
    parts = iter(re.split(r"^run \d+$", ended.stdout, flags=re.MULTILINE)[1:])

    print(f"{arguments.strategy}, {'in the foreground' if arguments.sync else 'in the background'}, {arguments.ranks} "
          f"ranks, {arguments.steps} steps in {lasted_s:.1f} s, a checkpoint after every 2")  # fmt: skip
    print("| kill after | steps printed | what saving was doing | resumed after step | steps compared | equal |")
    print("|---|---|---|---|---|---|")
    equal = 0
    for kill in kills:
        compared = losses_in(next(parts)) if kill.resumes_after < arguments.steps else {}
        expected = {step: loss for step, loss in whole.items() if step >= kill.resumes_after}
        good = compared == expected and same_shards(kill.folder, root / "whole", arguments.steps)
        equal += good
        print(f"| {kill.after_s:.2f} s | {kill.printed} | {kill.left} | {kill.resumes_after} | {len(compared)} | "
              f"{'yes' if good else 'NO'} |")  # fmt: skip
    print(
        f"{equal} of {len(kills)} equal; "
        + ", ".join(f"{n} {what}" for what, n in Counter(k.left for k in kills).most_common())
    )
    return 0 if equal == len(kills) else 1


if __name__ == "__main__":
    sys.exit(main())

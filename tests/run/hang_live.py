"""Real trainings with a planted hang or crash, and what ``diag run`` must say of them by itself.

``python -m tests.run.hang_live --repeats 10`` runs all of them on 2 and 4 ranks and prints how often class and rank
were right, and how long after the limit the hung ones had ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.errors import ExitCode
from tests.command import diag_process

HANG_TIMEOUT_S = 4
STEP = 4


@dataclass(frozen=True)
class Planted:
    """A fault of one rank in step 4. ``exit_code``: what ``diag run`` ends with."""

    inject: str
    fault_class: str
    exit_code: int
    hangs: bool = False


PLANTED = {
    "hang in the loader": Planted("hang:where=loader", "missing_rank", ExitCode.HANG, hangs=True),
    "hang before a collective": Planted("hang:where=collective", "missing_rank", ExitCode.HANG, hangs=True),
    # gloo aborts the process that receives more than it expects.
    "skip-collective": Planted("skip-collective:", "desync", 128 + signal.SIGABRT),
    "mismatched-shape": Planted("mismatched-shape:", "mismatch_shape", 128 + signal.SIGABRT),
    "killed": Planted("die:how=sigkill", "rank_killed_sigkill", 128 + signal.SIGKILL),
    "exception": Planted("die:how=exception", "rank_killed_exception", 1),
    "exit": Planted("die:how=exit,code=7", "rank_killed_exception", 7),
}


@dataclass(frozen=True)
class Ended:
    """What came of it. ``after_limit_s``: from the limit to the end of ``diag run``, its interpreter included."""

    exit_code: int
    fault_class: str
    ranks: tuple[int, ...]
    errors: str
    after_limit_s: float | None


def run_planted(planted: Planted, ranks: int, culprit: int, folder: Path, strategy: str = "fsdp2") -> Ended:
    name, _, rest = planted.inject.partition(":")
    inject = f"{name}:rank={culprit},step={STEP}" + (f",{rest}" if rest else "")
    ended = diag_process(
        "run", "--nproc", str(ranks), "--strategy", strategy, "--steps", "12", "--no-trace", "--timeout", "60",
        "--hang-timeout", str(HANG_TIMEOUT_S), "--inject", inject, "--out", folder,
    )  # fmt: skip
    end_ns = time.monotonic_ns()
    layout = RunLayout(folder)
    found = json.loads(layout.hang.read_text()) if layout.hang.is_file() else {}
    last_steps = [json.loads(files.steps.read_text().splitlines()[-1])["end_ns"] for files in layout.ranks().values()]
    return Ended(
        exit_code=ended.returncode,
        fault_class=found.get("verdict", {}).get("fault_class", "no verdict"),
        ranks=tuple(culprit["rank"] for culprit in found.get("culprits", ())),
        errors=ended.stderr,
        after_limit_s=(end_ns - max(last_steps)) / 1e9 - HANG_TIMEOUT_S if planted.hangs else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--strategy", default="fsdp2")
    given = parser.parse_args()
    for ranks in given.ranks:
        for name, planted in PLANTED.items():
            right, wrong, late = 0, [], []
            for repeat in range(given.repeats):
                scratch = Path(tempfile.mkdtemp(prefix="hang-"))
                culprit = repeat % ranks
                ended = run_planted(planted, ranks, culprit, scratch / "run", given.strategy)
                late += [ended.after_limit_s] if ended.after_limit_s is not None else []
                said = (ended.exit_code, ended.fault_class, ended.ranks)
                if said == (planted.exit_code, planted.fault_class, (culprit,)):
                    right += 1
                    shutil.rmtree(scratch)
                else:
                    wrong.append(f"rank {culprit}: {said} in {scratch}")
            times = (
                f"; ended {min(late):.1f} to {max(late):.1f} s after the limit, median {statistics.median(late):.1f}"
            )
            print(f"{ranks} ranks, {name}: {right} of {given.repeats}{times if late else ''}", flush=True)
            for line in wrong:
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

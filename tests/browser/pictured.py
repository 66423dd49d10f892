"""A folder in which every page of the dashboard has something to show: sample runs, logs of a hang, and a tuning."""

from __future__ import annotations

import shutil
from pathlib import Path

from diag.serve.server import SAMPLES
from diag.tune.history import History, Interval, Outcome, Round, Run, save

RUN = "fsdp2-root-only"
HUNG = "hung"  # a folder of logs and dumps
_HUNG = Path(__file__).parents[1] / "hang" / "captured" / "hang-loader-4-ranks"

MS = 1_000_000
# For pictures. Round 1 is one that `diag tune` measured on two cores, rounded; rounds 2 and 3 are made up.
HISTORY = History(
    arguments=("--preset", "small", "--wrap", "root"),
    rounds=(
        Round(
            number=1,
            verdict="Communication-bound (39% of 1992 ms a step): exposed communication takes 777 ms a "
            "step: the whole model is one sharding unit, so nothing can overlap.",
            advice="wrap-blocks-prefetch",
            change="shard each of the 8 blocks as its own unit instead of the whole model as one, and prefetch the "
            "next unit",
            settings={"wrap": "block", "prefetch": 1},
            predicted_gain_ns=Interval(-260 * MS, 268 * MS, 484 * MS),
            predicted_memory_delta_bytes=-62_000_000,
            outcome=Outcome.KEPT,
            reason="all of the 95 % interval of its gain is above zero",
            baseline_ns=2008 * MS,
            gain_ns=Interval(132 * MS, 168 * MS, 204 * MS),
            without=(Run("00-baseline", {}, 2010 * MS, 7), Run("03-round1-without", {}, 2006 * MS, 7)),
            with_it=(
                Run("01-round1-with", {"wrap": "block", "prefetch": 1}, 1835 * MS, 7),
                Run("02-round1-with", {"wrap": "block", "prefetch": 1}, 1845 * MS, 7),
            ),
        ),
        Round(
            number=2,
            verdict="Data-bound (12% of 1840 ms a step): the data loader is slower than the training: 221 ms a step.",
            advice="loader-workers-2",
            change="2 DataLoader workers per rank instead of 1",
            settings={"num_workers": 2},
            predicted_gain_ns=Interval(20 * MS, 90 * MS, 160 * MS),
            predicted_memory_delta_bytes=None,
            outcome=Outcome.REVERTED,
            reason="the 95 % interval of its gain includes zero",
            baseline_ns=1840 * MS,
            gain_ns=Interval(-40 * MS, 12 * MS, 61 * MS),
            without=(Run("01-round1-with", {"wrap": "block", "prefetch": 1}, 1835 * MS, 7),),
            with_it=(Run("04-round2-with", {"num_workers": 2}, 1828 * MS, 7),),
        ),
        Round(
            number=3,
            verdict="Communication-bound (31% of 1840 ms a step): exposed communication takes 570 ms.",
            advice="bf16",
            change="compute in bfloat16, not in float32",
            settings={"precision": "bf16"},
            predicted_gain_ns=Interval(300 * MS, 410 * MS, 520 * MS),
            predicted_memory_delta_bytes=-120_000_000,
            outcome=Outcome.FAILED,
            reason="the training failed: exit code 137",
            baseline_ns=1840 * MS,
        ),
    ),
    settings={"wrap": "block", "prefetch": 1},
    command="diag run --preset small --wrap block --prefetch 1",
    stopped="the limit of 3 rounds is reached",
    remaining=("replace rank 3",),
)


def write(folder: Path) -> Path:
    """Fills the folder; returned."""
    for run in sorted(SAMPLES.iterdir()):
        if run.is_dir():
            shutil.copytree(run, folder / run.name)
    shutil.copytree(_HUNG, folder / HUNG, ignore=shutil.ignore_patterns("truth.json"))
    save(HISTORY, folder)
    return folder

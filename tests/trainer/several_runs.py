"""Runs the trainer several times in the same processes: starting Python and torch takes longer than a short run.

    torchrun ... several_runs.py '[{"strategy": "ddp"}, {"wrap": "root"}]'

Rank 0 prints ``run N`` before the lines of each.
"""

from __future__ import annotations

import json
import os
import sys

from diag.collectors.trainer.loop import train
from diag.collectors.trainer.options import TrainerOptions


def main() -> None:
    for number, values in enumerate(json.loads(sys.argv[1])):
        if os.environ["RANK"] == "0":
            print(f"run {number}", flush=True)
        train(TrainerOptions.from_json(json.dumps(values)))


if __name__ == "__main__":
    main()

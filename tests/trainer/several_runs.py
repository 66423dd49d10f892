"""Runs the trainer several times in the same processes: starting Python and torch takes longer than a short run.

    torchrun ... several_runs.py '[{"strategy": "ddp"}, {"wrap": "root"}]'

Rank 0 prints ``run N`` before the lines of each.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist

from diag.collectors.trainer.__main__ import leave
from diag.collectors.trainer.data import ByteCorpus, documents
from diag.collectors.trainer.loop import Place, connect, run
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.refusals import validate


def main() -> None:
    place, device = Place.from_env(), torch.device("cpu")
    backend = connect(place, device, timeout_s=60)
    for number, values in enumerate(json.loads(sys.argv[1])):
        options = TrainerOptions.from_json(json.dumps(values))
        validate(options, place.world_size)
        if place.rank == 0:
            print(f"run {number}", flush=True)
        run(options, ByteCorpus(documents(options.data), options.shape().seq_len), place, device, backend)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()

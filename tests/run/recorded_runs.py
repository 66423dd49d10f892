"""Runs the trainer several times in the same processes, with collectors, each into a run directory of its own.

    torchrun ... recorded_runs.py '[{"out": "runs/a", "options": {"strategy": "ddp"}, "settings": {}}, ...]'

Starting Python and torch takes longer than a short run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from diag.collectors.layout import RUN_DIR_VARIABLE, RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.settings import SETTINGS_VARIABLE, CollectorSettings
from diag.collectors.trainer.__main__ import leave
from diag.collectors.trainer.data import ByteCorpus, documents
from diag.collectors.trainer.loop import Place, connect, run
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.refusals import validate, validate_backend


def main() -> None:
    place, device = Place.from_env(), torch.device("cpu")
    backend = connect(place, device, timeout_s=120)
    for asked in json.loads(sys.argv[1]):
        options = TrainerOptions.from_json(json.dumps(asked["options"]))
        validate(options, place.world_size)
        validate_backend(options, backend)
        layout = RunLayout(Path(asked["out"]))
        if place.rank == 0:
            layout.ranks_folder.mkdir(parents=True)
            update_manifest(layout, world_size=place.world_size, strategy=options.strategy)
        dist.barrier()
        os.environ[RUN_DIR_VARIABLE] = asked["out"]
        settings = {"trace_skip": options.steps // 2, "trace_active": 2} | asked.get("settings", {})
        os.environ[SETTINGS_VARIABLE] = CollectorSettings(**settings).to_json()
        corpus = ByteCorpus(documents(options.data), options.shape().seq_len)
        run(options, corpus, place, device, backend)
        if place.rank == 0:
            update_manifest(layout, exit_code=0)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()

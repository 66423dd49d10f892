"""The trainer with a slow disk under its checkpoints, so that a kill at a random moment often falls into saving.

    torchrun ... _slow_saving.py MILLISECONDS '{"strategy": "fsdp2", ...}'

So many are slept before each tensor of a shard, and ten times as many before the manifest, the renaming and ``latest``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem

from diag.collectors.trainer.__main__ import leave
from diag.collectors.trainer.checkpoint import folder
from diag.collectors.trainer.data import ByteCorpus, documents
from diag.collectors.trainer.loop import Place, connect, run
from diag.collectors.trainer.options import TrainerOptions


def slowed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **kwargs)

    return call


def main() -> None:
    seconds, options = float(sys.argv[1]) / 1e3, TrainerOptions.from_json(sys.argv[2])
    for owner, name, times in (
        (filesystem, "_write_item", 1), (folder, "complete", 10), (folder, "publish", 10), (folder, "point_latest", 10),
    ):  # fmt: skip
        setattr(owner, name, slowed(getattr(owner, name), times * seconds))
    place, device = Place.from_env(), torch.device("cpu")
    backend = connect(place, device, timeout_s=60)
    run(options, ByteCorpus(documents(options.data), options.shape().seq_len), place, device, backend)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()

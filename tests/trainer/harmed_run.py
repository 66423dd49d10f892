"""One run of the trainer in which something happens to its second checkpoint.

    torchrun ... harmed_run.py HARM '{"strategy": "ddp", "checkpoint_every": 2, ...}'

HARM is where the first rank is killed while it saves, or "full": the second rank cannot write large files for a while.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem

from diag.collectors.trainer.__main__ import leave
from diag.collectors.trainer.checkpoint import folder, saver
from diag.collectors.trainer.data import ByteCorpus, documents
from diag.collectors.trainer.loop import Place, connect, run
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.refusals import validate

# Where the first rank dies: the function that it calls there, and in which of the calls.
MOMENTS: dict[str, tuple[Any, str, int]] = {
    "in a shard": (filesystem, "_write_item", 20),
    "between shards and manifest": (folder, "complete", 1),
    "between manifest and name": (folder, "publish", 1),
    "between name and latest": (folder, "point_latest", 1),
    "while an old one is removed": (folder.shutil, "rmtree", 2),
}
FULL = "full"


def die(*_args: Any, **_kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, then: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return (then if calls == number else otherwise)(*args, **kwargs)

    return call


def harm(how: str, rank: int, second: int) -> None:
    """Arms it for the checkpoint after ``second`` steps."""
    save = saver.Saver.save

    def armed(self: saver.Saver, steps: int) -> None:
        self.finish()  # what is planted is for this one, and not for the one before, still being written
        if how == FULL and rank == 1:
            soft = 100_000 if steps == second else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        if how in MOMENTS and rank == 0 and steps == second:
            owner, name, number = MOMENTS[how]
            setattr(owner, name, at_call(number, die, getattr(owner, name)))
        save(self, steps)

    saver.Saver.save = armed  # type: ignore[method-assign]


def main() -> None:
    options = TrainerOptions.from_json(sys.argv[2])
    place, device = Place.from_env(), torch.device("cpu")
    validate(options, place.world_size)
    backend = connect(place, device, timeout_s=60)
    harm(sys.argv[1], place.rank, 2 * options.checkpoint_every)
    run(options, ByteCorpus(documents(options.data), options.shape().seq_len), place, device, backend)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()

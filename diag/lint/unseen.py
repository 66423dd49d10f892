"""What a configuration does not tell, and what to check in its place."""

from __future__ import annotations

from diag.words.formatting import visible

from .accelerate import Accelerate
from .deepspeed import DeepSpeed
from .model import Unseen
from .torchtitan import Titan


def unseen_deepspeed(seen: DeepSpeed) -> tuple[Unseen, ...]:
    found = [
        Unseen(
            "whether each rank reads data of its own",
            "deepspeed.initialize(training_data=...) puts a DistributedSampler in, as Accelerate and the Trainer do; a "
            "DataLoader of your own needs sampler=DistributedSampler(dataset) and set_epoch() every epoch",
        )
    ]
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if seen.devices.gpus is None and all(seen.top.whole(key) for key in sizes):
        whole, micro, steps = (seen.top.whole(key) or 1 for key in sizes)
        if whole % (micro * steps) == 0:
            found.append(
                Unseen("whether the batch sizes multiply", f"they do on {whole // (micro * steps)} GPUs: --gpus")
            )
    return tuple(found)


def unseen_accelerate(seen: Accelerate) -> tuple[Unseen, ...]:
    if seen.kind in ("NO", "FALSE", ""):
        return ()
    return (
        Unseen(
            "whether each rank reads data of its own",
            "Accelerate shards a DataLoader that goes through accelerator.prepare(), as the Trainer's do; one that "
            "does not gives every rank all of the data",
        ),
    )


def unseen_torchtitan(seen: Titan) -> tuple[Unseen, ...]:
    found = []
    if seen.devices.gpus is None:
        found.append(Unseen("whether the degrees make up the GPUs", "give --gpus and --per-host"))
    if seen.extended:
        found.append(
            Unseen("whether tables and keys are spelled right", "the module that adds some is not imported here")
        )
    return tuple(found)


def unseen_file(name: str) -> Unseen:
    return Unseen(f"what {visible(name[:200])} says", "it is not here: lint it where it is")

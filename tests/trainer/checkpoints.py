"""Builds folders that look like checkpoints, without any training."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diag.collectors.trainer.checkpoint import folder
from diag.collectors.trainer.checkpoint.folder import DCP, CheckpointManifest, File
from diag.collectors.trainer.options import TrainerOptions

CONTENT = {"__0_0.distcp": b"shard" * 100, "rank-00000.json": b"{}", ".metadata": b"metadata"}


def manifest_of(options: TrainerOptions, steps: int, ranks: int = 2, **changes: Any) -> CheckpointManifest:
    """What a run of these options would write after so many steps."""
    shape = options.shape()
    cursor = {
        "samples": 1003, "batch_size": shape.batch_size, "world_size": ranks, "seed": options.seed,
        "consumed": steps * options.micro_batches,
    }  # fmt: skip
    plain = CheckpointManifest(
        steps=steps, kind=DCP, world_size=ranks, strategy=options.strategy, mesh={"dp": ranks},
        options=asdict(options), model=asdict(shape), data={"fingerprint": "abc"}, cursor=cursor,
        consumed={"samples": 1, "tokens": 2}, optimizer={},
    )  # fmt: skip
    return replace(plain, **changes)


def make(root: Path, steps: int, options: TrainerOptions | None = None, **changes: Any) -> Path:
    """A complete checkpoint in ``root``; ``latest`` is left as it is."""
    draft = folder.draft_of(root, steps, "test")
    draft.mkdir(parents=True)
    for name, content in CONTENT.items():
        (draft / name).write_bytes(content)
    files = tuple(File.of(draft, name) for name in CONTENT)
    manifest = manifest_of(options or TrainerOptions(), steps, **changes)
    folder.write_manifest(draft, replace(manifest, files=files))
    return folder.publish(draft, steps)

"""``CheckpointWriter``: torch.distributed.checkpoint's writer of files, whose end is a published checkpoint.

torch's saving has three parts: every rank plans, every rank writes its shard, and when all have told the first rank
that their shard is on the disk, that rank writes the metadata. The files that are ours ride along in the last two, so
no rank waits once more for the others, and an error of one rank is an error of all.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import folder as folders
from .manifest import CheckpointManifest, File


def beginning_of(error: BaseException) -> BaseException:
    """What was raised first. On a full disk torch.save closes its archive while the system's error passes, and raises
    an error of its own over it: "unexpected pos 704 vs 598" (torch 2.13)."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


class CheckpointWriter(FileSystemWriter):
    """Writes into a draft; on the first rank ``finish`` turns it into a checkpoint.

    ``own``: what this rank's file shall hold. ``bytes``: of this rank's shard, when it has been written.
    """

    def __init__(self, draft: Path, rank: int, own: dict[str, Any], manifest: CheckpointManifest, keep: int) -> None:
        super().__init__(draft, sync_files=True)
        self.draft, self.rank_number, self.own, self.manifest, self.keep = draft, rank, own, manifest, keep
        self.start_ns = time.monotonic_ns()
        self.bytes = 0

    def storage_meta(self) -> StorageMeta | None:
        """Without the folder's name, which will be another, and which a reader has no use for."""
        return StorageMeta(save_id=self.save_id)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        folders.write_synced(self.draft / rank_file(self.rank_number), json.dumps(self.own).encode())
        try:
            written = super().write_data(plan, planner)
        except RuntimeError as error:
            raise beginning_of(error) from None
        self.bytes = sum(result.size_in_bytes for result in written.value())
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        shards = {info.relative_path for info in metadata.storage_data.values()}
        complete(self.draft, [".metadata", *sorted(shards)], self.manifest, self.start_ns, self.keep)


def complete(draft: Path, names: list[str], manifest: CheckpointManifest, start_ns: int, keep: int) -> None:
    """Makes a checkpoint of a draft to which all ranks have written. OSError where something is not there."""
    names = [*names, *(rank_file(rank) for rank in range(manifest.world_size))]
    try:
        files = tuple(File.of(draft, name) for name in names)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error.filename} is not there, though its rank has written it: all ranks must write into one folder, "
            "on storage that their hosts share"
        ) from error
    took = {"until_published_ns": time.monotonic_ns() - start_ns}
    folders.write_manifest(draft, replace(manifest, files=files, saving={**manifest.saving, **took}))
    final = folders.publish(draft, manifest.steps)
    folders.point_latest(final)
    with contextlib.suppress(OSError):  # an old one that stays is no reason to doubt the new one
        folders.prune(final, keep)

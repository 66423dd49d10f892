"""DeepSpeed's checkpoints, which only its engine reads and writes: in the foreground, for the same ranks and stage.

They lie in a folder of their own inside the checkpoint, whose manifest, ``latest`` and renaming are as for all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ..options import OptionError
from ..strategies.base import Strategy
from . import folder as folders
from .folder import Checkpoint, CheckpointManifest, File

# -- writer ------------------------------------------------------------------------------------------------------------
#
# ``CheckpointWriter``: torch.distributed.checkpoint's writer of files, whose end is a published checkpoint.
#
# torch's saving has three parts: every rank plans, every rank writes its shard, and when all have told the first rank
# that their shard is on the disk, that rank writes the metadata. The files that are ours ride along in the last two, so
# no rank waits once more for the others, and an error of one rank is an error of all.


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


TAG = "deepspeed"


def _guard(engine: Any) -> list[str]:
    """Puts a reader and writer of files into the engine that unpickles tensors and DeepSpeed's own few classes only,
    and that keeps the first error of writing instead of raising it, since its peers wait for this rank at the end.

    The errors.
    """
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    errors: list[str] = []

    class GuardedFiles(TorchCheckpointEngine):  # type: ignore[misc]
        def save(self, state_dict: Any, path: str) -> None:
            try:
                with Path(path).open("wb") as file:
                    torch.save(state_dict, file)
                    file.flush()
                    os.fsync(file.fileno())
            except (OSError, RuntimeError) as error:
                errors.append(str(beginning_of(error)).splitlines()[0])

        def load(self, path: str, map_location: Any = None) -> Any:
            with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
                return torch.load(path, map_location=map_location, weights_only=True)

    engine.checkpoint_engine = GuardedFiles()
    return errors


def save(
    strategy: Strategy,
    draft: Path,
    own: dict[str, Any],
    manifest: CheckpointManifest,
    keep: int,
    group: dist.ProcessGroup,
) -> tuple[int, str]:
    """Saves and publishes. Bytes that this rank wrote, and what went wrong on any, "" if nothing did."""
    start_ns, rank = time.monotonic_ns(), dist.get_rank()
    if why := _first_rank(lambda: (draft / TAG).mkdir(parents=True), group):
        return 0, why
    engine: Any = getattr(strategy, "engine")  # noqa: B009  (only DeepSpeed's strategy has one)
    errors = _guard(engine)
    engine.save_checkpoint(str(draft), tag=TAG, save_latest=False)
    try:
        folders.write_synced(draft / rank_file(rank), json.dumps(own).encode())
    except OSError as error:
        errors.append(str(error))
    everybodys: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everybodys, errors, group=group)
    for number, theirs in enumerate(everybodys):
        if theirs:
            return 0, f"rank {number}: {theirs[0]}"

    def publish() -> None:
        names = [str(path.relative_to(draft)) for path in sorted((draft / TAG).rglob("*")) if path.is_file()]
        complete(draft, names, manifest, start_ns, keep)

    size = sum(path.stat().st_size for path in _own_files(draft / TAG, rank))
    return size, _first_rank(publish, group)


def _own_files(folder: Path, rank: int) -> list[Path]:
    """What one rank wrote: its optimizer's part, and on the first one the model, or its part of it in stage 3."""
    return [
        path
        for path in folder.glob("*.pt")
        if f"zero_pp_rank_{rank}_" in path.name or (rank == 0 and path.name.startswith("mp_rank_00"))
    ]


def _first_rank(action: Callable[[], object], group: dist.ProcessGroup) -> str:
    """Does it on the first rank. On every rank what went wrong there, "" if nothing did."""
    outcome = [""]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            outcome = [f"rank 0: {error}"]
    dist.broadcast_object_list(outcome, src=0, group=group)
    return outcome[0]


def load(strategy: Strategy, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Model, optimizer and counters of the engine. OptionError where its files are not what they should be."""
    from pickle import UnpicklingError

    engine: Any = getattr(strategy, "engine")  # noqa: B009
    _guard(engine)
    try:
        found, _ = engine.load_checkpoint(str(checkpoint.folder), tag=TAG)
    except UnpicklingError as error:
        raise OptionError(f"--resume {checkpoint.folder}: {str(error).splitlines()[0]}") from error
    if found is None:
        raise OptionError(f"--resume {checkpoint.folder}: DeepSpeed found nothing to load in it")
    optimizer.param_groups = engine.optimizer.param_groups  # loading made new ones

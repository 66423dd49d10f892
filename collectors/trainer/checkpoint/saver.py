"""``Saver``: saves at a fixed interval of steps, in the background if possible. A failed save does not end a
training."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from ...collectives import APART
from ...records import CheckpointRecord
from ...settings import run_dir_from
from ..keys import OptionError
from ..options import TrainerOptions
from . import folder
from .contents import Contents, first_failure, say
from .folder import OF_RUN, Checkpoint, CheckpointManifest

# In this group ranks wait until all have written, and one disk may be much slower than the others. The launcher detects
# a dead rank.
_PATIENCE = timedelta(hours=1)


def checkpoint_group() -> dist.ProcessGroup:
    """A group of all ranks that only checkpoints use. Saving in the background on the training's own group would mix
    both kinds of messages: with FSDP2 on gloo that deadlocked in 2 of 2 runs."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=_PATIENCE, group_desc=APART)
    return group


# -- writer ------------------------------------------------------------------------------------------------------------
#
# ``CheckpointWriter``: torch.distributed.checkpoint's file writer, which also publishes the checkpoint.
#
# torch's saving has three parts: every rank plans, every rank writes its shard, and when all have reported to the first
# rank that their shard is on the disk, that rank writes the metadata. Our own files are written in the last two parts,
# so no rank waits once more for the others, and an error of one rank is an error of all.


class CheckpointWriter(FileSystemWriter):
    """Writes into a draft; on the first rank ``finish`` turns it into a checkpoint.

    ``own``: the content of this rank's file. ``bytes``: size of this rank's shard, once it is written.
    """

    def __init__(self, draft: Path, rank: int, own: dict[str, Any], manifest: CheckpointManifest, keep: int) -> None:
        super().__init__(draft, sync_files=True)
        self.draft, self.rank_number, self.own, self.manifest, self.keep = draft, rank, own, manifest, keep
        self.start_ns = time.monotonic_ns()
        self.bytes = 0

    def storage_meta(self) -> StorageMeta | None:
        """Leaves out the folder's name, which will change and which readers do not use."""
        return StorageMeta(save_id=self.save_id)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        folder.write_synced(self.draft / folder.rank_file(self.rank_number), json.dumps(self.own).encode())
        try:
            written = super().write_data(plan, planner)
        except RuntimeError as error:
            raise folder.first_error(error) from None
        self.bytes = sum(result.size_in_bytes for result in written.value())
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        shards = {info.relative_path for info in metadata.storage_data.values()}
        folder.complete(self.draft, [".metadata", *sorted(shards)], self.manifest, self.start_ns, self.keep)


@dataclass
class _UnderWay:
    """A checkpoint whose shards are being written."""

    record: CheckpointRecord
    writer: CheckpointWriter
    done: Future[Any]
    ended: bool = False

    def note_end(self, _: object = None) -> None:
        """Called by the thread that wrote, and by the thread that waits for it: the first call counts."""
        if not self.ended:
            self.ended = True
            self.record.background_ns = time.monotonic_ns() - self.record.start_ns - self.record.blocking_ns


class Saver:
    """Saves into ``root``. ``record`` takes the record of each checkpoint when it has ended, with or without success.

    Every rank calls the same methods after the same steps. OptionError if nothing can be written at all.
    """

    def __init__(
        self,
        contents: Contents,
        root: Path,
        group: dist.ProcessGroup,
        record: Callable[[CheckpointRecord], None],
    ) -> None:
        options = contents.options
        self.contents, self.root, self.group, self.record = contents, root, group, record
        self.every, self.keep = options.checkpoint_every, options.keep_checkpoints
        self.in_background = options.checkpoint_async and contents.kind == folder.DCP
        self.run = self._prepare()
        self._under_way: _UnderWay | None = None
        self._last = "none"

    def _prepare(self) -> str:
        """A name for this run's drafts, equal on all ranks."""
        outcome: list[Any] = [None, None]
        if dist.get_rank() == 0:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                folder.clear_drafts(self.root)
                folder.write_synced(self.root / ".probe", b"")
                (self.root / ".probe").unlink()
                outcome = [uuid.uuid4().hex[:8], None]
            except OSError as error:
                outcome = [None, error.strerror or str(error)]
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        name, why = outcome
        if why is not None:
            raise OptionError(f"checkpoints cannot be written to {self.root}: {why}. Give another --checkpoint-dir")
        return str(name)

    def due(self, steps: int) -> bool:
        """Whether a checkpoint follows the step of this number, counted from 1."""
        return steps % self.every == 0

    def save(self, steps: int) -> None:
        """Starts a checkpoint after this number of steps; returns when the training may change the saved state."""
        record = CheckpointRecord(steps - 1, asynchronous=self.in_background, start_ns=time.monotonic_ns())
        self._settle()  # one at a time: a second copy of the state might not fit
        record.waited_ns = time.monotonic_ns() - record.start_ns
        if self.contents.kind != folder.DCP:
            self._save_by_strategy(steps, record)
        else:
            self._save(steps, record)

    def poll(self) -> None:
        """Records a checkpoint that has ended in the background."""
        if self._under_way is not None and self._under_way.done.done():
            self._settle()

    def finish(self) -> None:
        """Waits for the checkpoint under way."""
        self._settle()

    def _save(self, steps: int, record: CheckpointRecord) -> None:
        contents = self.contents
        state = contents.state()
        writer = CheckpointWriter(
            folder.draft_of(self.root, steps, self.run),
            dist.get_rank(),
            contents.of_this_rank(),
            contents.manifest(steps, asynchronous=self.in_background),
            self.keep,
        )
        if not self.in_background:
            done: Future[Any] = Future()
            try:
                done.set_result(save(state, storage_writer=writer, process_group=self.group))
            except CheckpointException as error:
                done.set_exception(error)
            record.blocking_ns = time.monotonic_ns() - record.start_ns
            self._under_way = _UnderWay(record, writer, done)
            self._settle()
            return
        started: Any = async_save(state, storage_writer=writer, process_group=self.group)
        done = started.upload_completion if hasattr(started, "upload_completion") else started
        record.blocking_ns = time.monotonic_ns() - record.start_ns
        self._under_way = _UnderWay(record, writer, done)
        done.add_done_callback(self._under_way.note_end)

    def _settle(self) -> None:
        """Waits for the checkpoint under way, records its result, and removes the files of a failed one."""
        if self._under_way is None:
            return
        ending, self._under_way = self._under_way, None
        error = ending.done.exception()
        if self.in_background:
            ending.note_end()
        ending.record.bytes = ending.writer.bytes
        if error is None:
            self._ended(ending.record, ending.writer.manifest.steps)
            return
        why = first_failure(error) if isinstance(error, CheckpointException) else f"{type(error).__name__}: {error}"
        self._failed(ending.record, ending.writer.manifest.steps, ending.writer.draft, why)

    def _save_by_strategy(self, steps: int, record: CheckpointRecord) -> None:
        contents, draft = self.contents, folder.draft_of(self.root, steps, self.run)
        manifest = contents.manifest(steps, asynchronous=False)
        size, why = contents.strategy.save_checkpoint(draft, contents.of_this_rank(), manifest, self.keep, self.group)
        record.bytes, record.blocking_ns = size, time.monotonic_ns() - record.start_ns
        if why:
            self._failed(record, steps, draft, why)
        else:
            self._ended(record, steps)

    def _ended(self, record: CheckpointRecord, steps: int) -> None:
        self._last = folder.name_of(steps)
        self.record(record)

    def _failed(self, record: CheckpointRecord, steps: int, draft: Path, why: str) -> None:
        record.failed = why
        say(
            f"WARNING: the checkpoint after {steps} steps could not be saved: {why}. Training goes on; the last "
            f"complete one of this run: {self._last}"
        )
        if dist.get_rank() == 0:
            shutil.rmtree(draft, ignore_errors=True)
        self.record(record)


# -- begin -------------------------------------------------------------------------------------------------------------
#
# Between building a training and its first step: resumes from a checkpoint and prepares saving.


def begin(
    contents: Contents,
    resumed: Checkpoint | None,
    describe: Callable[..., None],
    record: Callable[[CheckpointRecord], None],
) -> tuple[int, Saver | None]:
    """The number of the first step, and the saver, if checkpoints are to be saved.

    ``describe`` takes fields of the run's manifest, ``record`` the record of each checkpoint. OptionError, on every
    rank, if the checkpoint cannot be read or none could be written.
    """
    options = contents.options
    group = checkpoint_group()
    first_step = 0
    if resumed is not None:
        first_step, begin_ns = resumed.manifest.steps, time.monotonic_ns()
        contents.restore(resumed, group)
        notes = contents.differences(resumed)
        say(f"resumed after {first_step} steps from {resumed.folder}" + "".join(f"; {note}" for note in notes))
        loading = {"steps": first_step, "load_ns": time.monotonic_ns() - begin_ns, "differences": notes}
        describe(resumed_from=str(resumed.folder), trainer={"resumed": loading})
    if not options.checkpoint_every:
        return first_step, None
    return first_step, Saver(contents, folder_of(options), group, record)


def folder_of(options: TrainerOptions) -> Path:
    """The folder that this run saves into. OptionError if none is set."""
    if options.checkpoint_dir is not None:
        return Path(options.checkpoint_dir)
    run_dir = run_dir_from()
    if run_dir is None:
        raise OptionError("--checkpoint-every needs --checkpoint-dir: there is no run directory to save in")
    return run_dir / OF_RUN

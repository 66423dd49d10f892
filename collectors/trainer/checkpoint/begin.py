"""What comes between a training that is built and its first step: going on from a checkpoint, getting ready to save."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...records import CheckpointRecord
from ...settings import run_dir_from
from ..options import OptionError, TrainerOptions
from .contents import Contents, say
from .folder import OF_RUN, Checkpoint
from .saver import Saver, checkpoint_group


def begin(
    contents: Contents,
    resumed: Checkpoint | None,
    describe: Callable[..., None],
    tell: Callable[[CheckpointRecord], None],
) -> tuple[int, Saver | None]:
    """The number of the first step, and who saves, if somebody shall.

    ``describe`` takes fields of the run's manifest, ``tell`` the record of each checkpoint. OptionError, on every rank,
    where a checkpoint cannot be read or none could be written.
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
    return first_step, Saver(contents, folder_of(options), group, tell)


def folder_of(options: TrainerOptions) -> Path:
    """Where this run saves. OptionError where nothing says it."""
    if options.checkpoint_dir is not None:
        return Path(options.checkpoint_dir)
    run_dir = run_dir_from()
    if run_dir is None:
        raise OptionError("--checkpoint-every needs --checkpoint-dir: there is no run directory to save in")
    return run_dir / OF_RUN

"""``record``: records a training from its own script, in two lines.

    with record("R") as recording:
        for batch in recording.steps(loader):
            ...

The hooks are those of ``attach``, installed in this process; the loop marks the end of each step, so that it need not
be inferred.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from .fence import Fence
from .settings import CollectorSettings, collecting, run_dir_from, settings_from

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

    from .attach.life import Attachment

_ATTACHED = "_diag_collectors.attach.life"  # what ``site/sitecustomize.py`` loads

_Batch = TypeVar("_Batch")


def record(run_dir: Path | str | None = None, settings: CollectorSettings | None = None) -> Recording:
    """The recording of this process. Enter it with ``with``: after ``init_process_group``, if there is one, and before
    the model is wrapped.

    Under ``diag run`` and ``diag attach`` it is the launcher's recording, which began earlier and continues afterwards,
    in the launcher's run directory and with its settings. Without a launcher and without ``run_dir``, and with
    DIAG_COLLECT=off, nothing is recorded, and the recording's methods do nothing.
    """
    recording = Fence().call(_recording, run_dir, settings)
    return recording if recording is not None else Recording(None)


def _recording(run_dir: Path | str | None, settings: CollectorSettings | None) -> Recording:
    if not collecting():
        return Recording(None)
    attached = getattr(sys.modules.get(_ATTACHED), "armed", None)
    if attached is not None:
        return Recording(attached, own=False)  # one recording per process is enough
    launched = run_dir_from()
    where = launched or (Path(run_dir) if run_dir is not None else None)
    if where is None:
        return Recording(None)
    from .attach.life import Attachment  # an unsupported torch, or settings that do not parse

    return Recording(Attachment(where, settings if settings and not launched else settings_from(), explicit=True))


class Recording(AbstractContextManager["Recording"]):
    """Never raises, and does not catch exceptions of the training. Without ``steps`` and ``told_steps`` a step ends
    with the optimizer's step."""

    def __init__(self, prepared: Attachment | None, own: bool = True) -> None:
        """``own``: this object begins and ends the recording, not a launcher."""
        self._prepared, self._own = prepared, own
        self._life: Attachment | None = None  # between begin and end

    def __enter__(self) -> Self:
        self._life, self._prepared = self._prepared, None
        if self._life is not None and self._own:
            self._life.fence.call(self._life.begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the recording; for use without ``with``. ``error``: the exception that ended the training."""
        life, self._life = self._life, None
        if life is not None and self._own:
            life.fence.call(life.finish, error, always=True)
        elif life is not None:
            life.fence.call(life.tell, "inferred_steps")

    def steps(self, batches: Iterable[_Batch], micro_batches: int = 1) -> Iterator[_Batch]:
        """Yields the batches. The wait for each is timed. A step ends after every ``micro_batches`` iterations of the
        loop, including what the loop does after its optimizer."""
        life = self._life
        if life is None:
            yield from batches
            return
        iterator, loader = iter(batches), id(batches)
        self.told_steps(loader)
        plain = functools.partial(next, iterator)
        fetch = life.fence.call(life.fetches.timed, plain, lambda _args: (loader, iterator)) or plain
        turns = 0
        try:
            while True:
                try:
                    batch = fetch()
                except StopIteration:
                    return
                yield batch
                turns += 1
                if turns % micro_batches == 0:
                    self.end_step()
        finally:  # at the end of an epoch, or where the loop is left
            life.fence.call(life.tell, "step_ends", False)

    def told_steps(self, loader: int | None = None) -> None:
        """From here on a step ends with ``end_step`` instead of the optimizer's step: for loops that ``steps`` does not
        fit. ``loader``: ``id`` of the source of the batches, if it is not a DataLoader."""
        if self._life is not None:
            self._life.fence.call(self._life.tell, "told_steps", loader)

    def end_step(self) -> None:
        if self._life is not None:
            self._life.fence.call(self._life.tell, "step_ends")

    def note(self, tokens: int = 0, loss: float | None = None) -> None:
        """Adds tokens and loss to the record of the step under way; tokens of its micro-batches are summed."""
        if self._life is not None:
            self._life.fence.call(self._life.tell, "note", tokens, loss)

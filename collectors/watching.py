"""One watcher a job: a process that says when the training is stuck, for launchers that are not ours. The process that
has rank 0 starts it, and another one where it has died. Standard library only."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .keeping import Keeper, start
from .layout import RUN_DIR_VARIABLE
from .node_lock import NodeLock
from .packing import PACK_VARIABLE
from .reading import is_of_kind

WATCH_VARIABLE = "DIAG_WATCH"  # see ``Watching``; "off": nothing watches
MODULE = "diag.watch.attached"


@dataclass(frozen=True)
class Watching:
    """``run``: the run directory that is watched; ``python`` and ``starter``: as in ``keeping.start``."""

    run: str
    python: str
    starter: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def watching_from(environ: Mapping[str, str] = os.environ) -> Watching | None:
    """What ``diag attach`` set; None where it did not, where it is switched off, and where another launcher of ours has
    started this training, which watches itself."""
    try:
        values = json.loads(environ.get(WATCH_VARIABLE, ""))
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    fields = {name: values.get(name) for name in ("run", "python", "starter")}
    if not all(is_of_kind(value, "str") for value in fields.values()) or fields["run"] != environ.get(RUN_DIR_VARIABLE):
        return None
    return Watching(**fields)  # type: ignore[arg-type]


def watcher_lock(run: Path) -> NodeLock:
    """Held by the watcher of a run."""
    return NodeLock.of_run(run, "watcher")


def keeper_of(watching: Watching, say: Callable[[Exception], object]) -> Keeper:
    run = Path(watching.run)

    def runs() -> bool:
        return not watcher_lock(run).is_free()

    def begin() -> None:
        packing = os.environ.get(PACK_VARIABLE)  # the job's other ranks are only there
        variables = {PACK_VARIABLE: packing} if packing else {}
        start(watching.python, watching.starter, MODULE, str(run), variables=variables, log=_file_of_log())

    return Keeper("diag-watcher", runs, begin, say)


def _file_of_log() -> int | None:
    """This process's standard error, if it is a file. Only who writes through it writes where the training goes on,
    which would else write over the lines; and nobody waits until a file is closed."""
    try:
        return 2 if stat.S_ISREG(os.fstat(2).st_mode) else None
    except OSError:
        return None

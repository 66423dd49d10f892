"""One packer a node: a process that carries what the ranks of a node write to a store. Standard library only.

The ranks write into a folder of their own node. The packer holds a lock there while it runs. A launcher of ours starts
it; where another launcher starts the ranks, the first of them does, and any rank starts another one where it has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .files import own_folder
from .keeping import Keeper, start
from .node_lock import NodeLock
from .reading import is_of_kind

PACK_VARIABLE = "DIAG_PACK"  # see ``Packing``. Not on a command line, which other users can read
FOLDER_VARIABLE = "DIAG_NODE_FOLDER"  # where the folders of nodes are made, instead of the system's temporary folder
MODULE = "diag.store.packer"
HIDDEN = ".packer"  # the folder of its own files, in the folder of a node


@dataclass(frozen=True)
class Packing:
    """``to``: the address, or the shared folder. ``python``: the interpreter that has diag. ``starter``: the file of
    ``diag.processes``, which starts every process."""

    to: str
    interval_s: float = 30.0
    python: str = ""
    starter: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def packing_from(environ: Mapping[str, str] = os.environ) -> Packing | None:
    """What the launcher set; None where nothing is packed."""
    try:
        values = json.loads(environ.get(PACK_VARIABLE, ""))
    except (ValueError, RecursionError):
        return None
    kinds = {"to": "str", "interval_s": "float", "python": "str", "starter": "str"}
    if not isinstance(values, dict) or not all(is_of_kind(values.get(name), kind) for name, kind in kinds.items()):
        return None
    return Packing(**{name: values[name] for name in kinds})


def node_folder(name: str = "", environ: Mapping[str, str] = os.environ) -> Path:
    """The path of a folder on each node, in one that only this user may enter: of this name, or a new one."""
    import tempfile

    base = environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return Path(base).resolve() / f"diag-{user}" / (name or uuid.uuid4().hex[:12])


def make_private(folder: Path) -> None:
    """Makes a node's folder. OSError where the one above is another user's, or a link: anybody may have made it."""
    own_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)


def packer_lock(folder: Path) -> NodeLock:
    """Held by the packer of a node's folder. OSError where its place cannot be made."""
    hidden = folder / HIDDEN
    hidden.mkdir(parents=True, exist_ok=True, mode=0o700)
    return NodeLock(hidden / "lock")


def keep_from_cleaners(folder: Path) -> int | None:
    """A descriptor that keeps programs which remove old files of temporary folders out of this one while it is open:
    tmpfiles.d leaves out what somebody has locked. None where the system refuses."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def keeper_of(folder: Path, packing: Packing, say: Callable[[str], object]) -> Keeper:
    """Sees to it, from a thread of a rank, that a packer runs on this node. ``say`` gets the reason where none can be
    started: the training, and its recording on this node, go on without one."""

    def runs() -> bool:
        return not packer_lock(folder).is_free()

    def begin() -> None:
        start(packing.python, packing.starter, MODULE, str(folder), variables={PACK_VARIABLE: packing.to_json()})

    return Keeper(
        "diag-packer", runs, begin, lambda error: say(f"what is recorded stays on this node, in {folder}: {error}")
    )
